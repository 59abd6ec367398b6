//! The measured stores and their size on disk.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use restante_records::{Config, EngineUrl, LmdbConfig, Opened, Records, Schema, open};
use serde::{Deserialize, Serialize};

/// An engine and its settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
pub enum RecordsEngine {
    /// LMDB behind a commit log: a server's default
    Lmdb,
    /// LMDB alone: each group of commits is a transaction of its own
    LmdbWithoutLog,
    /// As lmdb, with bodies that are not compressed
    LmdbUncompressed,
    /// The reference model, in memory only
    Memory,
}

impl RecordsEngine {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Lmdb => "lmdb",
            Self::LmdbWithoutLog => "lmdb without log",
            Self::LmdbUncompressed => "lmdb uncompressed",
            Self::Memory => "memory",
        }
    }

    pub(super) fn is_on_disk(self) -> bool {
        self != Self::Memory
    }

    fn settings(self) -> LmdbConfig {
        let usual = LmdbConfig::default();
        match self {
            Self::Lmdb | Self::Memory => usual,
            Self::LmdbWithoutLog => LmdbConfig { log_bytes: 0, ..usual },
            Self::LmdbUncompressed => LmdbConfig { is_compressed: false, ..usual },
        }
    }

    fn url(self, folder: &Path) -> EngineUrl {
        if self.is_on_disk() { EngineUrl::Lmdb(folder.to_owned()) } else { EngineUrl::Memory }
    }
}

/// An open store.
pub(super) struct Store {
    pub(super) engine: RecordsEngine,
    pub(super) folder: PathBuf,
    schema: Schema,
    opened: Opened,
}

impl Store {
    /// Opens the store of a folder, and creates it if there is none.
    pub(super) async fn open(engine: RecordsEngine, folder: &Path, schema: &Schema) -> anyhow::Result<Self> {
        let mut config = Config::new(engine.url(folder), schema.clone());
        config.lmdb = engine.settings();
        let url = config.url.clone();
        let opened = open(config).await.with_context(|| format!("can't open {url}"))?;
        Ok(Self { engine, folder: folder.to_owned(), schema: schema.clone(), opened })
    }

    pub(super) fn records(&self) -> &dyn Records {
        &*self.opened.records
    }

    pub(super) fn shared(&self) -> std::sync::Arc<dyn Records> {
        self.opened.records.clone()
    }

    /// Closes it, which moves everything into the main file.
    pub(super) async fn close(self) -> anyhow::Result<()> {
        Ok(self.opened.upkeep.close().await?)
    }

    /// Closes it and opens it again. A store in memory is returned as it is.
    pub(super) async fn reopen(self) -> anyhow::Result<Self> {
        if !self.engine.is_on_disk() {
            return Ok(self);
        }
        let (engine, folder, schema) = (self.engine, self.folder.clone(), self.schema.clone());
        self.close().await?;
        Self::open(engine, &folder, &schema).await
    }

    /// One of the figures that only this engine has.
    pub(super) async fn engine_figure(&self, name: &str) -> anyhow::Result<Option<u64>> {
        let stats = self.opened.upkeep.stats().await?;
        let found = stats.engine.iter().find(|(known, _)| known == name);
        Ok(found.map(|(_, figure)| *figure))
    }
}

/// Lengths of files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Disk {
    /// LMDB's own file, as Sink counts it.
    pub(super) main_bytes: u64,
    /// All files of the folder, the commit log included.
    pub(super) folder_bytes: u64,
}

/// The name that LMDB gives its file.
const MAIN_FILE: &str = "data.mdb";
/// The deepest nesting below a store's folder, more than any engine needs.
const DEPTH_MAX: u32 = 8;

impl Disk {
    /// The sizes of a folder's files; `None` for an engine in memory.
    pub(super) fn of(engine: RecordsEngine, folder: &Path) -> anyhow::Result<Option<Self>> {
        if !engine.is_on_disk() {
            return Ok(None);
        }
        let mut disk = Self::default();
        disk.add(folder, DEPTH_MAX)?;
        Ok(Some(disk))
    }

    fn add(&mut self, folder: &Path, depth: u32) -> anyhow::Result<()> {
        if depth == 0 {
            bail!("{} is nested too deep for a record store", folder.display());
        }
        let entries = fs::read_dir(folder).with_context(|| format!("can't read {}", folder.display()))?;
        for entry in entries {
            let entry = entry?;
            let about = entry.metadata()?;
            if about.is_dir() {
                self.add(&entry.path(), depth - 1)?;
                continue;
            }
            self.folder_bytes += about.len();
            if entry.file_name() == MAIN_FILE {
                self.main_bytes += about.len();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_counted_with_those_in_folders_below() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(MAIN_FILE), [0; 300]).unwrap();
        fs::create_dir(folder.path().join("log")).unwrap();
        fs::write(folder.path().join("log/0"), [0; 40]).unwrap();
        let disk = Disk::of(RecordsEngine::Lmdb, folder.path()).unwrap();
        assert_eq!(disk, Some(Disk { main_bytes: 300, folder_bytes: 340 }));
        assert_eq!(Disk::of(RecordsEngine::Memory, folder.path()).unwrap(), None);
    }

    #[test]
    fn each_setting_differs_in_one_value() {
        let usual = LmdbConfig::default();
        assert_eq!(RecordsEngine::Lmdb.settings(), usual);
        let without = RecordsEngine::LmdbWithoutLog.settings();
        assert_eq!(without, LmdbConfig { log_bytes: 0, ..usual });
        let plain = RecordsEngine::LmdbUncompressed.settings();
        assert_eq!(plain, LmdbConfig { is_compressed: false, ..usual });
    }
}
