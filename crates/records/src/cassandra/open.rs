//! Opening: tables, identity, restores, indexes.
//!
//! Servers take turns opening the same records by a lease. Each server that has them open announces that every few seconds; a
//! server that changes the indexes must be alone. Each account's head says which indexes it has, so a server that was wrongly
//! thought to be gone can't commit with outdated indexes. A process that moves the records has another lease, and no server can
//! open them meanwhile.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use restante_core::Identity;
use scylla::value::{CqlValue, Row};
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::{
    Shared,
    connect::{BACK_OFF_MIN, Database, blob, bytes, change_schema, jittered, text},
    options, reindex,
    schema::{
        FORMAT, META_EPOCH, META_FORMAT, META_IDENTITY, META_INCOMPLETE, META_ORIGIN, META_RESTORES,
        META_TABLE, OPTIONS, TABLES,
    },
};
use crate::{
    CassandraUrl, Config, Error,
    map::announce::Announcements,
    open::Purpose,
    rows::{decode_number, encode_number},
    transfer::incomplete,
};

/// How long opening with other indexes waits for servers that are closing.
const CLOSING_WAIT: Duration = Duration::from_secs(5);
/// How long servers that open the records wait for each other.
const OPENING_WAIT: Duration = Duration::from_secs(300);
/// With this many replicas, a power cut in one location loses nothing that was acknowledged.
const REPLICAS_SAFE: u64 = 3;
/// The version of the row that marks a store as an incomplete copy.
const INCOMPLETE: u64 = 1;
/// The error when records are to be moved while servers have them open.
const IN_USE: &str =
    "servers have these records open: stop them first, and wait for half a minute if one has crashed";

const META: &str = "SELECT value FROM meta WHERE store = ? AND key = ?";
const PUT_META: &str = "INSERT INTO meta (store, key, value) VALUES (?, ?, ?) IF NOT EXISTS";
const DELETE_META: &str = "DELETE FROM meta WHERE store = ? AND key = ? IF EXISTS";
const MOVE_META: &str = "UPDATE meta SET value = ? WHERE store = ? AND key = ? IF value = ?";
// A lease expires by itself when its holder has died.
const LEASE: &str = "INSERT INTO lease (store, name, holder) VALUES (?, ?, ?) IF NOT EXISTS USING TTL ?";
const RENEW: &str = "UPDATE lease USING TTL ? SET holder = ? WHERE store = ? AND name = ? IF holder = ?";
const HELD: &str = "SELECT holder FROM lease WHERE store = ? AND name = ?";
const RELEASE: &str = "DELETE FROM lease WHERE store = ? AND name = ? IF holder = ?";
const PRESENT: &str = "INSERT INTO server (store, id) VALUES (?, ?) USING TTL 30";
const LEAVE: &str = "DELETE FROM server WHERE store = ? AND id = ?";
const SERVERS: &str = "SELECT id FROM server WHERE store = ?";

/// Held while opening the records.
const OPENING: Lease = Lease { name: "opening", seconds: 60 };
/// Held by a process that moves the records, as long as it has them open.
const MOVING: Lease = Lease { name: "moving", seconds: 30 };
/// How often the lease [`MOVING`] is renewed.
const MOVING_RENEWED: Duration = Duration::from_secs(5);
/// How long a move waits for the lease of an interrupted one.
const MOVING_WAIT: Duration = Duration::from_secs(35);

/// A lease that one process holds at a time, and its duration.
struct Lease {
    name: &'static str,
    seconds: i32,
}

/// What changes rarely, and is the same for all servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    /// Rises whenever the indexes change.
    pub(super) epoch: u64,
    /// How many restores the records have been through.
    pub(super) restores: u64,
}

