//! Rows that are in the commit log and not yet in LMDB, in memory and in order.
//!
//! A layer is a skip list of all versions of its rows. One thread inserts, any number of threads read, and none waits. Rows
//! are only removed with the whole layer.

use std::{
    cmp::Reverse,
    ops::Bound::{self, Excluded, Included, Unbounded},
};

use crossbeam_epoch::Guard;
use crossbeam_skiplist::{SkipList, base};

use crate::{
    frame::{self, FrameRow},
    key::KeyBuf,
};

/// The number of a batch. Batches are numbered from 1 in the order in which they were written.
pub(crate) type Sequence = u64;

/// Everything that was written into one file of the commit log.
pub(crate) struct Layer {
    versions: SkipList<Version, Option<Box<[u8]>>>,
    /// Whether it was read from the commit log on opening.
    pub(crate) is_of_commit_log: bool,
}

/// One version of a row: the newest version of a key comes first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Version {
    /// The number of the table, or one more than the last.
    table: u16,
    key: KeyBuf,
    sequence: Reverse<Sequence>,
}

impl Version {
    fn new(table: u8, key: &[u8], sequence: Sequence) -> Self {
        Self { table: table.into(), key: KeyBuf::from_slice(key), sequence: Reverse(sequence) }
    }

    /// Sorts before every version of a key.
    fn before_all(table: u8, key: &[u8]) -> Self {
        Self::new(table, key, Sequence::MAX)
    }

    /// Sorts after every version of a key.
    fn after_all(table: u8, key: &[u8]) -> Self {
        Self::new(table, key, 0)
    }
}

type Entry<'l> = base::Entry<'l, 'l, Version, Option<Box<[u8]>>>;

/// A row of a layer.
#[derive(Clone)]
pub(crate) struct LayerRow<'l> {
    pub(crate) table: u8,
    pub(crate) key: &'l [u8],
    /// `None` when the row was deleted.
    pub(crate) value: Option<&'l [u8]>,
    sequence: Sequence,
    entry: Entry<'l>,
}

impl<'l> LayerRow<'l> {
    fn of(entry: Entry<'l>) -> Self {
        let version = entry.key();
        Self {
            table: version.table as u8,
            key: &version.key,
            value: entry.value().as_deref(),
            sequence: version.sequence.0,
            entry,
        }
    }

    fn has_key(&self, table: u8, key: &[u8]) -> bool {
        self.table == table && self.key == key
    }
}

impl Layer {
    /// An empty layer.
    pub(crate) fn new() -> Self {
        let versions = SkipList::new(crossbeam_epoch::default_collector().clone());
        Self { versions, is_of_commit_log: false }
    }

    /// An empty layer for what is read from the commit log on opening.
    pub(crate) fn of_commit_log() -> Self {
        Self { is_of_commit_log: true, ..Self::new() }
    }

    /// The number of row versions.
    pub(crate) fn rows(&self) -> usize {
        self.versions.len()
    }

    /// Adds the rows of a batch, encoded as in its frame. The last of several rows with one key wins.
    pub(crate) fn add(&self, sequence: Sequence, mut rows: &[u8]) {
        let guard = &crossbeam_epoch::pin();
        while let Some(Some(FrameRow { table, key, value })) = frame::take_row(&mut rows) {
            let row = self.versions.insert(Version::new(table, key, sequence), value.map(Box::from), guard);
            row.release(guard);
        }
    }

    /// The newest version of a key up to a batch.
    pub(crate) fn get<'l>(
        &'l self,
        table: u8,
        key: &[u8],
        until: Sequence,
        guard: &'l Guard,
    ) -> Option<LayerRow<'l>> {
        let row = self.first_from(&Version::new(table, key, until), guard)?;
        row.has_key(table, key).then_some(row)
    }

    /// The first key at or after a bound, in its newest version up to a batch.
    pub(crate) fn at_or_after<'l>(
        &'l self,
        table: u8,
        from: Bound<&[u8]>,
        until: Sequence,
        guard: &'l Guard,
    ) -> Option<LayerRow<'l>> {
        let from = match from {
            Included(key) => Version::before_all(table, key),
            Excluded(key) => Version::after_all(table, key),
            Unbounded => Version::before_all(table, &[]),
        };
        self.visible_from(self.first_from(&from, guard)?, table, until, guard)
    }

    /// The key after that of a row, in its newest version up to a batch.
    pub(crate) fn after<'l>(
        &'l self,
        row: &LayerRow<'l>,
        until: Sequence,
        guard: &'l Guard,
    ) -> Option<LayerRow<'l>> {
        let mut next = LayerRow::of(row.entry.next()?);
        if next.has_key(row.table, row.key) {
            next = self.first_from(&Version::after_all(row.table, row.key), guard)?;
        }
        self.visible_from(next, row.table, until, guard)
    }

    /// The last key at or before a bound, in its newest version up to a batch.
    pub(crate) fn at_or_before<'l>(
        &'l self,
        table: u8,
        to: Bound<&[u8]>,
        until: Sequence,
        guard: &'l Guard,
    ) -> Option<LayerRow<'l>> {
        let mut end = match to {
            Included(key) => Version::after_all(table, key),
            Excluded(key) => Version::before_all(table, key),
            Unbounded => Version { table: u16::from(table) + 1, ..Version::before_all(table, &[]) },
        };
        loop {
            let oldest = LayerRow::of(self.versions.upper_bound(Excluded(&end), guard)?);
            if oldest.table != table {
                return None;
            }
            if oldest.sequence <= until {
                return self.first_from(&Version::new(table, oldest.key, until), guard);
            }
            end = Version::before_all(table, oldest.key);
        }
    }

    /// The newest version of each row, in order.
    pub(crate) fn newest<'l>(&'l self, guard: &'l Guard) -> impl Iterator<Item = LayerRow<'l>> {
        let mut last: Option<LayerRow<'l>> = None;
        self.versions.iter(guard).map(LayerRow::of).filter(move |row| {
            let is_older = last.as_ref().is_some_and(|last| last.has_key(row.table, row.key));
            if !is_older {
                last = Some(row.clone());
            }
            !is_older
        })
    }

    fn first_from<'l>(&'l self, version: &Version, guard: &'l Guard) -> Option<LayerRow<'l>> {
        self.versions.lower_bound(Included(version), guard).map(LayerRow::of)
    }

    /// The first version up to a batch from that of a row on, which is the newest one of its key or is itself up to it.
    fn visible_from<'l>(
        &'l self,
        mut row: LayerRow<'l>,
        table: u8,
        until: Sequence,
        guard: &'l Guard,
    ) -> Option<LayerRow<'l>> {
        while row.table == table {
            if row.sequence <= until {
                return Some(row);
            }
            row = self.first_from(&Version::new(table, row.key, until), guard)?;
        }
        None
    }
}
