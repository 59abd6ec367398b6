use std::{fmt, num::NonZero, path::PathBuf, str::FromStr, sync::Arc};

use futures_util::future::BoxFuture;
use restante_core::nonzero;
use serde::{Deserialize, Serialize};

use crate::{
    Error, Index, Metrics, OpensearchUrl, Search, Upkeep, memory, observe::observe,
    opensearch_url::without_password, tantivy,
};

/// Which engine, and where: `memory:`, `tantivy:<folder>` or `opensearch://<user>@<host>:<port>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineUrl {
    /// The reference model, in memory: nothing is stored.
    Memory,
    /// Tantivy in a folder.
    Tantivy(PathBuf),
    /// OpenSearch. Several processes may have the same index open; one of them writes.
    Opensearch(OpensearchUrl),
}

impl EngineUrl {
    /// The engine's name.
    pub fn engine(&self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Tantivy(_) => "tantivy",
            Self::Opensearch(_) => "opensearch",
        }
    }
}

impl FromStr for EngineUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text.split_once(':') {
            Some(("memory", "")) => Ok(Self::Memory),
            Some(("tantivy", folder)) if !folder.is_empty() => Ok(Self::Tantivy(folder.into())),
            Some(("opensearch" | "opensearchs" | "http" | "https", _)) => text.parse().map(Self::Opensearch),
            _ => Err(Error::invalid(format!(
                "search URL '{}' is not understood: use memory:, tantivy:<folder> or opensearch://<user>@<host>:<port>",
                without_password(text)
            ))),
        }
    }
}

impl fmt::Display for EngineUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory:"),
            Self::Tantivy(folder) => write!(f, "tantivy:{}", folder.display()),
            Self::Opensearch(url) => fmt::Display::fmt(url, f),
        }
    }
}

/// How to open a search index.
#[derive(Clone)]
pub struct Config {
    /// The engine and where it is.
    pub url: EngineUrl,
    /// Settings of the `tantivy` engine.
    pub tantivy: TantivyConfig,
    /// Settings of the `opensearch` engine.
    pub opensearch: OpensearchConfig,
    /// Open only an index that exists, with engines that can tell: nothing is created, a damaged index is not removed, and a server
    /// that can't be reached is an error.
    pub must_exist: bool,
    /// The metrics to count in.
    pub metrics: Metrics,
}

impl Config {
    /// The defaults for an engine.
    pub fn new(url: EngineUrl) -> Self {
        Self {
            url,
            tantivy: TantivyConfig::default(),
            opensearch: OpensearchConfig::default(),
            must_exist: false,
            metrics: Metrics::default(),
        }
    }
}

/// Settings of the `tantivy` engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TantivyConfig {
    /// The longest time, in milliseconds, from a write to its commit; ten times as long for accounts that are not searched meanwhile.
    /// Until then the newest emails are matched directly.
    pub commit_ms: u64,
    /// This many documents of one account, or ten times as many of all, are committed at once, without waiting.
    pub commit_documents: NonZero<usize>,
    /// The memory for documents that are being indexed, in bytes; at least 15,000,000.
    pub memory_bytes: usize,
    /// Whether the checksums of all files are verified when the index is opened. That reads the whole index. Without it, damage in the
    /// middle of a file is noticed when a query or a merge reads it.
    pub verify: bool,
}

impl Default for TantivyConfig {
    fn default() -> Self {
        Self { commit_ms: 1_000, commit_documents: nonzero!(1_000), memory_bytes: 20_000_000, verify: true }
    }
}

impl TantivyConfig {
    /// The least value of `memory_bytes`: what Tantivy needs for indexing.
    const MEMORY_BYTES_MIN: usize = 15_000_000;

    /// The error in these settings, if there is one: the setting, and what to do.
    pub fn problem(&self) -> Option<(&'static str, String)> {
        let is_small = self.memory_bytes < Self::MEMORY_BYTES_MIN;
        is_small.then(|| ("memory_bytes", format!("use at least {}", Self::MEMORY_BYTES_MIN)))
    }
}

/// Settings of the `opensearch` engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OpensearchConfig {
    /// The name of the alias that leads to the index, and the prefix of the names of indexes, so that several can share a
    /// cluster.
    pub prefix: String,
    /// The shards of an index that is created; each account is in one of them.
    pub shards: NonZero<u32>,
    /// The copies of each shard of an index that is created, not counting the first.
    pub replicas: u32,
    /// The longest time, in milliseconds, from a write to its commit. Until then the newest emails are matched directly.
    pub commit_ms: u64,
    /// This many documents are committed at once, without waiting.
    pub commit_documents: NonZero<usize>,
    /// How long a query may take, in milliseconds. A request that writes may take six times as long.
    pub timeout_ms: NonZero<u64>,
    /// The most queries at once; further ones wait, within their time limit.
    pub queries_max: NonZero<usize>,
    /// The trusted certificate authorities for an `opensearchs:` URL: a PEM file; empty for those of the operating system.
    pub ca_file: PathBuf,
}

