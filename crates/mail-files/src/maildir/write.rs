use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    time::{Duration, UNIX_EPOCH},
};

use super::names::{self, LETTERS};
use crate::{
    ExportedMessage, FilesError, Folder,
    export::{ManifestEntry, ManifestFolder, is_text, with_lf},
    keywords::MAILDIR_LETTERS,
    mbox::write::write_manifest,
};

/// The longest name of a folder that file systems accept, with room for a number.
const NAME_BYTES_MAX: usize = 240;

/// Writes a Maildir++ into a new folder: the inbox at the top, other mailboxes in folders `.Work.Old`.
#[derive(Debug)]
pub struct MaildirWriter {
    root: PathBuf,
    folders: BTreeMap<Vec<String>, WrittenFolder>,
    used: BTreeSet<String>,
    manifest: Vec<ManifestEntry>,
    /// How many keywords of messages have no letter, because their folders have more than 26.
    pub keywords_left_out: u64,
}

#[derive(Debug)]
struct WrittenFolder {
    path: PathBuf,
    /// The keywords that have a letter, in their order.
    letters: Vec<String>,
}

impl MaildirWriter {
    /// Creates the Maildir.
    ///
    /// # Errors
    /// It already exists, or can't be created.
    pub fn create(root: &Path) -> Result<Self, FilesError> {
        fs::create_dir(root).map_err(FilesError::io("make", root))?;
        let mut writer = Self {
            root: root.to_owned(),
            folders: BTreeMap::new(),
            used: BTreeSet::new(),
            manifest: Vec::new(),
            keywords_left_out: 0,
        };
        make(root)?;
        writer.used.insert(String::new());
        Ok(writer)
    }

    /// Creates the folder of a mailbox.
    ///
    /// # Errors
    /// Those of the system.
    pub fn add_folder(&mut self, folder: &Folder) -> Result<(), FilesError> {
        let mut file = names::folder_of(folder);
        if !file.is_empty() {
            // The list of folders contains the full names.
            while file.len() > NAME_BYTES_MAX {
                file.pop();
            }
            let whole = file.clone();
            let mut number = 2;
            while !self.used.insert(file.to_lowercase()) {
                file = format!("{whole}~{number}");
                number += 1;
            }
        }
        let path = self.root.join(&file);
        if !file.is_empty() {
            make(&path)?;
            let marker = path.join("maildirfolder");
            File::create(&marker).map_err(FilesError::io("make", marker))?;
        }
        self.manifest.push(ManifestEntry { file, folder: ManifestFolder::of(folder) });
        self.folders.insert(folder.path.clone(), WrittenFolder { path, letters: Vec::new() });
        Ok(())
    }

    /// Writes a message into each of its mailboxes, which must have been added.
    ///
    /// # Errors
    /// Those of the system.
    pub fn write(&mut self, message: &ExportedMessage<'_>) -> Result<(), FilesError> {
        let is_text = is_text(message.raw);
        let text = is_text.then(|| with_lf(message.raw));
        let bytes = text.as_deref().unwrap_or(message.raw);
        let mut written: Option<PathBuf> = None;
        for folder in message.folders {
            let Some(folder) = self.folders.get_mut(&folder.path) else { continue };
            let (flags, left_out) = folder.flags(message.keywords);
            self.keywords_left_out += left_out;
            let sizes = (bytes.len(), message.raw.len());
            let name = names::write((message.id, message.received), sizes, !is_text, &flags);
            let path = folder.path.join("cur").join(name);
            match &written {
                // The same message in a further mailbox takes no more space, if the file system supports links.
                Some(first) if fs::hard_link(first, &path).is_ok() => {}
                _ => write_file(&path, bytes, message.received).map_err(FilesError::io("write", &path))?,
            }
            written.get_or_insert(path);
        }
        Ok(())
    }

    /// Writes the keywords of the folders and their list, and returns when everything is on disk.
    ///
    /// # Errors
    /// Those of the system.
    pub fn finish(self) -> Result<(), FilesError> {
        for folder in self.folders.values().filter(|folder| !folder.letters.is_empty()) {
            let path = folder.path.join("dovecot-keywords");
            let lines = (0..)
                .zip(&folder.letters)
                .map(|(number, keyword): (usize, _)| format!("{number} {keyword}\n"));
            fs::write(&path, lines.collect::<String>()).map_err(FilesError::io("write", path))?;
        }
        write_manifest(&self.root, &self.manifest)
    }
}

impl WrittenFolder {
    /// The flags of a file's name in order, and how many keywords have no flag.
    fn flags(&mut self, keywords: &[String]) -> (String, u64) {
        let mut flags = BTreeSet::new();
        let mut left_out = 0;
        for keyword in keywords {
            if let Some((letter, _)) = MAILDIR_LETTERS.iter().find(|(_, known)| known == keyword) {
                flags.insert(*letter);
                continue;
            }
            let known = self.letters.iter().position(|known| known == keyword);
            let number = known.unwrap_or(self.letters.len());
            if number >= LETTERS {
                left_out += 1;
                continue;
            }
            if known.is_none() {
                self.letters.push(keyword.clone());
            }
            flags.extend(('a'..='z').nth(number));
        }
        (flags.into_iter().collect(), left_out)
    }
}

/// Creates the folders of a Maildir.
fn make(path: &Path) -> Result<(), FilesError> {
    for name in ["cur", "new", "tmp"] {
        let path = path.join(name);
        fs::create_dir_all(&path).map_err(FilesError::io("make", path))?;
    }
    Ok(())
}

fn write_file(path: &Path, bytes: &[u8], received: i64) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(bytes)?;
    let received = Duration::from_secs(u64::try_from(received).unwrap_or(0));
    file.set_modified(UNIX_EPOCH + received)
}
