//! Touching blobs.

use std::collections::BTreeMap;

use futures_util::{StreamExt, TryStreamExt, stream};
use restante_core::BlobId;

use super::{S3, schema::blob_key};
use crate::Error;

/// The most requests of one touch at the same time.
const REQUESTS_MAX: usize = 16;

impl S3 {
    /// Makes blobs count as put now; returns for each whether it exists.
    pub(super) async fn touch_all(&self, ids: &[BlobId]) -> Result<Vec<bool>, Error> {
        let _held = self.locks.hold(ids).await;
        let mut is_there: BTreeMap<BlobId, bool> = ids.iter().map(|id| (*id, false)).collect();
        let look = |id: BlobId| async move { Ok::<_, Error>((id, self.find(id).await?.is_some())) };
        let found: Vec<(BlobId, bool)> = stream::iter(is_there.keys().copied())
            .map(look)
            .buffer_unordered(REQUESTS_MAX)
            .try_collect()
            .await?;
        let found: Vec<BlobId> =
            found.into_iter().filter(|(_, is_there)| *is_there).map(|(id, _)| id).collect();
        self.log.note(found.iter().copied()).await?;
        // A server that has not read this manifest may have begun to remove them.
        let look_again = |id: BlobId| async move {
            let is_there = self.client.head(&blob_key(id)).await?.is_some() || self.bring_back(id).await?;
            Ok::<_, Error>((id, is_there))
        };
        let held: Vec<(BlobId, bool)> =
            stream::iter(found).map(look_again).buffer_unordered(REQUESTS_MAX).try_collect().await?;
        is_there.extend(held);
        Ok(ids.iter().map(|id| is_there.get(id).copied().unwrap_or_default()).collect())
    }
}
