use std::{fmt, fs::File, num::NonZero, path::PathBuf, str::FromStr, sync::Arc};

use futures_util::future::BoxFuture;
use restante_core::{Clock, SystemClock, nonzero};
use serde::{Deserialize, Serialize};

use crate::{
    Blobs, Error, Metrics, S3Encryption, S3Keys, S3Url, Upkeep, error::of_index, files, memory,
    observe::Observed,
};

/// Checks the pages of an index of the engine `files` from another machine: LMDB maps it, and a damaged page number can crash
/// the process. The contents of the index are checked by [`Upkeep::check`].
///
/// # Errors
/// `Corrupt`, with the page; `Unavailable` when the file can't be read.
pub fn check_pages(index: &File) -> Result<(), Error> {
    restante_lmdb::check_pages(index).map_err(of_index)
}

/// Which engine, and where: `memory:`, `files:<folder>` or `s3://<bucket>/<prefix>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineUrl {
    /// In memory, without durability.
    Memory,
    /// Files in a folder.
    Files(PathBuf),
    /// Objects in an S3 storage. Several processes may have the same blobs open.
    S3(S3Url),
}

impl EngineUrl {
    /// The engine's name.
    pub fn engine(&self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Files(_) => "files",
            Self::S3(_) => "s3",
        }
    }
}

impl FromStr for EngineUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text.split_once(':') {
            Some(("memory", "")) => Ok(Self::Memory),
            Some(("files", folder)) if !folder.is_empty() => Ok(Self::Files(folder.into())),
            Some(("s3", _)) => text.parse().map(Self::S3),
            _ => Err(Error::invalid(format!(
                "blobs URL '{text}' is not understood: use memory:, files:<folder> or s3://<bucket>/<prefix>"
            ))),
        }
    }
}

impl fmt::Display for EngineUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory:"),
            Self::Files(folder) => write!(f, "files:{}", folder.display()),
            Self::S3(url) => fmt::Display::fmt(url, f),
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
    /// Settings of the `s3` engine.
    pub s3: S3Config,
    /// The keys with which the `s3` engine signs its requests.
    pub s3_keys: Option<S3Keys>,
    /// The folder for the cache and for long uploads of the `s3` engine; without one, a folder in the system's folder for
    /// temporary files.
    pub s3_folder: Option<PathBuf>,
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
            s3: S3Config::default(),
            s3_keys: None,
            s3_folder: None,
            clock: Arc::new(SystemClock),
            metrics: Metrics::default(),
        }
    }
}

/// Settings of the `files` engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilesConfig {
    /// Blobs up to this length share pack files, longer ones have files of their own; 0 for none in packs.
    pub packed_bytes_max: u64,
    /// A pack file is full at this size.
    pub pack_bytes: NonZero<u64>,
}

impl Default for FilesConfig {
    fn default() -> Self {
        Self { packed_bytes_max: 256 << 10, pack_bytes: nonzero!(64 << 20) }
    }
}

/// Settings of the `s3` engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct S3Config {
    /// `http(s)://<host>:<port>` of the storage; empty is AWS.
    pub endpoint: String,
    /// The region.
    pub region: String,
    /// The trusted certificate authorities: a PEM file; empty for those of the system.
    pub ca_file: PathBuf,
    /// How objects are encrypted in the storage.
    pub encryption: S3Encryption,
    /// How long connecting may take.
    pub connect_timeout_ms: NonZero<u64>,
    /// How long the storage may take until its answer begins, after a request was sent.
    pub answer_timeout_ms: NonZero<u64>,
    /// How long after a request began it may be retried.
    pub retry_ms: u64,
    /// The most requests that wait for an answer; further ones wait before they are sent.
    pub requests_max: NonZero<usize>,
    /// The shortest time between two manifests of this server: puts and touches wait for the next one.
    pub manifest_interval_ms: u64,
    /// The size of the local cache; 0 for none.
    pub cache_bytes_max: u64,
}

impl Default for S3Config {
    fn default() -> Self {
        Self {
            endpoint: String::new(),
            region: "us-east-1".to_owned(),
            ca_file: PathBuf::new(),
            encryption: S3Encryption::BucketDefault,
            connect_timeout_ms: nonzero!(2_000),
            answer_timeout_ms: nonzero!(5_000),
            retry_ms: 10_000,
            requests_max: nonzero!(64),
            manifest_interval_ms: 100,
            cache_bytes_max: 1 << 30,
        }
    }
}

impl S3Config {
    /// The error in an endpoint, if there is one. The text does not repeat the endpoint: it may contain keys.
    pub fn endpoint_error(endpoint: &str) -> Option<&'static str> {
        let place = endpoint.strip_prefix("https://").or_else(|| endpoint.strip_prefix("http://"));
        match place {
            None if endpoint.is_empty() => None,
            Some(place) if place.contains('@') => Some(
                "name a host and a port alone: keys belong in blobs.s3.access_key and blobs.s3.secret_key_file",
            ),
            Some(place) if !place.is_empty() => None,
            _ => Some("it is not understood: use http://<host>:<port> or https://<host>"),
        }
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
/// `Conflict` when another process has it open (not with the engine `s3`), `Corrupt` when its format is not understood,
/// `Invalid` when its settings can't be used, `Unavailable` when a storage can't be reached, those of the disk.
pub fn open(config: Config) -> BoxFuture<'static, Result<Opened, Error>> {
    // Boxed here, so that only this crate compiles the code of the engines, and not each crate that opens one.
    Box::pin(open_observed(config))
}

async fn open_observed(config: Config) -> Result<Opened, Error> {
    let metrics = config.metrics.clone();
    let opened = match config.url.clone() {
        EngineUrl::Memory => memory::open(&config),
        EngineUrl::Files(folder) => files::open(&folder, config).await?,
        #[cfg(feature = "s3")]
        EngineUrl::S3(url) => crate::s3::open(&url, config).await?,
        #[cfg(not(feature = "s3"))]
        EngineUrl::S3(_) => {
            return Err(Error::invalid("this build is without the engine s3: build with the feature `s3`"));
        }
    };
    Ok(Opened { blobs: Arc::new(Observed::new(opened.blobs, metrics)), upkeep: opened.upkeep })
}
