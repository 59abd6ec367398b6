//! MemoryBudget for answers that their peers have not read yet.
//!
//! MemoryBudget is taken before an answer is made, for the longest one that its service gives, and what is not needed is given back. A peer
//! that does not read holds its room, so as soon as somebody else waits for room, a peer that has read nothing for a moment loses
//! its stream.

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

/// Answers that one connection has not read yet: eight of the longest pages.
const KIB_PER_CONNECTION: usize = 32 << 10;
/// Answers that nobody has read yet, over all connections.
const KIB_MAX: usize = 256 << 10;
/// How long a peer may read nothing while others wait.
const PATIENCE: Duration = Duration::from_secs(1);

/// The room of all connections.
pub(crate) struct MemoryBudget {
    kib: Semaphore,
    waiting: AtomicUsize,
}

/// The room of one connection.
#[derive(Clone)]
pub(crate) struct ConnectionMemory(Arc<Semaphore>);

/// MemoryBudget for one answer.
pub(crate) struct MemoryPermit<'a> {
    room: &'a MemoryBudget,
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

/// Counts somebody who waits for as long as it lives.
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
    /// Takes room for an answer of so many bytes. The connection's own answers are waited for first: they take nobody else's
    /// room meanwhile.
    pub(crate) async fn take<'a>(
        &'a self,
        corner: &'a ConnectionMemory,
        bytes: usize,
    ) -> io::Result<MemoryPermit<'a>> {
        let kib = kib_of(bytes);
        let of_connection = corner.0.acquire_many(kib).await.map_err(io::Error::other)?;
        let of_all = match self.kib.try_acquire_many(kib) {
            Ok(permit) => permit,
            Err(_) => {
                let _waiting = Waiting::new(&self.waiting);
                self.kib.acquire_many(kib).await.map_err(io::Error::other)?
            }
        };
        Ok(MemoryPermit { room: self, of_connection, of_all })
    }

    fn is_crowded(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }
}

/// An answer of any length counts with what one connection may have at most: one that is longer has the room to itself.
fn kib_of(bytes: usize) -> u32 {
    let kib = bytes.div_ceil(1024).min(KIB_PER_CONNECTION);
    u32::try_from(kib).unwrap_or(u32::MAX)
}

impl MemoryPermit<'_> {
    /// Gives back what an answer of so many bytes does not need.
    pub(crate) fn keep(&mut self, bytes: usize) {
        let surplus = self.of_connection.num_permits().saturating_sub(kib_of(bytes) as usize);
        drop(self.of_connection.split(surplus));
        drop(self.of_all.split(surplus));
    }

    /// Does a step of writing, for which the peer has so much time; less when others wait for room.
    pub(crate) async fn patiently(
        &self,
        limit: Duration,
        step: impl Future<Output = io::Result<()>>,
    ) -> io::Result<()> {
        let mut step = pin!(step);
        let patience = PATIENCE.min(limit);
        let mut waited = Duration::ZERO;
        loop {
            if let Ok(done) = timeout(patience, step.as_mut()).await {
                return done;
            }
            waited += patience;
            if waited >= limit || self.room.is_crowded() {
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
    async fn what_is_not_needed_is_given_back() {
        let (room, corner) = (MemoryBudget::default(), ConnectionMemory::default());
        let mut taken = room.take(&corner, 15 * MIB).await.unwrap();
        assert_eq!(room.kib.available_permits(), KIB_MAX - (15 << 10));
        taken.keep(145_000);
        assert_eq!(room.kib.available_permits(), KIB_MAX - 142);
        taken.keep(usize::MAX);
        assert_eq!(corner.0.available_permits(), KIB_PER_CONNECTION - 142, "nothing is left to give back");
        drop(taken);
        assert_eq!(
            (room.kib.available_permits(), corner.0.available_permits()),
            (KIB_MAX, KIB_PER_CONNECTION)
        );
    }

    #[tokio::test(start_paused = true)]
    async fn one_connection_waits_for_itself_only() {
        let (room, corner) = (MemoryBudget::default(), ConnectionMemory::default());
        let _first = room.take(&corner, 32 * MIB).await.unwrap();
        assert!(timeout(LONG, room.take(&corner, 1)).await.is_err());
        assert!(!room.is_crowded(), "it does not press upon others");
        assert!(room.take(&ConnectionMemory::default(), 32 * MIB).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn who_reads_nothing_makes_room_when_others_wait() {
        let room = MemoryBudget::default();
        let corners: Vec<ConnectionMemory> = (0..9).map(|_| ConnectionMemory::default()).collect();
        let mut all = Vec::new();
        for corner in &corners[..8] {
            all.push(room.take(corner, 32 * MIB).await.unwrap());
        }
        let held = all.pop().unwrap();
        let alone = timeout(Duration::from_secs(60), held.patiently(LONG, pending())).await;
        assert!(alone.is_err(), "nobody waits: it has its time");
        let newcomer = room.take(&corners[8], 32 * MIB);
        let slow = async {
            let written = held.patiently(LONG, pending()).await;
            drop(held);
            written
        };
        let (slow, newcomer) = tokio::join!(timeout(2 * PATIENCE, slow), timeout(3 * PATIENCE, newcomer));
        assert!(slow.unwrap().is_err());
        assert!(newcomer.unwrap().is_ok());
        assert!(!room.is_crowded());
    }

    #[tokio::test(start_paused = true)]
    async fn time_is_bounded_also_when_nobody_waits() {
        let (room, corner) = (MemoryBudget::default(), ConnectionMemory::default());
        let taken = room.take(&corner, 1).await.unwrap();
        let limit = Duration::from_secs(5);
        assert!(timeout(2 * limit, taken.patiently(limit, pending())).await.unwrap().is_err());
        assert!(taken.patiently(limit, async { Ok(()) }).await.is_ok());
    }
}
