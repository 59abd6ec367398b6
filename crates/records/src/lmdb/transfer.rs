//! The store as a whole, to be copied and compared.

use std::ops::{Bound, ControlFlow};

use async_trait::async_trait;
use restante_core::Timestamp;
use restante_lmdb::{
    Batch, Direction, Table, View,
    key::{KeyBuf, after_prefix},
};

use super::{
    Engine, Faces, Ledger, blocking,
    commit::{pack, pack_body},
    schema::{
        ACCOUNT, AccountRow, BODY, BodyNumber, FEED, HISTORY, INCOMPLETE_BEGUN, INCOMPLETE_NEW, INDEX,
        LiveRow, META, META_INCOMPLETE, META_RESTORES, STATE, StateRow, TombstoneRow, account_key, body_key,
        corrupt, decode_account_key, decode_feed, decode_history_key, decode_number, decode_state_key,
        encode_feed, encode_number, feed_key, index_key, live_key, state_key, tombstone_key,
        tombstone_prefix,
    },
    walk::walk,
};
use crate::{
    AccountHead, AccountId, Damage, Error, Kind, Record, Row, RowKey, Touched, Transfer, TransferState,
    entries,
    transfer::{RowPage, damaged},
    validate,
};

/// Rows that one commit removes.
const CLEARED_ROWS: usize = 1_024;

#[async_trait]
impl Transfer for Faces {
    async fn state(&self) -> Result<TransferState, Error> {
        let restores = self.0.store.read(stored_restores)?;
        let is_incomplete = self.0.store.read(|view| Ok(is_begun(view.get(META, META_INCOMPLETE)?)))?;
        Ok(TransferState { identity: self.0.identity, restores, is_incomplete })
    }

    async fn heads(&self, after: Option<AccountId>, limit: usize) -> Result<Vec<AccountHead>, Error> {
        validate::check_heads(limit)?;
        self.read(true, move |engine| engine.heads(after, limit)).await
    }

    async fn rows(&self, account: AccountId, after: Option<RowKey>, limit: usize) -> Result<Vec<Row>, Error> {
        validate::check_rows(limit)?;
        self.read(true, move |engine| engine.rows(account, after, limit)).await
    }

    async fn begin(&self, restores: u64) -> Result<(), Error> {
        let mark = move |batch: &mut Batch<'_>| {
            batch.put(META, META_INCOMPLETE, &encode_number(INCOMPLETE_BEGUN));
            if restores > 0 {
                batch.put(META, META_RESTORES, &encode_number(restores));
            } else {
                batch.delete(META, META_RESTORES);
            }
            Ok(())
        };
        self.0.store.write(mark).await
    }

    async fn clear(&self, account: AccountId) -> Result<(), Error> {
        let engine = self.0.clone();
        blocking(move || engine.clear(account)).await
    }

    async fn put(&self, account: AccountId, rows: Vec<Row>, head: Option<AccountHead>) -> Result<(), Error> {
        let engine = self.0.clone();
        let planned = blocking(move || {
            let planned: Result<Vec<_>, Error> =
                rows.into_iter().map(|row| PlannedRow::of(&engine, account, row)).collect();
            planned
        });
        let (planned, ledger) = (planned.await?, self.0.ledger.clone());
        let write = move |batch: &mut Batch<'_>| {
            for row in planned {
                row.write(batch, &ledger);
            }
            if let Some(head) = &head {
                put_head(batch, head);
            }
            Ok(())
        };
        self.0.store.write(write).await?;
        self.0.bodies.wrote(self.0.ledger.last_body());
        Ok(())
    }

    async fn finish(&self) -> Result<(), Error> {
        let unmark = |batch: &mut Batch<'_>| {
            batch.delete(META, META_INCOMPLETE);
            Ok(())
        };
        self.0.store.write(unmark).await
    }
}

/// Whether a copy into a store with this mark has begun to write.
fn is_begun(mark: Option<&[u8]>) -> bool {
    mark.is_some_and(|mark| decode_number(mark) != Some(INCOMPLETE_NEW))
}

