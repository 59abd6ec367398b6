//! The files of a folder of mboxes, such as Thunderbird's and ours.

use std::{
    fs::{self, File},
    io::Read,
    path::{Path, PathBuf},
};

use crate::{
    FilesError, Folder, MANIFEST,
    export::{ManifestEntry, ManifestFolder},
};

/// Deeper folders are not searched.
const DEPTH_MAX: usize = 32;

/// An mbox and its folder.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mbox {
    pub(super) path: PathBuf,
    pub(super) folder: Folder,
    pub(super) bytes: u64,
}

/// The mboxes at a path: the file itself, or those below a folder, sorted by name.
pub(super) fn mboxes(path: &Path) -> Result<Vec<Mbox>, FilesError> {
    let metadata = fs::metadata(path).map_err(FilesError::io("read", path))?;
    if !metadata.is_dir() {
        let names = vec![name_of(path)];
        return Ok(vec![Mbox { path: path.to_owned(), folder: Folder::named(names), bytes: metadata.len() }]);
    }
    let mut found = Vec::new();
    walk(path, &mut Vec::new(), &mut found)?;
    for entry in manifest(path) {
        let (file, folder) = (path.join(&entry.file), ManifestFolder::folder(entry.folder));
        if let Some(mbox) = found.iter_mut().find(|mbox| mbox.path == file)
            && let Some(folder) = folder
        {
            mbox.folder = folder;
        }
    }
    match found.is_empty() {
        true => Err(FilesError::Not {
            path: path.to_owned(),
            why: "has no mbox: name a file or a folder of mboxes",
        }),
        false => Ok(found),
    }
}

/// The folders that an export lists; none if there is no readable list.
pub(crate) fn manifest(path: &Path) -> Vec<ManifestEntry> {
    let text = fs::read(path.join(MANIFEST)).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

fn walk(folder: &Path, names: &mut Vec<String>, found: &mut Vec<Mbox>) -> Result<(), FilesError> {
    let failed = || FilesError::io("read", folder);
    let entries = fs::read_dir(folder).map_err(failed())?;
    let mut entries = entries.collect::<Result<Vec<_>, _>>().map_err(failed())?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        // Links are not followed: they may form a loop, or lead out of the folder that the user means.
        let Ok(metadata) = entry.metadata() else { continue };
        if metadata.is_dir() {
            if names.len() < DEPTH_MAX {
                names.push(name_of(&path));
                walk(&path, names, found)?;
                names.pop();
            }
            continue;
        }
        if !metadata.is_file() || !is_mbox(&path, metadata.len()) {
            continue;
        }
        let mut path_names = names.clone();
        // Apple Mail exports Work.mbox/mbox.
        let is_inner = path.file_name().is_some_and(|name| name == "mbox") && !names.is_empty();
        if !is_inner {
            path_names.push(name_of(&path));
        }
        found.push(Mbox { path, folder: Folder::named(path_names), bytes: metadata.len() });
    }
    Ok(())
}

/// The name of the mailbox of a file or folder.
fn name_of(path: &Path) -> String {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let stem = [".mbox", ".mbx", ".sbd"].iter().find_map(|suffix| name.strip_suffix(suffix));
    stem.filter(|stem| !stem.is_empty()).unwrap_or(&name).to_owned()
}

/// Whether a file is an mbox. An empty one is, unless its name says that it is something else.
fn is_mbox(path: &Path, bytes: u64) -> bool {
    if bytes == 0 {
        return path.extension().is_none_or(|extension| extension == "mbox" || extension == "mbx");
    }
    let mut start = [0; 5];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && start == *b"From "
}
