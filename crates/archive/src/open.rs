use std::{num::NonZero, path::PathBuf, sync::Arc};

use futures_util::future::BoxFuture;
use restante_core::{Clock, SystemClock, TopicBits, nonzero};
use serde::{Deserialize, Serialize};

use crate::{
    Archive, EngineUrl, Error, Metrics, Retention, Upkeep, log, memory, nearest, observe::Observed, spool,
    tandem,
};

/// How to open an archive.
#[derive(Clone)]
pub struct Config {
    /// The engine and its location.
    pub url: EngineUrl,
    /// Open for reading while a server may be writing: nothing is locked or changed, appends and prunes are refused.
    pub read_only: bool,
    /// The retention policy in force. Opening removes nothing; engines size their segments and partitions so that the policy can
    /// be followed closely.
    pub retention: Retention,
    /// The bits that a topic sets in a bloom filter. Without it a bloom filter matches everything or nothing.
    pub topic_bits: fn(&str) -> TopicBits,
    /// Open even if the engine can't be reached now; connecting is tried again whenever it is needed.
    pub is_lazy: bool,
    /// Settings of the `log` engine.
    pub log: LogConfig,
    /// Settings of the `sqlite` engine.
    pub sqlite: SqliteConfig,
    /// Settings of the `postgres` engine.
    pub postgres: PostgresConfig,
    /// Settings of the `cassandra` engine.
    pub cassandra: CassandraConfig,
    /// Stores messages while the engine is unavailable, even from the start; not used when `read_only`.
    pub spool: Option<SpoolConfig>,
    /// A second archive that follows this one; not used when `read_only`.
    pub tandem: Option<TandemConfig>,
    /// The source of the time.
    pub clock: Arc<dyn Clock>,
    /// The metrics.
    pub metrics: Metrics,
}

impl Config {
    /// The defaults for an engine.
    pub fn new(url: EngineUrl) -> Self {
        Self {
            url,
            read_only: false,
            retention: Retention::default(),
            topic_bits: |_| TopicBits::new([0; 3]),
            is_lazy: false,
            log: LogConfig::default(),
            sqlite: SqliteConfig::default(),
            postgres: PostgresConfig::default(),
            cassandra: CassandraConfig::default(),
            spool: None,
            tandem: None,
            clock: Arc::new(SystemClock),
            metrics: Metrics::default(),
        }
    }
}

/// Settings of the `log` engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogConfig {
    /// Length of a window: messages of one window share segments, retention removes whole segments.
    pub window_seconds: NonZero<u64>,
    /// A segment is full at this size.
    pub segment_bytes: NonZero<u64>,
    /// A segment is full at this many messages: this bounds the memory of an open segment's index.
    pub segment_messages: NonZero<u64>,
    /// The most segments that accept messages at the same time, each of another window; one more seals the least recently used.
    pub open_segments: NonZero<usize>,
    /// A segment whose window is over is sealed when it received nothing for this long.
    pub quiet_seconds: u64,
    /// The most bytes of messages that wait for the writer; further appends wait.
    pub queue_bytes: NonZero<usize>,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            window_seconds: nonzero!(86_400),
            segment_bytes: nonzero!(256 << 20),
            segment_messages: nonzero!(1_000_000),
            open_segments: nonzero!(4),
            quiet_seconds: 60,
            queue_bytes: nonzero!(64 << 20),
        }
    }
}

/// Settings of the `sqlite` engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SqliteConfig {
    /// Connections that read at the same time, each on a thread of its own; further queries wait for one.
    pub readers: NonZero<usize>,
    /// Bytes of pages that each connection keeps in memory.
    pub cache_bytes: NonZero<usize>,
    /// The most bytes of messages that wait for the writer; further appends wait.
    pub queue_bytes: NonZero<usize>,
}

impl Default for SqliteConfig {
    fn default() -> Self {
        Self { readers: nonzero!(4), cache_bytes: nonzero!(16 << 20), queue_bytes: nonzero!(64 << 20) }
    }
}

/// Settings of the `postgres` engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PostgresConfig {
    /// Length of a window: each has its own partition, retention removes whole partitions. Retention rules make windows shorter:
    /// a rule of time to an eighth of what it keeps, one of size or number to a day.
    pub window_seconds: NonZero<u64>,
    /// Connections that answer queries; further queries wait for one.
    pub read_connections: NonZero<usize>,
    /// Connections that store messages, each one group of appends at a time.
    pub write_connections: NonZero<usize>,
    /// How long connecting may take.
    pub connect_timeout_ms: NonZero<u64>,
    /// How long a statement may take, including the network.
    pub statement_timeout_ms: NonZero<u64>,
    /// The most bytes of messages that wait for a connection; further appends wait.
    pub queue_bytes: NonZero<usize>,
}

impl Default for PostgresConfig {
    fn default() -> Self {
        Self {
            window_seconds: nonzero!(604_800),
            read_connections: nonzero!(8),
            write_connections: nonzero!(2),
            connect_timeout_ms: nonzero!(5_000),
            statement_timeout_ms: nonzero!(30_000),
            queue_bytes: nonzero!(64 << 20),
        }
    }
}

