//! Folders of files for backups: walking, hashing, copying, and putting in place so that it survives a power cut.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read, Write},
    os::{
        fd::OwnedFd,
        unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
};

use restante_core::Error;
use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags, openat, openat2, statvfs, statx},
    io::Errno,
};
use sha2::{Digest, Sha256};

/// The bytes per read.
const BUFFER_BYTES: usize = 1 << 20;

/// Creates a folder that only its owner can read: it holds the server's data.
pub(super) fn create_private(folder: &Path) -> Result<(), Error> {
    let created = DirBuilder::new().mode(0o700).create(folder);
    created.map_err(|error| Error::io("create", folder.display(), error))
}

/// Makes the creation, renaming and removal of files in a folder durable.
pub(super) fn sync(folder: &Path) -> Result<(), Error> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|error| Error::io("sync", folder.display(), error))
}

/// The folder that contains a path.
pub(super) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Renames within a disk, and returns when the new name is durable.
#[expect(clippy::disallowed_methods, reason = "both folders are synced after it")]
pub(super) fn rename(from: &Path, to: &Path) -> Result<(), Error> {
    let failed = |error| Error::io("rename", from.display(), error);
    fs::rename(from, to).map_err(failed)?;
    sync(parent(to))?;
    sync(parent(from))
}

/// Removes a file, or a folder with its contents, if it exists.
pub(super) fn remove_all(path: &Path) -> Result<(), Error> {
    let is_file = fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.is_dir());
    let removed = if is_file { fs::remove_file(path) } else { fs::remove_dir_all(path) };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io("remove", path.display(), error))
        }
        _ => Ok(()),
    }
}

/// The names in a folder; none when the folder does not exist.
pub(super) fn names(folder: &Path) -> Result<Vec<String>, Error> {
    let failed = |error| Error::io("read", folder.display(), error);
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        names.push(entry.map_err(failed)?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// Whether a file, by its path, is a lock of an engine. A lock means nothing without its process.
pub(super) fn is_lock(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path).to_ascii_lowercase();
    name == "lock" || name == "lock.mdb" || name.ends_with(".lock")
}

/// A folder and its contents.
#[derive(Debug, Default)]
pub(super) struct Tree {
    /// Each file in it, by its path with slashes, and its length.
    pub(super) files: Vec<(String, u64)>,
    /// Each folder in it, outer folders before inner ones.
    pub(super) folders: Vec<PathBuf>,
}

impl Tree {
    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().map(|(_, bytes)| bytes).sum()
    }
}

/// Walks through a folder. Anything that is neither a file nor a folder is an error.
pub(super) fn walk(folder: &Path) -> Result<Tree, Error> {
    let mut tree = Tree::default();
    let mut waiting = vec![(folder.to_owned(), String::new())];
    while let Some((inner, prefix)) = waiting.pop() {
        let failed = |error| Error::io("read", inner.display(), error);
        for entry in fs::read_dir(&inner).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let metadata = entry.metadata().map_err(failed)?;
            let Ok(name) = entry.file_name().into_string() else {
                return Err(Error::invalid(format!("{} has a name that is no UTF-8", inner.display())));
            };
            if metadata.is_dir() {
                waiting.push((entry.path(), format!("{prefix}{name}/")));
            } else if metadata.is_file() {
                tree.files.push((format!("{prefix}{name}"), metadata.len()));
            } else {
                let what = format!("{} is neither a file nor a folder", entry.path().display());
                return Err(Error::invalid(what));
            }
        }
        if inner != folder {
            tree.folders.push(inner);
        }
    }
    tree.files.sort();
    Ok(tree)
}

/// The approximate bytes at and below a path, which may change meanwhile.
pub(super) fn size_of(path: &Path) -> u64 {
    let Ok(metadata) = fs::symlink_metadata(path) else { return 0 };
    if !metadata.is_dir() {
        return metadata.len();
    }
    let Ok(entries) = fs::read_dir(path) else { return 0 };
    entries.flatten().map(|entry| size_of(&entry.path())).sum()
}

