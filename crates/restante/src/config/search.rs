//! The settings of the search index: its location.

use std::path::{Path, PathBuf};

use restante_search::{EngineUrl, OpensearchConfig, TantivyConfig};
use serde::{Deserialize, Serialize};

use super::words;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Search {
    /// `None`, written as an empty text, is the embedded engine below the data folder.
    #[serde(with = "words::text_or_empty")]
    pub(crate) url: Option<EngineUrl>,
    pub(crate) tantivy: TantivyConfig,
    pub(crate) opensearch: SearchOpensearch,
}

/// The settings of OpenSearch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct SearchOpensearch {
    /// Empty for none.
    pub(crate) password_file: PathBuf,
    #[serde(flatten)]
    pub(crate) engine: OpensearchConfig,
}

impl Search {
    /// The location of the index, with the default filled in.
    pub(crate) fn url(&self, data_dir: &Path) -> EngineUrl {
        self.url.clone().unwrap_or_else(|| EngineUrl::Tantivy(data_dir.join("search")))
    }

    /// The first setting that can't be used: its key, and what is wrong.
    pub(crate) fn contradiction(&self) -> Option<(&'static str, String)> {
        if let Some((_, what)) = self.tantivy.problem() {
            return Some(("search.tantivy.memory_bytes", what));
        }
        let wrong = OpensearchConfig::prefix_error(&self.opensearch.engine.prefix);
        wrong.map(|what| ("search.opensearch.prefix", what))
    }
}
