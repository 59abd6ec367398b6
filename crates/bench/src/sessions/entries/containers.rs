//! The small maps that are compared: from keys of 16 bits to numbers.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{BuildHasher, RandomState},
};

use restante_sessions::{InfoBuf, InfoChange, InfoKey, InfoValue};

pub(super) type Pairs = [(u16, i64)];

/// Changes, as each side wants them.
pub(super) struct Changes {
    pairs: Vec<(u16, i64)>,
    info: Vec<InfoChange<'static>>,
}

impl Changes {
    pub(super) fn new(pairs: &Pairs) -> Self {
        let change = |(key, value): &(u16, i64)| (InfoKey(*key), Some(InfoValue::Number(*value)));
        Self { pairs: pairs.to_vec(), info: pairs.iter().map(change).collect() }
    }
}

/// A small map.
pub(super) trait Container: Clone {
    /// Who it is, in reports.
    const NAME: &'static str;

    /// Makes it of entries in any order; it keeps that order if it keeps any.
    fn build(pairs: &Pairs) -> Self;
    /// The value of a key.
    fn find(&self, key: u16) -> Option<i64>;
    /// Another with these changes, as a session manager makes it: new values take the place of old ones.
    fn merged(&self, changes: &Changes) -> Self;
}

impl Container for InfoBuf {
    const NAME: &'static str = "restante";

    fn build(pairs: &Pairs) -> Self {
        Self::new().merged(&Changes::new(pairs))
    }

    fn find(&self, key: u16) -> Option<i64> {
        self.as_info().number(InfoKey(key))
    }

    fn merged(&self, changes: &Changes) -> Self {
        let mut merged = self.clone();
        // What has no room is missing afterwards, which whoever looks for it finds out.
        let _ = merged.merge(&changes.info);
        merged
    }
}

/// A list that is looked through.
#[derive(Clone)]
pub(super) struct Scanned(Vec<(u16, i64)>);

impl Container for Scanned {
    const NAME: &'static str = "Vec, scan";

    fn build(pairs: &Pairs) -> Self {
        Self(pairs.to_vec())
    }

    fn find(&self, key: u16) -> Option<i64> {
        self.0.iter().find(|(found, _)| *found == key).map(|(_, value)| *value)
    }

    fn merged(&self, changes: &Changes) -> Self {
        let mut merged = self.clone();
        for (key, value) in &changes.pairs {
            match merged.0.iter_mut().find(|(found, _)| found == key) {
                Some((_, old)) => *old = *value,
                None => merged.0.push((*key, *value)),
            }
        }
        merged
    }
}

/// A list in the order of keys that is searched by halves.
#[derive(Clone)]
pub(super) struct Sorted(Vec<(u16, i64)>);

impl Container for Sorted {
    const NAME: &'static str = "Vec, sorted";

    fn build(pairs: &Pairs) -> Self {
        let mut sorted = pairs.to_vec();
        sorted.sort_unstable();
        Self(sorted)
    }

    fn find(&self, key: u16) -> Option<i64> {
        let place = self.0.binary_search_by_key(&key, |(found, _)| *found).ok()?;
        self.0.get(place).map(|(_, value)| *value)
    }

    fn merged(&self, changes: &Changes) -> Self {
        let mut merged = self.clone();
        for (key, value) in &changes.pairs {
            match merged.0.binary_search_by_key(key, |(found, _)| *found) {
                Ok(place) => {
                    if let Some((_, old)) = merged.0.get_mut(place) {
                        *old = *value;
                    }
                }
                Err(place) => merged.0.insert(place, (*key, *value)),
            }
        }
        merged
    }
}

/// The standard library's map with a hash function.
#[derive(Clone)]
pub(super) struct Hashed<S>(HashMap<u16, i64, S>);

/// The name of a map with that hash function.
pub(super) trait HashName: BuildHasher + Default + Clone {
    const NAME: &'static str;
}

impl HashName for RandomState {
    const NAME: &'static str = "HashMap, SipHash";
}

impl HashName for foldhash::fast::RandomState {
    const NAME: &'static str = "HashMap, foldhash";
}

impl<S: HashName> Container for Hashed<S> {
    const NAME: &'static str = S::NAME;

    fn build(pairs: &Pairs) -> Self {
        Self(pairs.iter().copied().collect())
    }

    fn find(&self, key: u16) -> Option<i64> {
        self.0.get(&key).copied()
    }

    fn merged(&self, changes: &Changes) -> Self {
        let mut merged = self.clone();
        merged.0.extend(changes.pairs.iter().copied());
        merged
    }
}

/// The standard library's B-tree.
#[derive(Clone)]
pub(super) struct Tree(BTreeMap<u16, i64>);

impl Container for Tree {
    const NAME: &'static str = "BTreeMap";

    fn build(pairs: &Pairs) -> Self {
        Self(pairs.iter().copied().collect())
    }

    fn find(&self, key: u16) -> Option<i64> {
        self.0.get(&key).copied()
    }

    fn merged(&self, changes: &Changes) -> Self {
        let mut merged = self.clone();
        merged.0.extend(changes.pairs.iter().copied());
        merged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finds_what_was_put_in<C: Container>() {
        let pairs: Vec<_> = (1..=1_000).rev().map(|key| (key, i64::from(key) * 2)).collect();
        let map = C::build(&pairs);
        let merged = map.merged(&Changes::new(&[(5, -1), (2_000, -2)]));
        for key in 1..=1_000 {
            assert_eq!(map.find(key), Some(i64::from(key) * 2), "{} {key}", C::NAME);
        }
        assert_eq!((map.find(2_000), merged.find(5), merged.find(2_000)), (None, Some(-1), Some(-2)));
        assert_eq!(merged.find(6), Some(12));
    }

    #[test]
    fn every_map_finds_what_was_put_in() {
        finds_what_was_put_in::<InfoBuf>();
        finds_what_was_put_in::<Scanned>();
        finds_what_was_put_in::<Sorted>();
        finds_what_was_put_in::<Hashed<RandomState>>();
        finds_what_was_put_in::<Hashed<foldhash::fast::RandomState>>();
        finds_what_was_put_in::<Tree>();
    }
}
