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
    AccountHead, AccountId, Error, Kind, Record, Row, RowKey, Tombstone, Touched, Transfer, TransferState,
    entries, transfer::RowPage, validate,
};

/// Rows that are removed in one write.
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

/// Ends an account.
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
    /// Whether this store is there for another one to be copied into it, and that is not complete.
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
            let record = self.read_stored(view, account, kind, id, true)?;
            page.push(Row::Record(record.ok_or_else(|| corrupt(STATE, key))?));
        }
        Ok(())
    }

    /// Removes the head first: what is left after a crash is an account that was never ended.
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

/// Adds the tombstones of a kind behind a key.
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
        let parts = decode_history_key(key, prefix.len()).zip(TombstoneRow::decode(value));
        let ((revision, id), row) = parts.ok_or_else(|| corrupt(HISTORY, key))?;
        let (created, destroyed_seconds) = (row.created, row.second);
        page.push(Row::Tombstone(Tombstone { kind, id, created, revision, destroyed_seconds }));
    }
    Ok(())
}

/// Removes the next rows of an account in a table, with the bodies of records; returns the last one's key when there may be more:
/// what was removed is stepped over as long as it is in the commit log, so each step begins behind it.
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

/// A row that is ready for the thread that writes.
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
        // A kind that the schema lacks has no indexes.
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
