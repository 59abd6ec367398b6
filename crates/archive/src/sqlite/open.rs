//! Opening: checks that the file is an archive and not in use, and creates one if there is none.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use restante_disk::create_folder;
use rusqlite::Connection;
use tracing::info;

use super::{
    Shared, Sqlite, append,
    append::Writer,
    checkpoint::{self, Checkpointer},
    known::Known,
    readers::Readers,
    reserve::Reserve,
    schema,
};
use crate::{Config, Error, disk_full::DiskFull, group, nearest};

/// The first bytes of every SQLite file.
const MAGIC: &[u8] = b"SQLite format 3\0";
/// The offsets in the header of the version of the tables and of the program's mark, big-endian.
const USER_VERSION_AT: usize = 60;
const APPLICATION_ID_AT: usize = 68;
const HEADER_BYTES: u64 = 100;

/// How often opening waits for readers of the log that an earlier process has left.
const SETTLE_TRIES: u32 = 10;

/// Opens the archive in a file, and creates it if it doesn't exist.
pub(super) fn open(file: &Path, config: &Config) -> Result<Arc<Sqlite>, Error> {
    let file = std::path::absolute(file).map_err(|error| Error::io("find", shown(file), error))?;
    let file = real_path(&file); // log and lock are next to the file, not next to a link to it
    let is_there = check_owner(&file)?;
    if config.read_only {
        if !is_there {
            return Err(nearest::absent(&file));
        }
        return open_to_read(file, config);
    }
    let lock = create_and_lock(&file)?;
    if !check_owner(&file)? {
        create(&file)?;
        info!(file = %file.display(), "archive created");
    }
    open_to_write(file, config, lock)
}

fn open_to_read(file: PathBuf, config: &Config) -> Result<Arc<Sqlite>, Error> {
    let shared = Arc::new(load(file, config, None, Checkpointer::idle())?);
    Ok(Arc::new(Sqlite { shared, queue: None, threads: Mutex::default() }))
}

fn open_to_write(file: PathBuf, config: &Config, lock: File) -> Result<Arc<Sqlite>, Error> {
    let reserve = Reserve::new(beside(&file, ".reserve"));
    reserve.release_to_open();
    let connected = schema::connect_to_write(&file, config.sqlite.cache_bytes.get())
        .and_then(|connection| Ok((connection, Checkpointer::for_file(&file, reserve.bytes())?)));
    let (connection, checkpointer) = connected.map_err(|error| super::failed("open", &file, error))?;
    check_tables(&file, &connection, &schema::STATEMENTS)?;
    let writing = Writing { writer: Writer { connection }, lock, reserve };
    let shared = Arc::new(load(file, config, Some(writing), checkpointer)?);
    settle_log(&shared).map_err(|error| super::failed("settle the log of", &shared.file, error))?;
    shared.disk_full.note_at_open();
    let (queue, waiting) = group::queue(config.sqlite.queue_bytes.get());
    let started = append::start(shared.clone(), waiting)
        .and_then(|writer| Ok(vec![writer, checkpoint::start(shared.clone())?]));
    let threads = started.map_err(|error| Error::io("start", "a thread of the archive", error))?;
    Ok(Arc::new(Sqlite { shared, queue: Some(queue), threads: Mutex::new(threads) }))
}

/// Moves what an earlier process has left in the write-ahead log into the file, synced. Such a process may have ended before its
/// sync, and what the page cache shows need not be on the disk: it must not be reported as stored.
fn settle_log(shared: &Shared) -> rusqlite::Result<()> {
    for _ in 0..SETTLE_TRIES {
        match checkpoint::run(shared, checkpoint::End::Truncate) {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            // The file can't grow now.
            Err(error) if shared.note_full("checkpoint", &error) => break,
            Err(error) => return Err(error),
        }
    }
    // The log is being read, or the disk is full. It is synced as it is.
    let synced = File::open(beside(&shared.file, "-wal")).and_then(|log| log.sync_all());
    synced.map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))
}

/// The parts of an archive that is open for writing.
struct Writing {
    writer: Writer,
    lock: File,
    reserve: Reserve,
}

fn load(
    file: PathBuf,
    config: &Config,
    writing: Option<Writing>,
    checkpointer: Checkpointer,
) -> Result<Shared, Error> {
    let readers = Readers::new(&file, config);
    let mut known = Known::new(config.topic_bits);
    let loaded = readers.read(|connection| {
        let snapshot = connection.transaction()?;
        known.load_new(&snapshot)
    });
    loaded.map_err(|error| super::failed("load the topics of", &file, error))?;
    let (mut writer, mut lock, mut reserve) = (None, None, None);
    if let Some(writing) = writing {
        (writer, lock, reserve) = (Some(writing.writer), Some(writing.lock), Some(writing.reserve));
    }
    Ok(Shared {
        is_read_only: config.read_only,
        topic_bits: config.topic_bits,
        known: known.into(),
        readers,
        writer: Mutex::new(writer),
        checkpointer,
        clock: config.clock.clone(),
        metrics: config.metrics.clone(),
        refusal: Default::default(),
        disk_full: DiskFull::new(Some(&file), config.clock.clone(), config.metrics.disk_full.clone()),
        reserve,
        damaged: Default::default(),
        lock: Mutex::new(lock),
        _in_use: InUse::new(&file),
        file,
    })
}

fn shown(file: &Path) -> String {
    file.display().to_string()
}