/// The space on a disk.
#[derive(Clone, Copy, Debug)]
pub(super) struct DiskSpace {
    /// Bytes that are free for users other than root.
    pub(super) free_bytes: u64,
    pub(super) all_bytes: u64,
}

/// The space on the disk of a path.
pub(super) fn space(path: &Path) -> Result<DiskSpace, Error> {
    let disk = statvfs(path)
        .map_err(|error| Error::io("ask for the space on the disk of", path.display(), error.into()))?;
    let bytes = |blocks: u64| blocks.saturating_mul(disk.f_frsize);
    Ok(DiskSpace { free_bytes: bytes(disk.f_bavail), all_bytes: bytes(disk.f_blocks) })
}

/// Bytes on the disk of a path that are free for users other than root.
pub(super) fn free_bytes(path: &Path) -> Result<u64, Error> {
    space(path).map(|space| space.free_bytes)
}

/// Whether two paths are on one disk, wherever it is mounted. A path that does not exist is on none.
pub(super) fn is_same_disk(one: &Path, other: &Path) -> bool {
    let disk_of = |path| mount_of(path).map(|mount| mount.disk);
    disk_of(one).is_some_and(|disk| disk_of(other) == Some(disk))
}

/// The mount that contains a path. Hard links and renames only work within one mount.
pub(super) fn mount_of(path: &Path) -> Option<Mount> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
    let found = statx(CWD, path, AtFlags::empty(), wanted).ok()?;
    // Before Linux 5.8 there is no number: then the disk alone identifies the mount.
    let has_number = found.stx_mask & StatxFlags::MNT_ID.bits() != 0;
    let number = if has_number { found.stx_mnt_id } else { 0 };
    Some(Mount { number, disk: (found.stx_dev_major, found.stx_dev_minor) })
}

/// A disk at a mount point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    number: u64,
    disk: (u32, u32),
}

impl Mount {
    #[cfg(test)]
    pub(super) fn of_test(number: u64, disk: u32) -> Self {
        Self { number, disk: (disk, 0) }
    }

    /// Whether both are the same disk, possibly mounted at different points.
    pub(super) fn is_same_disk(&self, other: &Self) -> bool {
        self.disk == other.disk
    }
}

/// Opens a file for reading, unless it is a symbolic link.
fn open_file(path: &Path) -> io::Result<File> {
    if !fs::symlink_metadata(path)?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    File::open(path)
}

/// A folder, and the files below it: symbolic links below it are not followed, and none leads out of it.
#[derive(Debug)]
pub(super) struct Beneath {
    folder: OwnedFd,
    path: PathBuf,
}

impl Beneath {
    /// The path of the folder itself may contain symbolic links.
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = openat(CWD, path, flags, Mode::empty());
        let folder = folder.map_err(|error| Error::io("open", path.display(), error.into()))?;
        Ok(Self { folder, path: path.to_owned() })
    }

    /// The path of a file, for display.
    pub(super) fn path(&self, file: &str) -> PathBuf {
        self.path.join(file)
    }

    /// Opens a file for reading. Pipes, devices and folders are refused without waiting for them.
    pub(super) fn file(&self, path: &str) -> io::Result<File> {
        let opened = self.open_at(path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty());
        let file = match opened {
            Err(Errno::LOOP | Errno::XDEV | Errno::NOTDIR) => {
                return Err(io::Error::other("it is a link, or below a link"));
            }
            opened => File::from(opened?),
        };
        if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is no file")) }
    }

    /// Creates a file that must not exist. No link leads to its folder now, and only we can write to the folders above.
    pub(super) fn create(&self, path: &str, mode: u32) -> io::Result<File> {
        if let Some((above, _)) = path.rsplit_once('/') {
            self.open_at(above, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
        }
        // With the C library's call, which the power cut tests record.
        OpenOptions::new().write(true).create_new(true).mode(mode).open(self.path.join(path))
    }

    fn open_at(&self, path: &str, flags: OFlags, mode: Mode) -> rustix::io::Result<OwnedFd> {
        let (flags, how) = (flags | OFlags::CLOEXEC, ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS);
        match openat2(&self.folder, path, flags, mode, how) {
            // Before Linux 5.6, and in containers that forbid unknown calls.
            Err(Errno::NOSYS | Errno::PERM) => self.open_step_by_step(path, flags, mode),
            opened => opened,
        }
    }

    /// The same, one folder after the other. The path contains no `..`.
    fn open_step_by_step(&self, path: &str, flags: OFlags, mode: Mode) -> rustix::io::Result<OwnedFd> {
        let mut names = path.split('/');
        let name = names.next_back().unwrap_or_default();
        let mut folder = None;
        for above in names {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            folder = Some(openat(folder.as_ref().unwrap_or(&self.folder), above, flags, Mode::empty())?);
        }
        openat(folder.as_ref().unwrap_or(&self.folder), name, flags | OFlags::NOFOLLOW, mode)
    }
}

