//! Permits for work: if none is left, a request is refused at once.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::Refusal;

/// A bounded number of permits.
#[derive(Clone, Debug)]
pub struct Permits(Arc<Semaphore>);

impl Permits {
    /// At least one permit.
    pub fn new(max: usize) -> Self {
        Self(Arc::new(Semaphore::new(max.clamp(1, Semaphore::MAX_PERMITS))))
    }

    /// Acquires a permit, held until it is dropped.
    ///
    /// # Errors
    /// 503 if all are in use.
    pub fn acquire(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        self.0.clone().try_acquire_owned().map_err(|_| Refusal::busy())
    }
}
