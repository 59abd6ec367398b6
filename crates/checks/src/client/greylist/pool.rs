//! A bounded memory of keys and times.

use std::collections::{BTreeMap, HashMap};

/// A hash of a network or an attempt.
pub(super) type Key = [u8; 16];

/// Keys with a time; the oldest is removed if there are too many.
#[derive(Debug)]
pub(super) struct Pool {
    entries: HashMap<Key, Slot>,
    /// In the order in which they were set.
    by_age: BTreeMap<u64, Entry>,
    next: u64,
    entries_max: usize,
    by_owner: HashMap<Key, u32>,
}

/// A key, when it was set, and its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) key: Key,
    /// In seconds since 1970.
    pub(super) at: u64,
    pub(super) owner: Key,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    number: u64,
    at: u64,
}

impl Pool {
    pub(super) fn new(entries_max: usize) -> Self {
        Self {
            entries: HashMap::new(),
            by_age: BTreeMap::new(),
            next: 0,
            entries_max,
            by_owner: HashMap::new(),
        }
    }

    /// When a key was set.
    pub(super) fn get(&self, key: &Key) -> Option<u64> {
        self.entries.get(key).map(|place| place.at)
    }

    /// How many entries an owner has.
    pub(super) fn of_owner(&self, owner: &Key) -> u32 {
        self.by_owner.get(owner).copied().unwrap_or_default()
    }

    /// Stores a key as the newest. The oldest one is removed if there are too many.
    pub(super) fn set(&mut self, entry: Entry) {
        self.remove(&entry.key);
        self.entries.insert(entry.key, Slot { number: self.next, at: entry.at });
        self.by_age.insert(self.next, entry);
        *self.by_owner.entry(entry.owner).or_default() += 1;
        self.next += 1;
        if self.entries.len() > self.entries_max
            && let Some((_, oldest)) = self.by_age.first_key_value()
        {
            let oldest = oldest.key;
            self.remove(&oldest);
        }
    }

    /// Removes a key.
    pub(super) fn remove(&mut self, key: &Key) {
        let Some(place) = self.entries.remove(key) else { return };
        let Some(entry) = self.by_age.remove(&place.number) else { return };
        if let Some(count) = self.by_owner.get_mut(&entry.owner) {
            *count -= 1;
            if *count == 0 {
                self.by_owner.remove(&entry.owner);
            }
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// At most `entries_max` entries from a number on, oldest first, and the number at which to continue; `None` at the end.
    pub(super) fn page(&self, from: u64, entries_max: usize) -> (Vec<Entry>, Option<u64>) {
        let mut numbered = self.by_age.range(from..);
        let entries = numbered.by_ref().take(entries_max).map(|(_, entry)| *entry).collect();
        (entries, numbered.next().map(|(number, _)| *number))
    }
}
