//! Power cuts: a recorder notes every step on the disk, the recording is cut at random points, and whatever a disk may have kept
//! at that moment must open with every acknowledged message and without a damaged one.
//!
//! The disk is the worst that is allowed: of everything that was not synced, each 512-byte sector is kept or lost independently,
//! files may have any length in between, and files that were created, renamed or removed since the folder was last synced may be
//! there or not.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use restante_core::{Key, Timestamp};

use super::{SECOND, everything, message, open, runtime};
use crate::{
    Message,
    log::{
        disk::{Disk, DiskFile, Folder},
        schema::Index,
    },
};

/// The least time that a sync takes while it is recorded.
const SYNC_TIME: Duration = Duration::from_millis(1);

#[derive(Clone, Debug)]
enum Event {
    Create {
        name: String,
        file: usize,
    },
    Write {
        file: usize,
        offset: u64,
        bytes: Vec<u8>,
    },
    Cut {
        file: usize,
        len: u64,
    },
    Reserve {
        file: usize,
        end: u64,
    },
    Sync {
        file: usize,
    },
    Rename {
        from: String,
        to: String,
    },
    Remove {
        name: String,
    },
    SyncFolder,
    /// From here on these messages must exist.
    Acknowledged(Vec<Message>),
    /// From here on messages before this may be missing.
    Pruning(Timestamp),
}

#[derive(Default)]
struct Recording {
    events: Mutex<Vec<Event>>,
    files: Mutex<BTreeMap<String, usize>>,
    files_created: Mutex<usize>,
}

impl Recording {
    fn note(&self, event: Event) {
        self.events.lock().push(event);
    }
}

struct Recorder {
    folder: Folder,
    recording: Arc<Recording>,
}

struct RecorderFile {
    file: Box<dyn DiskFile>,
    number: usize,
    recording: Arc<Recording>,
}

// A step that makes things durable is noted after it was done, every other one before: so the recording may assume that more
// could be lost than really could, never less.
impl Disk for Recorder {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path(name)
    }

    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        self.folder.list()
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let number = {
            let mut created = self.recording.files_created.lock();
            *created += 1;
            *created - 1
        };
        self.recording.note(Event::Create { name: name.to_owned(), file: number });
        let file = self.folder.create(name)?;
        self.recording.files.lock().insert(name.to_owned(), number);
        Ok(Box::new(RecorderFile { file, number, recording: self.recording.clone() }))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        let number = self.recording.files.lock()[name];
        Ok(Box::new(RecorderFile {
            file: self.folder.open(name)?,
            number,
            recording: self.recording.clone(),
        }))
    }

    fn create_folder(&self, _name: &str) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into()) // a log has none
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.recording.note(Event::Rename { from: from.to_owned(), to: to.to_owned() });
        let mut files = self.recording.files.lock();
        let number = files.remove(from).unwrap();
        files.insert(to.to_owned(), number);
        self.folder.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        if self.recording.files.lock().remove(name).is_some() {
            self.recording.note(Event::Remove { name: name.to_owned() });
        }
        self.folder.remove(name)
    }

    fn sync_folder(&self, name: &str) -> io::Result<()> {
        self.folder.sync_folder(name)?;
        self.recording.note(Event::SyncFolder);
        Ok(())
    }
}

impl DiskFile for RecorderFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.recording.note(Event::Write { file: self.number, offset, bytes: bytes.to_vec() });
        self.file.write_at(bytes, offset)
    }

    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn sync(&self) -> io::Result<()> {
        // A real disk takes time, in which other threads continue: what doesn't wait for the sync is recorded before it.
        std::thread::sleep(SYNC_TIME);
        self.file.sync()?;
        self.recording.note(Event::Sync { file: self.number });
        Ok(())
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        self.recording.note(Event::Reserve { file: self.number, end: offset + len });
        self.file.reserve(offset, len)
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file.allocate(offset, len)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.recording.note(Event::Cut { file: self.number, len });
        self.file.set_len(len)
    }
}

