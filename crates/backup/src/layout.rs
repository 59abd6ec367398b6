//! What a server stores, and where.

use std::path::{Component, Path, PathBuf};

use async_trait::async_trait;
use restante_core::{Error, ErrorKind};

use super::{
    disk::Mount,
    location::{Location, Part, absolute, is_restored},
    manifest::{Manifest, Role},
};

/// The data of a server in its data folder and elsewhere on this machine.
pub struct Layout {
    data: PathBuf,
    /// Files of the data folder that are not part of a store.
    files: Vec<SmallFile>,
    /// The file with the key that seals secrets in the records. No backup contains it.
    secrets: Option<PathBuf>,
    /// The stores, in the order in which they are copied.
    stores: Vec<Store>,
}

struct SmallFile {
    /// Its path relative to the data folder.
    path: PathBuf,
    is_node_key: bool,
}

impl Layout {
    /// A data folder without stores. A relative path is relative to the current folder.
    pub fn new(data: &Path) -> Self {
        Self { data: absolute(data), files: Vec::new(), secrets: None, stores: Vec::new() }
    }

    /// Adds a file that is not part of a store. A file outside the data folder is left out.
    pub fn with_file(mut self, file: &Path) -> Self {
        self.add_file(file, false);
        self
    }

    /// Adds the file of the node's key, if it has one in the data folder.
    pub fn with_node_key(mut self, file: Option<&Path>) -> Self {
        if let Some(file) = file {
            self.add_file(file, true);
        }
        self
    }

    /// Sets the file with the key that seals secrets in the records. Backups leave it out and report that.
    pub fn with_secrets(mut self, file: &Path) -> Self {
        self.secrets = Some(absolute(file));
        self
    }

    fn add_file(&mut self, file: &Path, is_node_key: bool) {
        let Ok(path) = file.strip_prefix(&self.data) else { return };
        // A key at a path with `..` is outside the data folder, like one with an absolute path elsewhere.
        if path.components().all(|part| matches!(part, Component::Normal(_))) {
            self.files.push(SmallFile { path: path.to_owned(), is_node_key });
        }
    }

    /// Adds a store, or replaces the one of the same role.
    ///
    /// Records are copied before the blobs that they refer to: a blob is put first, and none is removed meanwhile. The archive is
    /// last, because it gets the most data, and messages that arrived after the backup had begun do no harm in it.
    pub fn with_store(mut self, store: Store) -> Self {
        self.stores.retain(|own| own.role != store.role);
        self.stores.push(store);
        self.stores.sort_by_key(|store| store.role);
        self
    }

    /// The data folder, as an absolute path.
    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Files of the data folder that are not part of a store, by their paths relative to it.
    pub fn small_files(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|file| &*file.path)
    }

    /// The file with the key that seals secrets in the records, if the layout has one.
    pub(super) fn secrets(&self) -> Option<&Path> {
        self.secrets.as_deref()
    }

    pub(super) fn stores(&self) -> &[Store] {
        &self.stores
    }

    /// Whether a file of the data folder is the node's key, by its path relative to the folder.
    pub(super) fn is_node_key(&self, path: &str) -> bool {
        self.files.iter().any(|file| file.is_node_key && file.path == Path::new(path))
    }

    /// The location of a part, if it is on this machine.
    pub(super) fn location_of(&self, part: Part) -> Option<Location> {
        if part == Part::Files {
            return Some(Location::Among(self.data.clone()));
        }
        let mut locations = self.stores.iter().flat_map(|store| &store.locations);
        locations.find(|(own, _)| *own == part).map(|(_, location)| location.clone())
    }

    /// The data folder and all locations of stores on this machine.
    pub(super) fn locations(&self) -> Vec<PathBuf> {
        self.locations_of_parts().map(|(_, location)| location.path().to_owned()).collect()
    }

    /// The same locations, each with the part that it is for.
    pub(super) fn locations_of_parts(&self) -> impl Iterator<Item = (Part, Location)> {
        Part::ALL.into_iter().filter_map(|part| Some((part, self.location_of(part)?)))
    }

    /// Whether a file may be restored: an engine writes files of this name, or the settings give it this name.
    pub(super) fn takes(&self, part: Part, path: &str) -> bool {
        let is_named = part != Part::Files || self.small_files().any(|own| own == Path::new(path));
        is_named && is_restored(part, path)
    }

    /// Fails when the settings name another engine than the one whose files are in the backup.
    pub(super) fn check_engine(&self, part: Part, manifest: &Manifest) -> Result<(), Error> {
        let role = match part {
            Part::Records => Role::Records,
            Part::Blobs => Role::Blobs,
            Part::Archive => Role::Archive,
            // A second archive of another engine would not open, but the first has everything.
            Part::Files | Part::Spool | Part::Second | Part::SecondSpool => return Ok(()),
        };
        let store = self.stores.iter().find(|store| store.role == role);
        match (manifest.role(role), store) {
            (Some(entry), Some(store)) if entry.engine != store.engine => Err(Error::invalid(format!(
                "the backup has the {0} of the {1} engine ({2}), and the settings name {3}: set {0}.url to a place of that engine",
                role.name(),
                entry.engine,
                entry.url,
                store.engine
            ))),
            _ => Ok(()),
        }
    }
}

