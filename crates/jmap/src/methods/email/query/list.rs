//! A sorted list of entries that is cheap to change at any position, and to read from any index.
//!
//! The entries are in chunks. An insertion moves the entries of one chunk, and updates the counts of the chunks after it; a million
//! emails are about a thousand chunks.

use std::{cmp::Ordering, collections::HashSet, mem};

use super::sort::{Key, Keys};

/// The most entries of a chunk. A full one is split.
const CHUNK_MAX: usize = 1_024;

/// An email of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) keys: Keys,
    pub(crate) id: u64,
}

/// Entries in an order that the caller passes to each call; it must always be the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct EntryList {
    /// None of them is empty.
    chunks: Vec<Chunk>,
    /// For each chunk the number of entries up to and including it.
    ends: Vec<usize>,
    /// The memory of the keys of all entries, in addition to the entries.
    key_bytes: usize,
}

#[derive(Clone, Debug)]
struct Chunk {
    entries: Vec<Entry>,
    /// All ids of the chunk are within these bounds. Emails that were received one after the other have ids close to each other, so
    /// most chunks need not be searched for an id.
    lowest: u64,
    highest: u64,
}

impl Chunk {
    fn new(entries: Vec<Entry>) -> Self {
        let lowest = entries.iter().map(|entry| entry.id).min().unwrap_or(u64::MAX);
        let highest = entries.iter().map(|entry| entry.id).max().unwrap_or(0);
        Self { entries, lowest, highest }
    }

    fn may_have(&self, ids: &[u64]) -> bool {
        let next = ids.partition_point(|id| *id < self.lowest);
        ids.get(next).is_some_and(|id| *id <= self.highest)
    }
}

/// An entry's chunk and its index there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    chunk: usize,
    index: usize,
}

impl EntryList {
    /// A list of entries that are already in order.
    pub(crate) fn from_sorted(entries: Vec<Entry>) -> Self {
        let mut list = Self { key_bytes: entries.iter().map(key_bytes).sum(), ..Self::default() };
        let mut entries = entries.into_iter();
        loop {
            let mut chunk = Vec::with_capacity(entries.len().min(CHUNK_MAX));
            chunk.extend(entries.by_ref().take(CHUNK_MAX));
            if chunk.is_empty() {
                break;
            }
            list.chunks.push(Chunk::new(chunk));
        }
        list.count_from(0);
        list
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.last().copied().unwrap_or_default()
    }

    /// The entries starting at an index.
    pub(crate) fn from(&self, index: usize) -> impl Iterator<Item = &Entry> {
        let chunk = self.ends.partition_point(|end| *end <= index);
        let skipped = index.saturating_sub(self.begin(chunk));
        let chunks = self.chunks.get(chunk..).unwrap_or_default();
        chunks.iter().flat_map(|chunk| &chunk.entries).skip(skipped)
    }

    /// The index of the entry for which `order` returns `Equal`; it compares an entry with the wanted one.
    pub(crate) fn index_of(&self, order: impl FnMut(&Entry) -> Ordering) -> Option<usize> {
        let slot = self.search(order).ok()?;
        Some(self.begin(slot.chunk) + slot.index)
    }

    /// The indexes of some emails, ascending. At worst linear in the length of the list; an email that is not in the list is left out.
    pub(crate) fn indexes_of(&self, ids: &HashSet<u64>) -> Vec<(usize, u64)> {
        let sorted = sorted(ids);
        let mut found = Vec::with_capacity(ids.len());
        for (number, chunk) in self.chunks.iter().enumerate() {
            if found.len() == ids.len() {
                break;
            }
            if !chunk.may_have(&sorted) {
                continue;
            }
            let begin = self.begin(number);
            let indexed = chunk.entries.iter().enumerate();
            let asked = indexed.filter(|(_, entry)| ids.contains(&entry.id));
            found.extend(asked.map(|(index, entry)| (begin + index, entry.id)));
        }
        found
    }

    /// Inserts an entry at the position given by `order`; does nothing when there is an equal one.
    pub(crate) fn insert(&mut self, entry: Entry, order: impl FnMut(&Entry) -> Ordering) {
        let Err(slot) = self.search(order) else { return };
        self.key_bytes += key_bytes(&entry);
        let Some(chunk) = self.chunks.get_mut(slot.chunk) else {
            self.chunks.push(Chunk::new(vec![entry]));
            self.count_from(slot.chunk);
            return;
        };
        chunk.lowest = chunk.lowest.min(entry.id);
        chunk.highest = chunk.highest.max(entry.id);
        chunk.entries.insert(slot.index, entry);
        if chunk.entries.len() > CHUNK_MAX {
            let half = Chunk::new(chunk.entries.split_off(CHUNK_MAX / 2));
            *chunk = Chunk::new(mem::take(&mut chunk.entries));
            self.chunks.insert(slot.chunk + 1, half);
        }
        self.count_from(slot.chunk);
    }

