//! The cells of one shard, as readers see them, and the state that only writers use.
//!
//! Each record has a *bucket* of two cells, selected by its user hash, and lies in one of them or in one of the ten after them
//! (hopscotch hashing): the head of the bucket's first cell has a bit for each. Usually it is a cell of the bucket itself, and the
//! cell's head has the record's tag. When no free cell is near enough, other records are moved towards a free one. A record that
//! is longer than a cell continues in cells of the *pool*, after the buckets.

use std::iter;

use super::{
    cell::{BUCKET_CELLS, CELL_BYTES, CELLS_MAX, Cell, Head, NEIGHBOURHOOD, Tag},
    sync::{TRIES, spin_loop},
};
use crate::found::RecordBytes;

/// The fewest cells in buckets.
const BUCKET_CELLS_MIN: usize = NEIGHBOURHOOD;
/// Per cent of the cells in buckets that may be used: beyond that too many records are outside their bucket.
const FULL_PERCENT: usize = 66;
/// The most cells of one record: enough for a hundred sessions with the longest info and resource.
pub(crate) const RECORD_CELLS_MAX: usize = 1 << 15;

/// Low bits of a user hash, which select the bucket; those above select the shard.
pub(super) const BUCKET_BITS: u32 = 26;

/// Writers interfered with every try of a lock-free read.
#[derive(Debug)]
pub(super) struct RetryRead;

/// The cells: first the buckets, then the pool.
#[derive(Debug)]
pub(super) struct Cells {
    cells: Box<[Cell]>,
    /// How many of them belong to buckets.
    bucket_cells: usize,
}

impl Cells {
    fn new(bucket_cells: usize, pool: usize) -> Self {
        Self { cells: (0..bucket_cells + pool).map(|_| Cell::default()).collect(), bucket_cells }
    }

