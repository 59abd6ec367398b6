//! The tables and the keys. `docs/formats/records-postgres.md` describes them.
//!
//! The keys of the ordered map `entry` are those of [`crate::map::keys`]. They are bytes, so no collation affects their order.

use crate::{AccountId, Error};

pub(super) use crate::map::keys::{
    HISTORY, HISTORY_PREFIX_BYTES, STATE, after, after_prefix, corrupt, decode_history_key, decode_state_key,
    entry_keys, from_sql, index_prefix, state_key, state_prefix, to_sql, tombstone_prefix,
};

/// The version of the layout.
pub(super) const FORMAT: u64 = 1;

/// The keys of `meta`.
pub(super) const META_FORMAT: &[u8] = b"format";
pub(super) const META_IDENTITY: &[u8] = b"identity";
pub(super) const META_SCHEMA: &[u8] = b"schema";
pub(super) const META_ORIGIN: &[u8] = b"origin";
pub(super) const META_INCOMPLETE: &[u8] = b"incomplete";
/// The value of [`META_INCOMPLETE`] until a copy into the store begins to write.
pub(super) const INCOMPLETE_NEW: u64 = 0;
/// The value of [`META_INCOMPLETE`] after that.
pub(super) const INCOMPLETE_BEGUN: u64 = 1;

/// Partitions of the ordered map, by the hash of the account: each is vacuumed separately. Their number can't be changed later.
const PARTITIONS: u32 = 32;

/// The statements that create the tables, and the only rows of two of them.
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

/// An account as PostgreSQL stores it.
pub(super) fn account_to_sql(account: AccountId) -> i64 {
    i64::from(account.0)
}

/// Decodes an account number.
pub(super) fn account_from_sql(account: i64) -> Result<AccountId, Error> {
    let account = u32::try_from(account);
    account.map(AccountId).map_err(|_| Error::corrupt("an account has a number that none can have"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_read_back() {
        assert_eq!(account_from_sql(account_to_sql(AccountId(u32::MAX))).unwrap(), AccountId(u32::MAX));
        assert!(account_from_sql(-1).is_err());
    }
}
