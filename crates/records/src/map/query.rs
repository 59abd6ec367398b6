//! Pages of an index, built from keys.

use std::ops::Bound;

use restante_lmdb::key::{KeyBuf, take_number};

use super::keys::{after_prefix, corrupt, index_key, index_prefix};
use crate::{
    AccountId, Cursor, Direction, Error, IndexSchema, Page, Query, RecordId, Revision, Value,
    entries::{self, Entry},
};

/// The page of the keys that were found; one key more than fits says that there are more.
pub(crate) fn page(
    account: AccountId,
    query: &Query,
    index: &IndexSchema,
    found: &[Vec<u8>],
    state: Revision,
) -> Result<Page, Error> {
    let known_bytes = index_prefix(query.kind, index.index).len();
    let mut page = Page { ids: Vec::new(), values: Vec::new(), next: None, state };
    let mut last: Option<(Entry, RecordId)> = None;
    for key in found.iter().take(query.limit) {
        let (values, id) = parts(key, known_bytes, index).ok_or_else(|| corrupt(account, key))?;
        page.ids.push(id);
        if query.with_values {
            let value: Option<&Value> = values.last();
            page.values.push(value.cloned().ok_or_else(|| corrupt(account, key))?);
        }
        last = Some((values, id));
    }
    if found.len() > query.limit {
        page.next = last.map(|(values, id)| -> Cursor { entries::cursor(query.kind, index, &values, id) });
    }
    Ok(page)
}

/// Decodes the values and the id in the key of an entry.
pub(crate) fn parts(key: &[u8], known_bytes: usize, index: &IndexSchema) -> Option<(Entry, RecordId)> {
    let mut rest = key.get(known_bytes..)?;
    let mut values = Entry::new();
    for _ in &index.parts {
        values.push(entries::take_value(&mut rest)?);
    }
    let id = RecordId(take_number(&mut rest)?);
    rest.is_empty().then_some((values, id))
}

/// A range of keys; `to` is not part of it.
pub(crate) struct Keys {
    pub(crate) from: Vec<u8>,
    pub(crate) to: Vec<u8>,
}

impl Keys {
    /// The keys of a query's entries, after its cursor.
    pub(crate) fn of(query: &Query, index: &IndexSchema, after: Option<&entries::EntryKey>) -> Self {
        let mut prefix = index_prefix(query.kind, index.index);
        entries::pack_values(&mut prefix, &query.equals);
        let at = |value: &Value| {
            let mut key = prefix.clone();
            entries::pack_value(&mut key, value);
            key.into_vec()
        };
        let (from, to) = &query.range;
        let mut keys = Self {
            from: match from {
                Bound::Unbounded => prefix.to_vec(),
                Bound::Included(value) => at(value),
                Bound::Excluded(value) => after_prefix(&at(value)),
            },
            to: match to {
                Bound::Unbounded => after_prefix(&prefix),
                Bound::Included(value) => after_prefix(&at(value)),
                Bound::Excluded(value) => at(value),
            },
        };
        if let Some(after) = after {
            let is_scattered = index.order == crate::IndexOrder::Scattered;
            let mut values = KeyBuf::new();
            // The walk over a scattered index is in the order of ids, so the values in the cursor don't matter.
            entries::pack_values(&mut values, if is_scattered { &query.equals } else { &after.values[..] });
            let place = index_key(query.kind, index.index, &values, after.id).into_vec();
            keys.go_on_behind(place, query.direction);
        }
        keys
    }

    /// Removes the keys up to and including `place`, in this direction.
    fn go_on_behind(&mut self, mut place: Vec<u8>, direction: Direction) {
        match direction {
            Direction::Ascending => {
                place.push(0); // the smallest key greater than it
                self.from = place.max(std::mem::take(&mut self.from));
            }
            Direction::Descending => self.to = place.min(std::mem::take(&mut self.to)),
        }
    }
}
