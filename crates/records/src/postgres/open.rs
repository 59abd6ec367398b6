//! Opening: tables, identity, restores, indexes.
//!
//! Servers take turns opening the same records by an advisory lock. Each server that has them open holds a second one in shared
//! mode, and each commit takes it, too; a server that changes the indexes takes it exclusively. `feed_head.epoch` changes with
//! the indexes, so a server that lost its lock along with its connection can't commit with outdated indexes.

use std::{sync::atomic::Ordering, time::Duration};

use restante_core::Identity;
use tracing::{info, warn};

use super::{
    Shared,
    connect::{Connection, Database},
    error::{AttemptError, Doing, column},
    reindex,
    schema::{
        self, FORMAT, INCOMPLETE_NEW, META_FORMAT, META_IDENTITY, META_INCOMPLETE, META_ORIGIN, from_sql,
        to_sql,
    },
};
use crate::{Error, PostgresUrl, Schema, rows};

/// How far positions jump for each restore: more than the commits between two restores.
pub(super) const POSITIONS_PER_RESTORE: u64 = 1 << 40;
/// How long opening with other indexes waits for servers that are closing. Commits of servers that stay open wait just as long.
const CLOSING_WAIT: Duration = Duration::from_secs(2);
/// How long servers that open the records wait for each other: one of them may build indexes.
const OPENING_WAIT: Duration = Duration::from_secs(600);

/// The advisory lock that servers hold while they open the records of a schema.
pub(super) fn opening_lock(url: &PostgresUrl) -> String {
    format!("hashtextextended('restante records opening {}', 0)", url.schema())
}

/// The advisory lock that servers hold shared while they have the records open.
pub(super) fn open_lock(url: &PostgresUrl) -> String {
    format!("hashtextextended('restante records open {}', 0)", url.schema())
}

/// What records get when they are created.
pub(super) struct New {
    pub(super) identity: Identity,
    /// They are created to copy another store into them, and are an incomplete copy from the beginning: otherwise, when a copy is
    /// killed right after it began, a server would take what it left for an empty store, and fill it.
    pub(super) is_incomplete: bool,
}

/// What is known of the records once they are open.
pub(super) struct Found {
    pub(super) identity: Identity,
    pub(super) state: State,
}

/// What changes rarely, and is the same for all servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    /// Rises whenever the indexes change.
    pub(super) epoch: i64,
    /// How many restores the records have been through.
    pub(super) restores: u64,
    /// The position of the last commit.
    pub(super) position: u64,
}

/// Creates the tables when they don't exist, checks whether the records were restored, and makes the indexes match `schema`.
///
/// The caller holds the opening lock on this connection.
pub(super) async fn prepare(
    connection: &Connection,
    database: &Database,
    url: &PostgresUrl,
    wanted: &Schema,
    new: Option<New>,
) -> Result<Found, AttemptError> {
    make_tables(connection, url, new).await?;
    let identity = check_format(connection).await?;
    let strangers = settle(connection, database).await?;
    database.connector.settled.store(strangers, Ordering::Release);
    adapt(connection, url, wanted).await?;
    Ok(Found { identity, state: read_state(connection).await? })
}

/// Takes the opening lock. It is held until [`unlock_opening`], or until the connection ends.
pub(super) async fn lock_opening(connection: &Connection, url: &PostgresUrl) -> Result<(), AttemptError> {
    let sql = format!(
        "SET statement_timeout = 0; SET lock_timeout = {}; SELECT pg_advisory_lock({}); RESET lock_timeout",
        OPENING_WAIT.as_millis(),
        opening_lock(url)
    );
    connection.run("wait for other servers that open its records", &sql).await
}

/// Releases the opening lock.
pub(super) async fn unlock_opening(connection: &Connection, url: &PostgresUrl) -> Result<(), AttemptError> {
    let sql = format!("SELECT pg_advisory_unlock({})", opening_lock(url));
    connection.run("let other servers open its records", &sql).await
}

