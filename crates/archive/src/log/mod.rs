//! The embedded engine: an append-only log per window of time, each with an immutable index.
//!
//! `docs/design/archive.md` gives the reasons, `docs/formats/log.md` the files.
//!
//! - [`append`], [`commit`]: one thread writes, another syncs what was written and answers.
//! - [`active`], [`sealed`]: the two states of a segment, one [`segment::Find`] for both.
//! - [`seal`]: one thread that turns active segments into sealed ones.
//! - [`query`]: topics, segments, merge, page.
//! - [`recover`], [`check`]: the contents of a log, read at start-up and on request.
//! - [`segment_list`], [`damage`], [`heal`]: what segments should have, what they have lost, and what can be repaired.
//! - [`retention`]: deletes whole segments.
//! - [`mod@backup`]: copies the files as they are between two commits.

mod active;
mod append;
mod backup;
mod check;
mod checksums;
mod commit;
mod damage;
mod disk;
mod heal;
mod merge;
mod open;
mod order;
mod query;
mod recover;
mod retention;
mod schema;
mod seal;
mod sealed;
mod segment;
mod segment_list;
#[cfg(test)]
mod tests;

use std::{
    fs::File,
    path::Path,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
};

use async_trait::async_trait;
use parking_lot::{Mutex, RwLock};
use restante_core::{Clock, ErrorKind, Timestamp};
use tokio::sync::{mpsc, oneshot};
use tracing::{error, warn};

use self::{
    active::Active,
    append::Command,
    disk::Disk,
    segment::{Budget, Segment, Segments},
    segment_list::{Entry, SegmentList},
};
use crate::{
    Appended, Archive, Error, Finding, Health, LogConfig, Message, Metrics, Page, Pruned, Query, Report,
    Retention, Stats, Upkeep,
    disk_full::DiskFull,
    message::check_batch,
    topics::Dictionary,
    waiting::{MemoryBudget, closed},
};

pub(crate) use self::{open::open, schema::LOG_HEADER_BYTES};

/// The most bytes that a query verifies on the caller's thread. A page whose records were served before needs no verification,
/// and is built in well under half a millisecond.
const INLINE_VERIFY_BYTES_MAX: usize = 256 << 10;
/// The largest segment: offsets are 32 bits wide.
const SEGMENT_BYTES_MAX: u64 = 2 << 30;

/// The settings in force.
#[derive(Clone, Copy, Debug)]
struct Limits {
    window_ns: i64,
    segment_bytes: u64,
    segment_messages: u64,
    open_segments: usize,
    quiet_seconds: u64,
    queue_bytes: usize,
}

impl Limits {
    /// Segments are sized so that the part that a retention policy can't remove yet is at most an eighth of what it keeps.
    fn new(config: &LogConfig, retention: &Retention) -> Self {
        let eighth = |limit: Option<u64>, least: u64| limit.map_or(u64::MAX, |limit| (limit / 8).max(least));
        let window_seconds = config.window_seconds.get().min(eighth(retention.time_seconds, 60));
        let segment_bytes = config.segment_bytes.get().min(eighth(retention.size_bytes, 1 << 20));
        let segment_messages = config.segment_messages.get().min(eighth(retention.capacity, 1_000));
        Self {
            window_ns: append::window_ns(window_seconds),
            segment_bytes: segment_bytes.clamp(1 << 16, SEGMENT_BYTES_MAX),
            segment_messages,
            open_segments: config.open_segments.get(),
            quiet_seconds: config.quiet_seconds,
            queue_bytes: config.queue_bytes.get(),
        }
    }
}

