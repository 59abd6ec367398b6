use std::{fmt, fs::File, num::NonZero, path::PathBuf, str::FromStr, sync::Arc};

use restante_core::{Clock, SystemClock, nonzero};
use serde::{Deserialize, Serialize};

use crate::{Blobs, Error, Metrics, Upkeep, error::of_index, files, memory, observe::Observed};

/// Checks the pages of an index of the engine `files` from another machine: LMDB maps it, and a damaged page number can crash
/// the process. The contents of the index are checked by [`Upkeep::check`].
///
/// # Errors
/// `Corrupt`, with the page; `Unavailable` when the file can't be read.
pub fn check_pages(index: &File) -> Result<(), Error> {
    restante_lmdb::check_pages(index).map_err(of_index)
}

/// Which engine, and where: `memory:` or `files:<folder>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineUrl {
    /// In memory, without durability.
    Memory,
    /// Files in a folder.
    Files(PathBuf),
}

impl EngineUrl {
    /// The engine's name.
    pub fn engine(&self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Files(_) => "files",
        }
    }
}

impl FromStr for EngineUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text.split_once(':') {
            Some(("memory", "")) => Ok(Self::Memory),
            Some(("files", folder)) if !folder.is_empty() => Ok(Self::Files(folder.into())),
            _ => Err(Error::invalid(format!(
                "blobs URL '{text}' is not understood: use memory: or files:<folder>"
            ))),
        }
    }
}

impl fmt::Display for EngineUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory:"),
            Self::Files(folder) => write!(f, "files:{}", folder.display()),
        }
    }
}

/// How to open a blob store.
#[derive(Clone)]
pub struct Config {
    /// The engine and where it is.
    pub url: EngineUrl,
    /// The length of the longest blob.
    pub blob_bytes_max: NonZero<u64>,
    /// Settings of the `files` engine.
    pub files: FilesConfig,
    /// The source of time.
    pub clock: Arc<dyn Clock>,
    /// The metrics to count in.
    pub metrics: Metrics,
}

impl Config {
    /// The defaults for an engine.
    pub fn new(url: EngineUrl) -> Self {
        Self {
            url,
            blob_bytes_max: nonzero!(1 << 30),
            files: FilesConfig::default(),
            clock: Arc::new(SystemClock),
            metrics: Metrics::default(),
        }
    }
}

/// Settings of the `files` engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilesConfig {
    /// Blobs up to this length share pack files, longer ones have files of their own; 0 is none in packs.
    pub packed_bytes_max: u64,
    /// A pack file is full at this size.
    pub pack_bytes: NonZero<u64>,
}

impl Default for FilesConfig {
    fn default() -> Self {
        Self { packed_bytes_max: 256 << 10, pack_bytes: nonzero!(64 << 20) }
    }
}

/// An opened blob store: two interfaces of one engine.
///
/// Close it by [`Upkeep::close`]. If it is dropped instead, no acknowledged blob is lost, but the engine's threads finish their
/// work first, and until then the store can't be opened again (`Conflict`).
#[derive(Clone)]
pub struct Opened {
    /// For doors.
    pub blobs: Arc<dyn Blobs>,
    /// For operators and the sweeper.
    pub upkeep: Arc<dyn Upkeep>,
}

/// Opens the blob store of `config`, and creates it if it does not exist.
///
/// # Errors
/// `Conflict` when another process has it open, `Corrupt` when its format is not understood, those of the disk.
pub async fn open(config: Config) -> Result<Opened, Error> {
    let metrics = config.metrics.clone();
    let opened = match config.url.clone() {
        EngineUrl::Memory => memory::open(&config),
        EngineUrl::Files(folder) => files::open(&folder, config).await?,
    };
    Ok(Opened { blobs: Arc::new(Observed::new(opened.blobs, metrics)), upkeep: opened.upkeep })
}
