//! One LMDB environment: tables of ordered bytes, read through snapshots and written by one thread in groups.
//!
//! A [`Store`] has a fixed set of [`Table`]s. [`Store::read`] runs a closure on a [`View`]: everything that was acknowledged
//! before, and nothing later. [`Store::write`] passes a closure to the writer thread, which runs all queued ones in order on a
//! [`Batch`], makes their rows durable together and answers each.
//!
//! Durable means in the *commit log*: two pre-written files that are written in turn and reused, with one sequential write and
//! one sync for a group. Rows that are only there are also kept in memory, where views find them; when a log file is full its
//! rows are written into LMDB in one transaction. Without a commit log each group is a separate LMDB transaction.
//!
//! A *redo row* repeats a write to something else that need not be durable yet, so that one sync serves both: see [`Table::redo`].
//!
//! ```
//! # fn example(folder: &std::path::Path) -> Result<(), restante_lmdb::Error> {
//! use restante_lmdb::{Error, Options, Store, Table};
//!
//! const NAMES: Table = Table::new(1, "names");
//! let store = Store::open(folder, &[NAMES], Options::default())?;
//! store.write_blocking(|batch| {
//!     batch.put(NAMES, b"1", b"restante");
//!     Ok(())
//! })?;
//! let name = store.read(|view| Ok(view.get(NAMES, b"1")?.map(|name| name.to_vec())))?;
//! assert_eq!(name.as_deref(), Some(&b"restante"[..]));
//! # Ok(())
//! # }
//! ```

mod env;
mod error;
mod frame;
mod group;
pub mod key;
mod layer;
mod log;
mod metrics;
mod pages;
mod readers;
mod shared;
mod store;
mod view;
mod writer;

#[cfg(test)]
mod tests;

pub use metrics::Metrics;
pub use pages::check_pages;
pub use restante_core::Error;
pub use store::{Batch, Options, Stats, Store, SyncOthers, TableStats};
pub use view::{Direction, KeyValue, Range, View};

/// A table of a store: rows of a key and a value, in the bytewise order of their keys.
///
/// Keys have at most [`key::KEY_BYTES_MAX`] bytes and at least one; there are no integer keys (see [`key`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    number: u8,
    name: &'static str,
    has_redo_rows: bool,
}

impl Table {
    /// A table. Its number is written to the commit log, its name to LMDB: neither may change or be used twice in a store.
    pub const fn new(number: u8, name: &'static str) -> Self {
        Self { number, name, has_redo_rows: false }
    }

    /// A table of *redo rows*: each says how to repeat a write to something else, which was made before the row was put and is
    /// not durable yet. The rest of the batch may rely on that write.
    ///
    /// Once [`Options::sync_others`] has made those writes durable, the rows of a file of the commit log are dropped instead of
    /// being written into LMDB; reads don't find them from then on. If it failed, and after a crash, they are written into LMDB
    /// like all others: the next process that opens the store repeats the writes, and deletes the rows.
    pub const fn redo(number: u8, name: &'static str) -> Self {
        Self { number, name, has_redo_rows: true }
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        self.name
    }
}
