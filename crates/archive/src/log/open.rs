//! Opening an archive: lock the folder, load the sealed segments, replay the others.

use std::{
    fs::File,
    num::NonZero,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock, atomic::AtomicU64},
};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use restante_core::{ErrorKind, nonzero};
use restante_disk::create_folder;
use tokio::sync::mpsc;
use tracing::{info, warn};

use super::{
    Limits, Log, Shared,
    active::{Active, Addition},
    append::{OpenSegment, Writer},
    blocking,
    commit::Finisher,
    damage::Known,
    disk::{Disk, DiskFile, Folder, LogDisk},
    recover::{Replay, replay, salt_of},
    schema::{
        INDEX_SUFFIX, Index, LOG_HEADER_BYTES, LOG_SUFFIX, OTHER_VERSION, SegmentId, TEMPORARY_SUFFIX,
        decode_log_header, other_version, salts_of_damaged_header, sequence_of,
    },
    seal::{FileLens, Sealer, load},
    segment::Segment,
    segment_list::{Entry, SegmentList},
};
use crate::{
    Config, EngineUrl, Error, Opened,
    disk_full::{self, DiskFull},
    topics::Dictionary,
    waiting::MemoryBudget,
};

/// The most commands that wait for the writer; their bytes have a separate limit.
const COMMANDS_MAX: usize = 1_024;
pub(super) const LOCK_NAME: &str = "LOCK";
/// A segment takes at most this part of the disk, but may always take `DISK_SHARE_BYTES_MIN`: retention removes whole segments,
/// and on a small disk a single one must not take most of the space.
const DISK_SHARE: u64 = 16;
const DISK_SHARE_BYTES_MIN: NonZero<u64> = nonzero!(1 << 20);

/// Opens or creates the archive in a folder.
pub(crate) async fn open(folder: PathBuf, config: Config) -> Result<Opened, Error> {
    blocking(move || {
        if config.read_only {
            if !folder.is_dir() {
                return Err(Error::not_found(format!("there is no archive in {}", folder.display())));
            }
            return open_on(Arc::new(Folder::new(&folder)), &config, None);
        }
        let lock = create_and_lock(&folder)?;
        let config = fit_to_disk(config, &folder);
        open_on(Arc::new(Folder::new(&folder)), &config, Some(lock))
    })
    .await
}

/// Makes the segments of an archive smaller on a small disk. A generation of a spool stays one segment.
fn fit_to_disk(mut config: Config, folder: &Path) -> Config {
    if matches!(config.url, EngineUrl::Log(_))
        && let Some(bytes) = disk_full::disk_bytes(folder)
    {
        let share =
            NonZero::new(bytes / DISK_SHARE).unwrap_or(DISK_SHARE_BYTES_MIN).max(DISK_SHARE_BYTES_MIN);
        config.log.segment_bytes = config.log.segment_bytes.min(share);
    }
    config
}

fn create_and_lock(folder: &Path) -> Result<File, Error> {
    create_folder(folder)?;
    let what = format!("archive {}", folder.display());
    restante_disk::hold(&folder.join(LOCK_NAME), &what, "stop it, or name another folder")
}

/// The shared state of an archive's threads, before anything is loaded.
pub(super) fn share(disk: Arc<dyn Disk>, config: &Config, lock: Option<File>) -> Arc<Shared> {
    let limits = Limits::new(&config.log, &config.retention);
    let place = if let EngineUrl::Log(folder) = &config.url { Some(folder.as_path()) } else { None };
    let disk_full = DiskFull::new(place, config.clock.clone(), config.metrics.disk_full.clone());
    Arc::new(Shared {
        disk,
        limits,
        segments: RwLock::default(),
        dictionary: RwLock::new(Dictionary::new(config.topic_bits)),
        last_sequence: AtomicU64::new(0),
        clock: config.clock.clone(),
        metrics: config.metrics.clone(),
        refusal: OnceLock::new(),
        disk_full,
        removing: Arc::default(),
        lock: Mutex::new(lock),
        read_only: config.read_only,
        list: SegmentList::default(),
        unlisted_losses: Mutex::default(),
        losses: Mutex::default(),
        opening_findings: Mutex::default(),
        damaged_files: AtomicU64::new(0),
        healing: Mutex::default(),
        replacing: Mutex::default(),
    })
}

