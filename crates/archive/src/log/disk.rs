//! The narrow seam between the engine and the disk: every byte that must survive goes through it, so that tests can fail
//! any step of it and replay a power cut at any point.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
};

use bytes::Bytes;
use rustix::fs::FallocateFlags;

use crate::{
    backup::{self, Extent},
    log::schema::TEMPORARY_SUFFIX,
    mapped::{self, Pages},
};

/// One folder of files.
pub(super) trait Disk: Send + Sync + 'static {
    /// Names and lengths of all files.
    fn list(&self) -> io::Result<Vec<(String, u64)>>;
    /// Creates a file; it must not be there yet. Durable after `sync_folder`.
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;
    /// Opens a file for writing.
    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;
    /// Copies a file that somebody else may cut meanwhile: bytes of a mapping that are gone end the process.
    fn read(&self, name: &str) -> io::Result<Bytes>;
    /// Shares the first `len` bytes of a file, which may be more than it has now; only bytes that the file has may be read.
    fn map(&self, name: &str, len: usize) -> io::Result<Bytes>;
    /// The same for a file that was just written and is read from now on: all of it is entered into the page tables at once,
    /// which takes a tenth of what it takes page by page.
    fn map_written(&self, name: &str, len: usize) -> io::Result<Bytes> {
        self.map(name, len)
    }
    /// Copies a file to a place outside the folder, or links it there when it never changes.
    fn copy_out(&self, name: &str, extent: Extent, to: &Path) -> io::Result<()>;
    /// Makes a file the folder's alone before it is written to: one that a backup has under another name is exchanged for a
    /// copy, durably.
    fn own(&self, name: &str) -> io::Result<()>;
    /// Renames a file over another. Durable after `sync_folder`.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file. Durable after `sync_folder`.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes creations, renames and removals durable.
    fn sync_folder(&self) -> io::Result<()>;
}

/// A file that is open for writing.
pub(super) trait DiskFile: Send + Sync {
    /// Writes all of `bytes` at `offset`.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Makes what was written, and the file's length, durable.
    fn sync(&self) -> io::Result<()>;
    /// Makes the file `len` bytes longer from `offset`, its end, on: zeros that are given room on the disk now.
    fn reserve(&self, offset: u64, len: u64) -> io::Result<()>;
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
    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            match (entry.file_name().into_string(), entry.metadata()) {
                (Ok(name), Ok(metadata)) => files.push((name, metadata.len())),
                (_, Err(error)) if error.kind() == io::ErrorKind::NotFound => {} // removed or renamed meanwhile
                (_, Err(error)) => return Err(error),
                (Err(_), _) => {} // none of ours
            }
        }
        files.sort();
        Ok(files)
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(self.path.join(name))?;
        Ok(Box::new(file))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(OpenOptions::new().read(true).write(true).open(self.path.join(name))?))
    }

    fn read(&self, name: &str) -> io::Result<Bytes> {
        std::fs::read(self.path.join(name)).map(Bytes::from)
    }

    fn map(&self, name: &str, len: usize) -> io::Result<Bytes> {
        mapped::map(&File::open(self.path.join(name))?, len, Pages::AsTouched)
    }

    fn map_written(&self, name: &str, len: usize) -> io::Result<Bytes> {
        mapped::map(&File::open(self.path.join(name))?, len, Pages::AtOnce)
    }

    fn copy_out(&self, name: &str, extent: Extent, to: &Path) -> io::Result<()> {
        backup::copy(&self.path.join(name), to, extent)
    }

    fn own(&self, name: &str) -> io::Result<()> {
        let metadata = std::fs::metadata(self.path.join(name))?;
        if metadata.nlink() <= 1 {
            return Ok(());
        }
        let temporary = name.to_owned() + TEMPORARY_SUFFIX;
        match self.remove(&temporary) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => self.copy_out(name, Extent::Bytes(metadata.len()), &self.path.join(&temporary))?,
        }
        self.rename(&temporary, name)?;
        self.sync_folder()
    }

    #[expect(clippy::disallowed_methods, reason = "this is the Disk that syncs the folder after renames")]
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.path.join(name))
    }

    fn sync_folder(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }
}

impl DiskFile for File {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        Ok(rustix::fs::fallocate(self, FallocateFlags::empty(), offset, len)?)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        File::set_len(self, len)
    }
}
