//! The seam between the door and the queue of outgoing mail.

use async_trait::async_trait;
use bytes::Bytes;
use restante_core::{BlobId, Error};
use restante_mail::queue::NewMessage;

/// Where mail waits that is sent later.
#[async_trait]
pub trait Outbox: Send + Sync + 'static {
    /// Stores the bytes of a message durably, before [`Outbox::queue`] refers to them.
    ///
    /// # Errors
    /// Those of the blobs.
    async fn put(&self, raw: Bytes) -> Result<BlobId, Error>;

    /// Queues a message: durably when it returns, and each recipient once for each [`restante_mail::queue::Source::key`], however often it is repeated.
    ///
    /// # Errors
    /// Those of the records; repeating is safe.
    async fn queue(&self, message: NewMessage) -> Result<(), Error>;
}
