//! The cells of one shard, as readers see them, and what writers know beside them.
//!
//! Each record has a *home*, a cell that its place says, and lies in it or in one of the 15 behind it (hopscotch hashing): the
//! home's head says in which. So a look-up reads the home, which as a rule holds the record, and no cell in vain. When no
//! free cell is near enough, records are moved on towards one that is free. A record that is longer than a cell goes on in cells
//! of the *pool*, behind the homes.

use super::{
    cell::{CELL_BYTES, CELLS_MAX, Cell, HOOD, Head},
    sync::{TRIES, spin_loop},
};
use crate::found::{RecordBytes, user_in};

/// The fewest homes.
const HOMES_MIN: usize = HOOD;
/// A table of homes is full at so many hundredths: beyond, records have to be moved for each other too often.
const FULL_PERCENT: usize = 75;
/// The most cells of one record: room for a hundred sessions with as much info and as long a resource as they may have.
pub(crate) const RECORD_CELLS_MAX: usize = 1 << 15;

/// Bits of a place that say the home; those above say the shard.
pub(super) const HOME_BITS: u32 = 26;

/// Which record is looked for.
#[derive(Clone, Copy)]
pub(super) enum Wanted<'a> {
    /// That of a user.
    User(&'a str),
    /// One that the test takes; its place is known from elsewhere.
    Where(&'a dyn Fn(&[u8]) -> bool),
}

impl Wanted<'_> {
    #[inline]
    fn is(&self, record: &[u8]) -> bool {
        match self {
            Self::User(user) => user_in(record).and_then(|range| record.get(range)) == Some(user.as_bytes()),
            Self::Where(test) => test(record),
        }
    }
}

/// The writers were at it each time.
#[derive(Debug)]
pub(super) struct Torn;

/// The cells: first the homes, then the pool.
#[derive(Debug)]
pub(super) struct Cells {
    cells: Box<[Cell]>,
    homes: usize,
}

impl Cells {
    fn new(homes: usize, pool: usize) -> Self {
        Self { cells: (0..homes + pool).map(|_| Cell::default()).collect(), homes }
    }