/// Settings of the `cassandra` engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CassandraConfig {
    /// Length of an epoch: each has its own table, and retention drops whole tables. 0: an eighth of what a rule for time keeps,
    /// at least a day; a week for the other rules; 30 days without any.
    pub epoch_seconds: u64,
    /// The most epochs. When the limit is reached, the nearest one is extended instead of creating another.
    pub epochs_max: NonZero<usize>,
    /// Length of a window: the messages of one are stored in one partition.
    pub window_seconds: NonZero<u64>,
    /// Groups of appends that are stored at the same time.
    pub writers: NonZero<usize>,
    /// Connections to each node.
    pub connections: NonZero<usize>,
    /// How long connecting may take.
    pub connect_timeout_ms: NonZero<u64>,
    /// How long one attempt of a request may take.
    pub request_timeout_ms: NonZero<u64>,
    /// How long a request is tried again.
    pub patience_ms: NonZero<u64>,
    /// The most bytes of messages that wait for a writer; further appends wait.
    pub queue_bytes: NonZero<usize>,
}

impl Default for CassandraConfig {
    fn default() -> Self {
        Self {
            epoch_seconds: 0,
            epochs_max: nonzero!(64),
            window_seconds: nonzero!(3_600),
            writers: nonzero!(4),
            connections: nonzero!(2),
            connect_timeout_ms: nonzero!(5_000),
            request_timeout_ms: nonzero!(3_000),
            patience_ms: nonzero!(10_000),
            queue_bytes: nonzero!(64 << 20),
        }
    }
}

/// Settings of a spool, which one process uses at a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpoolConfig {
    /// Its folder.
    #[serde(rename = "dir")]
    pub folder: PathBuf,
    /// The most bytes on disk; appends that exceed it fail with `Full`. The space that is reserved after an open log, at most 4
    /// MiB, is not counted.
    pub bytes_max: u64,
    /// An engine that does not answer an append for this long counts as unavailable.
    pub timeout_ms: NonZero<u64>,
}

impl SpoolConfig {
    /// The defaults for a folder.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), bytes_max: 1 << 30, timeout_ms: nonzero!(5_000) }
    }

    /// Whether messages wait in the folder, or may wait: a spool that is no longer configured must still be drained.
    pub fn has_content(&self) -> bool {
        spool::has_content(&self.folder)
    }
}

/// A second archive that follows the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TandemConfig {
    /// The second's engine and its location.
    pub url: EngineUrl,
    /// Where messages wait for the second.
    pub spool: SpoolConfig,
}

/// An opened archive: the two halves of one engine.
#[derive(Clone)]
pub struct Opened {
    /// For serving clients.
    pub archive: Arc<dyn Archive>,
    /// For operators.
    pub upkeep: Arc<dyn Upkeep>,
}

/// Opens the archive that `config` describes, and creates it if it does not exist.
///
/// # Errors
/// `Conflict` when another process has it open for writing, `Corrupt` when its format is unknown, `Unavailable` when the disk
/// fails or the database can't be reached, `Invalid` when this build lacks the engine.
pub fn open(config: Config) -> BoxFuture<'static, Result<Opened, Error>> {
    // Boxed here, so that the engines' code is compiled in this crate, and not in each crate that opens one.
    Box::pin(open_all(config))
}

async fn open_all(config: Config) -> Result<Opened, Error> {
    let has_spool = config.spool.is_some() && !config.read_only;
    let of_engine = Config { is_lazy: config.is_lazy || has_spool, ..config.clone() };
    let first = open_engine(of_engine).await?;
    let second = match &config.tandem {
        Some(tandem) if !config.read_only => Some(open_second(tandem, &config).await?),
        _ => None,
    };
    open_over(first, second, &config).await
}

/// The second archive of a tandem. The tandem itself reports the metrics.
async fn open_second(tandem: &TandemConfig, config: &Config) -> Result<Opened, Error> {
    let config =
        Config { url: tandem.url.clone(), is_lazy: true, metrics: Metrics::default(), ..config.clone() };
    let opened = open_engine(config).await;
    opened.map_err(|error| {
        error.context(format_args!("can't open the second archive of the tandem, {}", tandem.url))
    })
}

/// Wraps an open engine in what the settings configure: its spool, the second archive of a tandem, and metrics. For engines from
/// outside this crate; [`open`] does this itself.
///
/// # Errors
/// `Conflict` when another process uses the folder of the spool, and those of a disk that fails.
pub fn open_over(
    first: Opened,
    second: Option<Opened>,
    config: &Config,
) -> BoxFuture<'_, Result<Opened, Error>> {
    Box::pin(surround(first, second, config))
}

async fn surround(first: Opened, second: Option<Opened>, config: &Config) -> Result<Opened, Error> {
    let mut opened = first;
    if !config.read_only {
        if let Some(spool) = &config.spool {
            opened = spool::open(opened, spool, config).await?;
        }
        if let (Some(tandem), Some(second)) = (&config.tandem, second) {
            opened = tandem::open(opened, second, tandem, config).await?;
        }
    }
    let archive = Observed::new(opened.archive, config.metrics.clone());
    Ok(Opened { archive: Arc::new(archive), upkeep: opened.upkeep })
}

/// Opens an engine without wrapping it.
async fn open_engine(config: Config) -> Result<Opened, Error> {
    match config.url.clone() {
        EngineUrl::Log(folder) => {
            if config.read_only {
                nearest::check_folder(&folder)?;
            }
            log::open(folder, config).await
        }
        EngineUrl::Memory => Ok(memory::open(&config)),
        #[cfg(feature = "sqlite")]
        EngineUrl::Sqlite(file) => crate::sqlite::open(file, config).await,
        #[cfg(feature = "postgres")]
        EngineUrl::Postgres(url) => crate::postgres::open(url, config).await,
        #[cfg(feature = "cassandra")]
        EngineUrl::Cassandra(url) => crate::cassandra::open(url, config).await,
        #[cfg(not(all(feature = "sqlite", feature = "postgres", feature = "cassandra")))]
        other => Err(Error::invalid(format!(
            "this build is without the {0} engine: build it with --features {0}",
            other.engine()
        ))),
    }
}
