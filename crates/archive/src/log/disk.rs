//! The log's operations on its folder in addition to those of [`restante_disk::Disk`].

use std::{fs::File, io, os::unix::fs::MetadataExt, path::Path};

use bytes::Bytes;
pub(super) use restante_disk::{Disk, DiskFile, Folder};

use crate::{
    backup::{self, Extent},
    log::schema::TEMPORARY_SUFFIX,
    mapped::{self, Pages},
};

/// Mappings and copies of a disk's files.
pub(super) trait LogDisk: Disk {
    /// Maps the first `len` bytes of a file, which may be more than it has now; only bytes that the file has may be read.
    fn map(&self, name: &str, len: usize) -> io::Result<Bytes> {
        self.before("map")?;
        mapped::map(&File::open(self.path(name))?, len, Pages::AsTouched)
    }

    /// The same for a file that was just written and will be read now: all of it is entered into the page tables at once, which
    /// takes a tenth of the time of faulting it in page by page.
    fn map_written(&self, name: &str, len: usize) -> io::Result<Bytes> {
        self.before("map")?;
        mapped::map(&File::open(self.path(name))?, len, Pages::AtOnce)
    }

    /// Copies a file to a place outside the folder, or links it there when it never changes.
    fn copy_out(&self, name: &str, extent: Extent, to: &Path) -> io::Result<()> {
        self.before("copy out")?;
        backup::copy(&self.path(name), to, extent)
    }

    /// Makes a file private to the folder before it is written to: one that a backup has under another name is replaced with a
    /// copy, durably.
    fn own(&self, name: &str) -> io::Result<()> {
        self.before("own")?;
        let metadata = std::fs::metadata(self.path(name))?;
        if metadata.nlink() <= 1 {
            return Ok(());
        }
        let temporary = name.to_owned() + TEMPORARY_SUFFIX;
        self.remove(&temporary)?;
        let copied = backup::copy(&self.path(name), &self.path(&temporary), Extent::Bytes(metadata.len()));
        if copied.is_err() {
            let _ = self.remove(&temporary); // on a full disk it would take the last free space
        }
        copied?;
        self.rename(&temporary, name)?;
        self.sync_folder("")
    }
}

impl<D: Disk + ?Sized> LogDisk for D {}
