//! The trait between the SMTP server and the queue of outgoing mail.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use restante_blobs::{Blobs, Source};
use restante_core::{BlobId, Error};
use restante_mail::queue::{NewMessage, Queue};

/// A queue for mail that is sent later.
#[async_trait]
pub trait Outbox: Send + Sync + 'static {
    /// Stores the bytes of a message durably, before [`Outbox::queue`] refers to them.
    ///
    /// # Errors
    /// Those of the blobs.
    async fn put(&self, raw: Bytes) -> Result<BlobId, Error>;

    /// Queues a message: durably when this returns, and each recipient once for each [`restante_mail::queue::Source::key`],
    /// however often it is repeated.
    ///
    /// # Errors
    /// Those of the records; repeating is safe.
    async fn queue(&self, message: NewMessage) -> Result<(), Error>;
}

/// Queues into [`Queue`].
#[derive(Clone)]
pub struct QueueOutbox {
    blobs: Arc<dyn Blobs>,
    queue: Queue,
}

impl QueueOutbox {
    /// An outbox for a queue and the blobs that it refers to.
    pub fn new(blobs: Arc<dyn Blobs>, queue: Queue) -> Self {
        Self { blobs, queue }
    }
}

#[async_trait]
impl Outbox for QueueOutbox {
    async fn put(&self, raw: Bytes) -> Result<BlobId, Error> {
        let mut raw = raw;
        Ok(self.blobs.put(&mut raw as &mut dyn Source).await?.id)
    }

    async fn queue(&self, message: NewMessage) -> Result<(), Error> {
        self.queue.add(message).await.map(|_| ())
    }
}