fn stored_restores(view: &View<'_>) -> Result<u64, Error> {
    match view.get(META, META_RESTORES)? {
        Some(value) => decode_number(value).ok_or_else(|| corrupt(META, META_RESTORES)),
        None => Ok(0),
    }
}

/// Writes the head of an account, which completes it.
fn put_head(batch: &mut Batch<'_>, head: &AccountHead) {
    let touched = Touched {
        position: head.position,
        account: head.account,
        revision: head.revision,
        committed_at: head.committed_at,
    };
    batch.put(FEED, &feed_key(head.position), &encode_feed(&touched));
    let row = AccountRow::of_head(head);
    batch.put(ACCOUNT, &account_key(head.account), &row.encode());
}

impl Engine {
    /// Whether this store was created as the target of a copy that is not complete.
    pub(super) fn is_incomplete(&self) -> Result<bool, Error> {
        self.store.read(|view| Ok(view.get(META, META_INCOMPLETE)?.is_some()))
    }

    fn heads(&self, after: Option<AccountId>, limit: usize) -> Result<Vec<AccountHead>, Error> {
        let after = after.map(account_key);
        let from = after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut heads = Vec::new();
        walk(&self.store, ACCOUNT, from, &mut |view, key, value| {
            let account = decode_account_key(key).ok_or_else(|| corrupt(ACCOUNT, key))?;
            let row = AccountRow::decode(value).ok_or_else(|| corrupt(ACCOUNT, key))?;
            let feed = feed_key(row.position);
            let committed_at = match view.get(FEED, &feed)? {
                Some(value) => decode_feed(&feed, value).ok_or_else(|| corrupt(FEED, &feed))?.committed_at,
                None => Timestamp(0),
            };
            heads.push(row.head(account, committed_at));
            Ok(if heads.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        })?;
        Ok(heads)
    }

    fn rows(&self, account: AccountId, after: Option<RowKey>, limit: usize) -> Result<Vec<Row>, Error> {
        let mut page = RowPage::new(limit);
        self.store.read(|view| {
            if !matches!(after, Some(RowKey::Tombstone(..))) {
                self.read_records(view, account, after, &mut page)?;
            }
            for share in AccountRow::read(view, account)?.kinds {
                if !page.is_full() {
                    read_tombstones(view, account, share.kind, after, &mut page)?;
                }
            }
            Ok(())
        })?;
        Ok(page.into_rows())
    }

    fn read_records(
        &self,
        view: &View<'_>,
        account: AccountId,
        after: Option<RowKey>,
        page: &mut RowPage,
    ) -> Result<(), Error> {
        let first = match after {
            Some(RowKey::Record(kind, id)) => state_key(account, kind, id),
            _ => account_key(account),
        };
        let end = after_prefix(&account_key(account));
        let to = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut rows = view.range(STATE, Bound::Excluded(&first), to, Direction::Ascending)?;
        while !page.is_full()
            && let Some((key, _)) = rows.next()?
        {
            let (_, kind, id) = decode_state_key(key).ok_or_else(|| corrupt(STATE, key))?;
            let read = self.read_stored(view, account, kind, id, true);
            let read = read.and_then(|record| record.ok_or_else(|| corrupt(STATE, key)));
            page.push(Row::of_record(kind, id, Damage::separate(read)?));
        }
        Ok(())
    }

    /// Removes the head first: after a crash, what is left is an account that was never completed.
    fn clear(&self, account: AccountId) -> Result<(), Error> {
        self.store.write_blocking(move |batch| {
            let row = AccountRow::read(batch.view(), account)?;
            batch.delete(FEED, &feed_key(row.position));
            batch.delete(ACCOUNT, &account_key(account));
            Ok(())
        })?;
        for table in [INDEX, HISTORY, STATE] {
            let mut after = account_key(account);
            while let Some(last) =
                self.store.write_blocking(move |batch| clear_rows(batch, table, account, &after))?
            {
                after = last;
            }
        }
        Ok(())
    }
}

/// Adds the tombstones of a kind that follow a key.
fn read_tombstones(
    view: &View<'_>,
    account: AccountId,
    kind: Kind,
    after: Option<RowKey>,
    page: &mut RowPage,
) -> Result<(), Error> {
    let prefix = tombstone_prefix(account, kind);
    let first = match after {
        Some(RowKey::Tombstone(of, ..)) if of > kind => return Ok(()),
        Some(RowKey::Tombstone(of, revision, id)) if of == kind => tombstone_key(account, kind, revision, id),
        _ => prefix.clone(),
    };
    let end = after_prefix(&prefix);
    let to = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    let mut rows = view.range(HISTORY, Bound::Excluded(&first), to, Direction::Ascending)?;
    while !page.is_full()
        && let Some((key, value)) = rows.next()?
    {
        let place = decode_history_key(key, prefix.len()).ok_or_else(|| corrupt(HISTORY, key))?;
        page.push(Row::of_tombstone(kind, place, TombstoneRow::decode(value), || corrupt(HISTORY, key)));
    }
    Ok(())
}

/// Removes the next rows of an account in a table, with the bodies of records; returns the last removed key when there may be
/// more: removed rows are skipped one by one as long as they are in the commit log, so each step begins after that key.
fn clear_rows(
    batch: &mut Batch<'_>,
    table: Table,
    account: AccountId,
    after: &KeyBuf,
) -> Result<Option<KeyBuf>, Error> {
    let end = after_prefix(&account_key(account));
    let to = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
    let mut rows = batch.view().range(table, Bound::Excluded(after), to, Direction::Ascending)?;
    let (mut keys, mut bodies) = (Vec::new(), Vec::new());
    while keys.len() < CLEARED_ROWS
        && let Some((key, value)) = rows.next()?
    {
        keys.push(KeyBuf::from_slice(key));
        if table == STATE {
            bodies.push(StateRow::decode(value).ok_or_else(|| corrupt(STATE, key))?.body);
        }
    }
    drop(rows);
    for body in bodies.into_iter().filter(|body| *body != BodyNumber::EMPTY) {
        batch.delete(BODY, &body_key(body));
    }
    for key in &keys {
        batch.delete(table, key);
    }
    Ok(if keys.len() < CLEARED_ROWS { None } else { keys.pop() })
}

/// A row that is ready for the writer thread.
enum PlannedRow {
    Record {
        key: KeyBuf,
        record: Record,
        body: Vec<u8>,
        properties: KeyBuf,
        puts: Vec<(Table, KeyBuf, KeyBuf)>,
    },
    Tombstone {
        key: KeyBuf,
        value: KeyBuf,
    },
}

impl PlannedRow {
    fn of(engine: &Engine, account: AccountId, row: Row) -> Result<Self, Error> {
        let record = match row {
            Row::Record(record) => record,
            Row::Damaged(key, damage) => return Err(damaged(account, key, &damage)),
            Row::Tombstone(gone) => {
                let row = TombstoneRow { created: gone.created, second: gone.destroyed_seconds };
                let key = tombstone_key(account, gone.kind, gone.revision, gone.id);
                return Ok(Self::Tombstone { key, value: row.encode() });
            }
        };
        let (kind, id) = (record.kind, record.id);
        let created = record.created;
        let mut puts = vec![(HISTORY, live_key(account, kind, created, id), LiveRow::Creation.encode())];
        if record.revision != created {
            let key = live_key(account, kind, record.revision, id);
            puts.push((HISTORY, key, LiveRow::Change { created }.encode()));
        }
        // A kind that is not in the schema has no indexes.
        let indexes = engine.ledger.schema.kind(kind).map_or(&[][..], |kind| &kind.indexes[..]);
        for index in indexes {
            for entry in entries::entries(index, &record.properties)? {
                let mut values = KeyBuf::new();
                entries::pack_values(&mut values, &entry);
                puts.push((INDEX, index_key(account, kind, index, &values, id), KeyBuf::new()));
            }
        }
        let (body, properties) = (pack_body(engine, &record.body), pack(&record.properties));
        Ok(Self::Record { key: state_key(account, kind, id), record, body, properties, puts })
    }

