//! The threads that derive keys from passwords.

use std::num::NonZero;

use tokio::{
    runtime::{Builder, Runtime},
    task::JoinHandle,
};
use tracing::debug;

use crate::Error;

/// The nice value of these threads: under load they get about a tenth of the time of other threads, and all idle time. A derivation
/// takes tens of milliseconds, and anybody who reaches a listener can trigger one: guessed passwords must not delay mail.
const NICENESS: i32 = 10;

/// Threads with a lower priority, which start with the first derivations and end when they are idle.
pub(crate) struct DerivationThreads(Option<Runtime>);

impl DerivationThreads {
    /// At most `threads_max` threads.
    ///
    /// # Errors
    /// `Unavailable` when the system has no more files or memory.
    pub(crate) fn new(threads_max: NonZero<usize>) -> Result<Self, Error> {
        // Nothing runs on the runtime itself: only its threads for blocking work are used, which need no one to drive it.
        let runtime = Builder::new_current_thread()
            .thread_name("passwords")
            .max_blocking_threads(threads_max.get())
            .on_thread_start(lower_priority)
            .build()
            .map_err(|error| Error::unavailable("can't start threads for passwords").with_source(error))?;
        Ok(Self(Some(runtime)))
    }

    /// Runs a derivation on one of the threads, as soon as one is free.
    ///
    /// # Errors
    /// `Internal` when it panics.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        let ended_early = || Error::internal("a task that derives keys ended early");
        let task: JoinHandle<T> = self.0.as_ref().ok_or_else(ended_early)?.spawn_blocking(work);
        task.await.map_err(|_| ended_early())
    }
}

impl Drop for DerivationThreads {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background(); // dropping a runtime in an async task would panic
        }
    }
}

/// Gives the current thread a lower priority, unless the server was started with one that is lower still.
fn lower_priority() {
    // On Linux, 0 means the calling thread, not its process.
    let lowered = rustix::process::getpriority_process(None)
        .and_then(|own| rustix::process::setpriority_process(None, NICENESS.max(own)));
    if let Err(error) = lowered {
        debug!(%error, "can't lower the priority of the threads for passwords");
    }
}

#[cfg(test)]
mod tests {
    use restante_core::ErrorKind;

    use super::*;

    #[tokio::test]
    async fn derivations_run_on_threads_of_a_lower_priority() {
        let threads = DerivationThreads::new(NonZero::<usize>::MIN).unwrap();
        let niceness = || rustix::process::getpriority_process(None).unwrap();
        let before = niceness();
        assert_eq!(threads.run(niceness).await.unwrap(), NICENESS.max(before));
        assert_eq!(niceness(), before, "the caller's priority changed");
    }

    #[tokio::test]
    async fn a_derivation_that_panics_is_an_error_and_the_next_one_runs() {
        let threads = DerivationThreads::new(NonZero::<usize>::MIN).unwrap();
        let failed = threads.run(|| panic!("on purpose")).await;
        assert_eq!(failed.map(|()| 0).unwrap_err().kind(), ErrorKind::Internal);
        assert_eq!(threads.run(|| 1).await.unwrap(), 1);
    }
}
