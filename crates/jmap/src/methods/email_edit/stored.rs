//! Stores and reads raw messages.

use bytes::Bytes;
use restante_core::{BlobId, Error};
use restante_mail::{StoredMessage, message};

use crate::core::{Context, content::on_a_core};

/// Puts a message into the store, and reads it.
pub(super) async fn put(context: &Context, raw: Bytes) -> Result<StoredMessage, Error> {
    let put = context.blobs().put(&mut raw.clone()).await?;
    Ok(read(raw, put.id).await?.stored)
}

/// A message in the form that records store.
pub(super) struct ReadMessage {
    pub(super) stored: StoredMessage,
    /// The time in its topmost Received field, in seconds since 1970.
    pub(super) newest_received: Option<i64>,
}

/// Reads a message that is in the store.
pub(super) async fn read(raw: Bytes, blob: BlobId) -> Result<ReadMessage, Error> {
    on_a_core(raw.len(), move || {
        let message = message::read(&raw);
        ReadMessage { stored: StoredMessage::new(&message, blob), newest_received: message.newest_received }
    })
    .await
}
