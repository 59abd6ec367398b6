//! The settings of the queue between servers: where work is distributed, and where commits are announced.

use std::path::PathBuf;

use restante_queue::{EngineUrl, QueueConfig};
use serde::{Deserialize, Serialize};

use super::words;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Queue {
    #[serde(with = "words::text")]
    pub(crate) url: EngineUrl,
    /// Empty for none.
    pub(crate) password_file: PathBuf,
    /// `None`, written as an empty text, means where work is distributed.
    #[serde(with = "words::text_or_empty")]
    pub(crate) announcements_url: Option<EngineUrl>,
    /// Empty for none.
    pub(crate) announcements_password_file: PathBuf,
    #[serde(flatten)]
    pub(crate) engine: QueueConfig,
}

impl Queue {
    /// Where commits are announced, and the file with its password.
    pub(crate) fn announcements(&self) -> (&EngineUrl, &PathBuf) {
        match &self.announcements_url {
            Some(url) => (url, &self.announcements_password_file),
            None => (&self.url, &self.password_file),
        }
    }

    /// The first setting that can't be used: its key, and what is wrong.
    pub(crate) fn contradiction(&self) -> Option<(&'static str, String)> {
        if matches!(self.url, EngineUrl::Redis(_)) {
            let what =
                "Redis carries announcements, and deals out no work: name it as queue.announcements_url";
            return Some(("queue.url", what.to_owned()));
        }
        QueueConfig::prefix_error(&self.engine.prefix).map(|what| ("queue.prefix", what))
    }
}

impl Default for Queue {
    fn default() -> Self {
        Self {
            url: EngineUrl::Local,
            password_file: PathBuf::new(),
            announcements_url: None,
            announcements_password_file: PathBuf::new(),
            engine: QueueConfig::default(),
        }
    }
}
