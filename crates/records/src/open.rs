use std::{fmt, fs::File, num::NonZero, path::PathBuf, str::FromStr, sync::Arc};

use futures_util::future::BoxFuture;
use restante_core::{Clock, Identity, SystemClock, UnsyncedBlobs, nonzero};
use serde::{Deserialize, Serialize};

use crate::{
    CassandraUrl, Error, Feed, Metrics, Moving, Peers, PostgresUrl, Records, Schema, Upkeep, lmdb, memory,
    observe::observe, postgres_url::without_password,
};

/// Checks the pages of a file of the engine `lmdb` that comes from elsewhere: LMDB maps the file, and a page number that was
/// overwritten can crash the process. The content of the records is checked by [`Upkeep::check`].
///
/// # Errors
/// `Corrupt`, with the page; `Unavailable` when the file can't be read.
pub fn check_pages(file: &File) -> Result<(), Error> {
    restante_lmdb::check_pages(file)
}

/// An engine and its location: `memory:`, `lmdb:<folder>`, `postgres://<user>@<host>/<database>` or
/// `cassandra://<host>,<host>/<keyspace>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineUrl {
    /// The reference model, in memory: nothing is persisted.
    Memory,
    /// LMDB in a folder.
    Lmdb(PathBuf),
    /// PostgreSQL. Several processes may have the same records open.
    Postgres(PostgresUrl),
    /// Cassandra. Several processes may have the same records open.
    Cassandra(CassandraUrl),
}

impl EngineUrl {
    /// The engine's name.
    pub fn engine(&self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Lmdb(_) => "lmdb",
            Self::Postgres(_) => "postgres",
            Self::Cassandra(_) => "cassandra",
        }
    }
}

impl FromStr for EngineUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text.split_once(':') {
            Some(("memory", "")) => Ok(Self::Memory),
            Some(("lmdb", folder)) if !folder.is_empty() => Ok(Self::Lmdb(folder.into())),
            Some(("postgres" | "postgresql", _)) => text.parse().map(Self::Postgres),
            Some(("cassandra", _)) => text.parse().map(Self::Cassandra),
            _ => Err(Error::invalid(format!(
                "records URL '{}' is not understood: use memory:, lmdb:<folder>, postgres://<user>@<host>/<database> or \
                 cassandra://<host>/<keyspace>",
                without_password(text)
            ))),
        }
    }
}

impl fmt::Display for EngineUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory:"),
            Self::Lmdb(folder) => write!(f, "lmdb:{}", folder.display()),
            Self::Postgres(url) => fmt::Display::fmt(url, f),
            Self::Cassandra(url) => fmt::Display::fmt(url, f),
        }
    }
}

/// How to open a record store.
#[derive(Clone)]
pub struct Config {
    /// The engine and its location.
    pub url: EngineUrl,
    /// The kinds of records and their indexes. Indexes that were added since the last opening are built on opening.
    pub schema: Schema,
    /// Settings of the `lmdb` engine.
    pub lmdb: LmdbConfig,
    /// Settings of the `postgres` engine.
    pub postgres: PostgresConfig,
    /// Settings of the `cassandra` engine.
    pub cassandra: CassandraConfig,
    /// The blobs that the records refer to, if the engine `lmdb` is to make them durable with its commits. It does so once
    /// [`Upkeep::put_blobs_again`] was called ([`Records::makes_blobs_durable`]).
    pub unsynced_blobs: Option<Arc<dyn UnsyncedBlobs>>,
    /// Open only an existing store: nothing is created.
    pub must_exist: bool,
    /// The [`Upkeep::identity`] of a store that is created.
    pub identity: Identity,
    /// The source of the time.
    pub clock: Arc<dyn Clock>,
    /// The metrics.
    pub metrics: Metrics,
}

impl Config {
    /// The defaults for an engine.
    pub fn new(url: EngineUrl, schema: Schema) -> Self {
        Self {
            url,
            schema,
            lmdb: LmdbConfig::default(),
            postgres: PostgresConfig::default(),
            cassandra: CassandraConfig::default(),
            unsynced_blobs: None,
            must_exist: false,
            identity: Identity::random(),
            clock: Arc::new(SystemClock),
            metrics: Metrics::default(),
        }
    }
}

/// Settings of the `lmdb` engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LmdbConfig {
    /// The size of each of the two files of the commit log. With 0 there is no commit log: each group of commits is an LMDB transaction.
    pub log_bytes: u64,
    /// Whether bodies are compressed, with a dictionary that is trained with the first of them.
    #[serde(rename = "compress")]
    pub is_compressed: bool,
    /// Whether commits make blobs durable that were put without a sync ([`Records::makes_blobs_durable`]).
    #[serde(rename = "blobs_in_log")]
    pub has_blobs_in_log: bool,
}

impl Default for LmdbConfig {
    fn default() -> Self {
        Self { log_bytes: 4 << 20, is_compressed: true, has_blobs_in_log: true }
    }
}

