//! A shard of the table, for writers, which exclude each other.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use parking_lot::{Mutex, MutexGuard};

use super::{
    map::SharedMap,
    table::{Cells, RECORD_CELLS_MAX, Size, TableFull, Writer, WriterState},
};
use crate::{Error, found::RecordBytes};

/// The longest record of a shard.
const RECORD_BYTES_MAX: usize = RECORD_CELLS_MAX * super::cell::CELL_BYTES;

/// A shard.
pub(super) struct Shard {
    number: usize,
    written: Mutex<Written>,
    map: Arc<SharedMap>,
    pub(super) sessions: AtomicU64,
    pub(super) users: AtomicU64,
    record_hash: RecordHash,
}

/// The state under the writers' lock.
struct Written {
    cells: Arc<Cells>,
    state: WriterState,
}

/// The user hash of a record.
pub(super) type RecordHash = Arc<dyn Fn(&[u8]) -> u32 + Send + Sync>;

/// A change of a record.
pub(super) enum Change {
    /// It is not changed.
    Keep,
    /// It is replaced or created; the number is the difference in sessions.
    Put(RecordBytes, i64),
    /// It is removed, with this number of sessions.
    Remove(i64),
}

impl Shard {
    /// An empty shard, whose cells are published in `map`.
    pub(super) fn new(number: usize, map: Arc<SharedMap>, record_hash: RecordHash) -> Self {
        let (cells, state) = Size::MIN.build();
        let cells = Arc::new(cells);
        map.put(number, &cells);
        let (sessions, users) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { number, written: Mutex::new(Written { cells, state }), map, sessions, users, record_hash }
    }

    fn lock(&self) -> Locked<'_> {
        Locked { written: self.written.lock(), shard: self }
    }

    /// The record that matches, read under the writers' lock.
    pub(super) fn find_locked(
        &self,
        user_hash: u32,
        matches: &impl Fn(&[u8]) -> bool,
    ) -> Option<RecordBytes> {
        self.lock().find(user_hash, matches).map(|(_, record)| record)
    }

    /// Reads the cells under the writers' lock.
    pub(super) fn with_cells<T>(&self, look: impl FnOnce(&Cells) -> T) -> T {
        look(&self.lock().written.cells)
    }

    /// Changes a record, and returns the second value of `change`.
    pub(super) fn change<T>(
        &self,
        user_hash: u32,
        matches: &impl Fn(&[u8]) -> bool,
        change: impl FnOnce(Option<&RecordBytes>) -> Result<(Change, T), Error>,
    ) -> Result<T, Error> {
        let mut locked = self.lock();
        let found = locked.find(user_hash, matches);
        let (change, answer) = change(found.as_ref().map(|(_, record)| record))?;
        let at = found.map(|(at, _)| at);
        match change {
            Change::Keep => {}
            Change::Put(record, sessions) => {
                locked.put(user_hash, at, &record)?;
                self.count(sessions, i64::from(at.is_none()));
                if sessions < 0 {
                    locked.shrink();
                }
            }
            Change::Remove(sessions) => {
                if let Some(at) = at {
                    locked.remove(user_hash, at);
                    self.count(-sessions, -1);
                }
            }
        }
        Ok(answer)
    }

    fn count(&self, sessions: i64, users: i64) {
        self.sessions.fetch_add(sessions as u64, Ordering::Relaxed); // a negative number wraps to the right sum
        self.users.fetch_add(users as u64, Ordering::Relaxed);
    }

    /// Removes everything, and returns how many sessions that were.
    pub(super) fn clear(&self) -> u64 {
        let mut locked = self.lock();
        let (cells, state) = Size::MIN.build();
        locked.replace(cells, state);
        self.users.store(0, Ordering::Relaxed);
        self.sessions.swap(0, Ordering::Relaxed)
    }
}

/// A shard under the writers' lock.
struct Locked<'a> {
    written: MutexGuard<'a, Written>,
    shard: &'a Shard,
}

impl Locked<'_> {
    fn writer(&mut self) -> Writer<'_> {
        let Written { cells, state } = &mut *self.written;
        Writer::new(cells, state)
    }

    fn find(&mut self, user_hash: u32, matches: &impl Fn(&[u8]) -> bool) -> Option<(usize, RecordBytes)> {
        self.writer().find(user_hash, matches)
    }

    /// Replaces the record that begins in a cell, or inserts a new one.
    fn put(&mut self, user_hash: u32, at: Option<usize>, record: &RecordBytes) -> Result<(), Error> {
        if record.len() > RECORD_BYTES_MAX {
            return Err(Error::full(format!("the sessions of one user may take {RECORD_BYTES_MAX} bytes")));
        }
        let put = match at {
            Some(at) => self.writer().write(at, record),
            None => self.writer().insert(user_hash, record),
        };
        match put {
            Ok(()) => Ok(()),
            Err(missing) => self.grow_and_put(user_hash, at, record, missing),
        }
    }

    /// Copies everything and the record into a larger table, while readers use the present one.
    fn grow_and_put(
        &mut self,
        user_hash: u32,
        at: Option<usize>,
        record: &RecordBytes,
        missing: TableFull,
    ) -> Result<(), Error> {
        let mut size = self.writer().larger(missing, record);
        // The new table may be too small again, when many records have the same buckets.
        while size.is_allowed() {
            match self.rebuild(size, at, Some((user_hash, record))) {
                Ok(()) => return Ok(()),
                Err(missing) => size = size.enlarged(missing),
            }
        }
        Err(Error::full("the table of sessions is full"))
    }

    /// Replaces the table by a new one with all records except the one that begins in a cell, and one more.
    fn rebuild(
        &mut self,
        size: Size,
        without: Option<usize>,
        with: Option<(u32, &RecordBytes)>,
    ) -> Result<(), TableFull> {
        let (cells, mut state) = size.build();
        let mut writer = Writer::new(&cells, &mut state);
        let record_hash = &self.shard.record_hash;
        for record in self.writer().records_without(without) {
            writer.insert(record_hash(&record), &record)?;
        }
        if let Some((user_hash, record)) = with {
            writer.insert(user_hash, record)?;
        }
        self.replace(cells, state);
        Ok(())
    }

    fn replace(&mut self, cells: Cells, state: WriterState) {
        *self.written = Written { cells: Arc::new(cells), state };
        self.shard.map.put(self.shard.number, &self.written.cells);
    }

    fn remove(&mut self, user_hash: u32, at: usize) {
        self.writer().remove(user_hash, at);
        self.shrink();
    }

    /// Frees memory if much of it is unused.
    fn shrink(&mut self) {
        if let Some(size) = self.writer().smaller() {
            // If the records do not fit into the smaller table, a later call tries again.
            let _ = self.rebuild(size, None, None);
        }
    }
}
