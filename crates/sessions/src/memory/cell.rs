//! One cell of a table: a cache line that many read while one writes.
//!
//! A cell is read without a lock, as by a *sequence lock*: its head carries a version, which is odd while the cell is being
//! written. A reader copies the words, and what it has copied counts only if the head is still what it was before. Reading
//! writes nothing, so that readers on several cores never take a cache line from one another. All words are atomics, so
//! that a torn copy is merely thrown away and never undefined.
//!
//! Writers exclude each other by a lock of their own, which is not here. The order of memory is checked with loom, in
//! `tests/loom`.

use super::sync::{AtomicU64, Ordering, WORDS, fence};

/// Bytes of a record that a cell holds.
pub(crate) const CELL_BYTES: usize = 8 * WORDS;

/// Cells behind a home, and the home itself, that may hold what belongs to the home.
pub(crate) const HOOD: usize = 16;
/// The most cells that one table may have: what a head has room to point at.
pub(crate) const CELLS_MAX: usize = (1 << NEXT_BITS) - 1;

/// Lowest: the version, odd while the cell is written.
const VERSION_BITS: u32 = 28;
/// Then the hood: bit i says that i cells on lies a record whose home is here.
const HOOD_BITS: u32 = 16;
/// Highest: where the record goes on, counted from 1; 0 when it ends here.
const NEXT_BITS: u32 = 20;

/// A cell.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Cell {
    head: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// What a cell says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head(u64);

impl Head {
    #[inline]
    pub(crate) fn is_busy(self) -> bool {
        self.0 & 1 == 1
    }

    /// Where records lie whose home this cell is.
    #[inline]
    pub(crate) fn hood(self) -> u16 {
        (self.0 >> VERSION_BITS) as u16
    }

    pub(crate) fn with_hood(self, hood: u16) -> Self {
        let mask = u64::from(u16::MAX) << VERSION_BITS;
        Self(self.0 & !mask | u64::from(hood) << VERSION_BITS)
    }

    /// The cell in which the record goes on.
    #[inline]
    pub(crate) fn next(self) -> Option<usize> {
        let next = (self.0 >> (VERSION_BITS + HOOD_BITS)) as usize;
        next.checked_sub(1)
    }

    pub(crate) fn with_next(self, next: Option<usize>) -> Self {
        let next = next.map_or(0, |next| next as u64 + 1);
        let below = VERSION_BITS + HOOD_BITS;
        Self(self.0 & ((1 << below) - 1) | next << below)
    }

    /// The same at the next version. A version comes again after 2^27 changes, for which a reader would have to stand still in
    /// the middle of a copy.
    fn stepped(self) -> Self {
        let mask = (1 << VERSION_BITS) - 1;
        Self(self.0 & !mask | self.0.wrapping_add(1) & mask)
    }
}

impl Cell {
    /// The head, before what follows is read.
    #[inline]
    pub(crate) fn head(&self) -> Head {
        Head(self.head.load(Ordering::Acquire))
    }

    /// The bytes, which may be torn until [`Cell::is_still`] says that they are not.
    #[inline]
    pub(crate) fn bytes(&self) -> [u8; CELL_BYTES] {
        self.padded_bytes()
    }

    /// The same, and room behind them.
    #[inline]
    pub(crate) fn padded_bytes<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        for (word, chunk) in self.words.iter().zip(bytes.as_chunks_mut().0) {
            *chunk = word.load(Ordering::Relaxed).to_le_bytes();
        }
        bytes
    }

    /// Whether nothing was written since the head was read, so that all that was read meanwhile belongs together.
    #[inline]
    pub(crate) fn is_still(&self, head: Head) -> bool {
        fence(Ordering::Acquire);
        self.head.load(Ordering::Relaxed) == head.0
    }

    /// Writes: `fill` stores words, those of the cells where the record goes on among them, and `head` says what the head
    /// becomes. Readers see all of it or nothing. Whoever calls holds the writers' lock.
    pub(crate) fn write(&self, head: impl FnOnce(Head) -> Head, fill: impl FnOnce(&Self)) {
        let old = Head(self.head.load(Ordering::Relaxed));
        let busy = old.stepped();
        self.head.store(busy.0, Ordering::Relaxed);
        fence(Ordering::Release);
        fill(self);
        self.head.store(head(busy).stepped().0, Ordering::Release);
    }

    /// Stores the bytes of a part of a record; what is left of the cell becomes zero. Only within [`Cell::write`] of the cell in
    /// which the record begins.
    pub(crate) fn fill(&self, part: &[u8]) {
        let mut bytes = [0; CELL_BYTES];
        for (to, from) in bytes.iter_mut().zip(part) {
            *to = *from;
        }
        for (word, chunk) in self.words.iter().zip(bytes.as_chunks().0) {
            word.store(u64::from_le_bytes(*chunk), Ordering::Relaxed);
        }
    }

    /// Says where a record goes on, of a cell in which no record begins. Only within [`Cell::write`] of the one where it does.
    pub(crate) fn link(&self, next: Option<usize>) {
        let head = Head(self.head.load(Ordering::Relaxed)).with_next(next);
        self.head.store(head.0, Ordering::Relaxed);
    }
}
