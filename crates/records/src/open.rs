use std::{fmt, fs::File, path::PathBuf, str::FromStr, sync::Arc};

use restante_core::{Clock, Identity, SystemClock};
use serde::{Deserialize, Serialize};

use crate::{Error, Feed, Metrics, Records, Schema, Upkeep, lmdb, memory, observe::observe};

/// Checks the pages of the file of the engine `lmdb`, which comes from elsewhere: LMDB maps it, and a page number that was
/// written over can end the process. What the records say is a matter of [`Upkeep::check`].
///
/// # Errors
/// `Corrupt`, with the page; `Unavailable` when the file can't be read.
pub fn check_pages(file: &File) -> Result<(), Error> {
    restante_lmdb::check_pages(file)
}

/// Which engine, and where: `memory:` or `lmdb:<folder>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineUrl {
    /// The reference model, in memory: it keeps nothing.
    Memory,
    /// LMDB in a folder.
    Lmdb(PathBuf),
}

impl EngineUrl {
    /// The engine's name.
    pub fn engine(&self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Lmdb(_) => "lmdb",
        }
    }
}

impl FromStr for EngineUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text.split_once(':') {
            Some(("memory", "")) => Ok(Self::Memory),
            Some(("lmdb", folder)) if !folder.is_empty() => Ok(Self::Lmdb(folder.into())),
            _ => Err(Error::invalid(format!(
                "records URL '{text}' is not understood: use memory: or lmdb:<folder>"
            ))),
        }
    }
}

impl fmt::Display for EngineUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory:"),
            Self::Lmdb(folder) => write!(f, "lmdb:{}", folder.display()),
        }
    }
}

/// How to open a record store.
#[derive(Clone)]
pub struct Config {
    /// The engine and its place.
    pub url: EngineUrl,
    /// The kinds of records and their indexes. Indexes that are new since the store was opened last are made on opening.
    pub schema: Schema,
    /// Settings of the `lmdb` engine.
    pub lmdb: LmdbConfig,
    /// What a store that is made gets for its [`Upkeep::identity`].
    pub identity: Identity,
    /// Where the time comes from.
    pub clock: Arc<dyn Clock>,
    /// What is counted.
    pub metrics: Metrics,
}

impl Config {
    /// The defaults for an engine.
    pub fn new(url: EngineUrl, schema: Schema) -> Self {
        Self {
            url,
            schema,
            lmdb: LmdbConfig::default(),
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
    /// The size of each of the two files of the commit log; 0 is no commit log: each group of commits is an LMDB transaction.
    pub log_bytes: u64,
    /// Whether bodies are compressed, with a dictionary that is made of the first of them.
    #[serde(rename = "compress")]
    pub is_compressed: bool,
}

impl Default for LmdbConfig {
    fn default() -> Self {
        Self { log_bytes: 8 << 20, is_compressed: true }
    }
}

/// An opened record store: the faces of one engine.
///
/// Close it by [`Upkeep::close`] when it is no longer needed, which waits without keeping a thread busy. If it is dropped
/// instead, nothing is lost that was answered, but the thread that drops the last of the faces waits for the engine's threads,
/// which may have to write and sync some megabytes: not a thread of an async runtime. Then the store can be opened again.
#[derive(Clone)]
pub struct Opened {
    /// For doors.
    pub records: Arc<dyn Records>,
    /// For followers.
    pub feed: Arc<dyn Feed>,
    /// For operators.
    pub upkeep: Arc<dyn Upkeep>,
}

/// Opens the record store that `config` names, and creates it when it is not there.
///
/// # Errors
/// `Conflict` when another process has it open, `Corrupt` when its format is not understood or it is damaged, `Invalid`
/// when its schema can't become the one that is asked for, those of a disk that fails.
pub async fn open(config: Config) -> Result<Opened, Error> {
    let metrics = config.metrics.clone();
    let engine = match config.url.clone() {
        EngineUrl::Memory => memory::open(&config),
        EngineUrl::Lmdb(folder) => lmdb::open(&folder, config).await?,
    };
    Ok(observe(engine, metrics))
}
