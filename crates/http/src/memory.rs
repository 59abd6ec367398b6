//! A bound on the memory of answers that clients have not read yet.
//!
//! A permit is acquired before an answer is made, for its greatest possible size; what the answer does not need is released when
//! it is complete. The rest is released with the answer's bytes: when the last of them was sent or the connection was closed.

use std::sync::Arc;

use bytes::Bytes;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout_at},
};

use restante_net::SharedMemory;

use crate::Refusal;

/// The default limit of all unread answers together, in KiB.
const KIB_MAX: usize = 256 << 10;

/// The memory that unread answers of all connections share.
#[derive(Debug)]
pub struct MemoryBudget {
    kib: Arc<Semaphore>,
    kib_max: usize,
}

/// Memory reserved for one answer.
#[derive(Debug)]
pub struct MemoryPermit {
    kib: OwnedSemaphorePermit,
}

/// An answer with its permit, until the last byte is sent.
struct HeldAnswer {
    answer: Vec<u8>,
    _kib: OwnedSemaphorePermit,
}

impl Default for MemoryBudget {
    fn default() -> Self {
        Self::new(KIB_MAX)
    }
}

impl MemoryBudget {
    /// A budget of `kib_max` KiB.
    pub fn new(kib_max: usize) -> Self {
        Self { kib: Arc::new(Semaphore::new(kib_max)), kib_max }
    }

    /// Reserves memory for an answer of up to `bytes`, waiting until the deadline. A longer answer than the whole budget gets all of it.
    ///
    /// # Errors
    /// 503 if too little memory was released in time.
    pub async fn acquire(&self, bytes: usize, deadline: Instant) -> Result<MemoryPermit, Refusal> {
        let kib = kib_of(bytes).min(self.kib_max);
        let acquired = self.kib.clone().acquire_many_owned(u32::try_from(kib).unwrap_or(u32::MAX));
        let kib = timeout_at(deadline, acquired).await.ok().and_then(Result::ok);
        Ok(MemoryPermit { kib: kib.ok_or(NO_MEMORY)? })
    }
}

impl SharedMemory for MemoryBudget {
    /// Whether a request waits: the semaphore then reserves all free permits for the one that has waited longest.
    fn has_waiters(&self) -> bool {
        self.kib.available_permits() == 0
    }
}

fn kib_of(bytes: usize) -> usize {
    bytes.div_ceil(1024)
}

const NO_MEMORY: Refusal = Refusal::unavailable("too many answers wait to be read: try again later");

impl MemoryPermit {
    /// Releases what the complete answer does not need, and attaches the rest to its bytes.
    pub fn hold(mut self, answer: Vec<u8>) -> Bytes {
        let surplus = self.kib.num_permits().saturating_sub(kib_of(answer.capacity()));
        drop(self.kib.split(surplus));
        Bytes::from_owner(HeldAnswer { answer, _kib: self.kib })
    }
}

impl AsRef<[u8]> for HeldAnswer {
    fn as_ref(&self) -> &[u8] {
        &self.answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn memory_is_reserved_for_the_longest_answer_and_held_for_the_actual_one() {
        let budget = MemoryBudget::new(5 << 10);
        let permit = budget.acquire(4 << 20, Instant::now()).await.unwrap();
        assert!(budget.acquire(2 << 20, Instant::now()).await.is_err());
        let answer = permit.hold(vec![b'x'; 3 << 20]);
        assert!(budget.acquire(3 << 20, Instant::now()).await.is_err());
        let rest = budget.acquire(2 << 20, Instant::now()).await.unwrap();
        drop((answer, rest));
        assert!(budget.acquire(usize::MAX, Instant::now()).await.is_ok(), "a longer one gets all of it");
    }
}
