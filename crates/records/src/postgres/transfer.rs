//! The store as a whole, to be copied and compared.

use std::sync::atomic::Ordering;

use async_trait::async_trait;
use restante_core::Timestamp;
use tokio_postgres::types::ToSql;

use super::{
    Postgres, Shared,
    connect::Connection,
    error::{AttemptError, column},
    open::{POSITIONS_PER_RESTORE, read_meta, write_meta},
    schema::{
        INCOMPLETE_BEGUN, INCOMPLETE_NEW, META_INCOMPLETE, STATE, account_to_sql, after_prefix, corrupt,
        decode_history_key, from_sql, state_key, to_sql, tombstone_prefix,
    },
    transact::{self, DELETE_BODIES, decode_head},
};
use crate::{
    AccountHead, AccountId, Error, Kind, Position, Row, RowKey, Transfer, TransferState,
    map::{
        keys::tombstone_key,
        moving::{count_bodies, plan},
    },
    rows::{TombstoneRow, decode_number, encode_number},
    transfer::RowPage,
    validate,
};

const NANOS_PER_MILLI: i64 = 1_000_000;
/// Rows that one transaction deletes.
const CLEARED_ROWS: i64 = 1_024;
/// What was to be done, for error messages.
const WHAT: &str = "copy records";

const HEADS: &str = "SELECT a.account, a.head, f.position, f.committed_ms FROM \
     (SELECT account, head FROM account WHERE account > $1 AND head <> '' ORDER BY account LIMIT $2) a \
     LEFT JOIN feed f ON f.account = a.account ORDER BY a.account";
const ROWS: &str =
    "SELECT key, value FROM entry WHERE account = $1 AND key > $2 AND key < $3 ORDER BY key LIMIT $4";
const CLEAR_ROWS: &str = "DELETE FROM entry WHERE account = $1 AND key = ANY (ARRAY( \
     SELECT key FROM entry WHERE account = $1 ORDER BY key LIMIT $2)) RETURNING body";
const CLEAR_HEAD: &str = "DELETE FROM account WHERE account = $1";
const CLEAR_FEED: &str = "DELETE FROM feed WHERE account = $1";
const SET_RESTORES: &str = "UPDATE feed_head SET restores = $1, position = greatest(position, $2)";
const SET_POSITION: &str =
    "UPDATE feed_head SET position = greatest(position, (SELECT coalesce(max(position), 0) FROM feed))";
const UNMARK: &str = "DELETE FROM meta WHERE key = $1";

#[async_trait]
impl Transfer for Postgres {
    async fn state(&self) -> Result<TransferState, Error> {
        let shared = &self.shared;
        let mark = shared.read(WHAT, async |connection| read_meta(connection, META_INCOMPLETE).await).await?;
        // A store that was just created for the copy has the mark, but nothing that an earlier copy left.
        let is_incomplete = mark.is_some_and(|mark| decode_number(&mark) != Some(INCOMPLETE_NEW));
        Ok(TransferState { identity: shared.identity, restores: shared.restores(), is_incomplete })
    }

    async fn heads(&self, after: Option<AccountId>, limit: usize) -> Result<Vec<AccountHead>, Error> {
        validate::check_heads(limit)?;
        self.shared.move_heads(after, limit).await
    }

    async fn rows(&self, account: AccountId, after: Option<RowKey>, limit: usize) -> Result<Vec<Row>, Error> {
        validate::check_rows(limit)?;
        self.shared.move_rows(account, after, limit).await
    }

    async fn begin(&self, restores: u64) -> Result<(), Error> {
        let position = to_sql(restores.saturating_mul(POSITIONS_PER_RESTORE));
        let mark = async |connection: &Connection| {
            connection.run(WHAT, "BEGIN").await?;
            write_meta(connection, META_INCOMPLETE, &encode_number(INCOMPLETE_BEGUN)).await?;
            connection.query(WHAT, SET_RESTORES, &[&to_sql(restores), &position]).await?;
            connection.run(WHAT, "COMMIT").await
        };
        self.shared.move_write(mark).await?;
        self.shared.restores.store(restores, Ordering::Release);
        Ok(())
    }

    /// Removes the head first: after a crash, what is left is an account that was never completed.
    async fn clear(&self, account: AccountId) -> Result<(), Error> {
        let number = account_to_sql(account);
        let clear_head = async |connection: &Connection| {
            connection.run(WHAT, "BEGIN").await?;
            connection.query(WHAT, CLEAR_FEED, &[&number]).await?;
            connection.query(WHAT, CLEAR_HEAD, &[&number]).await?;
            connection.run(WHAT, "COMMIT").await
        };
        self.shared.move_write(clear_head).await?;
        loop {
            let cleared = self.shared.move_write(async |connection| clear_rows(connection, number).await);
            if cleared.await? < CLEARED_ROWS as usize {
                return Ok(());
            }
        }
    }

