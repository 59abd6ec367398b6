//! The settings of the search index: where it is.

use std::path::Path;

use restante_search::{EngineUrl, TantivyConfig};
use serde::{Deserialize, Serialize};

use super::words;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Search {
    /// `None`, written as an empty text, is the embedded engine below the data folder.
    #[serde(with = "words::text_or_empty")]
    pub(crate) url: Option<EngineUrl>,
    pub(crate) tantivy: TantivyConfig,
}

impl Search {
    /// Where the index is, with the default filled in.
    pub(crate) fn url(&self, data_dir: &Path) -> EngineUrl {
        self.url.clone().unwrap_or_else(|| EngineUrl::Tantivy(data_dir.join("search")))
    }
}
