//! LMDB itself: one environment, its map, its tables, and the transactions that write rows.

use std::{
    collections::hash_map::RandomState,
    fs::{File, OpenOptions},
    hash::BuildHasher,
    ops::Bound,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use heed::{
    CompactionOption, Database, Env, EnvOpenOptions, MdbError, PutFlags, RoTxn, RwTxn, WithoutTls,
    types::Bytes,
};
use restante_core::ErrorKind;
use restante_disk::DiskFile;
use tracing::warn;

use crate::{
    Error, Table,
    error::{lmdb_error, no_table},
    frame::Salt,
    layer::{Layer, Sequence},
    log, pages,
    readers::{Readers, Reading},
    store::{Stats, TableStats},
};

type Rows = Database<Bytes, Bytes>;

/// Threads that may read at the same time: those of an async runtime and of its blocking pool.
const READERS_MAX: u32 = 1_024;

/// Bytes that are allocated after the pages in use.
const SPARE_BYTES: u64 = 1 << 20;

/// With fewer free bytes a disk counts as full.
const FREE_BYTES_MIN: u64 = 256 << 10;

/// LMDB's table of readers in its folder, and its size: 64 bytes for each reader, and the header.
const LOCK_FILE: &str = "lock.mdb";
const LOCK_FILE_BYTES: u64 = READERS_MAX as u64 * 64 + 4_096;

/// LMDB's file in its folder.
const FILE: &str = "data.mdb";

/// The store's own table, in addition to those it was opened with.
const STORE: &str = "store";
const APPLIED: &[u8] = b"applied";
const EPOCH: &[u8] = b"epoch";
const SALT: &[u8] = b"salt";
const FORMAT: &[u8] = b"format";
const FORMAT_NOW: u64 = 1;

/// An open environment.
pub(crate) struct Environment {
    env: Env<WithoutTls>,
    readers: Readers,
    tables: Vec<(Table, Rows)>,
    store: Rows,
    path: PathBuf,
    /// LMDB's file, to allocate space after the pages in use.
    file: File,
}

/// What to do with the redo rows of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RedoRows {
    /// Write them into LMDB.
    Keep,
    /// Drop them: what they repeat is durable.
    Drop,
}

/// The progress of LMDB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// The last batch whose rows are in LMDB.
    pub(crate) applied: Sequence,
    /// The number of openings.
    pub(crate) epoch: u32,
    /// The mark of the frames of its commit log.
    pub(crate) salt: Salt,
}

impl Environment {
    pub(crate) fn open(folder: &Path, tables: &[Table], map_bytes: u64) -> Result<Self, Error> {
        let path = folder.join(FILE);
        if !path.exists() {
            make(folder, tables)?;
        }
        let opened = OpenOptions::new().read(true).write(true).open(&path);
        let file = opened.map_err(|error| Error::io("open", path.display(), error))?;
        pages::check_length(&file)?; // LMDB would read past the end of a truncated file
        let file_bytes = file.metadata().map_or(0, |file| file.len());
        allocate_lock_file(folder)?;
        let env = reserve(folder, tables, map_bytes, file_bytes.saturating_mul(2))?;
        env.clear_stale_readers().map_err(|error| lmdb_error("open", error))?;
        let (store, tables) = open_tables(&env, folder, tables)?;
        let readers = Readers::new(env.clone());
        let environment = Self { env, readers, tables, store, path, file };
        let _ = environment.allocate(); // opening must work on a full disk
        Ok(environment)
    }