    /// How many cells there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.cells.len()
    }

    /// The home of a place. It grows with the place, so that going through homes in order is going through places in order.
    #[inline]
    pub(super) fn home_of(&self, place: u32) -> usize {
        let low = u64::from(place) & ((1 << HOME_BITS) - 1);
        ((low * self.homes as u64) >> HOME_BITS) as usize
    }

    /// The first place whose home comes behind this one; `None` behind the last.
    pub(super) fn place_behind(&self, home: usize) -> Option<u32> {
        let next = home as u64 + 1;
        (next < self.homes as u64).then(|| (next << HOME_BITS).div_ceil(self.homes as u64) as u32)
    }

    #[inline]
    fn at(&self, home: usize, distance: usize) -> usize {
        let at = home + distance;
        if at < self.homes { at } else { at - self.homes }
    }

    /// How far a cell lies behind a home.
    fn distance(&self, home: usize, at: usize) -> usize {
        if at >= home { at - home } else { at + self.homes - home }
    }

    fn cell(&self, at: usize) -> Option<&Cell> {
        self.cells.get(at)
    }

    /// Copies the record that is looked for, without a lock; answers whether there is one. The answer was true at some moment
    /// since the call.
    #[inline]
    pub(super) fn read(
        &self,
        place: u32,
        wanted: Wanted<'_>,
        record: &mut RecordBytes,
    ) -> Result<bool, Torn> {
        let home = self.home_of(place);
        for _ in 0..TRIES {
            if let Ok(is_found) = self.read_once(home, wanted, record) {
                return Ok(is_found);
            }
            spin_loop();
        }
        Err(Torn)
    }

    #[inline]
    fn read_once(&self, home: usize, wanted: Wanted<'_>, record: &mut RecordBytes) -> Result<bool, Torn> {
        let (Some(home_cell), Some(neighbour)) = (self.cell(home), self.cell(self.at(home, 1))) else {
            return Ok(false);
        };
        // A record that is not at home is next door as a rule: both cells are on their way from memory at the same time.
        let (head, beside) = (home_cell.head(), neighbour.head());
        if head.is_busy() {
            return Err(Torn);
        }
        let mut hood = head.hood();
        while hood != 0 {
            let distance = hood.trailing_zeros() as usize;
            hood &= hood - 1;
            match distance {
                0 => self.copy_record(home_cell, head, record)?,
                1 => self.copy_record(neighbour, beside, record)?,
                _ => self.record_at(self.at(home, distance), record)?,
            }
            if wanted.is(record) {
                return Ok(true);
            }
        }
        if home_cell.is_still(head) { Ok(false) } else { Err(Torn) }
    }

    /// All records of a home, of one moment.
    pub(super) fn records_of(&self, home: usize) -> Result<Vec<RecordBytes>, Torn> {
        let Some(home_cell) = self.cell(home) else { return Ok(Vec::new()) };
        let head = home_cell.head();
        let mut records = Vec::new();
        for distance in distances(head) {
            let mut record = RecordBytes::new();
            self.record_at(self.at(home, distance), &mut record)?;
            records.push(record);
        }
        if !head.is_busy() && home_cell.is_still(head) { Ok(records) } else { Err(Torn) }
    }

    /// Copies the record that begins in a cell.
    fn record_at(&self, at: usize, record: &mut RecordBytes) -> Result<(), Torn> {
        let cell = self.cell(at).ok_or(Torn)?;
        self.copy_record(cell, cell.head(), record)
    }

    #[inline]
    fn copy_record(&self, cell: &Cell, head: Head, record: &mut RecordBytes) -> Result<(), Torn> {
        if head.is_busy() {
            return Err(Torn);
        }
        *record = RecordBytes::from_buf_and_len(cell.padded_bytes(), CELL_BYTES);
        if head.next().is_some() {
            self.read_chain(head, record);
        }
        if cell.is_still(head) { Ok(()) } else { Err(Torn) }
    }

    fn read_chain(&self, head: Head, record: &mut RecordBytes) {
        let mut next = head.next();
        for _ in 0..RECORD_CELLS_MAX {
            let Some(more) = next.and_then(|next| self.cell(next)) else { return };
            record.extend_from_slice(&more.bytes());
            next = more.head().next();
        }
    }
}

fn distances(head: Head) -> impl Iterator<Item = usize> {
    let hood = head.hood();
    (0..HOOD).filter(move |distance| hood >> distance & 1 == 1)
}

/// What only writers know of the cells. Whoever holds it is the only writer.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// Whether each home's cell holds a record.
    is_taken: Vec<bool>,
    /// How many do.
    count: usize,
    /// Cells of the pool that are free.
    free: Vec<usize>,
    /// Cells of the pool.
    pool: usize,
}

/// There is no room for a record: a larger table is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoRoom {
    Homes,
    Pool,
}

/// A table being written: the cells and what writers know of them.
pub(super) struct Writer<'a> {
    cells: &'a Cells,
    taken: &'a mut Taken,
}

impl<'a> Writer<'a> {
    pub(super) fn new(cells: &'a Cells, taken: &'a mut Taken) -> Self {
        Self { cells, taken }
    }

    /// The record that is looked for, and the cell in which it begins.
    pub(super) fn find(&self, place: u32, wanted: Wanted<'_>) -> Option<(usize, RecordBytes)> {
        let home = self.cells.home_of(place);
        for distance in distances(self.cells.cell(home)?.head()) {
            let at = self.cells.at(home, distance);
            let mut record = RecordBytes::new();
            self.cells.record_at(at, &mut record).ok()?; // nobody else writes
            if wanted.is(&record) {
                return Some((at, record));
            }
        }
        None
    }

