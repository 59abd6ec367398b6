//! Lists and counts the blobs.

use futures_util::{StreamExt, TryStreamExt, stream};
use restante_core::{BlobId, Timestamp};

use super::{
    S3,
    schema::{BLOBS, blob_key, parse_blob_key},
};
use crate::{Error, Listed};

/// How far back a list looks for puts and touches. For blobs that were last put earlier, the time of their object is returned.
const LOOK_BACK_SECONDS: i64 = 2 * 86_400;
/// How long counted totals are used. Puts and removals of this server are added; those of others are unknown.
const TOTALS_SECONDS: i64 = 86_400;
/// Parts of the keys that are listed at the same time.
const LISTS_MAX: usize = 16;

/// The counted totals, with the changes since.
#[derive(Clone, Copy)]
pub(super) struct Totals {
    blobs: u64,
    bytes: u64,
    counted_at: Timestamp,
}

impl S3 {
    /// A page of the blobs.
    pub(super) async fn page(&self, after: Option<BlobId>, limit: usize) -> Result<Vec<Listed>, Error> {
        let mut page: Vec<Listed> = Vec::new();
        let mut after = after.map(blob_key);
        while page.len() < limit {
            let listed = self.client.list(BLOBS, after.as_deref(), limit - page.len()).await?;
            for object in &listed.objects {
                // Other objects are not blobs: a check reports them.
                if let Some(id) = parse_blob_key(&object.key) {
                    page.push(Listed { id, bytes: object.bytes, put_at: object.modified });
                }
            }
            match listed.objects.last() {
                Some(last) if !listed.is_last => after = Some(last.key.clone()),
                _ => break,
            }
        }
        let from = self.settings.clock.now().plus_seconds(-LOOK_BACK_SECONDS);
        let times = self.times.refresh(from).await?;
        for blob in &mut page {
            blob.put_at = times.put_at(blob.id).unwrap_or(blob.put_at);
        }
        Ok(page)
    }

    /// How many blobs there are, and their bytes.
    pub(super) async fn count(&self) -> Result<(u64, u64), Error> {
        let now = self.settings.clock.now();
        let known = *self.totals.lock();
        if let Some(totals) = known
            && now < totals.counted_at.plus_seconds(TOTALS_SECONDS)
        {
            return Ok((totals.blobs, totals.bytes));
        }
        let first = self.client.list(BLOBS, None, usize::MAX).await?;
        let (blobs, bytes) = if first.is_last {
            sum(&first.objects)
        } else {
            let parts: Vec<(u64, u64)> = stream::iter(0..=u8::MAX)
                .map(|part| self.count_part(part))
                .buffer_unordered(LISTS_MAX)
                .try_collect()
                .await?;
            parts.into_iter().fold((0, 0), |(blobs, bytes), part| (blobs + part.0, bytes + part.1))
        };
        *self.totals.lock() = Some(Totals { blobs, bytes, counted_at: now });
        Ok((blobs, bytes))
    }

    async fn count_part(&self, part: u8) -> Result<(u64, u64), Error> {
        let (start, mut after, mut total) = (format!("{BLOBS}{part:02x}/"), None, (0, 0));
        loop {
            let page = self.client.list(&start, after.as_deref(), usize::MAX).await?;
            let (blobs, bytes) = sum(&page.objects);
            total = (total.0 + blobs, total.1 + bytes);
            after = match page.objects.last() {
                Some(last) if !page.is_last => Some(last.key.clone()),
                _ => return Ok(total),
            };
        }
    }

    pub(super) fn add_to_totals(&self, bytes: u64) {
        if let Some(totals) = self.totals.lock().as_mut() {
            totals.blobs += 1;
            totals.bytes += bytes;
        }
    }

    pub(super) fn take_from_totals(&self, bytes: u64) {
        if let Some(totals) = self.totals.lock().as_mut() {
            totals.blobs = totals.blobs.saturating_sub(1);
            totals.bytes = totals.bytes.saturating_sub(bytes);
        }
    }
}

/// The number of blobs among objects, and their bytes.
fn sum(objects: &[super::client::Object]) -> (u64, u64) {
    let mut total = (0, 0);
    for object in objects {
        if parse_blob_key(&object.key).is_some() {
            total = (total.0 + 1, total.1 + object.bytes);
        }
    }
    total
}