    fn write(self, batch: &mut Batch<'_>, ledger: &Ledger) {
        match self {
            Self::Tombstone { key, value } => batch.put(HISTORY, &key, &value),
            Self::Record { key, record, body: row, properties, puts } => {
                let mut body = BodyNumber::EMPTY;
                if !row.is_empty() {
                    body = ledger.next_body();
                    batch.put(BODY, &body_key(body), &row);
                }
                let (revision, created) = (record.revision, record.created);
                let state = StateRow { revision, created, body, properties: &properties };
                batch.put(STATE, &key, &state.encode());
                for (table, key, value) in &puts {
                    batch.put(*table, key, value);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use restante_core::ErrorKind;
    use tempfile::TempDir;

    use super::*;
    use crate::{
        Moving, Opened, RecordId, Revision, compare, copy,
        lmdb::testing::{ACCOUNT as OURS, EMAIL, create, destroy, email, engine, make},
    };

    /// A store of five emails, two of which are destroyed; the same each time.
    async fn filled() -> (TempDir, Arc<Engine>, Moving) {
        let (folder, engine) = engine();
        let ids = make(&engine, (1..=5).map(|n| create(email(1, n)))).await;
        make(&engine, [destroy(ids[3]), destroy(ids[4])]).await;
        let faces = Arc::new(Faces(engine.clone()));
        let opened =
            Opened { records: faces.clone(), feed: faces.clone(), upkeep: faces.clone(), peers: None };
        (folder, engine, Moving { opened, transfer: faces })
    }

    async fn differences(a: &Moving, b: &Moving) -> Vec<String> {
        let report = compare(a, b, &|_, _| ()).await.unwrap();
        assert_eq!((report.wrong, report.records), (report.findings.len() as u64, 5));
        report.findings.into_iter().map(|finding| format!("{}: {}", finding.place, finding.what)).collect()
    }

    async fn damage(engine: &Engine, table: Table, key: KeyBuf) {
        let damage = move |batch: &mut Batch<'_>| {
            batch.put(table, &key, b"");
            Ok(())
        };
        engine.store.write(damage).await.unwrap();
    }

    /// The comparison ended there.
    #[tokio::test]
    async fn a_comparison_reports_damaged_rows_and_goes_on_with_the_others() {
        let ((_one, first, a), (_other, second, b)) = (filled().await, filled().await);
        assert_eq!(differences(&a, &b).await, Vec::<String>::new());
        let state = state_key(OURS, EMAIL, RecordId(2));
        damage(&first, STATE, state.clone()).await;
        damage(&first, HISTORY, tombstone_key(OURS, EMAIL, Revision(2), RecordId(4))).await;
        damage(&second, STATE, state_key(OURS, EMAIL, RecordId(3))).await;
        let place = format!("account {}, kind {}, record", OURS.0, EMAIL.0);
        let expected = [
            format!("{place} 2: it can't be read in the first: the row "),
            format!("{place} 3: it can't be read in the second: the row "),
            format!("{place} 4, destroyed in revision 2: it can't be read in the first: the row "),
        ];
        let found = differences(&a, &b).await;
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (found, expected) in found.iter().zip(&expected) {
            assert!(found.starts_with(expected), "{found}");
        }
        damage(&second, STATE, state).await;
        assert_eq!(differences(&a, &b).await.len(), 4, "what is damaged in both is not equal");
    }

    #[tokio::test]
    async fn a_copy_names_the_damaged_record_that_it_refuses() {
        let (_one, from, source) = filled().await;
        damage(&from, STATE, state_key(OURS, EMAIL, RecordId(2))).await;
        let (_other, target) = engine();
        let faces = Arc::new(Faces(target));
        let opened =
            Opened { records: faces.clone(), feed: faces.clone(), upkeep: faces.clone(), peers: None };
        let error = copy(&source, &Moving { opened, transfer: faces }, &|_, _| ()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        let place = format!("account {}, kind {}, record 2 can't be read: ", OURS.0, EMAIL.0);
        assert!(error.to_string().starts_with(&place), "{error}");
    }
}
