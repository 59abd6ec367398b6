use std::{fmt, future::poll_fn, sync::Arc};

use parking_lot::Mutex;

use super::{Event, HubFull, Interest, Next, Shared, subscriber::Subscriber};
use crate::{Ended, SessionId};

/// The most events of a [`Subscription::next`].
const BATCH_EVENTS_MAX: usize = 64;
/// Interests that are removed from the index under one lock, which bounds how long a publisher waits.
const CHUNK_INTERESTS: usize = 256;
/// One nth of the bytes for interests is what one session may take.
const SUBSCRIPTION_SHARE: usize = 64;

/// The subscription of a session: its reading end. Dropping it leaves the hub.
pub struct Subscription {
    subscriber: Arc<Subscriber>,
    interests: Mutex<Interests>,
    shared: Arc<Shared>,
}

/// The interests of a session.
#[derive(Default)]
struct Interests {
    /// Sorted, without duplicates.
    list: Box<[Interest]>,
    bytes: usize,
}

impl Subscription {
    pub(super) fn new(subscriber: Arc<Subscriber>, shared: Arc<Shared>) -> Self {
        Self { subscriber, interests: Mutex::default(), shared }
    }

    /// The id of the session.
    pub fn id(&self) -> SessionId {
        self.subscriber.id
    }

    /// Adds interests, all of them or none. An event is delivered once, however many interests match it. Every matching event that
    /// is published after this returns is put into the queue.
    ///
    /// # Errors
    /// When there would be too many interests, or too many bytes of them.
    pub fn subscribe(&self, interests: &[Interest]) -> Result<(), HubFull> {
        let mut current = self.interests.lock();
        let mut fresh: Vec<Interest> = interests.iter().filter(|one| !current.has(one)).cloned().collect();
        fresh.sort_unstable();
        fresh.dedup();
        let bytes: usize = fresh.iter().map(Interest::bytes).sum();
        self.check_limits(&current, fresh.len(), bytes)?;
        let mut index = self.shared.index.write();
        if index.bytes.saturating_add(bytes) > self.shared.config.interest_bytes_max.get() {
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
        let (count_max, bytes_max) = (
            self.subscriber.config.interests_max,
            self.shared.config.interest_bytes_max.get() / SUBSCRIPTION_SHARE,
        );
        if interests.list.len() + added > count_max {
            return Err(HubFull::Interests(count_max));
        }
        if interests.bytes.saturating_add(bytes) > bytes_max {
            return Err(HubFull::SubscriptionBytes(bytes_max));
        }
        Ok(())
    }

    /// Removes interests. Returns how many of them it had.
    pub fn unsubscribe(&self, interests: &[Interest]) -> usize {
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

    /// The interests, sorted.
    pub fn interests(&self) -> Vec<Interest> {
        self.interests.lock().list.to_vec()
    }

    /// How many interests it has.
    pub fn interest_count(&self) -> usize {
        self.interests.lock().list.len()
    }

    /// Whether it has this interest.
    pub fn has_interest(&self, interest: &Interest) -> bool {
        self.interests.lock().has(interest)
    }

    /// Waits for a batch of events, or for the end of the session. After the end it returns that at once, and waiting events are
    /// dropped. Cancelling the wait loses nothing. The events of the previous call no longer count as waiting.
    ///
    /// After `Ended::Slow` and `Ended::Full` the reader has to end the session in the table (`sessions.close(id, why)`); every
    /// other end was made in the table.
    ///
    /// A subscription has one reader: of two concurrent calls only the later is woken.
    pub async fn next(&self) -> Next {
        self.next_few(BATCH_EVENTS_MAX).await
    }

    /// Like [`Subscription::next`], with at most `events_max` events, and at least one.
    pub async fn next_few(&self, events_max: usize) -> Next {
        poll_fn(|cx| self.subscriber.poll_next(events_max.max(1), cx)).await
    }

    /// Why the session has ended, if it has.
    pub fn ended(&self) -> Option<Ended> {
        self.subscriber.ended()
    }

    /// How many events wait now.
    pub fn waiting(&self) -> usize {
        self.subscriber.waiting()
    }

    /// Stops counting events as waiting once they were sent, for readers that do not ask for the next batch soon.
    pub fn release(&self, events: &[Arc<Event>]) {
        self.subscriber.release(events);
    }

    /// Pauses while the client is away: drops waiting events and queues no new ones. Returns how many were dropped.
    pub fn pause(&self) -> usize {
        self.subscriber.pause()
    }

    /// Resumes after [`Subscription::pause`].
    pub fn resume(&self) {
        self.subscriber.resume();
    }

    /// Leaves the hub: removes the interests and drops waiting events. A reader gets [`Ended::Left`] unless the session has ended
    /// before. Returns how many events were dropped.
    pub fn leave(&self) -> usize {
        let waited = self.subscriber.end(Ended::Left).unwrap_or_default();
        let mut current = self.interests.lock();
        let had = std::mem::take(&mut *current);
        self.remove_from_index(&had.list);
        waited
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.leave();
        self.shared.forget(&self.subscriber);
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("id", &self.id()).finish_non_exhaustive()
    }
}

impl Interests {
    fn has(&self, interest: &Interest) -> bool {
        self.list.binary_search(interest).is_ok()
    }

    fn add(&mut self, fresh: Vec<Interest>, bytes: usize) {
        let mut list = std::mem::take(&mut self.list).into_vec();
        list.extend(fresh);
        list.sort(); // merges two sorted runs
        self.list = list.into_boxed_slice();
        self.bytes += bytes;
    }

    /// Removes interests that are in the list; they are sorted.
    fn remove(&mut self, gone: &[Interest]) {
        let mut list = std::mem::take(&mut self.list).into_vec();
        list.retain(|interest| gone.binary_search(interest).is_err());
        self.list = list.into_boxed_slice();
        self.bytes -= gone.iter().map(Interest::bytes).sum::<usize>();
    }
}