    /// How many cells there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.cells.len()
    }

    /// The first cell of the bucket of a user hash. The order of buckets is that of user hashes.
    #[inline]
    pub(super) fn bucket_of(&self, user_hash: u32) -> usize {
        let low = u64::from(user_hash) & ((1 << BUCKET_BITS) - 1);
        let buckets = (self.bucket_cells / BUCKET_CELLS) as u64;
        ((low * buckets) >> BUCKET_BITS) as usize * BUCKET_CELLS
    }

    /// The smallest user hash of the next bucket; `None` after the last.
    pub(super) fn first_hash_after(&self, bucket: usize) -> Option<u32> {
        let (next, buckets) = ((bucket / BUCKET_CELLS) as u64 + 1, (self.bucket_cells / BUCKET_CELLS) as u64);
        (next < buckets).then(|| (next << BUCKET_BITS).div_ceil(buckets) as u32)
    }

    #[inline]
    fn at(&self, bucket: usize, distance: usize) -> usize {
        let at = bucket + distance;
        if at < self.bucket_cells { at } else { at - self.bucket_cells }
    }

    /// How far after a bucket a cell is.
    fn distance(&self, bucket: usize, at: usize) -> usize {
        if at >= bucket { at - bucket } else { at + self.bucket_cells - bucket }
    }

    fn cell(&self, at: usize) -> Option<&Cell> {
        self.cells.get(at)
    }

    /// Copies the record that matches if it is where most are: whole, in a cell of its bucket. False does not mean that there is
    /// none: then [`Cells::read`] decides.
    #[inline]
    pub(super) fn read_in_bucket(
        &self,
        user_hash: u32,
        matches: &impl Fn(&[u8]) -> bool,
        bytes: &mut [u8; CELL_BYTES],
    ) -> bool {
        let cells = self.cells.as_chunks::<BUCKET_CELLS>().0.get(self.bucket_of(user_hash) / BUCKET_CELLS);
        let Some(cells) = cells else { return false };
        // All heads are loaded at the same time, and the cell is selected without a branch: after a mispredicted branch the processor
        // would not begin the next lookup before the memory has answered.
        let tag = Some(Tag::of(user_hash));
        let mut candidates = 0_u32;
        for (at, cell) in cells.iter().enumerate() {
            candidates |= u32::from(cell.head().tag() == tag) << at;
        }
        let Some(cell) = cells.get(candidates.trailing_zeros() as usize) else { return false };
        let head = cell.head();
        *bytes = cell.bytes();
        let is_whole = !head.is_busy() && head.next().is_none() && cell.is_still(head);
        is_whole && matches(bytes)
    }

    /// Copies the record that matches, if there is one, without a lock. The result was true at some moment since the call.
    pub(super) fn read(
        &self,
        user_hash: u32,
        matches: &impl Fn(&[u8]) -> bool,
    ) -> Result<Option<RecordBytes>, RetryRead> {
        for _ in 0..TRIES {
            if let Ok(record) = self.read_once(user_hash, matches) {
                return Ok(record);
            }
            spin_loop();
        }
        Err(RetryRead)
    }

    fn read_once(
        &self,
        user_hash: u32,
        matches: &impl Fn(&[u8]) -> bool,
    ) -> Result<Option<RecordBytes>, RetryRead> {
        let bucket = self.bucket_of(user_hash);
        let Some(first_cell) = self.cell(bucket) else { return Ok(None) };
        let head = first_cell.head();
        if head.is_busy() {
            return Err(RetryRead);
        }
        for at in self.candidates(user_hash, bucket, head) {
            let record = self.record_at(at)?;
            if matches(&record) {
                return Ok(Some(record));
            }
        }
        if first_cell.is_still(head) { Ok(None) } else { Err(RetryRead) }
    }

    /// The cells in which a record of this user hash may begin, by the head of its bucket and by their tags.
    fn candidates(&self, user_hash: u32, bucket: usize, head: Head) -> impl Iterator<Item = usize> {
        let tag = Some(Tag::of(user_hash));
        let has_tag = move |at: &usize| self.cell(*at).is_some_and(|cell| cell.head().tag() == tag);
        distances(head).map(move |distance| self.at(bucket, distance)).filter(has_tag)
    }

    /// All records of a bucket, consistently.
    pub(super) fn records_of(&self, bucket: usize) -> Result<Vec<RecordBytes>, RetryRead> {
        let Some(first_cell) = self.cell(bucket) else { return Ok(Vec::new()) };
        let head = first_cell.head();
        let mut records = Vec::new();
        for distance in distances(head) {
            records.push(self.record_at(self.at(bucket, distance))?);
        }
        if !head.is_busy() && first_cell.is_still(head) { Ok(records) } else { Err(RetryRead) }
    }

    /// Copies the record that begins in a cell, if one begins there.
    fn record_at(&self, at: usize) -> Result<RecordBytes, RetryRead> {
        let cell = self.cell(at).ok_or(RetryRead)?;
        let head = cell.head();
        if head.is_busy() || head.tag().is_none() {
            return Err(RetryRead);
        }
        let mut record = RecordBytes::from_slice(&cell.bytes());
        let mut next = head.next();
        for _ in 0..RECORD_CELLS_MAX {
            let Some(more) = next.and_then(|next| self.cell(next)) else { break };
            record.extend_from_slice(&more.bytes());
            next = more.head().next();
        }
        if cell.is_still(head) { Ok(record) } else { Err(RetryRead) }
    }
}

/// How far after the bucket its records are.
fn distances(head: Head) -> impl Iterator<Item = usize> {
    let mut neighbourhood = head.neighbourhood();
    iter::from_fn(move || {
        let distance = neighbourhood.trailing_zeros() as usize;
        neighbourhood &= neighbourhood.wrapping_sub(1);
        (distance < NEIGHBOURHOOD).then_some(distance)
    })
}

/// The state that only writers use. Its holder is the only writer.
#[derive(Debug, Default)]
pub(super) struct WriterState {
    /// Records.
    count: usize,
    /// Cells of the pool that are free.
    free: Vec<usize>,
    /// Cells of the pool.
    pool: usize,
}

