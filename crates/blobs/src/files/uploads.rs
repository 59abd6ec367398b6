//! Slots for uploads into files of their own. Each has an open file, so their number is bounded.
//!
//! A few hundred slow uploads could block all others. So when no slot is free and an upload waits, an upload that made no progress is
//! ended and its slot goes to the waiter. While none waits an upload may be as slow as it likes.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep, sleep_until},
};

use crate::{Error, Source, error::closed};

/// Uploads into files of their own at the same time. More of them wait.
pub(super) const FILES_RECEIVED_MAX: usize = 256;
/// What an upload must send in [`PROGRESS_TIME`] to keep its slot for sure: 8 KiB/s, as a slow mobile network has.
const PROGRESS_BYTES: u64 = 256 << 10;
/// See [`PROGRESS_BYTES`]. An upload waits for a slot no longer than this.
const PROGRESS_TIME: Duration = Duration::from_secs(30);
/// How often an upload without progress checks whether others wait.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// All slots.
pub(super) struct UploadSlots {
    free: Arc<Semaphore>,
    waiters: Arc<Mutex<Waiters>>,
    given_up: Counter,
}

/// How many uploads wait for a slot, and how many slots were released for them and not taken yet.
#[derive(Default)]
struct Waiters {
    waiting: usize,
    given_up: usize,
}

impl UploadSlots {
    /// All slots free. `given_up` counts the uploads that are ended.
    pub(super) fn new(given_up: Counter) -> Self {
        Self { free: Arc::new(Semaphore::new(FILES_RECEIVED_MAX)), waiters: Arc::default(), given_up }
    }

    /// Waits for a slot. If one is free it does not count as waiting, so that no upload is ended for it.
    pub(super) async fn take(&self) -> Result<UploadSlot, Error> {
        let permit = match self.free.clone().try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => self.wait().await?,
        };
        let now = Instant::now();
        Ok(UploadSlot {
            waiters: self.waiters.clone(),
            given_up: self.given_up.clone(),
            bytes: 0,
            since: now,
            asked_until: now,
            permit,
        })
    }

    async fn wait(&self) -> Result<OwnedSemaphorePermit, Error> {
        let waiting = Waiting::begin(&self.waiters);
        let permit = self.free.clone().acquire_owned().await.map_err(|_| closed())?;
        waiting.end_with_slot();
        Ok(permit)
    }
}

/// Counts a waiter.
struct Waiting<'p>(&'p Mutex<Waiters>);

impl<'p> Waiting<'p> {
    fn begin(waiters: &'p Mutex<Waiters>) -> Self {
        waiters.lock().waiting += 1;
        Self(waiters)
    }

    /// Changes both counts at once: otherwise one more slot would seem to be needed in between.
    fn end_with_slot(self) {
        let mut waiters = self.0.lock();
        waiters.given_up = waiters.given_up.saturating_sub(1);
        waiters.waiting -= 1;
        drop(waiters);
        std::mem::forget(self); // it is counted off already
    }
}

impl Drop for Waiting<'_> {
    /// When a waiter is cancelled, the slot that was released for it goes to the next waiter, if there is one.
    fn drop(&mut self) {
        let mut waiters = self.0.lock();
        waiters.waiting -= 1;
        waiters.given_up = waiters.given_up.min(waiters.waiting);
    }
}

/// The slot of an upload.
pub(super) struct UploadSlot {
    waiters: Arc<Mutex<Waiters>>,
    given_up: Counter,
    /// The bytes since `since`, which is when they last reached [`PROGRESS_BYTES`].
    bytes: u64,
    /// Advanced by the time between reads of the source.
    since: Instant,
    /// When the last read of the source ended.
    asked_until: Instant,
    permit: OwnedSemaphorePermit,
}

