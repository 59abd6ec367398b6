//! Keys of the ordered map that the engines `postgres` and `cassandra` store for each account.
//!
//! The map contains what the engine `lmdb` has in its tables `state`, `history` and `index`, with the same keys and values,
//! except that one byte for the table replaces the account in front.

use restante_lmdb::key::{KeyBuf, Pack, take_byte, take_number};

use crate::{AccountId, Error, Index, IndexSchema, Kind, RecordId, Revision, entries, rows};

/// The first byte of a key: the table of the row.
pub(crate) const STATE: u8 = 1;
pub(crate) const HISTORY: u8 = 2;
pub(crate) const INDEX: u8 = 3;

/// The bytes before the revision in a key of the history: table, kind, and whether the record is gone.
pub(crate) const HISTORY_PREFIX_BYTES: usize = 3;

/// A key of the engine `lmdb` with the byte of its table in place of the account.
fn in_table(table: u8, account: AccountId, key: &[u8]) -> Vec<u8> {
    let account_bytes = rows::account_key(account).len();
    let mut own = vec![table];
    own.extend_from_slice(key.get(account_bytes..).unwrap_or_default());
    own
}

/// The account is stored outside the keys, so any account will do to build them.
const ANY: AccountId = AccountId(0);

/// The key of a record.
pub(crate) fn state_key(kind: Kind, id: RecordId) -> Vec<u8> {
    in_table(STATE, ANY, &rows::state_key(ANY, kind, id))
}

/// The prefix of the keys of a kind's records.
pub(crate) fn state_prefix(kind: Kind) -> Vec<u8> {
    in_table(STATE, ANY, &rows::kind_prefix(ANY, kind))
}

/// The kind and the id of the key of a record.
pub(crate) fn decode_state_key(key: &[u8]) -> Option<(Kind, RecordId)> {
    let mut rest = key.strip_prefix(&[STATE])?;
    let kind = Kind(take_byte(&mut rest)?);
    let id = RecordId(take_number(&mut rest)?);
    rest.is_empty().then_some((kind, id))
}

/// The key of a commit that created or changed an existing record.
pub(crate) fn live_key(kind: Kind, revision: Revision, id: RecordId) -> Vec<u8> {
    in_table(HISTORY, ANY, &rows::live_key(ANY, kind, revision, id))
}

/// The prefix of the history keys of a kind's existing records.
pub(crate) fn live_prefix(kind: Kind) -> Vec<u8> {
    in_table(HISTORY, ANY, &rows::live_prefix(ANY, kind))
}

/// The key of a commit that destroyed a record.
pub(crate) fn tombstone_key(kind: Kind, revision: Revision, id: RecordId) -> Vec<u8> {
    in_table(HISTORY, ANY, &rows::tombstone_key(ANY, kind, revision, id))
}

/// The prefix of the keys of a kind's tombstones.
pub(crate) fn tombstone_prefix(kind: Kind) -> Vec<u8> {
    in_table(HISTORY, ANY, &rows::tombstone_prefix(ANY, kind))
}

/// The parts of a key of the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HistoryKey {
    pub(crate) kind: Kind,
    pub(crate) is_gone: bool,
    pub(crate) revision: Revision,
    pub(crate) id: RecordId,
}

/// Decodes a key of the history.
pub(crate) fn decode_history_key(key: &[u8]) -> Option<HistoryKey> {
    let mut front = key.strip_prefix(&[HISTORY])?;
    let kind = Kind(take_byte(&mut front)?);
    let is_gone = match take_byte(&mut front)? {
        0 => false,
        1 => true,
        _ => return None,
    };
    let (revision, id) = rows::decode_history_key(key, HISTORY_PREFIX_BYTES)?;
    Some(HistoryKey { kind, is_gone, revision, id })
}

/// The prefix of the keys of an index.
pub(crate) fn index_prefix(kind: Kind, index: Index) -> KeyBuf {
    KeyBuf::from_vec(in_table(INDEX, ANY, &rows::index_prefix(ANY, kind, index)))
}

/// The key of an entry of an index. A scattered index has no generations here: it is read only with values for all its parts, so
/// its entries are in the order of ids anyway.
pub(crate) fn index_key(kind: Kind, index: Index, values: &[u8], id: RecordId) -> KeyBuf {
    let mut key = index_prefix(kind, index);
    key.put_bytes(values);
    key.put_number(id.0);
    key
}

/// The keys of the entries that a record has in an index, ascending.
pub(crate) fn entry_keys(
    kind: Kind,
    id: RecordId,
    index: &IndexSchema,
    properties: &crate::Properties,
) -> Result<Vec<Vec<u8>>, Error> {
    let mut keys = Vec::new();
    for entry in entries::entries(index, properties)? {
        let mut values = KeyBuf::new();
        entries::pack_values(&mut values, &entry);
        keys.push(index_key(kind, index.index, &values, id).into_vec());
    }
    Ok(keys)
}

/// The smallest key greater than all that begin with this byte.
pub(crate) fn after(table: u8) -> Vec<u8> {
    vec![table + 1]
}

/// The smallest key greater than all that begin with `prefix`. All keys begin with a small byte, so there is one.
pub(crate) fn after_prefix(prefix: &[u8]) -> Vec<u8> {
    restante_lmdb::key::after_prefix(prefix).map_or_else(|| after(INDEX), KeyBuf::into_vec)
}

/// A number as a database column holds it. Our own counters are below `i64::MAX`; larger numbers come from a caller, and become a
/// value above all that exist.
pub(crate) fn to_sql(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A number from a database column. A negative one is damage, and becomes a number that nothing has.
pub(crate) fn from_sql(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX >> 1)
}

/// The error for a row that the engine can't have written.
pub(crate) fn corrupt(account: AccountId, key: &[u8]) -> Error {
    let what = format!(
        "the row {} of account {} is damaged: run `restante records check`, restore a backup",
        hex(key),
        account.0
    );
    Error::corrupt(what)
}

/// Bytes in hexadecimal, for messages.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_read_back_and_kinds_of_rows_are_apart() {
        let (kind, id, revision) = (Kind(7), RecordId(300), Revision(9));
        assert_eq!(decode_state_key(&state_key(kind, id)), Some((kind, id)));
        assert!(state_key(kind, id).starts_with(&state_prefix(kind)));
        let live = live_key(kind, revision, id);
        assert_eq!(decode_history_key(&live), Some(HistoryKey { kind, is_gone: false, revision, id }));
        assert!(live.starts_with(&live_prefix(kind)) && live_prefix(kind).len() == HISTORY_PREFIX_BYTES);
        let gone = tombstone_key(kind, revision, id);
        assert_eq!(decode_history_key(&gone), Some(HistoryKey { kind, is_gone: true, revision, id }));
        assert!(gone.starts_with(&tombstone_prefix(kind)));
        assert_eq!(decode_state_key(&live), None);
        assert_eq!(decode_history_key(&state_key(kind, id)), None);
    }

    #[test]
    fn numbers_that_nothing_has_stay_above_all_others() {
        assert_eq!(to_sql(u64::MAX), i64::MAX);
        assert_eq!(from_sql(to_sql(17)), 17);
    }
}