/// The table is too small for a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TableFull {
    Buckets,
    Pool,
}

/// The cells and the state of a writer.
pub(super) struct Writer<'a> {
    cells: &'a Cells,
    state: &'a mut WriterState,
}

impl<'a> Writer<'a> {
    pub(super) fn new(cells: &'a Cells, state: &'a mut WriterState) -> Self {
        Self { cells, state }
    }

    /// The record that matches, and the cell in which it begins.
    pub(super) fn find(
        &self,
        user_hash: u32,
        matches: &impl Fn(&[u8]) -> bool,
    ) -> Option<(usize, RecordBytes)> {
        let bucket = self.cells.bucket_of(user_hash);
        for at in self.cells.candidates(user_hash, bucket, self.cells.cell(bucket)?.head()) {
            let record = self.cells.record_at(at).ok()?; // the only writer
            if matches(&record) {
                return Some((at, record));
            }
        }
        None
    }

    /// Inserts a new record: first its bit in the neighbourhood, then the record. So it appears for all readers at the same moment,
    /// and disappears for all at the same moment when it is removed, even for those that read the bits before.
    pub(super) fn insert(&mut self, user_hash: u32, record: &[u8]) -> Result<(), TableFull> {
        if (self.state.count + 1) * 100 > self.cells.bucket_cells * FULL_PERCENT {
            return Err(TableFull::Buckets);
        }
        if cells_beside(record) > self.state.free.len() {
            return Err(TableFull::Pool);
        }
        let bucket = self.cells.bucket_of(user_hash);
        let at = self.cell_for(bucket)?;
        self.state.count += 1;
        let tag = Some(Tag::of(user_hash));
        let bit = 1 << self.cells.distance(bucket, at);
        self.change_neighbourhood(bucket, |neighbourhood| neighbourhood | bit);
        self.write_with(at, record, |head| head.with_tag(tag))
    }

    /// A free cell for a record of a bucket: in the bucket itself if possible, if need be by moving others out of it.
    fn cell_for(&mut self, bucket: usize) -> Result<usize, TableFull> {
        for at in bucket..bucket + BUCKET_CELLS {
            if self.is_free(at) {
                return Ok(at);
            }
        }
        for at in bucket..bucket + BUCKET_CELLS {
            if self.evict(at).is_some() {
                return Ok(at);
            }
        }
        self.free_cell_near(bucket)
    }

    fn is_free(&self, at: usize) -> bool {
        self.cells.cell(at).is_some_and(|cell| cell.head().tag().is_none())
    }

