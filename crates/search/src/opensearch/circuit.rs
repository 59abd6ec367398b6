//! Refuses queries at once while OpenSearch does not answer.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::Error;

/// After this many queries in a row without an answer, further ones are refused at once.
const FAILURES_MAX: u32 = 3;
/// How long they are refused then; twice as long after each further failure.
const REFUSE_MIN: Duration = Duration::from_secs(1);
const REFUSE_MAX: Duration = Duration::from_secs(30);

#[derive(Debug, Default)]
pub(super) struct Circuit(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    failures: u32,
    refused_until: Option<Instant>,
}

impl Circuit {
    /// Whether a query may be sent. When the time of refusal is over one may, and others once it was answered.
    pub(super) fn check(&self, limit: Duration) -> Result<(), Error> {
        let mut state = self.0.lock();
        let Some(until) = state.refused_until else { return Ok(()) };
        let now = Instant::now();
        if now < until {
            return Err(Error::unavailable("OpenSearch has not answered the last queries: try again later"));
        }
        state.refused_until = Some(now + limit);
        Ok(())
    }

    pub(super) fn answered(&self) {
        let mut state = self.0.lock();
        (state.failures, state.refused_until) = (0, None);
    }

    pub(super) fn failed(&self) {
        let mut state = self.0.lock();
        state.failures = state.failures.saturating_add(1);
        if let Some(more) = state.failures.checked_sub(FAILURES_MAX) {
            let wait = (REFUSE_MIN * (1 << more.min(16))).min(REFUSE_MAX);
            state.refused_until = Some(Instant::now() + wait);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    #[tokio::test(start_paused = true)]
    async fn after_failures_in_a_row_one_query_at_a_time_asks() {
        let circuit = Circuit::default();
        for _ in 0..FAILURES_MAX - 1 {
            circuit.failed();
            circuit.check(LIMIT).unwrap();
        }
        circuit.answered();
        for _ in 0..FAILURES_MAX {
            circuit.check(LIMIT).unwrap();
            circuit.failed();
        }
        circuit.check(LIMIT).unwrap_err();
        tokio::time::advance(REFUSE_MIN).await;
        circuit.check(LIMIT).unwrap();
        circuit.check(LIMIT).unwrap_err(); // another query is being sent
        circuit.failed();
        tokio::time::advance(REFUSE_MIN).await;
        circuit.check(LIMIT).unwrap_err(); // twice as long
        tokio::time::advance(REFUSE_MIN).await;
        circuit.check(LIMIT).unwrap();
        circuit.answered();
        circuit.check(LIMIT).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_query_that_was_given_up_keeps_no_others_from_asking() {
        let circuit = Circuit::default();
        for _ in 0..FAILURES_MAX + 20 {
            circuit.failed();
        }
        tokio::time::advance(REFUSE_MAX).await;
        circuit.check(LIMIT).unwrap();
        tokio::time::advance(LIMIT).await;
        circuit.check(LIMIT).unwrap();
    }
}
