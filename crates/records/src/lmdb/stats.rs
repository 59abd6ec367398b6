//! Statistics.

use std::{
    collections::BTreeMap,
    ops::{Bound, ControlFlow},
};

use super::{
    Engine,
    schema::{ACCOUNT, AccountRow, TABLES, corrupt},
    walk::walk,
};
use crate::{Error, Kind, KindStats, Stats};

/// Summing the bytes of all keys and values means a walk through all rows. It is done only up to this many rows, which takes some
/// ten milliseconds.
const KEY_VALUE_ROWS_MAX: u64 = 100_000;

impl Engine {
    /// What the store holds and costs. Reads the row of each account.
    pub(super) fn stats(&self) -> Result<Stats, Error> {
        let (mut accounts, mut commits) = (0, 0);
        let mut kinds = BTreeMap::new();
        walk(&self.store, ACCOUNT, Bound::Unbounded, &mut |_, key, value| {
            let row = AccountRow::decode(value).ok_or_else(|| corrupt(ACCOUNT, key))?;
            accounts += 1;
            commits += row.commits(); // positions in the feed have gaps where a commit could not be written
            add(&mut kinds, &row);
            Ok(ControlFlow::Continue(()))
        })?;
        let files = self.store.stats()?;
        let mut figures = self.figures(&files);
        let rows: u64 = files.tables.iter().map(|table| table.rows).sum();
        if rows + files.waiting_rows <= KEY_VALUE_ROWS_MAX {
            figures.push(("key_value_bytes".to_owned(), self.key_value_bytes()?));
        }
        Ok(Stats {
            accounts,
            kinds: kinds.into_values().collect(),
            commits,
            disk_bytes: files.file_bytes + files.log_bytes,
            engine: figures,
        })
    }

    /// The bytes of all keys and values of all tables.
    fn key_value_bytes(&self) -> Result<u64, Error> {
        let mut bytes = 0;
        for table in TABLES {
            walk(&self.store, table, Bound::Unbounded, &mut |_, key, value| {
                bytes += (key.len() + value.len()) as u64;
                Ok(ControlFlow::Continue(()))
            })?;
        }
        Ok(bytes)
    }

    /// The figures of the files, the tables and the dictionaries.
    fn figures(&self, files: &restante_lmdb::Stats) -> Vec<(String, u64)> {
        let mut figures = vec![
            ("file_bytes".to_owned(), files.file_bytes),
            ("log_bytes".to_owned(), files.log_bytes),
            ("page_bytes".to_owned(), files.page_bytes),
            ("pages".to_owned(), files.pages),
            ("free_pages".to_owned(), files.free_pages),
            ("waiting_rows".to_owned(), files.waiting_rows),
            ("dictionaries".to_owned(), self.bodies.dictionaries()),
            ("dictionary_bytes".to_owned(), self.bodies.dictionary_bytes()),
        ];
        for table in &files.tables {
            figures.push((format!("{}_rows", table.name), table.rows));
            figures.push((format!("{}_pages", table.name), table.pages));
        }
        figures
    }
}

fn add(kinds: &mut BTreeMap<Kind, KindStats>, row: &AccountRow) {
    for share in &row.kinds {
        let stats = kinds.entry(share.kind).or_default();
        stats.kind = share.kind;
        stats.records += share.records;
        stats.tombstones += share.tombstones;
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        AccountId, Body, Change, Commit, KindStats, Properties,
        lmdb::{
            commit::commit,
            testing::{EMAIL, MAILBOX_KIND, create, destroy, email, engine, make},
        },
    };

    /// Regression: a commit for which there was no space had taken a position.
    #[tokio::test]
    async fn commits_that_were_not_made_are_not_counted() {
        let (_folder, engine) = engine();
        make(&engine, [create(email(1, 1))]).await;
        engine.ledger.next_position();
        make(&engine, [create(email(1, 2))]).await;
        assert_eq!(engine.stats().unwrap().commits, 2);
    }

    #[tokio::test]
    async fn accounts_kinds_and_commits_are_counted() {
        let (_folder, engine) = engine();
        let ids = make(&engine, (0..5).map(|n| create(email(1, n)))).await;
        make(&engine, ids[..2].iter().copied().map(destroy)).await;
        make(&engine, []).await;
        let mailbox =
            Change::Create { kind: MAILBOX_KIND, body: Body::default(), properties: Properties::default() };
        commit(&engine, AccountId(9), Commit::of([create(email(1, 1)), mailbox])).await.unwrap();
        let stats = engine.stats().unwrap();
        assert_eq!((stats.accounts, stats.commits), (2, 3));
        let expected = [
            KindStats { kind: EMAIL, records: 4, tombstones: 2 },
            KindStats { kind: MAILBOX_KIND, records: 1, tombstones: 0 },
        ];
        assert_eq!(stats.kinds, expected);
        assert!(stats.disk_bytes > 0);
        assert!(stats.engine.iter().any(|(name, _)| name == "body_rows"), "{:?}", stats.engine);
    }
}
