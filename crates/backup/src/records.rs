//! Records and blobs.

use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use restante_core::Error;

use super::{
    disk::{self, Mount},
    layout::{Copied, Holding, Source, Store},
    location::{Location, Part},
    manifest::Role,
    names::LMDB,
};

impl Store {
    /// Records, which are copied by `upkeep`.
    pub fn records(
        url: &restante_records::EngineUrl,
        upkeep: Option<Arc<dyn restante_records::Upkeep>>,
    ) -> Self {
        let locations = match url {
            restante_records::EngineUrl::Lmdb(folder) => {
                vec![(Part::Records, Location::Folder(folder.clone()))]
            }
            restante_records::EngineUrl::Postgres(_)
            | restante_records::EngineUrl::Cassandra(_)
            | restante_records::EngineUrl::Memory => Vec::new(),
        };
        let source = upkeep.map(|upkeep| Box::new(Records(upkeep)) as Box<dyn Source>);
        Self::new(Role::Records, (url.engine(), url.to_string()), locations, source)
    }

    /// Blobs, which are copied by `upkeep`.
    pub fn blobs(url: &restante_blobs::EngineUrl, upkeep: Option<Arc<dyn restante_blobs::Upkeep>>) -> Self {
        let folder = match url {
            restante_blobs::EngineUrl::Files(folder) => Some(folder.clone()),
            restante_blobs::EngineUrl::S3(_) | restante_blobs::EngineUrl::Memory => None,
        };
        let locations = folder.iter().map(|folder| (Part::Blobs, Location::Folder(folder.clone()))).collect();
        let source = upkeep.map(|upkeep| Box::new(Blobs { upkeep, folder }) as Box<dyn Source>);
        Self::new(Role::Blobs, (url.engine(), url.to_string()), locations, source)
    }
}

/// Fails when a file is LMDB's and its page numbers are invalid: such a file may crash a process that maps it.
pub(super) fn check_pages(part: Part, path: &str, file: &File) -> Result<(), Error> {
    match part {
        _ if !is_of_lmdb(part, path) => Ok(()),
        Part::Records => restante_records::check_pages(file),
        _ => restante_blobs::check_pages(file),
    }
}

/// Whether a file is LMDB's, so that its pages must be checked.
fn is_of_lmdb(part: Part, path: &str) -> bool {
    let is_name = path.rsplit('/').next() == Some(LMDB);
    matches!(part, Part::Records | Part::Blobs) && is_name
}

struct Records(Arc<dyn restante_records::Upkeep>);

#[async_trait]
impl Source for Records {
    async fn holding(&self, _mount: Option<Mount>) -> Result<Holding, Error> {
        let stats = self.0.stats().await?;
        let records = stats.kinds.iter().map(|kind| kind.records).sum();
        Ok(Holding::new([("accounts", stats.accounts), ("records", records)], stats.disk_bytes))
    }

    async fn copy(&self, folder: &Path) -> Result<Copied, Error> {
        Copied::of(self.0.backup(folder).await)
    }
}

struct Blobs {
    upkeep: Arc<dyn restante_blobs::Upkeep>,
    folder: Option<PathBuf>,
}

#[async_trait]
impl Source for Blobs {
    async fn holding(&self, mount: Option<Mount>) -> Result<Holding, Error> {
        let stats = self.upkeep.stats().await?;
        // In the same mount long blobs, which have files of their own, are hard-linked.
        let is_near =
            self.folder.as_ref().is_some_and(|folder| mount.is_some() && disk::mount_of(folder) == mount);
        let of_files = stats.engine.iter().find(|(name, _)| is_near && name == "file_bytes");
        let linked_bytes = of_files.map_or(0, |(_, bytes)| *bytes);
        Ok(Holding::new([("blobs", stats.blobs)], stats.disk_bytes.saturating_sub(linked_bytes)))
    }

    async fn copy(&self, folder: &Path) -> Result<Copied, Error> {
        Copied::of(self.upkeep.backup(folder).await)
    }
}
