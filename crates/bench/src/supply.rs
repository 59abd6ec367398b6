//! Generated messages to append.

use restante_archive::Message;
use restante_core::{MessageHash, Timestamp};

use crate::{dataset::Dataset, random::Random};

/// Bodies that are appended repeatedly: more than a processor's cache holds.
const POOL_MESSAGES: usize = 100_000;
/// A thousand messages a second, so that all messages of a bench fall into one day.
const MESSAGE_NANOS: u64 = 1_000_000;

/// An endless supply of messages. Topics and bodies are those of the data set, repeated; each message has its own time
/// and hash. So no random bytes are generated while appends are timed.
pub(crate) struct Supply {
    pool: Vec<Message>,
    first: Timestamp,
}

impl Supply {
    /// The first messages of the data set; their times ascend from `first`.
    pub(crate) fn of(dataset: &Dataset, first: Timestamp) -> Self {
        Self { pool: dataset.batches(1_000).flatten().take(POOL_MESSAGES).collect(), first }
    }

    /// The message of this number.
    pub(crate) fn message(&self, number: u64) -> Option<Message> {
        let at = number as usize % self.pool.len().max(1);
        let mut message = self.pool.get(at)?.clone();
        let mut hash = MessageHash::MIN;
        Random::new(self.first.nanos() as u64, number).fill(&mut hash.0);
        message.message_hash = hash;
        message.timestamp = Timestamp(self.first.nanos() + (number * MESSAGE_NANOS) as i64);
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::{DAYS, day_start};

    #[test]
    fn messages_are_all_different_and_fall_into_one_day() {
        let supply = Supply::of(&Dataset::new(0, 50), day_start(DAYS));
        let messages: Vec<Message> = (0..200).filter_map(|number| supply.message(number)).collect();
        assert_eq!(messages.len(), 200);
        let hashes: std::collections::HashSet<_> =
            messages.iter().map(|message| message.message_hash).collect();
        assert_eq!(hashes.len(), 200);
        let last = supply.message(80_000_000).unwrap();
        assert!(last.timestamp < day_start(DAYS + 1));
        assert_eq!(messages[0].body, messages[50].body);
    }
}
