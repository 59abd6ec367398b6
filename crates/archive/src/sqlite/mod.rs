//! SQLite: the archive in one file that other tools can read.
//!
//! `docs/formats/sqlite.md` describes the tables and the reasons.
//!
//! - [`mod@open`]: whether the file is an archive; one writer at a time.
//! - [`append`]: one thread that stores each group of appends in one transaction.
//! - [`checkpoint`]: one thread that moves the write-ahead log into the file concurrently with the writer.
//! - [`known`]: topics in memory, with the numbers of their rows.
//! - [`query`], [`readers`]: a page from one snapshot, by the cheaper of two indexes.
//! - [`retention`], [`check`]: upkeep in steps.
//! - [`mod@backup`]: a copy of one snapshot.
//! - [`mod@reserve`]: space that is released on a full disk.
//! - [`schema`]: every table and every statement.

mod append;
mod backup;
mod check;
mod checkpoint;
mod generation;
mod known;
mod open;
mod query;
mod readers;
mod reserve;
mod retention;
mod schema;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    fs::File,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    thread::JoinHandle,
};

use async_trait::async_trait;
use parking_lot::{Mutex, RwLock};
use restante_core::{Clock, Cursor, ErrorKind, Timestamp, TopicBits};
use rusqlite::{Connection, ErrorCode, ffi};
use tokio::{sync::watch, task::JoinError};
use tracing::{error, warn};

pub(crate) use self::open::holds_archive;
use self::{
    append::Writer, check::Progress, checkpoint::Checkpointer, known::Known, query::Ask, readers::Readers,
    reserve::Reserve,
};
use crate::{
    Appended, Archive, Config, Error, Health, Message, Metrics, Opened, Page, PartStats, Pruned, Query,
    Report, Retention, Stats, Upkeep, disk_full::DiskFull, group::Queue, message::check_batch,
    waiting::closed,
};

/// The most damaged rows that are remembered, so that each is counted once.
const DAMAGED_MAX: usize = 10_000;

/// Opens the archive in a file.
pub(crate) async fn open(file: PathBuf, config: Config) -> Result<Opened, Error> {
    let sqlite = blocking(move || open::open(&file, &config)).await?;
    Ok(Opened { archive: sqlite.clone(), upkeep: sqlite })
}

/// The state that all threads of the engine share.
struct Shared {
    is_read_only: bool,
    topic_bits: fn(&str) -> TopicBits,
    known: RwLock<Known>,
    readers: Readers,
    /// `None` when read-only or closed.
    writer: Mutex<Option<Writer>>,
    checkpointer: Checkpointer,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
    /// Why writes are refused, and since when: after a failed sync it is unknown what the disk has kept.
    refusal: OnceLock<(String, Timestamp)>,
    /// Whether writes find no space. Such writes were not acknowledged, and the next write is tried as usual.
    disk_full: DiskFull,
    /// `None` when read-only.
    reserve: Option<Reserve>,
    damaged: Mutex<BTreeSet<i64>>,
    /// Held until the archive is closed, if it is open for writing.
    lock: Mutex<Option<File>>,
    file: PathBuf,
    /// Dropped last, after all connections.
    _in_use: open::InUse,
}

impl Shared {
    /// Refuses writes from now on, until the archive is opened again.
    fn refuse(&self, why: &str) -> Error {
        let (refusal, _) = self.refusal.get_or_init(|| {
            (format!("{why}; the archive takes no messages until it is opened again"), self.clock.now())
        });
        error!(refusal, "the archive takes no more messages");
        Error::unavailable(refusal.clone())
    }

    fn check_refusal(&self) -> Result<(), Error> {
        let refusal = self.refusal.get();
        refusal.map_or(Ok(()), |(refusal, _)| Err(Error::unavailable(refusal.clone())))
    }

    /// The error of something that could not be written.
    fn write_failed(&self, error: rusqlite::Error) -> Error {
        if is_sync_failure(&error) {
            return self.refuse(&format!("a sync of {} failed: {error}", self.file.display()));
        }
        self.failed("write to", error)
    }

    /// Notes an error if it is about a full disk. Returns whether it is.
    fn note_full(&self, what: &str, error: &rusqlite::Error) -> bool {
        if kind_of(error) != ErrorKind::Full {
            return false;
        }
        let what = format!("can't {what} {}: {error}", self.file.display());
        self.disk_full.note(&Error::full(what))
    }

    /// The error of doing `what` to the file.
    fn failed(&self, what: &str, error: rusqlite::Error) -> Error {
        failed(what, &self.file, error)
    }

    /// Counts a row that can't be served, once.
    fn count_damaged(&self, id: i64) {
        let mut damaged = self.damaged.lock();
        if damaged.len() < DAMAGED_MAX && damaged.insert(id) {
            self.metrics.damaged.inc();
            warn!(id, "a damaged row is left out; 'restante archive check' says more");
        }
    }

