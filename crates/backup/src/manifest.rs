//! The description of a backup, in the file that is written last.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fs::{self, File},
    io::{BufReader, BufWriter, Read, Write},
    path::Path,
};

use restante_core::Error;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::disk::Beneath;

/// The file's name. A folder without it is not a backup.
pub(crate) const FILE_NAME: &str = "backup.json";
/// The version of the layout.
const FORMAT: u32 = 1;
/// A longer file is not a manifest: this is enough for two million files, and reading it takes about as much memory.
const BYTES_MAX: u64 = 512 << 20;
/// The most bytes of a path or another text of a manifest.
const TEXT_BYTES_MAX: usize = 4_096;
/// The hex digits of a SHA-256.
const SHA256_DIGITS: usize = 64;

/// What is backed up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The settings, the node's key, and the progress of store sync.
    Files,
    /// The records.
    Records,
    /// The blobs.
    Blobs,
    /// The archive with its spools and its second archive.
    Archive,
}

impl Role {
    /// Its name, which is also the name of its folder in a backup.
    pub fn name(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::Records => "records",
            Self::Blobs => "blobs",
            Self::Archive => "archive",
        }
    }
}

/// The fields that a manifest of any format has.
#[derive(Deserialize)]
struct Head {
    format: u32,
    version: String,
}

impl Head {
    fn check(&self) -> Result<(), String> {
        if self.format == FORMAT {
            return Ok(());
        }
        Err(format!(
            "the backup has format {}, and this program knows {FORMAT}: restore it with version {}",
            self.format,
            shown(&self.version)
        ))
    }
}

/// The description of a backup.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// The version of the layout.
    pub format: u32,
    /// When the copying began.
    pub taken_at: String,
    /// The server's version.
    pub version: String,
    /// Each store.
    pub roles: Vec<RoleEntry>,
    /// Every file except this one, by path.
    pub files: Vec<FileEntry>,
    /// Whether there was a key that seals secrets in the records. It is not in the backup.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub secrets_left_out: bool,
}

/// The part of one role.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RoleEntry {
    /// Which store.
    pub role: Role,
    /// Its engine.
    pub engine: String,
    /// Its URL, without a password.
    pub url: String,
    /// Its counted contents when its copying began.
    pub counts: BTreeMap<String, u64>,
    /// The number of its files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Why the engine's own content is not in the backup.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub omitted: Option<String>,
}

/// A file of a backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// The path relative to the backup's folder, with slashes.
    pub path: String,
    /// Its length.
    pub bytes: u64,
    /// The hash, as `sha256sum` prints it.
    pub sha256: String,
}

impl Manifest {
    pub(crate) fn new(taken_at: String, roles: Vec<RoleEntry>, files: Vec<FileEntry>) -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Self { format: FORMAT, taken_at, version, roles, files, secrets_left_out: false }
    }

    pub(crate) fn role(&self, role: Role) -> Option<&RoleEntry> {
        self.roles.iter().find(|entry| entry.role == role)
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.bytes))
    }

    /// The counted contents of all roles.
    pub fn counts(&self) -> BTreeMap<String, u64> {
        self.roles.iter().flat_map(|role| role.counts.clone()).collect()
    }

    /// Reads the manifest of a backup, and checks that it names nothing outside of the backup, and nothing twice. Its texts
    /// are safe to show.
    ///
    /// # Errors
    /// `NotFound` when the folder has no manifest, `Corrupt` when the file is not one of ours, `Unavailable` when
    /// it can't be read.
    pub fn read(folder: &Path) -> Result<Self, Error> {
        let corrupt = |what: String| Error::corrupt(format!("{}: {what}", folder.display()));
        // The rest of a manifest may differ in another format.
        Self::parse::<Head>(folder)?.check().map_err(corrupt)?;
        let manifest: Self = Self::parse(folder)?;
        if let Some(file) = manifest.files.iter().find(|file| !is_below(&file.path)) {
            let path: String = file.path.escape_debug().take(TEXT_BYTES_MAX).collect();
            return Err(corrupt(format!("the backup names a file outside of itself: \"{path}\"")));
        }
        let is_sum =
            |sum: &str| sum.len() == SHA256_DIGITS && sum.bytes().all(|byte| byte.is_ascii_hexdigit());
        if let Some(file) = manifest.files.iter().find(|file| !is_sum(&file.sha256)) {
            return Err(corrupt(format!("{FILE_NAME} has no SHA-256 of {}", file.path)));
        }
        let mut paths = HashSet::new();
        if let Some(file) = manifest.files.iter().find(|file| !paths.insert(&file.path)) {
            return Err(corrupt(format!("{FILE_NAME} names {} twice", file.path)));
        }
        let mut roles = BTreeSet::new();
        if let Some(entry) = manifest.roles.iter().find(|entry| !roles.insert(entry.role)) {
            return Err(corrupt(format!("{FILE_NAME} has the {} twice", entry.role.name())));
        }
        Ok(manifest.made_showable())
    }

    /// Replaces characters that a terminal would interpret in everything that is shown to people.
    fn made_showable(mut self) -> Self {
        self.taken_at = shown(&self.taken_at);
        self.version = shown(&self.version);
        for role in &mut self.roles {
            role.engine = shown(&role.engine);
            role.url = shown(&role.url);
            role.omitted = role.omitted.as_deref().map(shown);
            role.counts = role.counts.iter().map(|(name, count)| (shown(name), *count)).collect();
        }
        self
    }

    fn parse<T: DeserializeOwned>(folder: &Path) -> Result<T, Error> {
        let file = folder.join(FILE_NAME);
        let opened = Beneath::open(folder)?.file(FILE_NAME).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Error::not_found(format!(
                    "{} is no finished backup: it has no {FILE_NAME}, which is written last: name another one, or take one anew",
                    folder.display()
                ),
            ),
            _ => Error::io("read", file.display(), error),
        })?;
        let bytes = opened.metadata().map_err(|error| Error::io("read", file.display(), error))?.len();
        if bytes > BYTES_MAX {
            let what = format!("{} has {bytes} bytes, and {BYTES_MAX} at most can be read", file.display());
            return Err(Error::corrupt(what));
        }
        serde_json::from_reader(BufReader::new(opened.take(BYTES_MAX))).map_err(|error| {
            let what = format!("{} can't be read: {error}: take another backup", file.display());
            Error::corrupt(what)
        })
    }

    /// Writes and syncs the manifest. The caller syncs the folder.
    pub(crate) fn write(&self, folder: &Path) -> Result<(), Error> {
        let file = folder.join(FILE_NAME);
        let failed = |error| Error::io("write", file.display(), error);
        let mut out = BufWriter::new(File::create(&file).map_err(failed)?);
        let written = serde_json::to_writer_pretty(&mut out, self).map_err(std::io::Error::from);
        written.and_then(|()| out.write_all(b"\n")).and_then(|()| out.flush()).map_err(failed)?;
        let bytes = out.get_ref().metadata().map_err(failed)?.len();
        if bytes > BYTES_MAX {
            let what =
                format!("the backup has too many files: a list of {bytes} bytes could not be read again");
            return Err(Error::full(what));
        }
        out.get_ref().sync_all().map_err(failed)
    }
}

