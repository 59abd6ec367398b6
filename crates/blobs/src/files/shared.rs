//! What everybody shares who works on a store: where blobs lie, which files are open, whether it goes on.

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
use crate::{Config, Error, FilesConfig, Metrics};

/// Packs that are kept open for reading.
const PACKS_OPEN_MAX: usize = 128;

pub(super) struct Shared {
    pub(super) disk: Arc<dyn Disk>,
    /// `None` once the store is closed.
    pub(super) index: RwLock<Option<Index>>,
    /// Blobs whose records are durable, and whose rows will be, and blobs that were touched: the writer adds and takes away,
    /// everybody looks here first.
    pub(super) pending: RwLock<HashMap<BlobId, Entry>>,
    pub(super) ledger: Mutex<Ledger>,
    pub(super) settings: FilesConfig,
    pub(super) blob_bytes_max: u64,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) metrics: Metrics,
    /// Names the next file that is being received.
    pub(super) incoming: AtomicU64,
    packs: Mutex<BTreeMap<u64, Arc<File>>>,
    status: Mutex<Status>,
    /// Keeps other processes out.
    pub(super) lock: Mutex<Option<File>>,
}

/// Why puts are refused.
#[derive(Default)]
struct Status {
    is_closed: bool,
    /// A sync failed: nobody knows what the disk has kept.
    broken: Option<String>,
    /// What the last put failed by, until one succeeds.
    last: Option<(ErrorKind, String)>,
}

/// What the files hold.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    pub(super) packs: BTreeMap<u64, Pack>,
    pub(super) files: Files,
}

impl Ledger {
    /// A blob begins to lie where `entry` says.
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

    /// A blob no longer lies where `entry` says.
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

    /// What the index is told of packs, and of files.
    pub(super) fn rows(&self, packs: &BTreeSet<u64>) -> Vec<Row> {
        let known = packs.iter().filter_map(|number| Some(Row::Pack(*number, *self.packs.get(number)?)));
        known.chain([Row::Files(self.files)]).collect()
    }

    /// How many blobs there are, and their lengths together.
    pub(super) fn totals(&self) -> (u64, u64) {
        let mut totals = (self.files.blobs, self.files.bytes);
        for pack in self.packs.values() {
            totals.0 += pack.live;
            totals.1 += pack.live_bytes.saturating_sub(pack.live * RECORD_HEADER_BYTES as u64);
        }
        totals
    }

    /// What the packs take on disk.
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
            blob_bytes_max: config.blob_bytes_max,
            clock: config.clock.clone(),
            metrics: config.metrics.clone(),
            incoming: AtomicU64::new(1),
            packs: Mutex::default(),
            status: Mutex::default(),
            lock: Mutex::default(),
        }
    }

    pub(super) fn index(&self) -> Result<Index, Error> {
        self.index.read().clone().ok_or_else(Error::closed)
    }

    /// Where a blob lies.
    pub(super) fn find(&self, id: BlobId) -> Result<Option<Entry>, Error> {
        // In this order: a row is in the index before it goes from here.
        let pending = self.pending.read().get(&id).copied();
        match pending {
            Some(entry) => Ok(Some(entry)),
            None => self.index()?.find(id),
        }
    }

    /// The blobs behind one in the order of their ids, also those whose rows wait.
    pub(super) fn page(&self, after: Option<BlobId>, limit: usize) -> Result<Vec<(BlobId, Entry)>, Error> {
        let is_behind = |id: &BlobId| after.is_none_or(|after| *id > after);
        // In this order: a row is in the index before it goes from here.
        let pending = self.pending.read();
        let waiting: Vec<_> =
            pending.iter().filter(|(id, _)| is_behind(id)).map(|(id, at)| (*id, *at)).collect();
        drop(pending);
        let mut page: BTreeMap<BlobId, Entry> = self.index()?.page(after, limit)?.into_iter().collect();
        page.extend(waiting);
        Ok(page.into_iter().take(limit).collect())
    }

    /// A pack, to read from. It fails with `NotFound` when its blobs were moved away.
    pub(super) fn pack(&self, number: u64) -> io::Result<Arc<File>> {
        // Opened under the lock: a pack that is removed is forgotten afterwards, and so none that is gone stays open.
        let mut packs = self.packs.lock();
        if let Some(file) = packs.get(&number) {
            return Ok(file.clone());
        }
        let file = Arc::new(File::open(self.disk.path(&pack_name(number)))?);
        while packs.len() >= PACKS_OPEN_MAX {
            packs.pop_first(); // the oldest blobs are those that are asked for least
        }
        packs.insert(number, file.clone());
        Ok(file)
    }

    /// Lets the handle of a pack go that was removed.
    pub(super) fn forget_pack(&self, number: u64) {
        self.packs.lock().remove(&number);
    }

    /// A step on the disk that makes something durable failed: nothing more is taken.
    pub(super) fn sync_failed(&self, what: &str, name: &str, error: io::Error) -> Error {
        let error = Error::io(what, name, error);
        let message =
            format!("no blobs are taken until the store is opened again, because a sync failed: {error}");
        self.status.lock().broken.get_or_insert(message);
        Error::new(ErrorKind::Unavailable, error.to_string())
    }

    /// How the last put went.
    pub(super) fn note(&self, error: Option<&Error>) {
        self.status.lock().last = error.map(|error| (error.kind(), error.to_string()));
    }

    pub(super) fn check_open(&self) -> Result<(), Error> {
        if self.status.lock().is_closed { Err(Error::closed()) } else { Ok(()) }
    }

    /// Whether the store was neither closed nor broken.
    pub(super) fn check_writable(&self) -> Result<(), Error> {
        self.check_open()?;
        self.check_unbroken()
    }

    /// Whether no sync has failed.
    pub(super) fn check_unbroken(&self) -> Result<(), Error> {
        match &self.status.lock().broken {
            Some(message) => Err(Error::new(ErrorKind::Unavailable, message.clone())),
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

    /// Takes no more; tells whether it was closed before.
    pub(super) fn start_closing(&self) -> bool {
        std::mem::replace(&mut self.status.lock().is_closed, true)
    }

    /// Lets go what is open; answers the index, which is to be closed.
    pub(super) fn release(&self) -> Option<Index> {
        self.packs.lock().clear();
        self.index.write().take()
    }
}
