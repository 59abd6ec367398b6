//! The archive, with its spool, and the second archive of a tandem with its spool.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use restante_archive::{EngineUrl, Upkeep};
use restante_core::Error;

use super::{
    blocking,
    disk::{self, Mount},
    layout::{Copied, Holding, Source, Store},
    location::{Location, Part},
    manifest::Role,
};

/// The locations of an archive and of what belongs to it.
#[derive(Clone, Debug)]
pub struct ArchiveFiles {
    /// The archive.
    pub url: EngineUrl,
    /// The folder with messages that wait for the archive.
    pub spool: PathBuf,
    /// The second archive of a tandem.
    pub second: Option<EngineUrl>,
    /// The folder with messages that wait for the second archive.
    pub second_spool: PathBuf,
}

impl Store {
    /// The archive, which is copied by `upkeep`.
    pub fn archive(files: ArchiveFiles, upkeep: Option<Arc<dyn Upkeep>>) -> Self {
        let mut locations = vec![
            (Part::Spool, Location::Folder(files.spool.clone())),
            (Part::SecondSpool, Location::Folder(files.second_spool.clone())),
        ];
        locations.extend(location_of(&files.url).map(|location| (Part::Archive, location)));
        let second = files.second.as_ref().and_then(location_of);
        locations.extend(second.map(|location| (Part::Second, location)));
        let named = (files.url.engine(), files.url.to_string());
        let source = upkeep.map(|upkeep| Box::new(Archive { upkeep, files }) as Box<dyn Source>);
        Self::new(Role::Archive, named, locations, source)
    }
}

fn location_of(url: &EngineUrl) -> Option<Location> {
    match url {
        EngineUrl::Log(folder) => Some(Location::Folder(folder.clone())),
        EngineUrl::Sqlite(file) => Some(Location::File(file.clone())),
        EngineUrl::Postgres(_) | EngineUrl::Cassandra(_) | EngineUrl::Memory => None,
    }
}

struct Archive {
    upkeep: Arc<dyn Upkeep>,
    files: ArchiveFiles,
}

impl Archive {
    /// The bytes in spools, and those of the second archive if it is on this machine.
    async fn beside_bytes(&self) -> Result<u64, Error> {
        let mut locations = vec![self.files.spool.clone()];
        if let Some(second) = &self.files.second {
            locations.push(self.files.second_spool.clone());
            locations.extend(location_of(second).map(|location| location.path().to_owned()));
        }
        blocking(move || Ok(locations.iter().map(|location| disk::size_of(location)).sum())).await
    }
}

#[async_trait]
impl Source for Archive {
    async fn holding(&self, mount: Option<Mount>) -> Result<Holding, Error> {
        let beside_bytes = self.beside_bytes().await?;
        let Some(location) = location_of(&self.files.url) else {
            // It is not copied, and may be out of reach.
            return Ok(Holding::new([], beside_bytes));
        };
        let stats = self.upkeep.stats().await?;
        let own_bytes = match &location {
            // In the same mount sealed segments are hard-linked, and only the open ones are copied.
            Location::Folder(folder) if mount.is_some() && disk::mount_of(folder) == mount => {
                stats.parts.iter().filter(|part| part.is_open).map(|part| part.disk_bytes).sum()
            }
            _ => stats.disk_bytes,
        };
        Ok(Holding::new([("messages", stats.messages)], own_bytes + beside_bytes))
    }

    async fn copy(&self, folder: &Path) -> Result<Copied, Error> {
        let copied = Copied::of(self.upkeep.backup(folder).await)?;
        let is_missing = !folder.join(restante_archive::backup::SECOND).is_dir();
        let second = self.files.second.as_ref().filter(|_| is_missing);
        let note = second
            .map(|url| format!("the second archive, {url}, is not in the backup; what waits for it is"));
        Ok(Copied { note, ..copied })
    }
}

#[cfg(test)]
mod tests {
    use restante_archive::backup::{SECOND, SECOND_SPOOL, SPOOL};

    use super::*;

    #[test]
    fn the_parts_have_the_folders_that_the_archive_writes() {
        for (folder, part) in
            [(SPOOL, Part::Spool), (SECOND, Part::Second), (SECOND_SPOOL, Part::SecondSpool)]
        {
            assert_eq!(Part::of(&format!("archive/{folder}/x")), Some((part, "x")));
        }
    }
}
