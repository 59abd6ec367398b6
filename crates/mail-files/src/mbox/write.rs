use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use super::{from_line, split::quote, status};
use crate::{
    ExportedMessage, FilesError, Folder, MANIFEST,
    export::{ManifestEntry, ManifestFolder, is_text, with_lf},
};

/// The longest name of a file, including what is added to distinguish two of one name.
const NAME_BYTES_MAX: usize = 120;
/// The most files that are open at a time.
const OPEN_MAX: usize = 64;

/// Writes one mbox, with mboxrd quoting.
#[derive(Debug)]
pub struct MboxWriter<W> {
    out: W,
}

impl<W: Write> MboxWriter<W> {
    /// A writer into a new file.
    pub fn new(out: W) -> Self {
        Self { out }
    }

    /// Writes a message. Importing it returns the same bytes, mailboxes, keywords and time.
    ///
    /// # Errors
    /// Those of the file.
    pub fn write(&mut self, message: &ExportedMessage<'_>) -> io::Result<()> {
        let is_text = is_text(message.raw);
        let text = if is_text { with_lf(message.raw) } else { message.raw.to_vec() };
        let is_open = !text.ends_with(b"\n");
        self.out.write_all(from_line::line_of(message.received).as_bytes())?;
        self.out.write_all(status::fields_of(message, !is_text, is_open).as_bytes())?;
        quote(&text, &mut self.out)?;
        self.out.write_all(if is_open { b"\n\n" } else { b"\n" })
    }

    /// The file, with everything written to it.
    ///
    /// # Errors
    /// Those of the file.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }
}

/// Writes an mbox for each mailbox into a new folder, those below a mailbox into a folder whose name ends with `.sbd`, as in
/// Thunderbird.
#[derive(Debug)]
pub struct MboxFolders {
    root: PathBuf,
    files: BTreeMap<Vec<String>, PathBuf>,
    used: BTreeSet<PathBuf>,
    open: BTreeMap<Vec<String>, MboxWriter<BufWriter<File>>>,
    manifest: Vec<ManifestEntry>,
}

impl MboxFolders {
    /// Creates the folder.
    ///
    /// # Errors
    /// It already exists, or can't be created.
    pub fn create(root: &Path) -> Result<Self, FilesError> {
        fs::create_dir(root).map_err(FilesError::io("make", root))?;
        Ok(Self {
            root: root.to_owned(),
            files: BTreeMap::new(),
            used: BTreeSet::new(),
            open: BTreeMap::new(),
            manifest: Vec::new(),
        })
    }

    /// Creates the file of a mailbox.
    ///
    /// # Errors
    /// Those of the system.
    pub fn add_folder(&mut self, folder: &Folder) -> Result<(), FilesError> {
        let path = self.path_of(&folder.path);
        let full = self.root.join(&path);
        let parent = full.parent().unwrap_or(&self.root).to_owned();
        fs::create_dir_all(&parent).map_err(FilesError::io("make", parent))?;
        File::options().create(true).append(true).open(&full).map_err(FilesError::io("make", full))?;
        let file = path.to_string_lossy().into_owned();
        self.manifest.push(ManifestEntry { file, folder: ManifestFolder::of(folder) });
        Ok(())
    }

    /// Writes a message into each of its mailboxes, which must have been added.
    ///
    /// # Errors
    /// Those of the system.
    pub fn write(&mut self, message: &ExportedMessage<'_>) -> Result<(), FilesError> {
        for folder in message.folders {
            let file = self.path_of(&folder.path);
            let path = self.root.join(file);
            if !self.open.contains_key(&folder.path) {
                if self.open.len() >= OPEN_MAX
                    && let Some((_, writer)) = self.open.pop_first()
                {
                    end(writer, &self.root)?;
                }
                let file =
                    File::options().append(true).open(&path).map_err(FilesError::io("write", &path))?;
                self.open.insert(folder.path.clone(), MboxWriter::new(BufWriter::new(file)));
            }
            if let Some(writer) = self.open.get_mut(&folder.path) {
                writer.write(message).map_err(FilesError::io("write", &path))?;
            }
        }
        Ok(())
    }

    /// Returns when everything is on disk.
    ///
    /// # Errors
    /// Those of the system.
    pub fn finish(mut self) -> Result<(), FilesError> {
        while let Some((_, writer)) = self.open.pop_first() {
            end(writer, &self.root)?;
        }
        write_manifest(&self.root, &self.manifest)
    }

    /// The file of a mailbox, relative to the root: invalid file names are changed, and no two mailboxes share one.
    fn path_of(&mut self, names: &[String]) -> PathBuf {
        if let Some(path) = self.files.get(names) {
            return path.clone();
        }
        let parent = match names.split_last() {
            Some((_, above)) if !above.is_empty() => {
                let mut folder = self.path_of(above).into_os_string();
                folder.push(".sbd");
                PathBuf::from(folder)
            }
            _ => PathBuf::new(),
        };
        let name = file_name(names.last().map_or("", String::as_str));
        let mut path = parent.join(&name);
        let mut number = 2;
        // Also for case-insensitive file systems.
        while !self.used.insert(PathBuf::from(path.to_string_lossy().to_lowercase())) {
            path = parent.join(format!("{name}~{number}"));
            number += 1;
        }
        self.files.insert(names.to_vec(), path.clone());
        path
    }
}

fn end(writer: MboxWriter<BufWriter<File>>, root: &Path) -> Result<(), FilesError> {
    let ended = writer.finish().and_then(|file| file.into_inner().map_err(io::Error::from));
    ended.and_then(|file| file.sync_all()).map_err(FilesError::io("write", root))
}

/// Writes the list of folders of an export.
pub(crate) fn write_manifest(root: &Path, manifest: &[ManifestEntry]) -> Result<(), FilesError> {
    let path = root.join(MANIFEST);
    let mut text = serde_json::to_vec_pretty(manifest).unwrap_or_default();
    text.push(b'\n');
    let written =
        File::create(&path).and_then(|mut file| file.write_all(&text).and_then(|()| file.sync_all()));
    written.map_err(FilesError::io("write", path))
}

fn file_name(name: &str) -> String {
    let is_possible =
        |c: char| !c.is_control() && !matches!(c, '/' | '\\' | ':' | '*' | '?' | '"' | '<' | '>' | '|');
    let mut text: String = name.chars().map(|c| if is_possible(c) { c } else { '_' }).collect();
    while text.len() > NAME_BYTES_MAX {
        text.pop();
    }
    let is_special = text.is_empty() || text.starts_with('.') || text.ends_with(".sbd") || text == MANIFEST;
    if is_special { format!("_{text}") } else { text }
}
