//! One LMDB environment: tables of ordered bytes, read by snapshots and written by one thread in groups.
//!
//! A [`Store`] holds a fixed set of [`Table`]s. [`Store::read`] runs a closure on a [`View`]: everything that was
//! acknowledged before, and nothing that comes later. [`Store::write`] hands a closure to the writer thread, which runs all
//! that wait one after the other on a [`Batch`], makes their rows durable together and answers each.
//!
//! Durable means in the *commit log*: two pre-written files that are written in turn and used again, one sequential write
//! and one sync for a group. Rows that are only there are kept in memory too, where views find them; when a log file is
//! full its rows go into LMDB in one transaction. Without a commit log each group is an LMDB transaction of its own.
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
pub use store::{Batch, Options, Stats, Store, TableStats};
pub use view::{Direction, KeyValue, Range, View};

/// A table of a store: rows of a key and a value, in the bytewise order of their keys.
///
/// Keys have at most [`key::KEY_BYTES_MAX`] bytes and at least one; there are no integer keys (see [`key`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    number: u8,
    name: &'static str,
}

impl Table {
    /// A table. Its number stands in the commit log, its name in LMDB: neither may change or be used twice in a store.
    pub const fn new(number: u8, name: &'static str) -> Self {
        Self { number, name }
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        self.name
    }
}