/// Connects to the keyspace of the records. Creates the keyspace and its tables when they don't exist.
pub(super) async fn database(
    url: &CassandraUrl,
    config: &Config,
    purpose: Purpose,
) -> Result<Database, Error> {
    let database = match Database::open(url, config).await {
        Ok(database) => database,
        Err(error) => {
            if !make_keyspace(url, config).await? {
                return Err(error);
            }
            Database::open(url, config).await?
        }
    };
    let tables = tables(&database, url).await?;
    for (name, columns, own_options) in TABLES {
        match tables.get(name) {
            Some(row) => check_options(url, name, row)?,
            None if config.must_exist => return Err(not_there(url)),
            None => {
                let own_options =
                    if own_options.is_empty() { String::new() } else { format!(" AND {own_options}") };
                let make =
                    format!("CREATE TABLE IF NOT EXISTS {name} ({columns}) WITH {OPTIONS}{own_options}");
                database.change_schema("make its tables", &make).await?;
            }
        }
        if name == META_TABLE && purpose == Purpose::Move && !config.must_exist {
            mark_new(&database, url).await?;
        }
    }
    if tables.is_empty() {
        info!(keyspace = url.keyspace(), "tables of records made");
    }
    warn_of_lost_writes(&database, url).await;
    Ok(database)
}

/// Marks a store that does not exist as an incomplete copy, before anything else of it is created. Otherwise, when a copy is
/// killed right after it began, a server would take what it left for an empty store, and fill it.
async fn mark_new(database: &Database, url: &CassandraUrl) -> Result<(), Error> {
    let format = vec![text(url.store()), text(META_FORMAT)];
    if !database.read_serial("read its settings", META, format).await?.is_empty() {
        return Ok(());
    }
    let values = vec![text(url.store()), text(META_INCOMPLETE), blob(&encode_number(INCOMPLETE)[..])];
    compare_until_known(database, PUT_META, values).await.map(drop) // refused when an earlier copy wrote it
}

fn not_there(url: &CassandraUrl) -> Error {
    Error::not_found(format!(
        "there is no store '{}' of records in the keyspace {}",
        url.store(),
        url.keyspace()
    ))
}

/// Creates the keyspace; returns whether it did not exist.
async fn make_keyspace(url: &CassandraUrl, config: &Config) -> Result<bool, Error> {
    let what = "make its keyspace";
    let session = options::connect(url, &config.cassandra, false).await?;
    let text = "SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = ?";
    let found = session.query_unpaged(text, (url.keyspace(),)).await;
    let found = found.map_err(|error| super::error::failed(what, &error))?.into_rows_result();
    if found.map_err(|error| super::error::failed(what, &error))?.rows_num() > 0 {
        return Ok(false);
    }
    if config.must_exist {
        return Err(not_there(url));
    }
    let local = session.query_unpaged("SELECT data_center FROM system.local", ()).await;
    let local = local.map_err(|error| super::error::failed(what, &error))?.into_rows_result();
    let local = local.map_err(|error| super::error::failed(what, &error))?;
    let (local,) = local.first_row::<(String,)>().map_err(|error| super::error::failed(what, &error))?;
    let datacenter = url.parameter("datacenter").map_or(local, str::to_owned);
    let cluster = session.get_cluster_state();
    let is_here =
        |node: &&std::sync::Arc<scylla::cluster::Node>| node.datacenter.as_deref() == Some(&datacenter);
    let nodes = cluster.get_nodes_info().iter().filter(is_here).count();
    let replicas = config.cassandra.replication.get().min(nodes.max(1));
    let make = format!(
        "CREATE KEYSPACE IF NOT EXISTS {} WITH replication = {{'class': 'NetworkTopologyStrategy', '{}': {replicas}}}",
        url.keyspace(),
        datacenter.replace('\'', "''")
    );
    change_schema(&session, what, &make).await?;
    info!(keyspace = url.keyspace(), datacenter, replicas, "keyspace of records made");
    Ok(true)
}

/// The existing tables, with their options and ids.
async fn tables(database: &Database, url: &CassandraUrl) -> Result<BTreeMap<String, Row>, Error> {
    let text = "SELECT table_name, id, read_repair, speculative_retry, allow_auto_snapshot \
                FROM system_schema.tables WHERE keyspace_name = ?";
    let values = vec![CqlValue::Text(url.keyspace().to_owned())];
    let rows = database.ask("look for its tables", text, values).await?;
    Ok(rows.into_iter().filter_map(|row| Some((text_of(&row, 0)?.to_owned(), row))).collect())
}

