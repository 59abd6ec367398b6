//! Rows that are in the commit log and not yet in LMDB, in memory and in order.

use std::{
    borrow::Borrow,
    cmp::Reverse,
    hash::BuildHasher,
    ops::Bound,
    sync::atomic::{AtomicU64, Ordering},
};

use crossbeam_skiplist::{SkipMap, map::Entry};
use foldhash::fast::FixedState;

/// A batch of rows has one number, and batches are numbered in the order in which they were written.
pub(crate) type Sequence = u64;

/// What a row is known by: of two with the same key the newer one comes first.
pub(crate) struct RowKey {
    pub(crate) table: u8,
    pub(crate) key: Box<[u8]>,
    pub(crate) sequence: Sequence,
}

/// A row key that is looked for, without owning its bytes.
struct Probe<'k>(u8, &'k [u8], Sequence);

/// What row keys and probes have in common, so that a map of the ones can be asked with the others.
trait Keyed {
    fn parts(&self) -> (u8, &[u8], Reverse<Sequence>);
}

impl Keyed for RowKey {
    fn parts(&self) -> (u8, &[u8], Reverse<Sequence>) {
        (self.table, &self.key, Reverse(self.sequence))
    }
}

impl Keyed for Probe<'_> {
    fn parts(&self) -> (u8, &[u8], Reverse<Sequence>) {
        (self.0, self.1, Reverse(self.2))
    }
}

impl Ord for dyn Keyed + '_ {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.parts().cmp(&other.parts())
    }
}

impl PartialOrd for dyn Keyed + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for dyn Keyed + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for dyn Keyed + '_ {}

impl<'k> Borrow<dyn Keyed + 'k> for RowKey {
    fn borrow(&self) -> &(dyn Keyed + 'k) {
        self
    }
}

impl Ord for RowKey {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.parts().cmp(&other.parts())
    }
}

impl PartialOrd for RowKey {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for RowKey {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for RowKey {}

/// A row of a layer: its value, or `None` when it was deleted.
pub(crate) type LayerRow<'l> = Entry<'l, RowKey, Option<Box<[u8]>>>;

/// Everything that was written into one file of the commit log. The writer adds, readers read: nobody waits for anybody.
pub(crate) struct Layer {
    rows: SkipMap<RowKey, Option<Box<[u8]>>>,
    filter: Filter,
}

impl Layer {
    /// An empty layer for about so many bytes of rows.
    pub(crate) fn new(bytes: u64) -> Self {
        Self { rows: SkipMap::new(), filter: Filter::new(bytes) }
    }

    /// Adds a row, over one with the same key and sequence.
    pub(crate) fn insert(&self, row: RowKey, value: Option<Box<[u8]>>) {
        self.filter.add(row.table, &row.key);
        self.rows.insert(row, value);
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows.len()
    }

    /// The newest version of a key up to a batch.
    pub(crate) fn get(&self, table: u8, key: &[u8], until: Sequence) -> Option<LayerRow<'_>> {
        if !self.filter.may_have(table, key) {
            return None;
        }
        self.find(table, key, until)
    }

    fn find(&self, table: u8, key: &[u8], until: Sequence) -> Option<LayerRow<'_>> {
        let probe = Probe(table, key, until);
        let found = self.rows.lower_bound(Bound::Included(&probe as &dyn Keyed))?;
        (found.key().table == table && *found.key().key == *key).then_some(found)
    }

    /// The first key at or after a bound, in its newest version up to a batch.
    pub(crate) fn at_or_after(&self, table: u8, from: Bound<&[u8]>, until: Sequence) -> Option<LayerRow<'_>> {
        let probe = match from {
            Bound::Included(key) => Bound::Included(Probe(table, key, Sequence::MAX)),
            Bound::Excluded(key) => Bound::Excluded(Probe(table, key, 0)),
            Bound::Unbounded => Bound::Included(Probe(table, &[], Sequence::MAX)),
        };
        let mut found = self.rows.lower_bound(probe.as_ref().map(|probe| probe as &dyn Keyed))?;
        while found.key().table == table {
            if found.key().sequence <= until {
                return Some(found); // versions of one key come newest first
            }
            found = found.next()?;
        }
        None
    }

    /// The last key at or before a bound, in its newest version up to a batch.
    pub(crate) fn at_or_before(&self, table: u8, to: Bound<&[u8]>, until: Sequence) -> Option<LayerRow<'_>> {
        let probe = match to {
            Bound::Included(key) => Bound::Included(Probe(table, key, 0)),
            Bound::Excluded(key) => Bound::Excluded(Probe(table, key, Sequence::MAX)),
            Bound::Unbounded => Bound::Excluded(Probe(table.saturating_add(1), &[], Sequence::MAX)),
        };
        let mut found = self.rows.upper_bound(probe.as_ref().map(|probe| probe as &dyn Keyed))?;
        while found.key().table == table {
            if found.key().sequence <= until {
                return self.find(table, &found.key().key, until); // walking back, the oldest version comes first
            }
            found = found.prev()?;
        }
        None
    }

    /// The newest version of each row, in order.
    pub(crate) fn newest(&self) -> impl Iterator<Item = LayerRow<'_>> {
        let mut last: Option<LayerRow<'_>> = None;
        self.rows.iter().filter(move |row| {
            let is_older = last.as_ref().is_some_and(|newer| {
                newer.key().table == row.key().table && newer.key().key == row.key().key
            });
            if !is_older {
                last = Some(row.clone());
            }
            !is_older
        })
    }
}

/// Tells quickly that a key is not in a layer, as most keys that are asked for: a Bloom filter whose two bits of a key lie in
/// one word, so that asking costs one cache miss.
struct Filter {
    words: Box<[AtomicU64]>,
}

/// Bytes of rows for each word of a filter. Rows take about 60 bytes: some eight for a word, eight bits for each.
const ROW_BYTES_PER_WORD: u64 = 512;

impl Filter {
    fn new(bytes: u64) -> Self {
        let words = (bytes / ROW_BYTES_PER_WORD).next_power_of_two().max(8);
        Self { words: (0..words).map(|_| AtomicU64::new(0)).collect() }
    }

    fn place(&self, table: u8, key: &[u8]) -> (Option<&AtomicU64>, u64) {
        let hash = FixedState::with_seed(u64::from(table)).hash_one(key);
        let word = (hash >> 12) as usize & (self.words.len() - 1);
        let bits = 1 << (hash & 63) | 1 << (hash >> 6 & 63);
        (self.words.get(word), bits)
    }

    fn add(&self, table: u8, key: &[u8]) {
        if let (Some(word), bits) = self.place(table, key) {
            word.fetch_or(bits, Ordering::Relaxed);
        }
    }

    /// Relaxed is enough: a row that a reader must see was added before the sequence was published that it reads by.
    fn may_have(&self, table: u8, key: &[u8]) -> bool {
        let (word, bits) = self.place(table, key);
        word.is_none_or(|word| word.load(Ordering::Relaxed) & bits == bits)
    }
}