/// A store of the server.
pub struct Store {
    pub(super) role: Role,
    pub(super) engine: &'static str,
    /// The URL, without a password.
    pub(super) url: String,
    /// The locations of its files on this machine; none for an engine elsewhere.
    locations: Vec<(Part, Location)>,
    /// What copies it; `None` when it does not exist.
    source: Option<Box<dyn Source>>,
    /// The reason why it can't be copied.
    problem: Option<Error>,
}

impl Store {
    /// The same store; its backup fails with this error, if there is one.
    #[must_use]
    pub fn failing(self, problem: Option<Error>) -> Self {
        Self { problem, ..self }
    }

    pub(super) fn new(
        role: Role,
        (engine, url): (&'static str, String),
        locations: Vec<(Part, Location)>,
        source: Option<Box<dyn Source>>,
    ) -> Self {
        let locations = locations.into_iter().map(|(part, location)| (part, location.absolute())).collect();
        Self { role, engine, url, locations, source, problem: None }
    }

    /// The contents of the store, and the length of a copy of it in that mount.
    pub(super) async fn holding(&self, mount: Option<Mount>) -> Result<Holding, Error> {
        match &self.source {
            Some(source) => source.holding(mount).await.map_err(|error| self.failed(error)),
            None => Ok(Holding::default()),
        }
    }

    /// Copies it into an empty folder.
    pub(super) async fn copy(&self, folder: &Path) -> Result<Copied, Error> {
        if let Some(problem) = &self.problem {
            return Err(self.failed(problem.duplicate()));
        }
        match &self.source {
            Some(source) => source.copy(folder).await.map_err(|error| self.failed(error)),
            None => {
                Ok(Copied { omitted: Some(format!("there is nothing in {}", self.url)), ..Copied::default() })
            }
        }
    }

    fn failed(&self, error: Error) -> Error {
        error.context(format_args!("can't back up the {}", self.role.name()))
    }
}

/// The contents of a store before it is copied.
#[derive(Debug, Default)]
pub(crate) struct Holding {
    pub(super) counts: std::collections::BTreeMap<String, u64>,
    /// The approximate length of a copy.
    pub(super) copy_bytes: u64,
}

impl Holding {
    pub(super) fn new<const N: usize>(counts: [(&str, u64); N], copy_bytes: u64) -> Self {
        Self { counts: counts.map(|(name, count)| (name.to_owned(), count)).into(), copy_bytes }
    }
}

/// The outcome of a copy.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Copied {
    /// Why the engine's own content is not in the copy; messages that wait for the engine are nevertheless.
    pub(super) omitted: Option<String>,
    /// Something that the operator should know.
    pub(super) note: Option<String>,
}

impl Copied {
    /// An engine without files on this machine can't be copied; everything that can be is copied nevertheless.
    pub(super) fn of(copied: Result<(), Error>) -> Result<Self, Error> {
        match copied {
            Ok(()) => Ok(Self::default()),
            Err(why) if why.kind() == ErrorKind::Invalid => {
                Ok(Self { omitted: Some(why.to_string()), note: None })
            }
            Err(error) => Err(error),
        }
    }
}

/// The interface that copies a store: implemented with its own upkeep.
#[async_trait]
pub(super) trait Source: Send + Sync {
    /// The contents of the store, and the length of a copy of it in that mount.
    async fn holding(&self, mount: Option<Mount>) -> Result<Holding, Error>;
    /// Copies it into an empty folder.
    async fn copy(&self, folder: &Path) -> Result<Copied, Error>;
}

#[cfg(test)]
pub(super) mod testing {
    use restante_archive::EngineUrl;

    use super::*;
    use crate::ArchiveFiles;

    /// The kinds of records in tests.
    pub(crate) fn schema() -> restante_records::Schema {
        restante_records::Schema::new(restante_mail::kinds()).unwrap()
    }

    /// Records, blobs and an archive at these URLs; an empty URL is in the data folder.
    pub(crate) fn layout(data: &Path, urls: [&str; 3], second: Option<EngineUrl>) -> Layout {
        let defaults = ["lmdb:records", "files:blobs", "log:archive"];
        let mut named = defaults.into_iter().zip(urls).map(|(default, url)| {
            let (engine, name) = default.split_once(':').unwrap();
            if url.is_empty() { format!("{engine}:{}", data.join(name).display()) } else { url.to_owned() }
        });
        let mut next = || named.next().unwrap();
        let (records, blobs) = (next().parse().unwrap(), next().parse().unwrap());
        let files = ArchiveFiles {
            url: next().parse().unwrap(),
            spool: data.join("spool/archive"),
            second,
            second_spool: data.join("spool/tandem"),
        };
        let data = absolute(data);
        Layout::new(&data)
            .with_node_key(Some(&data.join("node.key")))
            .with_file(&data.join("sync.state"))
            .with_store(Store::records(&records, None))
            .with_store(Store::blobs(&blobs, None))
            .with_store(Store::archive(files, None))
    }
}
