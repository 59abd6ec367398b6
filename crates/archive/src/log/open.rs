//! Opening an archive: lock the folder, load the sealed segments, replay the others.

use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock, atomic::AtomicU64},
};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use restante_core::ErrorKind;
use restante_disk::create_folder;
use tokio::sync::mpsc;
use tracing::{info, warn};

use super::{
    Limits, Log, Shared,
    active::{Active, Addition},
    append::{OpenSegment, Writer},
    blocking,
    commit::Finisher,
    disk::{Disk, DiskFile, Folder, LogDisk},
    recover::{Replay, replay, salt_of},
    schema::{
        INDEX_SUFFIX, Index, LOG_HEADER_BYTES, LOG_SUFFIX, SegmentId, TEMPORARY_SUFFIX, decode_log_header,
        salts_of_damaged_header, sequence_of,
    },
    seal::{Sealer, load},
    segment::Segment,
};
use crate::{Config, Error, Opened, topics::Dictionary, waiting::Room};

/// Commands that wait for the writer at most; their bytes are bounded apart.
const COMMANDS_MAX: usize = 1_024;
pub(super) const LOCK_NAME: &str = "LOCK";

/// Opens or creates the archive in a folder.
pub(crate) async fn open(folder: PathBuf, config: Config) -> Result<Opened, Error> {
    blocking(move || {
        if config.read_only {
            if !folder.is_dir() {
                return Err(Error::new(
                    ErrorKind::NotFound,
                    format!("there is no archive in {}", folder.display()),
                ));
            }
            return open_on(Arc::new(Folder::new(&folder)), &config, None);
        }
        let lock = create_and_lock(&folder)?;
        open_on(Arc::new(Folder::new(&folder)), &config, Some(lock))
    })
    .await
}

fn create_and_lock(folder: &Path) -> Result<File, Error> {
    create_folder(folder)?;
    let what = format!("archive {}", folder.display());
    Ok(restante_disk::hold(&folder.join(LOCK_NAME), &what, "stop it, or name another folder")?)
}

/// What the threads of an archive share, before anything is loaded.
pub(super) fn share(disk: Arc<dyn Disk>, config: &Config, lock: Option<File>) -> Arc<Shared> {
    let limits = Limits::new(&config.log, &config.retention);
    Arc::new(Shared {
        disk,
        limits,
        segments: RwLock::default(),
        dictionary: RwLock::new(Dictionary::new(config.topic_bits)),
        last_sequence: AtomicU64::new(0),
        clock: config.clock.clone(),
        metrics: config.metrics.clone(),
        refusal: OnceLock::new(),
        removing: Arc::default(),
        lock: Mutex::new(lock),
    })
}

/// Opens the archive on a disk. Without `config.read_only` the caller has made sure that nobody else writes to it.
pub(super) fn open_on(disk: Arc<dyn Disk>, config: &Config, lock: Option<File>) -> Result<Opened, Error> {
    let shared = share(disk, config, lock);
    let limits = shared.limits;
    let active = load_all(&shared, config.read_only)?;
    let room = Room::new(limits.queue_bytes);
    let log = if config.read_only {
        Log { shared, writer: None, room, threads: Mutex::default() }
    } else {
        let (writer, threads) = start_threads(&shared, active)?;
        Log { shared, writer: Some(writer), room, threads: Mutex::new(threads) }
    };
    let log = Arc::new(log);
    Ok(Opened { archive: log.clone(), upkeep: log })
}

type Threads = Vec<std::thread::JoinHandle<()>>;

