//! PostgreSQL: a partition per window of time, topics interned, several servers on one database.
//!
//! `docs/design/archive.md` gives the reasons, `docs/formats/postgres.md` the tables.
//!
//! - [`connect`]: lost and new connections. [`attempt`]: what an error of the database means.
//! - [`schema`]: tables and statements. [`catalog`]: windows and topics, the same on all servers.
//! - [`append`], [`query`], [`retention`], [`check`]: the operations of the archive.

mod append;
mod attempt;
mod catalog;
mod check;
mod connect;
mod options;
mod query;
mod retention;
mod schema;
mod units;

pub use self::options::ConnectOptions;

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use restante_core::{Clock, ErrorKind, NANOS_PER_SECOND, Timestamp};
use tokio::task::JoinHandle;
use tracing::{info, warn};

use self::{
    attempt::{AttemptError, Doing},
    catalog::{Catalog, get},
    connect::{Connection, Database},
};
use crate::{
    Appended, Archive, Config, Error, Health, Message, Metrics, Opened, Page, PostgresUrl, Pruned, Query,
    Report, Retention, Stats, Upkeep,
    group::{self, Queue},
    waiting::closed,
};

/// How often counts of topics are written and the next windows are created.
const TURN: Duration = Duration::from_secs(5);
/// The longest window where retention keeps a size or a number of messages: a day.
const AMOUNT_WINDOW_SECONDS: u64 = 86_400;
/// Ticks after which the counts of other servers are read.
const TURNS_TO_RELOAD: u32 = 12;

/// Opens the archive in a database, and creates its tables if they don't exist.
///
/// A server that can't be reached is an error, unless `config.is_lazy`: then the tables are checked when it can be reached.
pub(crate) async fn open(url: PostgresUrl, config: Config) -> Result<Opened, Error> {
    let database = Database::new(&url, &config)?;
    let shared = Arc::new(Shared {
        database,
        catalog: Catalog::new(config.topic_bits),
        schema: url.schema().to_owned(),
        window_ns: window_ns(&config),
        is_read_only: config.read_only,
        is_prepared: tokio::sync::OnceCell::new(),
        left_by_prune: parking_lot::Mutex::default(),
        is_closed: AtomicBool::new(false),
        clock: config.clock.clone(),
        metrics: config.metrics.clone(),
    });
    match shared.prepared().await {
        Err(error) if error.kind() == ErrorKind::Unavailable && config.is_lazy => {
            warn!(%error, %url, "the database is not there yet: it is looked for when it is needed");
        }
        prepared => prepared?,
    }
    let mut tasks = Vec::new();
    let queue = (!config.read_only).then(|| {
        let (queue, waiting) = group::queue(config.postgres.queue_bytes.get());
        let waiting = Arc::new(tokio::sync::Mutex::new(waiting));
        for _ in 0..config.postgres.write_connections.get() {
            tasks.push(tokio::spawn(append::run(shared.clone(), waiting.clone())));
        }
        queue
    });
    let turns = (!config.read_only).then(|| tokio::spawn(turns(shared.clone())));
    let postgres = Arc::new(Postgres { shared, queue, tasks: parking_lot::Mutex::new(tasks), turns });
    Ok(Opened { archive: postgres.clone(), upkeep: postgres })
}

/// The first statements of a connection, and every statement that reads messages of a table, so that a test can have the database
/// explain their plans.
#[doc(hidden)]
pub fn statements(table: &str) -> (String, Vec<(String, String)>) {
    let mut statements = Vec::new();
    for select in schema::Select::all() {
        statements.push((format!("{select:?}"), select.sql(table)));
    }
    (connect::PLANNER.to_owned(), statements)
}

/// The length of a window, cut so that the part that a time rule can't remove yet is at most an eighth of what it keeps, and the
/// part that a rule of size or number can't remove yet is at most a day's.
fn window_ns(config: &Config) -> i64 {
    let retention = &config.retention;
    let by_time = retention.time_seconds.map_or(u64::MAX, |seconds| (seconds / 8).max(60));
    let has_amount = retention.capacity.is_some() || retention.size_bytes.is_some();
    let by_amount = if has_amount { AMOUNT_WINDOW_SECONDS } else { u64::MAX };
    let seconds = config.postgres.window_seconds.get().min(by_time).min(by_amount);
    i64::try_from(seconds).unwrap_or(i64::MAX).saturating_mul(NANOS_PER_SECOND)
}

/// The state that all parts of the engine share.
struct Shared {
    database: Database,
    catalog: Catalog,
    schema: String,
    window_ns: i64,
    is_read_only: bool,
    left_by_prune: parking_lot::Mutex<retention::Left>,
    /// Set once the tables are known to exist.
    is_prepared: tokio::sync::OnceCell<()>,
    is_closed: AtomicBool,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
}

impl Shared {
    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// A statement about the lock that one server has while it prunes: `lock`, `unlock`, and the same with `_shared`.
    fn prune_lock(&self, what: &str) -> String {
        format!("SELECT pg_advisory_{what}(hashtextextended('restante prune {}', 0))", self.schema)
    }

