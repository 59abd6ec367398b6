//! Remembers recent events and whether they were delivered, so that a message that arrives twice is delivered once.

use std::{
    collections::{HashMap, hash_map::RandomState},
    hash::BuildHasher,
    mem,
    time::Duration,
};

use tokio::time::Instant;

use super::Event;

/// The most events of a generation: one minute at a thousand events a second. Two generations take about two MiB each.
const GENERATION_EVENTS_MAX: usize = 60_000;
/// A generation takes events for this long. Two of them remember an event for one to two minutes, as long as relay and nwaku
/// remember a message.
const GENERATION_AGE_MAX: Duration = Duration::from_secs(60);

/// The events of the last minute or two, by a keyed hash that others can't compute, and whether each was delivered.
pub(super) struct Recent {
    hasher: RandomState,
    present: HashMap<u64, bool>,
    former: HashMap<u64, bool>,
    begun: Instant,
}

/// What is known of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Noted {
    /// It was not noted before.
    New,
    /// It was noted before, and delivered to nobody.
    Undelivered,
    /// It was noted before, and delivered, or is being delivered.
    Delivered,
}

impl Recent {
    pub(super) fn new(now: Instant) -> Self {
        Self { hasher: RandomState::new(), present: HashMap::new(), former: HashMap::new(), begun: now }
    }

    /// Notes an event. If it `has_subscribers` it counts as delivered from here on: unless this returns [`Noted::Delivered`], the caller
    /// delivers it, or calls [`Recent::note_undelivered`]. Noting an event again does not extend how long it is remembered.
    pub(super) fn note(&mut self, event: &Event, has_subscribers: bool, now: Instant) -> Noted {
        self.age(now);
        let key = self.key_of(event);
        let Some(is_handed) = self.find(key) else {
            self.present.insert(key, has_subscribers);
            return Noted::New;
        };
        if *is_handed {
            return Noted::Delivered;
        }
        *is_handed = has_subscribers;
        Noted::Undelivered
    }

    /// Notes that a wanted event was delivered to nobody.
    pub(super) fn note_undelivered(&mut self, event: &Event) {
        let key = self.key_of(event);
        if let Some(is_handed) = self.find(key) {
            *is_handed = false;
        }
    }

    /// Forgets an event: the next time it is new.
    pub(super) fn forget(&mut self, event: &Event) {
        let key = self.key_of(event);
        self.present.remove(&key);
        self.former.remove(&key);
    }

    /// The message hash alone does not identify a message: `14/WAKU2-MESSAGE` computes it over the fields without their lengths,
    /// so that an attacker could move bytes between fields, and send first a message that hides another. With channel and topic
    /// in the key only messages whose payload or meta contains the text of their own content topic can be hidden. The encoded bytes
    /// are not part of the key, because nodes may encode a message differently or add a proof.
    fn key_of(&self, event: &Event) -> u64 {
        self.hasher.hash_one((&event.message_hash.0, &*event.channel, &*event.topic))
    }

    fn find(&mut self, key: u64) -> Option<&mut bool> {
        self.present.get_mut(&key).or_else(|| self.former.get_mut(&key))
    }

    fn age(&mut self, now: Instant) {
        let age = now.saturating_duration_since(self.begun);
        if age >= GENERATION_AGE_MAX || self.present.len() >= GENERATION_EVENTS_MAX {
            self.former = mem::take(&mut self.present);
            self.begun = now;
        }
        if age >= 2 * GENERATION_AGE_MAX {
            self.former = HashMap::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use restante_core::{MessageHash, Timestamp};

    use super::*;

    fn event(number: u32, topic: &str) -> Event {
        let mut hash = [0; 32];
        hash[..4].copy_from_slice(&number.to_be_bytes());
        Event::new("/waku/2/rs/1/0".into(), topic.into(), MessageHash(hash), Timestamp(0), Bytes::new())
    }

    #[test]
    fn an_event_is_new_once_within_a_minute() {
        let begun = Instant::now();
        let mut recent = Recent::new(begun);
        let mut note =
            |topic, seconds| recent.note(&event(1, topic), true, begun + Duration::from_secs(seconds));
        assert_eq!(note("a", 0), Noted::New);
        assert_eq!(note("a", 59), Noted::Delivered);
        assert_eq!(note("b", 0), Noted::New, "with another topic it is another message");
        assert_eq!(note("a", 60), Noted::Delivered, "the former generation counts");
        assert_eq!(note("a", 121), Noted::New, "forgotten after two");
        assert_eq!(note("a", 1_000), Noted::New, "and when nothing came for long");
    }

    #[test]
    fn an_event_counts_as_delivered_when_it_has_subscribers_and_fitted() {
        let begun = Instant::now();
        let mut recent = Recent::new(begun);
        let event = event(1, "a");
        assert_eq!(recent.note(&event, false, begun), Noted::New);
        assert_eq!(recent.note(&event, false, begun), Noted::Undelivered);
        let later = begun + GENERATION_AGE_MAX;
        assert_eq!(recent.note(&event, true, later), Noted::Undelivered);
        recent.note_undelivered(&event);
        assert_eq!(recent.note(&event, true, later), Noted::Undelivered, "it was delivered to nobody");
        assert_eq!(recent.note(&event, true, later), Noted::Delivered);
        assert_eq!(
            recent.note(&event, false, later),
            Noted::Delivered,
            "whether it has subscribers now or not"
        );
        assert_eq!(
            recent.note(&event, true, begun + 2 * GENERATION_AGE_MAX),
            Noted::New,
            "noting it again does not extend its time"
        );
    }

    #[test]
    fn what_is_forgotten_is_new_again() {
        let begun = Instant::now();
        let mut recent = Recent::new(begun);
        for later in [begun, begun + GENERATION_AGE_MAX] {
            recent.note(&event(1, "a"), true, begun);
            recent.note(&event(2, "a"), true, later);
            recent.forget(&event(1, "a"));
            assert_eq!(recent.note(&event(1, "a"), true, later), Noted::New);
            assert_eq!(recent.note(&event(2, "a"), true, later), Noted::Delivered);
        }
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let now = Instant::now();
        let mut recent = Recent::new(now);
        for number in 0..2 * GENERATION_EVENTS_MAX as u32 + 1 {
            assert_eq!(recent.note(&event(number, "a"), true, now), Noted::New);
        }
        assert!(recent.present.len() + recent.former.len() <= 2 * GENERATION_EVENTS_MAX);
        let last = event(2 * GENERATION_EVENTS_MAX as u32, "a");
        assert_eq!(recent.note(&last, true, now), Noted::Delivered);
    }
}
