//! Whether a backup matches its manifest.

use std::path::Path;

use restante_core::Error;

use super::{
    Manifest, Progress, check_pages,
    disk::{self, Beneath},
    location::{Part, is_restored},
    manifest::FileEntry,
};

/// A defective file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// Its path in the backup.
    pub path: String,
    /// The defect.
    pub what: String,
}

impl Wrong {
    fn new(file: &FileEntry, what: impl Into<String>) -> Self {
        Self { path: file.path.clone(), what: what.into() }
    }
}

/// Reads every file of a backup, and returns those that are wrong, or that no backup of ours has.
///
/// # Errors
/// When the folder can't be opened.
pub fn verify(folder: &Path, manifest: &Manifest, progress: Progress<'_>) -> Result<Vec<Wrong>, Error> {
    let folder = Beneath::open(folder)?;
    let (of_bytes, mut done) = (manifest.bytes(), 0);
    let mut wrong = Vec::new();
    for file in &manifest.files {
        let each = |bytes| {
            done += bytes;
            progress(done, of_bytes);
            Ok(())
        };
        wrong.extend(check(file, &folder, each).err());
    }
    Ok(wrong)
}

fn check(
    file: &FileEntry,
    folder: &Beneath,
    each: impl FnMut(u64) -> Result<(), Error>,
) -> Result<(), Wrong> {
    let path = folder.path(&file.path);
    let opened = folder.file(&file.path).map_err(|error| Error::io("read", path.display(), error));
    let opened = opened.map_err(|error| Wrong::new(file, error.to_string()))?;
    compare(file, disk::digest_of(&opened, &path, file.bytes, each))?;
    match Part::of(&file.path) {
        Some((part, path)) if !is_restored(part, path) => {
            Err(Wrong::new(file, "no backup has a file of this name: it would not be restored"))
        }
        Some((part, path)) => {
            check_pages(part, path, &opened).map_err(|error| Wrong::new(file, error.to_string()))
        }
        None => Ok(()),
    }
}

/// Compares a file that was read with its entry in the manifest.
pub(super) fn compare(file: &FileEntry, read: Result<(u64, String), Error>) -> Result<(), Wrong> {
    let (bytes, sha256) = read.map_err(|error| Wrong::new(file, error.to_string()))?;
    if bytes > file.bytes {
        return Err(Wrong::new(file, format!("it has more than the {} bytes that it had", file.bytes)));
    }
    if bytes != file.bytes {
        return Err(Wrong::new(file, format!("it has {bytes} bytes, and had {}", file.bytes)));
    }
    if sha256 != file.sha256 {
        return Err(Wrong::new(file, "its content is not what it was"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn each_wrong_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = Vec::new();
        for name in ["cut", "changed", "gone", "sound"] {
            let path = folder.path().join(name);
            fs::write(&path, "content").unwrap();
            let (bytes, sha256) = disk::digest(&path, |_| Ok(())).unwrap();
            files.push(FileEntry { path: name.into(), bytes, sha256 });
        }
        let manifest = Manifest::new(String::new(), Vec::new(), files);
        let check = || {
            let mut last = (0, 0);
            let wrong = verify(folder.path(), &manifest, &mut |done, all| last = (done, all)).unwrap();
            (wrong.into_iter().map(|wrong| wrong.path).collect::<Vec<_>>(), last)
        };
        assert_eq!(check(), (vec![], (28, 28)));
        fs::write(folder.path().join("cut"), "conten").unwrap();
        fs::write(folder.path().join("changed"), "Content").unwrap();
        fs::remove_file(folder.path().join("gone")).unwrap();
        assert_eq!(check().0, ["cut", "changed", "gone"]);
    }
}