/// Reads the state that servers share.
pub(super) async fn read_state(connection: &Connection) -> Result<State, AttemptError> {
    let sql = "SELECT epoch, restores, position FROM feed_head";
    let rows = connection.query("read its feed", sql, &[]).await?;
    let row = rows
        .first()
        .ok_or_else(|| Error::corrupt("the feed of the records has no head: restore a backup"))?;
    Ok(State {
        epoch: column(row, 0)?,
        restores: from_sql(column(row, 1)?),
        position: from_sql(column(row, 2)?),
    })
}

/// A value of `meta`.
pub(super) async fn read_meta(connection: &Connection, key: &[u8]) -> Result<Option<Vec<u8>>, AttemptError> {
    let rows =
        connection.query("read its settings", "SELECT value FROM meta WHERE key = $1", &[&key]).await?;
    rows.first().map(|row| column(row, 0)).transpose()
}

/// Writes a value of `meta`.
pub(super) async fn write_meta(
    connection: &Connection,
    key: &[u8],
    value: &[u8],
) -> Result<(), AttemptError> {
    let sql = "INSERT INTO meta VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET value = excluded.value";
    connection.query("write its settings", sql, &[&key, &value]).await.map(|_| ())
}

async fn make_tables(
    connection: &Connection,
    url: &PostgresUrl,
    new: Option<New>,
) -> Result<(), AttemptError> {
    let what = "make its tables";
    let client = &connection.client;
    let schema = url.schema();
    let sql = "SELECT 1 FROM information_schema.tables WHERE table_schema = $1 AND table_name = 'meta'";
    if client.query_opt(sql, &[&schema]).await.doing(what)?.is_some() {
        return Ok(());
    }
    let Some(new) = new else {
        return Err(Error::not_found(format!("there are no records in the schema {schema}")).into());
    };
    // The owner of a schema need not own the database.
    let sql = "SELECT 1 FROM pg_namespace WHERE nspname = $1";
    if client.query_opt(sql, &[&schema]).await.doing(what)?.is_none() {
        connection.run(what, &format!("CREATE SCHEMA \"{schema}\"")).await?;
    }
    connection.run(what, &format!("BEGIN; {}", schema::tables())).await?;
    write_meta(connection, META_FORMAT, &rows::encode_number(FORMAT)).await?;
    write_meta(connection, META_IDENTITY, &new.identity.0).await?;
    if new.is_incomplete {
        write_meta(connection, META_INCOMPLETE, &rows::encode_number(INCOMPLETE_NEW)).await?;
    }
    write_meta(connection, META_ORIGIN, origin(connection).await?.as_bytes()).await?;
    connection.run(what, "COMMIT").await?;
    info!(schema, "tables of records made");
    Ok(())
}

/// Fails for another layout; returns the identity of the records.
async fn check_format(connection: &Connection) -> Result<Identity, AttemptError> {
    let format = read_meta(connection, META_FORMAT).await?;
    match format.as_deref().and_then(rows::decode_number) {
        Some(FORMAT) => {}
        Some(other) => {
            let what = format!(
                "the records have format version {other}, and this program knows version {FORMAT}: use the version that wrote them"
            );
            return Err(Error::corrupt(what).into());
        }
        None => {
            let what = "the records don't say which format they have: restore a backup";
            return Err(Error::corrupt(what).into());
        }
    }
    let identity = read_meta(connection, META_IDENTITY).await?.and_then(|value| value.try_into().ok());
    let damaged = || Error::corrupt("the records don't say which they are: restore a backup");
    Ok(Identity(identity.ok_or_else(damaged)?))
}

/// Where the tables are: the cluster and its timeline, the database, and the id of the table `meta`, which no copy of it has.
async fn origin(connection: &Connection) -> Result<String, AttemptError> {
    let sql = "SELECT (SELECT system_identifier FROM pg_control_system()) || '/' || \
               substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8) || '/' || \
               (SELECT oid FROM pg_database WHERE datname = current_database()) || '/' || 'meta'::regclass::oid";
    let row = connection.client.query_one(sql, &[]).await.doing("say where its tables are")?;
    column(&row, 0)
}

