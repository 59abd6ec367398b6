//! Whether a connection is in use.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use parking_lot::Mutex;

use crate::connections::Open;

/// Memory that the answers of several connections share.
pub trait SharedMemory: fmt::Debug + Send + Sync {
    /// Whether requests wait for memory that unread answers hold.
    fn has_waiters(&self) -> bool;
}

/// Whether a connection is in use. A connection with a request in flight is never closed for another; one without may be.
#[derive(Debug, Default)]
pub struct Activity {
    /// `None` in tests: a connection of no listener.
    open: Option<Arc<Open>>,
    requests: Mutex<Requests>,
    memory: OnceLock<Arc<dyn SharedMemory>>,
}

#[derive(Debug, Default)]
struct Requests {
    /// Requests whose answers have not been written in full.
    in_flight: usize,
    /// The requests among them whose [`InFlight`] was dropped: they end with the next flush.
    unflushed: usize,
}

/// A request that is being read, processed or answered. Drop it when the whole answer was passed to the connection; the request
/// ends when that was flushed.
#[derive(Debug)]
pub struct InFlight(Arc<Activity>);

impl Activity {
    pub(crate) fn new(open: Arc<Open>) -> Self {
        Self { open: Some(open), ..Self::default() }
    }

    /// Begins a request. A handler whose protocol has no requests holds one for the lifetime of the connection.
    pub fn begin(self: &Arc<Self>) -> InFlight {
        let mut requests = self.requests.lock();
        requests.in_flight += 1;
        if let Some(open) = &self.open {
            open.set_in_use();
        }
        InFlight(self.clone())
    }

    /// Sets the memory that this connection's answers take; only the first call has an effect. While requests wait for that
    /// memory, a client that reads too slowly is cut off sooner.
    pub fn share_memory(&self, memory: &Arc<dyn SharedMemory>) {
        self.memory.get_or_init(|| memory.clone());
    }

    /// Whether requests wait for memory that this connection's answers may hold.
    pub fn is_memory_short(&self) -> bool {
        self.memory.get().is_some_and(|memory| memory.has_waiters())
    }

    /// Records that everything passed to the connection has been written.
    pub(crate) fn note_flushed(&self) {
        let mut requests = self.requests.lock();
        if requests.unflushed == 0 {
            return;
        }
        requests.in_flight -= std::mem::take(&mut requests.unflushed);
        if requests.in_flight == 0
            && let Some(open) = &self.open
        {
            open.set_idle();
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.requests.lock().unflushed += 1;
    }
}