    /// The size of the file and its write-ahead log.
    fn disk_bytes(&self) -> u64 {
        let files = [self.file.clone(), open::beside(&self.file, "-wal")];
        files.iter().filter_map(|file| std::fs::metadata(file).ok()).map(|metadata| metadata.len()).sum()
    }

    /// Stops all threads, moves the log into the file, and releases connections and lock.
    fn close(&self, threads: Vec<JoinHandle<()>>) -> Result<(), Error> {
        self.checkpointer.stop();
        for thread in threads {
            if thread.join().is_err() {
                return Err(Error::internal("a thread of the archive has panicked"));
            }
        }
        let moved = checkpoint::run(self, checkpoint::End::Truncate);
        self.checkpointer.disconnect();
        self.readers.disconnect();
        let writer = self.writer.lock().take();
        let is_all_moved = moved.as_ref().is_ok_and(|is_complete| *is_complete);
        // On a full disk the log's empty files stay: there might be no space to create them when the archive is opened next.
        let removes_log = is_all_moved && self.disk_full.problem().is_none();
        let closed = writer.map_or(Ok(()), |writer| writer.close(removes_log));
        *self.lock.lock() = None;
        match moved {
            // The contents of the log stay there, and nothing is lost.
            Err(error) if self.note_full("checkpoint", &error) => {}
            Err(error) => return Err(self.failed("close", error)),
            Ok(_) => {}
        }
        closed.map_err(|error| self.failed("close", error))
    }
}

/// The error of doing `what` to `file`.
fn failed(what: &str, file: &Path, error: rusqlite::Error) -> Error {
    let kind = kind_of(&error);
    let advice = match kind {
        ErrorKind::Full => ": free some disk space or set a retention policy",
        ErrorKind::Corrupt => ": see 'restante archive check' and 'rebuild'",
        _ => "",
    };
    let what = format!("can't {what} {}: {error}{advice}", file.display());
    Error::new(kind, what).with_source(error)
}

fn kind_of(error: &rusqlite::Error) -> ErrorKind {
    if error.sqlite_extended_error_code() == Some(ffi::SQLITE_IOERR_SHMSIZE) {
        return ErrorKind::Full; // no space for the index of the log
    }
    let Some(code) = error.sqlite_error_code() else {
        // The value has another type than the one that was written.
        return ErrorKind::Corrupt;
    };
    match code {
        ErrorCode::DiskFull => ErrorKind::Full,
        ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => ErrorKind::Corrupt,
        ErrorCode::DatabaseBusy
        | ErrorCode::DatabaseLocked
        | ErrorCode::SystemIoFailure
        | ErrorCode::CannotOpen
        | ErrorCode::OutOfMemory
        | ErrorCode::PermissionDenied
        | ErrorCode::ReadOnly
        | ErrorCode::FileLockingProtocolFailed
        | ErrorCode::OperationInterrupted => ErrorKind::Unavailable,
        _ => ErrorKind::Internal,
    }
}

fn is_damage(error: &rusqlite::Error) -> bool {
    kind_of(error) == ErrorKind::Corrupt
}

fn is_sync_failure(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_extended_error_code();
    matches!(code, Some(ffi::SQLITE_IOERR_FSYNC | ffi::SQLITE_IOERR_DIR_FSYNC))
}

/// Runs work that reads or writes files on the blocking pool.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    result_of(tokio::task::spawn_blocking(work).await)
}

/// The same; `progress` is called on the caller's thread.
async fn blocking_with_progress<T: Send + 'static>(
    progress: Progress<'_>,
    work: impl FnOnce(Progress<'_>) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let (sender, mut counts) = watch::channel((0, 0));
    let task = tokio::task::spawn_blocking(move || {
        work(&|done, in_all| {
            let _ = sender.send((done, in_all)); // the caller may be gone
        })
    });
    while counts.changed().await.is_ok() {
        let (done, in_all) = *counts.borrow_and_update();
        progress(done, in_all);
    }
    result_of(task.await)
}

fn result_of<T>(joined: Result<Result<T, Error>, JoinError>) -> Result<T, Error> {
    joined.unwrap_or_else(|error| Err(Error::internal("an archive task ended early").with_source(error)))
}

/// The engine behind the traits.
struct Sqlite {
    shared: Arc<Shared>,
    /// `None` when read-only.
    queue: Option<Queue>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Drop for Sqlite {
    fn drop(&mut self) {
        self.shared.checkpointer.stop(); // the writer ends by itself when its queue is gone
    }
}

impl Sqlite {
    /// Runs work with one of the reading connections.
    async fn read<T: Send + 'static>(
        &self,
        what: &'static str,
        work: impl FnOnce(&Shared, &mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        let shared = self.shared.clone();
        let permit = shared.readers.permits.clone().acquire_owned().await;
        let permit = permit.map_err(|error| Error::internal("no reader").with_source(error))?;
        blocking(move || {
            let result = shared.readers.read(|connection| work(&shared, connection));
            drop(permit);
            result.map_err(|error| shared.failed(what, error))
        })
        .await
    }

