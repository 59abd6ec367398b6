//! One store at a time has a folder.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{Read, Write},
    path::Path,
};

use restante_core::ErrorKind;

use crate::Error;

/// Creates the folder, durably, and keeps all others out of it as long as the answer lives.
pub(crate) fn hold(folder: &Path) -> Result<File, Error> {
    let name = folder.display().to_string();
    create(folder).map_err(|error| Error::io("create", &name, error))?;
    let path = folder.join("lock");
    let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    let mut lock = opened.map_err(|error| Error::io("open the lock of", &name, error))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::Error(error)) => return Err(Error::io("lock", &name, error)),
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            let is_told = lock.read_to_string(&mut holder).is_ok_and(|len| len > 0);
            let holder = if is_told { holder.trim() } else { "another process" };
            let what = format!("{name} is in use by {holder}: stop it first, or ask it");
            return Err(Error::new(ErrorKind::Conflict, what));
        }
    }
    let note = format!("process {}\n", std::process::id());
    // It only helps who reads it; a full disk is no reason not to open.
    let _ = lock.set_len(0).and_then(|()| lock.write_all(note.as_bytes()));
    Ok(lock)
}

fn create(folder: &Path) -> std::io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let was_there = folder.ancestors().find(|above| above.is_dir()).map(Path::to_owned);
    std::fs::create_dir_all(folder)?;
    // Each new folder is an entry of the one above it.
    for above in folder.ancestors().skip(1) {
        let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
        File::open(above)?.sync_all()?;
        if was_there.as_deref().is_some_and(|there| there.ancestors().any(|there| there == above)) {
            break;
        }
    }
    Ok(())
}
