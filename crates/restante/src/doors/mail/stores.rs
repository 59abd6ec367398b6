//! Metrics of whether records and blobs work, and how much they store.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use prometheus_client::{metrics::gauge::Gauge, registry::Registry};
use restante_backup::Removing;
use restante_core::ErrorKind;
use restante_operate::RoleCheck;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout_at};
use tracing::{debug, warn};

use super::{key_file::KeyFileCheck, mismatch::Mismatch, usage};
use crate::{config::Config, signals::Stop};

/// How often their health is queried; they answer from memory.
const HEALTH_INTERVAL: Duration = Duration::from_secs(15);
/// The interval of queries for what they store, which walk through their counts. Small stores are queried more often.
const STATS_INTERVAL: Duration = Duration::from_secs(600);
/// A disk with less free space than this counts as full.
const FREE_BYTES_MIN: u64 = 1 << 20;

/// The names of the roles in `GET /health`.
const RECORDS: &str = "Records";
const BLOBS: &str = "Blobs";

/// The records and the blobs of a server.
#[derive(Clone)]
pub(crate) struct Stores {
    pub(crate) records: restante_records::Opened,
    pub(crate) blobs: restante_blobs::Opened,
    /// Locked while blobs are removed, and while none may be.
    pub(crate) removing: Removing,
    /// Set if they do not belong together.
    pub(crate) mismatch: Option<Mismatch>,
    /// Whether what the records have sealed can be opened.
    pub(crate) key_file: KeyFileCheck,
}

/// The metrics of what records and blobs store. Clones share the values.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoresMetrics {
    records: RecordsMetrics,
    blobs: BlobsMetrics,
    search: SearchMetrics,
}

#[derive(Clone, Debug, Default)]
struct RecordsMetrics {
    up: Gauge,
    records: Gauge,
    tombstones: Gauge,
    accounts: Gauge,
    disk_bytes: Gauge,
    disk_free_bytes: Gauge,
}

#[derive(Clone, Debug, Default)]
struct BlobsMetrics {
    up: Gauge,
    blobs: Gauge,
    bytes: Gauge,
    disk_bytes: Gauge,
    disk_free_bytes: Gauge,
}

#[derive(Clone, Debug, Default)]
struct SearchMetrics {
    documents: Gauge,
    disk_bytes: Gauge,
}

impl StoresMetrics {
    /// Registers the metrics in `registry` as `restante_records_...{engine}`, `restante_blobs_...{engine}` and `restante_search_...`.
    pub(crate) fn register(&self, registry: &mut Registry, config: &Config) {
        let (records, blobs) = (config.records_url().engine(), config.blobs_url().engine());
        let is_on_disk = folder_of_records(config).is_some();
        self.records.register(of_engine(registry, "restante_records", records), is_on_disk);
        let is_on_disk = folder_of_blobs(config).is_some();
        self.blobs.register(of_engine(registry, "restante_blobs", blobs), is_on_disk);
        self.search.register(registry.sub_registry_with_prefix("restante_search"));
    }
}

impl StoresMetrics {
    /// Updates the metrics of which roles work.
    fn show_health(&self, checks: &[RoleCheck]) {
        let is_up = |name| checks.iter().any(|check| check.name == name && (check.problem)().is_none());
        self.records.up.set(i64::from(is_up(RECORDS)));
        self.blobs.up.set(i64::from(is_up(BLOBS)));
    }

    /// Updates how much can still be written. If the system does not report it, the last values remain.
    fn show_free(&self, config: &Config) {
        let free = |folder: Option<PathBuf>| free_bytes(&folder?);
        if let Some(free) = free(folder_of_records(config)) {
            self.records.disk_free_bytes.set(gauge(free));
        }
        if let Some(free) = free(folder_of_blobs(config)) {
            self.blobs.disk_free_bytes.set(gauge(free));
        }
    }
}

fn of_engine<'r>(registry: &'r mut Registry, prefix: &'static str, engine: &'static str) -> &'r mut Registry {
    registry.sub_registry_with_prefix(prefix).sub_registry_with_label(("engine".into(), engine.into()))
}

impl RecordsMetrics {
    fn register(&self, registry: &mut Registry, is_on_disk: bool) {
        registry.register("engine_up", "Whether records take commits", self.up.clone());
        registry.register("stored_records", "Records that exist", self.records.clone());
        let help = "Destroyed records that the history still has";
        registry.register("tombstones", help, self.tombstones.clone());
        registry.register("accounts", "Accounts that ever had a commit", self.accounts.clone());
        registry.register("disk_bytes", "Bytes that records take on disk", self.disk_bytes.clone());
        if is_on_disk {
            register_free(registry, &self.disk_free_bytes);
        }
    }