fn start_threads(
    shared: &Arc<Shared>,
    active: Vec<Recovered>,
) -> Result<(mpsc::Sender<super::append::Command>, Threads), Error> {
    let failed = |error| Error::io("start", "a thread of the archive", error);
    let (commands, queue) = mpsc::channel(COMMANDS_MAX);
    let (sealer, seal_thread) = Sealer::start(shared.clone(), commands.downgrade()).map_err(failed)?;
    let mut open = Vec::new();
    for Recovered { active, is_whole } in active {
        let name = active.id.log_name();
        let file = shared.disk.open(&name).map_err(|error| Error::io("open", &name, error))?;
        let segment = OpenSegment::new(active.clone(), file.into());
        if is_whole && !segment.is_full(&shared.limits) {
            open.push(segment);
        } else {
            sealer.seal(active);
        }
    }
    shared.metrics.open_segments.set(open.len() as i64);
    let (finisher, finish_thread) = Finisher::start(shared.clone(), sealer).map_err(failed)?;
    let writer = Writer::new(shared.clone(), finisher, open);
    let thread = std::thread::Builder::new().name("archive-write".into());
    let write_thread = thread.spawn(move || writer.run(queue)).map_err(failed)?;
    Ok((commands, vec![write_thread, finish_thread, seal_thread]))
}

/// A replayed segment, and whether its log has nothing damaged in it, so that it may take more.
struct Recovered {
    active: Arc<Active>,
    is_whole: bool,
}

