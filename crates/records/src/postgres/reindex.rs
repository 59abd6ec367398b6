//! On opening: changes the indexes to those of the requested schema. Nobody else has the records open meanwhile.

use tokio_postgres::types::ToSql;
use tracing::{info, warn};

use super::{
    connect::Connection,
    error::{AttemptError, column},
    open::{read_meta, write_meta},
    schema::{
        META_SCHEMA, account_from_sql, account_to_sql, after_prefix, decode_state_key, entry_keys,
        index_prefix, state_prefix, to_sql,
    },
};
use crate::{
    AccountId, Error, Kind, RecordId, Schema, entries,
    indexes::{Known, decode, encode, in_between, wanted},
    rows::StateRow,
};

/// Accounts that one statement processes.
const ACCOUNTS: i64 = 1_000;
/// Records whose entries are built in one transaction.
const RECORDS: usize = 1_000;

const EPOCH: &str = "UPDATE feed_head SET epoch = epoch + 1";
const LIST: &str = "SELECT account FROM account WHERE account > $1 ORDER BY account LIMIT $2";
const REMOVE: &str = "DELETE FROM entry e USING unnest($1::bigint[]) AS a \
     WHERE e.account = a AND e.key >= $2 AND e.key < $3";
const STATES: &str =
    "SELECT key, value FROM entry WHERE account = $1 AND key > $2 AND key < $3 ORDER BY key LIMIT $4";
const ADD: &str =
    "INSERT INTO entry SELECT $1, key, '' FROM unnest($2::bytea[]) AS key ON CONFLICT DO NOTHING";
const WHAT: &str = "change its indexes";

/// Whether the indexes are those of a schema, all of them complete.
pub(super) async fn has_indexes_of(connection: &Connection, schema: &Schema) -> Result<bool, AttemptError> {
    Ok(read_known(connection).await?.is_some_and(|known| known == wanted(schema)))
}

/// Makes the indexes match `schema`.
///
/// # Errors
/// `Invalid` when a record would have too many entries in a new index; those of the database.
pub(super) async fn adapt(connection: &Connection, schema: &Schema) -> Result<(), AttemptError> {
    let before = read_known(connection).await?;
    let wanted = wanted(schema);
    let is_new = before.is_none();
    let before = before.unwrap_or_default();
    let kept: Vec<Known> = before.iter().filter(|index| wanted.contains(index)).cloned().collect();
    let gone: Vec<Known> = before.into_iter().filter(|index| !kept.contains(index)).collect();
    let new: Vec<Known> = wanted.iter().filter(|index| !kept.contains(index)).cloned().collect();
    let touched: Vec<Known> = gone.iter().chain(&new).cloned().collect();
    if !is_new {
        info!(
            removed = gone.len(),
            new = new.len(),
            "the indexes of the records have changed: building the new ones"
        );
    }
    // From here on, a server that lost its lock can't commit.
    connection.run(WHAT, "BEGIN").await?;
    connection.query(WHAT, EPOCH, &[]).await?;
    write_known(connection, &in_between(&kept, &touched)).await?;
    connection.run(WHAT, "COMMIT").await?;
    let mut after = -1;
    loop {
        let accounts = list(connection, after).await?;
        for index in &touched {
            remove(connection, &accounts, index).await?;
        }
        for account in &accounts {
            build(connection, schema, account_from_sql(*account)?, &new).await?;
            after = *account;
        }
        if accounts.len() < ACCOUNTS as usize {
            break;
        }
    }
    write_known(connection, &wanted).await
}

/// The existing indexes; `None` when the tables are new.
async fn read_known(connection: &Connection) -> Result<Option<Vec<Known>>, AttemptError> {
    let Some(row) = read_meta(connection, META_SCHEMA).await? else { return Ok(None) };
    let known = decode(&row);
    let damaged = || Error::corrupt("the records don't say which indexes they have: restore a backup");
    Ok(Some(known.ok_or_else(damaged)?))
}

async fn write_known(connection: &Connection, known: &[Known]) -> Result<(), AttemptError> {
    write_meta(connection, META_SCHEMA, &encode(known)).await
}

async fn list(connection: &Connection, after: i64) -> Result<Vec<i64>, AttemptError> {
    let mut accounts = Vec::new();
    for row in connection.query(WHAT, LIST, &[&after, &ACCOUNTS]).await? {
        accounts.push(column(&row, 0)?);
    }
    Ok(accounts)
}

/// Removes the entries that accounts have in an index.
async fn remove(connection: &Connection, accounts: &[i64], index: &Known) -> Result<(), AttemptError> {
    let from = index_prefix(index.kind, index.index).into_vec();
    let parameters: [&(dyn ToSql + Sync); 3] = [&accounts, &from, &after_prefix(&from)];
    connection.query(WHAT, REMOVE, &parameters).await.map(|_| ())
}

/// Builds the entries of some indexes from the records of an account.
async fn build(
    connection: &Connection,
    schema: &Schema,
    account: AccountId,
    new: &[Known],
) -> Result<(), AttemptError> {
    for kind in schema.kinds() {
        if !new.iter().any(|index| index.kind == kind.kind) {
            continue;
        }
        let mut behind = state_prefix(kind.kind);
        let to = after_prefix(&behind);
        let (number, limit) = (account_to_sql(account), to_sql(RECORDS as u64));
        loop {
            let parameters: [&(dyn ToSql + Sync); 4] = [&number, &behind, &to, &limit];
            let rows = connection.query(WHAT, STATES, &parameters).await?;
            let mut keys: Vec<Vec<u8>> = Vec::new();
            for row in &rows {
                let (key, value): (&[u8], &[u8]) = (column(row, 0)?, column(row, 1)?);
                add_entries(schema, new, account, (key, value), &mut keys)?;
                behind = key.to_vec();
            }
            if !keys.is_empty() {
                connection.query(WHAT, ADD, &[&number, &keys]).await?;
            }
            if rows.len() < RECORDS {
                break;
            }
        }
    }
    Ok(())
}

/// Adds the entries that the record of a row has in some indexes. A damaged row has none: the check reports it.
fn add_entries(
    schema: &Schema,
    new: &[Known],
    account: AccountId,
    (key, value): (&[u8], &[u8]),
    keys: &mut Vec<Vec<u8>>,
) -> Result<(), Error> {
    let Some((kind, id)): Option<(Kind, RecordId)> = decode_state_key(key) else { return Ok(()) };
    let properties =
        StateRow::decode(value).and_then(|row| entries::take_properties(&mut { row.properties }));
    let Some(properties) = properties else {
        warn!(account = account.0, kind = kind.0, id = id.0, "a damaged record is left out of a new index");
        return Ok(());
    };
    for index in &schema.kind(kind)?.indexes {
        let is_new = new.iter().any(|known| (known.kind, known.index) == (kind, index.index));
        if is_new {
            keys.extend(entry_keys(kind, id, index, &properties)?);
        }
    }
    Ok(())
}
