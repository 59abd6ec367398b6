//! The places for blobs that are received into files of their own: each has its file open, so there are only so many.
//!
//! Whoever uploads slowly keeps a place for long, and a few hundred who do could keep out everybody else. So a place belongs
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
/// What an upload must bring in [`PROGRESS_TIME`] to be sure of its place: 8 KiB/s, the slowest of mobile networks.
const PROGRESS_BYTES: u64 = 256 << 10;
/// See [`PROGRESS_BYTES`]. So long somebody waits at most.
const PROGRESS_TIME: Duration = Duration::from_secs(30);
/// How often an upload that makes no progress looks whether somebody waits.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// All places.
pub(super) struct Places {
    free: Arc<Semaphore>,
    crowd: Arc<Mutex<Crowd>>,
    given_up: Counter,
}

/// How many wait for a place, and how many places were given up for them that nobody has taken yet.
#[derive(Default)]
struct Crowd {
    waiting: usize,
    given_up: usize,
}

impl Places {
    /// All are free. Uploads that are given up are counted.
    pub(super) fn new(given_up: Counter) -> Self {
        Self { free: Arc::new(Semaphore::new(FILES_RECEIVED_MAX)), crowd: Arc::default(), given_up }
    }

    /// Waits for a place.
    pub(super) async fn take(&self) -> Result<Place, Error> {
        let _waiting = Waiting::begin(&self.crowd);
        let permit = self.free.clone().acquire_owned().await.map_err(|_| Error::closed())?;
        let mut crowd = self.crowd.lock();
        crowd.given_up = crowd.given_up.saturating_sub(1);
        drop(crowd);
        Ok(Place {
            crowd: self.crowd.clone(),
            given_up: self.given_up.clone(),
            bytes: 0,
            since: Instant::now(),
            _permit: permit,
        })
    }
}

/// Counts who waits, as long as he does.
struct Waiting<'p>(&'p Mutex<Crowd>);

impl<'p> Waiting<'p> {
    fn begin(crowd: &'p Mutex<Crowd>) -> Self {
        crowd.lock().waiting += 1;
        Self(crowd)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.lock().waiting -= 1;
    }
}

/// The place of an upload.
pub(super) struct Place {
    crowd: Arc<Mutex<Crowd>>,
    given_up: Counter,
    /// What has come since a time: since it last was as much as it must be.
    bytes: u64,
    since: Instant,
    _permit: OwnedSemaphorePermit,
}

impl Place {
    /// What the source gives next, unless the place is needed for somebody else before that.
    pub(super) async fn next(&mut self, source: &mut dyn Source) -> Result<Option<Bytes>, Error> {
        tokio::select! {
            biased;
            () = self.is_needed() => {}
            chunk = source.next() => {
                let chunk = chunk?;
                self.note(chunk.as_ref().map_or(0, Bytes::len) as u64);
                return Ok(chunk);
            }
        }
        self.given_up.inc();
        let what = "the blob came too slowly while others waited for their turn: send it again";
        Err(Error::new(ErrorKind::Unavailable, what))
    }

    fn note(&mut self, bytes: u64) {
        self.bytes += bytes;
        if self.bytes >= PROGRESS_BYTES {
            (self.bytes, self.since) = (0, Instant::now());
        }
    }

    /// Returns when there was no progress and somebody waits for whom no other place was given up: this one is then.
    async fn is_needed(&self) {
        sleep_until(self.since + PROGRESS_TIME).await;
        loop {
            {
                let mut crowd = self.crowd.lock();
                if crowd.waiting > crowd.given_up {
                    crowd.given_up += 1;
                    return;
                }
            }
            sleep(LOOK_INTERVAL).await;
        }
    }
}
