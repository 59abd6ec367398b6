//! The folder of a spool: its lock and its generations.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
};

use restante_disk::create_folder;

use crate::{Error, backup, log::LOG_HEADER_BYTES};

const LOCK_NAME: &str = "LOCK";
/// The folder for messages that the engine refuses as invalid.
pub(super) const REFUSED_NAME: &str = "refused";
/// Digits of a generation's name.
const NAME_DIGITS: usize = 8;
/// The suffix of a generation that could not be read in full.
const DAMAGED_SUFFIX: &str = ".damaged";

/// The folder of a generation.
pub(super) fn generation(spool: &Path, number: u64) -> PathBuf {
    spool.join(format!("{number:0NAME_DIGITS$}"))
}

/// Whether a generation's logs have anything after their headers; true when that can't be determined.
pub(super) fn has_records(spool: &Path, number: u64) -> bool {
    let Ok(entries) = std::fs::read_dir(generation(spool, number)) else { return true };
    for entry in entries {
        let Ok(path) = entry.map(|entry| entry.path()) else { return true };
        let is_log = path.extension().is_some_and(|extension| extension == "log");
        if !is_log {
            continue;
        }
        let Ok(bytes) = std::fs::read(&path) else { return true }; // a generation is bounded
        if bytes.iter().skip(LOG_HEADER_BYTES as usize).any(|byte| *byte != 0) {
            return true;
        }
    }
    false
}

/// Creates the folder of a spool, if necessary, and locks it against all other processes for as long as the file is open.
pub(super) fn create_and_lock(spool: &Path) -> Result<File, Error> {
    create_folder(spool)?;
    let what = format!("spool {}", spool.display());
    restante_disk::hold(&spool.join(LOCK_NAME), &what, "stop it, or name another folder")
}

/// The generations of a spool, oldest first.
pub(super) fn generations(spool: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(spool)? {
        let name = entry?.file_name();
        let name = name.to_str().unwrap_or_default();
        let is_generation = name.len() >= NAME_DIGITS && name.bytes().all(|byte| byte.is_ascii_digit());
        if is_generation {
            numbers.extend(name.parse::<u64>());
        }
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Whether anything waits in the spool in that folder, or may wait.
pub(crate) fn has_content(spool: &Path) -> bool {
    generations(spool).is_ok_and(|numbers| !numbers.is_empty())
}

/// Removes a generation. It may reappear after a power cut, and is then drained once more.
pub(super) fn remove(spool: &Path, number: u64) -> io::Result<()> {
    match std::fs::remove_dir_all(generation(spool, number)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The folders of a spool that are no longer generations, and whose messages are kept for the operator.
fn kept(spool: &Path) -> io::Result<Vec<PathBuf>> {
    let mut kept = Vec::new();
    for entry in std::fs::read_dir(spool)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_str().unwrap_or_default();
        if entry.file_type()?.is_dir() && (name == REFUSED_NAME || name.ends_with(DAMAGED_SUFFIX)) {
            kept.push(entry.path());
        }
    }
    Ok(kept)
}

/// Copies a generation that is not written to. One that is removed meanwhile was stored by the engine, and is left out.
pub(super) fn copy_generation(spool: &Path, number: u64, to: &Path) -> io::Result<()> {
    let to = generation(to, number);
    std::fs::create_dir(&to)?;
    match backup::copy_files(&generation(spool, number), &to, is_content) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => std::fs::remove_dir_all(&to),
        copied => copied,
    }
}

/// Copies the rest of a spool's folder, without its generations. A message may be added to it meanwhile; a partial message at the
/// end is removed when the copy is opened.
pub(super) fn copy_rest(spool: &Path, to: &Path) -> io::Result<()> {
    for folder in kept(spool)? {
        let Some(name) = folder.file_name() else { continue };
        let to = to.join(name);
        std::fs::create_dir(&to)?;
        backup::copy_files_as_they_are(&folder, &to, is_content)?;
    }
    backup::copy_files_as_they_are(spool, to, is_content)
}

/// Whether a file is more than the lock of the process that uses it.
fn is_content(name: &str) -> bool {
    name != LOCK_NAME
}

/// Takes a generation out of the spool and leaves its files for the operator; returns their path.
#[expect(clippy::disallowed_methods, reason = "the folder is synced here; undone, the rename is done again")]
pub(super) fn set_aside(spool: &Path, number: u64) -> io::Result<PathBuf> {
    let from = generation(spool, number);
    let to = PathBuf::from(format!("{}{DAMAGED_SUFFIX}", from.display()));
    std::fs::rename(from, &to)?;
    File::open(spool)?.sync_all()?;
    Ok(to)
}

#[cfg(test)]
mod tests {
    use restante_core::ErrorKind;

    use super::*;

    #[test]
    fn generations_are_found_in_the_order_of_their_numbers() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!has_content(folder.path()));
        for name in ["00000010", "00000009", "123456789", "refused", "00000001.damaged", "7", "LOCK"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        assert_eq!(generations(folder.path()).unwrap(), [9, 10, 123_456_789]);
        assert!(has_content(folder.path()));
        remove(folder.path(), 9).unwrap();
        remove(folder.path(), 9).unwrap();
        let aside = set_aside(folder.path(), 10).unwrap();
        assert!(aside.ends_with("00000010.damaged") && aside.is_dir());
        assert_eq!(generations(folder.path()).unwrap(), [123_456_789]);
    }

    #[test]
    fn one_process_uses_a_spool_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let lock = create_and_lock(folder.path()).unwrap();
        let error = create_and_lock(folder.path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        assert!(error.to_string().contains(&format!("in use by process {}", std::process::id())), "{error}");
        drop(lock);
        create_and_lock(folder.path()).unwrap();
    }
}
