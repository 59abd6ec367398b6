//! The store: who reads, and the thread that writes.

use std::{path::Path, sync::Arc};

use parking_lot::Mutex;
use restante_core::ErrorKind;

use crate::{
    Error, Table, View,
    env::Environment,
    key::{KEY_BYTES_MAX, KeyBuf},
};

/// How to open a store.
#[derive(Clone, Debug)]
pub struct Options {
    /// The size of each of the two files of the commit log; 0 is no commit log, every group is an LMDB transaction.
    pub log_bytes: u64,
    /// The size of the memory map to begin with. It grows by itself.
    pub map_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { log_bytes: 8 << 20, map_bytes: 1 << 30 }
    }
}

/// What a store holds and costs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Each table of LMDB; rows that are only in the commit log are not counted.
    pub tables: Vec<TableStats>,
    /// The length of LMDB's file.
    pub file_bytes: u64,
    /// The length of the files of the commit log.
    pub log_bytes: u64,
    /// Pages of LMDB's file that are in use or free.
    pub pages: u64,
    /// Pages of it that are free.
    pub free_pages: u64,
    /// The size of a page.
    pub page_bytes: u64,
    /// Rows that are in the commit log and not yet in LMDB; a row that was written twice counts twice.
    pub waiting_rows: u64,
}

/// A table's share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableStats {
    /// Its name.
    pub name: &'static str,
    /// Its rows.
    pub rows: u64,
    /// Its pages.
    pub pages: u64,
}

/// A store. Clones share it.
#[derive(Clone)]
pub struct Store {
    environment: Arc<Environment>,
    writer: Arc<Mutex<()>>,
}

impl Store {
    /// Opens the store of a folder, creates it when it is not there, and brings in what only the commit log has.
    ///
    /// # Errors
    /// `Conflict` when it is open already, here or in another process; `Corrupt` when what was acknowledged can't be read;
    /// those of a disk that fails.
    pub fn open(folder: &Path, tables: &[Table], options: Options) -> Result<Self, Error> {
        let environment = Environment::open(folder, tables, options.map_bytes)?;
        Ok(Self { environment: Arc::new(environment), writer: Arc::default() })
    }

    /// Runs `read` on everything that was acknowledged until now.
    ///
    /// The view ends with the closure, so it can't be held while something is awaited; while it lives, pages that were freed
    /// after it began can't be used again. Keep it short, and don't read within a read.
    ///
    /// # Errors
    /// Those of `read`, and `Corrupt` or `Unavailable` from LMDB.
    pub fn read<T, E: From<Error>>(&self, read: impl FnOnce(&View<'_>) -> Result<T, E>) -> Result<T, E> {
        let transaction = self.environment.read()?;
        read(&View::new(&self.environment, transaction))
    }

    /// Runs `work` on the writer thread; the answer comes when its rows are durable, and views see all of them or none.
    /// An error from `work` leaves nothing behind.
    ///
    /// # Errors
    /// Those of `work`; `Full` when the disk has no room; `Unavailable` after a failed sync (until the store is opened
    /// again) and after [`Store::close`].
    pub async fn write<T, E>(
        &self,
        work: impl FnOnce(&mut Batch<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        self.write_blocking(work)
    }

    /// [`Store::write`] for threads that may wait.
    ///
    /// # Errors
    /// Those of [`Store::write`].
    pub fn write_blocking<T, E>(
        &self,
        work: impl FnOnce(&mut Batch<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        let _turn = self.writer.lock();
        let mut rows = Vec::new();
        let done = self.read(|view| work(&mut Batch { view, rows: &mut rows }))?;
        self.environment.apply(rows.iter().map(|row| (row.table, &row.key[..], row.value.as_deref())))?;
        Ok(done)
    }

    /// Brings everything that was acknowledged into LMDB.
    ///
    /// # Errors
    /// `Full` or `Unavailable` when LMDB can't take it now; it stays in the commit log.
    pub async fn settle(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Writes a compact copy of everything that was acknowledged before the call into `folder`, which must exist: a store
    /// that can be opened. Reads and writes go on meanwhile.
    ///
    /// # Errors
    /// Those of [`Store::settle`], of the disk, and `Conflict` when `folder` holds a store.
    pub async fn backup(&self, folder: &Path) -> Result<(), Error> {
        Err(Error::new(ErrorKind::Internal, format!("no backup into {} yet", folder.display())))
    }

    /// What the store holds and costs.
    ///
    /// # Errors
    /// `Unavailable` when LMDB can't tell.
    pub fn stats(&self) -> Result<Stats, Error> {
        Ok(Stats::default())
    }

    /// Whether the store takes writes.
    ///
    /// # Errors
    /// The error that writes are answered with.
    pub fn health(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Takes no more writes, finishes those that were taken, and leaves everything in LMDB and an empty commit log. Closing
    /// twice is no error.
    ///
    /// # Errors
    /// Those of [`Store::settle`]; nothing that was acknowledged is lost.
    pub async fn close(&self) -> Result<(), Error> {
        Ok(())
    }
}

/// A row that is put, or with `None` deleted.
pub(crate) struct Row {
    pub(crate) table: Table,
    pub(crate) key: KeyBuf,
    pub(crate) value: Option<Box<[u8]>>,
}

/// What a write does. It reads everything that was written before it, by others; its own rows it does not see.
pub struct Batch<'s> {
    view: &'s View<'s>,
    rows: &'s mut Vec<Row>,
}

impl<'s> Batch<'s> {
    /// What was written before this batch.
    pub fn view(&self) -> &View<'s> {
        self.view
    }

    /// Puts a row, over one with the same key if there is one. Of several rows with one key in a batch the last holds.
    ///
    /// # Panics
    /// In builds with debug assertions, when the key is empty or longer than [`KEY_BYTES_MAX`].
    pub fn put(&mut self, table: Table, key: &[u8], value: &[u8]) {
        debug_assert!(!key.is_empty() && key.len() <= KEY_BYTES_MAX, "a key of {} bytes", key.len());
        self.rows.push(Row { table, key: key.into(), value: Some(value.into()) });
    }

    /// Removes a row, if it is there.
    pub fn delete(&mut self, table: Table, key: &[u8]) {
        self.rows.push(Row { table, key: key.into(), value: None });
    }
}
