//! One cell of a table: a cache line with many concurrent readers and one writer.
//!
//! A cell is read without a lock, as with a *sequence lock*: its head has a version, which is odd while the cell is being
//! written. A reader copies the words, and the copy is valid if the head has not changed meanwhile. Readers write nothing, so
//! that readers on several cores do not contend for the cache line. All words are atomics, so that a mixed copy is not
//! undefined behaviour; it is discarded.
//!
//! Writers exclude each other by a lock outside this module. The memory ordering is checked with loom, in `tests/loom`.

use std::num::NonZero;

use super::sync::{AtomicU64, Ordering, WORDS, fence};

/// Bytes of a record in a cell.
pub(crate) const CELL_BYTES: usize = 8 * WORDS;

/// Cells of a bucket: both are read at once, and the second costs little more than the first.
pub(crate) const BUCKET_CELLS: usize = 2;
/// The cells of a bucket and those after it that may hold records of the bucket.
pub(crate) const NEIGHBOURHOOD: usize = 12;
/// The most cells of a table: what the `next` bits of a head can address, rounded down to whole buckets.
pub(crate) const CELLS_MAX: usize = (1 << NEXT_BITS) - BUCKET_CELLS;

/// Lowest: the version, odd while the cell is written.
const VERSION_BITS: u32 = 24;
/// Then the tag of the record that begins here; 0 when none does.
const TAG_BITS: u32 = 8;
/// Then, in the first cell of a bucket, the neighbourhood: bit i says that a record of this bucket begins i cells further.
const NEIGHBOURHOOD_BITS: u32 = NEIGHBOURHOOD as u32;
/// Highest: the cell in which the record continues, counted from 1; 0 when it ends here.
const NEXT_BITS: u32 = 20;

const TAG_AT: u32 = VERSION_BITS;
const NEIGHBOURHOOD_AT: u32 = TAG_AT + TAG_BITS;
const NEXT_AT: u32 = NEIGHBOURHOOD_AT + NEIGHBOURHOOD_BITS;
const _: () = assert!(NEXT_AT + NEXT_BITS == u64::BITS);

/// A cell.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Cell {
    head: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// Some bits of a user hash that do not select its bucket: they distinguish the records of a bucket before these are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag(NonZero<u8>);

impl Tag {
    #[inline]
    pub(crate) fn of(user_hash: u32) -> Self {
        Self(NonZero::new(user_hash as u8).unwrap_or(NonZero::<u8>::MAX))
    }
}

/// The head of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head(u64);

impl Head {
    #[inline]
    pub(crate) fn is_busy(self) -> bool {
        self.0 & 1 == 1
    }

    /// The tag of the record that begins here.
    #[inline]
    pub(crate) fn tag(self) -> Option<Tag> {
        NonZero::new((self.0 >> TAG_AT) as u8).map(Tag)
    }

    pub(crate) fn with_tag(self, tag: Option<Tag>) -> Self {
        self.with(TAG_AT, TAG_BITS, u64::from(tag.map_or(0, |tag| tag.0.get())))
    }

    /// The head without a record.
    pub(crate) fn without_record(self) -> Self {
        self.with_tag(None).with_next(None)
    }

    /// The neighbourhood: where records of this bucket begin.
    #[inline]
    pub(crate) fn neighbourhood(self) -> u16 {
        (self.0 >> NEIGHBOURHOOD_AT) as u16 & ((1 << NEIGHBOURHOOD_BITS) - 1)
    }

    pub(crate) fn with_neighbourhood(self, neighbourhood: u16) -> Self {
        self.with(NEIGHBOURHOOD_AT, NEIGHBOURHOOD_BITS, u64::from(neighbourhood))
    }

    /// The cell in which the record continues.
    #[inline]
    pub(crate) fn next(self) -> Option<usize> {
        let next = (self.0 >> NEXT_AT) as usize;
        next.checked_sub(1)
    }

    pub(crate) fn with_next(self, next: Option<usize>) -> Self {
        self.with(NEXT_AT, NEXT_BITS, next.map_or(0, |next| next as u64 + 1))
    }

    /// The head with the next version. A version repeats after 2^23 changes, during which a reader would have to stop in the middle
    /// of a copy.
    fn next_version(self) -> Self {
        self.with(0, VERSION_BITS, self.0.wrapping_add(1) & ((1 << VERSION_BITS) - 1))
    }

    /// The head with some bits replaced.
    fn with(self, at: u32, bits: u32, value: u64) -> Self {
        let mask = ((1 << bits) - 1) << at;
        Self(self.0 & !mask | value << at & mask)
    }
}

impl Cell {
    /// The head, loaded before the words are read.
    #[inline]
    pub(crate) fn head(&self) -> Head {
        Head(self.head.load(Ordering::Acquire))
    }

    /// The bytes, which may be mixed with a later write unless [`Cell::is_still`] returns true afterwards.
    #[inline]
    pub(crate) fn bytes(&self) -> [u8; CELL_BYTES] {
        let mut bytes = [0; CELL_BYTES];
        for (word, chunk) in self.words.iter().zip(bytes.as_chunks_mut().0) {
            *chunk = word.load(Ordering::Relaxed).to_le_bytes();
        }
        bytes
    }

    /// Whether nothing was written since the head was loaded, so that everything read since then is consistent.
    #[inline]
    pub(crate) fn is_still(&self, head: Head) -> bool {
        fence(Ordering::Acquire);
        self.head.load(Ordering::Relaxed) == head.0
    }

    /// Writes atomically for readers: `fill` stores words, also those of the cells where the record continues, and `head` computes
    /// the new head. The caller holds the writers' lock.
    pub(crate) fn write(&self, head: impl FnOnce(Head) -> Head, fill: impl FnOnce(&Self)) {
        let old = Head(self.head.load(Ordering::Relaxed));
        let busy = old.next_version();
        self.head.store(busy.0, Ordering::Relaxed);
        fence(Ordering::Release);
        fill(self);
        self.head.store(head(busy).next_version().0, Ordering::Release);
    }

    /// Stores a part of a record, padded with zeros. Only within [`Cell::write`] of the cell in which the record begins.
    pub(crate) fn fill(&self, part: &[u8]) {
        let mut bytes = [0; CELL_BYTES];
        if let Some(start) = bytes.get_mut(..part.len()) {
            start.copy_from_slice(part); // no part is longer than a cell
        }
        for (word, chunk) in self.words.iter().zip(bytes.as_chunks().0) {
            word.store(u64::from_le_bytes(*chunk), Ordering::Relaxed);
        }
    }

    /// Sets where a record continues, of a cell in which no record begins. Only within [`Cell::write`] of the one where it does.
    pub(crate) fn link(&self, next: Option<usize>) {
        let head = Head(self.head.load(Ordering::Relaxed)).with_next(next);
        self.head.store(head.0, Ordering::Relaxed);
    }
}