    /// Puts a record that is not there yet.
    pub(super) fn insert(&mut self, place: u32, record: &[u8]) -> Result<(), NoRoom> {
        if (self.taken.count + 1) * 100 > self.cells.homes * FULL_PERCENT {
            return Err(NoRoom::Homes);
        }
        if cells_beside(record) > self.taken.free.len() {
            return Err(NoRoom::Pool);
        }
        let home = self.cells.home_of(place);
        let at = self.free_cell_near(home)?;
        self.taken.take(at);
        let bit = 1 << self.cells.distance(home, at);
        let with_bit = |head: Head| head.with_hood(head.hood() | bit);
        if at == home {
            return self.write_with(at, record, with_bit);
        }
        let cells = self.cells;
        let Some(home) = cells.cell(home) else { return Ok(()) };
        // The home is busy until both are written: a reader whose home says so from an earlier record must not find this one
        // before others can.
        let mut written = Ok(());
        home.write(with_bit, |_| written = self.write_with(at, record, |head| head));
        written
    }

    /// A free cell in the hood of a home, made by moving others if there is none.
    fn free_cell_near(&mut self, home: usize) -> Result<usize, NoRoom> {
        let homes = self.cells.homes;
        let free =
            (0..homes).map(|distance| self.cells.at(home, distance)).find(|at| !self.taken.is_taken(*at));
        let mut free = free.ok_or(NoRoom::Homes)?;
        while self.cells.distance(home, free) >= HOOD {
            free = self.move_towards(free).ok_or(NoRoom::Homes)?;
        }
        Ok(free)
    }

    /// Moves a record from before a free cell into it, and answers which cell is free now: the farthest that can be.
    fn move_towards(&mut self, free: usize) -> Option<usize> {
        for before in (1..HOOD).rev() {
            let home = self.cells.at(free, self.cells.homes - before);
            let head = self.cells.cell(home)?.head();
            if let Some(distance) = distances(head).next().filter(|distance| *distance < before) {
                let from = self.cells.at(home, distance);
                self.move_record(home, from, free)?;
                return Some(from);
            }
        }
        None
    }

    /// First the copy, then the home's word for it, then the end of the old one: a reader finds one of them.
    fn move_record(&mut self, home: usize, from: usize, to: usize) -> Option<()> {
        let source = self.cells.cell(from)?;
        let (bytes, next) = (source.bytes(), source.head().next());
        self.cells.cell(to)?.write(|head| head.with_next(next), |cell| cell.fill(&bytes));
        let (old, new) = (1 << self.cells.distance(home, from), 1 << self.cells.distance(home, to));
        self.change_hood(home, |hood| hood & !old | new);
        source.write(|head| head.with_next(None), |cell| cell.fill(&[]));
        self.taken.take(to);
        self.taken.give_back(from);
        Some(())
    }

    fn change_hood(&self, home: usize, change: impl FnOnce(u16) -> u16) {
        if let Some(cell) = self.cells.cell(home) {
            cell.write(|head| head.with_hood(change(head.hood())), |_| {});
        }
    }

    /// Writes a record in the place of the one that begins in this cell.
    pub(super) fn write(&mut self, at: usize, record: &[u8]) -> Result<(), NoRoom> {
        self.write_with(at, record, |head| head)
    }

    /// The same, with a change of the cell's own head.
    fn write_with(
        &mut self,
        at: usize,
        record: &[u8],
        change: impl FnOnce(Head) -> Head,
    ) -> Result<(), NoRoom> {
        let Some(cell) = self.cells.cell(at) else { return Ok(()) };
        let mut chain = self.chain(cell.head());
        let needed = cells_beside(record);
        if needed > chain.len() + self.taken.free.len() {
            return Err(NoRoom::Pool);
        }
        while chain.len() < needed {
            chain.extend(self.taken.free.pop());
        }
        let surplus = chain.split_off(needed);
        let mut parts = record.chunks(CELL_BYTES);
        let first = parts.next().unwrap_or_default();
        cell.write(
            |head| change(head).with_next(chain.first().copied()),
            |cell| {
                cell.fill(first);
                for (place, (at, part)) in chain.iter().zip(parts).enumerate() {
                    let Some(more) = self.cells.cell(*at) else { continue };
                    more.fill(part);
                    more.link(chain.get(place + 1).copied());
                }
            },
        );
        self.taken.free.extend(surplus);
        Ok(())
    }