fn text_of(row: &Row, column: usize) -> Option<&str> {
    row.columns.get(column)?.as_ref()?.as_text().map(String::as_str)
}

/// Fails for a table that could show half a commit; warns of options that slow reads down or waste disk space.
fn check_options(url: &CassandraUrl, table: &str, row: &Row) -> Result<(), Error> {
    let keyspace = url.keyspace();
    if text_of(row, 2).is_some_and(|value| value != "NONE") {
        let what = format!(
            "the table {keyspace}.{table} has a read_repair that mends half of a commit: \
             run ALTER TABLE {keyspace}.{table} WITH read_repair = 'NONE'"
        );
        return Err(Error::invalid(what));
    }
    if text_of(row, 3).is_some_and(|value| !value.starts_with("50")) {
        warn!(
            table,
            "reads wait for a node that has stopped: ALTER TABLE ... WITH speculative_retry = '50ms'"
        );
    }
    if matches!(row.columns.get(4), Some(Some(CqlValue::Boolean(true)))) {
        warn!(
            table,
            "a table that is dropped keeps its disk: ALTER TABLE ... WITH allow_auto_snapshot = false"
        );
    }
    Ok(())
}

/// Warns when a power cut may lose what was acknowledged.
async fn warn_of_lost_writes(database: &Database, url: &CassandraUrl) {
    let what = "say how it syncs";
    let text = "SELECT value FROM system_views.settings WHERE name = 'commitlog_sync'";
    let Ok(settings) = database.ask(what, text, Vec::new()).await else {
        info!("cassandra doesn't say how its commit log is synced: system_views.settings can't be read");
        return;
    };
    let is_periodic = settings.first().and_then(|row| text_of(row, 0)) == Some("periodic");
    let text = "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = ?";
    let values = vec![CqlValue::Text(url.keyspace().to_owned())];
    let replication = database.ask(what, text, values).await.unwrap_or_default();
    let replicas = replication.first().map_or(0, replicas_of);
    if is_periodic && replicas < REPLICAS_SAFE {
        warn!(
            replicas,
            "commitlog_sync is periodic, so a power cut loses what was acknowledged in the last seconds: \
             set commitlog_sync: batch or group, or keep three replicas in places that fail one by one"
        );
    }
}

/// The number of replicas, in the data center that has the most.
fn replicas_of(row: &Row) -> u64 {
    let Some(Some(CqlValue::Map(options))) = row.columns.first() else { return 0 };
    let counts = options.iter().filter_map(|(_, value)| value.as_text()?.split('/').next()?.parse().ok());
    counts.max().unwrap_or(0)
}

/// Prepares the store. No other server does so at the same time.
pub(super) async fn begin(shared: &mut Shared, must_exist: bool, purpose: Purpose) -> Result<(), Error> {
    let holder = Identity::random();
    lock_opening(shared, holder).await?;
    let prepared = prepare(shared, must_exist, holder, purpose).await;
    let released = release(shared, &OPENING, holder).await;
    prepared?;
    released?;
    let end = shared.settled_end().await?;
    shared.announcements = Announcements::from(end);
    Ok(())
}

async fn prepare(
    shared: &mut Shared,
    must_exist: bool,
    holder: Identity,
    purpose: Purpose,
) -> Result<(), Error> {
    if purpose == Purpose::Serve {
        check_not_moved(shared).await?; // first, so that this server does not turn a copy that has begun into a store
    }
    shared.identity = check_format(shared, must_exist).await?;
    match purpose {
        Purpose::Serve => check_not_moved(shared).await?, // again, since a copy may have begun before the format was written
        Purpose::Move => {
            shared.be_alone(IN_USE).await?;
            lock_moving(shared, holder).await?;
            shared.moving = Some(holder);
        }
    }
    settle_restore(shared).await?;
    let state = shared.read_state().await?;
    shared.epoch = state.epoch;
    *shared.restores.get_mut() = state.restores;
    reindex::adapt(shared, holder).await?;
    match purpose {
        Purpose::Serve => shared.be_present().await,
        // Building indexes may have taken longer than the lease lasts. Nobody else can have opened the records meanwhile.
        Purpose::Move => lock_moving(shared, holder).await,
    }
}