    pub(crate) fn read(&self) -> Result<Reading<'_>, Error> {
        self.readers.begin().map_err(|error| lmdb_error("read", error))
    }

    /// The number of transactions that wait for the next reader or are in use.
    #[cfg(test)]
    pub(crate) fn reused_transactions(&self) -> usize {
        self.readers.reused_transactions()
    }

    pub(crate) fn table(&self, table: Table) -> Result<Rows, Error> {
        let found = self.tables.iter().find(|(known, _)| known.number == table.number);
        found.map(|(_, rows)| *rows).ok_or_else(|| no_table(table))
    }

    pub(crate) fn progress(&self) -> Result<Progress, Error> {
        let reading = self.read()?;
        let applied = read_number(self.store, reading.transaction(), APPLIED)?;
        let epoch = read_number(self.store, reading.transaction(), EPOCH)?;
        let salt = read_number(self.store, reading.transaction(), SALT)?;
        Ok(Progress { applied, epoch: epoch as u32, salt: salt as Salt })
    }

    /// Writes the newest version of all rows of a layer, and the progress, into LMDB in one transaction. Returns the number of the
    /// transaction.
    pub(crate) fn apply(&self, layer: &Layer, progress: Progress, redo: RedoRows) -> Result<usize, Error> {
        match self.try_apply(layer, progress, redo) {
            Err(heed::Error::Mdb(MdbError::MapFull)) => {
                let bytes = self.env.info().map_size;
                let what = format!("{} has reached {bytes} bytes, the size of its map", self.path.display());
                Err(Error::full(what))
            }
            Err(error @ heed::Error::Io(_)) => Err(write_error(&self.path, error, self.has_space())),
            Err(error) => Err(lmdb_error("write", error)),
            Ok(id) => {
                let _ = self.allocate();
                Ok(id)
            }
        }
    }

    fn try_apply(&self, layer: &Layer, progress: Progress, redo: RedoRows) -> heed::Result<usize> {
        let mut transaction = self.env.write_txn()?;
        let mut table: Option<Filling> = None;
        let guard = crossbeam_epoch::pin();
        for row in layer.newest(&guard) {
            let number = row.table;
            if table.as_ref().is_none_or(|table| table.number != number) {
                table = self.filling(number, &transaction)?;
            }
            if let Some(table) = &mut table {
                let is_dropped = redo == RedoRows::Drop && table.has_redo_rows;
                // Deleted, because LMDB may have the row from before it was deleted and put again.
                let value = row.value.filter(|_| !is_dropped);
                table.put(&mut transaction, row.key, value)?;
            }
        }
        self.store.put(&mut transaction, APPLIED, &progress.applied.to_be_bytes())?;
        self.store.put(&mut transaction, EPOCH, &u64::from(progress.epoch).to_be_bytes())?;
        let id = transaction.id();
        transaction.commit()?;
        self.readers.committed(id);
        Ok(id)
    }

    /// Allocates [`SPARE_BYTES`] after the pages in use, so that small transactions work on a full disk. The file does not
    /// become longer.
    ///
    /// # Errors
    /// `Full` when the disk has no space for them.
    pub(crate) fn allocate(&self) -> Result<(), Error> {
        let end = (self.env.info().last_page_number as u64 + 1) * self.page_bytes();
        let allocated = self.file.allocate(end, SPARE_BYTES);
        allocated.map_err(|error| Error::io("allocate space for", self.path.display(), error))
    }

    /// Whether the disk has some space.
    pub(crate) fn has_space(&self) -> bool {
        restante_disk::free_bytes(&self.path).map_or(true, |free| free >= FREE_BYTES_MIN)
            && self.allocate().is_ok()
    }

    /// Whether the store was opened with a table.
    pub(crate) fn has_table(&self, number: u8) -> bool {
        self.tables.iter().any(|(table, _)| table.number == number)
    }

    fn filling(&self, number: u8, transaction: &RwTxn<'_>) -> heed::Result<Option<Filling>> {
        let Some((table, rows)) = self.tables.iter().find(|(table, _)| table.number == number) else {
            return Ok(None);
        };
        let last = rows.last(transaction)?.map(|(key, _)| Box::from(key));
        Ok(Some(Filling { number, has_redo_rows: table.has_redo_rows, rows: *rows, last }))
    }

    /// Whether a layer has rows of [`Table::redo`].
    pub(crate) fn has_redo_rows(&self, layer: &Layer) -> bool {
        let guard = &crossbeam_epoch::pin();
        let mut tables = self.tables.iter().map(|(table, _)| table).filter(|table| table.has_redo_rows);
        tables.any(|table| layer.at_or_after(table.number, Bound::Unbounded, Sequence::MAX, guard).is_some())
    }

    /// Writes a compact copy into a folder, durably.
    pub(crate) fn copy(&self, folder: &Path) -> Result<(), Error> {
        let failed = |error| Error::io("copy the LMDB store into", folder.display(), error);
        let path = folder.join(FILE);
        if path.exists() {
            let what = format!("there is an LMDB store already: {}", path.display());
            return Err(Error::conflict(what));
        }
        let copy = self.env.copy_to_path(&path, CompactionOption::Enabled);
        copy.map_err(|error| lmdb_error("copy", error))?.sync_all().map_err(failed)?;
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)
    }

    /// The size of LMDB's pages: that of the system on which the file was created.
    fn page_bytes(&self) -> u64 {
        u64::from(self.env.stat().page_size)
    }

    /// The error of the first damaged page, if there is one.
    pub(crate) fn damaged_page(&self) -> Result<Option<String>, Error> {
        let _reading = self.read()?; // pages of this and later transactions are not reused meanwhile
        match pages::check_pages(&self.file) {
            Err(error) if error.kind() == ErrorKind::Corrupt => Ok(Some(error.to_string())),
            checked => checked.map(|()| None),
        }
    }

    pub(crate) fn check(&self) -> Result<Vec<String>, Error> {
        if let Some(damage) = self.damaged_page()? {
            return Ok(vec![damage]);
        }
        let reading = self.read()?;
        let mut wrong = Vec::new();
        for (table, rows) in &self.tables {
            let failed = |error| lmdb_error("check", error);
            let expected = rows.stat(reading.transaction()).map_err(failed)?.entries;
            let mut found = 0;
            let mut last: Option<&[u8]> = None;
            for row in rows.iter(reading.transaction()).map_err(failed)? {
                let (key, _) = row.map_err(failed)?;
                if last.is_some_and(|last| key <= last) {
                    wrong.push(format!("table {}: row {found} is out of order", table.name()));
                }
                last = Some(key);
                found += 1;
            }
            if found != expected {
                wrong.push(format!("table {}: {found} rows can be read of {expected}", table.name()));
            }
        }
        Ok(wrong)
    }

    pub(crate) fn stats(&self) -> Result<Stats, Error> {
        let failed = |error| lmdb_error("count", error);
        let reading = self.read()?;
        let mut stats = Stats { page_bytes: self.page_bytes(), ..Stats::default() };
        let mut used = 0;
        let named = self.tables.iter().map(|(table, rows)| (table.name(), rows));
        for (name, rows) in named.chain([(STORE, &self.store)]) {
            let stat = rows.stat(reading.transaction()).map_err(failed)?;
            let pages = (stat.branch_pages + stat.leaf_pages + stat.overflow_pages) as u64;
            used += pages;
            stats.tables.push(TableStats { name, rows: stat.entries as u64, pages });
        }
        stats.pages = self.env.info().last_page_number as u64 + 1;
        stats.free_pages = stats.pages.saturating_sub(used + META_PAGES);
        stats.file_bytes = std::fs::metadata(&self.path)
            .map_err(|error| Error::io("look at", self.path.display(), error))?
            .len();
        Ok(stats)
    }
}

