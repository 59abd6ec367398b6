//! Backup: the pages of the database in one snapshot, by SQLite's online backup.

use std::{fs::File, ops::ControlFlow, path::Path, time::Duration};

use rusqlite::{
    Connection, OpenFlags,
    backup::{Backup, StepResult},
};

use super::{Shared, schema};
use crate::{Error, backup};

/// The file name of the copy.
const FILE_NAME: &str = "archive.db";
/// Pages that are copied at once.
const STEP_PAGES: i32 = 1_024;
/// A pause in which others can use the disk.
const PAUSE: Duration = Duration::from_millis(1);
/// The page cache of the reading connection, which reads each page once.
const CACHE_BYTES: usize = 1 << 20;

/// Copies everything that was committed into a folder.
pub(super) fn write(shared: &Shared, folder: &Path) -> Result<(), Error> {
    backup::require_empty(folder)?;
    let file = folder.join(FILE_NAME);
    let removed =
        copy(&shared.file, &file, || file.exists()).map_err(|error| shared.failed("back up", error))?;
    if removed.is_break() {
        return Err(backup::removed(&file));
    }
    // Only now: the copy is not open, so that closing it loses no lock on it.
    let synced = File::open(&file).and_then(|file| file.sync_all());
    synced.map_err(|error| Error::io("sync", file.display(), error))?;
    backup::sync(folder)
}

/// One transaction reads it all, so that writers don't make the copy start over. The write-ahead log can't be emptied meanwhile
/// and grows with each write. The copy stops when it is no longer wanted.
fn copy(from: &Path, to: &Path, is_wanted: impl Fn() -> bool) -> rusqlite::Result<ControlFlow<()>> {
    let mut source = schema::connect_to_read(from, CACHE_BYTES)?;
    let snapshot = source.transaction()?;
    schema::totals(&snapshot)?; // a transaction sees the state at its first read
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
    let mut target = Connection::open_with_flags(to, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    // The copy is not read before it is complete and synced.
    target.pragma_update(None, "journal_mode", "OFF")?;
    target.pragma_update(None, "synchronous", "OFF")?;
    let backup = Backup::new(&snapshot, &mut target)?;
    while backup.step(STEP_PAGES)? != StepResult::Done {
        if !is_wanted() {
            return Ok(ControlFlow::Break(()));
        }
        std::thread::sleep(PAUSE);
    }
    drop(backup);
    target.close().map_err(|(_, error)| error)?;
    Ok(ControlFlow::Continue(()))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_copy_that_is_no_longer_wanted_ends_at_its_next_step() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from.db"), folder.path().join("to.db"));
        schema::create(&from).unwrap();
        let source = Connection::open(&from).unwrap();
        let many = format!("CREATE TABLE many (bytes); INSERT INTO many VALUES (zeroblob({}))", 20 << 20);
        source.execute_batch(&many).unwrap();
        let asked = Cell::new(0);
        let ended = copy(&from, &to, || {
            asked.set(asked.get() + 1);
            asked.get() < 2
        });
        assert_eq!((ended.unwrap(), asked.get()), (ControlFlow::Break(()), 2));
        std::fs::remove_file(&to).unwrap();
        assert_eq!(copy(&from, &to, || true).unwrap(), ControlFlow::Continue(()));
    }
}
