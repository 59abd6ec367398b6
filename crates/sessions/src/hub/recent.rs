//! Remembers what was handed out, so that a message that comes by two ways is handed out once.

use std::{
    collections::{HashSet, hash_map::RandomState},
    hash::BuildHasher,
    mem,
    time::Duration,
};

use tokio::time::Instant;

use super::Event;

/// Events of one generation at most: a minute at a thousand a second. Two generations are kept, in about a MiB each.
const GENERATION_EVENTS_MAX: usize = 60_000;
/// How long a generation is added to: with two of them an event is remembered for one to two minutes, as long as relay and
/// nwaku remember a message.
const GENERATION_AGE_MAX: Duration = Duration::from_secs(60);

/// The events of the last minute or two, by a keyed hash that nobody else can compute.
pub(super) struct Recent {
    hasher: RandomState,
    present: HashSet<u64>,
    former: HashSet<u64>,
    begun: Instant,
}

impl Recent {
    pub(super) fn new(now: Instant) -> Self {
        Self { hasher: RandomState::new(), present: HashSet::new(), former: HashSet::new(), begun: now }
    }

    /// Whether the event was not noted before; notes it.
    ///
    /// The message hash alone does not tell messages apart: `14/WAKU2-MESSAGE` takes it over the fields without their
    /// lengths, so that somebody could move bytes from one field to the next, and send first what hides another's message.
    pub(super) fn note(&mut self, event: &Event, now: Instant) -> bool {
        let age = now.saturating_duration_since(self.begun);
        if age >= GENERATION_AGE_MAX || self.present.len() >= GENERATION_EVENTS_MAX {
            self.former = mem::take(&mut self.present);
            self.begun = now;
        }
        if age >= 2 * GENERATION_AGE_MAX {
            self.former = HashSet::new();
        }
        let key = self.hasher.hash_one((&event.message_hash.0, &*event.channel, &*event.topic));
        !self.former.contains(&key) && self.present.insert(key)
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
        let after = |seconds| begun + Duration::from_secs(seconds);
        let mut recent = Recent::new(begun);
        assert!(recent.note(&event(1, "a"), begun));
        assert!(!recent.note(&event(1, "a"), after(59)));
        assert!(recent.note(&event(1, "b"), begun), "with another topic it is another message");
        assert!(!recent.note(&event(1, "a"), after(60)), "the former generation counts");
        assert!(recent.note(&event(1, "a"), after(121)), "forgotten after two");
        assert!(recent.note(&event(1, "a"), after(1_000)), "and when nothing came for long");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let now = Instant::now();
        let mut recent = Recent::new(now);
        for number in 0..2 * GENERATION_EVENTS_MAX as u32 + 1 {
            assert!(recent.note(&event(number, "a"), now));
        }
        assert!(recent.present.len() + recent.former.len() <= 2 * GENERATION_EVENTS_MAX);
        assert!(!recent.note(&event(2 * GENERATION_EVENTS_MAX as u32, "a"), now));
    }
}