/// Fails for records that are being moved, and for an incomplete copy.
async fn check_not_moved(shared: &Shared) -> Result<(), Error> {
    let values = vec![text(shared.store()), text(MOVING.name)];
    if !shared.database.read_serial("look whether it is moved", HELD, values).await?.is_empty() {
        return Err(Error::conflict(
            "these records are being copied or compared: wait for the end, or for half a minute if that has crashed",
        ));
    }
    match shared.is_incomplete().await? {
        true => Err(incomplete()),
        false => Ok(()),
    }
}

/// Fails for another layout; returns the identity of the records. Creates what does not exist.
async fn check_format(shared: &Shared, must_exist: bool) -> Result<Identity, Error> {
    match shared.meta(META_FORMAT).await?.as_deref().map(decode_number) {
        Some(Some(FORMAT)) => {}
        Some(Some(other)) => {
            let what = format!(
                "the records have format version {other}, and this program knows version {FORMAT}: use the version that wrote them"
            );
            return Err(Error::corrupt(what));
        }
        Some(None) => {
            return Err(Error::corrupt("the records don't say which format they have: restore a backup"));
        }
        None if must_exist => return Err(not_there(&shared.url)),
        None => {
            shared.is_new.store(true, Ordering::Release);
            // The format is written last: without it, the next opening starts over.
            if shared.meta(META_IDENTITY).await?.is_none() {
                shared.put_meta(META_IDENTITY, &shared.identity.0).await?;
            }
            shared.put_meta(META_ORIGIN, origin(shared).await?.as_bytes()).await?;
            shared.put_meta(META_RESTORES, &encode_number(0)).await?;
            shared.put_meta(META_EPOCH, &encode_number(1)).await?;
            shared.put_meta(META_FORMAT, &encode_number(FORMAT)).await?;
            info!(keyspace = shared.url.keyspace(), store = shared.store(), "store of records made");
        }
    }
    let identity = shared.meta(META_IDENTITY).await?.and_then(|value| value.try_into().ok());
    let damaged = || Error::corrupt("the records don't say which they are: restore a backup");
    Ok(Identity(identity.ok_or_else(damaged)?))
}

/// Where the rows are: the store, and the id of the table of accounts, which no copy of it has.
async fn origin(shared: &Shared) -> Result<String, Error> {
    let tables = tables(&shared.database, &shared.url).await?;
    let id = tables.get("account").and_then(|row| row.columns.get(1)?.as_ref()?.as_uuid());
    let id = id.ok_or_else(|| Error::unavailable("cassandra doesn't know the table account yet"))?;
    Ok(format!("{id}/{}", shared.store()))
}

/// Counts a restore when the rows are not where they were before. Deleting the row `origin` of `meta` has the same effect.
async fn settle_restore(shared: &Shared) -> Result<(), Error> {
    let here = origin(shared).await?;
    if shared.meta(META_ORIGIN).await?.as_deref() == Some(here.as_bytes()) {
        return Ok(());
    }
    let restores = shared.read_state().await?.restores + 1;
    // If this is interrupted, the next opening counts one restore more, which does no harm.
    shared.put_meta(META_RESTORES, &encode_number(restores)).await?;
    shared.put_meta(META_ORIGIN, here.as_bytes()).await?;
    warn!(restores, "the records come from a backup: ids and revisions go on higher up");
    Ok(())
}