impl Default for OpensearchConfig {
    fn default() -> Self {
        Self {
            prefix: "restante-mail".to_owned(),
            shards: nonzero!(4),
            replicas: 1,
            commit_ms: 1_000,
            commit_documents: nonzero!(500),
            timeout_ms: nonzero!(5_000),
            queries_max: nonzero!(32),
            ca_file: PathBuf::new(),
        }
    }
}

impl OpensearchConfig {
    /// The longest prefix.
    const PREFIX_BYTES_MAX: usize = 64;

    /// The error in a prefix, if there is one.
    pub fn prefix_error(prefix: &str) -> Option<String> {
        let is_first_right = prefix.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
        let is_of_name =
            |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_' | '.');
        let is_right =
            is_first_right && prefix.chars().all(is_of_name) && prefix.len() <= Self::PREFIX_BYTES_MAX;
        (!is_right).then(|| {
            let most = Self::PREFIX_BYTES_MAX;
            format!(
                "'{prefix}' is no name for an index: use at most {most} lower-case letters, digits, '-', '_' and '.', the first of them a letter or a digit"
            )
        })
    }
}

/// An opened search index: the interfaces of one engine.
///
/// Close it by [`Upkeep::close`]. If it is dropped instead, what was not committed is lost, and the follower writes it again;
/// until its tasks have ended, it can't be opened again (`Conflict`).
#[derive(Clone)]
pub struct Opened {
    /// For doors.
    pub search: Arc<dyn Search>,
    /// For the follower.
    pub index: Arc<dyn Index>,
    /// For operators.
    pub upkeep: Arc<dyn Upkeep>,
}

/// Opens the search index of `config`, and creates it if it does not exist. An index that is damaged, or of another program or
/// version, is removed and replaced by an empty one: then [`Index::begin`] returns no checkpoint.
///
/// Without [`Config::must_exist`], an OpenSearch that can't be reached is not an error: queries return `Unavailable` and writes fail
/// until it can be reached again.
///
/// # Errors
/// With [`Config::must_exist`] `NotFound` when there is no index, and `Corrupt` when it is damaged or of another version; `Invalid`
/// when a setting is out of its bounds, or OpenSearch refuses user and password; `Conflict` when another process has the index open,
/// or when something else has the name that the index needs; those of the disk.
pub fn open(config: Config) -> BoxFuture<'static, Result<Opened, Error>> {
    // Boxed here, so that only this crate compiles the code of the engines, and not each crate that opens one.
    Box::pin(open_observed(config))
}

async fn open_observed(config: Config) -> Result<Opened, Error> {
    let metrics = config.metrics.clone();
    if let (EngineUrl::Tantivy(folder), true) = (&config.url, config.must_exist)
        && !folder.join("index").exists()
    {
        return Err(Error::not_found(format!("there is no search index in {}", folder.display())));
    }
    let engine = match config.url.clone() {
        EngineUrl::Memory => memory::open(),
        EngineUrl::Tantivy(folder) => tantivy::open(folder, config).await?,
        #[cfg(feature = "opensearch")]
        EngineUrl::Opensearch(url) => crate::opensearch::open(&url, config).await?,
        #[cfg(not(feature = "opensearch"))]
        EngineUrl::Opensearch(_) => {
            return Err(Error::invalid(
                "this build is without the engine opensearch: build with the feature `opensearch`",
            ));
        }
    };
    Ok(observe(engine, metrics))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_read_back_and_others_are_refused() {
        for text in ["memory:", "tantivy:data/search", "opensearch://me@search:9200"] {
            let url: EngineUrl = text.parse().unwrap();
            assert_eq!(url.to_string(), text);
            assert!(text.starts_with(url.engine()));
        }
        for text in ["", "memory", "memory:x", "tantivy:", "lucene:x", "opensearch:x", "https://"] {
            assert!(text.parse::<EngineUrl>().is_err(), "{text}");
        }
    }

    #[test]
    fn settings_that_are_left_out_have_their_defaults() {
        let config: TantivyConfig = serde_json::from_str(r#"{"commit_ms": 5}"#).unwrap();
        assert_eq!(config, TantivyConfig { commit_ms: 5, ..TantivyConfig::default() });
        assert!(serde_json::from_str::<TantivyConfig>(r#"{"commit": 5}"#).is_err());
        let config: OpensearchConfig = serde_json::from_str(r#"{"replicas": 2}"#).unwrap();
        assert_eq!(config, OpensearchConfig { replicas: 2, ..OpensearchConfig::default() });
    }

    #[test]
    fn a_prefix_is_a_name_that_an_index_can_have() {
        assert_eq!(OpensearchConfig::prefix_error(&OpensearchConfig::default().prefix), None);
        for prefix in ["", "Mail", "a b", "_x", "-x", "a*", "a,b", "a/b", "\u{e9}", &"a".repeat(65)] {
            let error = OpensearchConfig::prefix_error(prefix).unwrap();
            assert!(error.ends_with("the first of them a letter or a digit"), "{error}");
        }
    }
}