/// Allocates the table of readers. LMDB maps and writes it when it opens and when threads read, and a page without a block
/// would end the process on a full disk.
fn allocate_lock_file(folder: &Path) -> Result<(), Error> {
    let path = folder.join(LOCK_FILE);
    let opened =
        OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
    let allocated = opened.and_then(|file| {
        let len = file.metadata()?.len().max(LOCK_FILE_BYTES);
        match file.reserve(0, len) {
            Err(error) if error.kind() == std::io::ErrorKind::Unsupported => {
                file.write_at(&[0; LOCK_FILE_BYTES as usize], 0)
            }
            reserved => reserved,
        }
    });
    allocated.map_err(|error| Error::io("allocate", path.display(), error))
}

/// Creates an environment in a temporary folder and moves it: LMDB can't open a file that a power cut left half written.
fn make(folder: &Path, tables: &[Table]) -> Result<(), Error> {
    let failed = |error| Error::io("make an LMDB store in", folder.display(), error);
    for name in log::FILES {
        // A store gets its commit log after this file, and keeps it.
        if folder.join(name).exists() {
            let what = format!(
                "{} has a commit log and no {FILE} that goes with it: put that back, or restore a backup, or move {name} away \
                 to begin with an empty store",
                folder.display()
            );
            return Err(Error::corrupt(what));
        }
    }
    let making = folder.join("making");
    if making.exists() {
        std::fs::remove_dir_all(&making).map_err(failed)?;
    }
    std::fs::create_dir(&making).map_err(failed)?;
    let made = fill(&making, tables).and_then(|()| move_in(&making, folder).map_err(failed));
    if made.is_err() {
        let _ = std::fs::remove_dir_all(&making); // or the next try removes it
    }
    made
}

