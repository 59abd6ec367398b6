//! What a backup copies: each role by its own upkeep, and the small files of the data folder.

use std::{
    collections::BTreeMap,
    error::Error,
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use restante_archive::{EngineUrl, backup::SECOND};
use restante_core::{Clock, ErrorKind};

use super::{
    BackupError, BackupMetrics, Removing, blocking,
    disk::{self, Mount},
    manifest::Role,
    settings,
};
use crate::{
    clock,
    config::{Config, Effective},
};

/// What a server keeps, as a backup sees it.
pub(crate) struct Sources {
    /// In the order in which they are copied.
    pub(super) roles: Vec<Box<dyn Source>>,
    /// Files of the data folder, with their paths below it.
    pub(super) files: Vec<(PathBuf, PathBuf)>,
    pub(super) settings: String,
    /// The data folder.
    pub(super) data: PathBuf,
    /// Places in which no backup may lie.
    pub(super) locations: Vec<PathBuf>,
    pub(super) clock: Arc<dyn Clock>,
    /// Held while blobs must not go away.
    pub(super) removing: Removing,
    pub(super) metrics: BackupMetrics,
}

impl Sources {
    /// Records come before the blobs that they refer to: a blob is put first, and none is removed meanwhile. The archive is
    /// last, because most arrives there, and messages that came after the backup had begun do no harm in it. A role without
    /// upkeep is one of which nothing is there; the backup says so.
    pub(crate) fn new(
        effective: &Effective,
        records: Option<Arc<dyn restante_records::Upkeep>>,
        blobs: Option<Arc<dyn restante_blobs::Upkeep>>,
        archive: Option<Arc<dyn restante_archive::Upkeep>>,
        removing: Removing,
    ) -> Self {
        let config = &effective.config;
        let mut roles: Vec<Box<dyn Source>> = Vec::new();
        let url = config.records_url();
        let missing = Missing { role: Role::Records, engine: url.engine(), url: url.to_string() };
        match records {
            Some(upkeep) => roles.push(Box::new(Records { upkeep, url })),
            None => roles.push(Box::new(missing)),
        }
        let url = config.blobs_url();
        let missing = Missing { role: Role::Blobs, engine: url.engine(), url: url.to_string() };
        match blobs {
            Some(upkeep) => roles.push(Box::new(Blobs { upkeep, url })),
            None => roles.push(Box::new(missing)),
        }
        let url = config.archive_url();
        let missing = Missing { role: Role::Archive, engine: url.engine(), url: url.to_string() };
        match archive {
            Some(upkeep) => roles.push(Box::new(Archive { upkeep, config: config.clone() })),
            None => roles.push(Box::new(missing)),
        }
        Self {
            roles,
            files: config.small_files(),
            settings: settings::text(effective),
            data: real_path(&config.server.data_dir),
            locations: config.locations(),
            clock: clock::system(),
            removing,
            metrics: BackupMetrics::default(),
        }
    }

    /// Has the backups counted by a server.
    pub(crate) fn counted_by(self, metrics: BackupMetrics) -> Self {
        Self { metrics, ..self }
    }
}

impl Sources {
    /// Fails when another data folder is meant than the one that is copied here.
    pub(super) fn check_meant(&self, data: Option<&Path>) -> Result<(), BackupError> {
        match data {
            Some(data) if data != self.data => {
                let what = format!(
                    "this server keeps what is in {}, and not {}",
                    self.data.display(),
                    data.display()
                );
                Err(BackupError::new(ErrorKind::Conflict, what))
            }
            _ => Ok(()),
        }
    }
}

/// The one name that a folder has, whatever leads to it.
pub(crate) fn real_path(folder: &Path) -> PathBuf {
    folder.canonicalize().or_else(|_| std::path::absolute(folder)).unwrap_or_else(|_| folder.to_owned())
}

/// What a role holds before it is copied.
#[derive(Debug, Default)]
pub(crate) struct Holding {
    pub(super) counts: BTreeMap<String, u64>,
    /// What a copy takes, about.
    pub(super) copy_bytes: u64,
}

/// How a copy went.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Copied {
    /// Why the engine's own content is not there; what waits for the engine is there all the same.
    pub(super) omitted: Option<String>,
    /// What a person should know.
    pub(super) note: Option<String>,
}

/// A role that can be copied.
#[async_trait]
pub(crate) trait Source: Send + Sync {
    fn role(&self) -> Role;
    fn engine(&self) -> &'static str;
    /// Its place, without a password.
    fn url(&self) -> String;
    /// What it holds, and what a copy of it in that mount takes.
    async fn holding(&self, mount: Option<Mount>) -> Result<Holding, BackupError>;
    /// Copies it into an empty folder.
    async fn copy(&self, folder: &Path) -> Result<Copied, BackupError>;
}

struct Records {
    upkeep: Arc<dyn restante_records::Upkeep>,
    url: restante_records::EngineUrl,
}

#[async_trait]
impl Source for Records {
    fn role(&self) -> Role {
        Role::Records
    }

    fn engine(&self) -> &'static str {
        self.url.engine()
    }

    fn url(&self) -> String {
        self.url.to_string()
    }

    async fn holding(&self, _mount: Option<Mount>) -> Result<Holding, BackupError> {
        let stats = self.upkeep.stats().await;
        let stats = stats.map_err(|error| BackupError::of_role(self.role(), error.kind(), &error))?;
        let records = stats.kinds.iter().map(|kind| kind.records).sum();
        let counts = [("accounts".to_owned(), stats.accounts), ("records".to_owned(), records)].into();
        Ok(Holding { counts, copy_bytes: stats.disk_bytes })
    }

    async fn copy(&self, folder: &Path) -> Result<Copied, BackupError> {
        let copied = self.upkeep.backup(folder).await;
        outcome(self.role(), copied.map_err(|error| (error.kind(), error)))
    }
}