impl UploadSlot {
    /// Reads the next chunk of the source, or fails when the upload makes no progress while others wait.
    ///
    /// Time between two calls does not count: it is spent on this server's disk, not by the uploader.
    pub(super) async fn next(&mut self, source: &mut dyn Source) -> Result<Option<Bytes>, Error> {
        self.since += self.asked_until.elapsed();
        tokio::select! {
            biased; // a chunk that has arrived is accepted, however late
            chunk = source.next() => {
                let chunk = chunk?;
                self.note(chunk.as_ref().map_or(0, Bytes::len) as u64);
                return Ok(chunk);
            }
            () = self.is_needed() => {}
        }
        self.given_up.inc();
        let what = "the upload was too slow while others waited: send it again";
        Err(Error::unavailable(what))
    }

    fn note(&mut self, bytes: u64) {
        self.asked_until = Instant::now();
        self.bytes += bytes;
        if self.bytes >= PROGRESS_BYTES {
            (self.bytes, self.since) = (0, self.asked_until);
        }
    }

    /// Returns when there was no progress and more uploads wait than slots were released for: then this one is released.
    async fn is_needed(&self) {
        sleep_until(self.since + PROGRESS_TIME).await;
        loop {
            {
                let mut waiters = self.waiters.lock();
                let is_free = self.permit.semaphore().available_permits() > 0;
                if waiters.waiting > waiters.given_up && !is_free {
                    waiters.given_up += 1;
                    return;
                }
            }
            sleep(LOOK_INTERVAL).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::Future,
        pin::pin,
        task::{Context, Waker},
    };

    use async_trait::async_trait;
    use tokio::time::timeout;

    use super::*;

    /// Gives an empty chunk after a time.
    struct After(Duration);

    #[async_trait]
    impl Source for After {
        async fn next(&mut self) -> Result<Option<Bytes>, Error> {
            sleep(self.0).await;
            Ok(Some(Bytes::new()))
        }
    }

    fn stalled() -> After {
        After(Duration::MAX)
    }

    async fn all(slots: &UploadSlots) -> Vec<UploadSlot> {
        let mut all = Vec::new();
        for _ in 0..FILES_RECEIVED_MAX {
            all.push(slots.take().await.unwrap());
        }
        all
    }

    /// Taking many slots in one task makes tokio's semaphore yield; an upload with a free slot once counted as waiting then.
    #[tokio::test(start_paused = true)]
    async fn no_upload_waits_while_slots_are_free() {
        let slots = UploadSlots::new(Counter::default());
        for n in 0..1_000 {
            let taking = pin!(slots.take());
            let is_taken = taking.poll(&mut Context::from_waker(Waker::noop())).is_ready();
            assert!(is_taken, "{n} were taken before");
        }
        let mut slow = slots.take().await.unwrap();
        let _waiting = Waiting::begin(&slots.waiters); // is about to get a free slot
        assert!(timeout(PROGRESS_TIME * 10, slow.next(&mut stalled())).await.is_err(), "it keeps its slot");
    }

    #[tokio::test(start_paused = true)]
    async fn a_slot_released_for_a_cancelled_waiter_goes_to_the_next() {
        let slots = UploadSlots::new(Counter::default());
        let mut all = all(&slots).await;
        let mut slow = all.pop().unwrap();
        let waiting = Waiting::begin(&slots.waiters);
        assert!(slow.next(&mut stalled()).await.is_err());
        drop(waiting);
        let _waiting = Waiting::begin(&slots.waiters);
        assert!(all.pop().unwrap().next(&mut stalled()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_disk_is_not_taken_for_a_slow_source() {
        let slots = UploadSlots::new(Counter::default());
        let mut all = all(&slots).await;
        let _waiting = Waiting::begin(&slots.waiters);
        let (mut slot, mut quick) = (all.pop().unwrap(), After(Duration::from_secs(1)));
        for _ in 0..20 {
            sleep(PROGRESS_TIME * 2).await; // the chunk is being written
            slot.next(&mut quick).await.unwrap();
        }
        let seconds = PROGRESS_TIME.as_secs() - 20;
        let given_up = timeout(Duration::from_secs(seconds + 2), slot.next(&mut stalled())).await;
        assert!(given_up.expect("all time spent reading the source counts").is_err());
    }
}
