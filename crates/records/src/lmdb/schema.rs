//! The tables. Their keys and rows are those of [`crate::rows`].

use restante_lmdb::{
    Table, View,
    key::{KeyBuf, Pack},
};

use crate::{AccountId, Error};

pub(super) use crate::rows::*;

/// Bodies by their numbers, which rise over all accounts: new bodies are next to each other.
pub(super) const BODY: Table = Table::new(1, "body");
/// The current state of each record.
pub(super) const STATE: Table = Table::new(2, "state");
/// Which records each revision created, changed or destroyed.
pub(super) const HISTORY: Table = Table::new(3, "history");
/// The entries of all indexes.
pub(super) const INDEX: Table = Table::new(4, "index");
/// The current state of each account.
pub(super) const ACCOUNT: Table = Table::new(5, "account");
/// The last commit of each account, in the order of commits.
pub(super) const FEED: Table = Table::new(6, "feed");
/// The progress of followers.
pub(super) const FOLLOWER: Table = Table::new(7, "follower");
/// The state of the store as a whole.
pub(super) const META: Table = Table::new(8, "meta");

/// The bytes of blobs that were not durable when a commit referred to them, by their ids.
pub(super) const BLOB: Table = Table::redo(9, "blob");

/// All tables.
pub(super) const TABLES: [Table; 9] = [BODY, STATE, HISTORY, INDEX, ACCOUNT, FEED, FOLLOWER, META, BLOB];

/// The version of the layout, in [`META_FORMAT`].
pub(super) const FORMAT: u64 = 4;

/// The key in [`META`] of the version of the layout: a packed number.
pub(super) const META_FORMAT: &[u8] = b"format";
/// The key in [`META`] of the schema with which the store was last opened.
pub(super) const META_SCHEMA: &[u8] = b"schema";

/// The key in [`META`] of the store's identity: 16 bytes.
pub(super) const META_IDENTITY: &[u8] = b"identity";

/// The key in [`META`] of the number of restores that the store has been through: a packed number, absent before the first.
pub(super) const META_RESTORES: &[u8] = b"restores";

/// The key in [`META`] that marks an incomplete copy: present from the creation of the store until the copy is complete; a packed number.
pub(super) const META_INCOMPLETE: &[u8] = b"incomplete";
/// The value of [`META_INCOMPLETE`] until the copy begins to write.
pub(super) const INCOMPLETE_NEW: u64 = 0;
/// The value of [`META_INCOMPLETE`] after that.
pub(super) const INCOMPLETE_BEGUN: u64 = 1;

/// The prefix of the keys of dictionaries in [`META`]; a packed number follows.
pub(super) const META_DICTIONARY: &[u8] = b"dictionary/";

/// The key of a dictionary in [`META`].
pub(super) fn dictionary_key(number: u64) -> KeyBuf {
    let mut key = KeyBuf::from_slice(META_DICTIONARY);
    key.put_number(number);
    key
}

impl AccountRow {
    /// The row of an account, as `view` sees it.
    pub(super) fn read(view: &View<'_>, account: AccountId) -> Result<Self, Error> {
        let key = account_key(account);
        match view.get(ACCOUNT, &key)? {
            Some(value) => Self::decode(value).ok_or_else(|| corrupt(ACCOUNT, &key)),
            None => Ok(Self::default()),
        }
    }
}

/// The error for a row that the engine can't have written.
pub(super) fn corrupt(table: Table, key: &[u8]) -> Error {
    let key: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
    Error::corrupt(format!(
        "the row {key} of table {} is damaged: run `restante records check`, restore a backup",
        table.name()
    ))
}
