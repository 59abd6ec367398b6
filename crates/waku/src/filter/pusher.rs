use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use restante_sessions::hub::{Event, Next};
use tokio::time::{Instant, sleep, timeout_at};
use tracing::debug;

use super::{
    Shared,
    metrics::{Pushed, Removed},
    push_streams::{PushError, PushOutcome, PushStreams},
    subscriber::{Subscriber, Task},
};

/// How long a pusher rests after a failure: a peer that is gone is known to be by then, and is not blamed.
pub(super) const FAILURE_PAUSE: Duration = Duration::from_secs(1);

/// Pushes what is in a subscriber's queue until the subscriber is removed, and removes it when too many pushes fail or its
/// session has ended.
pub(super) struct Pusher {
    shared: Weak<Shared>,
    subscriber: Arc<Subscriber>,
    way: PushStreams,
}

impl Pusher {
    pub(super) fn new(shared: &Arc<Shared>, subscriber: Arc<Subscriber>, way: PushStreams) -> Self {
        Self { shared: Arc::downgrade(shared), subscriber, way }
    }

    pub(super) async fn run(mut self) {
        loop {
            let task = match self.way.settles_at() {
                Some(at) => timeout_at(at, self.subscriber.next()).await,
                None => Ok(self.subscriber.next().await),
            };
            let mut pushed = Ok(());
            match task {
                Err(_) => self.way.settle(Instant::now()),
                Ok(Task::Forget) => self.forget(),
                Ok(Task::Serve(Next::Events(batch))) => pushed = self.push(&batch).await,
                // It was removed, or its session was ended by others: then it is removed now.
                Ok(Task::Serve(Next::Ended(_))) => return self.end(Removed::Closed),
            }
            if !self.goes_on_after(pushed).await {
                return self.end(Removed::Failed);
            }
        }
    }

    fn end(&mut self, reason: Removed) {
        self.forget();
        if let Some(shared) = self.shared.upgrade() {
            shared.give_up(&self.subscriber, reason);
        }
    }

    /// Pushes a batch. A failed one is not tried again: its messages are in the archive, and newer ones wait.
    async fn push(&mut self, batch: &[Arc<Event>]) -> Result<(), PushError> {
        let pushed = self.way.push(batch).await;
        self.subscriber.seat.release(batch);
        pushed
    }

    /// Counts what became of messages; false when too many pushes have failed in a row.
    async fn goes_on_after(&mut self, pushed: Result<(), PushError>) -> bool {
        let outcome = self.way.take_outcome();
        let is_failure = pushed.is_err() || (outcome.failed > 0 && outcome.sent == 0);
        if is_failure {
            sleep(FAILURE_PAUSE).await;
        }
        let Some(shared) = self.shared.upgrade() else { return false };
        self.count(&shared, outcome);
        if outcome.sent > 0 {
            self.subscriber.succeeded();
        }
        if !is_failure {
            return true;
        }
        let failures = self.subscriber.failed();
        debug!(peer = %self.subscriber.peer, error = ?pushed.err(), failures, "a push failed");
        failures < shared.config.failures_max
    }

    fn count(&self, shared: &Shared, outcome: PushOutcome) {
        let lost = if self.subscriber.is_away() { Pushed::Away } else { Pushed::Failed };
        shared.metrics.pushed(Pushed::Sent, outcome.sent);
        shared.metrics.pushed(lost, outcome.failed);
    }

    /// The subscriber went away or is removed.
    fn forget(&mut self) {
        self.way.forget();
        let outcome = self.way.take_outcome();
        if let Some(shared) = self.shared.upgrade() {
            self.count(&shared, outcome);
        }
    }
}

impl Drop for Pusher {
    /// However a pusher ends, also by a panic, no subscriber stays in the table to whom nothing is pushed any more: it learns
    /// that from its next ping, and subscribes anew.
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.give_up(&self.subscriber, Removed::Failed);
        }
    }
}