/// Takes the lease of those that open the records.
async fn lock_opening(shared: &Shared, holder: Identity) -> Result<(), Error> {
    let deadline = Instant::now() + OPENING_WAIT;
    let mut is_waiting = false;
    while !take(shared, &OPENING, holder).await? {
        if Instant::now() >= deadline {
            return Err(Error::unavailable("another server opens the records for so long: try again later"));
        }
        if !is_waiting {
            info!(
                seconds_max = OPENING.seconds,
                "waiting for another server that is opening these records, or has crashed while it did"
            );
            is_waiting = true;
        }
        tokio::time::sleep(jittered(BACK_OFF_MIN * 5)).await;
    }
    Ok(())
}

/// Takes the lease [`MOVING`]. The caller holds [`OPENING`].
async fn lock_moving(shared: &Shared, holder: Identity) -> Result<(), Error> {
    let deadline = Instant::now() + MOVING_WAIT;
    let mut is_waiting = false;
    while !renew(shared, &MOVING, holder).await? && !take(shared, &MOVING, holder).await? {
        if Instant::now() >= deadline {
            return Err(Error::conflict("these records are being copied or compared by another process"));
        }
        if !is_waiting {
            info!("waiting for another copy or comparison of these records, which may have crashed");
            is_waiting = true;
        }
        tokio::time::sleep(jittered(BACK_OFF_MIN * 25)).await;
    }
    Ok(())
}

/// Takes a lease; returns whether it is held now.
async fn take(shared: &Shared, lease: &Lease, holder: Identity) -> Result<bool, Error> {
    let mut values = vec![text(shared.store()), text(lease.name), blob(holder.0)];
    values.push(CqlValue::Int(lease.seconds));
    match compare_until_known(&shared.database, LEASE, values).await? {
        None => Ok(true),
        // Held already when an earlier attempt, whose answer was lost, has taken it.
        Some(columns) => Ok(columns.get("holder") == Some(&blob(holder.0))),
    }
}

/// Renews a lease; returns whether it was still held.
async fn renew(shared: &Shared, lease: &Lease, holder: Identity) -> Result<bool, Error> {
    let mut values = vec![CqlValue::Int(lease.seconds), blob(holder.0)];
    values.extend([text(shared.store()), text(lease.name), blob(holder.0)]);
    Ok(compare_until_known(&shared.database, RENEW, values).await?.is_none())
}

async fn release(shared: &Shared, lease: &Lease, holder: Identity) -> Result<(), Error> {
    let values = vec![text(shared.store()), text(lease.name), blob(holder.0)];
    compare_until_known(&shared.database, RELEASE, values).await.map(drop)
}

/// Keeps renewing the lease of a process that moves the records. When the lease may have expired, nothing is written any more: a
/// server may have the records open.
pub(super) async fn hold(shared: Arc<Shared>) {
    let Some(holder) = shared.moving else { return };
    let lasts = Duration::from_secs(MOVING.seconds.unsigned_abs().into());
    let mut until = Instant::now() + lasts;
    loop {
        let begun = Instant::now();
        let renewed = {
            let has_left = shared.has_left.lock().await;
            if *has_left {
                return;
            }
            tokio::time::timeout_at(until, renew(&shared, &MOVING, holder)).await
        };
        match renewed {
            Ok(Ok(true)) => until = begun + lasts,
            Ok(Err(error)) if Instant::now() < until => {
                debug!(%error, "can't keep the records for this process alone yet");
            }
            Ok(_) | Err(_) => {
                warn!("the records are no longer kept for this process alone");
                shared.is_closed.store(true, Ordering::Release);
                return;
            }
        }
        tokio::time::sleep(MOVING_RENEWED).await;
    }
}

/// Executes a conditional statement until its outcome is known; returns the columns of the row when it was refused.
async fn compare_until_known(
    database: &Database,
    statement: &'static str,
    values: Vec<CqlValue>,
) -> Result<Option<std::collections::HashMap<String, CqlValue>>, Error> {
    database.compare_until_known("write its settings", &[(statement, values)]).await
}