    fn show(&self, stats: &restante_records::Stats) {
        let sum = |of: fn(&restante_records::KindStats) -> u64| stats.kinds.iter().map(of).sum();
        self.records.set(gauge(sum(|kind| kind.records)));
        self.tombstones.set(gauge(sum(|kind| kind.tombstones)));
        self.accounts.set(gauge(stats.accounts));
        self.disk_bytes.set(gauge(stats.disk_bytes));
    }
}

impl BlobsMetrics {
    fn register(&self, registry: &mut Registry, is_on_disk: bool) {
        registry.register("engine_up", "Whether blobs are taken", self.up.clone());
        registry.register("stored_blobs", "Blobs that are there", self.blobs.clone());
        registry.register("stored_bytes", "Bytes of the blobs that are there", self.bytes.clone());
        registry.register("disk_bytes", "Bytes that blobs take on disk", self.disk_bytes.clone());
        if is_on_disk {
            register_free(registry, &self.disk_free_bytes);
        }
    }

    fn show(&self, stats: &restante_blobs::Stats) {
        self.blobs.set(gauge(stats.blobs));
        self.bytes.set(gauge(stats.bytes));
        self.disk_bytes.set(gauge(stats.disk_bytes));
    }
}

impl SearchMetrics {
    fn register(&self, registry: &mut Registry) {
        registry.register("stored_documents", "Emails in the index", self.documents.clone());
        registry.register("disk_bytes", "Bytes that the index takes on disk", self.disk_bytes.clone());
    }

    fn show(&self, stats: &restante_search::Stats) {
        self.documents.set(gauge(stats.documents));
        self.disk_bytes.set(gauge(stats.disk_bytes));
    }
}

/// A store in memory has no disk that could be full.
fn register_free(registry: &mut Registry, free: &Gauge) {
    registry.register("disk_free_bytes", "Bytes that are free on the disk", free.clone());
}

