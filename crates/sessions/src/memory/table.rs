//! The cells of one shard, as readers see them, and what writers know beside them.
//!
//! Each record has a *home*, two cells that its place says, and lies in one of them or in one of the ten behind them (hopscotch
//! hashing): the head of the home's first cell says in which. As a rule it is one of the home's own, and its head has the
//! record's tag. When no free cell is near enough, records are moved on towards one that is free. A record that is longer
//! than a cell goes on in cells of the *pool*, behind the homes.

use std::iter;

use super::{
    cell::{CELL_BYTES, CELLS_MAX, Cell, HOME_CELLS, HOOD, Head, Tag},
    sync::{TRIES, spin_loop},
};
use crate::found::RecordBytes;

/// The fewest homes.
const HOMES_MIN: usize = HOOD;
/// A table of homes is full at so many hundredths: beyond, too many records are not at home.
const FULL_PERCENT: usize = 66;
/// The most cells of one record: room for a hundred sessions with as much info and as long a resource as they may have.
pub(crate) const RECORD_CELLS_MAX: usize = 1 << 15;

/// Bits of a place that say the home; those above say the shard.
pub(super) const HOME_BITS: u32 = 26;

/// The writers were at it each time.
#[derive(Debug)]
pub(super) struct Torn;

/// The cells: first the homes, then the pool.
#[derive(Debug)]
pub(super) struct Cells {
    cells: Box<[Cell]>,
    /// How many of them belong to homes.
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

    /// The first cell of the home of a place. It grows with the place, so that going through homes in order is going through places in order.
    #[inline]
    pub(super) fn home_of(&self, place: u32) -> usize {
        let low = u64::from(place) & ((1 << HOME_BITS) - 1);
        let homes = (self.homes / HOME_CELLS) as u64;
        ((low * homes) >> HOME_BITS) as usize * HOME_CELLS
    }