/// Reads a whole file, and returns its length and its SHA-256.
pub(super) fn digest(
    path: &Path,
    each: impl FnMut(u64) -> Result<(), Error>,
) -> Result<(u64, String), Error> {
    let failed = |error| Error::io("read", path.display(), error);
    let file = open_file(path).map_err(failed)?;
    pump(file, &mut io::sink(), each, failed)
}

/// The same for a file that should have `bytes` bytes: of a longer one, one more byte is read.
pub(super) fn digest_of(
    file: &File,
    path: &Path,
    bytes: u64,
    each: impl FnMut(u64) -> Result<(), Error>,
) -> Result<(u64, String), Error> {
    pump(file.take(bytes.saturating_add(1)), &mut io::sink(), each, |error| {
        Error::io("read", path.display(), error)
    })
}

/// Syncs a file that another program has written.
pub(super) fn sync_file(path: &Path) -> Result<(), Error> {
    let synced = open_file(path).and_then(|file| file.sync_all());
    synced.map_err(|error| Error::io("sync", path.display(), error))
}

/// Copies a file that should have `bytes` bytes (of a longer one, one more byte) into another file, syncs it, and returns
/// its length and its SHA-256.
pub(super) fn copy_into(
    from: &File,
    bytes: u64,
    to: &mut File,
    path: &Path,
    each: impl FnMut(u64) -> Result<(), Error>,
) -> Result<(u64, String), Error> {
    let failed = |error| Error::io("write", path.display(), error);
    let copied = pump(from.take(bytes.saturating_add(1)), to, each, failed)?;
    let modified = from.metadata().and_then(|metadata| metadata.modified()).map_err(failed)?;
    to.set_modified(modified).and_then(|()| to.sync_all()).map_err(failed)?;
    Ok(copied)
}

/// Copies a file to a path that must not exist, syncs it, and returns its length and its SHA-256.
pub(super) fn copy(
    from: &Path,
    to: &Path,
    each: impl FnMut(u64) -> Result<(), Error>,
) -> Result<(u64, String), Error> {
    let read_failed = |error| Error::io("read", from.display(), error);
    let write_failed = |error| Error::io("write", to.display(), error);
    let source = open_file(from).map_err(read_failed)?;
    let source_metadata = source.metadata().map_err(read_failed)?;
    // A key that only its owner may read keeps that mode.
    let mode = source_metadata.mode() & 0o777;
    let target = OpenOptions::new().write(true).create_new(true).mode(mode).open(to);
    let mut target = target.map_err(write_failed)?;
    let copied = pump(source, &mut target, each, write_failed)?;
    let modified = source_metadata.modified().map_err(read_failed)?;
    target.set_modified(modified).and_then(|()| target.sync_all()).map_err(write_failed)?;
    Ok(copied)
}

