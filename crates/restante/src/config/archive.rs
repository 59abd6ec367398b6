//! The settings of the archive: its location, what it stores, and its engines.

use std::{num::NonZero, path::PathBuf};

use restante_archive::{
    CassandraConfig, EngineUrl, LogConfig, PostgresConfig, Retention, SpoolConfig, SqliteConfig,
};
use restante_core::nonzero;
use serde::{Deserialize, Serialize};

use super::words;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Archive {
    /// `None`, written as an empty text, is the embedded engine below the data folder.
    #[serde(with = "words::text_or_empty")]
    pub(crate) url: Option<EngineUrl>,
    #[serde(with = "words::text")]
    pub(crate) retention: Retention,
    pub(crate) retention_interval_seconds: NonZero<u64>,
    /// `None`, written as an empty text, means no second archive.
    #[serde(with = "words::text_or_empty")]
    pub(crate) tandem: Option<EngineUrl>,
    pub(crate) log: LogConfig,
    pub(crate) sqlite: SqliteConfig,
    pub(crate) postgres: ArchivePostgres,
    pub(crate) cassandra: ArchiveCassandra,
    /// An empty folder means `spool` below the data folder, and 0 bytes mean no spool.
    pub(crate) spool: SpoolConfig,
}

/// The settings of PostgreSQL.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ArchivePostgres {
    /// Empty for none.
    pub(crate) password_file: PathBuf,
    #[serde(flatten)]
    pub(crate) engine: PostgresConfig,
}

/// The settings of Cassandra.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ArchiveCassandra {
    /// Empty for none.
    pub(crate) password_file: PathBuf,
    #[serde(flatten)]
    pub(crate) engine: CassandraConfig,
}

impl Default for Archive {
    fn default() -> Self {
        Self {
            url: None,
            retention: Retention::default(),
            retention_interval_seconds: nonzero!(60),
            tandem: None,
            log: LogConfig::default(),
            sqlite: SqliteConfig::default(),
            postgres: ArchivePostgres::default(),
            cassandra: ArchiveCassandra::default(),
            spool: SpoolConfig::new(""),
        }
    }
}
