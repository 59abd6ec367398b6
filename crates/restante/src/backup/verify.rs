//! Whether a backup is what its manifest says.

use std::path::Path;

use super::{Manifest, Progress, Trouble, disk, manifest::FileEntry};

/// A file that is not what it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wrong {
    pub(crate) path: String,
    pub(crate) what: String,
}

impl Wrong {
    fn new(file: &FileEntry, what: impl Into<String>) -> Self {
        Self { path: file.path.clone(), what: what.into() }
    }
}

/// Reads every file of a backup, and gives those that are wrong.
pub(crate) fn verify(folder: &Path, manifest: &Manifest, progress: Progress<'_>) -> Vec<Wrong> {
    let (of_bytes, mut done) = (manifest.bytes(), 0);
    let mut wrong = Vec::new();
    for file in &manifest.files {
        let read = disk::digest(&folder.join(&file.path), |bytes| {
            done += bytes;
            progress(done, of_bytes);
            Ok(())
        });
        wrong.extend(compare(file, read).err());
    }
    wrong
}

/// Compares what was read of a file with what the manifest says of it.
pub(super) fn compare(file: &FileEntry, read: Result<(u64, String), Trouble>) -> Result<(), Wrong> {
    let (bytes, sha256) = read.map_err(|error| Wrong::new(file, error.to_string()))?;
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
            let wrong = verify(folder.path(), &manifest, &mut |done, all| last = (done, all));
            (wrong.into_iter().map(|wrong| wrong.path).collect::<Vec<_>>(), last)
        };
        assert_eq!(check(), (vec![], (28, 28)));
        fs::write(folder.path().join("cut"), "conten").unwrap();
        fs::write(folder.path().join("changed"), "Content").unwrap();
        fs::remove_file(folder.path().join("gone")).unwrap();
        assert_eq!(check().0, ["cut", "changed", "gone"]);
    }
}
