//! The second half of a commit: sync what was written, make it visible, answer.
//!
//! Under load this runs on a thread of its own and takes all commits that wait with one sync for each of their files.

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
    active::{Active, Addition},
    append::{Answer, Append},
    disk::DiskFile,
    seal::Sealer,
};
use crate::{Error, topics::TopicId};

/// Commits that may be written and not synced; the writer waits when there are more.
const WAITING_MAX: usize = 8;

/// A commit whose records have been written.
pub(super) struct Commit {
    pub(super) touched: Vec<Touched>,
    pub(super) group: Vec<Append>,
    /// The answer to each append of the group.
    pub(super) answers: Vec<Answer>,
}

/// What a commit has written to one segment.
pub(super) struct Touched {
    pub(super) active: Arc<Active>,
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) addition: Addition,
    /// The topic of each row, by number in the archive.
    pub(super) topics: Vec<TopicId>,
}

/// What is done in the order in which it was handed on.
pub(super) enum Work {
    Commit(Commit),
    /// Seal a segment that takes no more messages, once all before it are visible.
    Seal(Arc<Active>),
    /// Tell somebody that everything before is done.
    Tell(oneshot::Sender<()>),
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

    /// Hands work on and returns its number.
    pub(super) fn work(&mut self, work: Work) -> u64 {
        self.handed_on += 1;
        if self.work.send(work).is_err() {
            warn!("the finishing thread has ended; nobody is answered any more");
        }
        self.handed_on
    }

    /// The number of the last work that is done, with all before it.
    pub(super) fn finished(&self) -> u64 {
        self.finished.load(Ordering::Acquire)
    }

    /// Waits until everything that was handed on is done.
    pub(super) fn drain(&mut self) {
        let (done, drained) = oneshot::channel();
        self.work(Work::Tell(done));
        let _ = drained.blocking_recv(); // when the thread has ended there is nothing to wait for
    }

    pub(super) fn is_idle(&self) -> bool {
        self.finished() == self.handed_on
    }
}

fn run(shared: &Shared, sealer: &Sealer, waiting: &mpsc::Receiver<Work>, finished: &AtomicU64) {
    while let Ok(first) = waiting.recv() {
        let mut commits = Vec::new();
        let mut next = Some(first);
        let mut other = None;
        while let Some(work) = next {
            match work {
                Work::Commit(commit) => commits.push(commit),
                work => {
                    other = Some(work);
                    break;
                }
            }
            next = waiting.try_recv().ok();
        }
        let done = commits.len() + usize::from(other.is_some());
        finish(shared, commits);
        match other {
            Some(Work::Seal(active)) => sealer.seal(active),
            Some(Work::Tell(done)) => drop(done.send(())), // who asked may have gone away
            Some(Work::Commit(_)) | None => {}
        }
        finished.fetch_add(done as u64, Ordering::Release);
    }
}

/// Syncs the files of all commits once each, makes their rows visible and answers everybody.
pub(super) fn finish(shared: &Shared, commits: Vec<Commit>) {
    let result = shared.check_refusal().and_then(|()| sync(shared, &commits));
    for commit in commits {
        match &result {
            Ok(()) => publish(commit),
            Err(error) => fail(shared, commit, error),
        }
    }
}

fn sync(shared: &Shared, commits: &[Commit]) -> Result<(), Error> {
    let mut synced: Vec<u64> = Vec::new();
    for touched in commits.iter().flat_map(|commit| &commit.touched) {
        let sequence = touched.active.id.sequence;
        if synced.contains(&sequence) {
            continue;
        }
        let begun = Instant::now();
        if let Err(error) = touched.file.sync() {
            return Err(shared.refuse(format!("can't sync {}: {error}", touched.active.id.log_name())));
        }
        shared.metrics.sync_seconds.observe(begun.elapsed().as_secs_f64());
        synced.push(sequence);
    }
    Ok(())
}

fn publish(commit: Commit) {
    for touched in commit.touched {
        touched.active.add(touched.addition);
    }
    for (append, answer) in commit.group.into_iter().zip(commit.answers) {
        append.answer(answer);
    }
}

fn fail(shared: &Shared, commit: Commit, error: &Error) {
    let mut dictionary = shared.dictionary.write();
    for id in commit.touched.iter().flat_map(|touched| &touched.topics) {
        dictionary.discount(*id, 1);
    }
    drop(dictionary);
    for append in commit.group {
        append.fail(error);
    }
}
