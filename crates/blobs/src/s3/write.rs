//! Putting a blob.

use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::multipart::PartId;
use restante_core::BlobId;

use super::{
    S3,
    client::Created,
    receive::Received,
    schema::{PART_BYTES, SINGLE_PUT_BYTES_MAX, blob_key},
};
use crate::{Error, Put};

/// The most parts of one upload that are sent at the same time.
const PARTS_MAX: usize = 4;

/// The outcome of an upload.
struct Outcome {
    is_new: bool,
    /// It was absent before, so no server can be removing it.
    is_made_here: bool,
}

impl S3 {
    /// Stores a blob, and returns when it and its manifest are durable.
    pub(super) async fn store(&self, received: Received) -> Result<Put, Error> {
        let Received { id, bytes, .. } = received;
        let held = self.locks.hold(&[id]).await;
        let (noted, outcome) = tokio::join!(self.log.note([id]), self.upload(&received));
        let mut outcome = outcome?;
        noted?;
        // The blob existed already, and another server may have begun to remove it before it could read the manifest.
        if !outcome.is_made_here && self.client.head(&blob_key(id)).await?.is_none() {
            self.send(&received).await?;
            outcome.is_new = true;
        }
        if outcome.is_new {
            self.add_to_totals(bytes);
        }
        drop(held);
        if let Some(bytes) = received.in_memory() {
            self.cache.insert(id, bytes);
        }
        Ok(Put { id, bytes, is_new: outcome.is_new })
    }

    /// Puts the object of a blob, unless it is there.
    async fn upload(&self, received: &Received) -> Result<Outcome, Error> {
        let key = blob_key(received.id);
        let found = if received.bytes > SINGLE_PUT_BYTES_MAX {
            self.client.head(&key).await?.map(|_| false)
        } else {
            let permit = self.permit_for(received).await?;
            let created = self.client.create(&key, received.payload(0, received.bytes).await?).await?;
            drop(permit);
            match created {
                Created::New => return Ok(Outcome { is_new: true, is_made_here: true }),
                // The caller checks whether it exists: a conflict of two writers has the same answer.
                Created::Exists => Some(false),
                Created::Unknown(put) => self.client.is_created_by(&key, &put).await?,
            }
        };
        if let Some(is_new) = found {
            return Ok(Outcome { is_new, is_made_here: false });
        }
        self.send(received).await?;
        Ok(Outcome { is_new: true, is_made_here: false })
    }

    /// Puts the object of a blob, without checking whether it exists: an existing object has the same bytes.
    async fn send(&self, received: &Received) -> Result<(), Error> {
        let _permit = self.permit_for(received).await?;
        let key = blob_key(received.id);
        if received.bytes <= SINGLE_PUT_BYTES_MAX {
            return self.client.overwrite(&key, received.payload(0, received.bytes).await?).await;
        }
        let upload = self.client.begin_upload(&key).await?;
        let parts: Vec<PartId> = stream::iter(0..received.bytes.div_ceil(PART_BYTES))
            .map(|number| {
                let (start, upload) = (number * PART_BYTES, &upload);
                async move {
                    let part = received.payload(start, PART_BYTES.min(received.bytes - start)).await?;
                    self.client.put_part(upload, number as usize, part).await
                }
            })
            .buffered(PARTS_MAX)
            .try_collect()
            .await?;
        let Err(error) = upload.complete(parts).await else { return Ok(()) };
        // It may have been completed all the same.
        match self.client.head(&key).await {
            Ok(Some(object)) if object.bytes == received.bytes => Ok(()),
            _ => Err(error),
        }
    }

    /// Waits for the permit to use memory for a long upload.
    async fn permit_for(
        &self,
        received: &Received,
    ) -> Result<Option<tokio::sync::SemaphorePermit<'_>>, Error> {
        if received.is_in_memory() {
            return Ok(None);
        }
        let permit = self.large_uploads.acquire().await;
        permit.map(Some).map_err(|_| crate::error::closed())
    }

    /// Restores a blob whose put or touch was acknowledged here while another server removed it; false when it is not in
    /// the trash either.
    pub(super) async fn bring_back(&self, id: BlobId) -> Result<bool, Error> {
        let is_back = self.restore(id).await?;
        if is_back {
            self.settings.metrics.s3.restored_blobs.inc();
        }
        Ok(is_back)
    }
}
