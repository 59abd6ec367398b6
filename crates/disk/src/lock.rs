//! Locks: one process at a time uses a folder or file.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::Read,
    os::unix::fs::FileExt,
    path::Path,
};

use restante_core::Error;

/// Takes the lock `file` and excludes all other processes from `what` until the returned file is closed. The lock file stays,
/// and contains the id of the process that holds it.
///
/// # Errors
/// `Conflict` when another process holds it, with `advice`; `Full` when the lock file does not exist and the disk has no
/// space for one. An existing lock file needs no space.
pub fn hold(file: &Path, what: &str, advice: &str) -> Result<File, Error> {
    let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(file);
    let mut lock = opened.map_err(|error| Error::io("open the lock of", what, error))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::Error(error)) => return Err(Error::io("lock", what, error)),
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            let is_known = lock.read_to_string(&mut holder).is_ok_and(|len| len > 0);
            let holder = if is_known { holder.trim() } else { "another process" };
            let message = format!("{what} is in use by {holder}: {advice}");
            return Err(Error::conflict(message));
        }
    }
    let note = format!("process {}\n", std::process::id());
    // The note only helps people, so a full disk doesn't prevent opening. It is written before the file is truncated, so that the
    // file always has its block.
    let _ = lock.write_all_at(note.as_bytes(), 0).and_then(|()| lock.set_len(note.len() as u64));
    Ok(lock)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_held_once_and_names_its_holder() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("lock");
        std::fs::write(&file, "process 123456789012 with a longer name\n").unwrap();
        let held = hold(&file, "the store", "stop it first").unwrap();
        let error = hold(&file, "the store", "stop it first").unwrap_err();
        assert_eq!(error.kind(), restante_core::ErrorKind::Conflict);
        let expected = format!("the store is in use by process {}: stop it first", std::process::id());
        assert_eq!(error.to_string(), expected);
        drop(held);
        hold(&file, "the store", "stop it first").unwrap();
    }

    /// `/dev/full` refuses every write as a full disk does.
    #[test]
    fn a_full_disk_does_not_prevent_locking() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("lock");
        std::os::unix::fs::symlink("/dev/full", &file).unwrap();
        assert!(std::fs::write(&file, "x").is_err());
        hold(&file, "the store", "stop it first").unwrap();
    }
}
