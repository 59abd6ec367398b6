//! The bounded queue of the writer.

use std::sync::Arc;

use restante_core::{BlobId, Timestamp};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use super::{
    receive::{Content, Received},
    uploads::UploadSlots,
};
use crate::{Error, Metrics, Put, PutHook, error::closed};

/// Requests in the queue; more of them wait for it.
const JOBS_WAITING_MAX: usize = 1_024;
/// Bytes of blobs that wait in memory.
const BYTES_WAITING_MAX: usize = 64 << 20;

/// A put, and its waiter.
pub(super) struct PendingPut {
    pub(super) received: Received,
    pub(super) answered: Answered,
    pub(super) waiter: Waiter,
}

/// When a put is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answered {
    WhenDurable,
    /// A short blob, when it can be read.
    WhenWritten,
}

pub(super) struct Waiter {
    done: PutHook,
    /// Returned when the put is acknowledged.
    _permit: OwnedSemaphorePermit,
}

impl Waiter {
    pub(super) fn answer(self, answer: Result<Put, Error>) {
        (self.done)(answer);
    }
}

/// Allows one removal or backup at a time. Returned when all of it is done.
pub(super) type MaintenancePermit = OwnedSemaphorePermit;

/// The requests to the writer.
pub(super) enum Job {
    Put(PendingPut),
    Remove {
        ids: Vec<BlobId>,
        put_before: Timestamp,
        permit: MaintenancePermit,
        answer: oneshot::Sender<Result<u64, Error>>,
    },
    /// Makes blobs count as put now.
    Touch {
        ids: Vec<BlobId>,
        answer: oneshot::Sender<Result<Vec<bool>, Error>>,
        /// Returned when it is done.
        _permit: OwnedSemaphorePermit,
    },
    /// Makes durable what was appended.
    Sync(oneshot::Sender<Result<(), Error>>),
    /// Writes all acknowledged changes to the index.
    FlushIndex(oneshot::Sender<Result<(), Error>>),
    /// The same, and ends the writer.
    Close(oneshot::Sender<Result<(), Error>>),
}

/// The input of the queue.
pub(super) struct Queue {
    jobs: mpsc::Sender<Job>,
    bytes: Arc<Semaphore>,
    /// For blobs that are received into files of their own.
    pub(super) upload_slots: UploadSlots,
    maintenance: Arc<Semaphore>,
}

impl Queue {
    pub(super) fn new(metrics: &Metrics) -> (Self, mpsc::Receiver<Job>) {
        let (jobs, waiting) = mpsc::channel(JOBS_WAITING_MAX);
        let semaphore = |permits| Arc::new(Semaphore::new(permits));
        let (bytes, maintenance) = (semaphore(BYTES_WAITING_MAX), semaphore(1));
        (
            Self { jobs, bytes, upload_slots: UploadSlots::new(metrics.slow_uploads.clone()), maintenance },
            waiting,
        )
    }

    pub(super) async fn maintenance_permit(&self) -> Result<MaintenancePermit, Error> {
        take(&self.maintenance, 1).await
    }

    pub(super) async fn put(&self, received: Received) -> Result<Put, Error> {
        let (answer, answered) = oneshot::channel();
        let done = move |put| drop(answer.send(put)); // the caller may be gone
        self.put_then(received, Answered::WhenDurable, Box::new(done)).await?;
        answered.await.map_err(|_| closed())?
    }

    /// Queues a put, and calls `done` when it has ended.
    pub(super) async fn put_then(
        &self,
        received: Received,
        answered: Answered,
        done: PutHook,
    ) -> Result<(), Error> {
        let bytes = match &received.content {
            Content::Packed { bytes, .. } => bytes.len().min(BYTES_WAITING_MAX),
            Content::File { .. } => 0,
        };
        let permit = take(&self.bytes, bytes as u32).await?;
        let waiter = Waiter { done, _permit: permit };
        self.jobs.send(Job::Put(PendingPut { received, answered, waiter })).await.map_err(|_| closed())
    }

    pub(super) async fn touch(&self, ids: Vec<BlobId>) -> Result<Vec<bool>, Error> {
        let permit = take(&self.bytes, size_of_val(&*ids) as u32).await?;
        self.ask(|answer| Job::Touch { ids, answer, _permit: permit }).await
    }

    pub(super) async fn remove(&self, ids: Vec<BlobId>, put_before: Timestamp) -> Result<u64, Error> {
        let permit = self.maintenance_permit().await?;
        self.ask(|answer| Job::Remove { ids, put_before, permit, answer }).await
    }

    pub(super) async fn sync(&self) -> Result<(), Error> {
        self.ask(Job::Sync).await
    }

    pub(super) async fn flush_index(&self) -> Result<(), Error> {
        self.ask(Job::FlushIndex).await
    }

    pub(super) async fn close(&self) -> Result<(), Error> {
        self.ask(Job::Close).await
    }

    async fn ask<T>(&self, job: impl FnOnce(oneshot::Sender<Result<T, Error>>) -> Job) -> Result<T, Error> {
        let (answer, answered) = oneshot::channel();
        self.jobs.send(job(answer)).await.map_err(|_| closed())?;
        answered.await.map_err(|_| closed())?
    }
}

async fn take(semaphore: &Arc<Semaphore>, permits: u32) -> Result<OwnedSemaphorePermit, Error> {
    semaphore.clone().acquire_many_owned(permits).await.map_err(|_| closed())
}
