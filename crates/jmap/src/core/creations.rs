//! Creation ids: the names that a client gives to the objects that it makes, until it knows their ids (RFC 8620 §3.3, §5.3).

use std::collections::{HashMap, HashSet};

use super::Id;

/// The creation ids of a request: one map for all types. When a creation id is used again, the latest object counts.
#[derive(Debug, Default)]
pub(crate) struct Creations {
    ids: HashMap<String, String>,
    is_asked: bool,
}

impl Creations {
    /// Starts with the `createdIds` of a request; if there are any, they are returned, too.
    pub(crate) fn new(sent: Option<HashMap<String, String>>) -> Self {
        Self { is_asked: sent.is_some(), ids: sent.unwrap_or_default() }
    }

    /// The id itself, or for `#` and a creation id the id of the object that was made; `None` when none was.
    pub(crate) fn resolve<'c>(&'c self, id: &'c str) -> Option<&'c str> {
        match id.strip_prefix('#') {
            Some(key) => self.ids.get(key).map(String::as_str),
            None => Some(id),
        }
    }

    /// Each id of a list once. Creation ids are resolved where possible; an unknown one is left as it is, and matches nothing.
    pub(crate) fn distinct(&self, ids: Vec<Id>) -> Vec<String> {
        let mut seen = HashSet::with_capacity(ids.len());
        let mut distinct = Vec::with_capacity(ids.len());
        for id in ids {
            let id = self.resolve(id.as_str()).map_or_else(|| id.as_str().to_owned(), str::to_owned);
            if seen.insert(id.clone()) {
                distinct.push(id);
            }
        }
        distinct
    }

    /// Stores the id of an object that was made.
    pub(crate) fn insert(&mut self, key: &str, id: impl Into<String>) {
        self.ids.insert(key.to_owned(), id.into());
    }

    /// What the response returns: `None` unless the request had `createdIds`.
    pub(crate) fn returned(&self) -> Option<&HashMap<String, String>> {
        self.is_asked.then_some(&self.ids)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r3_the_latest_object_of_a_creation_id_counts() {
        let mut creations = Creations::default();
        assert_eq!(creations.resolve("#k"), None);
        creations.insert("k", "m1");
        creations.insert("k", "e2");
        assert_eq!((creations.resolve("#k"), creations.resolve("k")), (Some("e2"), Some("k")));
    }

    #[test]
    fn r4_created_ids_are_returned_only_if_sent_with_old_and_new_entries() {
        let mut unasked = Creations::new(None);
        unasked.insert("k", "m1");
        assert!(unasked.returned().is_none());
        let mut asked = Creations::new(Some([("old".to_owned(), "m1".to_owned())].into()));
        asked.insert("new", "m2");
        assert_eq!(asked.resolve("#old"), Some("m1"));
        assert_eq!(asked.returned().map(HashMap::len), Some(2));
    }
}
