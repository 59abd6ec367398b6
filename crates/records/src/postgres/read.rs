//! Reading records and states.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use tokio_postgres::{Row, types::ToSql};

use super::{
    Shared,
    connect::Connection,
    error::{AttemptError, value as sql_value},
    schema::{account_to_sql, corrupt, state_key},
    transact::decode_head,
};
use crate::{
    AccountId, Body, Error, Get, Kind, Record, RecordId, States, entries,
    map::blobs_of,
    rows::{AccountRow, StateRow},
};

const HEAD: &str = "SELECT account, head FROM account WHERE account = $1";
// The limit keeps the planner from reading all rows of the account, however few it estimates.
const GET_WHOLE: &str = "SELECT wanted.n, e.value, e.body, b.blobs, b.bytes \
     FROM unnest($2::bytea[]) WITH ORDINALITY AS wanted (key, n) CROSS JOIN LATERAL \
     (SELECT value, body FROM entry WHERE account = $1 AND key = wanted.key LIMIT 1) e \
     LEFT JOIN body b ON b.id = e.body";
const GET_SMALL: &str = "SELECT wanted.n, e.value FROM unnest($2::bytea[]) WITH ORDINALITY AS wanted (key, n) \
     CROSS JOIN LATERAL (SELECT value FROM entry WHERE account = $1 AND key = wanted.key LIMIT 1) e";

/// The head of an account, as the transaction of the connection sees it.
pub(super) async fn head(connection: &Connection, account: AccountId) -> Result<AccountRow, AttemptError> {
    let rows = connection.query("read an account", HEAD, &[&account_to_sql(account)]).await?;
    match rows.first() {
        Some(row) => Ok(decode_head(row)?.1),
        None => Ok(AccountRow::default()),
    }
}

/// Begins a transaction in which all statements see the same moment.
pub(super) async fn begin_snapshot(connection: &Connection) -> Result<(), AttemptError> {
    connection.run("read records", "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await
}

/// Ends the transaction of [`begin_snapshot`].
pub(super) async fn end_snapshot(connection: &Connection) -> Result<(), AttemptError> {
    connection.run("read records", "COMMIT").await
}

impl Shared {
    /// [`crate::Records::states`].
    pub(super) async fn states(&self, account: AccountId) -> Result<States, Error> {
        let lease = self.reader().await?;
        let connection = lease.connection.clone();
        let head = lease.drive("read an account", head(&connection, account)).await?;
        let head = head.after_restores(self.restores());
        let kinds = head.kinds.iter().map(|share| (share.kind, share.state)).collect();
        Ok(States { revision: head.revision, kinds })
    }

    /// [`crate::Records::get`] for a checked request.
    pub(super) async fn get(&self, account: AccountId, get: &Get) -> Result<Vec<Option<Record>>, Error> {
        let keys: Vec<Vec<u8>> = get.ids.iter().map(|id| state_key(get.kind, *id)).collect();
        let sql = if get.with_body { GET_WHOLE } else { GET_SMALL };
        let may_be_raised = self.restores() > 0 && !self.counters(get.kind).is_empty();
        let lease = self.reader().await?;
        let connection = lease.connection.clone();
        let account_number = account_to_sql(account);
        let parameters: [&(dyn ToSql + Sync); 2] = [&account_number, &keys];
        let work = async {
            if !may_be_raised {
                return Ok((
                    AccountRow::default(),
                    connection.query("read records", sql, &parameters).await?,
                ));
            }
            begin_snapshot(&connection).await?;
            let head = head(&connection, account).await?;
            let rows = connection.query("read records", sql, &parameters).await?;
            end_snapshot(&connection).await?;
            Ok((head, rows))
        };
        let (head, rows) = lease.drive("read records", work).await?;
        let behind = if may_be_raised { self.restores().saturating_sub(head.restores) } else { 0 };
        let mut records = vec![None; get.ids.len()];
        for row in &rows {
            let number: i64 = sql_value(row, 0)?;
            let place = usize::try_from(number - 1).unwrap_or(usize::MAX);
            let (Some(id), Some(record)) = (get.ids.get(place), records.get_mut(place)) else { continue };
            *record = Some(self.record(account, get.kind, *id, row, 1, get.with_body, behind)?);
        }
        Ok(records)
    }

    /// Decodes the record in a row. From one column on, these are the value and, `with_body`, the number and the columns of its body.
    #[expect(clippy::too_many_arguments, reason = "they say which record, and where it is in the row")]
    pub(super) fn record(
        &self,
        account: AccountId,
        kind: Kind,
        id: RecordId,
        row: &Row,
        first: usize,
        with_body: bool,
        behind: u64,
    ) -> Result<Record, Error> {
        let value: &[u8] = sql_value(row, first)?;
        let damaged = || corrupt(account, &state_key(kind, id));
        let state = StateRow::decode(value).ok_or_else(damaged)?;
        let mut packed = state.properties;
        let mut properties = entries::take_properties(&mut packed).ok_or_else(damaged)?;
        if behind > 0 {
            properties = properties.raised(self.counters(kind), behind);
        }
        let body = if with_body { body_of(row, first + 1).ok_or_else(damaged)? } else { Body::default() };
        Ok(Record { kind, id, revision: state.revision, created: state.created, body, properties })
    }

    /// The properties of a kind that are raised after a restore.
    fn counters(&self, kind: Kind) -> &[crate::Property] {
        self.schema.kind(kind).map_or(&[][..], |kind| &kind.counters[..])
    }

    /// How many restores the records have been through.
    pub(super) fn restores(&self) -> u64 {
        self.restores.load(Ordering::Acquire)
    }
}

/// Decodes the body in a row. From column `first` on, these are its number, its blobs and its bytes; `None` when it is missing or
/// damaged.
pub(super) fn body_of(row: &Row, first: usize) -> Option<Body> {
    let number: Option<i64> = row.try_get(first).ok()?;
    if number.is_none() {
        return Some(Body::default());
    }
    let blobs: Option<&[u8]> = row.try_get(first + 1).ok()?;
    let bytes: Option<&[u8]> = row.try_get(first + 2).ok()?;
    Some(Body { bytes: Bytes::copy_from_slice(bytes?), blobs: blobs_of(blobs.unwrap_or_default())? })
}