    /// The queue, until the archive is closed.
    fn queue(&self) -> Result<&Queue, Error> {
        self.queue.as_ref().filter(|queue| !queue.is_closed()).ok_or_else(closed)
    }
}

#[async_trait]
impl Archive for Sqlite {
    async fn append(&self, messages: Vec<Message>) -> Result<Vec<Appended>, Error> {
        check_batch(&messages)?;
        self.queue()?.append(messages).await
    }

    async fn query(&self, query: &Query) -> Result<Page, Error> {
        query.check_bounds()?;
        let ask = Ask::new(&self.shared, query);
        let page =
            self.read("query", move |shared, connection| query::query(shared, connection, ask)).await?;
        page.ok_or_else(|| match query.cursor {
            Some(Cursor::Message(hash)) => Error::not_found(format!("cursor {hash} is not archived")),
            other => Error::internal(format!("cursor {other:?} can't be missing")),
        })
    }
}

/// Bytes of a message in the file apart from its body: its row, and its entries in three indexes.
const ROW_BYTES: u64 = 160;

/// The contents of the file by generation: consecutive messages in the order of their arrival, so that each usually spans a short
/// time. Each is reported with its share of the file.
fn parts_of(
    generations: &[schema::Generation],
    (oldest, newest): (Timestamp, Timestamp),
    disk_bytes: u64,
) -> Vec<PartStats> {
    let weigh = |generation: &schema::Generation| {
        u128::from(generation.body_bytes) + u128::from(ROW_BYTES) * u128::from(generation.messages)
    };
    let weight_in_all: u128 = generations.iter().map(weigh).sum();
    let last = generations.iter().map(|generation| generation.number).max();
    let part = |generation: &schema::Generation| {
        let share = u128::from(disk_bytes) * weigh(generation) / weight_in_all.max(1);
        PartStats {
            name: format!("generation {}", generation.number),
            // Retention removes messages, and leaves the bounds as they were if it removes none of this generation.
            oldest: generation.oldest.clamp(oldest, newest),
            newest: generation.newest.clamp(oldest, newest),
            messages: generation.messages,
            disk_bytes: u64::try_from(share).unwrap_or(u64::MAX),
            is_open: Some(generation.number) == last,
        }
    };
    generations.iter().map(part).collect()
}

#[async_trait]
impl Upkeep for Sqlite {
    async fn stats(&self) -> Result<Stats, Error> {
        self.shared.disk_full.refresh();
        self.read("read the statistics of", |shared, connection| {
            let snapshot = connection.transaction()?;
            let (messages, body_bytes) = schema::totals(&snapshot)?;
            let oldest = schema::timestamp(&snapshot, schema::OLDEST)?;
            let newest = schema::timestamp(&snapshot, schema::NEWEST)?;
            let disk_bytes = shared.disk_bytes();
            let span = oldest.zip(newest);
            let generations = if span.is_some() { schema::generations(&snapshot)? } else { Vec::new() };
            Ok(Stats {
                engine: "sqlite",
                messages,
                topics: schema::topics(&snapshot)?,
                body_bytes,
                disk_bytes,
                oldest,
                newest,
                damaged: shared.metrics.damaged.get(),
                parts: span.map_or_else(Vec::new, |span| parts_of(&generations, span, disk_bytes)),
            })
        })
        .await
    }

    fn health(&self) -> Health {
        let refusal = self.shared.refusal.get().cloned();
        let (problem, since) = refusal.or_else(|| self.shared.disk_full.problem()).unzip();
        Health { problem, since, ..Health::default() }
    }

    async fn prune(&self, policy: &Retention, now: Timestamp) -> Result<Pruned, Error> {
        self.queue()?;
        let (shared, policy) = (self.shared.clone(), *policy);
        blocking(move || retention::prune(&shared, &policy, now)).await
    }

    async fn check(&self, progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<Report, Error> {
        let shared = self.shared.clone();
        blocking_with_progress(progress, move |progress| check::check(&shared, progress)).await
    }

    async fn rebuild(&self, progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<Report, Error> {
        self.queue()?;
        let shared = self.shared.clone();
        blocking_with_progress(progress, move |progress| check::rebuild(&shared, progress)).await
    }

    async fn backup(&self, folder: &Path) -> Result<(), Error> {
        self.queue()?;
        let (shared, folder) = (self.shared.clone(), folder.to_owned());
        blocking(move || backup::write(&shared, &folder)).await
    }

    async fn close(&self) -> Result<(), Error> {
        let Some(queue) = &self.queue else { return Ok(()) };
        queue.close().await;
        let threads = std::mem::take(&mut *self.threads.lock());
        let shared = self.shared.clone();
        blocking(move || shared.close(threads)).await
    }
}
