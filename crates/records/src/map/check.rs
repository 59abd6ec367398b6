//! Verifies the rows of an account against each other.

use std::collections::BTreeMap;

use restante_lmdb::key::take_byte;

use super::{
    keys::{
        HISTORY, INDEX, STATE, decode_history_key, decode_state_key, entry_keys, from_sql, hex, index_prefix,
        live_key, state_key, to_sql,
    },
    query::parts,
};
use crate::{
    AccountId, BODY_BLOBS_MAX, BODY_BYTES_MAX, Index, Kind, RecordId, Revision, Schema, entries,
    rows::{AccountRow, LiveRow, StateRow, TombstoneRow},
};

/// What was counted of a kind in an account.
#[derive(Default)]
pub(crate) struct Counted {
    pub(crate) records: u64,
    pub(crate) tombstones: u64,
    /// The last revision in the history.
    pub(crate) last: Revision,
}

/// The findings and the counts of an account.
pub(crate) struct Account {
    pub(crate) account: AccountId,
    pub(crate) counted: BTreeMap<Kind, Counted>,
    pub(crate) last_id: RecordId,
    pub(crate) findings: Vec<(String, String)>,
    pub(crate) records: u64,
    pub(crate) rows: u64,
}

/// A row as read in a page.
pub(crate) struct PageRow {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
    pub(crate) body: Option<i64>,
    /// The body that the row refers to, if it exists: its owner, its length and its blobs.
    pub(crate) found: Option<(i64, i32, Option<Vec<u8>>)>,
}

impl Account {
    pub(crate) fn of(account: AccountId) -> Self {
        Self {
            account,
            counted: BTreeMap::new(),
            last_id: RecordId(0),
            findings: Vec::new(),
            records: 0,
            rows: 0,
        }
    }

    fn note(&mut self, kind: Kind, id: RecordId, what: impl Into<String>) {
        let place = format!("account {} kind {} record {}", self.account.0, kind.0, id.0);
        self.findings.push((place, what.into()));
    }

    fn note_row(&mut self, key: &[u8], what: impl Into<String>) {
        self.findings.push((format!("account {} key {}", self.account.0, hex(key)), what.into()));
    }

    fn note_head(&mut self, what: impl Into<String>) {
        self.findings.push((format!("account {}", self.account.0), what.into()));
    }
}

/// Verifies a row. `there` has the rows that it is compared with.
pub(crate) fn verify(
    schema: &Schema,
    account: &mut Account,
    row: &PageRow,
    there: &BTreeMap<Vec<u8>, Vec<u8>>,
) {
    account.rows += 1;
    match row.key.first() {
        Some(&STATE) => state(schema, account, row, there),
        Some(&HISTORY) => history(account, row, there),
        Some(&INDEX) => index(schema, account, row, there),
        _ => account.note_row(&row.key, "it is no key of ours"),
    }
}

/// The keys of the rows that a row is compared with.
pub(crate) fn relations(schema: &Schema, row: &PageRow) -> Vec<Vec<u8>> {
    match row.key.first() {
        Some(&STATE) => {
            let Some(((kind, id), state)) = decode_state_key(&row.key).zip(StateRow::decode(&row.value))
            else {
                return Vec::new();
            };
            let mut keys = vec![live_key(kind, state.created, id), live_key(kind, state.revision, id)];
            let properties = entries::take_properties(&mut { state.properties });
            if let Some(properties) = properties
                && let Ok(schema) = schema.kind(kind)
            {
                for index in &schema.indexes {
                    keys.extend(entry_keys(kind, id, index, &properties).unwrap_or_default());
                }
            }
            keys
        }
        Some(&HISTORY) => decode_history_key(&row.key)
            .map(|parts| vec![state_key(parts.kind, parts.id)])
            .unwrap_or_default(),
        _ => {
            entry_of(schema, &row.key).map(|entry| vec![state_key(entry.kind, entry.id)]).unwrap_or_default()
        }
    }
}