    /// Makes sure that the tables exist and the catalogue was read: when the archive is opened, or when the database can be
    /// reached for the first time.
    async fn prepared(&self) -> Result<(), Error> {
        self.is_prepared.get_or_try_init(|| self.prepare()).await.copied()
    }

    async fn prepare(&self) -> Result<(), Error> {
        let database = &self.database;
        let lease = if self.is_read_only { database.reader().await? } else { database.writer().await? };
        let connection = lease.connection.clone();
        let work = async {
            match self.is_read_only {
                true => find_tables(&connection, &self.schema).await?,
                false => migrate(&connection, &self.schema).await?,
            }
            self.catalog.load(&connection).await
        };
        Ok(lease.drive("prepare its tables", work).await?)
    }

    /// Reloads the catalogue: another server has removed windows.
    async fn reload(&self) -> Result<(), Error> {
        let lease = self.database.reader().await?;
        let connection = lease.connection.clone();
        Ok(lease.drive("read its catalogue", self.catalog.load(&connection)).await?)
    }
}

/// Whether the archive exists and has a known version.
async fn find_tables(connection: &Connection, schema: &str) -> Result<(), Error> {
    match version(connection, schema).await? {
        None => Err(Error::not_found(format!("there is no archive in the schema {schema}"))),
        Some(version) => check_version(version, schema),
    }
}

fn check_version(version: i32, schema: &str) -> Result<(), Error> {
    if version > schema::VERSION {
        let newest = schema::VERSION;
        return Err(Error::corrupt(format!(
            "the schema {schema} has version {version} and this restante knows {newest}: use a newer one"
        )));
    }
    Ok(())
}

/// The version of the tables; `None` when there are none.
async fn version(connection: &Connection, schema: &str) -> Result<Option<i32>, Error> {
    let what = "read its version";
    let sql = "SELECT 1 FROM information_schema.tables WHERE table_schema = $1 AND table_name = 'version'";
    let is_there = connection.client.query_opt(sql, &[&schema]).await.doing(what)?.is_some();
    if !is_there {
        return Ok(None);
    }
    let row = connection.client.query_one("SELECT max(version) FROM version", &[]).await.doing(what)?;
    Ok(get(&row, 0)?)
}

/// Upgrades the tables to the version of this program. Servers that start together take turns.
async fn migrate(connection: &Connection, schema: &str) -> Result<(), Error> {
    let what = "make its tables";
    let lock = format!("SELECT pg_advisory_lock(hashtextextended('restante {schema}', 0))");
    connection.client.batch_execute(&lock).await.doing(what)?;
    let found = version(connection, schema).await?.unwrap_or(0);
    check_version(found, schema)?;
    if found < schema::VERSION {
        migrate_from(connection, schema, found).await?;
        info!(schema, from = found, to = schema::VERSION, "tables made or changed");
    }
    let unlock = format!("SELECT pg_advisory_unlock(hashtextextended('restante {schema}', 0))");
    connection.client.batch_execute(&unlock).await.doing(what)?;
    Ok(())
}

async fn migrate_from(connection: &Connection, schema: &str, found: i32) -> Result<(), AttemptError> {
    let what = "make its tables";
    let client = &connection.client;
    // The owner of the schema need not own the database.
    let is_there =
        client.query_opt("SELECT 1 FROM pg_namespace WHERE nspname = $1", &[&schema]).await.doing(what)?;
    if is_there.is_none() {
        client.batch_execute(&format!("CREATE SCHEMA \"{schema}\"")).await.doing(what)?;
    }
    let begin = "BEGIN;
         CREATE TABLE IF NOT EXISTS version (version int PRIMARY KEY, made_at timestamptz NOT NULL DEFAULT now())";
    client.batch_execute(begin).await.doing(what)?;
    for (version, migration) in (1..).zip(schema::MIGRATIONS).skip(found.max(0) as usize) {
        client.batch_execute(migration).await.doing(what)?;
        client.execute("INSERT INTO version (version) VALUES ($1)", &[&version]).await.doing(what)?;
    }
    client.batch_execute("COMMIT").await.doing(what)
}

/// Periodically writes counts, reads those of others and creates the next window ahead.
async fn turns(shared: Arc<Shared>) {
    let mut ticks = tokio::time::interval(TURN);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for turn in 0_u32.. {
        ticks.tick().await;
        let done = async {
            shared.prepared().await?;
            turn_once(&shared).await?;
            if turn % TURNS_TO_RELOAD == TURNS_TO_RELOAD - 1 { shared.reload().await } else { Ok(()) }
        };
        if let Err(error) = done.await {
            tracing::debug!(%error, "upkeep in postgres failed: it is tried again at its next turn");
        }
    }
}

async fn turn_once(shared: &Shared) -> Result<(), Error> {
    let lease = shared.database.caretaker().await?;
    let connection = lease.connection.clone();
    let work = async {
        shared.catalog.write_counts(&connection).await?;
        let ahead = missing_ahead(shared);
        if !ahead.is_empty() {
            shared.catalog.make_windows(&connection, &ahead, shared.window_ns).await?;
        }
        Ok(())
    };
    Ok(lease.drive("do its upkeep", work).await?)
}

