//! Where each part of a backup goes: the settings decide it, as they do for a server.

use std::path::{Path, PathBuf};

use restante_core::Error;

use super::{
    Layout, Manifest,
    manifest::{FileEntry, Role},
    names::{self, DATABASE},
};

/// A part of a backup that has its own location.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    Files,
    Records,
    Blobs,
    Archive,
    /// The messages that wait for the archive.
    Spool,
    /// The second archive of a tandem.
    Second,
    /// The messages that wait for the second archive.
    SecondSpool,
}

impl Part {
    pub(super) const ALL: [Self; 7] = [
        Self::Files,
        Self::Records,
        Self::Blobs,
        // The archive's own files are beside the folders of the others.
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
            Self::Spool => in_archive("spool"),
            Self::Second => in_archive("second"),
            Self::SecondSpool => in_archive("second-spool"),
        }
    }

    /// Its name in messages if the settings have no location for it.
    fn described(self) -> &'static str {
        match self {
            Self::Files => "a data folder",
            Self::Records => "a folder of records",
            Self::Blobs => "a folder of blobs",
            Self::Archive => "an archive",
            Self::Spool => "the spool of an archive",
            Self::Second => "the second archive of a tandem",
            Self::SecondSpool => "the spool of a second archive",
        }
    }

    /// The part that contains a file of a backup, and the file's path in the part; `None` for the settings, which are
    /// not restored.
    pub(super) fn of(path: &str) -> Option<(Self, &str)> {
        let within = |part: Self| Some((part, path.strip_prefix(&part.folder())?.strip_prefix('/')?));
        Self::ALL.into_iter().find_map(within)
    }
}

/// The location of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Location {
    /// A folder that contains all files of the part and nothing else.
    Folder(PathBuf),
    /// The part's only file.
    File(PathBuf),
    /// A folder that contains the part's files and others.
    Among(PathBuf),
}

/// A part and its files to restore.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Move<'m> {
    pub(super) part: Part,
    pub(super) location: Location,
    /// Each file, and its path in the part.
    pub(super) files: Vec<(&'m FileEntry, &'m str)>,
}

/// The most files that are named among those that are not restored.
const SHOWN_MAX: usize = 5;
/// The name of a file of settings: a server reads the one in its current folder, which may be the data folder.
const SETTINGS: &str = "restante.toml";

/// Whether our backups may contain a file of this name, by its path in its part. The names of the files of the data folder
/// depend on settings.
pub(super) fn is_restored(part: Part, path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    match part {
        Part::Files => !name.eq_ignore_ascii_case(SETTINGS),
        _ => names::is_known(part, path),
    }
}

/// Decides where everything goes, and returns notes for the operator about what is not restored.
pub(super) fn plan<'m>(
    manifest: &'m Manifest,
    layout: &Layout,
) -> Result<(Vec<Move<'m>>, Vec<String>), Error> {
    let (mut moves, mut notes) = (Vec::new(), Vec::new());
    let (mut unknown, mut unknown_count) = (Vec::new(), 0);
    for part in Part::ALL {
        let mut files: Vec<(&FileEntry, &str)> = Vec::new();
        for file in &manifest.files {
            match Part::of(&file.path) {
                Some((found, _)) if found != part => {}
                None => {}
                Some((_, path)) if layout.takes(part, path) => files.push((file, path)),
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
        layout.check_engine(part, manifest)?;
        match layout.location_of(part) {
            Some(location) => {
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
            None => notes.push(format!(
                "{} is in the backup, and the settings name none: it is not restored",
                part.described()
            )),
        }
    }
    if unknown_count > 0 {
        notes.push(format!(
            "{unknown_count} files of the backup have names that neither an engine nor a setting gives: they are not restored ({})",
            unknown.join(", ")
        ));
    }
    // The server creates roles without a file, such as an empty archive, when it starts.
    for role in &manifest.roles {
        if let Some(why) = &role.omitted {
            notes.push(format!("not in the backup: {} ({}): {why}", role.role.name(), role.url));
        }
    }
    Ok((moves, notes))
}

/// An absolute path, so that paths can be compared with each other.
pub(super) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

impl Location {
    /// Whether these can be the files of the engine at this location.
    fn takes(&self, files: &[(&FileEntry, &str)]) -> bool {
        let is_database = matches!(files, [(_, path)] if *path == DATABASE);
        match self {
            Self::Folder(_) | Self::Among(_) => !is_database,
            Self::File(_) => is_database,
        }
    }

    pub(super) fn absolute(self) -> Self {
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
    use crate::{layout::testing, manifest::RoleEntry};

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

    fn layout(archive: &str, second: &str) -> Layout {
        let second = (!second.is_empty()).then(|| second.parse().unwrap());
        testing::layout(Path::new("/d"), ["", "", archive], second)
    }

    fn planned(manifest: &Manifest, layout: &Layout) -> Vec<(PathBuf, Vec<String>)> {
        let (moves, _) = plan(manifest, layout).unwrap();
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
        assert_eq!(planned(&manifest, &layout("", "log:/e/second")), expected);
        let (moves, notes) = plan(&manifest, &layout("", "")).unwrap();
        assert_eq!((moves.len(), notes.len()), (6, 1));
        assert!(notes[0].starts_with("the second archive of a tandem is in the backup"), "{notes:?}");
    }

    #[test]
    fn an_engine_gets_no_files_of_another() {
        let of_sqlite = manifest("sqlite", &["archive/archive.db"]);
        let error = plan(&of_sqlite, &layout("", "")).unwrap_err().to_string();
        assert!(error.contains("sqlite") && error.contains("set archive.url"), "{error}");
        // Also if there was no location to restore to: once, it was reported as restored.
        let error = plan(&of_sqlite, &layout("memory:", "")).unwrap_err().to_string();
        assert!(error.contains("the settings name memory"), "{error}");
        let (moves, _) = plan(&of_sqlite, &layout("sqlite:/x/a.db", "")).unwrap();
        assert_eq!(moves[0].location, Location::File("/x/a.db".into()));
        let second = manifest("log", &["archive/second/archive.db"]);
        let (moves, notes) = plan(&second, &layout("", "log:/e/second")).unwrap();
        assert_eq!((moves.len(), notes.len()), (0, 1));
        assert!(notes[0].starts_with("archive/second is of another engine than /e/second"), "{notes:?}");
    }

    #[test]
    fn what_is_not_in_a_backup_is_noted() {
        let mut manifest = manifest("postgres", &["archive/spool/00000001/00000001.log"]);
        manifest.roles[2].omitted = Some("it is elsewhere".into());
        let (moves, notes) = plan(&manifest, &layout("postgres://me@db/x", "")).unwrap();
        assert_eq!(moves.iter().map(|each| each.part).collect::<Vec<_>>(), [Part::Spool]);
        assert_eq!(notes, ["not in the backup: archive (postgres:there): it is elsewhere"]);
    }
}
