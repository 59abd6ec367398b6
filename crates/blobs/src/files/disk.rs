//! The narrow seam between the engine and the disk: every step that changes a file goes through it, so that tests can fail
//! any of them. Names are paths below the store's folder.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

/// One folder of files and folders.
pub(super) trait Disk: Send + Sync + 'static {
    /// Where a name lies, for those who read.
    fn path(&self, name: &str) -> PathBuf;
    /// Creates a file; it must not be there yet. Durable after `sync_folder`.
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;
    /// Opens a file for writing.
    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;
    /// Creates a folder where there is none. Durable after `sync_folder` of the one above it.
    fn create_folder(&self, name: &str) -> io::Result<()>;
    /// Renames a file over another. Durable after `sync_folder` of the second's folder.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file where there is one. Durable after `sync_folder`.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes creations, renames and removals in a folder durable.
    fn sync_folder(&self, name: &str) -> io::Result<()>;
    /// Comes before each write of the index, which LMDB makes by itself. With an error it is not made.
    fn before_index(&self) -> io::Result<()>;
}

/// A file that is open for writing.
pub(super) trait DiskFile: Send + Sync {
    /// Writes all of `bytes` at `offset`.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Makes what was written, and the file's length, durable.
    fn sync(&self) -> io::Result<()>;
    /// Cuts the file.
    fn set_len(&self, len: u64) -> io::Result<()>;
}

/// The real thing.
pub(super) struct Folder {
    path: PathBuf,
}

impl Folder {
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }
}

impl Disk for Folder {
    fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(OpenOptions::new().write(true).create_new(true).open(self.path(name))?))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(OpenOptions::new().write(true).open(self.path(name))?))
    }

    fn create_folder(&self, name: &str) -> io::Result<()> {
        match std::fs::create_dir(self.path(name)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            done => done,
        }
    }

    #[expect(clippy::disallowed_methods, reason = "this is the Disk that syncs the folder after renames")]
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.path(from), self.path(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match std::fs::remove_file(self.path(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }

    fn sync_folder(&self, name: &str) -> io::Result<()> {
        File::open(self.path(name))?.sync_all()
    }

    fn before_index(&self) -> io::Result<()> {
        Ok(())
    }
}

impl DiskFile for File {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        File::set_len(self, len)
    }
}
