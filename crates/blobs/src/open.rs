use std::{fmt, fs::File, path::PathBuf, str::FromStr, sync::Arc};

use restante_core::{Clock, SystemClock};

use crate::{Blobs, Error, Metrics, Upkeep, files, memory, observe::Observed};

/// Checks the pages of the index of the engine `files`, which comes from elsewhere: LMDB maps it, and a page number that was
/// written over can end the process. What the index says is a matter of [`Upkeep::check`].
///
/// # Errors
/// `Corrupt`, with the page; `Unavailable` when the file can't be read.
pub fn check_pages(index: &File) -> Result<(), Error> {
    restante_lmdb::check_pages(index)?;
    Ok(())
}

/// Which engine, and where: `memory:` or `files:<folder>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineUrl {
    /// In memory: it keeps nothing.
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
    /// The engine and its place.
    pub url: EngineUrl,
    /// The longest blob that is taken.
    pub blob_bytes_max: u64,
    /// Settings of the `files` engine.
    pub files: FilesConfig,
    /// Where the time comes from.
    pub clock: Arc<dyn Clock>,
    /// What is counted.
    pub metrics: Metrics,
}

impl Config {
    /// The defaults for an engine.
    pub fn new(url: EngineUrl) -> Self {
        Self {
            url,
            blob_bytes_max: 1 << 30,
            files: FilesConfig::default(),
            clock: Arc::new(SystemClock),
            metrics: Metrics::default(),
        }
    }
}

/// Settings of the `files` engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilesConfig {
    /// Blobs up to this length lie together in pack files, longer ones each in a file of its own.
    pub packed_bytes_max: u64,
    /// A pack file is full at this size.
    pub pack_bytes: u64,
}

impl Default for FilesConfig {
    fn default() -> Self {
        Self { packed_bytes_max: 256 << 10, pack_bytes: 64 << 20 }
    }
}

/// An opened blob store: the two faces of one engine.
///
/// Close it by [`Upkeep::close`] when it is no longer needed. If it is dropped instead, nothing is lost that was answered; the
/// engine's threads finish what they were doing, and until then the store can't be opened again (`Conflict`).
#[derive(Clone)]
pub struct Opened {
    /// For doors.
    pub blobs: Arc<dyn Blobs>,
    /// For operators and the sweeper.
    pub upkeep: Arc<dyn Upkeep>,
}

/// Opens the blob store that `config` names, and creates it when it is not there.
///
/// # Errors
/// `Conflict` when another process has it open, `Corrupt` when its format is not understood, those of a disk that fails.
pub async fn open(config: Config) -> Result<Opened, Error> {
    let metrics = config.metrics.clone();
    let opened = match config.url.clone() {
        EngineUrl::Memory => memory::open(&config),
        EngineUrl::Files(folder) => files::open(&folder, config).await?,
    };
    Ok(Opened { blobs: Arc::new(Observed::new(opened.blobs, metrics)), upkeep: opened.upkeep })
}