/// Creates an environment in an empty folder.
fn fill(folder: &Path, tables: &[Table]) -> Result<(), Error> {
    allocate_lock_file(folder)?;
    let env = open_env(folder, tables, map_size(1 << 20)).map_err(|error| lmdb_error("make", error))?;
    let opened = open_tables(&env, folder, tables);
    env.prepare_for_closing().wait();
    opened.map(|_| ())
}

#[expect(clippy::disallowed_methods, reason = "file and folder are synced around it")]
fn move_in(making: &Path, folder: &Path) -> std::io::Result<()> {
    let made = making.join(FILE);
    File::open(&made)?.sync_all()?;
    std::fs::rename(made, folder.join(FILE))?;
    File::open(folder)?.sync_all()?;
    std::fs::remove_dir_all(making)
}

fn open_tables(
    env: &Env<WithoutTls>,
    folder: &Path,
    tables: &[Table],
) -> Result<(Rows, Vec<(Table, Rows)>), Error> {
    let mut transaction = env.write_txn().map_err(|error| lmdb_error("open", error))?;
    let mut create = |name: &str| {
        let created = env.create_database(&mut transaction, Some(name));
        created.map_err(|error| lmdb_error("create a table of", error))
    };
    let store = create(STORE)?;
    let mut opened = Vec::new();
    for table in tables {
        opened.push((*table, create(table.name())?));
    }
    check_format(store, &mut transaction)?;
    transaction.commit().map_err(|error| {
        let has_space = restante_disk::free_bytes(folder).map_or(true, |free| free >= FREE_BYTES_MIN);
        write_error(folder, error, has_space)
    })?;
    Ok((store, opened))
}

/// The error of a transaction. LMDB reports a write that was cut short by a full disk as EIO.
fn write_error(path: &Path, error: heed::Error, has_space: bool) -> Error {
    match error {
        heed::Error::Io(_) if !has_space => {
            Error::io("write", path.display(), std::io::ErrorKind::StorageFull.into())
        }
        error => lmdb_error("write", error),
    }
}

/// The two pages that LMDB begins with, and the table of tables.
const META_PAGES: u64 = 3;

/// A table into which rows are put in the order of their keys.
struct Filling {
    number: u8,
    has_redo_rows: bool,
    rows: Rows,
    /// The last key of the table. Rows after it are appended: pages are then filled whole instead of split in halves.
    last: Option<Box<[u8]>>,
}

