//! A bound on what strangers can make the server log.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The least time between two lines.
const INTERVAL: Duration = Duration::from_secs(60);

/// Something that is logged at most once in a minute.
#[derive(Debug, Default)]
pub(crate) struct Occasional {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    logged_at: Option<Instant>,
    unlogged: u64,
}

impl Occasional {
    /// Counts an occurrence. Returns how many there were since the last line, this one included, when one is due.
    pub(crate) fn count(&self) -> Option<u64> {
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
    async fn a_line_a_minute_counts_those_between() {
        let occasional = Occasional::default();
        assert_eq!(occasional.count(), Some(1));
        assert_eq!((occasional.count(), occasional.count()), (None, None));
        tokio::time::advance(INTERVAL).await;
        assert_eq!(occasional.count(), Some(3));
        assert_eq!(occasional.count(), None);
    }
}
