//! The bounded queue between relay and the archive's writer.

use std::{collections::VecDeque, num::NonZero, sync::Arc, time::Duration};

use parking_lot::Mutex;
use restante_archive::{Archive, Message};
use restante_core::nonzero;
use restante_net::LogThrottle;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tracing::{debug, error, info, warn};

use super::IntakeMetrics;

/// Bounds of the queue between relay and the archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandoverConfig {
    /// The most bytes of waiting messages, each counted with its topics and a fixed overhead.
    pub bytes_max: NonZero<usize>,
}

impl Default for HandoverConfig {
    fn default() -> Self {
        Self { bytes_max: nonzero!(64 << 20) }
    }
}

/// The overhead of a waiting message in bytes.
const MESSAGE_BYTES: usize = 256;
/// The most messages and bytes of one append: larger commits are not cheaper per message.
const BATCH_MESSAGES_MAX: usize = 1_000;
const BATCH_BYTES_MAX: usize = 8 << 20;
/// The delay before an append is retried: from the first to the last, doubling.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_LAST: Duration = Duration::from_secs(5);

/// The sending side of the queue.
pub(crate) struct Handover {
    queue: Arc<Queue>,
}

struct Queue {
    waiting: Mutex<Waiting>,
    /// A message was added, or the queue was closed.
    changed: Notify,
    /// A batch is durable or lost, or the worker has ended.
    settled: Notify,
    bytes_max: usize,
    metrics: IntakeMetrics,
    drop_log: LogThrottle,
    retry_log: LogThrottle,
    refusal_log: LogThrottle,
}

#[derive(Default)]
struct Waiting {
    messages: VecDeque<Message>,
    bytes: usize,
    /// The number of messages that were added so far.
    added: u64,
    /// The number of them that are durable or lost. The queue is in order.
    settled: u64,
    is_closed: bool,
    has_ended: bool,
}

impl Handover {
    /// Creates a queue and starts a task that appends its messages to `archive`.
    pub(crate) fn start(archive: Arc<dyn Archive>, config: HandoverConfig, metrics: IntakeMetrics) -> Self {
        let queue = Arc::new(Queue {
            waiting: Mutex::default(),
            changed: Notify::new(),
            settled: Notify::new(),
            bytes_max: config.bytes_max.get(),
            metrics,
            drop_log: LogThrottle::default(),
            retry_log: LogThrottle::default(),
            refusal_log: LogThrottle::default(),
        });
        tokio::spawn(work(queue.clone(), archive));
        Self { queue }
    }

    /// Adds a message to the queue, or drops it when the queue is full.
    pub(crate) fn offer(&self, message: Message) {
        let queue = &*self.queue;
        let size = size_of(&message);
        let mut waiting = queue.waiting.lock();
        let fits = !waiting.is_closed && waiting.bytes.saturating_add(size) <= queue.bytes_max;
        if fits {
            waiting.bytes += size;
            waiting.added += 1;
            waiting.messages.push_back(message);
            queue.update_metrics(&waiting);
        }
        let is_closed = waiting.is_closed;
        drop(waiting);
        if fits {
            queue.changed.notify_one();
        } else {
            queue.metrics.handover_dropped.inc();
        }
        if !fits
            && !is_closed
            && let Some(dropped) = queue.drop_log.count()
        {
            let bytes_max = queue.bytes_max;
            warn!(dropped, bytes_max, "the archive is too slow for relay: messages are dropped");
        }
    }

    /// Waits until all waiting messages are archived. Messages that are offered from now on are dropped.
    pub(crate) async fn close(&self) {
        self.queue.waiting.lock().is_closed = true;
        self.queue.changed.notify_one();
        self.queue.until(|waiting| waiting.has_ended).await;
    }

    /// Waits until the messages that were offered before this call are archived or dropped.
    pub(crate) async fn settled(&self) {
        let added = self.queue.waiting.lock().added;
        self.queue.until(|waiting| waiting.settled >= added || waiting.has_ended).await;
    }
}

impl Drop for Handover {
    /// Closes the queue: the worker ends when all waiting messages are archived.
    fn drop(&mut self) {
        self.queue.waiting.lock().is_closed = true;
        self.queue.changed.notify_one();
    }
}

fn size_of(message: &Message) -> usize {
    message.body.len() + message.topic.len() + message.channel.len() + MESSAGE_BYTES
}

impl Queue {
    async fn until(&self, condition: impl Fn(&Waiting) -> bool) {
        loop {
            let settled = self.settled.notified(); // before the check, so that no notification is missed
            if condition(&self.waiting.lock()) {
                return;
            }
            settled.await;
        }
    }

    /// The next batch; `None` when the queue is closed and empty.
    async fn next_batch(&self) -> Option<Vec<Message>> {
        loop {
            {
                let mut waiting = self.waiting.lock();
                if !waiting.messages.is_empty() {
                    return Some(self.take_batch(&mut waiting));
                }
                if waiting.is_closed {
                    return None;
                }
            }
            self.changed.notified().await;
        }
    }

    fn take_batch(&self, waiting: &mut Waiting) -> Vec<Message> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        while batch.len() < BATCH_MESSAGES_MAX && bytes < BATCH_BYTES_MAX {
            let Some(message) = waiting.messages.pop_front() else { break };
            bytes += size_of(&message);
            batch.push(message);
        }
        batch
    }

    /// Frees the bytes of a batch that is durable or lost.
    fn release(&self, batch: &[Message]) {
        let mut waiting = self.waiting.lock();
        let bytes: usize = batch.iter().map(size_of).sum();
        waiting.bytes = waiting.bytes.saturating_sub(bytes);
        waiting.settled += batch.len() as u64;
        self.update_metrics(&waiting);
        drop(waiting);
        self.settled.notify_waiters();
    }

    fn update_metrics(&self, waiting: &Waiting) {
        self.metrics.handover_messages.set(waiting.messages.len() as i64);
        self.metrics.handover_bytes.set(waiting.bytes as i64);
    }
}

/// Appends batch after batch. Batches grow with the load.
async fn work(queue: Arc<Queue>, archive: Arc<dyn Archive>) {
    let mut is_failure_logged = false;
    while let Some(batch) = queue.next_batch().await {
        store(&queue, &*archive, &batch, &mut is_failure_logged).await;
        queue.release(&batch);
    }
    queue.waiting.lock().has_ended = true;
    queue.settled.notify_waiters();
}

/// Retries until the batch is archived or refused permanently. `is_failure_logged`: whether a failure was logged, but not yet its
/// end.
async fn store(queue: &Queue, archive: &dyn Archive, batch: &[Message], is_failure_logged: &mut bool) {
    let mut pause = RETRY_FIRST;
    let mut attempts = 0_u32;
    loop {
        attempts = attempts.saturating_add(1);
        match archive.append(batch.to_vec()).await {
            Ok(_) => {
                if std::mem::take(is_failure_logged) {
                    info!(attempts, "the archive accepts relayed messages again");
                }
                return;
            }
            Err(error) if error.kind().is_transient() => match queue.retry_log.count() {
                Some(failures) => {
                    *is_failure_logged = true;
                    warn!(failures, %error, "the archive does not accept relayed messages: they wait");
                }
                None => debug!(%error, attempts, "the archive does not accept relayed messages"),
            },
            Err(error) => {
                let messages = batch.len();
                queue.metrics.handover_failed.inc_by(messages as u64);
                if let Some(failures) = queue.refusal_log.count() {
                    error!(failures, %error, messages, "the archive refused relayed messages");
                }
                return;
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RETRY_LAST);
    }
}

#[cfg(test)]
mod tests;
