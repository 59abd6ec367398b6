//! Whether a client really sends its message, or only holds a connection and memory.

use std::time::Duration;

use super::Client;

/// A client that sends less than this in a second within a message loses its connection to another client when all are in use.
/// Even the slowest links reach it.
const STEP: Window = Window { time: Duration::from_secs(1), bytes: 1_000 };
/// Below this it loses its memory too, when others wait for some: 100 bytes a second, over a time in which a link may well be interrupted.
const LONG: Window = Window { time: Duration::from_secs(10), bytes: 1_000 };

/// How many bytes must arrive in which waiting time.
#[derive(Clone, Copy, Debug)]
struct Window {
    time: Duration,
    bytes: usize,
}

/// How long the server waited for a client, and how much arrived. The time that the server itself needs does not count.
#[derive(Debug)]
struct Pace {
    window: Window,
    waited: Duration,
    bytes: usize,
}

/// The paces of a client.
#[derive(Debug)]
pub(super) struct Paces {
    step: Pace,
    long: Pace,
}

impl Default for Paces {
    fn default() -> Self {
        Self { step: Pace::of(STEP), long: Pace::of(LONG) }
    }
}

impl Pace {
    const fn of(window: Window) -> Self {
        Self { window, waited: Duration::ZERO, bytes: 0 }
    }

    /// Notes that `bytes` bytes arrived after this time. Returns whether the client was slow, once the bytes of the window have
    /// arrived or its time is over.
    fn note(&mut self, waited: Duration, bytes: usize) -> Option<bool> {
        self.waited += waited;
        self.bytes = self.bytes.saturating_add(bytes);
        let is_slow = self.bytes < self.window.bytes;
        if is_slow && self.waited < self.window.time {
            return None;
        }
        *self = Self::of(self.window);
        Some(is_slow)
    }
}

impl Client {
    /// Notes that `bytes` bytes arrived after this time. A client that sends next to nothing within a message counts as idle:
    /// when no connection is free, it is closed in favour of another. Otherwise clients that begin messages and never end them
    /// would keep everybody out. Returns whether it has become idle, which takes effect with the next flush.
    pub(super) fn note_pace(&mut self, waited: Duration, bytes: usize) -> bool {
        let (step, long) = (self.paces.step.note(waited, bytes), self.paces.long.note(waited, bytes));
        let Some(transaction) = &mut self.transaction else { return false };
        if let Some(is_slow) = long {
            transaction.is_slow = is_slow;
        }
        match (step, transaction.in_use.is_some()) {
            (Some(true), true) => {
                transaction.in_use = None;
                true
            }
            (Some(false), false) => {
                transaction.in_use = Some(self.activity.begin());
                false
            }
            (None, _) | (Some(true), false) | (Some(false), true) => false,
        }
    }

    /// Lets the connection count as idle until the client has sent more of its message, from the next flush on.
    pub(super) fn note_idle(&mut self) {
        if let Some(transaction) = &mut self.transaction {
            transaction.in_use = None;
        }
    }

    /// How long to wait for bytes before the pace is checked.
    pub(super) fn pace_interval(&self) -> Duration {
        let patience = self.server.memory.patience();
        let is_in_use = self.transaction.as_ref().is_some_and(|transaction| transaction.in_use.is_some());
        if is_in_use { patience.min(STEP.time) } else { patience }
    }

    /// Whether the client has sent next to nothing for a long time within a message.
    pub(super) fn is_slow(&self) -> bool {
        self.transaction.as_ref().is_some_and(|transaction| transaction.is_slow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sm12_a_client_is_slow_that_sends_less_than_a_kilobyte_in_a_second_or_in_ten() {
        for (window, seconds) in [(STEP, 1), (LONG, 10)] {
            let tenth = Duration::from_millis(100);
            let mut pace = Pace::of(window);
            for _ in 1..seconds * 10 {
                assert_eq!(pace.note(tenth, 1), None);
            }
            assert_eq!(pace.note(tenth, 1), Some(true));
            assert_eq!(pace.note(tenth, 999), None, "each time begins anew");
            assert_eq!(pace.note(tenth, 1), Some(false), "as soon as enough has come");
            assert_eq!(pace.note(tenth, 999), None);
            assert_eq!(pace.note(seconds * 10 * tenth, 0), Some(true));
            assert_eq!(pace.note(100 * window.time, 1_000_000), Some(false));
        }
    }
}
