//! Copies of files for a backup: a file that never changes gets a second name; of the others, the bytes up to a length are
//! copied.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read},
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
};

use crate::Error;

/// The folder of a backup with the messages that wait in the spool of an archive.
pub const SPOOL: &str = "spool";
/// The folder of a backup with the second archive of a tandem.
pub const SECOND: &str = "second";
/// The folder of a backup with the messages that wait for the second archive of a tandem.
pub const SECOND_SPOOL: &str = "second-spool";

/// Bytes that are read and written at once.
const BUFFER_BYTES: usize = 256 << 10;

/// How much of a file belongs to a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// All of it, and it never changes.
    Whole,
    /// This many bytes; more may have been appended since.
    Bytes(u64),
}

/// Fails unless the folder exists and contains only the parts that were copied before the engine's.
pub(crate) fn require_empty(folder: &Path) -> Result<(), Error> {
    let failed = |error| Error::io("read", folder.display(), error);
    for entry in fs::read_dir(folder).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let is_part = [SPOOL, SECOND, SECOND_SPOOL].iter().any(|part| name == *part);
        if !is_part {
            return Err(taken(folder));
        }
    }
    Ok(())
}

/// Creates a folder of a copy.
pub(crate) fn create(folder: &Path) -> Result<(), Error> {
    fs::create_dir(folder).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => taken(folder),
        _ => Error::io("create", folder.display(), error),
    })
}

fn taken(folder: &Path) -> Error {
    let what = format!("{} has something in it: a backup needs a folder of its own", folder.display());
    Error::conflict(what)
}

/// The error of a copy that was removed while it was being written.
#[cfg(feature = "sqlite")]
pub(crate) fn removed(file: &Path) -> Error {
    let what = format!("the copy was removed while it was made: {}", file.display());
    Error::unavailable(what)
}

/// Removes a folder in which nothing was written.
pub(crate) fn remove_empty(folder: &Path) -> Result<(), Error> {
    fs::remove_dir(folder).map_err(|error| Error::io("remove", folder.display(), error))
}

/// Makes the files and folders created in a folder durable.
pub(crate) fn sync(folder: &Path) -> Result<(), Error> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|error| Error::io("sync", folder.display(), error))
}

/// Copies a file, synced. A file that never changes gets a second name (a hard link) instead where the disk supports it.
pub(crate) fn copy(from: &Path, to: &Path, extent: Extent) -> io::Result<()> {
    match extent {
        Extent::Whole => match fs::hard_link(from, to) {
            Ok(()) => Ok(()),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::AlreadyExists) => {
                Err(error)
            }
            // Another disk, or one without links.
            Err(_) => copy_bytes(from, to, None),
        },
        Extent::Bytes(len) => copy_bytes(from, to, Some(len)),
    }
}

/// Writes a new file, synced.
pub(crate) fn create_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all_at(bytes, 0)?;
    file.sync_all()
}

/// Copies the files of a folder that no longer change, without its subfolders.
pub(crate) fn copy_files(from: &Path, to: &Path, is_wanted: impl Fn(&str) -> bool) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let name = entry.file_name();
        let is_file = entry.file_type()?.is_file();
        if is_file && is_wanted(&name.to_string_lossy()) {
            copy(&entry.path(), &to.join(&name), Extent::Whole)?;
        }
    }
    File::open(to)?.sync_all()
}

/// Copies what a folder's files contain now, even while they are being written to.
pub(crate) fn copy_files_as_they_are(
    from: &Path,
    to: &Path,
    is_wanted: impl Fn(&str) -> bool,
) -> io::Result<()> {
    for (name, path) in files(from)? {
        if is_wanted(&name) {
            copy_bytes(&path, &to.join(&name), None)?;
        }
    }
    File::open(to)?.sync_all()
}

fn files(folder: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            files.push((entry.file_name().to_string_lossy().into_owned(), entry.path()));
        }
    }
    Ok(files)
}

