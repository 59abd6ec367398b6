//! Checkpoints: committed pages are moved from the write-ahead log into the database file, concurrently with the writer and not
//! before an append's answer.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use parking_lot::{Condvar, Mutex};
use rusqlite::Connection;
use tracing::warn;

use super::{Shared, schema};

/// Pages in the write-ahead log that make a checkpoint due: 8 MiB, about SQLite's own 1,000; fewer on a small disk, so that the
/// reserve has space for what they add to the file.
const DUE_PAGES: u64 = 1_024;
/// How long the end of a checkpoint waits, and appends with it, for queries that still read the log. Reading a page of an answer
/// rarely takes that long.
const READERS_WAIT: Duration = Duration::from_millis(20);
/// After this long without an append the log's space is released.
const QUIET: Duration = Duration::from_secs(10);
/// The page cache of the checkpointer's connection, which reads only the log.
const CACHE_BYTES: usize = 1 << 20;

/// Requests to the thread.
#[derive(Default)]
struct Request {
    is_due: bool,
    /// Something was written since the thread last checked.
    is_written: bool,
    /// The log is not known to be empty.
    is_dirty: bool,
    is_closing: bool,
}

pub(super) struct Checkpointer {
    request: Mutex<Request>,
    changed: Condvar,
    /// `None` when read-only or closed.
    connection: Mutex<Option<Connection>>,
    /// The pages that make the next checkpoint due: more when a reader kept the last one from being complete, so that a reader
    /// that runs for hours doesn't cause an attempt after every commit.
    due_pages: AtomicU64,
    due_pages_min: u64,
}

const LOOK: &str = "PRAGMA wal_checkpoint(NOOP)";
const MOVE_WHAT_IS_FREE: &str = "PRAGMA wal_checkpoint(PASSIVE)";
const MOVE_AND_RESTART: &str = "PRAGMA wal_checkpoint(RESTART)";
const MOVE_AND_TRUNCATE: &str = "PRAGMA wal_checkpoint(TRUNCATE)";

/// How a checkpoint ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The log starts over and keeps its space.
    Restart,
    /// The log is empty.
    Truncate,
}

impl Checkpointer {
    /// A checkpointer that has nothing to do.
    pub(super) fn idle() -> Self {
        Self {
            request: Mutex::default(),
            changed: Condvar::new(),
            connection: Mutex::new(None),
            due_pages: AtomicU64::new(DUE_PAGES),
            due_pages_min: DUE_PAGES,
        }
    }

    /// `reserve_bytes` is the space that can be released to complete a checkpoint.
    pub(super) fn for_file(file: &Path, reserve_bytes: u64) -> rusqlite::Result<Self> {
        let due_pages_min = (reserve_bytes / 2 / u64::from(schema::PAGE_BYTES)).min(DUE_PAGES);
        let due_pages = AtomicU64::new(due_pages_min);
        let connection = schema::connect_to_write(file, CACHE_BYTES)?;
        let request = Request { is_dirty: true, ..Request::default() }; // a killed process leaves its log
        let (connection, request) = (Mutex::new(Some(connection)), Mutex::new(request));
        Ok(Self { connection, request, due_pages, due_pages_min, ..Self::idle() })
    }

    /// Checks the length of the log after a commit, and wakes the thread when it is long enough.
    pub(super) fn measure(&self, writer: &Connection) {
        let pages = checkpoint(writer, LOOK).map_or(0, |log| log.pages - log.moved_pages);
        let is_due = pages >= self.due_pages.load(Ordering::Relaxed);
        let mut request = self.request.lock();
        let must_wake = is_due || !request.is_dirty;
        request.is_written = true;
        request.is_dirty = true;
        request.is_due |= is_due;
        if must_wake {
            self.changed.notify_one();
        }
    }

    /// Ends the thread.
    pub(super) fn stop(&self) {
        self.request.lock().is_closing = true;
        self.changed.notify_one();
    }

    /// Closes the connection.
    pub(super) fn disconnect(&self) {
        *self.connection.lock() = None;
    }