/// Settings of the `postgres` engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PostgresConfig {
    /// Connections that read; further reads wait for one.
    pub read_connections: NonZero<usize>,
    /// Connections that commit, each one group of commits at a time. The commits of an account all use the same connection.
    pub write_connections: NonZero<usize>,
    /// How long connecting may take.
    pub connect_timeout_ms: NonZero<u64>,
    /// How long a statement may take, including the network.
    pub statement_timeout_ms: NonZero<u64>,
    /// How long a statement may wait for another transaction.
    pub lock_timeout_ms: NonZero<u64>,
}

impl Default for PostgresConfig {
    fn default() -> Self {
        Self {
            read_connections: nonzero!(8),
            write_connections: nonzero!(2),
            connect_timeout_ms: nonzero!(5_000),
            statement_timeout_ms: nonzero!(10_000),
            lock_timeout_ms: nonzero!(5_000),
        }
    }
}

/// Settings of the `cassandra` engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CassandraConfig {
    /// Connections to each node.
    pub connections: NonZero<usize>,
    /// The replicas of a keyspace that is created; at most the number of nodes.
    pub replication: NonZero<usize>,
    /// How long connecting may take.
    pub connect_timeout_ms: NonZero<u64>,
    /// How long one attempt of a statement may take.
    pub request_timeout_ms: NonZero<u64>,
    /// How long a statement or a commit is retried.
    pub patience_ms: NonZero<u64>,
}

impl Default for CassandraConfig {
    fn default() -> Self {
        Self {
            connections: nonzero!(2),
            replication: nonzero!(3),
            connect_timeout_ms: nonzero!(5_000),
            request_timeout_ms: nonzero!(2_000),
            patience_ms: nonzero!(15_000),
        }
    }
}

/// An opened record store: the traits of one engine.
///
/// Close it with [`Upkeep::close`] when it is no longer needed: that waits without blocking a thread. If it is dropped instead,
/// nothing that was acknowledged is lost, but the thread that drops the last reference blocks until the engine's threads have
/// ended, which may have to write and sync some megabytes. So don't drop it on a thread of an async runtime. After either, the
/// store can be opened again.
#[derive(Clone)]
pub struct Opened {
    /// For the protocol servers.
    pub records: Arc<dyn Records>,
    /// For followers.
    pub feed: Arc<dyn Feed>,
    /// For operators.
    pub upkeep: Arc<dyn Upkeep>,
    /// For an engine that polls for the commits of other servers. `None` for engines that announce them at once or have no other
    /// servers.
    pub peers: Option<Arc<dyn Peers>>,
}

/// Opens the record store that `config` names, and creates it when it does not exist.
///
/// # Errors
/// `Conflict` when another process has it open (with the engines `postgres` and `cassandra` only if that process has it open with
/// other indexes); `NotFound` when it does not exist and [`Config::must_exist`] is set; `Unavailable` when a server can't be
/// reached; `Corrupt` when its format is unknown or it is damaged; `Invalid` when its schema can't become the requested one, or
/// it is an incomplete copy; those of a disk that fails.
pub fn open(config: Config) -> BoxFuture<'static, Result<Opened, Error>> {
    // Boxed here, so that the code of the engines is compiled in this crate only, and not in each crate that opens one.
    Box::pin(async {
        let metrics = config.metrics.clone();
        let opened = open_for(config, Purpose::Serve).await?.opened;
        Ok(observe(opened, metrics))
    })
}

/// Opens a store to copy it, to copy another one into it, or to compare it. No server may have it open, and none can open it
/// meanwhile.
///
/// # Errors
/// Those of [`open`]; `Conflict` also when a server has the store open.
pub fn open_moving(config: Config) -> BoxFuture<'static, Result<Moving, Error>> {
    Box::pin(open_for(config, Purpose::Move))
}

/// The purpose of opening a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Serve,
    /// Alone; even an incomplete copy is opened.
    Move,
}

async fn open_for(config: Config, purpose: Purpose) -> Result<Moving, Error> {
    if let (EngineUrl::Lmdb(folder), true) = (&config.url, config.must_exist)
        && !folder.join(lmdb::DATA_FILE).exists()
    {
        return Err(Error::not_found(format!("there are no records in {}", folder.display())));
    }
    match config.url.clone() {
        EngineUrl::Memory => Ok(memory::open(&config)),
        EngineUrl::Lmdb(folder) => lmdb::open(&folder, config, purpose).await,
        #[cfg(feature = "postgres")]
        EngineUrl::Postgres(url) => crate::postgres::open(&url, config, purpose).await,
        #[cfg(not(feature = "postgres"))]
        EngineUrl::Postgres(_) => Err(Error::invalid(
            "this build is without the engine postgres: build with the feature `postgres`",
        )),
        #[cfg(feature = "cassandra")]
        EngineUrl::Cassandra(url) => crate::cassandra::open(&url, config, purpose).await,
        #[cfg(not(feature = "cassandra"))]
        EngineUrl::Cassandra(_) => Err(Error::invalid(
            "this build is without the engine cassandra: build with the feature `cassandra`",
        )),
    }
}
