//! The tables and the keys. `docs/formats/records-cassandra.md` describes them.
//!
//! Several stores can share the tables: the name of the store is part of each partition key.

use restante_lmdb::key::Pack;

pub(super) use crate::map::keys::{
    HISTORY, INDEX, STATE, after, after_prefix, corrupt, decode_history_key, decode_state_key, entry_keys,
    hex, index_prefix, state_key, state_prefix, tombstone_prefix,
};
use crate::{AccountId, Position};

/// The version of the layout.
pub(super) const FORMAT: u64 = 2;

/// The keys of `meta`.
pub(super) const META_FORMAT: &str = "format";
pub(super) const META_IDENTITY: &str = "identity";
pub(super) const META_SCHEMA: &str = "schema";
pub(super) const META_ORIGIN: &str = "origin";
pub(super) const META_EPOCH: &str = "epoch";
pub(super) const META_RESTORES: &str = "restores";
pub(super) const META_FLOOR: &str = "floor";
pub(super) const META_INCOMPLETE: &str = "incomplete";

/// The key of an account's head, below all others.
pub(super) const HEAD: &[u8] = &[0];
/// The prefix of keys that mark bodies which no record refers to any more.
pub(super) const GONE: u8 = 4;

/// A segment, which is one partition of the feed, has 2 to the power of this many positions.
pub(super) const SEGMENT_BITS: u32 = 14;
pub(super) const SEGMENT_SLOTS: u64 = 1 << SEGMENT_BITS;
/// The slot of the row that counts the positions of a segment.
pub(super) const HEAD_SLOT: i32 = -1;
/// With each restore, positions and body numbers jump by 2 to the power of this: more than are assigned between two restores.
pub(super) const RESTORE_BITS: u32 = 40;
/// A partition of `reference` has 2 to the power of this many body numbers.
pub(super) const REFERENCE_BITS: u32 = 14;
/// A partition of `body` has 2 to the power of this many body numbers. All accounts draw from the same sequence, so where many
/// accounts are written to, smaller partitions would leave each body of a page in a partition of its own.
const BUCKET_BITS: u32 = 14;
/// A partition of `accounts` has 2 to the power of this many accounts.
const ACCOUNTS_BITS: u32 = 12;
/// The partition of `accounts` that lists the others.
pub(super) const BUCKETS: i32 = -1;

/// The table that says what a store is.
pub(super) const META_TABLE: &str = "meta";

/// The tables by name, each with its columns and its options. They are created in this order: a copy marks a new store in the
/// first one before the others exist.
pub(super) const TABLES: [(&str, &str, &str); 9] = [
    (META_TABLE, "store text, key text, value blob, PRIMARY KEY (store, key)", ""),
    (
        "account",
        "store text, account bigint, key blob, value blob, version bigint static, PRIMARY KEY ((store, account), key)",
        "gc_grace_seconds = 259200",
    ),
    (
        "body",
        "store text, account bigint, bucket bigint, number bigint, blobs blob, bytes blob, \
         PRIMARY KEY ((store, account, bucket), number)",
        "",
    ),
    (
        "reference",
        "store text, segment bigint, number bigint, account bigint, blobs blob, PRIMARY KEY ((store, segment), number)",
        "",
    ),
    (
        "feed",
        "store text, segment bigint, slot int, value blob, account bigint, done boolean, \
         PRIMARY KEY ((store, segment), slot)",
        "gc_grace_seconds = 259200",
    ),
    ("accounts", "store text, bucket int, account bigint, PRIMARY KEY ((store, bucket), account)", ""),
    (
        "follower",
        "store text, name blob, account bigint, number blob, PRIMARY KEY ((store, name), account)",
        "",
    ),
    ("server", "store text, id blob, PRIMARY KEY (store, id)", ""),
    ("lease", "store text, name text, holder blob, PRIMARY KEY ((store, name))", ""),
];

/// The options of all tables: a read never repairs half of a partition, a slow node is bypassed, and a dropped table leaves no
/// snapshot.
pub(super) const OPTIONS: &str =
    "read_repair = 'NONE' AND speculative_retry = '50ms' AND allow_auto_snapshot = false";

/// An account as Cassandra stores it.
pub(super) fn account_number(account: AccountId) -> i64 {
    i64::from(account.0)
}

/// The partition of `accounts` that contains an account.
pub(super) fn accounts_bucket(account: AccountId) -> i32 {
    (account.0 >> ACCOUNTS_BITS) as i32
}

/// The partition of `body` that contains a body.
pub(super) fn body_bucket(number: u64) -> u64 {
    number >> BUCKET_BITS
}

/// The partition and the slot of a position in the feed.
pub(super) fn slot_of(position: Position) -> (u64, i32) {
    (position.0 >> SEGMENT_BITS, (position.0 & (SEGMENT_SLOTS - 1)) as i32)
}

/// The position of a slot.
pub(super) fn position_of(segment: u64, slot: i32) -> Position {
    Position(segment << SEGMENT_BITS | u64::try_from(slot).unwrap_or(0))
}

/// The first segment after this many restores.
pub(super) fn first_segment(restores: u64) -> u64 {
    restores << (RESTORE_BITS - SEGMENT_BITS)
}

/// How many restores had happened when a segment was begun.
pub(super) fn restores_of(segment: u64) -> u64 {
    segment >> (RESTORE_BITS - SEGMENT_BITS)
}

/// The key of the row that marks a body as no longer referred to.
pub(super) fn gone_key(number: u64) -> Vec<u8> {
    let mut key = vec![GONE];
    key.put_number(number);
    key
}

/// The body number in such a key.
pub(super) fn decode_gone_key(key: &[u8]) -> Option<u64> {
    let mut rest = key.strip_prefix(&[GONE])?;
    let number = restante_lmdb::key::take_number(&mut rest)?;
    rest.is_empty().then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_have_a_slot_each_and_restores_begin_a_segment() {
        for position in [0, 1, SEGMENT_SLOTS - 1, SEGMENT_SLOTS, (3 << RESTORE_BITS) + 77] {
            let (segment, slot) = slot_of(Position(position));
            assert_eq!(position_of(segment, slot), Position(position));
            assert_eq!(restores_of(segment), position >> RESTORE_BITS);
        }
        assert_eq!(position_of(first_segment(2), 0), Position(2 << RESTORE_BITS));
    }

    #[test]
    fn keys_of_gone_bodies_read_back_and_stand_behind_all_others() {
        assert_eq!(decode_gone_key(&gone_key(1 << 41)), Some(1 << 41));
        assert_eq!(decode_gone_key(HEAD), None);
        assert!(gone_key(1) > after(STATE) && HEAD < &[STATE][..] && GONE > INDEX && HISTORY < INDEX);
    }

    #[test]
    fn the_last_account_has_a_bucket() {
        assert_eq!(accounts_bucket(AccountId(u32::MAX)), (1 << 20) - 1);
    }
}
