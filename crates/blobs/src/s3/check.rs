//! Reads every blob and compares it with its key.

use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::{StreamExt, stream};
use restante_core::{BlobId, ErrorKind};

use super::{
    S3,
    client::{Get, Object},
    read::Blob,
    schema::{BLOBS, blob_key, parse_blob_key},
};
use crate::{Error, Report, Source};

/// Blobs that are read at the same time.
const READS_MAX: usize = 4;

/// The result of reading a blob.
struct Checked {
    id: BlobId,
    /// `None` when it was removed meanwhile.
    outcome: Option<Result<u64, Error>>,
}

impl S3 {
    pub(super) async fn check_all(
        &self,
        progress: &(dyn Fn(u64, u64) + Send + Sync),
    ) -> Result<Report, Error> {
        let (_, total) = self.count().await?;
        let (mut report, mut after) = (Report::default(), None);
        let done = AtomicU64::new(0);
        // Blobs may be added during the check.
        let advance = |bytes: u64| {
            let now = done.fetch_add(bytes, Ordering::Relaxed) + bytes;
            progress(now, total.max(now));
        };
        advance(0);
        loop {
            let page = self.client.list(BLOBS, after.as_deref(), usize::MAX).await?;
            let mut ids = Vec::new();
            for Object { key, .. } in &page.objects {
                match parse_blob_key(key) {
                    Some(id) => ids.push(id),
                    None => report.note(key, "it is no blob: its key is not a hash"),
                }
            }
            let mut reads = stream::iter(ids).map(|id| self.check_one(id)).buffered(READS_MAX);
            while let Some(checked) = reads.next().await {
                let Checked { id, outcome: Some(outcome) } = checked? else { continue };
                report.blobs += 1;
                match outcome {
                    Ok(bytes) => {
                        report.bytes += bytes;
                        advance(bytes);
                    }
                    Err(error) => report.note(blob_key(id), error.to_string()),
                }
            }
            after = match page.objects.last() {
                Some(last) if !page.is_last => Some(last.key.clone()),
                _ => return Ok(report),
            };
        }
    }

    async fn check_one(&self, id: BlobId) -> Result<Checked, Error> {
        let Get::Found(found) = self.client.get(&blob_key(id), None).await? else {
            return Ok(Checked { id, outcome: None });
        };
        let (mut blob, mut bytes) = (Blob::new(id, found, None), 0);
        loop {
            match blob.next().await {
                Ok(Some(chunk)) => bytes += chunk.len() as u64,
                Ok(None) => return Ok(Checked { id, outcome: Some(Ok(bytes)) }),
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    return Ok(Checked { id, outcome: Some(Err(error)) });
                }
                Err(error) => return Err(error),
            }
        }
    }
}