impl Filling {
    fn put(&mut self, transaction: &mut RwTxn<'_>, key: &[u8], value: Option<&[u8]>) -> heed::Result<()> {
        let Some(value) = value else {
            let was_last = self.last.as_deref() == Some(key);
            self.rows.delete(transaction, key)?;
            if was_last {
                self.last = self.rows.last(transaction)?.map(|(key, _)| Box::from(key));
            }
            return Ok(());
        };
        if self.last.as_deref().is_some_and(|last| key <= last) {
            return self.rows.put(transaction, key, value);
        }
        self.rows.put_with_flags(transaction, PutFlags::APPEND, key, value)?;
        self.last = Some(Box::from(key));
        Ok(())
    }
}

fn check_format(store: Rows, transaction: &mut RwTxn<'_>) -> Result<(), Error> {
    let failed = |error| lmdb_error("read", error);
    match store.get(transaction, FORMAT).map_err(failed)? {
        None => {
            store.put(transaction, FORMAT, &FORMAT_NOW.to_be_bytes()).map_err(failed)?;
            // The standard library seeds its hash maps at random, which suffices here.
            let salt = RandomState::new().hash_one(FORMAT) & u64::from(Salt::MAX);
            store.put(transaction, SALT, &salt.to_be_bytes()).map_err(failed)
        }
        Some(format) if format == FORMAT_NOW.to_be_bytes() => Ok(()),
        Some(other) => {
            let version = other.try_into().map_or_else(
                |_| "of no number".to_owned(),
                |version| u64::from_be_bytes(version).to_string(),
            );
            let known = format!("this program knows version {FORMAT_NOW}");
            let what = format!(
                "the LMDB store has format version {version}, and {known}: use the version that wrote it"
            );
            Err(Error::corrupt(what))
        }
    }
}

fn read_number(rows: Rows, transaction: &RoTxn<'_, WithoutTls>, name: &[u8]) -> Result<u64, Error> {
    let found = rows.get(transaction, name).map_err(|error| lmdb_error("read", error))?;
    let bytes = found.unwrap_or(&[0; 8]).try_into();
    bytes
        .map(u64::from_be_bytes)
        .map_err(|_| Error::corrupt("the progress of the LMDB store is damaged: restore a backup"))
}

/// Opens an environment with a map of `map_bytes`, or of `needed_bytes` if that is more. Where the process may not have that
/// much address space, the map is smaller.
fn reserve(
    folder: &Path,
    tables: &[Table],
    map_bytes: u64,
    needed_bytes: u64,
) -> Result<Env<WithoutTls>, Error> {
    let mut bytes = map_bytes.max(needed_bytes);
    loop {
        match open_env(folder, tables, map_size(bytes)) {
            Err(heed::Error::Io(error))
                if error.kind() == std::io::ErrorKind::OutOfMemory && bytes / 2 >= needed_bytes.max(1) =>
            {
                bytes /= 2;
                warn!(
                    map_bytes = bytes,
                    "address space is limited (ulimit -v): the LMDB store can't grow as large"
                );
            }
            opened => return opened.map_err(|error| lmdb_error("open", error)),
        }
    }
}

/// Rounds up to whole pages, whatever their size.
fn map_size(bytes: u64) -> usize {
    const GRAIN: u64 = 64 << 10;
    usize::try_from(bytes.max(GRAIN).next_multiple_of(GRAIN)).unwrap_or(usize::MAX - GRAIN as usize + 1)
}

#[expect(
    unsafe_code,
    reason = "the file is mapped and must not be cut: the lock of the folder keeps other stores out"
)]
fn open_env(folder: &Path, tables: &[Table], map: usize) -> heed::Result<Env<WithoutTls>> {
    let mut options = EnvOpenOptions::new().read_txn_without_tls();
    options.map_size(map).max_dbs(tables.len() as u32 + 1).max_readers(READERS_MAX);
    unsafe { options.open(folder) }
}