struct Blobs {
    upkeep: Arc<dyn restante_blobs::Upkeep>,
    url: restante_blobs::EngineUrl,
}

#[async_trait]
impl Source for Blobs {
    fn role(&self) -> Role {
        Role::Blobs
    }

    fn engine(&self) -> &'static str {
        self.url.engine()
    }

    fn url(&self) -> String {
        self.url.to_string()
    }

    async fn holding(&self, mount: Option<Mount>) -> Result<Holding, BackupError> {
        let stats = self.upkeep.stats().await;
        let stats = stats.map_err(|error| BackupError::of_role(self.role(), error.kind(), &error))?;
        let counts = [("blobs".to_owned(), stats.blobs)].into();
        // On the same disk long blobs, which lie in files of their own, get another name.
        let is_near = match &self.url {
            restante_blobs::EngineUrl::Files(location) => {
                mount.is_some() && disk::mount_of(location) == mount
            }
            restante_blobs::EngineUrl::Memory => false,
        };
        let of_files = stats.engine.iter().find(|(name, _)| is_near && name == "file_bytes");
        let linked_bytes = of_files.map_or(0, |(_, bytes)| *bytes);
        Ok(Holding { counts, copy_bytes: stats.disk_bytes.saturating_sub(linked_bytes) })
    }

    async fn copy(&self, folder: &Path) -> Result<Copied, BackupError> {
        let copied = self.upkeep.backup(folder).await;
        outcome(self.role(), copied.map_err(|error| (error.kind(), error)))
    }
}

struct Archive {
    upkeep: Arc<dyn restante_archive::Upkeep>,
    config: Config,
}

impl Archive {
    /// What waits in spools, and the second archive where it lies on this machine.
    async fn beside_bytes(&self) -> Result<u64, BackupError> {
        let mut locations = vec![self.config.spool_folder()];
        if let Some(tandem) = self.config.tandem() {
            locations.push(tandem.spool.folder);
            match tandem.url {
                EngineUrl::Log(location) | EngineUrl::Sqlite(location) => locations.push(location),
                EngineUrl::Postgres(_) | EngineUrl::Memory => {}
            }
        }
        blocking(move || Ok(locations.iter().map(|location| disk::size_of(location)).sum())).await
    }
}

#[async_trait]
impl Source for Archive {
    fn role(&self) -> Role {
        Role::Archive
    }

    fn engine(&self) -> &'static str {
        self.config.archive_url().engine()
    }

    fn url(&self) -> String {
        self.config.archive_url().to_string()
    }

    async fn holding(&self, mount: Option<Mount>) -> Result<Holding, BackupError> {
        let url = self.config.archive_url();
        let beside_bytes = self.beside_bytes().await?;
        let is_elsewhere = matches!(url, EngineUrl::Postgres(_) | EngineUrl::Memory);
        if is_elsewhere {
            // It is not copied, and may be out of reach.
            return Ok(Holding { counts: BTreeMap::new(), copy_bytes: beside_bytes });
        }
        let stats = self.upkeep.stats().await;
        let stats = stats.map_err(|error| BackupError::of_role(self.role(), error.kind(), &error))?;
        let own_bytes = match &url {
            // On the same disk sealed segments get another name, and only the open ones are copied.
            EngineUrl::Log(location) if mount.is_some() && disk::mount_of(location) == mount => {
                stats.parts.iter().filter(|part| part.is_open).map(|part| part.disk_bytes).sum()
            }
            _ => stats.disk_bytes,
        };
        let counts = [("messages".to_owned(), stats.messages)].into();
        Ok(Holding { counts, copy_bytes: own_bytes + beside_bytes })
    }

    async fn copy(&self, folder: &Path) -> Result<Copied, BackupError> {
        let copied = self.upkeep.backup(folder).await;
        let copied = outcome(self.role(), copied.map_err(|error| (error.kind(), error)))?;
        let second = self.config.tandem().filter(|_| !folder.join(SECOND).is_dir());
        let note = second.map(|tandem| {
            format!("the second archive, {}, is not in the backup; what waits for it is", tandem.url)
        });
        Ok(Copied { note, ..copied })
    }
}

/// A role that the settings name, and of which nothing is at its place.
struct Missing {
    role: Role,
    engine: &'static str,
    url: String,
}

#[async_trait]
impl Source for Missing {
    fn role(&self) -> Role {
        self.role
    }

    fn engine(&self) -> &'static str {
        self.engine
    }

    fn url(&self) -> String {
        self.url.clone()
    }

    async fn holding(&self, _mount: Option<Mount>) -> Result<Holding, BackupError> {
        Ok(Holding::default())
    }

    async fn copy(&self, _folder: &Path) -> Result<Copied, BackupError> {
        let why = format!("there is nothing in {}", self.url);
        Ok(Copied { omitted: Some(why), note: None })
    }
}

/// An engine that keeps nothing on this machine can't be copied, and what can be is copied all the same.
fn outcome<E: Error>(role: Role, copied: Result<(), (ErrorKind, E)>) -> Result<Copied, BackupError> {
    match copied {
        Ok(()) => Ok(Copied::default()),
        Err((ErrorKind::Invalid, why)) => Ok(Copied { omitted: Some(why.to_string()), note: None }),
        Err((kind, error)) => Err(BackupError::of_role(role, kind, &error)),
    }
}
