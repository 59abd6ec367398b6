//! Which part of a backup goes where: the settings say it, as they do for a server.

use std::path::{Component, Path, PathBuf};

use restante_archive::{
    EngineUrl,
    backup::{SECOND, SECOND_SPOOL, SPOOL},
};

use super::{
    Manifest, Trouble,
    manifest::{FileEntry, Role},
};
use crate::config::Config;

/// The one file of an archive in SQLite, which has another name where it is used.
const DATABASE: &str = "archive.db";

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
    fn of(path: &str) -> Option<(Self, &str)> {
        let within = |part: Self| Some((part, path.strip_prefix(&part.folder())?.strip_prefix('/')?));
        Self::ALL.into_iter().find_map(within)
    }
}

/// Where a part goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
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
    pub(super) place: Place,
    /// Each file, and its path in the part.
    pub(super) files: Vec<(&'m FileEntry, &'m str)>,
}

/// Where everything goes, and what a person should know of what goes nowhere.
pub(super) fn plan<'m>(
    manifest: &'m Manifest,
    config: &Config,
) -> Result<(Vec<Move<'m>>, Vec<String>), Trouble> {
    let (mut moves, mut notes) = (Vec::new(), Vec::new());
    for part in Part::ALL {
        let of_part = manifest.files.iter().filter_map(|file| match Part::of(&file.path) {
            Some((found, path)) if found == part => Some((file, path)),
            _ => None,
        });
        let files: Vec<(&FileEntry, &str)> = of_part.collect();
        if files.is_empty() {
            continue;
        }
        match config.place_of(part) {
            Ok(place) => {
                config.check_engine(part, manifest)?;
                if place.takes(&files) {
                    moves.push(Move { part, place, files });
                } else {
                    let place = place.path().display();
                    notes.push(format!(
                        "{} is of another engine than {place}: it is not restored",
                        part.folder()
                    ));
                }
            }
            Err(why) => notes.push(why),
        }
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
    fn place_of(&self, part: Part) -> Result<Place, String> {
        self.named_place_of(part).map(Place::absolute)
    }

    fn named_place_of(&self, part: Part) -> Result<Place, String> {
        let nothing = |what: &str| {
            Err(format!("{what} is in the backup, and the settings name none: it is not restored"))
        };
        match part {
            Part::Files => Ok(Place::Among(self.server.data_dir.clone())),
            Part::Records => match self.records_url() {
                restante_records::EngineUrl::Lmdb(folder) => Ok(Place::Folder(folder)),
                restante_records::EngineUrl::Memory => nothing("a folder of records"),
            },
            Part::Blobs => match self.blobs_url() {
                restante_blobs::EngineUrl::Files(folder) => Ok(Place::Folder(folder)),
                restante_blobs::EngineUrl::Memory => nothing("a folder of blobs"),
            },
            Part::Archive => archive_place(&self.archive_url()).ok_or(()).or_else(|()| nothing("an archive")),
            Part::Spool => Ok(Place::Folder(self.spool_in("archive").folder)),
            Part::Second => {
                let place = self.archive.tandem.as_ref().and_then(archive_place);
                place.ok_or(()).or_else(|()| nothing("the second archive of a tandem"))
            }
            Part::SecondSpool => Ok(Place::Folder(self.spool_in("tandem").folder)),
        }
    }

    /// Fails when the settings name another engine than the one whose files are in the backup.
    fn check_engine(&self, part: Part, manifest: &Manifest) -> Result<(), Trouble> {
        let (role, own, key) = match part {
            Part::Records => (Role::Records, self.records_url().engine(), "records.url"),
            Part::Blobs => (Role::Blobs, self.blobs_url().engine(), "blobs.url"),
            Part::Archive => (Role::Archive, self.archive_url().engine(), "archive.url"),
            // A second archive of another engine would not open, and its first has everything.
            Part::Files | Part::Spool | Part::Second | Part::SecondSpool => return Ok(()),
        };
        match manifest.role(role) {
            Some(entry) if entry.engine != own => Err(Trouble::invalid(format!(
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
        let files = [self.waku.node.key.file(&data), Some(self.waku.sync.file(&data))];
        let below = |file: PathBuf| {
            let path = file.strip_prefix(&data).ok()?.to_owned();
            // A key that `..` leads to is as little in the data folder as one with an absolute path elsewhere.
            let is_below = path.components().all(|part| matches!(part, Component::Normal(_)));
            is_below.then_some((file, path))
        };
        files.into_iter().flatten().filter_map(below).collect()
    }

    /// The data folder and all places of roles on this machine, as absolute paths.
    pub(super) fn places(&self) -> Vec<PathBuf> {
        self.places_of_parts().iter().map(|(_, place)| place.path().to_owned()).collect()
    }

    /// The same, with what each is for and how it is used.
    pub(super) fn places_of_parts(&self) -> Vec<(Part, Place)> {
        Part::ALL.into_iter().filter_map(|part| Some((part, self.place_of(part).ok()?))).collect()
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

fn archive_place(url: &EngineUrl) -> Option<Place> {
    match url {
        EngineUrl::Log(folder) => Some(Place::Folder(folder.clone())),
        EngineUrl::Sqlite(file) => Some(Place::File(file.clone())),
        EngineUrl::Postgres(_) | EngineUrl::Memory => None,
    }
}

impl Place {
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
        moves.iter().map(|each| (each.place.path().to_owned(), paths(&each.files))).collect()
    }

    #[test]
    fn each_part_goes_to_its_place() {
        let manifest = manifest(
            "log",
            &[
                "archive/00000001.log",
                "archive/second-spool/1/x",
                "archive/second/a",
                "archive/spool/00000001/y",
                "blobs/aa/b",
                "files/node.key",
                "records/data.mdb",
                "settings.toml",
            ],
        );
        let to = |place: &str, path: &str| (PathBuf::from(place), vec![path.to_owned()]);
        let expected = [
            to("/d", "node.key"),
            to("/d/records", "data.mdb"),
            to("/d/blobs", "aa/b"),
            to("/d/spool/archive", "00000001/y"),
            to("/e/second", "a"),
            to("/d/spool/tandem", "1/x"),
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
        assert_eq!(moves[0].place, Place::File("/x/a.db".into()));
        let second = manifest("log", &["archive/second/archive.db"]);
        let (moves, notes) = plan(&second, &config("", "log:/e/second")).unwrap();
        assert_eq!((moves.len(), notes.len()), (0, 1));
        assert!(notes[0].starts_with("archive/second is of another engine than /e/second"), "{notes:?}");
    }

    #[test]
    fn what_is_not_in_a_backup_is_told() {
        let mut manifest = manifest("postgres", &["archive/spool/00000001/x"]);
        manifest.roles[2].omitted = Some("it is elsewhere".into());
        let (moves, notes) = plan(&manifest, &config("postgres://me@db/x", "")).unwrap();
        assert_eq!(moves.iter().map(|each| each.part).collect::<Vec<_>>(), [Part::Spool]);
        assert_eq!(notes, ["not in the backup: archive (postgres:there): it is elsewhere"]);
    }
}