    /// Removes the entry for which `order` returns `Equal`, if there is one.
    pub(crate) fn remove(&mut self, order: impl FnMut(&Entry) -> Ordering) {
        let Ok(slot) = self.search(order) else { return };
        let Some(chunk) = self.chunks.get_mut(slot.chunk) else { return };
        let removed = chunk.entries.remove(slot.index);
        if chunk.entries.is_empty() {
            self.chunks.remove(slot.chunk);
        }
        self.key_bytes -= key_bytes(&removed);
        self.count_from(slot.chunk);
    }

    /// Removes emails by their ids. At worst linear in the length of the list.
    pub(crate) fn remove_ids(&mut self, ids: &HashSet<u64>) {
        let sorted = sorted(ids);
        let mut key_bytes_removed = 0;
        for chunk in self.chunks.iter_mut().filter(|chunk| chunk.may_have(&sorted)) {
            chunk.entries.retain(|entry| {
                let stays = !ids.contains(&entry.id);
                if !stays {
                    key_bytes_removed += key_bytes(entry);
                }
                stays
            });
        }
        self.chunks.retain(|chunk| !chunk.entries.is_empty());
        self.key_bytes -= key_bytes_removed;
        self.count_from(0);
    }

    /// The approximate memory of the list.
    pub(crate) fn bytes(&self) -> usize {
        let capacity: usize = self.chunks.iter().map(|chunk| chunk.entries.capacity()).sum();
        let chunks = self.chunks.capacity() * (mem::size_of::<Chunk>() + mem::size_of::<usize>());
        capacity * mem::size_of::<Entry>() + chunks + self.key_bytes
    }

    /// The position of the entry for which `order` returns `Equal`, or the position where it would be inserted.
    fn search(&self, mut order: impl FnMut(&Entry) -> Ordering) -> Result<Slot, Slot> {
        let ends_before = |chunk: &Chunk| chunk.entries.last().is_some_and(|last| order(last).is_lt());
        // An entry that sorts after all others goes to the last chunk.
        let chunk = self.chunks.partition_point(ends_before).min(self.chunks.len().saturating_sub(1));
        let entries = self.chunks.get(chunk).map_or(&[][..], |chunk| &chunk.entries);
        match entries.binary_search_by(order) {
            Ok(index) => Ok(Slot { chunk, index }),
            Err(index) => Err(Slot { chunk, index }),
        }
    }

    /// The number of entries before a chunk.
    fn begin(&self, chunk: usize) -> usize {
        chunk.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or_default()
    }

    /// Recomputes the counts, starting at a chunk.
    fn count_from(&mut self, chunk: usize) {
        let mut end = self.begin(chunk);
        self.ends.truncate(chunk);
        for chunk in self.chunks.get(chunk..).unwrap_or_default() {
            end += chunk.entries.len();
            self.ends.push(end);
        }
    }
}

fn sorted(ids: &HashSet<u64>) -> Vec<u64> {
    let mut sorted: Vec<u64> = ids.iter().copied().collect();
    sorted.sort_unstable();
    sorted
}

