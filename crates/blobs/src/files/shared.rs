//! The shared state of a store: where blobs are, which files are open, and whether it can be written to.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs::File,
    io,
    sync::{Arc, atomic::AtomicU64},
};

use parking_lot::{Mutex, RwLock};
use restante_core::{BlobId, Clock, ErrorKind};
use restante_disk::Disk;

use super::{
    index::{Entry, Files, Index, Location, Pack, Row},
    schema::{RECORD_HEADER_BYTES, pack_name},
    write::Move,
};
use crate::{Config, Error, FilesConfig, Metrics, error::closed};

/// Packs that stay open for reading.
const PACKS_OPEN_MAX: usize = 128;

pub(super) struct Shared {
    pub(super) disk: Arc<dyn Disk>,
    /// `None` once the store is closed.
    pub(super) index: RwLock<Option<Index>>,
    /// Blobs whose records are written but not indexed yet, and touched blobs: changed only by the writer, and looked up before the
    /// index.
    pub(super) pending: RwLock<HashMap<BlobId, Entry>>,
    pub(super) ledger: Mutex<Ledger>,
    pub(super) settings: FilesConfig,
    pub(super) blob_bytes_max: u64,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) metrics: Metrics,
    /// The number of the next file to receive.
    pub(super) incoming: AtomicU64,
    packs: Mutex<BTreeMap<u64, Arc<File>>>,
    status: Mutex<Status>,
    /// The lock that excludes other processes.
    pub(super) lock: Mutex<Option<File>>,
}

/// Why puts are refused.
#[derive(Default)]
struct Status {
    is_closed: bool,
    /// A sync failed, so that it is unknown what is on disk.
    broken: Option<String>,
    /// The error of the last put, until one succeeds.
    last: Option<(ErrorKind, String)>,
}

/// The totals of packs and files.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    pub(super) packs: BTreeMap<u64, Pack>,
    pub(super) files: Files,
}

impl Ledger {
    /// Adds a blob at its location.
    pub(super) fn add(&mut self, entry: &Entry) {
        match entry.location {
            Location::File => {
                self.files.blobs += 1;
                self.files.bytes += entry.bytes;
            }
            Location::Pack { number, .. } => {
                let pack = self.packs.entry(number).or_default();
                pack.live += 1;
                pack.live_bytes += entry.record_bytes();
            }
        }
    }

    /// Removes a blob from its location.
    pub(super) fn remove(&mut self, entry: &Entry) {
        match entry.location {
            Location::File => {
                self.files.blobs = self.files.blobs.saturating_sub(1);
                self.files.bytes = self.files.bytes.saturating_sub(entry.bytes);
            }
            Location::Pack { number, .. } => {
                let pack = self.packs.entry(number).or_default();
                pack.live = pack.live.saturating_sub(1);
                pack.live_bytes = pack.live_bytes.saturating_sub(entry.record_bytes());
            }
        }
    }

    pub(super) fn apply(&mut self, moves: &[Move]) {
        for change in moves {
            change.old.iter().for_each(|entry| self.remove(entry));
            change.new.iter().for_each(|entry| self.add(entry));
        }
    }

    pub(super) fn revert(&mut self, moves: &[Move]) {
        for change in moves {
            change.new.iter().for_each(|entry| self.remove(entry));
            change.old.iter().for_each(|entry| self.add(entry));
        }
    }

    /// The rows of packs, and of files.
    pub(super) fn rows(&self, packs: &BTreeSet<u64>) -> Vec<Row> {
        let known = packs.iter().filter_map(|number| Some(Row::Pack(*number, *self.packs.get(number)?)));
        known.chain([Row::Files(self.files)]).collect()
    }

    /// The number of blobs, and the sum of their lengths.
    pub(super) fn totals(&self) -> (u64, u64) {
        let mut totals = (self.files.blobs, self.files.bytes);
        for pack in self.packs.values() {
            totals.0 += pack.live;
            totals.1 += pack.live_bytes.saturating_sub(pack.live * RECORD_HEADER_BYTES as u64);
        }
        totals
    }

    /// The size of all packs on disk.
    pub(super) fn pack_bytes(&self) -> u64 {
        self.packs.values().map(|pack| pack.len).sum()
    }
}

