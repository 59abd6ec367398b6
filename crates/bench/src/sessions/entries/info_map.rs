//! Small maps from keys of 16 bits to numbers, as sessions have them, and restante's own.

use restante_sessions::{InfoBuf, InfoChange, InfoKey, InfoValue};

/// Entries to merge, in the form of restante and as pairs.
pub struct Changes {
    pairs: Vec<(u16, i64)>,
    info: Vec<InfoChange<'static>>,
}

impl Changes {
    /// Prepares these pairs of key and value.
    pub fn new(pairs: &[(u16, i64)]) -> Self {
        let change = |(key, value): &(u16, i64)| (InfoKey(*key), Some(InfoValue::Number(*value)));
        Self { pairs: pairs.to_vec(), info: pairs.iter().map(change).collect() }
    }

    /// Key and value of each.
    pub fn pairs(&self) -> &[(u16, i64)] {
        &self.pairs
    }
}

/// A small map.
pub trait InfoMap: Clone {
    /// The map's name in reports.
    const NAME: &'static str;

    /// Makes a map of entries in any order. A map with an order has this one.
    fn build(pairs: &[(u16, i64)]) -> Self;
    /// The value of a key.
    fn find(&self, key: u16) -> Option<i64>;
    /// A copy with these changes, as made by a session manager: new values replace old ones.
    fn merged(&self, changes: &Changes) -> Self;
}

impl InfoMap for InfoBuf {
    const NAME: &'static str = "restante";

    fn build(pairs: &[(u16, i64)]) -> Self {
        Self::new().merged(&Changes::new(pairs))
    }

    fn find(&self, key: u16) -> Option<i64> {
        self.as_info().number(InfoKey(key))
    }

    fn merged(&self, changes: &Changes) -> Self {
        let mut merged = self.clone();
        // An entry over the size limit is left out, and finding it fails later.
        let _ = merged.merge(&changes.info);
        merged
    }
}

/// Checks that a map finds and merges; panics otherwise. For tests.
pub fn assert_is_map<M: InfoMap>() {
    let pairs: Vec<_> = (1..=1_000).rev().map(|key| (key, i64::from(key) * 2)).collect();
    let map = M::build(&pairs);
    let merged = map.merged(&Changes::new(&[(5, -1), (2_000, -2)]));
    for key in 1..=1_000 {
        assert_eq!(map.find(key), Some(i64::from(key) * 2), "{} {key}", M::NAME);
    }
    assert_eq!((map.find(2_000), merged.find(5), merged.find(2_000)), (None, Some(-1), Some(-2)));
    assert_eq!(merged.find(6), Some(12));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_map_of_restante_finds_and_merges() {
        assert_is_map::<InfoBuf>();
    }
}