    /// The buckets whose neighbourhoods contain a cell, the farthest first.
    fn buckets_around(&self, at: usize) -> impl Iterator<Item = usize> + use<'a> {
        let cells = self.cells;
        let own = at - at % BUCKET_CELLS;
        (0..NEIGHBOURHOOD)
            .step_by(BUCKET_CELLS)
            .rev()
            .map(move |before| cells.at(own, cells.bucket_cells - before))
    }

    /// Moves a record of another bucket out of a cell, if there is a free cell for it.
    fn evict(&mut self, at: usize) -> Option<()> {
        let cells = self.cells;
        let is_of = |bucket: &usize| {
            let distance = cells.distance(*bucket, at);
            let head = cells.cell(*bucket).map(Cell::head);
            distance >= BUCKET_CELLS
                && head.is_some_and(|head| distances(head).any(|other| other == distance))
        };
        let bucket = self.buckets_around(at).find(is_of)?;
        let mut neighbourhood = (0..NEIGHBOURHOOD).map(|distance| cells.at(bucket, distance));
        let to = neighbourhood.find(|at| self.is_free(*at))?;
        self.move_record(bucket, at, to)
    }

    /// A free cell in the neighbourhood of a bucket, made by moving records if there is none.
    fn free_cell_near(&mut self, bucket: usize) -> Result<usize, TableFull> {
        let buckets = self.cells.bucket_cells;
        let free = (0..buckets).map(|distance| self.cells.at(bucket, distance)).find(|at| self.is_free(*at));
        let mut free = free.ok_or(TableFull::Buckets)?;
        while self.cells.distance(bucket, free) >= NEIGHBOURHOOD {
            free = self.move_towards(free).ok_or(TableFull::Buckets)?;
        }
        Ok(free)
    }

    /// Moves a record from before a free cell into it, and returns the cell that is free now: the farthest possible.
    fn move_towards(&mut self, free: usize) -> Option<usize> {
        for bucket in self.buckets_around(free) {
            let free_distance = self.cells.distance(bucket, free);
            let head = self.cells.cell(bucket)?.head();
            if let Some(distance) = distances(head).next().filter(|distance| *distance < free_distance) {
                let from = self.cells.at(bucket, distance);
                self.move_record(bucket, from, free)?;
                return Some(from);
            }
        }
        None
    }

    /// First writes the copy, then the bits of the bucket, then clears the source: a reader always finds one of the two.
    fn move_record(&mut self, bucket: usize, from: usize, to: usize) -> Option<()> {
        let source = self.cells.cell(from)?;
        let (bytes, head) = (source.bytes(), source.head());
        let moved = |new: Head| new.with_tag(head.tag()).with_next(head.next());
        self.cells.cell(to)?.write(moved, |cell| cell.fill(&bytes));
        let (old, new) = (1 << self.cells.distance(bucket, from), 1 << self.cells.distance(bucket, to));
        self.change_neighbourhood(bucket, |neighbourhood| neighbourhood & !old | new);
        source.write(Head::without_record, |cell| cell.fill(&[]));
        Some(())
    }

    fn change_neighbourhood(&self, bucket: usize, change: impl FnOnce(u16) -> u16) {
        if let Some(cell) = self.cells.cell(bucket) {
            cell.write(|head| head.with_neighbourhood(change(head.neighbourhood())), |_| {});
        }
    }

    /// Replaces the record that begins in this cell.
    pub(super) fn write(&mut self, at: usize, record: &[u8]) -> Result<(), TableFull> {
        self.write_with(at, record, |head| head)
    }

    /// Like [`Writer::write`], with a change of the cell's head.
    fn write_with(
        &mut self,
        at: usize,
        record: &[u8],
        change: impl FnOnce(Head) -> Head,
    ) -> Result<(), TableFull> {
        let Some(cell) = self.cells.cell(at) else { return Ok(()) };
        let mut chain = self.chain(cell.head());
        let needed = cells_beside(record);
        if needed > chain.len() + self.state.free.len() {
            return Err(TableFull::Pool);
        }
        while chain.len() < needed {
            chain.extend(self.state.free.pop());
        }
        let surplus = chain.split_off(needed);
        let mut parts = record.chunks(CELL_BYTES);
        let first = parts.next().unwrap_or_default();
        cell.write(
            |head| change(head).with_next(chain.first().copied()),
            |cell| {
                cell.fill(first);
                for (index, (at, part)) in chain.iter().zip(parts).enumerate() {
                    let Some(more) = self.cells.cell(*at) else { continue };
                    more.fill(part);
                    more.link(chain.get(index + 1).copied());
                }
            },
        );
        self.state.free.extend(surplus);
        Ok(())
    }

    /// Removes the record that begins in this cell, and then its bit in the neighbourhood.
    pub(super) fn remove(&mut self, user_hash: u32, at: usize) {
        let Some(cell) = self.cells.cell(at) else { return };
        let bucket = self.cells.bucket_of(user_hash);
        let bit = 1 << self.cells.distance(bucket, at);
        let chain = self.chain(cell.head());
        cell.write(Head::without_record, |cell| cell.fill(&[]));
        self.change_neighbourhood(bucket, |neighbourhood| neighbourhood & !bit);
        self.state.free.extend(chain);
        self.state.count -= 1;
        self.refill_bucket(at);
    }

    /// Moves a record from outside the bucket into its free cell, and so on for the cell that becomes free.
    fn refill_bucket(&mut self, mut free: usize) {
        loop {
            let bucket = free - free % BUCKET_CELLS;
            let Some(head) = self.cells.cell(bucket).map(Cell::head) else { return };
            let away = distances(head).find(|distance| *distance >= BUCKET_CELLS);
            let Some(from) = away.map(|distance| self.cells.at(bucket, distance)) else { return };
            if self.move_record(bucket, from, free).is_none() {
                return;
            }
            free = from;
        }
    }

    /// The cells of the pool in which a record continues.
    fn chain(&self, head: Head) -> Vec<usize> {
        let mut chain = Vec::new();
        let mut next = head.next();
        while let Some(at) = next {
            chain.push(at);
            next = self.cells.cell(at).and_then(|cell| cell.head().next());
        }
        chain
    }

    /// All records except the one that begins in a cell.
    pub(super) fn records_without(&self, without: Option<usize>) -> impl Iterator<Item = RecordBytes> {
        let buckets = 0..self.cells.bucket_cells;
        let begins = buckets.filter(move |at| !self.is_free(*at) && Some(*at) != without);
        begins.filter_map(|at| self.cells.record_at(at).ok())
    }

    /// The size of a larger table that has space for a record that did not fit.
    pub(super) fn larger(&self, missing: TableFull, record: &[u8]) -> Size {
        let size = Size { bucket_cells: self.cells.bucket_cells, pool: self.state.pool };
        let spare = CELLS_MAX.saturating_sub(size.bucket_cells + size.pool);
        let grown = |now: usize, needed: usize| now + (now / 2).min(spare).max(needed);
        match missing {
            TableFull::Buckets => Size { bucket_cells: grown(size.bucket_cells, 1), ..size },
            TableFull::Pool => Size { pool: grown(size.pool, cells_beside(record).max(4)), ..size },
        }
    }

    /// The size of a smaller table, if this one is much too large.
    pub(super) fn smaller(&self) -> Option<Size> {
        let used = self.state.pool - self.state.free.len();
        let is_wasteful = |size: usize, used: usize| size > 4 * BUCKET_CELLS_MIN && used * 4 < size;
        let now = Size { bucket_cells: self.cells.bucket_cells, pool: self.state.pool };
        let mut size = now; // a part that is well used keeps its size: this never grows a table
        if is_wasteful(now.bucket_cells, self.state.count) {
            size.bucket_cells = (self.state.count * 2).max(BUCKET_CELLS_MIN);
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
    bucket_cells: usize,
    pool: usize,
}

impl Size {
    pub(super) const MIN: Self = Self { bucket_cells: BUCKET_CELLS_MIN, pool: 0 };

    /// A size with this number of cells in buckets and in the pool.
    #[cfg(test)]
    pub(super) fn of(bucket_cells: usize, pool: usize) -> Self {
        Self { bucket_cells, pool }
    }

    /// Whether a table may have this size.
    pub(super) fn is_allowed(self) -> bool {
        self.bucket_cells + self.pool <= CELLS_MAX
    }

    /// A larger size, when this one did not suffice.
    pub(super) fn enlarged(self, missing: TableFull) -> Self {
        match missing {
            TableFull::Buckets => {
                Self { bucket_cells: self.bucket_cells + self.bucket_cells / 4 + 1, ..self }
            }
            TableFull::Pool => Self { pool: self.pool + self.pool / 4 + 1, ..self },
        }
    }

    /// An empty table.
    pub(super) fn build(self) -> (Cells, WriterState) {
        let bucket_cells = self.bucket_cells.next_multiple_of(BUCKET_CELLS);
        let free = (bucket_cells..bucket_cells + self.pool).rev().collect();
        (Cells::new(bucket_cells, self.pool), WriterState { count: 0, free, pool: self.pool })
    }
}

/// Cells that a record needs besides the one in which it begins.
fn cells_beside(record: &[u8]) -> usize {
    record.len().div_ceil(CELL_BYTES).saturating_sub(1)
}