/// Three appenders, some of whose messages are late, an occasional prune, and once a close and an open in between.
fn record(seed: u64) -> Vec<Event> {
    let folder = tempfile::tempdir().unwrap();
    let recording = Arc::new(Recording::default());
    let runtime = runtime();
    let next = Arc::new(AtomicU32::new(0));
    for round in 0..2 {
        let disk = Recorder { folder: Folder::new(folder.path()), recording: recording.clone() };
        runtime.block_on(async {
            let opened = open(Arc::new(disk)).unwrap();
            let mut tasks = Vec::new();
            for task in 0..3 {
                let (archive, recording, next) = (opened.archive.clone(), recording.clone(), next.clone());
                let mut random = ChaCha8Rng::seed_from_u64(seed * 10 + round * 3 + task);
                tasks.push(tokio::spawn(async move {
                    for _ in 0..40 {
                        let batch: Vec<Message> = (0..random.random_range(1..6))
                            .map(|_| {
                                // Numbers determine timestamps; they are shuffled a little so that some messages are late.
                                let n = next.fetch_add(1, Ordering::SeqCst) ^ random.random_range(0..64);
                                message(n, random.random_range(0..2_000))
                            })
                            .collect();
                        archive.append(batch.clone()).await.unwrap();
                        recording.note(Event::Acknowledged(batch));
                    }
                }));
            }
            for task in tasks {
                task.await.unwrap();
            }
            let oldest_kept = Timestamp(SECOND * (round as i64 + 1) * 2);
            recording.note(Event::Pruning(oldest_kept));
            opened.upkeep.prune(&"time:100".parse().unwrap(), oldest_kept.plus_seconds(100)).await.unwrap();
            opened.upkeep.close().await.unwrap();
        });
    }
    std::mem::take(&mut recording.events.lock())
}

/// A file as the disk has it: what is certainly kept, and what was done since.
#[derive(Clone, Default)]
struct FileState {
    synced: Vec<u8>,
    since: Vec<Event>,
}

/// The state that a power cut after the first `len` events leaves in `folder`.
fn leave_after_cut(events: &[Event], random: &mut impl Rng, folder: &Path) {
    let mut files: Vec<FileState> = Vec::new();
    let mut durable: BTreeMap<String, usize> = BTreeMap::new();
    let mut names_since: Vec<&Event> = Vec::new();
    for event in events {
        match event {
            Event::Create { file, .. } => {
                files.resize(files.len().max(file + 1), FileState::default());
                names_since.push(event);
            }
            Event::Rename { .. } | Event::Remove { .. } => names_since.push(event),
            Event::Write { file, .. } | Event::Cut { file, .. } | Event::Reserve { file, .. } => {
                files[*file].since.push(event.clone());
            }
            Event::Sync { file } => {
                let state = &mut files[*file];
                for done in std::mem::take(&mut state.since) {
                    apply(&mut state.synced, &done, |_| true);
                }
            }
            Event::SyncFolder => {
                for change in names_since.drain(..) {
                    rename(&mut durable, change);
                }
            }
            Event::Acknowledged(_) | Event::Pruning(_) => {}
        }
    }
    for change in names_since {
        if random.random() {
            rename(&mut durable, change);
        }
    }
    for (name, file) in durable {
        let FileState { mut synced, since } = files[file].clone();
        for done in since {
            match random.random_range(0..4) {
                0 => {}
                1 => apply(&mut synced, &done, |_| true),
                _ => apply(&mut synced, &done, |_| random.random()),
            }
        }
        std::fs::write(folder.join(name), synced).unwrap();
    }
}

fn rename(names: &mut BTreeMap<String, usize>, change: &Event) {
    match change {
        Event::Create { name, file } => {
            names.insert(name.clone(), *file);
        }
        Event::Rename { from, to } => {
            if let Some(file) = names.remove(from) {
                names.insert(to.clone(), file);
            }
        }
        Event::Remove { name } => {
            names.remove(name);
        }
        _ => unreachable!("only changes of names are kept apart"),
    }
}

/// Applies an event to a file, as far as `keeps_sector` allows.
fn apply(content: &mut Vec<u8>, done: &Event, mut keeps_sector: impl FnMut(u64) -> bool) {
    const SECTOR: u64 = 512;
    match done {
        Event::Write { offset, bytes, .. } => {
            let end = offset + bytes.len() as u64;
            for sector in offset / SECTOR..end.div_ceil(SECTOR) {
                if !keeps_sector(sector) {
                    continue;
                }
                let from = (sector * SECTOR).max(*offset);
                let until = ((sector + 1) * SECTOR).min(end);
                content.resize(content.len().max(until as usize), 0);
                let kept = &bytes[(from - offset) as usize..(until - offset) as usize];
                content[from as usize..until as usize].copy_from_slice(kept);
            }
        }
        Event::Cut { len, .. } => content.resize(*len as usize, 0),
        Event::Reserve { end, .. } => content.resize(content.len().max(*end as usize), 0),
        _ => unreachable!("only changes of content are kept apart"),
    }
}

/// The first version of each acknowledged message, and the timestamp from which messages must exist.
fn promised(events: &[Event]) -> (BTreeMap<Key, Message>, Timestamp) {
    let mut acknowledged = BTreeMap::new();
    let mut oldest_kept = Timestamp::MIN;
    for event in events {
        match event {
            Event::Acknowledged(batch) => {
                for message in batch {
                    acknowledged.entry(message.key()).or_insert_with(|| message.clone());
                }
            }
            Event::Pruning(oldest) => oldest_kept = *oldest,
            _ => {}
        }
    }
    (acknowledged, oldest_kept)
}

