//! A subscribed session with its queue: bounded, and allocated only when needed.

use std::{
    collections::VecDeque,
    fmt, mem,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use parking_lot::Mutex;

use super::{Event, Losses, Next, Overflow, SubscriptionConfig, budget::MemoryBudget, metrics::DropReason};
use crate::{Ended, SessionId};

/// A batch ends with the event that reaches this many bytes.
const BATCH_BYTES_MAX: usize = 256 << 10;

pub(super) struct Subscriber {
    pub(super) id: SessionId,
    pub(super) config: SubscriptionConfig,
    losses: Option<Arc<Losses>>,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    events: VecDeque<Arc<Event>>,
    /// Bytes of the waiting events.
    bytes: usize,
    /// Bytes of the events that the reader holds and has not released.
    read_bytes: usize,
    reader: Option<Waker>,
    is_paused: bool,
    ended: Option<Ended>,
}

/// The outcome of offering an event to a subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offered {
    Queued,
    /// The client is away, or the session has ended.
    Absent,
    Dropped(DropReason),
    /// The event did not fit, and the session has ended because of that.
    Ended(DropReason),
}

impl Subscriber {
    pub(super) fn new(id: SessionId, config: SubscriptionConfig, losses: Option<Arc<Losses>>) -> Self {
        Self { id, config, losses, queue: Mutex::default() }
    }

    /// Puts an event into the queue if it fits. A full queue drops the newest event, so that what was read has no gaps except at
    /// its end. An event that is larger than the queue's bound is accepted when the queue is empty.
    pub(super) fn offer(&self, event: &Arc<Event>, budget: &MemoryBudget) -> Offered {
        let size = event.bytes();
        let mut queue = self.queue.lock();
        if let Some(absent) = self.absent(&queue) {
            return absent;
        }
        let in_use = queue.bytes + queue.read_bytes;
        let sum = in_use.saturating_add(size);
        let is_full = queue.events.len() >= self.config.events_max || sum > self.config.bytes_max;
        if in_use > 0 && is_full {
            return self.overflow(queue, DropReason::Full);
        }
        if in_use > 0 && sum > budget.queue_bytes_max() {
            return self.overflow(queue, DropReason::Memory);
        }
        queue.bytes += size;
        queue.events.push_back(event.clone());
        let reader = queue.reader.take();
        drop(queue);
        wake(reader);
        Offered::Queued
    }

    /// Refuses an event because the budget is used up.
    pub(super) fn refuse(&self) -> Offered {
        let queue = self.queue.lock();
        if let Some(absent) = self.absent(&queue) {
            return absent;
        }
        self.overflow(queue, DropReason::Memory)
    }

    fn overflow(&self, queue: parking_lot::MutexGuard<'_, Queue>, reason: DropReason) -> Offered {
        drop(queue);
        if let Some(losses) = &self.losses {
            losses.dropped.inc();
        }
        match self.config.overflow {
            Overflow::Drop => Offered::Dropped(reason),
            Overflow::End if self.end(reason.ended()).is_some() => Offered::Ended(reason),
            Overflow::End => Offered::Absent,
        }
    }

    /// A paused session misses the event, which is counted; an ended one does not count.
    fn absent(&self, queue: &Queue) -> Option<Offered> {
        let is_ended = queue.ended.is_some();
        if let Some(losses) = &self.losses
            && queue.is_paused
            && !is_ended
        {
            losses.away.inc();
        }
        (is_ended || queue.is_paused).then_some(Offered::Absent)
    }

    /// Ends the session and drops the waiting events. Returns how many they were, or `None` when it had ended before.
    pub(super) fn end(&self, why: Ended) -> Option<usize> {
        let mut queue = self.queue.lock();
        let is_first = queue.ended.is_none();
        queue.ended.get_or_insert(why);
        let (waited, reader) = (queue.clear(), queue.reader.take());
        drop(queue);
        wake(reader);
        is_first.then_some(waited.len())
    }

    /// Takes a batch. It counts as waiting until the next call.
    pub(super) fn poll_next(&self, events_max: usize, cx: &mut Context<'_>) -> Poll<Next> {
        let mut queue = self.queue.lock();
        queue.read_bytes = 0;
        if let Some(why) = queue.ended {
            return Poll::Ready(Next::Ended(why));
        }
        let batch = queue.take_batch(events_max);
        if !batch.is_empty() {
            return Poll::Ready(Next::Events(batch));
        }
        let is_known = queue.reader.as_ref().is_some_and(|reader| reader.will_wake(cx.waker()));
        if !is_known {
            queue.reader = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    pub(super) fn waiting(&self) -> usize {
        self.queue.lock().events.len()
    }

    pub(super) fn ended(&self) -> Option<Ended> {
        self.queue.lock().ended
    }

    pub(super) fn release(&self, events: &[Arc<Event>]) {
        let bytes: usize = events.iter().map(|event| event.bytes()).sum();
        let mut queue = self.queue.lock();
        queue.read_bytes = queue.read_bytes.saturating_sub(bytes);
    }

    pub(super) fn pause(&self) -> usize {
        let mut queue = self.queue.lock();
        queue.is_paused = true;
        let waited = queue.clear();
        drop(queue);
        waited.len()
    }

    pub(super) fn resume(&self) {
        self.queue.lock().is_paused = false;
    }
}

fn wake(reader: Option<Waker>) {
    if let Some(reader) = reader {
        reader.wake();
    }
}

impl Queue {
    /// An emptied queue frees its memory.
    fn take_batch(&mut self, events_max: usize) -> Vec<Arc<Event>> {
        if self.events.len() <= events_max && self.bytes <= BATCH_BYTES_MAX {
            self.read_bytes = mem::take(&mut self.bytes);
            return mem::take(&mut self.events).into();
        }
        let mut batch = Vec::new();
        let mut bytes = 0;
        while batch.len() < events_max && bytes < BATCH_BYTES_MAX {
            let Some(event) = self.events.pop_front() else { break };
            bytes += event.bytes();
            batch.push(event);
        }
        self.bytes -= bytes;
        self.read_bytes = bytes;
        batch
    }

    fn clear(&mut self) -> VecDeque<Arc<Event>> {
        self.bytes = 0;
        mem::take(&mut self.events)
    }
}

impl fmt::Debug for Subscriber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscriber")
            .field("id", &self.id)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