/// The state that all threads of the engine share.
struct Shared {
    disk: Arc<dyn Disk>,
    limits: Limits,
    segments: RwLock<Segments>,
    dictionary: RwLock<Dictionary>,
    last_sequence: AtomicU64,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
    /// Why writes are refused: after a failed sync it is unknown what the disk has kept.
    refusal: OnceLock<String>,
    /// Whether writes find no space. Such writes were not acknowledged, and the next write is tried as usual.
    disk_full: DiskFull,
    /// Locked while segments are removed, and by a backup that needs their files.
    removing: Arc<tokio::sync::Mutex<()>>,
    /// Held until the archive is closed, if it is open for writing.
    lock: Mutex<Option<File>>,
    read_only: bool,
    /// What each segment should have.
    list: SegmentList,
    /// Known losses of an archive that had no list when it was opened, in addition to those that follow from the list.
    unlisted_losses: Mutex<Vec<damage::Loss>>,
    /// The losses when they were last counted.
    losses: Mutex<Vec<damage::Loss>>,
    /// Problems with indexes and the list that were found when the archive was opened for reading: a writer repairs them.
    opening_findings: Mutex<Vec<Finding>>,
    /// Files that are set aside now.
    damaged_files: AtomicU64,
    /// Held while damaged indexes are rebuilt.
    healing: Mutex<()>,
    /// Held while a segment is loaded to replace another one, which counts its topics a second time, and while one is
    /// removed: so `stats` never counts topics of a segment that is gone.
    replacing: Mutex<()>,
}

impl Shared {
    /// The segments as they are now.
    fn segments(&self) -> Segments {
        self.segments.read().clone()
    }

    fn change_segments(&self, change: impl FnOnce(&mut Vec<Segment>)) {
        let mut segments = self.segments.write();
        let mut changed = Vec::clone(&segments);
        change(&mut changed);
        let sealed = changed.iter().filter(|segment| matches!(segment, Segment::Sealed(_))).count();
        self.metrics.sealed_segments.set(sealed as i64);
        *segments = Arc::new(changed);
    }

    /// Replaces the segment with that sequence number and uncounts the old one's topics; if it no longer exists, uncounts the new
    /// one's and returns `false`.
    fn replace(&self, sequence: u64, new: Segment) -> bool {
        let mut old = None;
        self.change_segments(|segments| {
            if let Some(place) = segments.iter_mut().find(|segment| segment.sequence() == sequence) {
                old = Some(std::mem::replace(place, new.clone()));
            }
        });
        self.forget_topics(old.as_ref().unwrap_or(&new));
        old.is_some()
    }

    /// Removes a segment from the list.
    fn remove_segment(&self, sequence: u64) {
        let _not_while_replacing = self.replacing.lock();
        let mut removed = None;
        self.change_segments(|segments| {
            let place = segments.iter().position(|segment| segment.sequence() == sequence);
            removed = place.map(|place| segments.remove(place));
        });
        if let Some(segment) = removed {
            self.forget_topics(&segment);
        }
    }

    fn forget_topics(&self, segment: &Segment) {
        let counts = match segment {
            Segment::Active(active) => active.topic_counts(),
            Segment::Sealed(sealed) => sealed.topic_counts(),
        };
        let mut dictionary = self.dictionary.write();
        for (id, messages) in counts {
            dictionary.discount(id, messages);
        }
    }

    fn active(&self) -> Vec<Arc<Active>> {
        let segments = self.segments();
        let active = segments.iter().filter_map(|segment| match segment {
            Segment::Active(active) => Some(active.clone()),
            Segment::Sealed(_) => None,
        });
        active.collect()
    }

    /// Refuses writes from now on, until the archive is opened again.
    fn refuse(&self, why: String) -> Error {
        let refusal =
            self.refusal.get_or_init(|| why + "; the archive takes no messages until it is opened again");
        error!(refusal, "the archive takes no more messages");
        Error::unavailable(refusal.clone())
    }

    fn check_refusal(&self) -> Result<(), Error> {
        let refusal = self.refusal.get();
        refusal.map_or(Ok(()), |refusal| Err(Error::unavailable(refusal.clone())))
    }

