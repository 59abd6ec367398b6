//! The memory of messages that are being sent.

use tokio::sync::{Semaphore, SemaphorePermit};

/// Memory is counted in pages of so many bytes.
const PAGE_BYTES: u64 = 4 << 10;

/// A bound on the bytes of all messages that are in memory at once.
pub(super) struct MessageMemory {
    pages: Semaphore,
    pages_max: u32,
}

impl MessageMemory {
    pub(super) fn new(bytes_max: usize) -> Self {
        let pages_max = pages(bytes_max as u64);
        let permits = usize::try_from(pages_max).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Self { pages: Semaphore::new(permits), pages_max }
    }

    /// Waits until there is memory for a message of so many bytes, first come, first served. A message larger than the bound waits
    /// until it is the only one.
    pub(super) async fn acquire(&self, bytes: u64) -> SemaphorePermit<'_> {
        let pages = pages(bytes).min(self.pages_max);
        self.pages.acquire_many(pages).await.expect("the semaphore is never closed")
    }
}

fn pages(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(PAGE_BYTES)).unwrap_or(u32::MAX).max(1)
}
