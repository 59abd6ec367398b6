//! A part of the table, for writers: one after the other.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use parking_lot::{Mutex, MutexGuard};
use restante_core::ErrorKind;

use super::{
    map::SharedMap,
    table::{Cells, NoRoom, RECORD_CELLS_MAX, Size, Taken, Writer},
};
use crate::{Error, found::RecordBytes};

/// The longest record that a shard keeps.
const RECORD_BYTES_MAX: usize = RECORD_CELLS_MAX * super::cell::CELL_BYTES;

/// A shard.
pub(super) struct Shard {
    number: usize,
    written: Mutex<Written>,
    map: Arc<SharedMap>,
    pub(super) sessions: AtomicU64,
    pub(super) users: AtomicU64,
    place_of: PlaceOf,
}

/// What is behind the writers' lock.
struct Written {
    cells: Arc<Cells>,
    taken: Taken,
}

/// The place of a record, by its user.
pub(super) type PlaceOf = Arc<dyn Fn(&[u8]) -> u32 + Send + Sync>;

/// What becomes of a record.
pub(super) enum Change {
    /// It stays as it is, or there is none.
    Keep,
    /// It becomes this, with so many sessions more or less.
    Put(RecordBytes, i64),
    /// It goes, with so many sessions.
    Remove(i64),
}

impl Shard {
    /// An empty shard, and its cells for those who read.
    pub(super) fn new(number: usize, map: Arc<SharedMap>, place_of: PlaceOf) -> Self {
        let (cells, taken) = Size::MIN.build();
        let cells = Arc::new(cells);
        map.put(number, &cells);
        let (sessions, users) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { number, written: Mutex::new(Written { cells, taken }), map, sessions, users, place_of }
    }

    fn lock(&self) -> Locked<'_> {
        Locked { written: self.written.lock(), shard: self }
    }

    /// The record that is looked for, while no writer is at work.
    pub(super) fn find_locked(&self, place: u32, is_wanted: &impl Fn(&[u8]) -> bool) -> Option<RecordBytes> {
        self.lock().find(place, is_wanted).map(|(_, record)| record)
    }

    /// Looks at the cells while no writer is at work.
    pub(super) fn with_cells<T>(&self, look: impl FnOnce(&Cells) -> T) -> T {
        look(&self.lock().written.cells)
    }

    /// Changes a record. What `change` answers beside is given back.
    pub(super) fn change<T>(
        &self,
        place: u32,
        is_wanted: &impl Fn(&[u8]) -> bool,
        change: impl FnOnce(Option<&RecordBytes>) -> Result<(Change, T), Error>,
    ) -> Result<T, Error> {
        let mut locked = self.lock();
        let found = locked.find(place, is_wanted);
        let (change, answer) = change(found.as_ref().map(|(_, record)| record))?;
        let at = found.map(|(at, _)| at);
        match change {
            Change::Keep => {}
            Change::Put(record, sessions) => {
                locked.put(place, at, &record)?;
                self.count(sessions, i64::from(at.is_none()));
                if sessions < 0 {
                    locked.shrink();
                }
            }
            Change::Remove(sessions) => {
                if let Some(at) = at {
                    locked.remove(place, at);
                    self.count(-sessions, -1);
                }
            }
        }
        Ok(answer)
    }

    fn count(&self, sessions: i64, users: i64) {
        self.sessions.fetch_add(sessions as u64, Ordering::Relaxed); // wraps back to what it should be
        self.users.fetch_add(users as u64, Ordering::Relaxed);
    }

    /// Removes everything, and answers how many sessions that were.
    pub(super) fn clear(&self) -> u64 {
        let mut locked = self.lock();
        let (cells, taken) = Size::MIN.build();
        locked.replace(cells, taken);
        self.users.store(0, Ordering::Relaxed);
        self.sessions.swap(0, Ordering::Relaxed)
    }
}

/// A shard while somebody writes.
struct Locked<'a> {
    written: MutexGuard<'a, Written>,
    shard: &'a Shard,
}

impl Locked<'_> {
    fn writer(&mut self) -> Writer<'_> {
        let Written { cells, taken } = &mut *self.written;
        Writer::new(cells, taken)
    }

    fn find(&mut self, place: u32, is_wanted: &impl Fn(&[u8]) -> bool) -> Option<(usize, RecordBytes)> {
        self.writer().find(place, is_wanted)
    }

    /// Puts a record in the place of the one that begins in this cell, or as a new one.
    fn put(&mut self, place: u32, at: Option<usize>, record: &RecordBytes) -> Result<(), Error> {
        if record.len() > RECORD_BYTES_MAX {
            return Err(Error::new(
                ErrorKind::Full,
                format!("the sessions of one user may take {RECORD_BYTES_MAX} bytes"),
            ));
        }
        let put = match at {
            Some(at) => self.writer().write(at, record),
            None => self.writer().insert(place, record),
        };
        match put {
            Ok(()) => Ok(()),
            Err(missing) => self.put_into_larger(place, at, record, missing),
        }
    }

    /// Builds a larger table beside the present one, which readers go on to use until it is there.
    fn put_into_larger(
        &mut self,
        place: u32,
        at: Option<usize>,
        record: &RecordBytes,
        missing: NoRoom,
    ) -> Result<(), Error> {
        let mut size = self.writer().larger(missing, record);
        // The new table may lack room in its turn, when many records want the same homes.
        while size.is_allowed() {
            match self.rebuild(size, at, Some((place, record))) {
                Ok(()) => return Ok(()),
                Err(missing) => size = size.roomier(missing),
            }
        }
        Err(Error::new(ErrorKind::Full, "the table of sessions has no room for more"))
    }

    /// Takes a new table into use: all records but the one that begins in a cell, and one more.
    fn rebuild(
        &mut self,
        size: Size,
        without: Option<usize>,
        with: Option<(u32, &RecordBytes)>,
    ) -> Result<(), NoRoom> {
        let (cells, mut taken) = size.build();
        let mut writer = Writer::new(&cells, &mut taken);
        let place_of = &self.shard.place_of;
        for record in self.writer().records_without(without) {
            writer.insert(place_of(&record), &record)?;
        }
        if let Some((place, record)) = with {
            writer.insert(place, record)?;
        }
        self.replace(cells, taken);
        Ok(())
    }

    fn replace(&mut self, cells: Cells, taken: Taken) {
        *self.written = Written { cells: Arc::new(cells), taken };
        self.shard.map.put(self.shard.number, &self.written.cells);
    }

    fn remove(&mut self, place: u32, at: usize) {
        self.writer().remove(place, at);
        self.shrink();
    }

    /// Gives memory back, if much of it is not needed any more.
    fn shrink(&mut self) {
        if let Some(size) = self.writer().smaller() {
            // Memory that can't be given back now is given back another time.
            let _ = self.rebuild(size, None, None);
        }
    }
}
