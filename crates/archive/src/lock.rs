//! Who may use a place on disk: one process at a time.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{Read, Write},
    path::Path,
};

use restante_core::ErrorKind;

use crate::Error;

/// Creates a folder and makes it durable in the folders above it.
pub(crate) fn create_folder(folder: &Path) -> Result<(), Error> {
    create_synced(folder).map_err(|error| Error::io("create", &folder.display().to_string(), error))
}

fn create_synced(folder: &Path) -> std::io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    std::fs::create_dir_all(folder)?;
    for above in folder.ancestors().skip(1) {
        let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
        File::open(above)?.sync_all()?;
    }
    Ok(())
}

/// Keeps all other processes out of `what` for as long as the lock file is open; who holds it stands in the file.
pub(crate) fn hold(file: &Path, what: &str, advice: &str) -> Result<File, Error> {
    let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(file);
    let mut lock = opened.map_err(|error| Error::io("open the lock of", what, error))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::Error(error)) => return Err(Error::io("lock", what, error)),
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            let is_told = lock.read_to_string(&mut holder).is_ok_and(|len| len > 0);
            let holder = if is_told { holder.trim() } else { "another process" };
            return Err(Error::new(ErrorKind::Conflict, format!("{what} is in use by {holder}: {advice}")));
        }
    }
    let note = format!("process {}\n", std::process::id());
    let written = lock.set_len(0).and_then(|()| lock.write_all(note.as_bytes()));
    written.map_err(|error| Error::io("write the lock of", what, error))?;
    Ok(lock)
}
