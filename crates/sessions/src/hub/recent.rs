//! Remembers what came, and what was handed out, so that a message that comes by two ways is handed out once.

use std::{
    collections::{HashMap, hash_map::RandomState},
    hash::BuildHasher,
    mem,
    time::Duration,
};

use tokio::time::Instant;

use super::Event;

/// Events of one generation at most: a minute at a thousand a second. Two generations are kept, in about two MiB each.
const GENERATION_EVENTS_MAX: usize = 60_000;
/// How long a generation is added to: with two of them an event is remembered for one to two minutes, as long as relay and
/// nwaku remember a message.
const GENERATION_AGE_MAX: Duration = Duration::from_secs(60);

/// The events of the last minute or two, by a keyed hash that nobody else can compute, and whether each was handed to somebody.
pub(super) struct Recent {
    hasher: RandomState,
    present: HashMap<u64, bool>,
    former: HashMap<u64, bool>,
    begun: Instant,
}

/// What is known of an event that comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Noted {
    /// It is the first time.
    New,
    /// It came before, and nobody was given it.
    Undelivered,
    /// It came before, and is with somebody, or about to be.
    Delivered,
}

impl Recent {
    pub(super) fn new(now: Instant) -> Self {
        Self { hasher: RandomState::new(), present: HashMap::new(), former: HashMap::new(), begun: now }
    }

    /// Notes an event. One that is wanted counts as handed to somebody from here on: who asks so hands it out unless it was
    /// [`Noted::Delivered`], and says so if that came to nothing. An event that comes again is not remembered for longer.
    pub(super) fn note(&mut self, event: &Event, is_wanted: bool, now: Instant) -> Noted {
        self.age(now);
        let key = self.key_of(event);
        let Some(is_handed) = self.find(key) else {
            self.present.insert(key, is_wanted);
            return Noted::New;
        };
        if *is_handed {
            return Noted::Delivered;
        }
        *is_handed = is_wanted;
        Noted::Undelivered
    }

    /// Nobody was given an event that was noted as wanted.
    pub(super) fn note_undelivered(&mut self, event: &Event) {
        let key = self.key_of(event);
        if let Some(is_handed) = self.find(key) {
            *is_handed = false;
        }
    }

    /// An event that came is as if it had not: when it comes again it is new.
    pub(super) fn forget(&mut self, event: &Event) {
        let key = self.key_of(event);
        self.present.remove(&key);
        self.former.remove(&key);
    }

    /// The message hash alone does not tell messages apart: `14/WAKU2-MESSAGE` takes it over the fields without their lengths,
    /// so that somebody could move bytes from one field to the next, and send first what hides another's message. With the
    /// channel and the topic that is left to those whose payload or meta has the content topic's own text in it: bytes may
    /// move between these two then. The bytes of the message don't belong to the key, since a message is the same by whatever
    /// way it comes, and some nodes write it anew or add a proof.
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
    fn an_event_is_handed_when_it_is_wanted_and_somebody_was_given_it() {
        let begun = Instant::now();
        let mut recent = Recent::new(begun);
        let event = event(1, "a");
        assert_eq!(recent.note(&event, false, begun), Noted::New);
        assert_eq!(recent.note(&event, false, begun), Noted::Undelivered);
        let later = begun + GENERATION_AGE_MAX;
        assert_eq!(recent.note(&event, true, later), Noted::Undelivered);
        recent.note_undelivered(&event);
        assert_eq!(recent.note(&event, true, later), Noted::Undelivered, "it came to nothing");
        assert_eq!(recent.note(&event, true, later), Noted::Delivered);
        assert_eq!(recent.note(&event, false, later), Noted::Delivered, "whoever wants it now");
        assert_eq!(
            recent.note(&event, true, begun + 2 * GENERATION_AGE_MAX),
            Noted::New,
            "it grew no younger"
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
