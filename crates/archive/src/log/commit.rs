//! The second half of a commit: sync what was written, make it visible, answer.
//!
//! Under load this runs on a separate thread and takes all waiting commits with one sync for each of their files. A commit
//! arrives in two parts: the files to sync, at once, and the rows to publish, when the writer has staged them while the disk was
//! syncing.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread::JoinHandle,
    time::Instant,
};

use tokio::sync::oneshot;
use tracing::warn;

use super::{
    Shared,
    active::{Active, Staged},
    disk::DiskFile,
    schema::SegmentId,
    seal::Sealer,
};
use crate::{
    Error,
    topics::TopicId,
    waiting::{Answer, Append},
};

/// Queued work items, two for each commit; the writer waits when there are more.
const WAITING_MAX: usize = 16;

/// A commit whose records have been written and whose rows are staged.
pub(super) struct Commit {
    pub(super) staged: Vec<(Arc<Active>, Staged)>,
    /// The topic of each row, by its number in the archive.
    pub(super) topics: Vec<TopicId>,
    pub(super) group: Vec<Append>,
    /// The answer to each append of the group.
    pub(super) answers: Vec<Answer>,
}

/// A log that was written to.
pub(super) struct Written {
    pub(super) id: SegmentId,
    pub(super) file: Arc<dyn DiskFile>,
}

/// Work, done in the order in which it was queued.
pub(super) enum Work {
    /// Sync these. Their rows are staged meanwhile; the item that publishes them follows.
    Sync(Vec<Written>),
    /// Make visible what was synced before, and answer.
    Publish(Commit),
    /// Seal a segment that accepts no more messages, once all rows before it are visible.
    Seal(Arc<Active>),
    /// Reply when all earlier work is done.
    Reply(oneshot::Sender<()>),
}

/// The writer's end of the finishing thread. The thread ends when this is dropped and all work is done.
pub(super) struct Finisher {
    work: mpsc::SyncSender<Work>,
    handed_on: u64,
    finished: Arc<AtomicU64>,
}

impl Finisher {
    pub(super) fn start(shared: Arc<Shared>, sealer: Sealer) -> std::io::Result<(Self, JoinHandle<()>)> {
        let (work, waiting) = mpsc::sync_channel(WAITING_MAX);
        let finished = Arc::new(AtomicU64::new(0));
        let count = finished.clone();
        let thread = std::thread::Builder::new().name("archive-sync".into());
        let handle = thread.spawn(move || run(&shared, &sealer, &waiting, &count))?;
        Ok((Self { work, handed_on: 0, finished }, handle))
    }

    /// Queues work.
    pub(super) fn work(&mut self, work: Work) {
        self.handed_on += 1;
        if self.work.send(work).is_err() {
            warn!("the finishing thread has ended; nobody is answered any more");
        }
    }

    /// Waits until all queued work is done.
    pub(super) fn drain(&mut self) {
        let (done, drained) = oneshot::channel();
        self.work(Work::Reply(done));
        let _ = drained.blocking_recv(); // when the thread has ended there is nothing to wait for
    }

    pub(super) fn is_idle(&self) -> bool {
        self.finished.load(Ordering::Acquire) == self.handed_on
    }
}

fn run(shared: &Shared, sealer: &Sealer, waiting: &mpsc::Receiver<Work>, finished: &AtomicU64) {
    while let Ok(first) = waiting.recv() {
        let (mut written, mut commits, mut other) = (Vec::new(), Vec::new(), None);
        let mut done = 0;
        let mut next = Some(first);
        while let Some(work) = next {
            done += 1;
            match work {
                Work::Sync(files) => written.extend(files),
                Work::Publish(commit) => commits.push(commit),
                work => {
                    other = Some(work);
                    break;
                }
            }
            next = waiting.try_recv().ok();
        }
        sync(shared, &written);
        publish(shared, commits);
        match other {
            Some(Work::Seal(active)) => sealer.seal(active),
            Some(Work::Reply(sender)) => drop(sender.send(())), // the receiver may be gone
            Some(Work::Sync(_) | Work::Publish(_)) | None => {}
        }
        finished.fetch_add(done, Ordering::Release);
    }
}

/// Syncs each file once. After a failure nothing more is published.
pub(super) fn sync(shared: &Shared, written: &[Written]) {
    let mut synced: Vec<u64> = Vec::new();
    for Written { id, file } in written {
        if synced.contains(&id.sequence) || shared.check_refusal().is_err() {
            continue;
        }
        let begun = Instant::now();
        if let Err(error) = file.sync() {
            shared.refuse(format!("can't sync {}: {error}", id.log_name()));
        }
        shared.metrics.sync_seconds.observe(begun.elapsed().as_secs_f64());
        synced.push(id.sequence);
    }
}

/// Makes the rows of commits visible and answers their callers. All of the commits were synced, unless a sync failed.
pub(super) fn publish(shared: &Shared, commits: Vec<Commit>) {
    for commit in commits {
        if let Err(error) = shared.check_refusal() {
            fail(shared, commit, &error);
            continue;
        }
        for (active, staged) in commit.staged {
            active.publish(staged);
        }
        for (append, answer) in commit.group.into_iter().zip(commit.answers) {
            append.answer(answer);
        }
    }
}

fn fail(shared: &Shared, commit: Commit, error: &Error) {
    let mut dictionary = shared.dictionary.write();
    for id in &commit.topics {
        dictionary.discount(*id, 1);
    }
    drop(dictionary);
    for append in commit.group {
        append.fail(error);
    }
}