    /// Records the contents of the open segments in the list. All of it is durable, so what is missing at the next open was lost.
    /// If this fails, a partly written end looks like a loss.
    fn list_open_segments(&self) {
        let active = self.active();
        let entries: Vec<Entry> = active
            .iter()
            .filter(|active| active.rows() > 0)
            .map(|active| Entry::of_active(active, false))
            .collect();
        if let Err(error) = self.list.put(self, &entries) {
            warn!(%error, "can't write down what the open segments have");
        }
    }

    fn next_sequence(&self) -> u64 {
        self.last_sequence.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// An unguessable number.
    fn salt(&self) -> u64 {
        use std::hash::{BuildHasher, RandomState};
        RandomState::new().hash_one(self.last_sequence.load(Ordering::Relaxed))
    }

    fn file_len(&self, name: &str) -> Result<u64, Error> {
        let files = self.disk.list().map_err(|error| Error::io("list", "the archive's folder", error))?;
        let found = files.into_iter().find(|(other, _)| other == name);
        found.map(|(_, len)| len).ok_or_else(|| Error::not_found(format!("{name} is gone")))
    }
}

/// Whether a folder holds an archive: a segment, or the lock of one that never had a message.
pub(crate) fn holds_archive(folder: &Path) -> std::io::Result<bool> {
    let (mut has_lock, mut has_folders) = (false, false);
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        has_folders |= entry.file_type()?.is_dir();
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_segment = name.len() >= "00000001.log".len() && schema::sequence_of(&name).is_some();
        if is_segment {
            return Ok(true);
        }
        has_lock |= name == open::LOCK_NAME;
    }
    // Other stores have a lock of that name and also subfolders; this engine creates no subfolders.
    Ok(has_lock && !has_folders)
}

/// The engine behind the traits.
struct Log {
    shared: Arc<Shared>,
    /// `None` when read-only.
    writer: Option<mpsc::Sender<Command>>,
    budget: MemoryBudget,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[async_trait]
impl Archive for Log {
    async fn append(&self, messages: Vec<Message>) -> Result<Vec<Appended>, Error> {
        check_batch(&messages)?;
        if messages.is_empty() {
            return Ok(Vec::new());
        }
        let writer = self.writer()?;
        let (append, answered) = self.budget.admit(messages).await?;
        writer.send(Command::Append(append)).await.map_err(|_| closed())?;
        answered.await.map_err(|_| closed())?
    }

    async fn query(&self, query: &Query) -> Result<Page, Error> {
        match self.query_inline(query) {
            // A damaged index is rebuilt, which takes time.
            Some(Err(error)) if error.kind() == ErrorKind::Corrupt => {}
            Some(answer) => return answer,
            None => {}
        }
        // Cold data is read and verified on a thread that may wait for the disk.
        let (shared, query) = (self.shared.clone(), query.clone());
        blocking(move || heal::query(&shared, &query)).await
    }
}

/// Runs work that may take long on the blocking pool.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let joined = tokio::task::spawn_blocking(work).await;
    joined.unwrap_or_else(|error| Err(Error::internal("an archive task ended early").with_source(error)))
}

impl Log {
    /// The answer, if little has to be verified for it.
    fn query_inline(&self, query: &Query) -> Option<Result<Page, Error>> {
        let budget = Budget::of(INLINE_VERIFY_BYTES_MAX);
        let answer = query::query(&self.shared, query, &budget);
        (!budget.is_spent()).then_some(answer)
    }

    /// The sender to the writer, until the archive is closed.
    fn writer(&self) -> Result<&mpsc::Sender<Command>, Error> {
        self.writer.as_ref().filter(|_| !self.budget.is_closed()).ok_or_else(closed)
    }
}

