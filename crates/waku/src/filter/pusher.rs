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

/// How long a pusher pauses after a failure: by then the node knows whether the peer disconnected, and such failures don't count.
pub(super) const FAILURE_PAUSE: Duration = Duration::from_secs(1);

/// Pushes the messages of a subscriber's queue until the subscriber is removed, and removes it when too many pushes fail or its
/// session has ended.
pub(super) struct Pusher {
    shared: Weak<Shared>,
    subscriber: Arc<Subscriber>,
    streams: PushStreams,
}

impl Pusher {
    pub(super) fn new(shared: &Arc<Shared>, subscriber: Arc<Subscriber>, streams: PushStreams) -> Self {
        Self { shared: Arc::downgrade(shared), subscriber, streams }
    }

    pub(super) async fn run(mut self) {
        loop {
            let task = match self.streams.settles_at() {
                Some(at) => timeout_at(at, self.subscriber.next()).await,
                None => Ok(self.subscriber.next().await),
            };
            let mut pushed = Ok(());
            match task {
                Err(_) => self.streams.settle(Instant::now()),
                Ok(Task::Forget) => self.forget(),
                Ok(Task::Serve(Next::Events(batch))) => pushed = self.push(&batch).await,
                // It was removed, or its session was closed and it is removed now.
                Ok(Task::Serve(Next::Ended(_))) => return self.end(Removed::Closed),
            }
            if !self.continues_after(pushed).await {
                return self.end(Removed::Failed);
            }
        }
    }

    fn end(&mut self, reason: Removed) {
        self.forget();
        if let Some(shared) = self.shared.upgrade() {
            shared.remove_if_present(&self.subscriber, reason);
        }
    }

    /// Pushes a batch. A failed one is not retried: its messages are in the archive, and newer ones wait.
    async fn push(&mut self, batch: &[Arc<Event>]) -> Result<(), PushError> {
        let pushed = self.streams.push(batch).await;
        self.subscriber.subscription.release(batch);
        pushed
    }

    /// Counts the outcome of a push; returns false when too many pushes have failed in a row.
    async fn continues_after(&mut self, pushed: Result<(), PushError>) -> bool {
        let outcome = self.streams.take_outcome();
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
        failures < shared.config.failures_max.get()
    }

    fn count(&self, shared: &Shared, outcome: PushOutcome) {
        let lost = if self.subscriber.is_away() { Pushed::Away } else { Pushed::Failed };
        shared.metrics.pushed(Pushed::Sent, outcome.sent);
        shared.metrics.pushed(lost, outcome.failed);
    }

    /// The subscriber disconnected or is removed.
    fn forget(&mut self) {
        self.streams.forget();
        let outcome = self.streams.take_outcome();
        if let Some(shared) = self.shared.upgrade() {
            self.count(&shared, outcome);
        }
    }
}

impl Drop for Pusher {
    /// Removes the subscriber however the pusher ends, also by a panic: its next ping fails, and it subscribes again.
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.remove_if_present(&self.subscriber, Removed::Failed);
        }
    }
}