    /// The first place whose home comes behind this one; `None` behind the last.
    pub(super) fn place_behind(&self, home: usize) -> Option<u32> {
        let (next, homes) = ((home / HOME_CELLS) as u64 + 1, (self.homes / HOME_CELLS) as u64);
        (next < homes).then(|| (next << HOME_BITS).div_ceil(homes) as u32)
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

    /// Copies the record that is looked for, if it is where most are: whole, in a cell of its home. Answers false also when it
    /// can't tell, which [`Cells::read`] can.
    #[inline]
    pub(super) fn read_at_home(
        &self,
        place: u32,
        is_wanted: &impl Fn(&[u8]) -> bool,
        bytes: &mut [u8; CELL_BYTES],
    ) -> bool {
        let cells = self.cells.as_chunks::<HOME_CELLS>().0.get(self.home_of(place) / HOME_CELLS);
        let Some(cells) = cells else { return false };
        // All of them are asked of the memory at the same time. Which one holds the record is no branch: the processor would guess
        // it, and what comes after a wrong guess, as the next look-up, is not begun before the memory has answered.
        let tag = Some(Tag::of(place));
        let mut likely = 0_u32;
        for (at, cell) in cells.iter().enumerate() {
            likely |= u32::from(cell.head().tag() == tag) << at;
        }
        let Some(cell) = cells.get(likely.trailing_zeros() as usize) else { return false };
        let head = cell.head();
        *bytes = cell.bytes();
        let is_whole = !head.is_busy() && head.next().is_none() && cell.is_still(head);
        is_whole && is_wanted(bytes)
    }

    /// Copies the record that is looked for, if there is one, without a lock. The answer was true at some moment since the call.
    pub(super) fn read(
        &self,
        place: u32,
        is_wanted: &impl Fn(&[u8]) -> bool,
    ) -> Result<Option<RecordBytes>, Torn> {
        for _ in 0..TRIES {
            if let Ok(record) = self.read_once(place, is_wanted) {
                return Ok(record);
            }
            spin_loop();
        }
        Err(Torn)
    }

    fn read_once(&self, place: u32, is_wanted: &impl Fn(&[u8]) -> bool) -> Result<Option<RecordBytes>, Torn> {
        let home = self.home_of(place);
        let Some(home_cell) = self.cell(home) else { return Ok(None) };
        let head = home_cell.head();
        if head.is_busy() {
            return Err(Torn);
        }
        for at in self.likely(place, home, head) {
            let record = self.record_at(at)?;
            if is_wanted(&record) {
                return Ok(Some(record));
            }
        }
        if home_cell.is_still(head) { Ok(None) } else { Err(Torn) }
    }

    /// The cells in which a record of this place may begin, by the head of its home and by their tags.
    fn likely(&self, place: u32, home: usize, head: Head) -> impl Iterator<Item = usize> {
        let tag = Some(Tag::of(place));
        let has_tag = move |at: &usize| self.cell(*at).is_some_and(|cell| cell.head().tag() == tag);
        distances(head).map(move |distance| self.at(home, distance)).filter(has_tag)
    }

    /// All records of a home, of one moment.
    pub(super) fn records_of(&self, home: usize) -> Result<Vec<RecordBytes>, Torn> {
        let Some(home_cell) = self.cell(home) else { return Ok(Vec::new()) };
        let head = home_cell.head();
        let mut records = Vec::new();
        for distance in distances(head) {
            records.push(self.record_at(self.at(home, distance))?);
        }
        if !head.is_busy() && home_cell.is_still(head) { Ok(records) } else { Err(Torn) }
    }

    /// Copies the record that begins in a cell. None may begin there any more, or none yet.
    fn record_at(&self, at: usize) -> Result<RecordBytes, Torn> {
        let cell = self.cell(at).ok_or(Torn)?;
        let head = cell.head();
        if head.is_busy() || head.tag().is_none() {
            return Err(Torn);
        }
        let mut record = RecordBytes::from_slice(&cell.bytes());
        let mut next = head.next();
        for _ in 0..RECORD_CELLS_MAX {
            let Some(more) = next.and_then(|next| self.cell(next)) else { break };
            record.extend_from_slice(&more.bytes());
            next = more.head().next();
        }
        if cell.is_still(head) { Ok(record) } else { Err(Torn) }
    }
}

/// How far the records of a home lie behind it.
fn distances(head: Head) -> impl Iterator<Item = usize> {
    let mut hood = head.hood();
    iter::from_fn(move || {
        let distance = hood.trailing_zeros() as usize;
        hood &= hood.wrapping_sub(1);
        (distance < HOOD).then_some(distance)
    })
}

/// What only writers know of the cells. Whoever holds it is the only writer.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// Records.
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
    pub(super) fn find(
        &self,
        place: u32,
        is_wanted: &impl Fn(&[u8]) -> bool,
    ) -> Option<(usize, RecordBytes)> {
        let home = self.cells.home_of(place);
        for at in self.cells.likely(place, home, self.cells.cell(home)?.head()) {
            let record = self.cells.record_at(at).ok()?; // nobody else writes
            if is_wanted(&record) {
                return Some((at, record));
            }
        }
        None
    }

    /// Puts a record that is not there yet: first its home's word for it, then the record. So it is there for all readers at the
    /// same moment, as it is gone for all at the same when it is removed: also for those who know an earlier word of the home.
    pub(super) fn insert(&mut self, place: u32, record: &[u8]) -> Result<(), NoRoom> {
        if (self.taken.count + 1) * 100 > self.cells.homes * FULL_PERCENT {
            return Err(NoRoom::Homes);
        }
        if cells_beside(record) > self.taken.free.len() {
            return Err(NoRoom::Pool);
        }
        let home = self.cells.home_of(place);
        let at = self.cell_for(home)?;
        self.taken.count += 1;
        let tag = Some(Tag::of(place));
        let bit = 1 << self.cells.distance(home, at);
        self.change_hood(home, |hood| hood | bit);
        self.write_with(at, record, |head| head.with_tag(tag))
    }

    /// A free cell for a record of a home: if possible of the home itself, which others have to leave for it.
    fn cell_for(&mut self, home: usize) -> Result<usize, NoRoom> {
        for at in home..home + HOME_CELLS {
            if self.is_free(at) {
                return Ok(at);
            }
        }
        for at in home..home + HOME_CELLS {
            if self.move_stranger(at).is_some() {
                return Ok(at);
            }
        }
        self.free_cell_near(home)
    }

    fn is_free(&self, at: usize) -> bool {
        self.cells.cell(at).is_some_and(|cell| cell.head().tag().is_none())
    }

