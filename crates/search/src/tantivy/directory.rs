//! Tantivy's directory of mapped files, with durable replacement of files.
//!
//! A commit replaces `meta.json`. Tantivy's own directory renames the new file and then removes the files of segments that it does not
//! name, without syncing the folder in between: after a power cut the old `meta.json` may be back, without its segments.
//!
//! Tantivy also keeps a list of the files that it has created, to remove those that no commit names any more, and replaces it
//! before it creates each file. This directory lists the folder instead: nothing is synced for it, and no file is missed.
//!
//! A merge can't be stopped, and outlives the writer that began it. Once its directory is closed it changes nothing any more, since
//! another writer may have the folder open. Then removing a file does nothing and reports no error, which Tantivy would log for each
//! file; the next writer removes the files.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use ::tantivy::{
    Directory, TantivyError,
    directory::{
        DirectoryLock, FileHandle, Lock, MmapDirectory, WatchCallback, WatchHandle, WritePtr,
        error::{DeleteError, LockError, OpenDirectoryError, OpenReadError, OpenWriteError},
    },
};
use parking_lot::{RwLock, RwLockReadGuard};
use restante_disk::{Disk, Folder};

/// The file with Tantivy's list.
const LIST_FILE: &str = ".managed.json";
/// The ending of the name of a new file until it replaces the old one.
const NEW_ENDING: &str = ".new";

/// A folder of mapped files.
#[derive(Clone)]
pub(super) struct DurableDirectory {
    mapped: MmapDirectory,
    path: PathBuf,
    folder: Folder,
    is_closed: Arc<RwLock<bool>>,
}

impl DurableDirectory {
    pub(super) fn open(path: &Path) -> Result<Self, OpenDirectoryError> {
        Ok(Self {
            mapped: MmapDirectory::open(path)?,
            path: path.to_owned(),
            folder: Folder::new(path),
            is_closed: Arc::default(),
        })
    }

    /// From now on this directory and its clones create, replace and remove no file. Waits for operations in progress.
    pub(super) fn close(&self) {
        *self.is_closed.write() = true;
    }

    /// Held while files change.
    fn changing(&self) -> io::Result<RwLockReadGuard<'_, bool>> {
        let is_closed = self.is_closed.read();
        match *is_closed {
            true => Err(io::Error::other("the search index is closed")),
            false => Ok(is_closed),
        }
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let new = format!("{name}{NEW_ENDING}");
        let file = self.folder.open_or_create(&new)?;
        file.set_len(0)?;
        file.write_at(bytes, 0)?;
        file.sync()?;
        self.folder.rename(&new, name)?;
        self.folder.sync_folder("")
    }

    /// The names of Tantivy's files, as JSON. Names of its locks begin with a dot.
    fn list(&self) -> io::Result<Vec<u8>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let name = entry?.file_name().into_string().map_err(|_| io::ErrorKind::InvalidFilename)?;
            if !name.starts_with('.') && !name.ends_with(NEW_ENDING) {
                names.push(name);
            }
        }
        Ok(serde_json::to_vec(&names)?)
    }
}

impl fmt::Debug for DurableDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.folder.fmt(f)
    }
}

impl Directory for DurableDirectory {
    fn get_file_handle(&self, path: &Path) -> Result<Arc<dyn FileHandle>, OpenReadError> {
        self.mapped.get_file_handle(path)
    }

    fn delete(&self, path: &Path) -> Result<(), DeleteError> {
        match self.changing() {
            Ok(_changing) => self.mapped.delete(path),
            Err(_) => Err(DeleteError::FileDoesNotExist(path.to_owned())),
        }
    }

    fn exists(&self, path: &Path) -> Result<bool, OpenReadError> {
        self.mapped.exists(path)
    }

    fn open_write(&self, path: &Path) -> Result<WritePtr, OpenWriteError> {
        let _changing =
            self.changing().map_err(|error| OpenWriteError::wrap_io_error(error, path.to_owned()))?;
        self.mapped.open_write(path)
    }

    fn atomic_read(&self, path: &Path) -> Result<Vec<u8>, OpenReadError> {
        match path == Path::new(LIST_FILE) {
            true => self.list().map_err(|error| OpenReadError::wrap_io_error(error, path.to_owned())),
            false => self.mapped.atomic_read(path),
        }
    }

    fn atomic_write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let name = path.to_str().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidFilename))?;
        let _changing = self.changing()?;
        if name == LIST_FILE { Ok(()) } else { self.replace(name, bytes) }
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.mapped.sync_directory()
    }

    fn acquire_lock(&self, lock: &Lock) -> Result<DirectoryLock, LockError> {
        self.mapped.acquire_lock(lock)
    }

    fn watch(&self, callback: WatchCallback) -> Result<WatchHandle, TantivyError> {
        self.mapped.watch(callback)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use ::tantivy::directory::TerminatingWrite;

    use super::*;

    #[test]
    fn a_closed_directory_changes_nothing_and_can_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let (old, new) =
            (DurableDirectory::open(folder.path()).unwrap(), DurableDirectory::open(folder.path()).unwrap());
        let merge = old.clone();
        let mut begun = merge.open_write(Path::new("begun")).unwrap();
        old.atomic_write(Path::new("list"), b"old").unwrap();
        old.close();

        assert!(merge.atomic_write(Path::new("list"), b"late").is_err());
        assert!(merge.open_write(Path::new("another")).is_err());
        let deleted = merge.delete(Path::new("list"));
        assert!(matches!(deleted, Err(DeleteError::FileDoesNotExist(_))), "any other error is logged");
        begun.write_all(b"a file that was open").unwrap();
        begun.terminate().unwrap();
        assert_eq!(merge.atomic_read(Path::new("list")).unwrap(), b"old");

        new.atomic_write(Path::new("list"), b"new").unwrap();
        assert_eq!(merge.atomic_read(Path::new("list")).unwrap(), b"new");
        new.delete(Path::new("begun")).unwrap();
        assert!(!new.exists(Path::new("another")).unwrap());
    }

    #[test]
    fn the_list_of_files_is_that_of_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let directory = DurableDirectory::open(folder.path()).unwrap();
        for name in ["segment.idx", "meta.json", "meta.json.new", ".lock", LIST_FILE] {
            std::fs::write(folder.path().join(name), b"old").unwrap();
        }
        let list = Path::new(LIST_FILE);
        directory.atomic_write(list, b"[\"another\"]").unwrap();
        let mut listed: Vec<String> = serde_json::from_slice(&directory.atomic_read(list).unwrap()).unwrap();
        listed.sort();
        assert_eq!(listed, ["meta.json", "segment.idx"]);
        assert_eq!(std::fs::read(folder.path().join(LIST_FILE)).unwrap(), b"old");
    }
}
