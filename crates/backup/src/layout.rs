//! What a server stores, and where.

use std::path::{Component, Path, PathBuf};

use async_trait::async_trait;
use restante_core::{Error, ErrorKind};

use super::{
    disk::Mount,
    location::{Location, Part, absolute, is_restored},
    manifest::{Manifest, Role},
};

/// What a server stores below its data folder and elsewhere on this machine.
pub struct Layout {
    data: PathBuf,
    /// Files of the data folder that belong to no store.
    files: Vec<SmallFile>,
    /// The file of the key by which secrets in the records are sealed. It is in no backup.
    secrets: Option<PathBuf>,
    /// In the order in which they are copied.
    stores: Vec<Store>,
}

struct SmallFile {
    /// Its path below the data folder.
    path: PathBuf,
    is_node_key: bool,
}

impl Layout {
    /// A data folder without stores. Relative paths begin in the current folder.
    pub fn new(data: &Path) -> Self {
        Self { data: absolute(data), files: Vec::new(), secrets: None, stores: Vec::new() }
    }

    /// Adds a file that belongs to no store. One that is not below the data folder is left out.
    pub fn with_file(mut self, file: &Path) -> Self {
        self.add_file(file, false);
        self
    }

    /// Adds the file of the node's key, if it has one below the data folder.
    pub fn with_node_key(mut self, file: Option<&Path>) -> Self {
        if let Some(file) = file {
            self.add_file(file, true);
        }
        self
    }

    /// Sets the file of the key by which secrets in the records are sealed. Backups leave it out and say so.
    pub fn with_secrets(mut self, file: &Path) -> Self {
        self.secrets = Some(absolute(file));
        self
    }

    fn add_file(&mut self, file: &Path, is_node_key: bool) {
        let Ok(path) = file.strip_prefix(&self.data) else { return };
        // A key that `..` leads to is as little in the data folder as one with an absolute path elsewhere.
        if path.components().all(|part| matches!(part, Component::Normal(_))) {
            self.files.push(SmallFile { path: path.to_owned(), is_node_key });
        }
    }

    /// Adds a store, in place of the one of the same role.
    ///
    /// Records are copied before the blobs that they refer to: a blob is put first, and none is removed meanwhile. The archive is
    /// last, because most arrives there, and messages that came after the backup had begun do no harm in it.
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

    /// Files of the data folder that belong to no store, by their paths below it.
    pub fn small_files(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|file| &*file.path)
    }

    /// The file of the key by which secrets in the records are sealed, if the layout has one.
    pub(super) fn secrets(&self) -> Option<&Path> {
        self.secrets.as_deref()
    }

    pub(super) fn stores(&self) -> &[Store] {
        &self.stores
    }

    /// Whether a file of the data folder is the node's key, by its path in it.
    pub(super) fn is_node_key(&self, path: &str) -> bool {
        self.files.iter().any(|file| file.is_node_key && file.path == Path::new(path))
    }

    /// Where a part is, if it is on this machine.
    pub(super) fn location_of(&self, part: Part) -> Option<Location> {
        if part == Part::Files {
            return Some(Location::Among(self.data.clone()));
        }
        let mut locations = self.stores.iter().flat_map(|store| &store.locations);
        locations.find(|(own, _)| *own == part).map(|(_, location)| location.clone())
    }

    /// The data folder and all places of stores on this machine.
    pub(super) fn locations(&self) -> Vec<PathBuf> {
        self.locations_of_parts().map(|(_, location)| location.path().to_owned()).collect()
    }

    /// The same, with what each is for and how it is used.
    pub(super) fn locations_of_parts(&self) -> impl Iterator<Item = (Part, Location)> {
        Part::ALL.into_iter().filter_map(|part| Some((part, self.location_of(part)?)))
    }

    /// Whether a file may be restored: an engine writes it, or it has the name that the settings give it.
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
            // A second archive of another engine would not open, and its first has everything.
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
    /// Without a password.
    pub(super) url: String,
    /// Where its files are on this machine; none of an engine elsewhere.
    locations: Vec<(Part, Location)>,
    /// What copies it; `None` when there is nothing at its place.
    source: Option<Box<dyn Source>>,
    /// Why it can't be copied.
    problem: Option<Error>,
}

impl Store {
    /// The same store, whose backup fails with this error, if there is one.
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

    /// What it has, and how long a copy of it in that mount is.
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

/// What a store has before it is copied.
#[derive(Debug, Default)]
pub(crate) struct Holding {
    pub(super) counts: std::collections::BTreeMap<String, u64>,
    /// About how long a copy is.
    pub(super) copy_bytes: u64,
}

impl Holding {
    pub(super) fn new<const N: usize>(counts: [(&str, u64); N], copy_bytes: u64) -> Self {
        Self { counts: counts.map(|(name, count)| (name.to_owned(), count)).into(), copy_bytes }
    }
}

/// How a copy went.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Copied {
    /// Why the engine's own content is not there; what waits for the engine is there all the same.
    pub(super) omitted: Option<String>,
    /// What a person should know.
    pub(super) note: Option<String>,
}

impl Copied {
    /// An engine that has nothing on this machine can't be copied, and what can be is copied all the same.
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

/// What copies a store: its own upkeep.
#[async_trait]
pub(super) trait Source: Send + Sync {
    /// What it has, and how long a copy of it in that mount is.
    async fn holding(&self, mount: Option<Mount>) -> Result<Holding, Error>;
    /// Copies it into an empty folder.
    async fn copy(&self, folder: &Path) -> Result<Copied, Error>;
}

#[cfg(test)]
pub(super) mod testing {
    use restante_archive::EngineUrl;

    use super::*;
    use crate::ArchiveFiles;

    /// The kinds of records of tests.
    pub(crate) fn schema() -> restante_records::Schema {
        restante_records::Schema::new(restante_mail::kinds()).unwrap()
    }

    /// Records, blobs and an archive at these URLs; below the data folder where one is empty.
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
