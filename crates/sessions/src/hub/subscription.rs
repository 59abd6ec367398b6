use std::{fmt, future::poll_fn, sync::Arc};

use parking_lot::Mutex;

use super::{Event, HubFull, Interest, Next, Shared, subscriber::Subscriber};
use crate::{Ended, SessionId};

/// Events that [`Seat::next`] gives at most.
const BATCH_EVENTS_MAX: usize = 64;
/// Interests that are taken out of the index at once: who publishes waits for no more of them.
const CHUNK_INTERESTS: usize = 256;
/// What one session wants takes at most this part of the bytes for all.
const SEAT_SHARE: usize = 64;

/// A session's subscriber in the hub: its reading end. Dropping it leaves the hub.
pub struct Seat {
    subscriber: Arc<Subscriber>,
    interests: Mutex<Interests>,
    shared: Arc<Shared>,
}

/// What a session wants.
#[derive(Default)]
struct Interests {
    /// In order, each once.
    list: Box<[Interest]>,
    bytes: usize,
}

impl Seat {
    pub(super) fn new(subscriber: Arc<Subscriber>, shared: Arc<Shared>) -> Self {
        Self { subscriber, interests: Mutex::default(), shared }
    }

    /// Whose subscriber it is.
    pub fn id(&self) -> SessionId {
        self.subscriber.id
    }

    /// Adds interests, all of them or none. An event is handed out once, however many interests it meets. What is published
    /// after this returns and is wanted is in the queue.
    ///
    /// # Errors
    /// When it would be too many, or too many bytes.
    pub fn want(&self, interests: &[Interest]) -> Result<(), HubFull> {
        let mut current = self.interests.lock();
        let mut fresh: Vec<Interest> = interests.iter().filter(|one| !current.has(one)).cloned().collect();
        fresh.sort_unstable();
        fresh.dedup();
        let bytes: usize = fresh.iter().map(Interest::bytes).sum();
        self.check_limits(&current, fresh.len(), bytes)?;
        let mut index = self.shared.index.write();
        if index.bytes.saturating_add(bytes) > self.shared.config.interest_bytes_max {
            return Err(HubFull::Bytes);
        }
        index.bytes += bytes;
        for interest in &mut fresh {
            index.share(interest);
            index.add(interest, &self.subscriber);
        }
        drop(index);
        self.shared.metrics.interests.inc_by(fresh.len() as i64);
        current.add(fresh, bytes);
        Ok(())
    }

    fn check_limits(&self, interests: &Interests, added: usize, bytes: usize) -> Result<(), HubFull> {
        let (count_max, bytes_max) =
            (self.subscriber.config.interests_max, self.shared.config.interest_bytes_max / SEAT_SHARE);
        if interests.list.len() + added > count_max {
            return Err(HubFull::Interests(count_max));
        }
        if interests.bytes.saturating_add(bytes) > bytes_max {
            return Err(HubFull::SeatBytes(bytes_max));
        }
        Ok(())
    }

    /// Takes interests away. Answers how many of them it had.
    pub fn unwant(&self, interests: &[Interest]) -> usize {
        let mut current = self.interests.lock();
        let mut gone: Vec<Interest> = interests.iter().filter(|one| current.has(one)).cloned().collect();
        gone.sort_unstable();
        gone.dedup();
        self.remove_from_index(&gone);
        current.remove(&gone);
        gone.len()
    }

    fn remove_from_index(&self, interests: &[Interest]) {
        for chunk in interests.chunks(CHUNK_INTERESTS) {
            let mut index = self.shared.index.write();
            for interest in chunk {
                index.remove(interest, &self.subscriber);
            }
        }
        self.shared.metrics.interests.dec_by(interests.len() as i64);
    }

    /// What it wants, in order.
    pub fn interests(&self) -> Vec<Interest> {
        self.interests.lock().list.to_vec()
    }

    /// How much it wants.
    pub fn interest_count(&self) -> usize {
        self.interests.lock().list.len()
    }

    /// Whether it wants this.
    pub fn wants(&self, interest: &Interest) -> bool {
        self.interests.lock().has(interest)
    }

    /// Waits for events, as many as make a good batch, or for the end. After the end it always answers that, and what waited
    /// is gone. Nothing is lost when the wait is given up. What it gave the time before counts as waiting no longer.
    ///
    /// After `Ended::Slow` and `Ended::Full` the reader tells the table (`sessions.close(id, why)`), which does not know yet.
    /// Of all other ends it was the table that told.
    ///
    /// A seat has one reader: of two who wait at the same time only the later is woken.
    pub async fn next(&self) -> Next {
        self.next_few(BATCH_EVENTS_MAX).await
    }

    /// The same, with no more than so many events, and at least one.
    pub async fn next_few(&self, events_max: usize) -> Next {
        poll_fn(|cx| self.subscriber.poll_next(events_max.max(1), cx)).await
    }

    /// Why the session has ended, if it has.
    pub fn ended(&self) -> Option<Ended> {
        self.subscriber.ended()
    }

    /// Events that wait at this moment, without waiting for more.
    pub fn waiting(&self) -> usize {
        self.subscriber.waiting()
    }

    /// Makes room for others once events were sent, if that is long before the next are asked for.
    pub fn release(&self, events: &[Arc<Event>]) {
        self.subscriber.release(events);
    }

    /// Its client is away: what waits is dropped, what comes is not queued. Answers how many were dropped.
    pub fn pause(&self) -> usize {
        self.subscriber.pause()
    }

    /// Its client is back.
    pub fn resume(&self) {
        self.subscriber.resume();
    }

    /// Its client has left: from now on it wants nothing and is handed nothing, and the reader, whoever holds the seat,
    /// learns of [`Ended::Left`] unless it has ended before. Answers how many events waited.
    pub fn leave(&self) -> usize {
        let waited = self.subscriber.end(Ended::Left).unwrap_or_default();
        let mut current = self.interests.lock();
        let had = std::mem::take(&mut *current);
        self.remove_from_index(&had.list);
        waited
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.leave();
        self.shared.forget(&self.subscriber);
    }
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seat").field("id", &self.id()).finish_non_exhaustive()
    }
}

impl Interests {
    fn has(&self, interest: &Interest) -> bool {
        self.list.binary_search(interest).is_ok()
    }

    fn add(&mut self, fresh: Vec<Interest>, bytes: usize) {
        let mut list = std::mem::take(&mut self.list).into_vec();
        list.extend(fresh);
        list.sort(); // two sorted runs, which it merges
        self.list = list.into_boxed_slice();
        self.bytes += bytes;
    }

    /// Takes out interests that are in the list; they are sorted.
    fn remove(&mut self, gone: &[Interest]) {
        let mut list = std::mem::take(&mut self.list).into_vec();
        list.retain(|interest| gone.binary_search(interest).is_err());
        self.list = list.into_boxed_slice();
        self.bytes -= gone.iter().map(Interest::bytes).sum::<usize>();
    }
}
