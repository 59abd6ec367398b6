//! Counts open requests. An HTTP/2 connection has many, so the limits on connections don't bound them.

use std::{collections::HashMap, net::SocketAddr, sync::Arc};

use parking_lot::Mutex;
use restante_net::Source;
use tokio::sync::OwnedSemaphorePermit;

use crate::{Permits, Refusal};

/// The open requests of a server.
#[derive(Debug)]
pub(super) struct OpenRequests {
    permits: Permits,
    per_source_max: usize,
    by_source: Mutex<HashMap<Source, usize>>,
}

/// An open request.
#[derive(Debug)]
pub(super) struct OpenPermit {
    open: Arc<OpenRequests>,
    source: Option<Source>,
    _permit: OwnedSemaphorePermit,
}

impl OpenRequests {
    pub(super) fn new(max: usize, per_source_max: usize) -> Self {
        Self { permits: Permits::new(max), per_source_max, by_source: Mutex::default() }
    }

    /// A permit for a request of a client, released when it is dropped; 503 if there are too many.
    pub(super) fn acquire(self: &Arc<Self>, client: SocketAddr) -> Result<OpenPermit, Refusal> {
        let permit = self.permits.acquire()?;
        let source = Source::of(client);
        if let Some(source) = source {
            let mut by_source = self.by_source.lock();
            let open = by_source.entry(source).or_default();
            if *open >= self.per_source_max {
                return Err(Refusal::busy());
            }
            *open += 1;
        }
        Ok(OpenPermit { open: self.clone(), source, _permit: permit })
    }
}

impl Drop for OpenPermit {
    fn drop(&mut self) {
        let Some(source) = self.source else { return };
        let mut by_source = self.open.by_source.lock();
        let is_last = by_source.get_mut(&source).is_none_or(|open| {
            *open -= 1;
            *open == 0
        });
        if is_last {
            by_source.remove(&source);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_bounded_in_all_and_per_address() {
        let open = Arc::new(OpenRequests::new(3, 2));
        let acquire = |address: &str| open.acquire(SocketAddr::new(address.parse().unwrap(), 1));
        let first = acquire("2001:db8::1").unwrap();
        let second = acquire("2001:db8::2").unwrap();
        acquire("2001:db8::3").unwrap_err();
        let other = acquire("192.0.2.1").unwrap();
        acquire("127.0.0.1").unwrap_err();
        drop((first, other));
        let _third = acquire("2001:db8::3").unwrap();
        drop(second);
        let _local = [acquire("127.0.0.1").unwrap(), acquire("127.0.0.1").unwrap()];
        assert_eq!(open.by_source.lock().len(), 1, "the others are gone");
    }
}