    /// Waits for something to do; `None` when there will be nothing more.
    fn next(&self) -> Option<End> {
        let mut request = self.request.lock();
        loop {
            if request.is_closing {
                return None;
            }
            if request.is_due {
                request.is_due = false;
                return Some(End::Restart);
            }
            if !request.is_dirty {
                self.changed.wait(&mut request);
                continue;
            }
            request.is_written = false;
            let is_over = self.changed.wait_for(&mut request, QUIET).timed_out();
            if is_over && !request.is_written && !request.is_due && !request.is_closing {
                request.is_dirty = false;
                return Some(End::Truncate);
            }
        }
    }
}

/// Starts the checkpointer's thread.
pub(super) fn start(shared: Arc<Shared>) -> std::io::Result<JoinHandle<()>> {
    let thread = std::thread::Builder::new().name("archive-ckpt".into());
    thread.spawn(move || {
        while let Some(end) = shared.checkpointer.next() {
            match run(&shared, end) {
                Err(error) if !shared.note_full("checkpoint", &error) => {
                    warn!(%error, "a checkpoint failed; the next one tries again");
                }
                _ => {}
            }
        }
    })
}

/// Releases the log's space on a full disk. Returns whether it had any.
pub(super) fn make_room(shared: &Shared) -> bool {
    let log = match shared.writer.lock().as_ref() {
        Some(writer) => checkpoint(&writer.connection, LOOK),
        None => return false,
    };
    // A log without pages was truncated.
    log.is_ok_and(|log| log.pages > 0) && run(shared, End::Truncate).is_ok_and(|is_complete| is_complete)
}

/// Moves the log into the file. Most of it is moved while appends continue; what they add meanwhile, and the end, is done while
/// they wait. Returns whether the log could be brought to that end: a reader may be using it. On a full disk the reserve gives
/// the file space to grow.
pub(super) fn run(shared: &Shared, end: End) -> rusqlite::Result<bool> {
    let moved = move_log(shared, end);
    let Some(reserve) = &shared.reserve else { return moved };
    match moved {
        Err(error) if shared.note_full("checkpoint", &error) && reserve.release() => {
            let moved = move_log(shared, End::Truncate);
            reserve.make();
            moved
        }
        moved => {
            reserve.make();
            moved
        }
    }
}

/// The same without releasing the reserve.
pub(super) fn move_log(shared: &Shared, end: End) -> rusqlite::Result<bool> {
    if shared.refusal.get().is_some() {
        return Ok(false); // what is in the log may be all that the disk has kept
    }
    let checkpointer = &shared.checkpointer;
    if let Some(connection) = checkpointer.connection.lock().as_ref() {
        note_failure(shared, checkpoint(connection, MOVE_WHAT_IS_FREE))?;
    }
    let writer = shared.writer.lock();
    let Some(writer) = writer.as_ref() else { return Ok(false) };
    let pragma = match end {
        End::Restart => MOVE_AND_RESTART,
        End::Truncate => MOVE_AND_TRUNCATE,
    };
    writer.connection.busy_timeout(READERS_WAIT)?;
    let log = checkpoint(&writer.connection, pragma);
    writer.connection.busy_timeout(schema::BUSY)?;
    let log = note_failure(shared, log)?;
    let least = checkpointer.due_pages_min;
    let due_pages = if log.is_busy { log.pages - log.moved_pages + least } else { least };
    checkpointer.due_pages.store(due_pages, Ordering::Relaxed);
    Ok(!log.is_busy)
}

/// After a failed sync of the file it is unknown what it has kept: the log must stay as it is.
fn note_failure(shared: &Shared, log: rusqlite::Result<Log>) -> rusqlite::Result<Log> {
    log.inspect_err(|error| {
        if super::is_sync_failure(error) {
            shared.refuse(&format!("a sync of {} failed: {error}", shared.file.display()));
        }
    })
}

/// The write-ahead log after a checkpoint.
struct Log {
    is_busy: bool,
    pages: u64,
    /// Pages that are also in the file.
    moved_pages: u64,
}

fn checkpoint(connection: &Connection, pragma: &str) -> rusqlite::Result<Log> {
    let mut statement = connection.prepare_cached(pragma)?;
    statement.query_row([], |row| {
        let pages: i64 = row.get(1)?;
        let moved: i64 = row.get(2)?;
        let (pages, moved) = (pages.max(0).unsigned_abs(), moved.max(0).unsigned_abs());
        Ok(Log { is_busy: row.get(0)?, pages, moved_pages: moved.min(pages) })
    })
}