impl Shared {
    /// A value of `meta`.
    pub(super) async fn meta(&self, key: &str) -> Result<Option<Vec<u8>>, Error> {
        let rows = self.database.read("read its settings", META, vec![text(self.store()), text(key)]).await?;
        Ok(rows.first().and_then(|row| bytes(row, 0)).map(<[u8]>::to_vec))
    }

    /// Writes a value of `meta`. The last writer wins.
    pub(super) async fn put_meta(&self, key: &str, value: &[u8]) -> Result<(), Error> {
        let deadline = self.database.deadline();
        loop {
            let refused = match self.meta(key).await? {
                Some(known) if known == value => return Ok(()),
                Some(known) => {
                    let values = vec![blob(value), text(self.store()), text(key), blob(known)];
                    compare_until_known(&self.database, MOVE_META, values).await?
                }
                None => {
                    let values = vec![text(self.store()), text(key), blob(value)];
                    compare_until_known(&self.database, PUT_META, values).await?
                }
            };
            if refused.is_none() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(Error::unavailable(
                    "other servers change the settings of the records all the time",
                ));
            }
        }
    }

    /// Reads what servers share.
    pub(super) async fn read_state(&self) -> Result<State, Error> {
        let number = async |key| {
            let value = self.meta(key).await?;
            Ok::<_, Error>(value.and_then(|value| decode_number(&value)).unwrap_or(0))
        };
        Ok(State { epoch: number(META_EPOCH).await?, restores: number(META_RESTORES).await? })
    }

    /// Renews the lease [`OPENING`].
    pub(super) async fn renew_opening(&self, holder: Identity) -> Result<(), Error> {
        match renew(self, &OPENING, holder).await? {
            true => Ok(()),
            false => {
                Err(Error::unavailable("another server has begun to open the records: start this one again"))
            }
        }
    }

    /// Whether other records are being copied into these.
    pub(super) async fn is_incomplete(&self) -> Result<bool, Error> {
        Ok(self.meta(META_INCOMPLETE).await?.is_some())
    }

    /// Marks the store as an incomplete copy of a store with this many restores.
    pub(super) async fn mark_incomplete(&self, restores: u64) -> Result<(), Error> {
        self.put_meta(META_INCOMPLETE, &encode_number(INCOMPLETE)).await?;
        self.put_meta(META_RESTORES, &encode_number(restores)).await
    }

    /// Marks the store as complete.
    pub(super) async fn mark_complete(&self) -> Result<(), Error> {
        let values = vec![text(self.store()), text(META_INCOMPLETE)];
        compare_until_known(&self.database, DELETE_META, values).await.map(drop)
    }

    /// Waits until no other server has the records open. If some still do after [`CLOSING_WAIT`], fails with the message `refusal`.
    pub(super) async fn be_alone(&self, refusal: &str) -> Result<(), Error> {
        let deadline = Instant::now() + CLOSING_WAIT;
        loop {
            let servers = self.database.read("look for servers", SERVERS, vec![text(self.store())]).await?;
            if servers.is_empty() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(Error::conflict(refusal));
            }
            tokio::time::sleep(jittered(BACK_OFF_MIN * 5)).await;
        }
    }

    /// Announces to other servers that this one has the records open; the announcement holds for 30 seconds.
    pub(super) async fn be_present(&self) -> Result<(), Error> {
        let has_left = self.has_left.lock().await;
        if *has_left {
            return Ok(());
        }
        let values = vec![text(self.store()), blob(self.server)];
        self.database.write("announce this server to others", PRESENT, values).await
    }

    /// Announces to other servers that this one has closed the records.
    pub(super) async fn leave(&self) {
        let mut has_left = self.has_left.lock().await;
        *has_left = true;
        let values = vec![text(self.store()), blob(self.server)];
        let left = self.database.write("announce to other servers that this one leaves", LEAVE, values).await;
        let released = match self.moving {
            Some(holder) => release(self, &MOVING, holder).await,
            None => Ok(()),
        };
        if let Err(error) = left.and(released) {
            warn!(%error, "other servers take this one for running for another half a minute");
        }
    }
}
