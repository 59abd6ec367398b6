//! The bounded queue between relay and the archive's writer.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use parking_lot::Mutex;
use restante_archive::{Archive, Message};
use restante_net::LogThrottle;
use tokio::{sync::Notify, time::Instant};
use tracing::{debug, error, info, warn};

use super::IntakeMetrics;

/// Bounds of the queue between relay and the archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandoverConfig {
    /// Bytes of messages that wait at most, each counted with its topics and a fixed share.
    pub bytes_max: usize,
}

impl Default for HandoverConfig {
    fn default() -> Self {
        Self { bytes_max: 64 << 20 }
    }
}

/// What a waiting message takes beside its bytes.
const MESSAGE_BYTES: usize = 256;
/// One append takes so many messages and bytes at most: a commit of that size is as cheap as one gets.
const BATCH_MESSAGES_MAX: usize = 1_000;
const BATCH_BYTES_MAX: usize = 8 << 20;
/// How long to wait before the archive is tried again: from the first to the last, doubling.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_LAST: Duration = Duration::from_secs(5);

/// The relay's end of the queue.
pub(crate) struct Handover {
    queue: Arc<Queue>,
}

struct Queue {
    waiting: Mutex<Waiting>,
    /// Something was put in, or the queue was closed.
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
    /// Messages that were put in up to now.
    taken: u64,
    /// Those of them that are durable or lost: the queue keeps their order.
    settled: u64,
    is_closed: bool,
    has_ended: bool,
}

impl Handover {
    /// A queue, and a task that hands what is in it to `archive`.
    pub(crate) fn start(archive: Arc<dyn Archive>, config: HandoverConfig, metrics: IntakeMetrics) -> Self {
        let queue = Arc::new(Queue {
            waiting: Mutex::default(),
            changed: Notify::new(),
            settled: Notify::new(),
            bytes_max: config.bytes_max,
            metrics,
            drop_log: LogThrottle::default(),
            retry_log: LogThrottle::default(),
            refusal_log: LogThrottle::default(),
        });
        tokio::spawn(work(queue.clone(), archive));
        Self { queue }
    }

    /// Puts a message into the queue, or drops it when there is no room.
    pub(crate) fn offer(&self, message: Message) {
        let queue = &*self.queue;
        let size = size_of(&message);
        let mut waiting = queue.waiting.lock();
        let has_room = !waiting.is_closed && waiting.bytes.saturating_add(size) <= queue.bytes_max;
        if has_room {
            waiting.bytes += size;
            waiting.taken += 1;
            waiting.messages.push_back(message);
            queue.show(&waiting);
        }
        let is_closed = waiting.is_closed;
        drop(waiting);
        if has_room {
            queue.changed.notify_one();
        } else {
            queue.metrics.handover_dropped.inc();
        }
        if !has_room
            && !is_closed
            && let Some(dropped) = queue.drop_log.count()
        {
            let bytes_max = queue.bytes_max;
            warn!(dropped, bytes_max, "the archive is too slow for relay: messages are dropped");
        }
    }

    /// Waits until the archive has taken what waits. What is offered from now on is dropped.
    pub(crate) async fn close(&self) {
        self.queue.waiting.lock().is_closed = true;
        self.queue.changed.notify_one();
        self.queue.until(|waiting| waiting.has_ended).await;
    }

    /// Waits until the archive has taken what was offered before this call, or it was dropped.
    pub(crate) async fn settled(&self) {
        let taken = self.queue.waiting.lock().taken;
        self.queue.until(|waiting| waiting.settled >= taken || waiting.has_ended).await;
    }
}

impl Drop for Handover {
    /// Nobody can offer any more: the worker ends when it has handed over what waits.
    fn drop(&mut self) {
        self.queue.waiting.lock().is_closed = true;
        self.queue.changed.notify_one();
    }
}

fn size_of(message: &Message) -> usize {
    message.body.len() + message.topic.len() + message.channel.len() + MESSAGE_BYTES
}

impl Queue {
    async fn until(&self, holds: impl Fn(&Waiting) -> bool) {
        loop {
            let settled = self.settled.notified(); // before the look, so that nothing is missed between
            if holds(&self.waiting.lock()) {
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

    /// Makes room for others once a batch is durable or lost.
    fn release(&self, batch: &[Message]) {
        let mut waiting = self.waiting.lock();
        let bytes: usize = batch.iter().map(size_of).sum();
        waiting.bytes = waiting.bytes.saturating_sub(bytes);
        waiting.settled += batch.len() as u64;
        self.show(&waiting);
        drop(waiting);
        self.settled.notify_waiters();
    }

    fn show(&self, waiting: &Waiting) {
        self.metrics.handover_messages.set(waiting.messages.len() as i64);
        self.metrics.handover_bytes.set(waiting.bytes as i64);
    }
}

/// Hands batch after batch to the archive. Load makes the batches larger by itself.
async fn work(queue: Arc<Queue>, archive: Arc<dyn Archive>) {
    let mut is_failure_logged = false;
    while let Some(batch) = queue.next_batch().await {
        store(&queue, &*archive, &batch, &mut is_failure_logged).await;
        queue.release(&batch);
    }
    queue.waiting.lock().has_ended = true;
    queue.settled.notify_waiters();
}

/// Tries until the archive has the batch, or refuses it for good. `is_failure_logged`: whether the log says that messages
/// wait, and not yet that the archive takes them again.
async fn store(queue: &Queue, archive: &dyn Archive, batch: &[Message], is_failure_logged: &mut bool) {
    let mut pause = RETRY_FIRST;
    let mut attempts = 0_u32;
    loop {
        attempts = attempts.saturating_add(1);
        match archive.append(batch.to_vec()).await {
            Ok(_) => {
                if std::mem::take(is_failure_logged) {
                    info!(attempts, "the archive takes relayed messages again");
                }
                return;
            }
            Err(error) if error.kind().is_transient() => match queue.retry_log.count() {
                Some(failures) => {
                    *is_failure_logged = true;
                    warn!(failures, %error, "the archive does not take relayed messages: they wait");
                }
                None => debug!(%error, attempts, "the archive does not take relayed messages"),
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
