//! A file next to the archive that only takes space. On a full disk it is removed for a moment: checkpoints, pruning and opening
//! need some space before they release more.

use std::{
    fs::{File, OpenOptions},
    io,
    path::{Path, PathBuf},
};

use parking_lot::Mutex;
use rustix::fs::FallocateFlags;

use crate::disk_full;

/// The size of the file: this part of the disk, within these bounds. The upper one is twice what makes a checkpoint due.
const DISK_SHARE: u64 = 16;
const BYTES_MIN: u64 = 512 << 10;
const BYTES_MAX: u64 = 16 << 20;
/// On a disk with no more free space than this the file is removed before the archive is opened.
const OPENING_BYTES: u64 = 512 << 10;

/// See the module.
pub(super) struct Reserve {
    path: PathBuf,
    bytes: u64,
    /// Held while the file is created or removed.
    is_made: Mutex<bool>,
}

impl Reserve {
    /// The reserve of an archive; the file may exist already.
    pub(super) fn new(path: PathBuf) -> Self {
        let disk = disk_full::disk_bytes(path.parent().unwrap_or(Path::new("/"))).unwrap_or(u64::MAX);
        let bytes = (disk / DISK_SHARE).clamp(BYTES_MIN, BYTES_MAX);
        let is_made = std::fs::metadata(&path).is_ok_and(|metadata| metadata.len() > 0);
        Self { path, bytes, is_made: Mutex::new(is_made) }
    }

    /// The size of the file when there is space.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Releases the space. Returns whether there was any.
    pub(super) fn release(&self) -> bool {
        let mut is_made = self.is_made.lock();
        // A file that can't be removed frees no space.
        let is_removed = *is_made && std::fs::remove_file(&self.path).is_ok();
        *is_made = false;
        is_removed
    }

    /// Releases the space if opening needs it.
    pub(super) fn release_to_open(&self) {
        if disk_full::free_bytes(self.path.parent().unwrap_or(Path::new("/")))
            .is_some_and(|free| free < OPENING_BYTES)
        {
            self.release();
        }
    }

    /// Allocates the space, or as much of it as there is. It is no error when there is none: this is tried again.
    pub(super) fn make(&self) {
        let mut is_made = self.is_made.lock();
        let mut bytes = self.bytes;
        while !*is_made && bytes >= BYTES_MIN / 4 {
            *is_made = self.allocate(bytes).is_ok();
            bytes /= 2;
        }
    }

    /// Not synced: after a power cut the file is created again.
    fn allocate(&self, bytes: u64) -> io::Result<()> {
        let file: File = OpenOptions::new().write(true).create(true).truncate(true).open(&self.path)?;
        let allocated = rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes);
        allocated.map_err(|error| {
            let _ = std::fs::remove_file(&self.path); // an empty file does no harm
            error.into()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserve_is_given_up_and_made_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("archive.db.reserve");
        let reserve = Reserve::new(path.clone());
        assert!(!reserve.release());
        reserve.make();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), reserve.bytes());
        let reserve = Reserve::new(path.clone());
        assert!(reserve.release());
        assert!(!reserve.release() && !path.exists());
        reserve.make();
        assert!(path.exists());
    }
}