    /// The homes whose hoods have a cell in them, the farthest first.
    fn homes_around(&self, at: usize) -> impl Iterator<Item = usize> + use<'a> {
        let cells = self.cells;
        let own = at - at % HOME_CELLS;
        (0..HOOD).step_by(HOME_CELLS).rev().map(move |before| cells.at(own, cells.homes - before))
    }

    /// Moves a record that has its home elsewhere out of a cell, if there is room for it.
    fn move_stranger(&mut self, at: usize) -> Option<()> {
        let cells = self.cells;
        let is_of = |home: &usize| {
            let distance = cells.distance(*home, at);
            let head = cells.cell(*home).map(Cell::head);
            distance >= HOME_CELLS && head.is_some_and(|head| distances(head).any(|other| other == distance))
        };
        let home = self.homes_around(at).find(is_of)?;
        let mut hood = (0..HOOD).map(|distance| cells.at(home, distance));
        let to = hood.find(|at| self.is_free(*at))?;
        self.move_record(home, at, to)
    }

    /// A free cell in the hood of a home, made by moving others if there is none.
    fn free_cell_near(&mut self, home: usize) -> Result<usize, NoRoom> {
        let homes = self.cells.homes;
        let free = (0..homes).map(|distance| self.cells.at(home, distance)).find(|at| self.is_free(*at));
        let mut free = free.ok_or(NoRoom::Homes)?;
        while self.cells.distance(home, free) >= HOOD {
            free = self.move_towards(free).ok_or(NoRoom::Homes)?;
        }
        Ok(free)
    }

    /// Moves a record from before a free cell into it, and answers which cell is free now: the farthest that can be.
    fn move_towards(&mut self, free: usize) -> Option<usize> {
        for home in self.homes_around(free) {
            let reach = self.cells.distance(home, free);
            let head = self.cells.cell(home)?.head();
            if let Some(distance) = distances(head).next().filter(|distance| *distance < reach) {
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
        let (bytes, head) = (source.bytes(), source.head());
        let moved = |new: Head| new.with_tag(head.tag()).with_next(head.next());
        self.cells.cell(to)?.write(moved, |cell| cell.fill(&bytes));
        let (old, new) = (1 << self.cells.distance(home, from), 1 << self.cells.distance(home, to));
        self.change_hood(home, |hood| hood & !old | new);
        source.write(Head::emptied, |cell| cell.fill(&[]));
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

    /// Removes the record that begins in this cell, and then its home's word for it.
    pub(super) fn remove(&mut self, place: u32, at: usize) {
        let Some(cell) = self.cells.cell(at) else { return };
        let home = self.cells.home_of(place);
        let bit = 1 << self.cells.distance(home, at);
        let chain = self.chain(cell.head());
        cell.write(Head::emptied, |cell| cell.fill(&[]));
        self.change_hood(home, |hood| hood & !bit);
        self.taken.free.extend(chain);
        self.taken.count -= 1;
        self.bring_home(at);
    }

    /// Moves a record that found no room at home into a cell of its home that is free now, and so on.
    fn bring_home(&mut self, mut free: usize) {
        loop {
            let home = free - free % HOME_CELLS;
            let Some(head) = self.cells.cell(home).map(Cell::head) else { return };
            let away = distances(head).find(|distance| *distance >= HOME_CELLS);
            let Some(from) = away.map(|distance| self.cells.at(home, distance)) else { return };
            if self.move_record(home, from, free).is_none() {
                return;
            }
            free = from;
        }
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
        let begins = homes.filter(move |at| !self.is_free(*at) && Some(*at) != without);
        begins.filter_map(|at| self.cells.record_at(at).ok())
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
        let now = Size { homes: self.cells.homes, pool: self.taken.pool };
        let mut size = now; // what is not wasteful stays as it is: a table never grows by this
        if is_wasteful(now.homes, self.taken.count) {
            size.homes = (self.taken.count * 2).max(HOMES_MIN);
        }
        if is_wasteful(now.pool, used) {
            size.pool = used * 2;
        }
        (size != now).then_some(size)
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
        let homes = self.homes.next_multiple_of(HOME_CELLS);
        let free = (homes..homes + self.pool).rev().collect();
        (Cells::new(homes, self.pool), Taken { count: 0, free, pool: self.pool })
    }
}

/// Cells that a record needs beside the one in which it begins.
fn cells_beside(record: &[u8]) -> usize {
    record.len().div_ceil(CELL_BYTES).saturating_sub(1)
}