    async fn put(&self, account: AccountId, rows: Vec<Row>, head: Option<AccountHead>) -> Result<(), Error> {
        let bodies = count_bodies(&rows);
        let shared = &self.shared;
        let put = async |connection: &Connection| {
            let mut ids = transact::body_ids(connection, bodies).await?.into_iter();
            let writes = plan(&shared.schema, account, rows, &mut ids)?;
            transact::put(connection, &writes, head.as_ref()).await
        };
        shared.move_write(put).await
    }

    async fn finish(&self) -> Result<(), Error> {
        let finish = async |connection: &Connection| {
            connection.run(WHAT, "BEGIN").await?;
            connection.query(WHAT, SET_POSITION, &[]).await?;
            connection.query(WHAT, UNMARK, &[&META_INCOMPLETE]).await?;
            connection.run(WHAT, "COMMIT").await
        };
        self.shared.move_write(finish).await
    }
}

impl Shared {
    /// Writes a part of a copy. After an error it is unknown whether it was written.
    async fn move_write<T>(
        &self,
        work: impl AsyncFnOnce(&Connection) -> Result<T, AttemptError>,
    ) -> Result<T, Error> {
        let lease = self.caretaker().await?;
        let connection = lease.connection.clone();
        Ok(lease.drive(WHAT, work(&connection)).await?)
    }

    async fn move_heads(&self, after: Option<AccountId>, limit: usize) -> Result<Vec<AccountHead>, Error> {
        let (after, limit) = (after.map_or(-1, account_to_sql), to_sql(limit as u64));
        let read = async |connection: &Connection| connection.query(WHAT, HEADS, &[&after, &limit]).await;
        let mut heads = Vec::new();
        for row in &self.read(WHAT, read).await? {
            let (account, mut head) = decode_head(row)?;
            let position: Option<i64> = column(row, 2)?;
            let committed_ms: Option<i64> = column(row, 3)?;
            head.position = Position(position.map_or(0, from_sql));
            let committed_at = Timestamp(committed_ms.unwrap_or_default().saturating_mul(NANOS_PER_MILLI));
            heads.push(head.head(account, committed_at));
        }
        Ok(heads)
    }

    async fn move_rows(
        &self,
        account: AccountId,
        after: Option<RowKey>,
        limit: usize,
    ) -> Result<Vec<Row>, Error> {
        let mut page = RowPage::new(limit);
        let behind = match after {
            None => Some(vec![STATE]),
            Some(RowKey::Record(kind, id)) => Some(state_key(kind, id)),
            Some(RowKey::Tombstone(..)) => None,
        };
        let head = async |connection: &Connection| super::read::head(connection, account).await;
        let head = self.read(WHAT, head).await?;
        if let Some(behind) = behind {
            let mut records = Vec::new();
            // As stored: no counters are raised.
            self.dump_account(account, self.restores(), behind, limit, &mut records).await?;
            for dumped in records {
                if page.is_full() {
                    break;
                }
                page.push(Row::of_record(dumped.key.kind, dumped.key.id, dumped.record));
            }
        }
        for share in head.kinds.iter().filter(|share| share.tombstones > 0) {
            if !page.is_full() {
                self.move_tombstones(account, share.kind, after, &mut page).await?;
            }
        }
        Ok(page.into_rows())
    }

    /// Adds the tombstones of a kind that follow a key.
    async fn move_tombstones(
        &self,
        account: AccountId,
        kind: Kind,
        after: Option<RowKey>,
        page: &mut RowPage,
    ) -> Result<(), Error> {
        let prefix = tombstone_prefix(kind);
        let to = after_prefix(&prefix);
        let from = match after {
            Some(RowKey::Tombstone(of, ..)) if of > kind => return Ok(()),
            Some(RowKey::Tombstone(of, revision, id)) if of == kind => tombstone_key(kind, revision, id),
            _ => prefix,
        };
        let (number, room) = (account_to_sql(account), to_sql(page.room() as u64));
        let parameters: [&(dyn ToSql + Sync); 4] = [&number, &from, &to, &room];
        let read = async |connection: &Connection| connection.query(WHAT, ROWS, &parameters).await;
        for row in &self.read(WHAT, read).await? {
            let (key, value): (&[u8], &[u8]) = (column(row, 0)?, column(row, 1)?);
            let parts = decode_history_key(key).ok_or_else(|| corrupt(account, key))?;
            let (place, gone) = ((parts.revision, parts.id), TombstoneRow::decode(value));
            page.push(Row::of_tombstone(kind, place, gone, || corrupt(account, key)));
        }
        Ok(())
    }
}

/// Removes the next rows of an account, with the bodies of records; returns how many.
async fn clear_rows(connection: &Connection, account: i64) -> Result<usize, AttemptError> {
    connection.run(WHAT, "BEGIN").await?;
    let rows = connection.query(WHAT, CLEAR_ROWS, &[&account, &CLEARED_ROWS]).await?;
    let mut bodies: Vec<i64> = Vec::new();
    for row in &rows {
        bodies.extend(column::<Option<i64>>(row, 0)?);
    }
    connection.query(WHAT, DELETE_BODIES, &[&bodies]).await?;
    connection.run(WHAT, "COMMIT").await?;
    Ok(rows.len())
}
