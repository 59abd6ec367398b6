//! The reference model, in memory: written to be obviously right.

use std::{
    collections::BTreeMap,
    ops::{Bound, Range},
    path::Path,
    sync::Arc,
};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use restante_core::{BlobId, Clock, Identity, Timestamp};

use crate::{
    Blobs, Config, Error, Listed, Metrics, Opened, Put, Report, Source, Stats, Upkeep,
    error::{closed, no_blob},
    hash::id_of,
    limits::{check_length, check_limit, check_range, check_touch, clip},
};

pub(crate) fn open(config: &Config) -> Opened {
    let memory = Arc::new(Memory {
        blobs: Mutex::new(Some(BTreeMap::new())),
        owner: Mutex::new(None),
        blob_bytes_max: config.blob_bytes_max.get(),
        clock: config.clock.clone(),
        metrics: config.metrics.clone(),
    });
    Opened { blobs: memory.clone(), upkeep: memory }
}

struct StoredBlob {
    bytes: Bytes,
    put_at: Timestamp,
}

struct Memory {
    /// `None` once it is closed.
    blobs: Mutex<Option<BTreeMap<BlobId, StoredBlob>>>,
    owner: Mutex<Option<Identity>>,
    blob_bytes_max: u64,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
}

impl Memory {
    fn with<T>(&self, work: impl FnOnce(&mut BTreeMap<BlobId, StoredBlob>) -> T) -> Result<T, Error> {
        self.blobs.lock().as_mut().map(work).ok_or_else(closed)
    }
}

#[async_trait]
impl Blobs for Memory {
    async fn put(&self, source: &mut dyn Source) -> Result<Put, Error> {
        self.health()?;
        let mut collected = BytesMut::new();
        while let Some(chunk) = source.next().await? {
            check_length(collected.len() as u64 + chunk.len() as u64, self.blob_bytes_max)?;
            collected.extend_from_slice(&chunk);
        }
        let bytes = collected.freeze();
        let id = id_of(&bytes);
        let len = bytes.len() as u64;
        let blob = StoredBlob { bytes, put_at: self.clock.now() };
        let before = self.with(|blobs| blobs.insert(id, blob))?;
        Ok(Put { id, bytes: len, is_new: before.is_none() })
    }

    async fn read(&self, id: BlobId, range: Range<u64>) -> Result<Box<dyn Source>, Error> {
        check_range(&range)?;
        let bytes = self.with(|blobs| blobs.get(&id).map(|blob| blob.bytes.clone()))?;
        let bytes = bytes.ok_or_else(|| no_blob(id))?;
        let range = clip(&range, bytes.len() as u64);
        Ok(Box::new(bytes.slice(range.start as usize..range.end as usize)))
    }

    async fn size(&self, id: BlobId) -> Result<Option<u64>, Error> {
        self.with(|blobs| blobs.get(&id).map(|blob| blob.bytes.len() as u64))
    }

    async fn touch(&self, ids: &[BlobId]) -> Result<Vec<bool>, Error> {
        check_touch(ids.len())?;
        let now = self.clock.now();
        self.with(|blobs| {
            let mut found = Vec::new();
            for id in ids {
                let blob = blobs.get_mut(id);
                found.push(blob.is_some());
                if let Some(blob) = blob {
                    blob.put_at = blob.put_at.max(now);
                }
            }
            found
        })
    }
}

#[async_trait]
impl Upkeep for Memory {
    async fn list(&self, after: Option<BlobId>, limit: usize) -> Result<Vec<Listed>, Error> {
        check_limit(limit)?;
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.with(|blobs| {
            let mut page = Vec::new();
            for (id, blob) in blobs.range((from, Bound::Unbounded)).take(limit) {
                page.push(Listed { id: *id, bytes: blob.bytes.len() as u64, put_at: blob.put_at });
            }
            page
        })
    }

    async fn remove(&self, ids: &[BlobId], put_before: Timestamp) -> Result<u64, Error> {
        let removed = self.with(|blobs| {
            let mut removed = 0;
            for id in ids {
                let is_old = blobs.get(id).is_some_and(|blob| blob.put_at < put_before);
                if is_old {
                    blobs.remove(id);
                    removed += 1;
                }
            }
            removed
        })?;
        self.metrics.removed_blobs.inc_by(removed);
        Ok(removed)
    }

    async fn owner(&self) -> Result<Option<Identity>, Error> {
        self.with(|_| *self.owner.lock())
    }

    async fn set_owner(&self, owner: Identity) -> Result<(), Error> {
        self.with(|_| *self.owner.lock() = Some(owner))
    }

    async fn stats(&self) -> Result<Stats, Error> {
        self.with(|blobs| Stats {
            blobs: blobs.len() as u64,
            bytes: blobs.values().map(|blob| blob.bytes.len() as u64).sum(),
            ..Stats::default()
        })
    }

    fn health(&self) -> Result<(), Error> {
        self.with(|_| ())
    }

    async fn check(&self, progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<Report, Error> {
        self.with(|blobs| {
            let bytes = blobs.values().map(|blob| blob.bytes.len() as u64).sum();
            let mut report = Report { blobs: blobs.len() as u64, bytes, ..Report::default() };
            for (id, blob) in blobs {
                if id_of(&blob.bytes) != *id {
                    report.note(id.to_string(), "the bytes are not those that were put");
                }
            }
            progress(bytes, bytes);
            report
        })
    }

    async fn backup(&self, _folder: &Path) -> Result<(), Error> {
        Err(Error::invalid("blobs in memory have no files to back up"))
    }

    async fn close(&self) -> Result<(), Error> {
        *self.blobs.lock() = None;
        Ok(())
    }
}
