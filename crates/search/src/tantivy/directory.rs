//! Tantivy's directory of mapped files, with replacements of files that are durable.
//!
//! A commit replaces `meta.json`. Tantivy's own directory renames the new one to its place and then removes the files of segments that
//! it does not name, without syncing the folder in between: after a power cut the old one may be back, without its segments.

use std::{fmt, io, path::Path, sync::Arc};

use ::tantivy::{
    Directory, TantivyError,
    directory::{
        DirectoryLock, FileHandle, Lock, MmapDirectory, WatchCallback, WatchHandle, WritePtr,
        error::{DeleteError, LockError, OpenDirectoryError, OpenReadError, OpenWriteError},
    },
};
use restante_disk::{Disk, Folder};

use super::files::META_FILE;

/// A folder of mapped files.
#[derive(Clone)]
pub(super) struct DurableDirectory {
    mapped: MmapDirectory,
    folder: Folder,
}

impl DurableDirectory {
    pub(super) fn open(path: &Path) -> Result<Self, OpenDirectoryError> {
        Ok(Self { mapped: MmapDirectory::open(path)?, folder: Folder::new(path) })
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let new = format!("{name}.new");
        let file = self.folder.open_or_create(&new)?;
        file.set_len(0)?;
        file.write_at(bytes, 0)?;
        file.sync()?;
        self.folder.rename(&new, name)?;
        // The other file is a note of what may be removed: an older one names fewer files.
        if name == META_FILE { self.folder.sync_folder("") } else { Ok(()) }
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
        self.mapped.delete(path)
    }

    fn exists(&self, path: &Path) -> Result<bool, OpenReadError> {
        self.mapped.exists(path)
    }

    fn open_write(&self, path: &Path) -> Result<WritePtr, OpenWriteError> {
        self.mapped.open_write(path)
    }

    fn atomic_read(&self, path: &Path) -> Result<Vec<u8>, OpenReadError> {
        self.mapped.atomic_read(path)
    }

    fn atomic_write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let name = path.to_str().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidFilename))?;
        self.replace(name, bytes)
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
