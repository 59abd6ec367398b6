//! The slots for blobs that are received into files of their own: each has its file open, so there are only so many.
//!
//! Whoever uploads slowly keeps a slot for long, and a few hundred who do could keep out everybody else. So a slot belongs
//! to who makes progress: when all are taken and somebody waits, an upload that did not is given up for him. While nobody
//! waits an upload may take as long as it wants.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use restante_core::ErrorKind;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep, sleep_until},
};

use crate::{Error, Source};

/// Blobs that may be received into files of their own at the same time. More of them wait.
pub(super) const FILES_RECEIVED_MAX: usize = 256;
/// What an upload must bring in [`PROGRESS_TIME`] to be sure of its slot: 8 KiB/s, the slowest of mobile networks.
const PROGRESS_BYTES: u64 = 256 << 10;
/// See [`PROGRESS_BYTES`]. So long somebody waits at most.
const PROGRESS_TIME: Duration = Duration::from_secs(30);
/// How often an upload that makes no progress looks whether somebody waits.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// All slots.
pub(super) struct UploadSlots {
    free: Arc<Semaphore>,
    crowd: Arc<Mutex<Crowd>>,
    given_up: Counter,
}

/// How many wait for a slot, and how many slots were given up for them that nobody has taken yet.
#[derive(Default)]
struct Crowd {
    waiting: usize,
    given_up: usize,
}

impl UploadSlots {
    /// All are free. Uploads that are given up are counted.
    pub(super) fn new(given_up: Counter) -> Self {
        Self { free: Arc::new(Semaphore::new(FILES_RECEIVED_MAX)), crowd: Arc::default(), given_up }
    }

    /// Waits for a slot, unless one is free: then nobody is asked to give his up, not for a moment.
    pub(super) async fn take(&self) -> Result<UploadSlot, Error> {
        let permit = match self.free.clone().try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => self.wait().await?,
        };
        let now = Instant::now();
        Ok(UploadSlot {
            crowd: self.crowd.clone(),
            given_up: self.given_up.clone(),
            bytes: 0,
            since: now,
            asked_until: now,
            permit,
        })
    }

    async fn wait(&self) -> Result<OwnedSemaphorePermit, Error> {
        let waiting = Waiting::begin(&self.crowd);
        let permit = self.free.clone().acquire_owned().await.map_err(|_| Error::closed())?;
        waiting.end_with_a_place();
        Ok(permit)
    }
}

/// Counts who waits, as long as he does.
struct Waiting<'p>(&'p Mutex<Crowd>);

impl<'p> Waiting<'p> {
    fn begin(crowd: &'p Mutex<Crowd>) -> Self {
        crowd.lock().waiting += 1;
        Self(crowd)
    }

    /// Both counts change at once: in between, one more slot would seem to be needed.
    fn end_with_a_place(self) {
        let mut crowd = self.0.lock();
        crowd.given_up = crowd.given_up.saturating_sub(1);
        crowd.waiting -= 1;
        drop(crowd);
        std::mem::forget(self); // it has ended
    }
}

impl Drop for Waiting<'_> {
    /// Who goes away leaves the slot that was given up for him to the next, and, when nobody is left, to nobody in particular.
    fn drop(&mut self) {
        let mut crowd = self.0.lock();
        crowd.waiting -= 1;
        crowd.given_up = crowd.given_up.min(crowd.waiting);
    }
}

/// The slot of an upload.
pub(super) struct UploadSlot {
    crowd: Arc<Mutex<Crowd>>,
    given_up: Counter,
    /// What has come since a time: since it last was as much as it must be.
    bytes: u64,
    /// That time, moved on by the time in which the source was not asked.
    since: Instant,
    /// When the source was last asked.
    asked_until: Instant,
    permit: OwnedSemaphorePermit,
}

impl UploadSlot {
    /// What the source gives next, unless the slot is needed for somebody else before that.
    ///
    /// The time between two calls does not count: it goes to this server's disk, and is no fault of who uploads.
    pub(super) async fn next(&mut self, source: &mut dyn Source) -> Result<Option<Bytes>, Error> {
        self.since += self.asked_until.elapsed();
        tokio::select! {
            biased; // what has come is taken, however late it is
            chunk = source.next() => {
                let chunk = chunk?;
                self.note(chunk.as_ref().map_or(0, Bytes::len) as u64);
                return Ok(chunk);
            }
            () = self.is_needed() => {}
        }
        self.given_up.inc();
        let what = "the blob came too slowly while others waited for their turn: send it again";
        Err(Error::new(ErrorKind::Unavailable, what))
    }

    fn note(&mut self, bytes: u64) {
        self.asked_until = Instant::now();
        self.bytes += bytes;
        if self.bytes >= PROGRESS_BYTES {
            (self.bytes, self.since) = (0, self.asked_until);
        }
    }

    /// Returns when there was no progress and somebody waits for whom no other slot was given up: this one is then.
    async fn is_needed(&self) {
        sleep_until(self.since + PROGRESS_TIME).await;
        loop {
            {
                let mut crowd = self.crowd.lock();
                let is_free = self.permit.semaphore().available_permits() > 0;
                if crowd.waiting > crowd.given_up && !is_free {
                    crowd.given_up += 1;
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

    /// A task that takes much at once has to let others go on: who took a free slot then counted as one who waits.
    #[tokio::test(start_paused = true)]
    async fn nobody_waits_while_places_are_free() {
        let slots = UploadSlots::new(Counter::default());
        for n in 0..1_000 {
            let taking = pin!(slots.take());
            let is_taken = taking.poll(&mut Context::from_waker(Waker::noop())).is_ready();
            assert!(is_taken, "{n} were taken before");
        }
        let mut slow = slots.take().await.unwrap();
        let _waiting = Waiting::begin(&slots.crowd); // who is about to be given one of those that are free
        assert!(timeout(PROGRESS_TIME * 10, slow.next(&mut stalled())).await.is_err(), "it keeps its slot");
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_that_was_given_up_for_one_who_went_away_is_no_debt() {
        let slots = UploadSlots::new(Counter::default());
        let mut all = all(&slots).await;
        let mut slow = all.pop().unwrap();
        let waiting = Waiting::begin(&slots.crowd);
        assert!(slow.next(&mut stalled()).await.is_err());
        drop(waiting);
        let _waiting = Waiting::begin(&slots.crowd);
        assert!(all.pop().unwrap().next(&mut stalled()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_disk_is_not_taken_for_a_slow_source() {
        let slots = UploadSlots::new(Counter::default());
        let mut all = all(&slots).await;
        let _waiting = Waiting::begin(&slots.crowd);
        let (mut slot, mut quick) = (all.pop().unwrap(), After(Duration::from_secs(1)));
        for _ in 0..20 {
            sleep(PROGRESS_TIME * 2).await; // what came is written
            slot.next(&mut quick).await.unwrap();
        }
        let seconds = PROGRESS_TIME.as_secs() - 20;
        let given_up = timeout(Duration::from_secs(seconds + 2), slot.next(&mut stalled())).await;
        assert!(given_up.expect("all the time in which it was asked counts").is_err());
    }
}
