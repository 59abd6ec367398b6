//! The writer: one thread makes all changes, so that a decision about a blob holds until it is carried out.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use restante_core::{BlobId, ErrorKind, Timestamp};
use tokio::sync::mpsc::{self, error::TryRecvError};
use tracing::warn;

use super::{
    append::{Appender, Record},
    index::{Entry, Location, Row},
    queue::{Answered, Job, PendingPut, Waiter},
    receive::{Content, Incoming, Received},
    rewrite::Rewrites,
    schema::{FILES, file_name},
    shared::Shared,
};
use crate::{Error, Put};

/// The most blobs of a group commit.
const GROUP_BLOBS_MAX: usize = 1_024;
/// A group with this many bytes takes no more blobs.
const GROUP_BYTES_MAX: usize = 8 << 20;
/// Blobs whose rows may wait. They are written together, because each write of the index is a sync; after a crash they are read
/// again from the ends of the packs.
const PENDING_MAX: usize = 1_024;

pub(super) struct Writer {
    pub(super) shared: Arc<Shared>,
    pub(super) appender: Appender,
    pub(super) rewrites: Rewrites,
    /// Packs whose rows are outdated.
    pub(super) changed: BTreeSet<u64>,
    /// Whether there are blobs that may not be durable yet.
    pub(super) has_unsynced: bool,
    /// The latest time seen. When the clock is set back, a put must not look older than a sweep that began before.
    pub(super) latest: Timestamp,
}

/// A blob is moved, put again, added or removed.
#[derive(Clone, Copy)]
pub(super) struct Move {
    pub(super) id: BlobId,
    pub(super) old: Option<Entry>,
    pub(super) new: Option<Entry>,
}

impl Move {
    /// Whether it leaves a file to remove.
    pub(super) fn frees_file(&self) -> bool {
        let is_file = |entry: Option<Entry>| entry.is_some_and(|entry| entry.location == Location::File);
        is_file(self.old) && !is_file(self.new)
    }
}

/// A blob of a group, and all its waiters.
struct Work {
    id: BlobId,
    bytes: u64,
    content: Content,
    /// Its row before.
    known: Option<Entry>,
    waiters: Vec<Waiter>,
    /// Its new row.
    entry: Option<Entry>,
    error: Option<Error>,
}

impl Work {
    /// The time of the put: no put makes a blob older.
    fn put_at(&self, now: Timestamp) -> Timestamp {
        self.known.map_or(now, |known| known.put_at.max(now))
    }

    fn is_appended(&self) -> bool {
        match (&self.content, &self.known) {
            (Content::Packed { .. }, None) => true,
            (Content::Packed { damaged, .. }, Some(known)) => {
                damaged.is_some_and(|damaged| damaged.location == known.location)
            }
            (Content::File { .. }, _) => false,
        }
    }

    /// The change that must be indexed before the put is acknowledged. A new blob in a pack needs none: its record is enough.
    fn awaited(&self) -> Option<Move> {
        let is_pending = self.known.is_none() && self.is_appended();
        let is_done = self.error.is_none() && self.entry.is_some() && !is_pending;
        is_done.then_some(Move { id: self.id, old: self.known, new: self.entry })
    }

    fn answer(self) {
        let mut is_new = self.known.is_none();
        for waiter in self.waiters {
            match &self.error {
                Some(error) => waiter.answer(Err(error.duplicate())),
                None => waiter.answer(Ok(Put { id: self.id, bytes: self.bytes, is_new })),
            }
            is_new = false; // for a second put in the same group it exists
        }
    }
}