fn gauge(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn folder_of_records(config: &Config) -> Option<PathBuf> {
    match config.records_url() {
        restante_records::EngineUrl::Lmdb(folder) => Some(folder),
        restante_records::EngineUrl::Postgres(_)
        | restante_records::EngineUrl::Cassandra(_)
        | restante_records::EngineUrl::Memory => None,
    }
}

fn folder_of_blobs(config: &Config) -> Option<PathBuf> {
    match config.blobs_url() {
        restante_blobs::EngineUrl::Files(folder) => Some(folder),
        restante_blobs::EngineUrl::S3(_) | restante_blobs::EngineUrl::Memory => None,
    }
}

/// The free bytes on the disk of a folder. The system answers from memory.
fn free_bytes(folder: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// The error text if the disk of a folder is full.
fn full_disk(folder: &Path) -> Option<String> {
    let free = free_bytes(folder)?;
    let problem =
        "the disk is full: what needs more room is refused, reading works: free some space on the disk";
    (free < FREE_BYTES_MIN).then(|| format!("{problem} ({free} bytes are free)"))
}

impl Stores {
    /// Whether they work: what they report themselves, and whether their disks are full. Shown by health, console and metrics.
    pub(crate) fn health(&self, config: &Config) -> Vec<RoleCheck> {
        let (records, blobs) = (self.records.upkeep.clone(), self.blobs.upkeep.clone());
        let (records_folder, blobs_folder) = (folder_of_records(config), folder_of_blobs(config));
        let records = move || {
            let problem = records.health().err().map(|error| error.to_string());
            problem.or_else(|| full_disk(records_folder.as_deref()?))
        };
        let mismatch = self.mismatch.clone();
        let blobs = move || {
            let problem = blobs.health().err().map(|error| error.to_string());
            let problem = problem.or_else(|| mismatch.as_ref().map(|mismatch| mismatch.error.to_string()));
            problem.or_else(|| full_disk(blobs_folder.as_deref()?))
        };
        vec![
            RoleCheck { name: RECORDS, problem: Arc::new(records) },
            RoleCheck { name: BLOBS, problem: Arc::new(blobs) },
        ]
    }

    /// Lets both finish pending work. Records may have to make blobs durable for that, so they come first.
    pub(crate) async fn close(&self, limit: Duration) -> anyhow::Result<()> {
        let until = Instant::now() + limit;
        let records = timeout_at(until, self.records.upkeep.close()).await;
        let blobs = timeout_at(until, self.blobs.upkeep.close()).await;
        let late = |what: &str| format!("the {what} were not closed within {} s", limit.as_secs_f64());
        let records = records.with_context(|| late("records"))?;
        let blobs = blobs.with_context(|| late("blobs"))?;
        match records {
            // Committed changes are in the commit log, and the next start reads them from there.
            Err(error) if error.kind() == ErrorKind::Full => {
                warn!(%error, "the records were closed on a full disk")
            }
            closed => closed.context("can't close the records")?,
        }
        match blobs {
            Err(error) if error.kind() == ErrorKind::Full => {
                warn!(%error, "the blobs were closed on a full disk")
            }
            closed => closed.context("can't close the blobs")?,
        }
        Ok(())
    }

    /// If one of them does not respond, its last values remain.
    async fn ask_what_they_hold(&self, search: Option<&restante_search::Opened>, metrics: &StoresMetrics) {
        match self.records.upkeep.stats().await {
            Ok(stats) => {
                self.key_file.note(&stats);
                metrics.records.show(&stats);
            }
            Err(error) => debug!(%error, "the size of the records could not be read"),
        }
        match self.blobs.upkeep.stats().await {
            Ok(stats) => metrics.blobs.show(&stats),
            Err(error) => debug!(%error, "the size of the blobs could not be read"),
        }
        let Some(search) = search else { return };
        match search.upkeep.stats().await {
            Ok(stats) => metrics.search.show(&stats),
            Err(error) => debug!(%error, "the search index does not report what it holds"),
        }
    }
}

/// What the metrics are about.
pub(crate) struct Asked {
    pub(crate) stores: Stores,
    pub(crate) search: Option<restante_search::Opened>,
    pub(crate) checks: Vec<RoleCheck>,
    pub(crate) config: Config,
}

/// Updates the metrics at once and then after each interval, until the server stops.
pub(crate) async fn run(asked: Asked, metrics: StoresMetrics, stop: Stop) {
    let Asked { stores, search, checks, config } = asked;
    let mut health = interval(HEALTH_INTERVAL);
    health.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut next_stats = Instant::now();
    let mut stopped = std::pin::pin!(stop.requested());
    loop {
        tokio::select! {
            _ = health.tick() => {
                metrics.show_health(&checks);
                metrics.show_free(&config);
            }
            () = sleep_until(next_stats) => {
                let begun = Instant::now();
                stores.ask_what_they_hold(search.as_ref(), &metrics).await;
                next_stats = Instant::now() + usage::pause(begun.elapsed()).min(STATS_INTERVAL);
            }
            () = &mut stopped => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use restante_records::{AccountId, Body, Change, Commit, Properties, RecordId};

    use super::*;
    use crate::doors::mail::records;

    fn in_memory_config() -> Config {
        let mut config = Config::default();
        config.records.url = Some(restante_records::EngineUrl::Memory);
        config.blobs.url = Some(restante_blobs::EngineUrl::Memory);
        config
    }

    async fn in_memory() -> Stores {
        let records = restante_records::Config::new(restante_records::EngineUrl::Memory, records::schema());
        let blobs = restante_blobs::Config::new(restante_blobs::EngineUrl::Memory);
        Stores {
            records: restante_records::open(records).await.unwrap(),
            blobs: restante_blobs::open(blobs).await.unwrap(),
            removing: Removing::default(),
            mismatch: None,
            key_file: KeyFileCheck::default(),
        }
    }

    #[tokio::test]
    async fn what_is_there_is_counted() {
        let stores = in_memory().await;
        let (account, thread) = (AccountId(1), restante_mail::thread::KIND);
        let create =
            || Change::Create { kind: thread, body: Body::default(), properties: Properties::default() };
        stores.records.records.commit(account, Commit::of([create(), create()])).await.unwrap();
        let destroy = Change::Destroy { kind: thread, id: RecordId(1) };
        stores.records.records.commit(account, Commit::of([destroy])).await.unwrap();
        stores.blobs.blobs.put(&mut Bytes::from_static(b"hello")).await.unwrap();

        let metrics = StoresMetrics::default();
        metrics.show_health(&stores.health(&in_memory_config()));
        stores.ask_what_they_hold(None, &metrics).await;
        let RecordsMetrics { up, records, tombstones, accounts, .. } = &metrics.records;
        assert_eq!([up, records, tombstones, accounts].map(Gauge::get), [1, 1, 1, 1]);
        let BlobsMetrics { up, blobs, bytes, .. } = &metrics.blobs;
        assert_eq!([up, blobs, bytes].map(Gauge::get), [1, 1, 5]);
    }

    #[tokio::test]
    async fn health_reports_a_closed_store() {
        let stores = in_memory().await;
        let config = in_memory_config();
        let problems = |stores: &Stores| {
            stores.health(&config).iter().map(|check| (check.problem)()).collect::<Vec<_>>()
        };
        assert_eq!(problems(&stores), [None, None]);
        stores.records.upkeep.close().await.unwrap();
        let problem = stores.records.upkeep.health().unwrap_err();
        assert_eq!(problem.kind(), ErrorKind::Unavailable);
        assert_eq!(problems(&stores), [Some(problem.to_string()), None]);
    }
}