/// Now and one window later, where there is no window yet: a window that is created ahead delays no append.
fn missing_ahead(shared: &Shared) -> Vec<i64> {
    let now = shared.now().0;
    let windows = shared.catalog.windows();
    let wanted = [now, now.saturating_add(shared.window_ns)];
    wanted.into_iter().filter(|at| !windows.iter().any(|window| window.contains(*at))).collect()
}

/// The engine behind the traits.
struct Postgres {
    shared: Arc<Shared>,
    /// `None` when read-only.
    queue: Option<Queue>,
    tasks: parking_lot::Mutex<Vec<JoinHandle<()>>>,
    turns: Option<JoinHandle<()>>,
}

impl Postgres {
    /// The queue of the writers, until the archive is closed.
    fn queue(&self) -> Result<&Queue, Error> {
        self.queue.as_ref().filter(|queue| !queue.is_closed()).ok_or_else(closed)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if let Some(turns) = &self.turns {
            turns.abort();
        }
    }
}

#[async_trait]
impl Archive for Postgres {
    async fn append(&self, messages: Vec<Message>) -> Result<Vec<Appended>, Error> {
        let queue = self.queue()?;
        crate::message::check_batch(&messages)?;
        self.shared.prepared().await?;
        queue.append(messages).await
    }

    async fn query(&self, query: &Query) -> Result<Page, Error> {
        query.check_bounds()?;
        self.shared.prepared().await?;
        query::query(&self.shared, query).await
    }
}

#[async_trait]
impl Upkeep for Postgres {
    async fn stats(&self) -> Result<Stats, Error> {
        self.shared.prepared().await?;
        check::stats(&self.shared).await
    }

    fn health(&self) -> Health {
        let (problem, since) = self.shared.database.reach.problem();
        Health { problem, since, ..Health::default() }
    }

    async fn prune(&self, policy: &Retention, now: Timestamp) -> Result<Pruned, Error> {
        self.queue()?;
        self.shared.prepared().await?;
        retention::prune(&self.shared, policy, now).await
    }

    fn not_pruned(&self, policy: &Retention, now: Timestamp) -> Option<String> {
        self.shared.left_by_prune.lock().not_removed(policy, now)
    }

    async fn check(&self, progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<Report, Error> {
        self.shared.prepared().await?;
        check::check(&self.shared, progress).await
    }

    async fn rebuild(&self, progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<Report, Error> {
        self.queue()?;
        self.shared.prepared().await?;
        check::rebuild(&self.shared, progress).await
    }

    async fn backup(&self, _folder: &Path) -> Result<(), Error> {
        let what = format!(
            "the archive lies in PostgreSQL, which keeps it: back it up when this is done, by pg_dump --schema={}, or the whole \
             server by pg_basebackup. Not before: what leaves the spool in between would be in neither",
            self.shared.schema
        );
        Err(Error::invalid(what))
    }

    async fn close(&self) -> Result<(), Error> {
        if self.shared.is_closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        if let Some(queue) = &self.queue {
            queue.close().await;
        }
        let tasks = std::mem::take(&mut *self.tasks.lock());
        for task in tasks {
            task.await.map_err(|error| {
                Error::internal("a writer of the archive has panicked").with_source(error)
            })?;
        }
        if let Some(turns) = &self.turns {
            turns.abort();
        }
        if !self.shared.is_read_only && self.shared.is_prepared.initialized() {
            // The counts are only used for plans: an archive that can't write them is closed all the same.
            if let Err(error) = turn_once(&self.shared).await {
                tracing::debug!(%error, "the counts of topics were not written");
            }
        }
        self.shared.database.close();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EngineUrl, Retention};

    #[test]
    fn rules_of_retention_make_windows_shorter_and_never_longer() {
        let days = |retention: Retention, window_seconds: u64| {
            let mut config = Config::new(EngineUrl::Memory);
            config.postgres.window_seconds = window_seconds.try_into().unwrap();
            config.retention = retention;
            window_ns(&config) as f64 / (86_400 * NANOS_PER_SECOND) as f64
        };
        let none = Retention::default();
        let time = |seconds| Retention { time_seconds: Some(seconds), ..none };
        let number = Retention { capacity: Some(1_000), ..none };
        let size = Retention { size_bytes: Some(1_000), ..none };
        assert_eq!(days(none, 604_800), 7.0);
        assert_eq!(days(time(86_400 * 16), 604_800), 2.0);
        assert_eq!(days(time(86_400 * 365), 604_800), 7.0);
        assert_eq!((days(number, 604_800), days(size, 604_800)), (1.0, 1.0));
        assert_eq!(days(Retention { time_seconds: Some(86_400 * 4), ..number }, 604_800), 0.5);
        assert_eq!(days(number, 3_600), 1.0 / 24.0);
    }
}