    /// Removes the record that begins in this cell.
    pub(super) fn remove(&mut self, place: u32, at: usize) {
        let Some(cell) = self.cells.cell(at) else { return };
        let home = self.cells.home_of(place);
        let bit = 1 << self.cells.distance(home, at);
        self.change_hood(home, |hood| hood & !bit);
        let chain = self.chain(cell.head());
        cell.write(|head| head.with_next(None), |cell| cell.fill(&[]));
        self.taken.free.extend(chain);
        self.taken.give_back(at);
    }

    /// The cells of the pool in which a record goes on.
    fn chain(&self, head: Head) -> Vec<usize> {
        let mut chain = Vec::new();
        let mut next = head.next();
        while let Some(at) = next {
            chain.push(at);
            next = self.cells.cell(at).and_then(|cell| cell.head().next());
        }
        chain
    }

    /// All records but the one that begins in a cell.
    pub(super) fn records_without(&self, without: Option<usize>) -> impl Iterator<Item = RecordBytes> {
        let homes = 0..self.cells.homes;
        let begins = homes.filter(move |at| self.taken.is_taken(*at) && Some(*at) != without);
        begins.filter_map(|at| {
            let mut record = RecordBytes::new();
            self.cells.record_at(at, &mut record).ok().map(|()| record)
        })
    }

    /// How large a table should be that has room for a record for which there was none.
    pub(super) fn larger(&self, missing: NoRoom, record: &[u8]) -> Size {
        let size = Size { homes: self.cells.homes, pool: self.taken.pool };
        let spare = CELLS_MAX.saturating_sub(size.homes + size.pool);
        let grown = |now: usize, needed: usize| now + (now / 2).min(spare).max(needed);
        match missing {
            NoRoom::Homes => Size { homes: grown(size.homes, 1), ..size },
            NoRoom::Pool => Size { pool: grown(size.pool, cells_beside(record).max(4)), ..size },
        }
    }

    /// How small the table should be, if it is much too large.
    pub(super) fn smaller(&self) -> Option<Size> {
        let used = self.taken.pool - self.taken.free.len();
        let is_wasteful = |size: usize, used: usize| size > 4 * HOMES_MIN && used * 4 < size;
        if !is_wasteful(self.cells.homes, self.taken.count) && !is_wasteful(self.taken.pool, used) {
            return None;
        }
        let homes = (self.taken.count * 2).max(HOMES_MIN);
        Some(Size { homes, pool: used * 2 })
    }
}

/// How many cells of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    homes: usize,
    pool: usize,
}

impl Size {
    pub(super) const MIN: Self = Self { homes: HOMES_MIN, pool: 0 };

    /// So many homes, and so many cells in the pool.
    #[cfg(test)]
    pub(super) fn of(homes: usize, pool: usize) -> Self {
        Self { homes, pool }
    }

    /// Whether a table may have so many.
    pub(super) fn is_allowed(self) -> bool {
        self.homes + self.pool <= CELLS_MAX
    }

    /// With more of what was missing all the same.
    pub(super) fn roomier(self, missing: NoRoom) -> Self {
        match missing {
            NoRoom::Homes => Self { homes: self.homes + self.homes / 4 + 1, ..self },
            NoRoom::Pool => Self { pool: self.pool + self.pool / 4 + 1, ..self },
        }
    }

    /// An empty table.
    pub(super) fn build(self) -> (Cells, Taken) {
        let taken = Taken {
            is_taken: vec![false; self.homes],
            count: 0,
            free: (self.homes..self.homes + self.pool).rev().collect(),
            pool: self.pool,
        };
        (Cells::new(self.homes, self.pool), taken)
    }
}

impl Taken {
    fn is_taken(&self, at: usize) -> bool {
        self.is_taken.get(at).copied().unwrap_or(true)
    }

    fn take(&mut self, at: usize) {
        if let Some(is_taken) = self.is_taken.get_mut(at) {
            *is_taken = true;
            self.count += 1;
        }
    }

    fn give_back(&mut self, at: usize) {
        if let Some(is_taken) = self.is_taken.get_mut(at) {
            *is_taken = false;
            self.count -= 1;
        }
    }
}

/// Cells that a record needs beside the one in which it begins.
fn cells_beside(record: &[u8]) -> usize {
    record.len().div_ceil(CELL_BYTES).saturating_sub(1)
}
