//! Groups of batches that are made durable together: while one is synced, the writer runs the writes of the next.

use std::{
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    time::Instant,
};

use restante_core::ErrorKind;
use tracing::error;

use crate::{Error, layer::Sequence, log::Slot, shared::Shared};

/// The hooks of a write, to be called later.
pub(crate) type Hooks = Vec<Box<dyn FnOnce() + Send>>;

/// Answers the caller of a write; returns the hooks to call when all of its group are answered.
pub(crate) type Answer = Box<dyn FnOnce(Result<(), Error>) -> Hooks + Send>;

/// Batches that become durable together, and the answers to their callers.
pub(crate) struct Group {
    /// Their frames and the space for them in the commit log; `None` when there is nothing to make durable.
    pub(crate) frames: Option<(Vec<u8>, Slot)>,
    /// The last batch of the group.
    pub(crate) last: Sequence,
    pub(crate) answers: Vec<Answer>,
    /// When its first write began.
    pub(crate) begun: Instant,
}

impl Group {
    /// Makes the group durable and visible, and answers. Returns the buffer of the frames, to be reused.
    pub(crate) fn finish(self, shared: &Shared) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut result = shared.health();
        if let Some((frames, slot)) = self.frames {
            result = result.and_then(|()| write(&frames, &slot, shared));
            bytes = frames;
        }
        if result.is_ok() {
            shared.publish(self.last);
        }
        answer(self.answers, &result, self.begun, shared);
        bytes.clear();
        bytes
    }
}

fn write(frames: &[u8], slot: &Slot, shared: &Shared) -> Result<(), Error> {
    slot.write(frames).map_err(|error| {
        fail(shared, "write and sync", &error);
        Error::io("write and sync", "the commit log", error)
    })
}

/// It is unknown what the disk has kept: writes are refused until the store is opened again.
pub(crate) fn fail(shared: &Shared, what: &str, error: &std::io::Error) {
    error!(%error, what, "the commit log failed; writes are refused until the store is opened again");
    shared.refuse(ErrorKind::Unavailable, refusal(error));
}

/// The reason with which writes are refused after a failed one.
pub(crate) fn refusal(error: &impl std::fmt::Display) -> String {
    format!("an earlier write failed ({error}): writes are refused until the store is opened again")
}

/// Answers the callers of a group.
pub(crate) fn answer(answers: Vec<Answer>, result: &Result<(), Error>, begun: Instant, shared: &Shared) {
    shared.metrics.groups.inc();
    shared.metrics.waiting_rows.set(shared.waiting_rows() as i64);
    let answered =
        answers.into_iter().flat_map(|answer| answer(result.as_ref().copied().map_err(Error::duplicate)));
    let hooks: Hooks = answered.collect();
    hooks.into_iter().for_each(|hook| hook());
    shared.metrics.group_seconds.observe(begun.elapsed().as_secs_f64());
}

/// The writer's handle of the thread that syncs.
pub(crate) struct Syncer {
    groups: SyncSender<Group>,
    finished: Receiver<Vec<u8>>,
    /// Whether a group is being synced. There is never a second one: it must be written after the first is durable.
    is_syncing: bool,
}

impl Syncer {
    /// The writer's handle, and the work of the thread, which ends when the handle is dropped.
    pub(crate) fn new(shared: Arc<Shared>) -> (Self, impl FnOnce() + Send) {
        let (groups, sent) = sync_channel::<Group>(1);
        let (done, finished) = sync_channel(1);
        let run = move || {
            let _ends = Ends(shared.clone());
            while let Ok(group) = sent.recv() {
                if done.send(group.finish(&shared)).is_err() {
                    break; // the writer has ended
                }
            }
        };
        (Self { groups, finished, is_syncing: false }, run)
    }

    /// Sends a group to the thread. The one before must be finished.
    ///
    /// # Errors
    /// The group, when the thread has ended.
    pub(crate) fn send(&mut self, group: Group) -> Result<(), Group> {
        self.groups.send(group).map_err(|error| error.0)?;
        self.is_syncing = true;
        Ok(())
    }

    /// Whether a group is being synced.
    pub(crate) fn is_syncing(&mut self, spare: &mut Vec<u8>) -> bool {
        if self.is_syncing
            && let Ok(bytes) = self.finished.try_recv()
        {
            *spare = bytes;
            self.is_syncing = false;
        }
        self.is_syncing
    }

    /// Waits until no group is being synced.
    pub(crate) fn wait(&mut self, spare: &mut Vec<u8>) {
        if std::mem::take(&mut self.is_syncing)
            && let Ok(bytes) = self.finished.recv()
        {
            *spare = bytes;
        }
    }
}

/// Refuses writes when a thread that writes ends, for any reason.
pub(crate) struct Ends(pub(crate) Arc<Shared>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.refuse(ErrorKind::Unavailable, "the writing threads of the store have ended".to_owned());
    }
}
