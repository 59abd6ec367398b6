//! Who may use a folder: one process at a time.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{Read, Write},
    path::Path,
};

use restante_core::ErrorKind;

use crate::Error;

/// Creates a folder and makes it durable in the folders above it, as far up as one was missing.
pub(super) fn create_folder(folder: &Path) -> Result<(), Error> {
    create_synced(folder).map_err(|error| Error::io("create", &folder.display().to_string(), error))
}

fn create_synced(folder: &Path) -> std::io::Result<()> {
    let was_there = folder.is_dir();
    let mut unsynced = Vec::new();
    for above in folder.ancestors().skip(1) {
        let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
        unsynced.push(above);
        if above.is_dir() {
            break;
        }
    }
    std::fs::create_dir_all(folder)?;
    for above in unsynced {
        // The parent of a folder that is there too: a crash may have come before it was synced.
        match File::open(above).and_then(|above| above.sync_all()) {
            // Who may not look into it did not create the folder.
            Err(error) if was_there && error.kind() == std::io::ErrorKind::PermissionDenied => {}
            synced => synced?,
        }
    }
    Ok(())
}

/// Keeps all other processes out of the store for as long as the lock file is open; who holds it stands in the file.
pub(super) fn hold(file: &Path) -> Result<File, Error> {
    let name = file.display().to_string();
    let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(file);
    let mut lock = opened.map_err(|error| Error::io("open the lock", &name, error))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::Error(error)) => return Err(Error::io("lock", &name, error)),
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            let is_told = lock.read_to_string(&mut holder).is_ok_and(|len| len > 0);
            let holder = if is_told { holder.trim() } else { "another process" };
            let what = format!("the blob store is in use by {holder} (see {name}): stop it first");
            return Err(Error::new(ErrorKind::Conflict, what));
        }
    }
    let note = format!("process {}\n", std::process::id());
    let written = lock.set_len(0).and_then(|()| lock.write_all(note.as_bytes()));
    written.map_err(|error| Error::io("write the lock", &name, error))?;
    Ok(lock)
}
