//! The tables and the keys. `docs/formats/records-postgres.md` describes them.
//!
//! The ordered map `entry` has for each account what the tables `state`, `history` and `index` of the engine `lmdb` have, with
//! the same keys and values but for the account in front: one byte says which of the three. Keys are bytes, so no collation
//! orders them.

use restante_lmdb::key::{KeyBuf, Pack, take_byte, take_number};

use crate::{AccountId, Error, Index, IndexSchema, Kind, RecordId, Revision, entries, rows};

/// The version of the layout.
pub(super) const FORMAT: u64 = 1;

/// The keys of `meta`.
pub(super) const META_FORMAT: &[u8] = b"format";
pub(super) const META_IDENTITY: &[u8] = b"identity";
pub(super) const META_SCHEMA: &[u8] = b"schema";
pub(super) const META_ORIGIN: &[u8] = b"origin";
pub(super) const META_INCOMPLETE: &[u8] = b"incomplete";

/// Partitions of the ordered map, by the hash of the account: each is vacuumed by itself. Their number can't be changed later.
const PARTITIONS: u32 = 32;

/// What the key of a row of `entry` begins with.
pub(super) const STATE: u8 = 1;
pub(super) const HISTORY: u8 = 2;
pub(super) const INDEX: u8 = 3;

/// The bytes before the revision in a key of the history: what it is, the kind, and whether the record is gone.
pub(super) const HISTORY_PREFIX_BYTES: usize = 3;

/// The statements that make the tables, and the only rows of two of them.
pub(super) fn tables() -> String {
    let mut sql = String::from(
        "CREATE TABLE meta (key bytea PRIMARY KEY, value bytea NOT NULL);
         CREATE TABLE account (account bigint PRIMARY KEY, head bytea NOT NULL, made_by bytea NOT NULL)
           WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02);
         CREATE TABLE entry (account bigint, key bytea, value bytea NOT NULL, body bigint, PRIMARY KEY (account, key))
           PARTITION BY HASH (account);
         CREATE TABLE body (id bigint PRIMARY KEY, account bigint NOT NULL, blobs bytea, bytes bytea NOT NULL)
           WITH (autovacuum_vacuum_scale_factor = 0.02);
         ALTER TABLE body ALTER COLUMN bytes SET STORAGE EXTERNAL, ALTER COLUMN blobs SET STORAGE EXTERNAL;
         CREATE SEQUENCE body_id CACHE 1;
         CREATE TABLE feed (account bigint PRIMARY KEY, position bigint NOT NULL UNIQUE, revision bigint NOT NULL,
             committed_ms bigint NOT NULL)
           WITH (autovacuum_vacuum_scale_factor = 0.02);
         CREATE TABLE feed_head (is_only boolean PRIMARY KEY CHECK (is_only), position bigint NOT NULL, epoch bigint NOT NULL,
             restores bigint NOT NULL)
           WITH (fillfactor = 10, autovacuum_vacuum_threshold = 200);
         INSERT INTO feed_head VALUES (true, 0, 0, 0);
         CREATE TABLE follower (name bytea, account bigint, number bytea NOT NULL, PRIMARY KEY (name, account))
           WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02);",
    );
    for partition in 0..PARTITIONS {
        sql.push_str(&format!(
            "CREATE TABLE entry_{partition} PARTITION OF entry
               FOR VALUES WITH (MODULUS {PARTITIONS}, REMAINDER {partition})
               WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02);"
        ));
    }
    sql
}

/// A key of the engine `lmdb` with the byte of its table in the place of its account.
fn in_table(table: u8, account: AccountId, key: &[u8]) -> Vec<u8> {
    let account_bytes = rows::account_key(account).len();
    let mut own = vec![table];
    own.extend_from_slice(key.get(account_bytes..).unwrap_or_default());
    own
}

/// The account stands beside the keys, and so any one will do to make them.
const ANY: AccountId = AccountId(0);

/// The key of a record.
pub(super) fn state_key(kind: Kind, id: RecordId) -> Vec<u8> {
    in_table(STATE, ANY, &rows::state_key(ANY, kind, id))
}