fn check_cut(events: &[Event], random: &mut impl Rng, seed: u64, runtime: &tokio::runtime::Runtime) -> usize {
    let folder = tempfile::tempdir().unwrap();
    leave_after_cut(events, random, folder.path());
    let (acknowledged, oldest_kept) = promised(events);
    check_indexes(folder.path(), seed, events.len());
    runtime.block_on(async {
        let cut = events.len();
        let opened = open(Arc::new(Folder::new(folder.path()))).unwrap();
        let served: BTreeMap<Key, Message> =
            everything(&opened).await.into_iter().map(|message| (message.key(), message)).collect();
        for (key, message) in &acknowledged {
            let is_pruned = key.timestamp < oldest_kept;
            let is_there = served.contains_key(key);
            assert!(is_there || is_pruned, "seed {seed}, cut {cut}: acknowledged {message:?} is lost");
        }
        for message in served.values() {
            let n = u32::from_be_bytes(message.message_hash.0[4..8].try_into().unwrap());
            let original = super::message(n, message.body.len());
            assert_eq!(*message, original, "seed {seed}, cut {cut}: a damaged message is served");
        }
        let report = opened.upkeep.check(&|_, _| {}).await.unwrap();
        assert_eq!(report.lost, 0, "seed {seed}, cut {cut}: a power cut is taken for a loss: {report:?}");
        // The archive continues where it was: with one more message, and all of them again after another start.
        let more = message(100_000, 10);
        opened.archive.append(vec![more.clone()]).await.unwrap();
        opened.upkeep.close().await.unwrap();
        let opened = open(Arc::new(Folder::new(folder.path()))).unwrap();
        let mut expected: Vec<Message> = served.into_values().collect();
        expected.push(more);
        assert_eq!(
            everything(&opened).await,
            expected,
            "seed {seed}, cut {cut}: another start changes something"
        );
        opened.upkeep.close().await.unwrap();
    });
    acknowledged.len()
}

/// An index gets its name when it is durable: one that exists under that name after a power cut is complete.
fn check_indexes(folder: &Path, seed: u64, cut: usize) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "idx") {
            let opened = Index::open(std::fs::read(&path).unwrap().into());
            let is_whole = opened.is_ok_and(|(index, _)| index.columns_are_sound());
            assert!(is_whole, "seed {seed}, cut {cut}: {} is not whole", path.display());
        }
    }
}

/// RESTANTE_TEST_CUTS=100000 for a long run.
#[test]
fn a_thousand_power_cuts_lose_nothing_acknowledged_and_serve_nothing_damaged() {
    let cuts: u64 =
        std::env::var("RESTANTE_TEST_CUTS").ok().and_then(|cuts| cuts.parse().ok()).unwrap_or(1_000);
    let recordings: Vec<Vec<Event>> = (0..8).map(record).collect();
    let next = AtomicU32::new(0);
    let acknowledged = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let runtime = runtime();
                loop {
                    let seed = u64::from(next.fetch_add(1, Ordering::SeqCst));
                    if seed >= cuts {
                        return;
                    }
                    let mut random = ChaCha8Rng::seed_from_u64(seed);
                    let events = &recordings[seed as usize % recordings.len()];
                    let cut = random.random_range(0..=events.len());
                    let checked = check_cut(&events[..cut], &mut random, seed, &runtime);
                    acknowledged.fetch_add(checked, Ordering::SeqCst);
                }
            });
        }
    });
    assert!(acknowledged.into_inner() as u64 > cuts * 10, "the cuts have something to lose");
}

/// The recording must show what kill -9 can't: without syncs, acknowledged messages are lost.
#[test]
fn the_replay_notices_missing_syncs() {
    let events: Vec<Event> =
        record(99).into_iter().filter(|event| !matches!(event, Event::Sync { .. })).collect();
    let lost = (0..20).filter(|seed| {
        let mut random = ChaCha8Rng::seed_from_u64(*seed);
        let cut = events.len() / 2 + random.random_range(0..events.len() / 2);
        let folder = tempfile::tempdir().unwrap();
        leave_after_cut(&events[..cut], &mut random, folder.path());
        let (acknowledged, oldest_kept) = promised(&events[..cut]);
        runtime().block_on(async {
            let opened = open(Arc::new(Folder::new(folder.path()))).unwrap();
            let served = everything(&opened).await;
            opened.upkeep.close().await.unwrap();
            let is_lost = |message: &Message| message.timestamp >= oldest_kept && !served.contains(message);
            acknowledged.values().any(is_lost)
        })
    });
    assert!(lost.count() > 15);
}
