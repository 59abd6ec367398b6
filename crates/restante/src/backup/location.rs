//! Which part of a backup goes where: the settings say it, as they do for a server.

use std::path::{Component, Path, PathBuf};

use restante_archive::{
    EngineUrl,
    backup::{SECOND, SECOND_SPOOL, SPOOL},
};

use super::{
    BackupError, Manifest,
    manifest::{FileEntry, Role},
    names::{self, DATABASE},
};
use crate::config::Config;

/// A part of a backup that has a place of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    Files,
    Records,
    Blobs,
    Archive,
    /// What waits for the archive.
    Spool,
    /// The second archive of a tandem.
    Second,
    /// What waits for the second.
    SecondSpool,
}

impl Part {
    const ALL: [Self; 7] = [
        Self::Files,
        Self::Records,
        Self::Blobs,
        // The archive's own files lie beside the folders of the others.
        Self::Spool,
        Self::Second,
        Self::SecondSpool,
        Self::Archive,
    ];

    /// Its folder in a backup.
    fn folder(self) -> String {
        let in_archive = |name: &str| format!("{}/{name}", Role::Archive.name());
        match self {
            Self::Files => Role::Files.name().to_owned(),
            Self::Records => Role::Records.name().to_owned(),
            Self::Blobs => Role::Blobs.name().to_owned(),
            Self::Archive => Role::Archive.name().to_owned(),
            Self::Spool => in_archive(SPOOL),
            Self::Second => in_archive(SECOND),
            Self::SecondSpool => in_archive(SECOND_SPOOL),
        }
    }

    /// The part that a file of a backup belongs to, and the file's path in it; none for the settings, which stay there.
    pub(super) fn of(path: &str) -> Option<(Self, &str)> {
        let within = |part: Self| Some((part, path.strip_prefix(&part.folder())?.strip_prefix('/')?));
        Self::ALL.into_iter().find_map(within)
    }
}

/// Where a part goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Location {
    /// All its files, with their paths, below a folder that is its own.
    Folder(PathBuf),
    /// Its only file.
    File(PathBuf),
    /// Its files into a folder that has others, too.
    Among(PathBuf),
}

/// A part and what is to be restored of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Move<'m> {
    pub(super) part: Part,
    pub(super) location: Location,
    /// Each file, and its path in the part.
    pub(super) files: Vec<(&'m FileEntry, &'m str)>,
}

/// So many files that are not restored are named.
const SHOWN_MAX: usize = 5;
/// A file of settings: a server reads the one of its current folder, which may be the data folder.
const SETTINGS: &str = "restante.toml";

/// Whether a backup of ours may have a file of this name, by its path in its part. Which names the files of the data folder
/// have is a matter of settings.
pub(super) fn is_restored(part: Part, path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    match part {
        Part::Files => !name.eq_ignore_ascii_case(SETTINGS),
        _ => names::is_known(part, path),
    }
}

/// Where everything goes, and what a person should know of what goes nowhere.
pub(super) fn plan<'m>(
    manifest: &'m Manifest,
    config: &Config,
) -> Result<(Vec<Move<'m>>, Vec<String>), BackupError> {
    let (mut moves, mut notes) = (Vec::new(), Vec::new());
    let (mut unknown, mut unknown_count) = (Vec::new(), 0);
    for part in Part::ALL {
        let mut files: Vec<(&FileEntry, &str)> = Vec::new();
        for file in &manifest.files {
            match Part::of(&file.path) {
                Some((found, _)) if found != part => {}
                None => {}
                Some((_, path)) if config.takes(part, path) => files.push((file, path)),
                Some(_) => {
                    unknown_count += 1;
                    if unknown.len() < SHOWN_MAX {
                        unknown.push(file.path.as_str());
                    }
                }
            }
        }
        if files.is_empty() {
            continue;
        }
        match config.location_of(part) {
            Ok(location) => {
                config.check_engine(part, manifest)?;
                if location.takes(&files) {
                    moves.push(Move { part, location, files });
                } else {
                    let location = location.path().display();
                    notes.push(format!(
                        "{} is of another engine than {location}: it is not restored",
                        part.folder()
                    ));
                }
            }
            Err(why) => notes.push(why),
        }
    }
    if unknown_count > 0 {
        notes.push(format!(
            "{unknown_count} files of the backup have names that neither an engine nor a setting gives: they are not restored ({})",
            unknown.join(", ")
        ));
    }
    // Roles without a file, an empty archive for example, are made by the server when it starts.
    for role in &manifest.roles {
        if let Some(why) = &role.omitted {
            notes.push(format!("not in the backup: {} ({}): {why}", role.role.name(), role.url));
        }
    }
    Ok((moves, notes))
}

impl Config {
    /// Where the settings want a part, as an absolute path; else why it is not restored.
    fn location_of(&self, part: Part) -> Result<Location, String> {
        self.named_location_of(part).map(Location::absolute)
    }

