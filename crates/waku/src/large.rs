//! Runs work on many bytes, which would block a worker for too long, on the blocking pool.

use tokio::task::{JoinError, spawn_blocking};

/// Work on more bytes goes to the blocking pool. Copying this many takes a few tenths of a millisecond.
const INLINE_BYTES_MAX: usize = 512 << 10;

/// Runs work that takes time in proportion to `bytes`, and returns its result.
///
/// # Errors
/// When the work panicked, or the runtime ends.
pub(crate) async fn work<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    if bytes <= INLINE_BYTES_MAX {
        return Ok(work());
    }
    spawn_blocking(work).await
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[tokio::test]
    async fn only_large_work_leaves_the_worker() {
        let worker = thread::current().id();
        assert_eq!(work(INLINE_BYTES_MAX, || thread::current().id()).await.unwrap(), worker);
        assert_ne!(work(INLINE_BYTES_MAX + 1, || thread::current().id()).await.unwrap(), worker);
    }

    #[tokio::test]
    async fn large_work_that_panics_is_an_error() {
        let failed = work(INLINE_BYTES_MAX + 1, || panic!("on purpose")).await;
        assert!(failed.is_err_and(|error| error.is_panic()));
    }
}