/// What the keys of the records of a kind begin with.
pub(super) fn state_prefix(kind: Kind) -> Vec<u8> {
    in_table(STATE, ANY, &rows::kind_prefix(ANY, kind))
}

/// The kind and the id of the key of a record.
pub(super) fn decode_state_key(key: &[u8]) -> Option<(Kind, RecordId)> {
    let mut rest = key.strip_prefix(&[STATE])?;
    let kind = Kind(take_byte(&mut rest)?);
    let id = RecordId(take_number(&mut rest)?);
    rest.is_empty().then_some((kind, id))
}

/// The key of a commit that created or changed a record which is there.
pub(super) fn live_key(kind: Kind, revision: Revision, id: RecordId) -> Vec<u8> {
    in_table(HISTORY, ANY, &rows::live_key(ANY, kind, revision, id))
}

/// What the keys of the history of a kind's existing records begin with.
pub(super) fn live_prefix(kind: Kind) -> Vec<u8> {
    in_table(HISTORY, ANY, &rows::live_prefix(ANY, kind))
}

/// The key of a commit that destroyed a record.
pub(super) fn tombstone_key(kind: Kind, revision: Revision, id: RecordId) -> Vec<u8> {
    in_table(HISTORY, ANY, &rows::tombstone_key(ANY, kind, revision, id))
}

/// What the keys of a kind's tombstones begin with.
pub(super) fn tombstone_prefix(kind: Kind) -> Vec<u8> {
    in_table(HISTORY, ANY, &rows::tombstone_prefix(ANY, kind))
}

/// What a key of the history says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HistoryKey {
    pub(super) kind: Kind,
    pub(super) is_gone: bool,
    pub(super) revision: Revision,
    pub(super) id: RecordId,
}

/// The parts of a key of the history.
pub(super) fn decode_history_key(key: &[u8]) -> Option<HistoryKey> {
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

/// What the keys of an index begin with.
pub(super) fn index_prefix(kind: Kind, index: Index) -> KeyBuf {
    KeyBuf::from_vec(in_table(INDEX, ANY, &rows::index_prefix(ANY, kind, index)))
}

/// The key of an entry of an index. A scattered index has no generations here: all its parts are given when it is read, so its
/// entries are in the order of ids as they stand.
pub(super) fn index_key(kind: Kind, index: Index, values: &[u8], id: RecordId) -> KeyBuf {
    let mut key = index_prefix(kind, index);
    key.put_bytes(values);
    key.put_number(id.0);
    key
}

/// The keys of the entries that a record has in an index, ascending.
pub(super) fn entry_keys(
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

/// The smallest key above all that begin with a byte.
pub(super) fn after(table: u8) -> Vec<u8> {
    vec![table + 1]
}

/// The smallest key above all that begin with a prefix. All keys begin with a small byte, so there is one.
pub(super) fn after_prefix(prefix: &[u8]) -> Vec<u8> {
    restante_lmdb::key::after_prefix(prefix).map_or_else(|| after(INDEX), KeyBuf::into_vec)
}

/// A number as PostgreSQL has it. Numbers of ours that count something are smaller than the largest; others, that a caller made
/// up, are above all that are there.
pub(super) fn to_sql(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A number of ours. A negative one is damage, and is read as one that nothing has.
pub(super) fn from_sql(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX >> 1)
}

/// An account as PostgreSQL has it.
pub(super) fn account_to_sql(account: AccountId) -> i64 {
    i64::from(account.0)
}

/// An account of ours.
pub(super) fn account_from_sql(account: i64) -> Result<AccountId, Error> {
    let account = u32::try_from(account);
    account.map(AccountId).map_err(|_| Error::corrupt("an account has a number that none can have"))
}

/// A row that nobody can have written.
pub(super) fn corrupt(account: AccountId, key: &[u8]) -> Error {
    let what = format!(
        "the row {} of account {} is damaged: run `restante records check`, restore a backup",
        hex(key),
        account.0
    );
    Error::corrupt(what)
}

/// Bytes for people.
pub(super) fn hex(bytes: &[u8]) -> String {
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
        assert_eq!(account_from_sql(account_to_sql(AccountId(u32::MAX))).unwrap(), AccountId(u32::MAX));
        assert!(account_from_sql(-1).is_err());
    }
}
