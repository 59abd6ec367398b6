//! The narrow seam between the commit log and the disk, so that tests can fail any step of it.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

/// The folder of a store.
pub(crate) trait Disk: Send + Sync + 'static {
    /// Opens a file and creates it when it is not there. Durable after `sync_folder`.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;
    /// Makes creations durable.
    fn sync_folder(&self) -> io::Result<()>;
}

/// A file of it.
pub(crate) trait DiskFile: Send + Sync {
    /// All bytes.
    fn read(&self) -> io::Result<Vec<u8>>;
    fn len(&self) -> io::Result<u64>;
    /// Writes all of `bytes` at `offset`.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Cuts the file, or makes it longer without writing.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Makes what was written, and the length, durable.
    fn sync(&self) -> io::Result<()>;
}

/// The real thing.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }
}

impl Disk for Folder {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(self.0.join(name))?;
        Ok(Arc::new(file))
    }

    fn sync_folder(&self) -> io::Result<()> {
        File::open(&self.0)?.sync_all()
    }
}

impl DiskFile for File {
    fn read(&self) -> io::Result<Vec<u8>> {
        let len = usize::try_from(DiskFile::len(self)?).map_err(io::Error::other)?;
        let mut bytes = vec![0; len];
        self.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        File::set_len(self, len)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}