fn state(schema: &Schema, account: &mut Account, row: &PageRow, there: &BTreeMap<Vec<u8>, Vec<u8>>) {
    let Some((kind, id)) = decode_state_key(&row.key) else {
        return account.note_row(&row.key, "it is no key of a record");
    };
    account.records += 1;
    account.counted.entry(kind).or_default().records += 1;
    account.last_id = account.last_id.max(id);
    let Some(state) = StateRow::decode(&row.value) else {
        return account.note(kind, id, "its row is damaged");
    };
    body(account, kind, id, &state, row);
    if state.created == Revision(0) || state.created > state.revision {
        let what = format!("it was created by {} and last changed by {}", state.created.0, state.revision.0);
        account.note(kind, id, what);
    } else {
        live(account, there, kind, id, state.created, LiveRow::Creation);
        if state.revision > state.created {
            live(account, there, kind, id, state.revision, LiveRow::Change { created: state.created });
        }
    }
    let Some(properties) = entries::take_properties(&mut { state.properties }) else {
        return account.note(kind, id, "its properties are damaged");
    };
    // The records of a kind that is no longer in the schema stay, without indexes.
    let Ok(schema) = schema.kind(kind) else { return };
    for index in &schema.indexes {
        let Ok(keys) = entry_keys(kind, id, index, &properties) else {
            let what = format!("it has more or longer entries in the index {} than are possible", index.name);
            account.note(kind, id, what);
            continue;
        };
        for key in keys {
            if !there.contains_key(&key) {
                account.note(kind, id, format!("an entry of it in the index {} is missing", index.name));
            }
        }
    }
}

fn body(account: &mut Account, kind: Kind, id: RecordId, state: &StateRow<'_>, row: &PageRow) {
    let named = (state.body.0 != 0).then_some(to_sql(state.body.0));
    if row.body != named {
        account.note(kind, id, "its row and its value name different bodies");
    }
    if row.body.is_none() {
        return;
    }
    let number = state.body.0;
    let Some((owner, length, blobs)) = &row.found else {
        return account.note(kind, id, format!("its body {number} is not there"));
    };
    let blobs = super::blobs_of(blobs.as_deref().unwrap_or_default());
    let is_sound = blobs.is_some_and(|blobs| blobs.len() <= BODY_BLOBS_MAX)
        && usize::try_from(*length).is_ok_and(|length| length <= BODY_BYTES_MAX);
    if !is_sound {
        account.note(kind, id, format!("its body {number} can't be read"));
    }
    if *owner != i64::from(account.account.0) {
        account.note(kind, id, format!("its body {number} belongs to account {owner}"));
    }
}

fn live(
    account: &mut Account,
    there: &BTreeMap<Vec<u8>, Vec<u8>>,
    kind: Kind,
    id: RecordId,
    revision: Revision,
    expected: LiveRow,
) {
    let event = if expected == LiveRow::Creation { "creation" } else { "last change" };
    match there.get(&live_key(kind, revision, id)) {
        None => account.note(kind, id, format!("its {event} is not in the history")),
        Some(value) if LiveRow::decode(value) != Some(expected) => {
            account.note(kind, id, format!("the row of its {event} in the history is wrong"));
        }
        Some(_) => {}
    }
}

