//! Cassandra: a table for each epoch of time, which retention drops whole; any number of servers on one keyspace.
//!
//! `docs/design/archive.md` gives the reasons, `docs/formats/archive-cassandra.md` the tables.
//!
//! - [`options`], [`connect`]: connections, statements and attempts. [`schema`]: tables, partitions and values.
//! - [`epochs`], [`catalog`]: epochs, windows and topics, the same on all servers. [`marks`]: counts.
//! - [`append`], [`query`] with [`plan`] and [`page`], [`retention`], [`check`]: the operations of the archive.

mod append;
mod catalog;
mod check;
mod connect;
mod epochs;
mod marks;
mod options;
mod page;
mod plan;
mod query;
mod retention;
mod schema;

use std::{
    collections::HashMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use restante_core::{Clock, ErrorKind, Identity, NANOS_PER_SECOND, SystemClock, Timestamp};
use tokio::task::JoinHandle;
use tracing::{debug, info, warn};

use self::{
    append::InFlight,
    catalog::Catalog,
    connect::Database,
    epochs::{Cut, Stage},
    marks::Marks,
    schema::ServerId,
};
use crate::{
    Appended, Archive, CassandraConfig, CassandraUrl, Config, Error, Health, Message, Metrics, Opened, Page,
    Pruned, Query, Report, Retention, Stats, Upkeep,
    group::{self, Queue},
    waiting::closed,
};

/// How often windows that have become quiet are marked, and the next epochs are created.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);
/// Replicas with which a write survives a power cut of one node, even if it is not synced yet.
const REPLICAS_SAFE: usize = 3;

/// Opens the archive in a keyspace, and creates its tables if they don't exist.
///
/// A cluster that can't be reached is an error, unless `config.is_lazy`: then the tables are checked when it can be reached.
pub(crate) async fn open(url: CassandraUrl, config: Config) -> Result<Opened, Error> {
    let settings = config.cassandra;
    let window_ns =
        i64::try_from(settings.window_seconds.get()).unwrap_or(i64::MAX).saturating_mul(NANOS_PER_SECOND);
    let shared = Arc::new(Shared {
        database: Database::new(url.clone(), settings, config.clock.clone())?,
        catalog: Catalog::new(config.topic_bits),
        marks: Marks::default(),
        left_by_prune: parking_lot::Mutex::default(),
        in_flight: InFlight::default(),
        changing_schema: tokio::sync::Mutex::new(()),
        cut: Cut {
            epoch_ns: epochs::epoch_ns(settings.epoch_seconds, &config.retention),
            window_ns,
            epochs_max: settings.epochs_max.get(),
        },
        server: Identity::random().0,
        last_micros: AtomicI64::new(0),
        is_read_only: config.read_only,
        is_prepared: tokio::sync::OnceCell::new(),
        is_closed: AtomicBool::new(false),
        clock: config.clock.clone(),
        metrics: config.metrics.clone(),
    });
    match shared.prepared().await {
        Err(error) if error.kind() == ErrorKind::Unavailable && config.is_lazy => {
            warn!(%error, %url, "cassandra is not there yet: it is looked for when it is needed");
        }
        prepared => prepared?,
    }
    let mut tasks = Vec::new();
    let queue = (!config.read_only).then(|| {
        let (queue, waiting) = group::queue(settings.queue_bytes.get());
        let waiting = Arc::new(tokio::sync::Mutex::new(waiting));
        for _ in 0..settings.writers.get() {
            tasks.push(tokio::spawn(append::run(shared.clone(), waiting.clone())));
        }
        queue
    });
    let upkeep = (!config.read_only).then(|| tokio::spawn(upkeep(shared.clone())));
    let cassandra = Arc::new(Cassandra { shared, queue, tasks: parking_lot::Mutex::new(tasks), upkeep });
    Ok(Opened { archive: cassandra.clone(), upkeep: cassandra })
}

/// Drops a keyspace with everything in it, for benches.
///
/// # Errors
/// `Unavailable` when the cluster can't be reached.
pub async fn drop_keyspace(url: &CassandraUrl) -> Result<(), Error> {
    let database = Database::new(url.clone(), CassandraConfig::default(), Arc::new(SystemClock))?;
    database.change_schema("drop a keyspace", &format!("DROP KEYSPACE IF EXISTS {}", url.keyspace())).await
}

/// The state that all parts of the engine share.
struct Shared {
    database: Database,
    catalog: Catalog,
    marks: Marks,
    left_by_prune: parking_lot::Mutex<retention::Left>,
    in_flight: InFlight,
    /// One change of the tables at a time.
    changing_schema: tokio::sync::Mutex<()>,
    cut: Cut,
    server: ServerId,
    last_micros: AtomicI64,
    is_read_only: bool,
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

    fn now_micros(&self) -> i64 {
        self.now().0 / 1_000
    }

    /// Microseconds since 1970; never the same twice.
    fn micros(&self) -> i64 {
        let now = self.now_micros();
        let last = self
            .last_micros
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(now.max(last + 1)));
        last.map_or(now, |last| now.max(last + 1))
    }

    /// The timestamp with which messages are written: it decreases, so that the first write of a message wins over later ones.
    fn write_timestamp(&self) -> i64 {
        -self.micros()
    }

    /// Makes sure that the tables exist and the catalogue was read: when the archive is opened, or when the cluster can be
    /// reached for the first time.
    async fn prepared(&self) -> Result<(), Error> {
        self.is_prepared.get_or_try_init(|| self.prepare()).await.copied()
    }

    async fn prepare(&self) -> Result<(), Error> {
        let found = self.find_tables().await?;
        let missing: Vec<_> =
            schema::TABLES.iter().filter(|(table, _)| !found.iter().any(|found| found == table)).collect();
        if !missing.is_empty() && self.is_read_only {
            let keyspace = self.database.keyspace();
            return Err(Error::not_found(format!("there is no archive in the keyspace {keyspace}")));
        }
        if found.is_empty() {
            self.create_keyspace().await?;
        }
        for (table, definition) in missing {
            self.create_table(table, definition).await?;
        }
        self.warn_of_lost_writes().await;
        self.sync().await.map(drop)
    }

    /// The tables of the keyspace.
    async fn find_tables(&self) -> Result<Vec<String>, Error> {
        let cql = format!(
            "SELECT table_name FROM system_schema.tables WHERE keyspace_name = '{}'",
            self.database.keyspace()
        );
        let rows: Vec<(String,)> = self.database.ask("look for its tables", &cql).await?;
        Ok(rows.into_iter().map(|(table,)| table).collect())
    }

    /// Creates the keyspace unless it exists: with three replicas in the data center of the URL or the node, or as many as there
    /// are nodes.
    async fn create_keyspace(&self) -> Result<(), Error> {
        let keyspace = self.database.keyspace();
        let what = "look for its keyspace";
        let cql =
            format!("SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = '{keyspace}'");
        if !self.database.ask::<(String,)>(what, &cql).await?.is_empty() {
            return Ok(());
        }
        let local: Vec<(String,)> = self.database.ask(what, "SELECT data_center FROM system.local").await?;
        let local = local.into_iter().next().map(|(local,)| local);
        let datacenter = self.database.datacenter().map(str::to_owned).or(local);
        let datacenter = datacenter
            .ok_or_else(|| Error::unavailable("cassandra doesn't say in which data center its node is"))?;
        let peers: Vec<(Option<String>,)> =
            self.database.ask(what, "SELECT data_center FROM system.peers").await?;
        let nodes = 1 + peers.iter().filter(|(peer,)| peer.as_deref() == Some(&datacenter)).count();
        let replicas = nodes.min(REPLICAS_SAFE);
        info!(keyspace, datacenter, replicas, "the keyspace is not there: it is made");
        let cql = format!(
            "CREATE KEYSPACE IF NOT EXISTS {keyspace} WITH replication = \
             {{'class': 'NetworkTopologyStrategy', '{}': {replicas}}}",
            datacenter.replace('\'', "''")
        );
        self.database.change_schema("make its keyspace", &cql).await
    }

    /// Warns when acknowledged messages may be lost in a power cut.
    async fn warn_of_lost_writes(&self) {
        let what = "say how it syncs";
        let cql = "SELECT value FROM system_views.settings WHERE name = 'commitlog_sync'";
        let Ok(settings) = self.database.ask::<(Option<String>,)>(what, cql).await else {
            info!("cassandra doesn't say how its commit log is synced: system_views.settings can't be read");
            return;
        };
        let is_periodic = settings
            .first()
            .is_some_and(|(value,)| value.as_deref().is_some_and(|value| value == "periodic"));
        let cql = format!(
            "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = '{}'",
            self.database.keyspace()
        );
        type Options = HashMap<String, String>;
        let options: Vec<(Options,)> = self.database.ask(what, &cql).await.unwrap_or_default();
        // A number of replicas, "3", may be followed by the number of transient ones, "3/1".
        let replicas = options.iter().flat_map(|(options,)| options.values());
        let replicas = replicas.filter_map(|value| value.split('/').next()?.parse::<usize>().ok()).max();
        if is_periodic && replicas.unwrap_or(0) < REPLICAS_SAFE {
            warn!(
                replicas,
                "commitlog_sync is periodic, so a power cut loses what was acknowledged in the last seconds: \
                 set commitlog_sync: batch or group, or keep three replicas in places that fail one by one"
            );
        }
    }

    /// Creates a table unless it exists.
    async fn create_table(&self, table: &str, definition: &str) -> Result<(), Error> {
        let what = "make a table";
        let joint = if definition.contains(" WITH ") { "AND" } else { "WITH" };
        let keyspace = self.database.keyspace();
        let cql = format!(
            "CREATE TABLE IF NOT EXISTS {keyspace}.{table} {definition} {joint} speculative_retry = '50ms'"
        );
        // Without it, the rows stay on the disk as a snapshot when the table is dropped. Unknown before Cassandra 4.1.
        let without_snapshot = format!("{cql} AND allow_auto_snapshot = false");
        match self.database.change_schema(what, &without_snapshot).await {
            Err(error) if !error.is_transient() => self.database.change_schema(what, &cql).await,
            done => done,
        }
    }

    /// Marks windows that are quiet, and creates the next epoch ahead, so that no append waits for its table.
    async fn maintain(&self) -> Result<(), Error> {
        self.prepared().await?;
        self.unmark(false).await?;
        self.sync().await?;
        let now = self.now().0;
        let list = self.catalog.list();
        let Some(current) = list.find(now).filter(|epoch| epoch.stage == Stage::Open) else { return Ok(()) };
        let is_full = list.open().count() >= self.cut.epochs_max;
        let is_near =
            current.end_ns != i64::MAX && current.end_ns.saturating_sub(now) < self.cut.epoch_ns / 4;
        if is_near && !is_full && list.find(current.end_ns).is_none() {
            self.epoch_for(current.end_ns).await?;
        }
        Ok(())
    }
}