    fn named_location_of(&self, part: Part) -> Result<Location, String> {
        let nothing = |what: &str| {
            Err(format!("{what} is in the backup, and the settings name none: it is not restored"))
        };
        match part {
            Part::Files => Ok(Location::Among(self.server.data_dir.clone())),
            Part::Records => match self.records_url() {
                restante_records::EngineUrl::Lmdb(folder) => Ok(Location::Folder(folder)),
                restante_records::EngineUrl::Memory => nothing("a folder of records"),
            },
            Part::Blobs => match self.blobs_url() {
                restante_blobs::EngineUrl::Files(folder) => Ok(Location::Folder(folder)),
                restante_blobs::EngineUrl::Memory => nothing("a folder of blobs"),
            },
            Part::Archive => {
                archive_location(&self.archive_url()).ok_or(()).or_else(|()| nothing("an archive"))
            }
            Part::Spool => Ok(Location::Folder(self.spool_in("archive").folder)),
            Part::Second => {
                let location = self.archive.tandem.as_ref().and_then(archive_location);
                location.ok_or(()).or_else(|()| nothing("the second archive of a tandem"))
            }
            Part::SecondSpool => Ok(Location::Folder(self.spool_in("tandem").folder)),
        }
    }

    /// Whether a file may be restored: an engine writes it, or it has the name that the settings give it.
    fn takes(&self, part: Part, path: &str) -> bool {
        let is_named =
            part != Part::Files || self.small_files().iter().any(|(_, own)| own == Path::new(path));
        is_named && is_restored(part, path)
    }

    /// Whether a file of the data folder is the node's key, by its path in it.
    pub(super) fn is_node_key(&self, path: &str) -> bool {
        let data = absolute(&self.server.data_dir);
        self.waku.node.key.file(&data).is_some_and(|file| file == data.join(path))
    }

    /// Fails when the settings name another engine than the one whose files are in the backup.
    fn check_engine(&self, part: Part, manifest: &Manifest) -> Result<(), BackupError> {
        let (role, own, key) = match part {
            Part::Records => (Role::Records, self.records_url().engine(), "records.url"),
            Part::Blobs => (Role::Blobs, self.blobs_url().engine(), "blobs.url"),
            Part::Archive => (Role::Archive, self.archive_url().engine(), "archive.url"),
            // A second archive of another engine would not open, and its first has everything.
            Part::Files | Part::Spool | Part::Second | Part::SecondSpool => return Ok(()),
        };
        match manifest.role(role) {
            Some(entry) if entry.engine != own => Err(BackupError::invalid(format!(
                "the backup has the {} of the {} engine ({}), and the settings name {own}: set {key} to a place of that engine",
                role.name(),
                entry.engine,
                entry.url
            ))),
            _ => Ok(()),
        }
    }

    /// Files of the data folder that are no role's, with their paths below it.
    pub(super) fn small_files(&self) -> Vec<(PathBuf, PathBuf)> {
        let data = absolute(&self.server.data_dir);
        let files = [self.waku.node.key.file(&data), Some(self.waku.sync_file(&data))];
        let below = |file: PathBuf| {
            let path = file.strip_prefix(&data).ok()?.to_owned();
            // A key that `..` leads to is as little in the data folder as one with an absolute path elsewhere.
            let is_below = path.components().all(|part| matches!(part, Component::Normal(_)));
            is_below.then_some((file, path))
        };
        files.into_iter().flatten().filter_map(below).collect()
    }

    /// The data folder and all places of roles on this machine, as absolute paths.
    pub(super) fn locations(&self) -> Vec<PathBuf> {
        self.locations_of_parts().iter().map(|(_, location)| location.path().to_owned()).collect()
    }

    /// The same, with what each is for and how it is used.
    pub(super) fn locations_of_parts(&self) -> Vec<(Part, Location)> {
        Part::ALL.into_iter().filter_map(|part| Some((part, self.location_of(part).ok()?))).collect()
    }

    /// Where messages wait for an archive that is away.
    pub(super) fn spool_folder(&self) -> PathBuf {
        self.spool_in("archive").folder
    }
}

/// A path that can be compared with others, whether it was named from here or from the root.
pub(super) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn archive_location(url: &EngineUrl) -> Option<Location> {
    match url {
        EngineUrl::Log(folder) => Some(Location::Folder(folder.clone())),
        EngineUrl::Sqlite(file) => Some(Location::File(file.clone())),
        EngineUrl::Postgres(_) | EngineUrl::Memory => None,
    }
}

impl Location {
    /// Whether these can be the files of the engine that has this place.
    fn takes(&self, files: &[(&FileEntry, &str)]) -> bool {
        let is_database = matches!(files, [(_, path)] if *path == DATABASE);
        match self {
            Self::Folder(_) | Self::Among(_) => !is_database,
            Self::File(_) => is_database,
        }
    }

    fn absolute(self) -> Self {
        match self {
            Self::Folder(path) => Self::Folder(absolute(&path)),
            Self::File(path) => Self::File(absolute(&path)),
            Self::Among(path) => Self::Among(absolute(&path)),
        }
    }

    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Folder(path) | Self::File(path) | Self::Among(path) => path,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backup::manifest::RoleEntry;

