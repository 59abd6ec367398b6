//! What mail has in the settings: the sections `mail`, `records`, `blobs` and `directory`.

use std::{net::SocketAddr, path::Path};

use serde::{Deserialize, Serialize};

use super::MailSpec;
use crate::{
    commands::config::Findings,
    config::Config,
    doors::{DoorListener, DoorSettings, HttpBounds},
};

/// Whether there is mail.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mail {
    pub(crate) enabled: bool,
}

impl Default for Mail {
    fn default() -> Self {
        Self { enabled: true }
    }
}

impl Config {
    /// The place of the records, with the default filled in.
    pub(crate) fn records_url(&self) -> restante_records::EngineUrl {
        self.records.url(&self.server.data_dir)
    }

    /// The place of the blobs, with the default filled in.
    pub(crate) fn blobs_url(&self) -> restante_blobs::EngineUrl {
        self.blobs.url(&self.server.data_dir)
    }
}

impl DoorSettings for MailSpec {
    fn switches(&self) -> &'static [&'static str] {
        &["mail.enabled"]
    }

    fn is_on(&self, config: &Config) -> bool {
        config.mail.enabled
    }

    fn contradiction(&self, config: &Config) -> Option<(&'static str, String)> {
        let of_directory = config.directory.rounds_problem().map(|what| ("directory.rounds", what));
        of_directory.or_else(|| config.blobs.contradiction())
    }

    fn listener(&self, _config: &Config) -> Option<DoorListener> {
        None
    }

    fn token_file<'c>(&self, _config: &'c Config) -> Option<(&'static str, &'c Path)> {
        None
    }

    fn http_bounds(&self, _config: &Config) -> Option<HttpBounds> {
        None
    }

    fn ports(&self, _config: &Config) -> Vec<(&'static str, SocketAddr)> {
        Vec::new()
    }

    fn connections_max(&self, _config: &Config) -> u64 {
        0
    }

    fn without_secret(&self, _config: &Config, _key: &str) -> Option<String> {
        None
    }

    fn check(&self, _config: &Config, _findings: &mut Findings) {}
}
