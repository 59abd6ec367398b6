//! Backup: the pages of the database as one snapshot shows them, by SQLite's online backup.

use std::{fs::File, path::Path, time::Duration};

use rusqlite::{Connection, OpenFlags, backup::Backup};

use super::{Shared, schema};
use crate::{Error, backup};

/// The copy's name.
const FILE_NAME: &str = "archive.db";
/// Pages that are copied at once.
const STEP_PAGES: i32 = 1_024;
/// A breath for others who want the disk.
const PAUSE: Duration = Duration::from_millis(1);
/// What the connection that reads keeps in memory: it reads each page once.
const CACHE_BYTES: usize = 1 << 20;

/// Writes a copy of everything that was committed into a folder.
pub(super) fn write(shared: &Shared, folder: &Path) -> Result<(), Error> {
    backup::require_empty(folder)?;
    let file = folder.join(FILE_NAME);
    copy(&shared.file, &file).map_err(|error| shared.failed("back up", error))?;
    // Only now: nobody has the copy open, and so no lock on it is lost by closing it.
    let synced = File::open(&file).and_then(|file| file.sync_all());
    synced.map_err(|error| Error::io("sync", &file.display().to_string(), error))?;
    backup::sync(folder)
}

/// One transaction reads it all, so that writers don't make the copy begin anew. The write-ahead log can't be emptied meanwhile
/// and grows by what is written.
fn copy(from: &Path, to: &Path) -> rusqlite::Result<()> {
    let mut source = schema::connect_to_read(from, CACHE_BYTES)?;
    let snapshot = source.transaction()?;
    schema::totals(&snapshot)?; // a transaction sees what is there at its first look
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
    let mut target = Connection::open_with_flags(to, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    // Nobody reads the copy before it is whole and synced as a file.
    target.pragma_update(None, "journal_mode", "OFF")?;
    target.pragma_update(None, "synchronous", "OFF")?;
    Backup::new(&snapshot, &mut target)?.run_to_completion(STEP_PAGES, PAUSE, None)?;
    target.close().map_err(|(_, error)| error)
}