    fn role(role: Role, engine: &str) -> RoleEntry {
        RoleEntry {
            role,
            engine: engine.into(),
            url: format!("{engine}:there"),
            counts: Default::default(),
            files: 1,
            bytes: 1,
            omitted: None,
        }
    }

    fn manifest(archive: &str, paths: &[&str]) -> Manifest {
        let file = |path: &&str| FileEntry { path: (*path).into(), bytes: 1, sha256: String::new() };
        let roles =
            vec![role(Role::Records, "lmdb"), role(Role::Blobs, "files"), role(Role::Archive, archive)];
        Manifest::new(String::new(), roles, paths.iter().map(file).collect())
    }

    fn config(archive: &str, tandem: &str) -> Config {
        let mut config = Config::default();
        config.server.data_dir = "/d".into();
        config.archive.url = (!archive.is_empty()).then(|| archive.parse().unwrap());
        config.archive.tandem = (!tandem.is_empty()).then(|| tandem.parse().unwrap());
        config
    }

    fn planned(manifest: &Manifest, config: &Config) -> Vec<(PathBuf, Vec<String>)> {
        let (moves, _) = plan(manifest, config).unwrap();
        let paths = |files: &[(&FileEntry, &str)]| files.iter().map(|(_, path)| (*path).to_owned()).collect();
        moves.iter().map(|each| (each.location.path().to_owned(), paths(&each.files))).collect()
    }

    #[test]
    fn each_part_goes_to_its_place() {
        let manifest = manifest(
            "log",
            &[
                "archive/00000001.log",
                "archive/second-spool/00000001/00000002.log",
                "archive/second/00000003.log",
                "archive/spool/00000001/00000004.log",
                "blobs/OWNER",
                "files/node.key",
                "records/data.mdb",
                "settings.toml",
            ],
        );
        let to = |location: &str, path: &str| (PathBuf::from(location), vec![path.to_owned()]);
        let expected = [
            to("/d", "node.key"),
            to("/d/records", "data.mdb"),
            to("/d/blobs", "OWNER"),
            to("/d/spool/archive", "00000001/00000004.log"),
            to("/e/second", "00000003.log"),
            to("/d/spool/tandem", "00000001/00000002.log"),
            to("/d/archive", "00000001.log"),
        ];
        assert_eq!(planned(&manifest, &config("", "log:/e/second")), expected);
        let (moves, notes) = plan(&manifest, &config("", "")).unwrap();
        assert_eq!((moves.len(), notes.len()), (6, 1));
        assert!(notes[0].starts_with("the second archive of a tandem is in the backup"), "{notes:?}");
    }

    #[test]
    fn a_small_file_is_one_below_the_data_folder() {
        let mut config = Config::default();
        let here = std::env::current_dir().unwrap();
        let keys = |config: &Config| {
            let files = config.small_files().into_iter().map(|(_, path)| path);
            files.filter(|path| path.ends_with("my.key")).collect::<Vec<_>>()
        };
        for (key, expected) in [
            (PathBuf::from("keys/my.key"), vec![PathBuf::from("keys/my.key")]),
            (here.join("data/my.key"), vec![PathBuf::from("my.key")]),
            (PathBuf::from("../my.key"), vec![]),
            (here.join("my.key"), vec![]),
        ] {
            config.waku.node.key = key.to_str().unwrap().parse().unwrap();
            assert_eq!(keys(&config), expected, "{}", key.display());
        }
    }

    #[test]
    fn an_engine_gets_no_files_of_another() {
        let of_sqlite = manifest("sqlite", &["archive/archive.db"]);
        let error = plan(&of_sqlite, &config("", "")).unwrap_err().to_string();
        assert!(error.contains("sqlite") && error.contains("set archive.url"), "{error}");
        let (moves, _) = plan(&of_sqlite, &config("sqlite:/x/a.db", "")).unwrap();
        assert_eq!(moves[0].location, Location::File("/x/a.db".into()));
        let second = manifest("log", &["archive/second/archive.db"]);
        let (moves, notes) = plan(&second, &config("", "log:/e/second")).unwrap();
        assert_eq!((moves.len(), notes.len()), (0, 1));
        assert!(notes[0].starts_with("archive/second is of another engine than /e/second"), "{notes:?}");
    }

    #[test]
    fn what_is_not_in_a_backup_is_noted() {
        let mut manifest = manifest("postgres", &["archive/spool/00000001/00000001.log"]);
        manifest.roles[2].omitted = Some("it is elsewhere".into());
        let (moves, notes) = plan(&manifest, &config("postgres://me@db/x", "")).unwrap();
        assert_eq!(moves.iter().map(|each| each.part).collect::<Vec<_>>(), [Part::Spool]);
        assert_eq!(notes, ["not in the backup: archive (postgres:there): it is elsewhere"]);
    }
}
