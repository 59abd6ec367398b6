//! The memory of messages that are being received or stored.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use prometheus_client::metrics::gauge::Gauge;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};

/// The memory of one permit.
const PAGE_BYTES: usize = 4_096;
/// The least of [`MemoryBudget::patience`]: connections wake up this often.
const PATIENCE_MIN: Duration = Duration::from_millis(250);

/// A bound on the memory of all messages.
#[derive(Debug)]
pub(crate) struct MemoryBudget {
    pages: Arc<Semaphore>,
    timeout: Duration,
    /// Messages that wait.
    waiting: AtomicUsize,
    used_bytes: Gauge,
}

/// Memory of one message. Dropping it releases the memory.
#[derive(Debug)]
pub(crate) struct Reservation {
    permit: OwnedSemaphorePermit,
    used_bytes: Gauge,
}

impl MemoryBudget {
    pub(crate) fn new(bytes: usize, timeout: Duration, used_bytes: Gauge) -> Self {
        let pages = (bytes / PAGE_BYTES).clamp(1, Semaphore::MAX_PERMITS);
        Self { pages: Arc::new(Semaphore::new(pages)), timeout, waiting: AtomicUsize::new(0), used_bytes }
    }

    /// Whether messages wait for memory that others hold.
    pub(crate) fn has_waiters(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// How long a large message may stall while others wait for memory: less than they wait.
    pub(crate) fn patience(&self) -> Duration {
        (self.timeout / 4).max(PATIENCE_MIN)
    }

    /// Replaces `held` by a reservation of `bytes` bytes. `None` if they were not free in time; then what was held is released.
    ///
    /// Messages that wait hold memory themselves, so they must not wait for ever.
    pub(crate) async fn grow(&self, held: Option<Reservation>, bytes: usize) -> Option<Reservation> {
        let held_pages = held.as_ref().map_or(0, |held| held.permit.num_permits());
        let more = u32::try_from(bytes.div_ceil(PAGE_BYTES).saturating_sub(held_pages)).ok()?;
        let permit = self.acquire(more).await?;
        self.used_bytes.inc_by(bytes_of(&permit));
        let Some(mut held) = held else {
            return Some(Reservation { permit, used_bytes: self.used_bytes.clone() });
        };
        held.permit.merge(permit);
        Some(held)
    }

    async fn acquire(&self, pages: u32) -> Option<OwnedSemaphorePermit> {
        if let Ok(permit) = self.pages.clone().try_acquire_many_owned(pages) {
            return Some(permit);
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let _waiting = Waiting(&self.waiting);
        timeout(self.timeout, self.pages.clone().acquire_many_owned(pages)).await.ok()?.ok()
    }
}

/// Counts a message that waits, until it is dropped.
struct Waiting<'w>(&'w AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn bytes_of(permit: &OwnedSemaphorePermit) -> i64 {
    i64::try_from(permit.num_permits() * PAGE_BYTES).unwrap_or(i64::MAX)
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.used_bytes.dec_by(bytes_of(&self.permit));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn memory_is_bounded_and_comes_back() {
        let used = Gauge::default();
        let budget = MemoryBudget::new(10 * PAGE_BYTES, Duration::from_secs(10), used.clone());
        let one = budget.grow(None, 3 * PAGE_BYTES).await.unwrap();
        let two = budget.grow(None, 4 * PAGE_BYTES + 1).await.unwrap();
        assert_eq!(used.get(), 8 * PAGE_BYTES as i64);
        let one = budget.grow(Some(one), 5 * PAGE_BYTES).await.unwrap();
        assert!(budget.grow(Some(two), 6 * PAGE_BYTES).await.is_none(), "there is none left");
        assert_eq!(used.get(), 5 * PAGE_BYTES as i64, "what waited in vain holds nothing");
        assert!(budget.grow(None, 11 * PAGE_BYTES).await.is_none(), "there will never be as much");
        drop(one);
        assert!(budget.grow(None, 10 * PAGE_BYTES).await.is_some());
        assert_eq!(used.get(), 0);
    }
}
