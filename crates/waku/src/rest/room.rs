//! Room for answers that their clients have not read yet.
//!
//! Room is taken before an answer is made, for the longest one that it may become, and what is not needed is given back. The
//! rest goes with the answer's bytes, so that it is free again when the last of them was sent or the connection was cut.

use std::sync::Arc;

use bytes::Bytes;
use restante_net::SharedMemory;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout_at},
};

use super::reply::Refusal;

/// Answers that nobody has read yet, of all connections together. The same again is for those who ask by libp2p.
const KIB_MAX: usize = 256 << 10;

/// The room of all connections.
#[derive(Debug)]
pub(crate) struct Room {
    kib: Arc<Semaphore>,
    kib_max: usize,
}

/// Room for one answer.
#[derive(Debug)]
pub(crate) struct Taken {
    kib: OwnedSemaphorePermit,
}

/// An answer with its room, for as long as a part of it is to be sent.
struct Held {
    answer: Vec<u8>,
    _kib: OwnedSemaphorePermit,
}

impl Default for Room {
    fn default() -> Self {
        Self::new(KIB_MAX)
    }
}

impl Room {
    pub(crate) fn new(kib_max: usize) -> Self {
        Self { kib: Arc::new(Semaphore::new(kib_max)), kib_max }
    }

    /// Takes room for an answer of so many bytes, once there is some.
    pub(crate) async fn take(&self, bytes: usize, deadline: Instant) -> Result<Taken, Refusal> {
        // An answer that is longer than all the room has it to itself.
        let kib = kib_of(bytes).min(self.kib_max);
        let acquired = self.kib.clone().acquire_many_owned(u32::try_from(kib).unwrap_or(u32::MAX));
        let kib = timeout_at(deadline, acquired).await.ok().and_then(Result::ok);
        Ok(Taken { kib: kib.ok_or(NO_ROOM)? })
    }
}

impl SharedMemory for Room {
    /// When requests wait, the semaphore keeps all permits for the one that has waited longest.
    fn has_waiters(&self) -> bool {
        self.kib.available_permits() == 0
    }
}

fn kib_of(bytes: usize) -> usize {
    bytes.div_ceil(1024)
}

const NO_ROOM: Refusal = Refusal::unavailable("too many answers wait to be read: try again later");

impl Taken {
    /// Gives back what the answer does not need, and sends the rest with it.
    pub(crate) fn hold(mut self, answer: Vec<u8>) -> Bytes {
        let surplus = self.kib.num_permits().saturating_sub(kib_of(answer.capacity()));
        drop(self.kib.split(surplus));
        Bytes::from_owner(Held { answer, _kib: self.kib })
    }
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.answer
    }
}
