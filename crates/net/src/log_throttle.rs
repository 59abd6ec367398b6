//! A bound on what remote clients can make the server log.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The least time between two lines.
const INTERVAL: Duration = Duration::from_secs(60);

/// Limits a log line to one per minute, and counts the occurrences between two lines.
#[derive(Debug, Default)]
pub struct LogThrottle {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    logged_at: Option<Instant>,
    unlogged: u64,
}

impl LogThrottle {
    /// Counts an occurrence. Returns the number since the last line, including this one, when a line is due.
    pub fn count(&self) -> Option<u64> {
        let mut state = self.state.lock();
        state.unlogged += 1;
        if state.logged_at.is_some_and(|at| at.elapsed() < INTERVAL) {
            return None;
        }
        state.logged_at = Some(Instant::now());
        Some(std::mem::take(&mut state.unlogged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_line_per_minute_counts_the_occurrences_between() {
        let throttle = LogThrottle::default();
        assert_eq!(throttle.count(), Some(1));
        assert_eq!((throttle.count(), throttle.count()), (None, None));
        tokio::time::advance(INTERVAL).await;
        assert_eq!(throttle.count(), Some(3));
        assert_eq!(throttle.count(), None);
    }
}
