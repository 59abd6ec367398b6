use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The shortest time between two log lines of one kind of event.
const INTERVAL: Duration = Duration::from_secs(60);

/// Bounds how often one kind of event is logged, so that neither peers nor a full disk fill the log.
#[derive(Debug, Default)]
pub(crate) struct LogLimit(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last: Option<Instant>,
    count: u64,
}

impl LogLimit {
    /// Counts an event. Returns how many there were since the last log line when another line may be written.
    pub(crate) fn count(&self, now: Instant) -> Option<u64> {
        let mut state = self.0.lock();
        state.count += 1;
        if state.last.is_some_and(|last| now.duration_since(last) < INTERVAL) {
            return None;
        }
        state.last = Some(now);
        Some(std::mem::take(&mut state.count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_in_an_interval_counts_them_all() {
        let limit = LogLimit::default();
        let now = Instant::now();
        assert_eq!(limit.count(now), Some(1));
        for _ in 0..9 {
            assert_eq!(limit.count(now + INTERVAL / 2), None);
        }
        assert_eq!(limit.count(now + INTERVAL), Some(10));
    }
}