/// Forwards all bytes, and calls `each` with the number of bytes of each step; an error from it stops.
fn pump(
    mut from: impl Read,
    to: &mut impl Write,
    mut each: impl FnMut(u64) -> Result<(), Error>,
    failed: impl Fn(io::Error) -> Error,
) -> Result<(u64, String), Error> {
    let (mut hash, mut len) = (Sha256::new(), 0);
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let read = match from.read(&mut buffer) {
            Ok(0) => return Ok((len, hex::encode(hash.finalize()))),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(failed(error)),
        };
        let bytes = buffer.get(..read).unwrap_or_default();
        hash.update(bytes);
        to.write_all(bytes).map_err(&failed)?;
        len += read as u64;
        each(read as u64)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stopped;

    #[test]
    fn a_file_is_copied_with_its_digest_and_its_mode() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&from).unwrap();
        file.write_all(b"abc").unwrap();
        let mut seen = 0;
        let each = |bytes| {
            seen += bytes;
            Ok(())
        };
        let copied = copy(&from, &to, each).unwrap();
        // FIPS 180-2, appendix B.1
        let sum = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(copied, (3, sum.to_owned()));
        assert_eq!((digest(&to, |_| Ok(())).unwrap(), seen), (copied, 3));
        assert_eq!(fs::metadata(&to).unwrap().mode() & 0o777, 0o600);
        assert!(copy(&from, &to, |_| Ok(())).is_err(), "nothing is written over");
        let ended = digest(&to, |_| Err(stopped())).unwrap_err();
        assert_eq!(ended.to_string(), stopped().to_string(), "an error of the callback ends it");
    }

    /// If the kernel does not have `openat2`, the path is opened step by step.
    #[test]
    fn no_link_below_a_folder_is_followed() {
        let guard = tempfile::tempdir().unwrap();
        let at = |name: &str| guard.path().join(name);
        fs::create_dir_all(at("folder/a/b")).unwrap();
        fs::create_dir(at("outside")).unwrap();
        fs::write(at("outside/x"), "secret").unwrap();
        fs::write(at("folder/a/b/x"), "own").unwrap();
        std::os::unix::fs::symlink(at("outside"), at("folder/a/link")).unwrap();
        std::os::unix::fs::symlink("b/x", at("folder/a/x")).unwrap();
        // The path of the folder itself may contain a link.
        std::os::unix::fs::symlink(at("folder"), at("way")).unwrap();
        let folder = Beneath::open(&at("way")).unwrap();
        let step_by_step = |path: &str| folder.open_step_by_step(path, OFlags::RDONLY, Mode::empty()).is_ok();
        assert!(folder.file("a/b/x").is_ok() && step_by_step("a/b/x"));
        for path in ["a/link/x", "a/x", "missing", "a/missing/x"] {
            assert!(folder.file(path).is_err() && !step_by_step(path), "{path}");
        }
        assert!(folder.file("../outside/x").is_err() && folder.file("/proc/version").is_err());
        assert!(folder.file("a").unwrap_err().to_string().contains("no file"));
        folder.create("a/b/new", 0o600).unwrap();
        assert_eq!(folder.create("a/b/new", 0o600).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert!(folder.create("a/link/new", 0o600).is_err() && !at("outside/new").exists());
    }

    #[test]
    fn locks_are_known_by_their_names() {
        for name in ["LOCK", "lock", "index/lock.mdb", "archive.db.lock"] {
            assert!(is_lock(name), "{name}");
        }
        for name in ["lock/data.mdb", "clock", "block.log"] {
            assert!(!is_lock(name), "{name}");
        }
    }

    #[test]
    fn a_folder_is_walked_and_links_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("a/b")).unwrap();
        fs::write(folder.path().join("a/b/x"), "12345").unwrap();
        fs::write(folder.path().join("y"), "1").unwrap();
        let tree = walk(folder.path()).unwrap();
        assert_eq!(tree.files, [("a/b/x".to_owned(), 5), ("y".to_owned(), 1)]);
        assert_eq!((tree.folders.len(), tree.bytes(), size_of(folder.path())), (2, 6, 6));
        std::os::unix::fs::symlink("y", folder.path().join("link")).unwrap();
        assert!(
            walk(folder.path()).unwrap_err().to_string().ends_with("link is neither a file nor a folder")
        );
        assert!(digest(&folder.path().join("link"), |_| Ok(())).is_err());
    }
}
