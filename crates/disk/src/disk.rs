//! The interface between engines and the disk: every step that changes a file goes through it, so that tests can fail any
//! of them and replay a power cut at any point.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use restante_core::Error;
use rustix::{fs::FallocateFlags, io::Errno};

/// A folder of files and folders. Names are paths below it; the empty name is the folder itself.
pub trait Disk: Send + Sync + 'static {
    /// The path of a file or folder, for readers.
    fn path(&self, name: &str) -> PathBuf;
    /// Names and lengths of everything in the folder, sorted by name.
    fn list(&self) -> io::Result<Vec<(String, u64)>>;
    /// The content of a file.
    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        std::fs::read(self.path(name))
    }
    /// Creates a file, which must not exist yet. Durable after `sync_folder`.
    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;
    /// Opens an existing file for writing.
    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>>;
    /// Opens a file for writing and creates it when it does not exist. Durable after `sync_folder`.
    fn open_or_create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        match self.open(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.create(name),
            opened => opened,
        }
    }
    /// Creates a folder if there is none. Durable after `sync_folder` of its parent.
    fn create_folder(&self, name: &str) -> io::Result<()>;
    /// Renames a file and replaces the target. Durable after `sync_folder` of the target's folder.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file if there is one. Durable after `sync_folder`.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Makes creations, renames and removals in a folder durable.
    fn sync_folder(&self, name: &str) -> io::Result<()>;
    /// Announces a step that does not go through this trait, such as a memory mapping or a write by LMDB. The caller skips
    /// the step on an error. Only tests return one.
    fn before(&self, _step: &'static str) -> io::Result<()> {
        Ok(())
    }
}

/// A file open for writing.
pub trait DiskFile: Send + Sync {
    /// The length in bytes.
    fn size(&self) -> io::Result<u64>;
    /// Writes all of `bytes` at `offset`. After an error a part may have been written.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Allocates `len` bytes from `offset` on, so that writing them needs no more space; the file grows with zeros. After
    /// an error nothing has changed.
    fn reserve(&self, offset: u64, len: u64) -> io::Result<()>;
    /// Allocates the same bytes without making the file longer. Does nothing where the file system can't do this.
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()>;
    /// Truncates the file, or extends it without allocating space.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Makes the content and the length durable.
    fn sync(&self) -> io::Result<()>;
}

/// A folder of the file system.
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
}

impl Folder {
    /// The folder at `path`, which must exist.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }
}

impl Disk for Folder {
    fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            match (entry.file_name().into_string(), entry.metadata()) {
                (Ok(name), Ok(metadata)) => files.push((name, metadata.len())),
                (_, Err(error)) if error.kind() == io::ErrorKind::NotFound => {} // removed or renamed meanwhile
                (_, Err(error)) => return Err(error),
                (Err(_), _) => {} // not UTF-8, so no file of this store
            }
        }
        files.sort();
        Ok(files)
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(OpenOptions::new().read(true).write(true).create_new(true).open(self.path(name))?))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(OpenOptions::new().read(true).write(true).open(self.path(name))?))
    }

    fn create_folder(&self, name: &str) -> io::Result<()> {
        match std::fs::create_dir(self.path(name)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            created => created,
        }
    }

    #[expect(clippy::disallowed_methods, reason = "callers of this trait sync the folder after a rename")]
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.path(from), self.path(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match std::fs::remove_file(self.path(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    fn sync_folder(&self, name: &str) -> io::Result<()> {
        File::open(self.path(name))?.sync_all()
    }
}

impl DiskFile for File {
    fn size(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        Ok(rustix::fs::fallocate(self, FallocateFlags::empty(), offset, len)?)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        match rustix::fs::fallocate(self, FallocateFlags::KEEP_SIZE, offset, len) {
            Err(Errno::OPNOTSUPP) => Ok(()),
            allocated => Ok(allocated?),
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        File::set_len(self, len)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

/// The bytes that this process can still write to the file system of `path`.
///
/// # Errors
/// Those of the file system.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let stat = rustix::fs::statvfs(path)?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Creates a folder with its missing parents and makes them durable.
///
/// # Errors
/// Those of the file system, `Full` when it has no space.
pub fn create_folder(folder: &Path) -> Result<(), Error> {
    create_and_sync(folder).map_err(|error| Error::io("create", folder.display(), error))
}

fn create_and_sync(folder: &Path) -> io::Result<()> {
    let existed = folder.is_dir();
    let mut unsynced = Vec::new();
    for parent in folder.ancestors().skip(1) {
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        unsynced.push(parent);
        if parent.is_dir() {
            break;
        }
    }
    std::fs::create_dir_all(folder)?;
    for parent in unsynced {
        // The parent of an existing folder too: a crash may have happened before it was synced.
        match File::open(parent).and_then(|parent| parent.sync_all()) {
            // A process that may not read the parent did not create the folder.
            Err(error) if existed && error.kind() == io::ErrorKind::PermissionDenied => {}
            synced => synced?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_created_with_their_parents_and_may_exist() {
        let place = tempfile::tempdir().unwrap();
        let folder = place.path().join("a/b/c");
        create_folder(&folder).unwrap();
        create_folder(&folder).unwrap();
        assert!(folder.is_dir());
        std::fs::write(place.path().join("file"), "").unwrap();
        assert!(create_folder(&place.path().join("file/below")).is_err());
    }

    #[test]
    fn a_folder_creates_lists_renames_and_removes_files() {
        let place = tempfile::tempdir().unwrap();
        let disk = Folder::new(place.path());
        disk.create_folder("below").unwrap();
        disk.create_folder("below").unwrap();
        assert_eq!(disk.open("a").err().unwrap().kind(), io::ErrorKind::NotFound);
        let file = disk.open_or_create("a").unwrap();
        assert_eq!(disk.create("a").err().unwrap().kind(), io::ErrorKind::AlreadyExists);
        file.write_at(b"content", 3).unwrap();
        file.sync().unwrap();
        file.reserve(10, 20).unwrap();
        file.allocate(30, 8_192).unwrap();
        assert_eq!(file.size().unwrap(), 30);
        file.set_len(10).unwrap();
        disk.rename("a", "below/b").unwrap();
        disk.sync_folder("below").unwrap();
        disk.sync_folder("").unwrap();
        assert_eq!(disk.read("below/b").unwrap(), b"\0\0\0content");
        disk.remove("below/b").unwrap();
        disk.remove("below/b").unwrap();
        let names: Vec<String> = disk.list().unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["below"]);
    }
}
