//! Containers of Rust's standard library as small maps, beside restante's.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{BuildHasher, RandomState},
};

use restante_bench::sessions::{Changes, EntriesRow, InfoMap, bytes_of, measure_map};
use restante_sessions::InfoBuf;
use serde::{Deserialize, Serialize};

/// The compared maps.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum MapKind {
    Restante,
    Scanned,
    Sorted,
    SipHash,
    FoldHash,
    Tree,
}

impl MapKind {
    pub(crate) const ALL: [Self; 6] =
        [Self::Restante, Self::Scanned, Self::Sorted, Self::SipHash, Self::FoldHash, Self::Tree];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Restante => InfoBuf::NAME,
            Self::Scanned => Scanned::NAME,
            Self::Sorted => Sorted::NAME,
            Self::SipHash => <Hashed<RandomState>>::NAME,
            Self::FoldHash => <Hashed<foldhash::fast::RandomState>>::NAME,
            Self::Tree => Tree::NAME,
        }
    }

    /// Times of finding and merging.
    pub(crate) fn measure(self, is_quick: bool) -> anyhow::Result<Vec<EntriesRow>> {
        match self {
            Self::Restante => measure_map::<InfoBuf>(is_quick),
            Self::Scanned => measure_map::<Scanned>(is_quick),
            Self::Sorted => measure_map::<Sorted>(is_quick),
            Self::SipHash => measure_map::<Hashed<RandomState>>(is_quick),
            Self::FoldHash => measure_map::<Hashed<foldhash::fast::RandomState>>(is_quick),
            Self::Tree => measure_map::<Tree>(is_quick),
        }
    }

    /// Bytes of a map of `keys` entries, on average over `maps` of them.
    pub(crate) fn bytes_of(self, keys: u16, maps: u32) -> anyhow::Result<f64> {
        match self {
            Self::Restante => bytes_of::<InfoBuf>(keys, maps),
            Self::Scanned => bytes_of::<Scanned>(keys, maps),
            Self::Sorted => bytes_of::<Sorted>(keys, maps),
            Self::SipHash => bytes_of::<Hashed<RandomState>>(keys, maps),
            Self::FoldHash => bytes_of::<Hashed<foldhash::fast::RandomState>>(keys, maps),
            Self::Tree => bytes_of::<Tree>(keys, maps),
        }
    }
}

/// An unsorted list, searched from the front.
#[derive(Clone)]
struct Scanned(Vec<(u16, i64)>);

impl InfoMap for Scanned {
    const NAME: &'static str = "Vec, scan";

    fn build(pairs: &[(u16, i64)]) -> Self {
        Self(pairs.to_vec())
    }

    fn find(&self, key: u16) -> Option<i64> {
        self.0.iter().find(|(found, _)| *found == key).map(|(_, value)| *value)
    }

    fn merged(&self, changes: &Changes) -> Self {
        let mut merged = self.clone();
        for (key, value) in changes.pairs() {
            match merged.0.iter_mut().find(|(found, _)| found == key) {
                Some((_, old)) => *old = *value,
                None => merged.0.push((*key, *value)),
            }
        }
        merged
    }
}

/// A list sorted by key, with binary search.
#[derive(Clone)]
struct Sorted(Vec<(u16, i64)>);

impl InfoMap for Sorted {
    const NAME: &'static str = "Vec, sorted";

    fn build(pairs: &[(u16, i64)]) -> Self {
        let mut sorted = pairs.to_vec();
        sorted.sort_unstable();
        Self(sorted)
    }

    fn find(&self, key: u16) -> Option<i64> {
        let index = self.0.binary_search_by_key(&key, |(found, _)| *found).ok()?;
        self.0.get(index).map(|(_, value)| *value)
    }

    fn merged(&self, changes: &Changes) -> Self {
        let mut merged = self.clone();
        for (key, value) in changes.pairs() {
            match merged.0.binary_search_by_key(key, |(found, _)| *found) {
                Ok(index) => {
                    if let Some((_, old)) = merged.0.get_mut(index) {
                        *old = *value;
                    }
                }
                Err(index) => merged.0.insert(index, (*key, *value)),
            }
        }
        merged
    }
}

/// The standard library's map with a hash function.
#[derive(Clone)]
struct Hashed<S>(HashMap<u16, i64, S>);

/// The name of a map with that hash function.
trait HashName: BuildHasher + Default + Clone {
    const NAME: &'static str;
}

impl HashName for RandomState {
    const NAME: &'static str = "HashMap, SipHash";
}

impl HashName for foldhash::fast::RandomState {
    const NAME: &'static str = "HashMap, foldhash";
}

impl<S: HashName> InfoMap for Hashed<S> {
    const NAME: &'static str = S::NAME;

    fn build(pairs: &[(u16, i64)]) -> Self {
        Self(pairs.iter().copied().collect())
    }

    fn find(&self, key: u16) -> Option<i64> {
        self.0.get(&key).copied()
    }

    fn merged(&self, changes: &Changes) -> Self {
        let mut merged = self.clone();
        merged.0.extend(changes.pairs().iter().copied());
        merged
    }
}

/// The standard library's B-tree.
#[derive(Clone)]
struct Tree(BTreeMap<u16, i64>);

impl InfoMap for Tree {
    const NAME: &'static str = "BTreeMap";

    fn build(pairs: &[(u16, i64)]) -> Self {
        Self(pairs.iter().copied().collect())
    }

    fn find(&self, key: u16) -> Option<i64> {
        self.0.get(&key).copied()
    }

    fn merged(&self, changes: &Changes) -> Self {
        let mut merged = self.clone();
        merged.0.extend(changes.pairs().iter().copied());
        merged
    }
}

#[cfg(test)]
mod tests {
    use restante_bench::sessions::assert_is_map;

    use super::*;

    #[test]
    fn every_map_finds_and_merges() {
        assert_is_map::<Scanned>();
        assert_is_map::<Sorted>();
        assert_is_map::<Hashed<RandomState>>();
        assert_is_map::<Hashed<foldhash::fast::RandomState>>();
        assert_is_map::<Tree>();
    }
}