impl Shared {
    pub(super) fn new(disk: Arc<dyn Disk>, index: Index, config: &Config) -> Self {
        Self {
            disk,
            index: RwLock::new(Some(index)),
            pending: RwLock::default(),
            ledger: Mutex::default(),
            settings: config.files,
            blob_bytes_max: config.blob_bytes_max.get(),
            clock: config.clock.clone(),
            metrics: config.metrics.clone(),
            incoming: AtomicU64::new(1),
            packs: Mutex::default(),
            status: Mutex::default(),
            lock: Mutex::default(),
        }
    }

    pub(super) fn index(&self) -> Result<Index, Error> {
        self.index.read().clone().ok_or_else(closed)
    }

    /// The row of a blob.
    pub(super) fn find(&self, id: BlobId) -> Result<Option<Entry>, Error> {
        // In this order: a row is added to the index before it is removed here.
        let pending = self.pending.read().get(&id).copied();
        match pending {
            Some(entry) => Ok(Some(entry)),
            None => self.index()?.find(id),
        }
    }

    /// The blobs after one, ordered by id, including those that are not indexed yet.
    pub(super) fn page(&self, after: Option<BlobId>, limit: usize) -> Result<Vec<(BlobId, Entry)>, Error> {
        let is_behind = |id: &BlobId| after.is_none_or(|after| *id > after);
        // In this order: a row is added to the index before it is removed here.
        let pending = self.pending.read();
        let waiting: Vec<_> =
            pending.iter().filter(|(id, _)| is_behind(id)).map(|(id, at)| (*id, *at)).collect();
        drop(pending);
        let mut page: BTreeMap<BlobId, Entry> = self.index()?.page(after, limit)?.into_iter().collect();
        page.extend(waiting);
        Ok(page.into_iter().take(limit).collect())
    }

    /// A pack, for reading. `NotFound` when it was removed after its blobs were moved.
    pub(super) fn pack(&self, number: u64) -> io::Result<Arc<File>> {
        // Opened under the lock: a pack is forgotten after it was removed, so that no removed one stays open.
        let mut packs = self.packs.lock();
        if let Some(file) = packs.get(&number) {
            return Ok(file.clone());
        }
        let file = Arc::new(File::open(self.disk.path(&pack_name(number)))?);
        while packs.len() >= PACKS_OPEN_MAX {
            packs.pop_first(); // the oldest blobs are read least
        }
        packs.insert(number, file.clone());
        Ok(file)
    }

    /// A pack that is open.
    pub(super) fn opened_pack(&self, number: u64) -> Option<Arc<File>> {
        self.packs.lock().get(&number).cloned()
    }

    /// Closes a removed pack.
    pub(super) fn forget_pack(&self, number: u64) {
        self.packs.lock().remove(&number);
    }

    /// Handles a failed sync: nothing more is written.
    pub(super) fn sync_failed(&self, what: &str, name: &str, error: io::Error) -> Error {
        let error = Error::io(what, name, error);
        let message =
            format!("no blobs are accepted until the store is opened again, because a sync failed: {error}");
        self.status.lock().broken.get_or_insert(message);
        Error::unavailable(error.to_string())
    }

    /// Records the outcome of the last put.
    pub(super) fn note(&self, error: Option<&Error>) {
        self.status.lock().last = error.map(|error| (error.kind(), error.to_string()));
    }

    pub(super) fn check_open(&self) -> Result<(), Error> {
        if self.status.lock().is_closed { Err(closed()) } else { Ok(()) }
    }

    /// Fails when the store is closed or a sync has failed.
    pub(super) fn check_writable(&self) -> Result<(), Error> {
        self.check_open()?;
        self.check_unbroken()
    }

    /// Fails when a sync has failed.
    pub(super) fn check_unbroken(&self) -> Result<(), Error> {
        match &self.status.lock().broken {
            Some(message) => Err(Error::unavailable(message.clone())),
            None => Ok(()),
        }
    }

    pub(super) fn health(&self) -> Result<(), Error> {
        self.check_writable()?;
        if let Some((kind, message)) = &self.status.lock().last {
            return Err(Error::new(*kind, message.clone()));
        }
        self.index()?.health()
    }

    /// Refuses further puts; returns whether it was closed before.
    pub(super) fn start_closing(&self) -> bool {
        std::mem::replace(&mut self.status.lock().is_closed, true)
    }

    /// Closes all files; returns the index, which the caller closes.
    pub(super) fn release(&self) -> Option<Index> {
        self.packs.lock().clear();
        self.index.write().take()
    }
}