/// Whether a path is inside a folder, regardless of what exists there, and can be shown.
fn is_below(path: &str) -> bool {
    let is_name = |part: &str| !matches!(part, "" | "." | "..");
    path.len() <= TEXT_BYTES_MAX && path.split('/').all(is_name) && !path.chars().any(acts_on_terminals)
}

/// A text without characters that a terminal interprets, and not too long.
fn shown(text: &str) -> String {
    let shown = text.chars().map(|c| if acts_on_terminals(c) { '\u{fffd}' } else { c });
    shown.take(TEXT_BYTES_MAX).collect()
}

/// Control characters, and those that change the direction of a text.
fn acts_on_terminals(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Whether a folder is a backup, or the rest of an unfinished one.
pub(crate) fn is_of_backup(folder: &Path, mark: &str) -> bool {
    [FILE_NAME, mark].iter().any(|name| fs::symlink_metadata(folder.join(name)).is_ok())
}

#[cfg(test)]
mod tests {
    use restante_core::ErrorKind;

    use super::*;

    pub(crate) fn manifest() -> Manifest {
        let file = |path: &str| FileEntry { path: path.into(), bytes: 5, sha256: "00".repeat(32) };
        let archive = RoleEntry {
            role: Role::Archive,
            engine: "log".into(),
            url: "log:data/archive".into(),
            counts: [("messages".to_owned(), 7)].into(),
            files: 2,
            bytes: 10,
            omitted: None,
        };
        let files = vec![file("archive/00000001.log"), file("archive/spool/00000001/00000001.log")];
        Manifest::new("2026-01-31T12:00:00Z".into(), vec![archive], files)
    }

    #[test]
    fn a_manifest_reads_back() {
        let folder = tempfile::tempdir().unwrap();
        manifest().write(folder.path()).unwrap();
        assert_eq!(Manifest::read(folder.path()).unwrap(), manifest());
        assert_eq!((manifest().bytes(), manifest().counts()["messages"]), (10, 7));
    }

    #[test]
    fn what_is_no_manifest_of_ours_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let refused = || Manifest::read(folder.path()).unwrap_err();
        assert!(refused().to_string().contains("is no finished backup"), "{}", refused());
        manifest().write(folder.path()).unwrap();
        let file = folder.path().join(FILE_NAME);
        let text = fs::read_to_string(&file).unwrap();
        for cut in [0, 1, text.len() / 2, text.len() - 3] {
            fs::write(&file, &text[..cut]).unwrap();
            assert_eq!(refused().kind(), ErrorKind::Corrupt, "cut at {cut}");
        }
        fs::write(&file, text.replace("\"format\": 1", "\"format\": 2")).unwrap();
        assert!(refused().to_string().contains("format 2"), "{}", refused());
        fs::write(&file, r#"{"format": 9, "version": "7.0", "trees": {}}"#).unwrap();
        assert!(refused().to_string().ends_with("restore it with version 7.0"), "{}", refused());
        for path in ["", "/etc/passwd", "../x", "archive/../../x", "./x/../y"] {
            let mut outside = manifest();
            outside.files[1].path = path.into();
            outside.write(folder.path()).unwrap();
            assert!(refused().to_string().contains("outside of itself"), "{path}");
        }
    }
}
