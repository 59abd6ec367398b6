//! A bounded cache of blobs on the local disk. Every read compares the hash, so that nothing needs to be synced, locked or
//! cleaned up after a crash.

use std::{
    collections::{BTreeMap, HashMap},
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use parking_lot::Mutex;
use restante_core::BlobId;
use tokio::sync::Semaphore;

use crate::{
    Error,
    hash::id_of,
    s3_metrics::{CacheLabel, S3Metrics},
};

/// Longer blobs are not cached: a read of a part reads the whole file.
pub(super) const CACHED_BLOB_BYTES_MAX: u64 = 4 << 20;
/// The most files that are written at the same time; while there are this many, further blobs are not cached.
const WRITES_MAX: usize = 4;
/// The least space that a file uses on the disk.
const FILE_BYTES_MIN: u64 = 4_096;

pub(super) struct Cache {
    folder: PathBuf,
    bytes_max: u64,
    held: Mutex<HeldFiles>,
    writes: Arc<Semaphore>,
    metrics: S3Metrics,
}

/// The files, in the order of their last use.
#[derive(Default)]
struct HeldFiles {
    by_id: HashMap<BlobId, HeldFile>,
    by_use: BTreeMap<u64, BlobId>,
    uses: u64,
    bytes: u64,
}

#[derive(Clone, Copy)]
struct HeldFile {
    used: u64,
    bytes: u64,
}

impl HeldFiles {
    fn insert(&mut self, id: BlobId, bytes: u64) {
        self.remove(id);
        self.uses += 1;
        let bytes = bytes.max(FILE_BYTES_MIN);
        self.by_id.insert(id, HeldFile { used: self.uses, bytes });
        self.by_use.insert(self.uses, id);
        self.bytes += bytes;
    }

    fn remove(&mut self, id: BlobId) -> bool {
        let Some(file) = self.by_id.remove(&id) else { return false };
        self.by_use.remove(&file.used);
        self.bytes -= file.bytes;
        true
    }

    /// Whether the file of a blob exists; it counts as used now.
    fn touch(&mut self, id: BlobId) -> bool {
        let Some(file) = self.by_id.get(&id).copied() else { return false };
        self.insert(id, file.bytes);
        true
    }

    /// Removes the least recently used files until the rest is small enough; returns their blobs.
    fn shrink(&mut self, bytes_max: u64) -> Vec<BlobId> {
        let mut gone = Vec::new();
        while self.bytes > bytes_max
            && let Some((_, id)) = self.by_use.first_key_value()
        {
            let id = *id;
            self.remove(id);
            gone.push(id);
        }
        gone
    }
}

impl Cache {
    /// Opens the cache in a folder; with 0 bytes nothing is cached and the folder is not read. Blocks.
    pub(super) fn open(folder: PathBuf, bytes_max: u64, metrics: S3Metrics) -> Result<Self, Error> {
        let mut held = HeldFiles::default();
        if bytes_max > 0 {
            let opened = fs::create_dir_all(&folder).and_then(|()| find_files(&folder, &mut held));
            opened.map_err(|error| {
                Error::io("open", format_args!("the cache of blobs {}", folder.display()), error)
            })?;
        }
        let cache = Self {
            folder,
            bytes_max,
            held: Mutex::new(held),
            writes: Arc::new(Semaphore::new(WRITES_MAX)),
            metrics,
        };
        cache.shrink();
        Ok(cache)
    }

    pub(super) fn takes(&self, bytes: u64) -> bool {
        bytes <= CACHED_BLOB_BYTES_MAX.min(self.bytes_max) && self.bytes_max > 0
    }

    /// All bytes of a blob, verified by their hash. Blocks.
    pub(super) fn read(&self, id: BlobId) -> Option<Bytes> {
        if self.bytes_max == 0 {
            return None;
        }
        let is_held = self.held.lock().touch(id);
        let found =
            is_held.then(|| fs::read(self.path(id)).ok()).flatten().filter(|bytes| id_of(bytes) == id);
        if is_held && found.is_none() {
            self.forget(id);
        }
        let result = if found.is_some() { "hit" } else { "miss" };
        self.metrics.cache_reads.get_or_create(&CacheLabel { result }).inc();
        found.map(Bytes::from)
    }

    /// Counts a read of a blob that is not in the cache.
    pub(super) fn count_miss(&self) {
        if self.bytes_max > 0 {
            self.metrics.cache_reads.get_or_create(&CacheLabel { result: "miss" }).inc();
        }
    }

    pub(super) fn is_held(&self, id: BlobId) -> bool {
        self.held.lock().by_id.contains_key(&id)
    }

    /// Writes a blob in the background, if it is short enough and the disk keeps up.
    pub(super) fn insert(self: &Arc<Self>, id: BlobId, bytes: Bytes) {
        if !self.takes(bytes.len() as u64) || self.is_held(id) {
            return;
        }
        let Ok(permit) = self.writes.clone().try_acquire_owned() else { return };
        let cache = self.clone();
        drop(tokio::task::spawn_blocking(move || {
            let _permit = permit;
            cache.write(id, &bytes);
        }));
    }

    fn write(&self, id: BlobId, bytes: &[u8]) {
        let path = self.path(id);
        let folder = path.parent().unwrap_or(&self.folder);
        match fs::create_dir_all(folder).and_then(|()| fs::write(&path, bytes)) {
            Ok(()) => {
                self.held.lock().insert(id, bytes.len() as u64);
                self.shrink();
            }
            Err(error) => {
                tracing::debug!(%error, "a blob was not cached");
                self.forget(id);
            }
        }
    }

    /// Removes a blob from the cache. Blocks.
    pub(super) fn forget(&self, id: BlobId) {
        if self.bytes_max > 0 {
            self.held.lock().remove(id);
            let _absent = fs::remove_file(self.path(id));
        }
    }

    fn shrink(&self) {
        let gone = self.held.lock().shrink(self.bytes_max);
        for id in gone {
            let _absent = fs::remove_file(self.path(id));
        }
        self.metrics.cache_bytes.set(self.held.lock().bytes as i64);
    }

    /// The number of files, and their bytes.
    pub(super) fn totals(&self) -> (u64, u64) {
        let held = self.held.lock();
        (held.by_id.len() as u64, held.bytes)
    }

    fn path(&self, id: BlobId) -> PathBuf {
        let [first, ..] = id.0;
        self.folder.join(format!("{first:02x}")).join(id.to_string())
    }
}

/// Finds the files of an earlier process, the oldest first.
fn find_files(folder: &Path, held: &mut HeldFiles) -> io::Result<()> {
    let mut found = Vec::new();
    for part in fs::read_dir(folder)? {
        let part = part?;
        if !part.file_type()?.is_dir() {
            continue;
        }
        for file in fs::read_dir(part.path())? {
            let file = file?;
            let Some(id) = file.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let metadata = file.metadata()?;
            found.push((metadata.modified()?, id, metadata.len()));
        }
    }
    found.sort_unstable();
    for (_, id, bytes) in found {
        held.insert(id, bytes);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blob(n: u8) -> (BlobId, Bytes) {
        let bytes = Bytes::from(vec![n; 5_000]);
        (id_of(&bytes), bytes)
    }

    #[test]
    fn what_was_used_last_stays_and_the_size_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let open = || Cache::open(folder.path().to_owned(), 20_000, S3Metrics::default()).unwrap();
        let cache = open();
        for n in 0..4 {
            let (id, bytes) = blob(n);
            cache.write(id, &bytes);
        }
        assert_eq!(cache.totals(), (4, 20_000));
        assert_eq!(cache.read(blob(0).0), Some(blob(0).1));
        let (id, bytes) = blob(4);
        cache.write(id, &bytes);
        let there = |cache: &Cache| (0..5).filter(|n| cache.read(blob(*n).0).is_some()).collect::<Vec<_>>();
        assert_eq!(there(&cache), [0, 2, 3, 4]);
        drop(cache);
        let cache = open();
        assert_eq!((there(&cache), cache.totals()), (vec![0, 2, 3, 4], (4, 20_000)));
        assert!(!cache.takes(20_001) && cache.takes(20_000));
    }

    #[test]
    fn a_damaged_file_is_no_hit_and_goes() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path().to_owned(), 1 << 20, S3Metrics::default()).unwrap();
        let (id, bytes) = blob(1);
        for damage in [&b""[..], &bytes[..4_999], &[2; 5_000]] {
            cache.write(id, &bytes);
            fs::write(cache.path(id), damage).unwrap();
            assert_eq!(cache.read(id), None);
            assert!(!cache.path(id).exists() && cache.totals() == (0, 0));
        }
    }

    #[test]
    fn no_bytes_are_no_cache() {
        let folder = tempfile::tempdir().unwrap().path().join("none");
        let cache = Cache::open(folder.clone(), 0, S3Metrics::default()).unwrap();
        assert!(!cache.takes(0) && cache.read(blob(1).0).is_none() && !folder.exists());
    }
}
