//! Whether a client sends its message, or only holds a connection.

use std::time::Duration;

use super::Client;

/// The waiting time after which it is looked at what came.
const TIME: Duration = Duration::from_secs(10);
/// What must have come: 100 bytes a second. The slowest links have ten times as much.
const BYTES: usize = 1_000;

/// How long a client was waited for, and what came. The time that the server takes itself does not count.
#[derive(Debug, Default)]
pub(super) struct Pace {
    waited: Duration,
    bytes: usize,
}

impl Pace {
    /// Notes that so many bytes came after this time. Returns whether the client was slow, once in [`TIME`].
    fn note(&mut self, waited: Duration, bytes: usize) -> Option<bool> {
        self.waited += waited;
        self.bytes = self.bytes.saturating_add(bytes);
        if self.waited < TIME {
            return None;
        }
        let is_slow = self.bytes < BYTES;
        *self = Self::default();
        Some(is_slow)
    }
}

impl Client {
    /// Notes that so many bytes came after this time. A client that is within a message and sends next to nothing counts as idle: when no connection is
    /// free, it is closed for another. Otherwise clients that begin messages and never end them would keep everybody out. Returns whether it has become
    /// idle, which takes effect with the next flush.
    pub(super) fn note_pace(&mut self, waited: Duration, bytes: usize) -> bool {
        let Some(is_slow) = self.pace.note(waited, bytes) else { return false };
        let Some(transaction) = &mut self.transaction else { return false };
        match (is_slow, transaction.in_use.is_some()) {
            (true, true) => {
                transaction.in_use = None;
                true
            }
            (false, false) => {
                transaction.in_use = Some(self.activity.begin());
                false
            }
            (true, false) | (false, true) => false,
        }
    }

    /// Whether the client is within a message and sends next to nothing.
    pub(super) fn is_slow(&self) -> bool {
        self.transaction.as_ref().is_some_and(|transaction| transaction.in_use.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sm12_a_client_is_slow_that_sends_less_than_a_hundred_bytes_a_second() {
        let second = Duration::from_secs(1);
        let mut pace = Pace::default();
        for _ in 0..9 {
            assert_eq!(pace.note(second, 10), None);
        }
        assert_eq!(pace.note(second, 10), Some(true));
        assert_eq!(pace.note(9 * second, 1_000), None, "each time begins anew");
        assert_eq!(pace.note(second, 0), Some(false));
        assert_eq!(pace.note(Duration::from_millis(1), 1_000_000), None);
        assert_eq!(pace.note(100 * second, 0), Some(false));
    }
}
