//! Bounds the memory of answers that peers have not read yet.
//!
//! Memory is reserved before an answer is created, for the longest answer of its service, and the unused part is released when
//! the length is known. A peer that does not read keeps its memory reserved, so when other answers wait for memory, a stream on
//! which the peer has read nothing for a moment is reset.

use std::{
    future::Future,
    io,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::timeout,
};

/// The most memory of one connection: eight of the longest pages.
const KIB_PER_CONNECTION: usize = 32 << 10;
/// The most memory of all connections.
const KIB_MAX: usize = 256 << 10;
/// How long a peer may read nothing while others wait for memory.
const STALL_TIMEOUT: Duration = Duration::from_secs(1);

/// The memory of all connections.
pub(crate) struct MemoryBudget {
    kib: Semaphore,
    waiting: AtomicUsize,
}

/// The memory of one connection.
#[derive(Clone)]
pub(crate) struct ConnectionMemory(Arc<Semaphore>);

/// The memory of one answer, released when dropped.
pub(crate) struct MemoryPermit<'a> {
    budget: &'a MemoryBudget,
    of_connection: SemaphorePermit<'a>,
    of_all: SemaphorePermit<'a>,
}

impl Default for MemoryBudget {
    fn default() -> Self {
        Self { kib: Semaphore::new(KIB_MAX), waiting: AtomicUsize::new(0) }
    }
}

impl Default for ConnectionMemory {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(KIB_PER_CONNECTION)))
    }
}

/// Counts a waiting answer for as long as it lives.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl MemoryBudget {
    /// Reserves memory for an answer of `bytes`. Waits for the connection's own answers first, so that it does not hold memory
    /// of other connections meanwhile.
    pub(crate) async fn acquire<'a>(
        &'a self,
        connection: &'a ConnectionMemory,
        bytes: usize,
    ) -> io::Result<MemoryPermit<'a>> {
        let kib = kib_of(bytes);
        let of_connection = connection.0.acquire_many(kib).await.map_err(io::Error::other)?;
        let of_all = match self.kib.try_acquire_many(kib) {
            Ok(permit) => permit,
            Err(_) => {
                let _waiting = Waiting::new(&self.waiting);
                self.kib.acquire_many(kib).await.map_err(io::Error::other)?
            }
        };
        Ok(MemoryPermit { budget: self, of_connection, of_all })
    }

    fn has_waiters(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }
}

/// The memory of an answer, at most the limit of a connection: a longer answer waits until its connection has no other.
fn kib_of(bytes: usize) -> u32 {
    let kib = bytes.div_ceil(1024).min(KIB_PER_CONNECTION);
    u32::try_from(kib).unwrap_or(u32::MAX)
}

impl MemoryPermit<'_> {
    /// Releases what exceeds an answer of `bytes`.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        let surplus = self.of_connection.num_permits().saturating_sub(kib_of(bytes) as usize);
        drop(self.of_connection.split(surplus));
        drop(self.of_all.split(surplus));
    }

    /// Runs a step of writing. Fails after `limit`, or earlier when the peer stalls while others wait for memory.
    pub(crate) async fn write_step(
        &self,
        limit: Duration,
        step: impl Future<Output = io::Result<()>>,
    ) -> io::Result<()> {
        let mut step = pin!(step);
        let interval = STALL_TIMEOUT.min(limit);
        let mut waited = Duration::ZERO;
        loop {
            if let Ok(done) = timeout(interval, step.as_mut()).await {
                return done;
            }
            waited += interval;
            if waited >= limit || self.budget.has_waiters() {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    const MIB: usize = 1 << 20;
    const LONG: Duration = Duration::from_secs(600);

    #[tokio::test]
    async fn unused_memory_is_released() {
        let (budget, connection) = (MemoryBudget::default(), ConnectionMemory::default());
        let mut permit = budget.acquire(&connection, 15 * MIB).await.unwrap();
        assert_eq!(budget.kib.available_permits(), KIB_MAX - (15 << 10));
        permit.shrink_to(145_000);
        assert_eq!(budget.kib.available_permits(), KIB_MAX - 142);
        permit.shrink_to(usize::MAX);
        assert_eq!(connection.0.available_permits(), KIB_PER_CONNECTION - 142, "it never grows");
        drop(permit);
        assert_eq!(
            (budget.kib.available_permits(), connection.0.available_permits()),
            (KIB_MAX, KIB_PER_CONNECTION)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_at_its_limit_waits_without_affecting_others() {
        let (budget, connection) = (MemoryBudget::default(), ConnectionMemory::default());
        let _first = budget.acquire(&connection, 32 * MIB).await.unwrap();
        assert!(timeout(LONG, budget.acquire(&connection, 1)).await.is_err());
        assert!(!budget.has_waiters(), "it does not count as waiting for others");
        assert!(budget.acquire(&ConnectionMemory::default(), 32 * MIB).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_reads_nothing_is_reset_when_others_wait() {
        let budget = MemoryBudget::default();
        let connections: Vec<ConnectionMemory> = (0..9).map(|_| ConnectionMemory::default()).collect();
        let mut all = Vec::new();
        for connection in &connections[..8] {
            all.push(budget.acquire(connection, 32 * MIB).await.unwrap());
        }
        let held = all.pop().unwrap();
        let alone = timeout(Duration::from_secs(60), held.write_step(LONG, pending())).await;
        assert!(alone.is_err(), "nobody waits: the whole limit applies");
        let waiting = budget.acquire(&connections[8], 32 * MIB);
        let slow = async {
            let written = held.write_step(LONG, pending()).await;
            drop(held);
            written
        };
        let (slow, waiting) =
            tokio::join!(timeout(2 * STALL_TIMEOUT, slow), timeout(3 * STALL_TIMEOUT, waiting));
        assert!(slow.unwrap().is_err());
        assert!(waiting.unwrap().is_ok());
        assert!(!budget.has_waiters());
    }

    #[tokio::test(start_paused = true)]
    async fn time_is_bounded_also_when_nobody_waits() {
        let (budget, connection) = (MemoryBudget::default(), ConnectionMemory::default());
        let permit = budget.acquire(&connection, 1).await.unwrap();
        let limit = Duration::from_secs(5);
        assert!(timeout(2 * limit, permit.write_step(limit, pending())).await.unwrap().is_err());
        assert!(permit.write_step(limit, async { Ok(()) }).await.is_ok());
    }
}
