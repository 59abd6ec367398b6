use std::{fmt, num::NonZero, path::PathBuf, str::FromStr, sync::Arc};

use restante_core::nonzero;
use serde::{Deserialize, Serialize};

use crate::{Error, Index, Metrics, Search, Upkeep, memory, observe::observe, tantivy};

/// Which engine, and where: `memory:` or `tantivy:<folder>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineUrl {
    /// The reference model, in memory: it keeps nothing.
    Memory,
    /// Tantivy in a folder.
    Tantivy(PathBuf),
}

impl EngineUrl {
    /// The engine's name.
    pub fn engine(&self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Tantivy(_) => "tantivy",
        }
    }
}

impl FromStr for EngineUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text.split_once(':') {
            Some(("memory", "")) => Ok(Self::Memory),
            Some(("tantivy", folder)) if !folder.is_empty() => Ok(Self::Tantivy(folder.into())),
            _ => Err(Error::invalid(format!(
                "search URL '{text}' is not understood: use memory: or tantivy:<folder>"
            ))),
        }
    }
}

impl fmt::Display for EngineUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory:"),
            Self::Tantivy(folder) => write!(f, "tantivy:{}", folder.display()),
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
    /// The metrics to count in.
    pub metrics: Metrics,
}

impl Config {
    /// The defaults for an engine.
    pub fn new(url: EngineUrl) -> Self {
        Self { url, tantivy: TantivyConfig::default(), metrics: Metrics::default() }
    }
}

/// Settings of the `tantivy` engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TantivyConfig {
    /// The longest time, in milliseconds, from a write to the commit that has it; ten times as long where nobody searches the account
    /// meanwhile. Until then the newest emails are matched directly.
    pub commit_ms: u64,
    /// So many documents of one account, or ten times as many of all, are committed at once, without waiting.
    pub commit_documents: NonZero<usize>,
    /// The memory for documents that are being indexed, in bytes; at least 15,000,000.
    pub memory_bytes: usize,
    /// Whether the checksums of all files are verified on opening. It reads the whole index. Without it, damage in the middle of a
    /// file is noticed when a query or a merge meets it.
    pub verify: bool,
}

impl Default for TantivyConfig {
    fn default() -> Self {
        Self { commit_ms: 1_000, commit_documents: nonzero!(1_000), memory_bytes: 20_000_000, verify: true }
    }
}

/// An opened search index: the interfaces of one engine.
///
/// Close it by [`Upkeep::close`]. If it is dropped instead, what was not committed is lost, and written again by the follower;
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

/// Opens the search index of `config`, and creates it if it does not exist. An index that is damaged, of another program or of
/// another version is removed, and an empty one created: then [`Index::begin`] has no checkpoint.
///
/// # Errors
/// `Invalid` when a setting is out of its bounds, `Conflict` when another process has the index open, those of the disk.
pub async fn open(config: Config) -> Result<Opened, Error> {
    let metrics = config.metrics.clone();
    let engine = match config.url.clone() {
        EngineUrl::Memory => memory::open(),
        EngineUrl::Tantivy(folder) => tantivy::open(folder, config).await?,
    };
    Ok(observe(engine, metrics))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_read_back_and_others_are_refused() {
        for text in ["memory:", "tantivy:data/search"] {
            let url: EngineUrl = text.parse().unwrap();
            assert_eq!(url.to_string(), text);
            assert!(text.starts_with(url.engine()));
        }
        for text in ["", "memory", "memory:x", "tantivy:", "lucene:x"] {
            assert!(text.parse::<EngineUrl>().is_err(), "{text}");
        }
    }

    #[test]
    fn settings_that_are_left_out_have_their_defaults() {
        let config: TantivyConfig = serde_json::from_str(r#"{"commit_ms": 5}"#).unwrap();
        assert_eq!(config, TantivyConfig { commit_ms: 5, ..TantivyConfig::default() });
        assert!(serde_json::from_str::<TantivyConfig>(r#"{"commit": 5}"#).is_err());
    }
}
