//! Groups of batches on their way to the disk: while one is synced, the writer runs the writes of the next.

use std::{
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    time::Instant,
};

use restante_core::ErrorKind;
use tracing::error;

use crate::{Error, layer::Sequence, log::Room, shared::Shared};

/// Tells who waits how a write went.
pub(crate) type Answer = Box<dyn FnOnce(Result<(), Error>) + Send>;

/// Batches that become durable together, and who waits for them.
pub(crate) struct Group {
    /// Their frames and the room for them in the commit log; `None` when there is nothing to be made durable.
    pub(crate) frames: Option<(Vec<u8>, Room)>,
    /// The last batch.
    pub(crate) last: Sequence,
    pub(crate) answers: Vec<Answer>,
    /// When its first write began.
    pub(crate) begun: Instant,
}

impl Group {
    /// Makes the group durable, lets readers see it, and answers. Gives the bytes' place back, to be used again.
    pub(crate) fn land(self, shared: &Shared) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut result = shared.health();
        if let Some((frames, room)) = self.frames {
            result = result.and_then(|()| write(&frames, &room, shared));
            bytes = frames;
        }
        if result.is_ok() {
            shared.publish(self.last);
        }
        tell(self.answers, &result, self.begun, shared);
        bytes.clear();
        bytes
    }
}

fn write(frames: &[u8], room: &Room, shared: &Shared) -> Result<(), Error> {
    room.write(frames).map_err(|error| {
        fail(shared, "write and sync", &error);
        Error::io("write and sync", "the commit log", error)
    })
}

/// Nobody knows what the disk has kept: nothing more is taken until the store is opened again.
pub(crate) fn fail(shared: &Shared, what: &str, error: &std::io::Error) {
    error!(%error, what, "the commit log failed; nothing more is taken until the store is opened again");
    shared.refuse(ErrorKind::Unavailable, refusal(error));
}

/// Why nothing more is taken after a write that failed.
pub(crate) fn refusal(error: &impl std::fmt::Display) -> String {
    format!("an earlier write failed ({error}): nothing more is taken until the store is opened again")
}

/// Answers those who wait for a group.
pub(crate) fn tell(answers: Vec<Answer>, result: &Result<(), Error>, begun: Instant, shared: &Shared) {
    shared.metrics.groups.inc();
    shared.metrics.waiting_rows.set(shared.waiting_rows() as i64);
    for answer in answers {
        answer(result.as_ref().copied().map_err(Error::again));
    }
    shared.metrics.group_seconds.observe(begun.elapsed().as_secs_f64());
}

/// The writer's end of the thread that syncs.
pub(crate) struct Syncer {
    groups: SyncSender<Group>,
    landed: Receiver<Vec<u8>>,
    /// Whether a group is on its way. There is never a second one: it must be written after the first is durable.
    is_under_way: bool,
}

impl Syncer {
    /// The writer's end, and what the thread is to do until that is gone.
    pub(crate) fn new(shared: Arc<Shared>) -> (Self, impl FnOnce() + Send) {
        let (groups, sent_off) = sync_channel::<Group>(1);
        let (land, landed) = sync_channel(1);
        let run = move || {
            let _ends = Ends(shared.clone());
            while let Ok(group) = sent_off.recv() {
                if land.send(group.land(&shared)).is_err() {
                    break; // the writer has ended
                }
            }
        };
        (Self { groups, landed, is_under_way: false }, run)
    }

    /// Sends a group off, which must follow the last one's landing.
    ///
    /// # Errors
    /// The group, when the thread has ended.
    pub(crate) fn send(&mut self, group: Group) -> Result<(), Group> {
        self.groups.send(group).map_err(|error| error.0)?;
        self.is_under_way = true;
        Ok(())
    }

    /// Whether a group is on its way.
    pub(crate) fn is_under_way(&mut self, spare: &mut Vec<u8>) -> bool {
        if self.is_under_way
            && let Ok(bytes) = self.landed.try_recv()
        {
            *spare = bytes;
            self.is_under_way = false;
        }
        self.is_under_way
    }

    /// Waits until no group is on its way.
    pub(crate) fn wait(&mut self, spare: &mut Vec<u8>) {
        if std::mem::take(&mut self.is_under_way)
            && let Ok(bytes) = self.landed.recv()
        {
            *spare = bytes;
        }
    }
}

/// Says that nothing more is taken when a thread that writes ends, however that comes about.
pub(crate) struct Ends(pub(crate) Arc<Shared>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.refuse(ErrorKind::Unavailable, "the writing threads of the store have ended".to_owned());
    }
}