/// The memory of the keys of an entry, in addition to the entry.
fn key_bytes(entry: &Entry) -> usize {
    let Keys::Many(keys) = &entry.keys else { return 0 };
    let text = |key: &Key| if let Key::Text(text) = key { text.len() } else { 0 };
    keys.len() * mem::size_of::<Key>() + keys.iter().map(text).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(key: i64, id: u64) -> Entry {
        Entry { keys: Keys::One(key), id }
    }

    fn by_key(entry: &Entry) -> (i64, u64) {
        match entry.keys {
            Keys::One(key) => (key, entry.id),
            Keys::Many(_) => (0, entry.id),
        }
    }

    fn all(list: &EntryList) -> Vec<(i64, u64)> {
        list.from(0).map(by_key).collect()
    }

    /// Inserts this many entries in an order other than that of their ids.
    fn filled(count: u64) -> EntryList {
        let mut list = EntryList::default();
        for id in 0..count {
            let entry = entry((id * 7_919 % 10_007) as i64, id);
            list.insert(entry.clone(), |known| by_key(known).cmp(&by_key(&entry)));
        }
        list
    }

    #[test]
    fn a_list_is_in_order_and_is_read_from_any_index() {
        let list = filled(5_000);
        let mut expected: Vec<(i64, u64)> = (0..5_000).map(|id| ((id * 7_919 % 10_007) as i64, id)).collect();
        expected.sort_unstable();
        assert_eq!((all(&list), list.len()), (expected.clone(), 5_000));
        assert!(list.chunks.len() > 4 && list.chunks.iter().all(|chunk| chunk.entries.len() <= CHUNK_MAX));
        for index in [0, 1, 511, 512, 1_024, 4_999] {
            assert_eq!(list.from(index).map(by_key).next(), Some(expected[index]));
            assert_eq!(list.index_of(|known| by_key(known).cmp(&expected[index])), Some(index));
        }
        assert_eq!(list.from(5_000).count(), 0);
        assert_eq!(list.from(usize::MAX).count(), 0);
        let entries = expected.iter().map(|(key, id)| entry(*key, *id)).collect();
        assert_eq!(all(&EntryList::from_sorted(entries)), expected);
    }

    #[test]
    fn the_memory_of_removed_entries_is_not_counted() {
        let keys = |n: usize| Keys::Many(vec![Key::Text("k".repeat(n).into())].into());
        let mut list = EntryList::default();
        for (id, length) in [(1, 10), (2, 20), (3, 30)] {
            list.insert(Entry { keys: keys(length), id }, |known| known.id.cmp(&id));
        }
        let key = mem::size_of::<Key>();
        assert_eq!(list.key_bytes, 60 + 3 * key);
        list.remove(|known| known.id.cmp(&2));
        assert_eq!(list.key_bytes, 40 + 2 * key);
        list.remove_ids(&[1, 9].into());
        assert_eq!((list.key_bytes, list.len()), (30 + key, 1));
        assert!(list.bytes() > 30);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64),
        Remove(usize),
        RemoveIds(Vec<u64>),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            6 => (0..4_000_u64).prop_map(Step::Insert),
            2 => any::<usize>().prop_map(Step::Remove),
            1 => prop::collection::vec(0..4_000_u64, 0..20).prop_map(Step::RemoveIds),
        ]
    }

    /// Keys that mostly ascend with the ids, like the times of emails.
    fn key(id: u64) -> (i64, u64) {
        let key = if id.is_multiple_of(11) { id % 50 } else { id / 60 };
        (key as i64, id)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

        #[test]
        fn random_changes_lead_to_what_a_plain_list_has(
            first in 0..3_000_u64, steps in prop::collection::vec(step(), 0..200),
        ) {
            let mut plain: Vec<(i64, u64)> = (0..first).map(key).collect();
            plain.sort_unstable();
            let mut list = EntryList::from_sorted(plain.iter().map(|(key, id)| entry(*key, *id)).collect());
            for step in steps {
                match step {
                    Step::Insert(id) => {
                        list.insert(entry(key(id).0, id), |known| by_key(known).cmp(&key(id)));
                        if let Err(place) = plain.binary_search(&key(id)) {
                            plain.insert(place, key(id));
                        }
                    }
                    Step::Remove(place) if !plain.is_empty() => {
                        let removed = plain.remove(place % plain.len());
                        list.remove(|known| by_key(known).cmp(&removed));
                    }
                    Step::Remove(_) => list.remove(|known| by_key(known).cmp(&(0, 0))),
                    Step::RemoveIds(ids) => {
                        plain.retain(|(_, id)| !ids.contains(id));
                        list.remove_ids(&ids.into_iter().collect());
                    }
                }
                prop_assert_eq!(list.len(), plain.len());
            }
            prop_assert_eq!(&all(&list), &plain);
            for (index, wanted) in plain.iter().enumerate().step_by(97) {
                prop_assert_eq!(list.from(index).map(by_key).next(), Some(*wanted));
                prop_assert_eq!(list.index_of(|known| by_key(known).cmp(wanted)), Some(index));
            }
            let indexes: Vec<(usize, u64)> =
                plain.iter().map(|(_, id)| *id).enumerate().filter(|(_, id)| id.is_multiple_of(53)).collect();
            let ids: HashSet<u64> = indexes.iter().map(|(_, id)| *id).chain([9_999]).collect();
            prop_assert_eq!(list.indexes_of(&ids), indexes);
        }
    }
}