/// Copies the first `len` bytes of a file, which has at least that many, or all of it.
fn copy_bytes(from: &Path, to: &Path, len: Option<u64>) -> io::Result<()> {
    let from = File::open(from)?;
    let to = OpenOptions::new().write(true).create_new(true).open(to)?;
    pump(from, &to, len)
}

fn pump(from: impl Read, to: &File, len: Option<u64>) -> io::Result<()> {
    let mut from = from.take(len.unwrap_or(u64::MAX));
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut at = 0;
    loop {
        let read = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        to.write_all_at(buffer.get(..read).unwrap_or_default(), at)?;
        at += read as u64;
        // Removing the copy cancels it.
        if to.metadata()?.nlink() == 0 {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the copy was removed while it was made"));
        }
    }
    if len.is_some_and(|len| at < len) {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file is shorter than it was"));
    }
    to.sync_all()
}

#[cfg(test)]
mod tests {
    use restante_core::ErrorKind;

    use super::*;

    #[test]
    fn what_never_changes_is_linked_and_the_rest_is_copied_to_its_length() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let bytes: Vec<u8> = (0..BUFFER_BYTES + 1_000).map(|n| n as u8).collect();
        fs::write(at("file"), &bytes).unwrap();
        copy(&at("file"), &at("link"), Extent::Whole).unwrap();
        assert_eq!(fs::metadata(at("link")).unwrap().ino(), fs::metadata(at("file")).unwrap().ino());

        for len in [0, 1, BUFFER_BYTES, BUFFER_BYTES + 1_000] {
            let to = at(&format!("copy {len}"));
            copy(&at("file"), &to, Extent::Bytes(len as u64)).unwrap();
            assert_eq!(fs::read(&to).unwrap(), bytes[..len]);
        }
        let short = copy(&at("file"), &at("longer"), Extent::Bytes(bytes.len() as u64 + 1)).unwrap_err();
        assert_eq!(short.kind(), io::ErrorKind::UnexpectedEof);
    }

    /// Removes the copy while the second piece is read.
    struct Remover<'a> {
        copy: &'a Path,
        reads: u32,
    }

    impl Read for Remover<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.reads += 1;
            if self.reads == 2 {
                fs::remove_file(self.copy).unwrap();
            }
            into.fill(1);
            Ok(into.len())
        }
    }

    #[test]
    fn a_copy_that_is_removed_ends_at_its_next_piece() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("copy");
        let mut from = Remover { copy: &path, reads: 0 };
        let error = pump(&mut from, &File::create(&path).unwrap(), None).unwrap_err();
        assert_eq!((error.kind(), from.reads), (io::ErrorKind::NotFound, 2));
    }

    #[test]
    fn nothing_is_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("file"), "new").unwrap();
        fs::write(at("there"), "old").unwrap();
        for extent in [Extent::Whole, Extent::Bytes(1)] {
            let error = copy(&at("file"), &at("there"), extent).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
            let missing = copy(&at("missing"), &at("new"), extent).unwrap_err();
            assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        }
        assert_eq!(fs::read(at("there")).unwrap(), b"old");
    }

    #[test]
    fn files_are_chosen_by_name_and_folders_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let (from, linked, copied) =
            (folder.path().join("from"), folder.path().join("linked"), folder.path().join("copied"));
        for folder in [&from, &linked, &copied, &from.join("inner")] {
            fs::create_dir(folder).unwrap();
        }
        fs::write(from.join("a.log"), "a").unwrap();
        fs::write(from.join("LOCK"), "b").unwrap();
        copy_files(&from, &linked, |name| name != "LOCK").unwrap();
        copy_files_as_they_are(&from, &copied, |name| name != "LOCK").unwrap();
        for to in [linked, copied] {
            let names: Vec<String> = files(&to).unwrap().into_iter().map(|(name, _)| name).collect();
            assert_eq!(names, ["a.log"]);
            assert_eq!(require_empty(&to).unwrap_err().kind(), ErrorKind::Conflict);
        }
        assert_eq!(require_empty(&folder.path().join("missing")).unwrap_err().kind(), ErrorKind::NotFound);
        require_empty(&from.join("inner")).unwrap();
    }
}