fn history(account: &mut Account, row: &PageRow, there: &BTreeMap<Vec<u8>, Vec<u8>>) {
    let Some(parts) = decode_history_key(&row.key) else {
        return account.note_row(&row.key, "it is no key of the history");
    };
    let (kind, id, revision) = (parts.kind, parts.id, parts.revision);
    let counted = account.counted.entry(kind).or_default();
    counted.last = counted.last.max(revision);
    let state = there.get(&state_key(kind, id));
    if parts.is_gone {
        counted.tombstones += 1;
        account.last_id = account.last_id.max(id);
        let tombstone = TombstoneRow::decode(&row.value);
        let is_sound = tombstone.is_some_and(|row| row.created > Revision(0) && row.created < revision);
        if state.is_some() {
            account.note(kind, id, format!("it was destroyed by {}, and is there", revision.0));
        } else if !is_sound {
            account.note(kind, id, format!("its tombstone of revision {} is damaged", revision.0));
        }
        return;
    }
    let Some(state) = state else {
        let what = format!("the history has it at revision {}, and it is not there", revision.0);
        return account.note(kind, id, what);
    };
    let Some(state) = StateRow::decode(state) else { return }; // reported with the record
    if revision != state.created && revision != state.revision {
        let what = format!("the history has it at revision {}, which is not its last change", revision.0);
        account.note(kind, id, what);
    }
}

/// The decoded key of an index entry, with the position of the index in the schema.
struct Entry {
    kind: Kind,
    index: Index,
    id: RecordId,
}

fn entry_of(schema: &Schema, key: &[u8]) -> Option<Entry> {
    let mut rest = key.strip_prefix(&[INDEX])?;
    let (kind, index) = (Kind(take_byte(&mut rest)?), Index(take_byte(&mut rest)?));
    let schema = schema.kind(kind).ok()?.find_index(index)?;
    let (_, id) = parts(key, index_prefix(kind, index).len(), schema)?;
    Some(Entry { kind, index, id })
}

fn index(schema: &Schema, account: &mut Account, row: &PageRow, there: &BTreeMap<Vec<u8>, Vec<u8>>) {
    let Some(entry) = entry_of(schema, &row.key) else {
        return account.note_row(&row.key, "it is no entry of an index of the schema");
    };
    let Some(value) = there.get(&state_key(entry.kind, entry.id)) else {
        return account.note(entry.kind, entry.id, "an index has an entry of it, and it is not there");
    };
    let properties =
        StateRow::decode(value).and_then(|state| entries::take_properties(&mut { state.properties }));
    let Some(properties) = properties else { return }; // reported with the record
    let index = schema.kind(entry.kind).ok().and_then(|kind| kind.find_index(entry.index));
    let keys = index.and_then(|index| entry_keys(entry.kind, entry.id, index, &properties).ok());
    if !keys.unwrap_or_default().contains(&row.key) || !row.value.is_empty() {
        account.note(entry.kind, entry.id, "an index has an entry of it that its properties don't give");
    }
}

/// Compares the head with what was counted, and with the feed.
pub(crate) fn verify_head(account: &mut Account, head: &[u8], feed: Option<(i64, i64)>, last_position: i64) {
    let Some(head) = AccountRow::decode(head) else {
        return account.note_head("its row is damaged");
    };
    match feed {
        None => account.note_head("it is not in the feed"),
        Some((_, revision)) if from_sql(revision) != head.revision.0 => {
            account.note_head(format!(
                "the feed has it at revision {revision}, and it is at {}",
                head.revision.0
            ));
        }
        Some((position, _)) if position > last_position => account.note_head("it is ahead of the feed"),
        Some(_) => {}
    }
    if account.last_id >= head.next_id {
        account.note_head("it would give an id again");
    }
    for share in &head.kinds {
        account.counted.entry(share.kind).or_default();
    }
    for (kind, counted) in std::mem::take(&mut account.counted) {
        let share = head.kind(kind);
        if (share.records, share.tombstones) != (counted.records, counted.tombstones) {
            account.note_head(format!(
                "it counts {} records and {} tombstones of kind {}, and has {} and {}",
                share.records, share.tombstones, kind.0, counted.records, counted.tombstones
            ));
        }
        if counted.last > share.state || share.state > head.revision {
            account.note_head(format!("the state of its kind {} is not that of its last change", kind.0));
        }
    }
    for share in &head.kinds {
        if share.floor > head.revision {
            account.note_head(format!("the floor of its kind {} is ahead of it", share.kind.0));
        }
    }
}