#[async_trait]
impl Upkeep for Log {
    async fn stats(&self) -> Result<Stats, Error> {
        self.shared.disk_full.refresh();
        let segments = self.shared.segments();
        let spans = || segments.iter().filter_map(Segment::span);
        let files =
            self.shared.disk.list().map_err(|error| Error::io("list", "the archive's folder", error))?;
        let mut parts: Vec<_> = segments.iter().map(Segment::stats).collect();
        parts.sort_by_key(|part| part.oldest);
        Ok(Stats {
            engine: "log",
            messages: segments.iter().map(Segment::rows).sum(),
            topics: self.shared.dictionary.read().len(),
            body_bytes: segments.iter().map(Segment::body_bytes).sum(),
            disk_bytes: files.iter().map(|(_, len)| len).sum(),
            oldest: spans().map(|span| span.oldest).min(),
            newest: spans().map(|span| span.newest).max(),
            damaged: self.shared.metrics.damaged.get(),
            parts,
        })
    }

    fn health(&self) -> Health {
        let damage = damage::describe(&self.shared);
        if let Some(refusal) = self.shared.refusal.get() {
            return Health { problem: Some(refusal.clone()), damage, ..Health::default() };
        }
        let (problem, since) = self.shared.disk_full.problem().unzip();
        Health { problem, since, damage, ..Health::default() }
    }

    async fn prune(&self, policy: &Retention, now: Timestamp) -> Result<Pruned, Error> {
        let writer = self.writer()?;
        let lets_nothing_go = retention::choose(&self.shared.segments(), policy, now).is_empty();
        let lost_before = policy.oldest_kept(now);
        if lets_nothing_go && !retention::has_lost_before(&self.shared, lost_before) {
            return Ok(Pruned::default());
        }
        let turn = self.shared.removing.clone().lock_owned().await;
        let (chosen, sequences) = oneshot::channel();
        writer.send(Command::Retire { policy: *policy, now, chosen }).await.map_err(|_| closed())?;
        let sequences = sequences.await.map_err(|_| closed())?;
        let shared = self.shared.clone();
        // The permit belongs to the work, which continues when the caller is gone.
        blocking(move || {
            let pruned = retention::remove(&shared, &sequences, lost_before);
            shared.disk_full.look();
            drop(turn);
            pruned
        })
        .await
    }

    fn not_pruned(&self, policy: &Retention, now: Timestamp) -> Option<String> {
        retention::not_removed(&self.shared.segments(), policy, now)
    }

    async fn check(&self, progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<Report, Error> {
        tokio::task::yield_now().await;
        Ok(check::check(&self.shared, progress))
    }

    async fn rebuild(&self, progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<Report, Error> {
        self.writer()?;
        check::rebuild(&self.shared, progress)
    }

    async fn backup(&self, folder: &Path) -> Result<(), Error> {
        let writer = self.writer()?;
        let turn = self.shared.removing.clone().lock_owned().await;
        let (seen, snapshot) = oneshot::channel();
        writer.send(Command::Look { seen }).await.map_err(|_| closed())?;
        let snapshot = snapshot.await.map_err(|_| closed())?;
        let (shared, folder) = (self.shared.clone(), folder.to_owned());
        blocking(move || {
            let written = backup::write(&shared, &snapshot, &folder);
            drop(turn);
            written
        })
        .await
    }

    async fn close(&self) -> Result<(), Error> {
        let Some(writer) = &self.writer else { return Ok(()) };
        self.budget.close();
        let (done, closed) = oneshot::channel();
        if writer.send(Command::Close { done }).await.is_ok() {
            let _ = closed.await; // the writer may have ended already, which is as good
        }
        let threads = std::mem::take(&mut *self.threads.lock());
        let shared = self.shared.clone();
        if threads.is_empty() {
            return Ok(()); // closed already
        }
        blocking(move || {
            for thread in threads {
                if thread.join().is_err() {
                    return Err(Error::internal("a thread of the archive has panicked"));
                }
            }
            shared.list_open_segments();
            *shared.lock.lock() = None;
            Ok(())
        })
        .await
    }
}