/// Runs the upkeep of this server every few seconds.
async fn upkeep(shared: Arc<Shared>) {
    let mut ticks = tokio::time::interval(UPKEEP_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticks.tick().await;
    loop {
        ticks.tick().await;
        if let Err(error) = shared.maintain().await {
            debug!(%error, "upkeep in cassandra failed: it is tried again in some seconds");
        }
    }
}

/// An open archive.
struct Cassandra {
    shared: Arc<Shared>,
    /// `None` when read-only.
    queue: Option<Queue>,
    tasks: parking_lot::Mutex<Vec<JoinHandle<()>>>,
    upkeep: Option<JoinHandle<()>>,
}

impl Cassandra {
    /// The queue of the writers, unless the archive is closed or read-only.
    fn queue(&self) -> Result<&Queue, Error> {
        self.queue.as_ref().filter(|queue| !queue.is_closed()).ok_or_else(closed)
    }

    fn check_open(&self) -> Result<(), Error> {
        if self.shared.is_closed.load(Ordering::Acquire) {
            return Err(Error::unavailable("the archive is closed"));
        }
        Ok(())
    }
}

impl Drop for Cassandra {
    fn drop(&mut self) {
        if let Some(upkeep) = &self.upkeep {
            upkeep.abort();
        }
    }
}

#[async_trait]
impl Archive for Cassandra {
    async fn append(&self, messages: Vec<Message>) -> Result<Vec<Appended>, Error> {
        let queue = self.queue()?;
        crate::message::check_batch(&messages)?;
        self.shared.prepared().await?;
        queue.append(messages).await
    }

    async fn query(&self, query: &Query) -> Result<Page, Error> {
        query.check_bounds()?;
        self.check_open()?;
        self.shared.prepared().await?;
        query::query(&self.shared, query).await
    }
}

#[async_trait]
impl Upkeep for Cassandra {
    async fn stats(&self) -> Result<Stats, Error> {
        self.check_open()?;
        self.shared.prepared().await?;
        check::stats(&self.shared).await
    }

    fn health(&self) -> Health {
        let (problem, since) = self.shared.database.problem();
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
        self.check_open()?;
        self.shared.prepared().await?;
        check::check(&self.shared, false, progress).await
    }

    async fn rebuild(&self, progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<Report, Error> {
        self.queue()?;
        self.shared.prepared().await?;
        check::check(&self.shared, true, progress).await
    }

    async fn backup(&self, _folder: &Path) -> Result<(), Error> {
        let keyspace = self.shared.database.keyspace();
        let what = format!(
            "the archive lies in Cassandra, which keeps it: back it up when this is done, by nodetool snapshot {keyspace} on each \
             node. Not before: what leaves the spool in between would be in neither"
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
        if let Some(upkeep) = &self.upkeep {
            upkeep.abort();
        }
        if !self.shared.is_read_only && self.shared.is_prepared.initialized() {
            // Marks are needed for counts only: an archive that can't write them is closed all the same.
            if let Err(error) = self.shared.unmark(true).await {
                debug!(%error, "the marks of windows were not written");
            }
        }
        self.shared.database.close().await;
        Ok(())
    }
}
