//! Remembers what was pushed, so that a message that comes by two ways is pushed once.

use std::{
    collections::{HashSet, hash_map::RandomState},
    hash::BuildHasher,
    mem,
    time::Duration,
};

use tokio::time::Instant;

use crate::live::Arrival;

/// Messages of one generation at most. Two generations are kept.
const GENERATION_MESSAGES_MAX: usize = 8_192;
/// How long a generation is added to: with two of them a message is remembered for one to two minutes, as long as relay
/// and nwaku remember one.
const GENERATION_AGE_MAX: Duration = Duration::from_secs(60);

/// The messages of the last minute or two, by a keyed hash that nobody else can compute.
pub(crate) struct Recent {
    hasher: RandomState,
    present: HashSet<u64>,
    former: HashSet<u64>,
    begun: Instant,
}

impl Recent {
    pub(crate) fn new(now: Instant) -> Self {
        Self { hasher: RandomState::new(), present: HashSet::new(), former: HashSet::new(), begun: now }
    }

    /// Whether the message was not noted before; notes it.
    pub(crate) fn note(&mut self, arrival: &Arrival, now: Instant) -> bool {
        let is_old = now.saturating_duration_since(self.begun) >= GENERATION_AGE_MAX;
        if is_old || self.present.len() >= GENERATION_MESSAGES_MAX {
            self.former = mem::take(&mut self.present);
            self.begun = now;
        }
        let key = self.hasher.hash_one((&*arrival.pubsub_topic, &*arrival.wire));
        !self.former.contains(&key) && self.present.insert(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(number: u32) -> Arrival {
        let wire = number.to_be_bytes().to_vec().into();
        Arrival { pubsub_topic: "/waku/2/rs/1/0".into(), content_topic: "/a/1/b/proto".into(), wire }
    }

    #[test]
    fn a_message_is_new_once_within_a_minute() {
        let begun = Instant::now();
        let mut recent = Recent::new(begun);
        let other_topic = Arrival { pubsub_topic: "/waku/2/rs/1/1".into(), ..arrival(1) };
        assert!(recent.note(&arrival(1), begun));
        assert!(!recent.note(&arrival(1), begun + Duration::from_secs(59)));
        assert!(recent.note(&other_topic, begun), "the same message on another topic is another message");
        assert!(!recent.note(&arrival(1), begun + Duration::from_secs(60)), "the former generation counts");
        assert!(recent.note(&arrival(1), begun + Duration::from_secs(121)), "forgotten after two");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let now = Instant::now();
        let mut recent = Recent::new(now);
        for number in 0..3 * GENERATION_MESSAGES_MAX as u32 {
            assert!(recent.note(&arrival(number), now));
        }
        assert!(recent.present.len() + recent.former.len() <= 2 * GENERATION_MESSAGES_MAX);
        assert!(!recent.note(&arrival(3 * GENERATION_MESSAGES_MAX as u32 - 1), now));
    }
}