impl Writer {
    pub(super) fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        loop {
            let next = if self.rewrites.is_idle() {
                jobs.blocking_recv().ok_or(TryRecvError::Disconnected)
            } else {
                jobs.try_recv()
            };
            match next {
                Ok(job) => {
                    if let Some(answer) = self.work(job, &mut jobs) {
                        answer();
                        // A request that is queued after the close is answered that the store is closed.
                        jobs.close();
                        while jobs.blocking_recv().is_some() {}
                        return;
                    }
                }
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => {
                    let _ = self.flush_index(&[], vec![]); // if it fails, the next opening reads the packs
                    return self.appender.close();
                }
            }
            self.rewrite_some();
        }
    }

    /// Does a job, together with the puts that follow it; returns what is left to do after the last job.
    fn work(&mut self, job: Job, jobs: &mut mpsc::Receiver<Job>) -> Option<Box<dyn FnOnce()>> {
        let mut puts = Vec::new();
        let mut bytes = 0;
        let mut next = Some(job);
        while let Some(Job::Put(_)) = next {
            let Some(Job::Put(putting)) = next.take() else { break };
            bytes += putting.received.held_bytes();
            puts.push(putting);
            if puts.len() < GROUP_BLOBS_MAX && bytes < GROUP_BYTES_MAX {
                next = jobs.try_recv().ok();
            }
        }
        if !puts.is_empty() {
            self.commit(puts);
        }
        match next? {
            Job::Put(_) => None,
            Job::Remove { ids, put_before, permit, answer } => {
                let removed = self.remove(ids, put_before);
                self.rewrites.begin(&self.shared, &mut self.appender, removed, permit, answer);
                None
            }
            Job::Touch { ids, answer, .. } => {
                let _ = answer.send(self.touch(&ids));
                None
            }
            Job::Sync(answer) => {
                let _ = answer.send(self.sync());
                None
            }
            Job::FlushIndex(answer) => {
                self.now(); // notes the time: a sweep lists before it removes
                let _ = answer.send(self.flush_index(&[], vec![]));
                None
            }
            Job::Close(answer) => {
                let flushed = self.flush_index(&[], vec![]);
                self.rewrites.stop();
                self.appender.close();
                Some(Box::new(move || drop(answer.send(flushed))))
            }
        }
    }

    fn commit(&mut self, puts: Vec<PendingPut>) {
        if let Err(error) = self.is_ready() {
            self.shared.note(Some(&error));
            return puts.into_iter().for_each(|put| put.waiter.answer(Err(error.duplicate())));
        }
        self.shared.metrics.commit_blobs.observe(puts.len() as f64);
        let now = self.now();
        let are_synced = puts.iter().any(|put| put.answered == Answered::WhenDurable);
        let mut works = self.gather(puts);
        self.append_new(&mut works, are_synced, now);
        if are_synced {
            self.sync_known(&mut works);
        }
        self.place_files(&mut works, now);
        touch_known(&mut works, now);
        self.settle_works(&mut works);
        // Before the answers, so that a client whose put succeeded finds the store healthy.
        self.shared.note(works.iter().find_map(|work| work.error.as_ref()));
        works.into_iter().for_each(Work::answer);
    }

    /// Makes blobs count as put now: in memory at once, which a removal looks up, and in the index with the next rows.
    fn touch(&mut self, ids: &[BlobId]) -> Result<Vec<bool>, Error> {
        self.is_ready()?;
        self.sync()?; // one of them may not be durable yet
        let now = self.now();
        let mut found = Vec::with_capacity(ids.len());
        for id in ids {
            let known = self.shared.find(*id)?;
            found.push(known.is_some());
            if let Some(entry) = known.filter(|known| known.put_at < now) {
                self.shared.pending.write().insert(*id, Entry { put_at: now, ..entry });
            }
        }
        self.settle_when_full();
        Ok(found)
    }

    fn now(&mut self) -> Timestamp {
        self.latest = self.latest.max(self.shared.clock.now());
        self.latest
    }

    /// Whether puts can be accepted, including those that waited when the store was closed: rows to write are bounded.
    fn is_ready(&mut self) -> Result<(), Error> {
        self.shared.check_unbroken()?;
        let is_full = self.shared.pending.read().len() >= 2 * PENDING_MAX;
        if is_full { self.flush_index(&[], vec![]) } else { Ok(()) }
    }

    /// Merges puts of the same blob, and looks up each.
    fn gather(&self, puts: Vec<PendingPut>) -> Vec<Work> {
        let mut works: Vec<Work> = Vec::with_capacity(puts.len());
        let mut by_id: HashMap<BlobId, usize> = HashMap::new();
        for PendingPut { received: Received { id, bytes, content }, waiter, .. } in puts {
            if let Some(work) = by_id.get(&id).and_then(|n| works.get_mut(*n)) {
                work.waiters.push(waiter);
                continue;
            }
            let (known, error) = match self.shared.find(id) {
                Ok(known) => (known, None),
                Err(error) => (None, Some(error)),
            };
            by_id.insert(id, works.len());
            works.push(Work { id, bytes, content, known, waiters: vec![waiter], entry: None, error });
        }
        works
    }

    /// Appends the new short blobs, and makes them durable if a put of the group waits for that. From then on they exist.
    fn append_new(&mut self, works: &mut [Work], are_synced: bool, now: Timestamp) {
        let mut appended: Vec<&mut Work> =
            works.iter_mut().filter(|work| work.error.is_none() && work.is_appended()).collect();
        let records = appended.iter().filter_map(|work| match &work.content {
            Content::Packed { bytes, .. } => Some(Record { id: work.id, bytes, put_at: work.put_at(now) }),
            Content::File { .. } => None,
        });
        let written = self.appender.append(records);
        let entries = match written.and_then(|entries| match are_synced {
            true => self.appender.sync().map(|()| entries),
            false => Ok(entries),
        }) {
            Ok(entries) => entries,
            Err(error) => return appended.iter_mut().for_each(|work| work.error = Some(error.duplicate())),
        };
        self.has_unsynced = !are_synced && (self.has_unsynced || !entries.is_empty());
        for (work, entry) in appended.into_iter().zip(entries) {
            self.note_pack(&entry);
            work.entry = Some(entry);
            if work.known.is_none() {
                self.shared.ledger.lock().add(&entry);
                self.shared.pending.write().insert(work.id, entry);
            }
        }
    }

    /// Makes blobs durable that existed before this group, and may have been put without a sync.
    fn sync_known(&mut self, works: &mut [Work]) {
        if let Err(error) = self.sync() {
            let sound = works.iter_mut().filter(|work| work.error.is_none());
            sound.for_each(|work| work.error = Some(error.duplicate()));
        }
    }

    /// Makes all blobs durable.
    fn sync(&mut self) -> Result<(), Error> {
        if self.has_unsynced {
            self.appender.sync()?;
            self.has_unsynced = false;
        }
        Ok(())
    }

    /// Renames the received files to their final names.
    fn place_files(&mut self, works: &mut [Work], now: Timestamp) {
        let mut placed: Vec<&mut Work> = works
            .iter_mut()
            .filter(|work| work.error.is_none() && matches!(work.content, Content::File { .. }))
            .collect();
        if placed.is_empty() {
            return;
        }
        let done = self.note_loose(&placed).and_then(|()| {
            let mut folders = BTreeSet::from([FILES.to_owned()]);
            for work in &mut placed {
                let Content::File { file, .. } = &mut work.content else { continue };
                match self.place(work.id, file, &mut folders) {
                    Ok(()) => {
                        let (bytes, put_at) = (work.bytes, work.put_at(now));
                        work.entry = Some(Entry { location: Location::File, bytes, put_at });
                    }
                    Err(error) => work.error = Some(error),
                }
            }
            self.sync_folders(&folders)
        });
        if let Err(error) = done {
            placed.iter_mut().for_each(|work| work.error = Some(error.duplicate()));
        }
    }

    /// Notes files before they are renamed: after a power cut before the blob is indexed, the file is found and removed.
    fn note_loose(&self, placed: &[&mut Work]) -> Result<(), Error> {
        let has_file = |work: &Work| work.known.is_some_and(|known| known.location == Location::File);
        let rows = placed.iter().filter(|work| !has_file(work)).map(|work| Row::Loose(work.id));
        self.shared.index()?.write(rows.collect())
    }

    /// Renames a file, replacing one of the same name, which has the same bytes or is damaged.
    fn place(&self, id: BlobId, file: &mut Incoming, folders: &mut BTreeSet<String>) -> Result<(), Error> {
        let (name, [folder, above]) = file_name(id);
        let disk = &self.shared.disk;
        let made = disk.create_folder(&above).and_then(|()| disk.create_folder(&folder));
        let placed = made.and_then(|()| disk.rename(&file.name, &name));
        placed.map_err(|error| Error::new(kind_of(&error), format!("can't place {name}: {error}")))?;
        file.mark_placed();
        folders.extend([folder, above]);
        Ok(())
    }

    pub(super) fn sync_folders(&self, folders: &BTreeSet<String>) -> Result<(), Error> {
        for folder in folders {
            let synced = self.shared.disk.sync_folder(folder);
            synced.map_err(|error| self.shared.sync_failed("sync", folder, error))?;
        }
        Ok(())
    }

    /// Makes durable what must be indexed before the group is acknowledged.
    fn settle_works(&mut self, works: &mut [Work]) {
        let awaited: Vec<Move> = works.iter().filter_map(Work::awaited).collect();
        if awaited.is_empty() {
            return self.settle_when_full();
        }
        let mut rows = Vec::new();
        for work in works.iter().filter(|work| work.awaited().is_some()) {
            if let Content::File { sums, .. } = &work.content {
                rows.extend([Row::Sums(work.id, sums.clone()), Row::LooseGone(work.id)]);
            }
        }
        match self.flush_index(&awaited, rows) {
            Ok(()) => self.remove_freed(&awaited),
            Err(error) => {
                for work in works.iter_mut().filter(|work| work.awaited().is_some()) {
                    work.error = Some(error.duplicate());
                }
            }
        }
    }

    /// Writes waiting rows when there are many. After an error they wait on.
    fn settle_when_full(&mut self) {
        if self.shared.pending.read().len() >= PENDING_MAX
            && let Err(error) = self.flush_index(&[], vec![])
        {
            warn!(%error, "the index of the blobs can't be written; it is tried again");
        }
    }

    /// Writes waiting rows and some changes to the index, all or nothing, once the blobs are durable.
    pub(super) fn flush_index(&mut self, moves: &[Move], rows: Vec<Row>) -> Result<(), Error> {
        self.sync()?;
        let index = self.shared.index()?;
        let mut all: Vec<Row> = Vec::new();
        all.extend(self.shared.pending.read().iter().map(|(id, entry)| Row::Blob(*id, *entry)));
        for change in moves {
            change.old.iter().chain(&change.new).for_each(|entry| self.note_pack(entry));
            all.push(match change.new {
                Some(entry) => Row::Blob(change.id, entry),
                None => Row::BlobGone(change.id),
            });
            if change.frees_file() {
                all.extend([Row::SumsGone(change.id), Row::Loose(change.id)]);
            }
        }
        all.extend(rows);
        self.shared.ledger.lock().apply(moves);
        all.extend(self.shared.ledger.lock().rows(&self.changed));
        if let Err(error) = index.write(all) {
            self.shared.ledger.lock().revert(moves);
            return Err(error);
        }
        self.changed.clear();
        self.shared.pending.write().clear();
        Ok(())
    }

    fn note_pack(&mut self, entry: &Entry) {
        if let Location::Pack { number, .. } = entry.location {
            self.changed.insert(number);
        }
    }
}

/// Makes an existing blob that was put again count as put now.
fn touch_known(works: &mut [Work], now: Timestamp) {
    for work in works {
        if work.error.is_none() && work.entry.is_none() {
            let put_at = work.put_at(now);
            work.entry = work.known.map(|known| Entry { put_at, ..known });
        }
    }
}

/// A missing folder or file is never `NotFound`, which would mean the blob.
fn kind_of(error: &std::io::Error) -> ErrorKind {
    match ErrorKind::of_io(error.kind()) {
        ErrorKind::NotFound => ErrorKind::Unavailable,
        kind => kind,
    }
}