/// Counts a restore when the tables are not where they were before: in a copy, or in a cluster that continued from a backup or a
/// standby, which may lack the last commits. Deleting the row `origin` of `meta` has the same effect.
///
/// Returns the value that `settled` of the connector gets once the number of restores is known.
async fn settle(connection: &Connection, database: &Database) -> Result<u64, AttemptError> {
    let strangers = database.connector.strangers.load(Ordering::Acquire);
    let what = "look whether its records were restored";
    connection.run(what, "BEGIN").await?;
    connection.query(what, "SELECT 1 FROM meta WHERE key = $1 FOR UPDATE", &[&META_FORMAT]).await?;
    let here = origin(connection).await?;
    let known = read_meta(connection, META_ORIGIN).await?;
    if known.as_deref() != Some(here.as_bytes()) {
        write_meta(connection, META_ORIGIN, here.as_bytes()).await?;
        let sql = "UPDATE feed_head SET restores = restores + 1, \
                   position = greatest(position, (restores + 1) * $1) RETURNING restores";
        let rows = connection.query(what, sql, &[&to_sql(POSITIONS_PER_RESTORE)]).await?;
        let restores: i64 = rows.first().map(|row| column(row, 0)).transpose()?.unwrap_or_default();
        warn!(restores, "the records come from a backup or a standby: ids and revisions go on higher up");
    }
    connection.run(what, "COMMIT").await?;
    Ok(strangers)
}

/// Whether other records are being copied into these.
pub(super) async fn is_incomplete(connection: &Connection) -> Result<bool, AttemptError> {
    Ok(read_meta(connection, META_INCOMPLETE).await?.is_some())
}

/// Takes the records exclusively for this connection: no server has them open, and none can open them until it ends.
pub(super) async fn lock_alone(connection: &Connection, url: &PostgresUrl) -> Result<(), AttemptError> {
    have_alone(connection, url, "servers have these records open: stop them first").await
}

/// Takes the lock [`open_lock`] exclusively.
async fn have_alone(
    connection: &Connection,
    url: &PostgresUrl,
    refusal: &'static str,
) -> Result<(), AttemptError> {
    let sql = format!(
        "SET lock_timeout = {}; SELECT pg_advisory_lock({}); RESET lock_timeout",
        CLOSING_WAIT.as_millis(),
        open_lock(url)
    );
    match connection.run("have its records alone", &sql).await {
        Err(error) if error.is_locked_out() => Err(Error::conflict(refusal).into()),
        done => done,
    }
}

/// Makes the indexes match the schema. No other server has the records open meanwhile.
async fn adapt(connection: &Connection, url: &PostgresUrl, wanted: &Schema) -> Result<(), AttemptError> {
    if reindex::has_indexes_of(connection, wanted).await? {
        return Ok(());
    }
    let lock = open_lock(url);
    let what = "other servers have these records open with other indexes: stop them before one of another version starts";
    have_alone(connection, url, what).await?;
    reindex::adapt(connection, wanted).await?;
    connection.run("let others have its records", &format!("SELECT pg_advisory_unlock({lock})")).await
}

impl Shared {
    /// Checks for a restore if a connection has found another database than the previous ones.
    pub(super) async fn settle_if_moved(&self) -> Result<(), Error> {
        let connector = &self.database.connector;
        if connector.is_settled() {
            return Ok(());
        }
        let lease = self.database.caretaker().await?;
        let connection = lease.connection.clone();
        let look = async {
            let strangers = settle(&connection, &self.database).await?;
            Ok((strangers, read_state(&connection).await?))
        };
        let (strangers, state) = lease.drive("look for a restore", look).await?;
        self.restores.store(state.restores, Ordering::Release);
        // Last, so that a reader that sees this value also sees the new number of restores.
        connector.settled.store(strangers, Ordering::Release);
        Ok(())
    }
}