/// The path with a suffix appended to its name.
pub(super) fn beside(file: &Path, suffix: &str) -> PathBuf {
    let mut path = OsString::from(file);
    path.push(suffix);
    path.into()
}

/// Whether a file is an archive of a version that this program knows.
pub(crate) fn holds_archive(file: &Path) -> bool {
    check_owner(file).unwrap_or(false)
}

/// Whether there is an archive in a file: of this program, and of a known version. An empty file is none yet. Files of other
/// programs are refused before SQLite opens them, because it might write its log into the file.
fn check_owner(file: &Path) -> Result<bool, Error> {
    let header = match read_header(file) {
        Ok(None) => return Ok(true),
        Ok(Some(header)) => header,
        Err(error)
            if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) =>
        {
            return Ok(false);
        }
        Err(error) => return Err(Error::io("read", shown(file), error)),
    };
    if header.is_empty() {
        return Ok(false);
    }
    let number = |at: usize| header.get(at..)?.first_chunk::<4>().copied().map(i32::from_be_bytes);
    let refuse = |what: String| Err(Error::corrupt(what));
    if !header.starts_with(MAGIC) {
        return refuse(format!("{} is no SQLite database: name another file", shown(file)));
    }
    if number(APPLICATION_ID_AT) != Some(schema::APPLICATION_ID) {
        return refuse(format!(
            "{} is a database of another program: name another file, and take over what is in this one with \
             'restante archive import'",
            shown(file)
        ));
    }
    match number(USER_VERSION_AT) {
        Some(schema::VERSION) => Ok(true),
        Some(newer) if newer > schema::VERSION => refuse(format!(
            "{} has format version {newer}, and this program knows versions up to {}: open it with the version that \
             wrote it",
            shown(file),
            schema::VERSION
        )),
        other => refuse(format!("{} has format version {other:?}, which never was", shown(file))),
    }
}

/// The first bytes of a file; `None` when an archive of this process has it open.
///
/// A process loses all its POSIX locks on a file as soon as it closes the file anywhere, and SQLite would not notice
/// (sqlite.org/howtocorrupt.html, 2.2). So a file is only read if it is not open in this process.
fn read_header(file: &Path) -> std::io::Result<Option<Vec<u8>>> {
    let in_use = IN_USE.lock();
    if in_use.contains_key(&real_path(file)) {
        return Ok(None);
    }
    // Opening a FIFO may block forever.
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::other("it is no regular file"));
    }
    let mut header = Vec::new();
    File::open(file)?.take(HEADER_BYTES).read_to_end(&mut header)?;
    Ok(Some(header))
}

/// The files that archives of this process have open, and how often.
static IN_USE: Mutex<BTreeMap<PathBuf, usize>> = Mutex::new(BTreeMap::new());

fn real_path(file: &Path) -> PathBuf {
    file.canonicalize().unwrap_or_else(|_| file.to_owned())
}

/// A file is in use as long as this value lives.
pub(super) struct InUse(PathBuf);

impl InUse {
    fn new(file: &Path) -> Self {
        let path = real_path(file);
        *IN_USE.lock().entry(path.clone()).or_insert(0) += 1;
        Self(path)
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let mut in_use = IN_USE.lock();
        if let Some(times) = in_use.get_mut(&self.0) {
            *times -= 1;
            if *times == 0 {
                in_use.remove(&self.0);
            }
        }
    }
}

/// Makes sure that this process is the only one that writes.
fn create_and_lock(file: &Path) -> Result<File, Error> {
    create_folder(file.parent().unwrap_or(Path::new("/")))?;
    let what = format!("archive {}", shown(file));
    let advice = "stop it, or name another file; reading is possible beside it";
    restante_disk::hold(&beside(file, ".lock"), &what, advice)
}

/// Creates an archive under a temporary name first, so that under its own name it is always complete.
fn create(file: &Path) -> Result<(), Error> {
    let log = beside(file, "-wal");
    let has_log = std::fs::metadata(&log).is_ok_and(|metadata| metadata.len() > 0);
    if has_log {
        // A log does not identify its file: it would be read into the new file.
        let what = format!(
            "{} is there without its archive: restore {} from a copy, or move the log away",
            shown(&log),
            shown(file)
        );
        return Err(Error::corrupt(what));
    }
    let new = beside(file, ".new");
    for leftover in [new.clone(), beside(&new, "-wal"), beside(&new, "-shm"), beside(&new, "-journal")] {
        match std::fs::remove_file(&leftover) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::io("remove", shown(&leftover), error));
            }
            _ => {}
        }
    }
    schema::create(&new).map_err(|error| super::failed("create", &new, error))?;
    put_in_place(&new, file).map_err(|error| Error::io("create", shown(file), error))
}

#[expect(clippy::disallowed_methods, reason = "the folder is synced behind it")]
fn put_in_place(new: &Path, file: &Path) -> std::io::Result<()> {
    File::open(new)?.sync_all()?;
    std::fs::rename(new, file)?;
    File::open(file.parent().unwrap_or(Path::new("/")))?.sync_all()
}

/// Checks that every statement fits the existing tables.
fn check_tables(file: &Path, connection: &Connection, statements: &[&str]) -> Result<(), Error> {
    for sql in statements {
        connection.prepare_cached(sql).map_err(|error| {
            let what =
                format!("{} has not the tables of an archive: restore it from a copy: {error}", shown(file));
            Error::corrupt(what).with_source(error)
        })?;
    }
    Ok(())
}
