//! The settings of records: their location, and how long destroyed records are remembered.

use std::{
    num::NonZero,
    path::{Path, PathBuf},
};

use restante_core::nonzero;
use restante_records::{CassandraConfig, EngineUrl, LmdbConfig, PostgresConfig};
use serde::{Deserialize, Serialize};

use super::words;

/// Two months. A tombstone takes a few tens of bytes, and a client that was away for longer can read everything again.
const KEEP_DESTROYED_SECONDS: u64 = 60 * 86_400;
const CLEAN_INTERVAL_SECONDS: u64 = 86_400;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Records {
    /// `None`, written as an empty text, is the embedded engine below the data folder.
    #[serde(with = "words::text_or_empty")]
    pub(crate) url: Option<EngineUrl>,
    pub(crate) keep_destroyed_seconds: NonZero<u64>,
    pub(crate) clean_interval_seconds: NonZero<u64>,
    pub(crate) lmdb: LmdbConfig,
    pub(crate) postgres: RecordsPostgres,
    pub(crate) cassandra: RecordsCassandra,
}

/// The settings of PostgreSQL.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct RecordsPostgres {
    /// Empty for none.
    pub(crate) password_file: PathBuf,
    #[serde(flatten)]
    pub(crate) engine: PostgresConfig,
}

/// The settings of Cassandra.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct RecordsCassandra {
    /// Empty for none.
    pub(crate) password_file: PathBuf,
    #[serde(flatten)]
    pub(crate) engine: CassandraConfig,
}

impl Records {
    /// The location of the records, with the default filled in.
    pub(crate) fn url(&self, data_dir: &Path) -> EngineUrl {
        self.url.clone().unwrap_or_else(|| EngineUrl::Lmdb(data_dir.join("records")))
    }
}

impl Default for Records {
    fn default() -> Self {
        Self {
            url: None,
            keep_destroyed_seconds: nonzero!(KEEP_DESTROYED_SECONDS),
            clean_interval_seconds: nonzero!(CLEAN_INTERVAL_SECONDS),
            lmdb: LmdbConfig::default(),
            postgres: RecordsPostgres::default(),
            cassandra: RecordsCassandra::default(),
        }
    }
}