/// Puts every segment of the folder into the list and returns the replayed ones.
fn load_all(shared: &Arc<Shared>, read_only: bool) -> Result<Vec<Recovered>, Error> {
    let files = shared.disk.list().map_err(|error| Error::io("list", "the archive's folder", error))?;
    let has = |name: &str| files.iter().any(|(other, _)| other == name);
    if !read_only {
        remove_leftovers(shared, &files)?;
    }
    let mut active = Vec::new();
    for (name, len) in files.iter().filter(|(name, _)| name.ends_with(LOG_SUFFIX)) {
        let Some(sequence) = sequence_of(name) else { continue };
        shared.last_sequence.fetch_max(sequence, std::sync::atomic::Ordering::Relaxed);
        let Some(id) = segment_id(shared, name, sequence, *len, read_only)? else { continue };
        if has(&id.index_name()) {
            match load(shared, id, *len) {
                Ok(sealed) => {
                    shared.change_segments(|segments| segments.push(Segment::Sealed(Arc::new(sealed))));
                    continue;
                }
                Err(error) => warn!(%error, name, "index can't be used: making it anew from its log"),
            }
        }
        match recover(shared, id, *len, read_only) {
            Ok(recovered) => active.push(recovered),
            // The writer beside whom this process reads has removed it.
            Err(error) if read_only && error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(active)
}

/// Removes indexes that were never finished or whose log retention has removed.
fn remove_leftovers(shared: &Shared, files: &[(String, u64)]) -> Result<(), Error> {
    for (name, _) in files {
        let log = name.strip_suffix(INDEX_SUFFIX).map(|stem| stem.to_owned() + LOG_SUFFIX);
        let has_no_log = log.is_some_and(|log| !files.iter().any(|(other, _)| *other == log));
        if has_no_log || name.ends_with(TEMPORARY_SUFFIX) {
            shared.disk.remove(name).map_err(|error| Error::io("remove", name, error))?;
        }
    }
    Ok(())
}

/// What a log's header says. A log that has nothing but a torn header was never promised to anybody and is removed.
fn segment_id(
    shared: &Shared,
    name: &str,
    sequence: u64,
    len: u64,
    read_only: bool,
) -> Result<Option<SegmentId>, Error> {
    let header_len = len.min(LOG_HEADER_BYTES) as usize;
    let header = shared.disk.map(name, header_len).map_err(|error| Error::io("read", name, error))?;
    match decode_log_header(&header) {
        Ok(id) => Ok(Some(SegmentId { sequence, ..id })),
        Err("format version is newer than this program") => {
            let advice = "open it with the version that wrote it";
            Err(Error::new(ErrorKind::Corrupt, format!("{name} has a newer format: {advice}")))
        }
        Err(_) if len <= LOG_HEADER_BYTES => {
            if !read_only {
                info!(name, "removing a log that was never finished being created");
                shared.disk.remove(name).map_err(|error| Error::io("remove", name, error))?;
            }
            Ok(None)
        }
        Err(what) => {
            // The header only says where new messages belong; the records speak for themselves.
            warn!(name, what, "reading the log's records all the same");
            let log = shared.disk.read(name).map_err(|error| Error::io("read", name, error))?;
            let id = |salt| SegmentId { sequence, window_start: 0, window_len: 0, salt };
            // Damage that hit one copy of the salt has left the others.
            let of_index = salt_of_index(shared, &id(0).index_name());
            let mut salts: Vec<u64> = salts_of_damaged_header(&header).into_iter().chain(of_index).collect();
            salts.dedup();
            Ok(salt_of(&log, &salts).map(id))
        }
    }
}

/// The copy of a segment's salt that its index has.
fn salt_of_index(shared: &Shared, name: &str) -> Option<u64> {
    let len = usize::try_from(shared.file_len(name).ok()?).ok()?;
    let (index, _) = Index::open(shared.disk.map(name, len).ok()?).ok()?;
    Some(index.salt)
}

/// Replays a log that has no index, cuts its torn end and puts it into the list.
fn recover(shared: &Shared, id: SegmentId, len: u64, read_only: bool) -> Result<Recovered, Error> {
    let name = id.log_name();
    if !read_only {
        // A segment that was sealed, and has lost its index since, may be linked to a backup. It is mapped from here on.
        shared.disk.own(&name).map_err(|error| Error::io("copy", &name, error))?;
    }
    let log = if read_only {
        shared.disk.read(&name).map(Bytes::from)
    } else {
        shared.disk.map(&name, shared.limits.mapping_bytes().max(len as usize))
    };
    let log = log.map_err(|error| Error::io("read", &name, error))?;
    let len = if read_only { log.len() as u64 } else { len };
    let replay = replay(log.get(..len as usize).unwrap_or_default(), &id);
    for finding in &replay.findings {
        shared.metrics.damaged.inc();
        warn!(name, offset = finding.offset, what = finding.what, "damage found in a log");
    }
    // Where the header is damaged nothing is cut: if no record can be read, it is perhaps the seed that is wrong.
    let has_header = id.has_window();
    let mut log_len = len;
    if has_header && replay.end < len {
        let end = log.get(replay.end as usize..len as usize).unwrap_or_default();
        let is_reserve = end.iter().all(|byte| *byte == 0);
        if !is_reserve {
            warn!(
                name,
                bytes = end.len(),
                is_cut = !read_only,
                "the end of a log is torn; nobody was answered for it"
            );
        }
        if !read_only {
            let cut = |file: Box<dyn DiskFile>| file.set_len(replay.end).and_then(|()| file.sync());
            shared.disk.open(&name).and_then(cut).map_err(|error| Error::io("cut", &name, error))?;
        }
        log_len = replay.end;
    }
    let is_whole = has_header && replay.findings.is_empty();
    let active = Arc::new(Active::new(id, log));
    active.publish(active.stage(Addition { log_len, ..addition(shared, replay) }));
    shared.change_segments(|segments| segments.push(Segment::Active(active.clone())));
    Ok(Recovered { active, is_whole })
}

/// A replay as something that a segment takes, with its topics counted.
fn addition(shared: &Shared, replay: Replay) -> Addition {
    let mut messages = vec![0_u64; replay.topics.len()];
    for row in &replay.rows {
        if let Some(count) = messages.get_mut(row.topic as usize) {
            *count += 1;
        }
    }
    let mut dictionary = shared.dictionary.write();
    let names = replay.topic_names();
    let topics =
        names.iter().zip(messages).map(|(name, count)| dictionary.count(&name.channel, &name.topic, count));
    Addition {
        topics: topics.collect(),
        rows: replay.rows,
        log_len: replay.end,
        body_bytes: replay.body_bytes,
    }
}