/// Opens the archive on a disk. Without `config.read_only` the caller holds the lock of its folder.
pub(super) fn open_on(disk: Arc<dyn Disk>, config: &Config, lock: Option<File>) -> Result<Opened, Error> {
    let shared = share(disk, config, lock);
    let limits = shared.limits;
    let active = load_all(&shared, config.read_only)?;
    let budget = MemoryBudget::new(limits.queue_bytes);
    let log = if config.read_only {
        Log { shared, writer: None, budget, threads: Mutex::default() }
    } else {
        shared.disk_full.note_at_open();
        let (writer, threads) = start_threads(&shared, active)?;
        Log { shared, writer: Some(writer), budget, threads: Mutex::new(threads) }
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

/// A replayed segment, and whether its log has no damage, so that it may accept more messages.
struct Recovered {
    active: Arc<Active>,
    is_whole: bool,
}

/// Adds every segment of the folder to the list and returns the replayed ones.
fn load_all(shared: &Arc<Shared>, read_only: bool) -> Result<Vec<Recovered>, Error> {
    let mut known = Known::read(shared, read_only)?;
    let files = shared.disk.list().map_err(|error| Error::io("list", "the archive's folder", error))?;
    if !read_only {
        remove_temporaries(shared, &files)?;
    }
    let mut active = Vec::new();
    for (name, len) in files.iter().filter(|(name, _)| name.ends_with(LOG_SUFFIX)) {
        let Some(sequence) = sequence_of(name) else { continue };
        shared.last_sequence.fetch_max(sequence, std::sync::atomic::Ordering::Relaxed);
        let index_name = name.trim_end_matches(LOG_SUFFIX).to_owned() + INDEX_SUFFIX;
        let index = files.binary_search_by(|(other, _)| other.cmp(&index_name)).ok();
        let index_len = index.and_then(|at| files.get(at)).map(|(_, len)| *len);
        let log = LogFile { name, len: *len, sequence, index_len };
        active.extend(load_one(shared, &mut known, &log, read_only)?);
    }
    known.settle(&files)?;
    Ok(active)
}

/// A log that was found in the folder.
struct LogFile<'a> {
    name: &'a str,
    len: u64,
    sequence: u64,
    index_len: Option<u64>,
}

/// Adds a segment to the list, unless nothing of it can be served; returns it if it was replayed.
fn load_one(
    shared: &Arc<Shared>,
    known: &mut Known<'_>,
    log: &LogFile<'_>,
    read_only: bool,
) -> Result<Option<Recovered>, Error> {
    let entry = known.of(log.sequence, log.index_len);
    let had_messages = entry.is_some_and(|entry| entry.rows > 0);
    if had_messages && log.len <= LOG_HEADER_BYTES {
        known.give_up(log.sequence, "its log is empty");
        return Ok(None);
    }
    let salt = entry.map(|entry| entry.salt);
    let Some(id) = segment_id(shared, log.name, log.sequence, log.len, salt, read_only)? else {
        return Ok(None);
    };
    if known.is_foreign(&id) {
        return Ok(None);
    }
    if let Some(index_len) = log.index_len {
        let load = |len| load(shared, id, FileLens { log: len, index: index_len });
        let loaded = match load(log.len) {
            // A writer may have trimmed the log since the folder was listed.
            Err(_) if read_only => shared.file_len(log.name).and_then(load),
            loaded => loaded,
        };
        match loaded {
            Ok(sealed) if known.has_its_span(&sealed) => {
                known.found(Entry::of_sealed(&sealed));
                shared.change_segments(|segments| segments.push(Segment::Sealed(Arc::new(sealed))));
                return Ok(None);
            }
            Ok(sealed) => {
                shared.forget_topics(&Segment::Sealed(Arc::new(sealed)));
                known.replace_index(&id, "its timestamps are not those of its log");
            }
            Err(error) => {
                known.replace_index(&id, &error.to_string());
            }
        }
    }
    let was_sealed = log.index_len.is_some() || entry.is_some_and(|entry| entry.is_sealed);
    let durable = Durable { log_len: entry.map_or(0, |entry| entry.log_len), was_sealed };
    match recover(shared, id, log.len, durable, read_only) {
        Ok(recovered) => {
            let has_nothing = was_sealed && id.has_window() && recovered.active.rows() == 0;
            if has_nothing {
                shared.remove_segment(id.sequence);
                known.give_up(log.sequence, "no record of its log can be read");
                return Ok(None);
            }
            Ok(Some(recovered))
        }
        // The server that writes the archive has removed it meanwhile.
        Err(error) if read_only && error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Removes files that were never finished.
fn remove_temporaries(shared: &Shared, files: &[(String, u64)]) -> Result<(), Error> {
    for (name, _) in files.iter().filter(|(name, _)| name.ends_with(TEMPORARY_SUFFIX)) {
        done_if_room(shared, "remove", name, shared.disk.remove(name))?;
    }
    Ok(())
}

/// The header of a log. A log that has only a partly written header was never acknowledged and is removed.
fn segment_id(
    shared: &Shared,
    name: &str,
    sequence: u64,
    len: u64,
    listed_salt: Option<u64>,
    read_only: bool,
) -> Result<Option<SegmentId>, Error> {
    let header_len = len.min(LOG_HEADER_BYTES) as usize;
    let header = shared.disk.map(name, header_len).map_err(|error| Error::io("read", name, error))?;
    match decode_log_header(&header) {
        Ok(id) => Ok(Some(SegmentId { sequence, ..id })),
        Err(OTHER_VERSION) => Err(other_version(name, &header)),
        Err(_) if len <= LOG_HEADER_BYTES => {
            if !read_only {
                info!(name, "removing a log that was never finished being created");
                done_if_room(shared, "remove", name, shared.disk.remove(name))?;
            }
            Ok(None)
        }
        Err(what) => {
            // The header only determines where new messages belong; the records can be read without it.
            warn!(name, what, "reading the log's records all the same");
            let log = shared.disk.read(name).map_err(|error| Error::io("read", name, error))?;
            let id = |salt| SegmentId { sequence, window_start: 0, window_len: 0, salt };
            // Damage that hit one copy of the salt has left the others.
            let of_index = salt_of_index(shared, &id(0).index_name());
            let in_header = salts_of_damaged_header(&header).into_iter();
            let mut salts: Vec<u64> = in_header.chain(of_index).chain(listed_salt).collect();
            // A lost sector reads as zeros, and anyone could write records for the seed that follows from them.
            salts.retain(|salt| id(*salt).seed() != 0);
            salts.dedup();
            // No record is sound under a new salt.
            Ok(Some(id(salt_of(&log, &salts).unwrap_or_else(|| shared.salt()))))
        }
    }
}

/// The copy of a segment's salt in its index.
fn salt_of_index(shared: &Shared, name: &str) -> Option<u64> {
    let len = usize::try_from(shared.file_len(name).ok()?).ok()?;
    let (index, _) = Index::open(shared.disk.map(name, len).ok()?).ok()?;
    Some(index.salt)
}

/// What is known, before a log is read, to have been durable in it.
struct Durable {
    log_len: u64,
    was_sealed: bool,
}

/// Replays a log that has no index and adds it to the list. A torn end is truncated if it can be that of a commit that was not
/// acknowledged: never in a log that was sealed, and never a byte that is known to have been durable.
fn recover(
    shared: &Shared,
    id: SegmentId,
    len: u64,
    durable: Durable,
    read_only: bool,
) -> Result<Recovered, Error> {
    let name = id.log_name();
    // A segment that was sealed, and has lost its index since, may be linked to a backup. It is mapped from here on. Without
    // space for the copy it is only read, until the sealer finds space.
    let is_own = read_only || done_if_room(shared, "copy", &name, shared.disk.own(&name))?;
    let mut is_cut = true;
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
    // Where the header is damaged nothing is truncated: if no record can be read, perhaps only the seed is wrong.
    let keeps_end = !id.has_window() || durable.was_sealed || replay.end < durable.log_len;
    let mut log_len = len;
    if !keeps_end && replay.end < len {
        let end = log.get(replay.end as usize..len as usize).unwrap_or_default();
        let is_reserve = end.iter().all(|byte| *byte == 0);
        if !is_reserve {
            warn!(
                name,
                bytes = end.len(),
                is_cut = !read_only,
                "the end of a log was written in part and never acknowledged"
            );
        }
        if !read_only && is_own {
            let cut = |file: Box<dyn DiskFile>| file.set_len(replay.end).and_then(|()| file.sync());
            is_cut = done_if_room(shared, "cut", &name, shared.disk.open(&name).and_then(cut))?;
        }
        log_len = replay.end;
    }
    let is_whole = !keeps_end && replay.findings.is_empty() && is_own && is_cut;
    let active = Arc::new(Active::new(id, log));
    active.publish(active.stage(Addition { log_len, ..addition(shared, replay) }));
    shared.change_segments(|segments| segments.push(Segment::Active(active.clone())));
    Ok(Recovered { active, is_whole })
}

/// Whether an optional step succeeded: on a full disk it is postponed, and the archive opens all the same.
fn done_if_room(shared: &Shared, what: &str, name: &str, done: std::io::Result<()>) -> Result<bool, Error> {
    let Err(error) = done else { return Ok(true) };
    let error = Error::io(what, name, error);
    if shared.disk_full.note(&error) { Ok(false) } else { Err(error) }
}

/// A replay as an addition to a segment, with its topics counted.
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
