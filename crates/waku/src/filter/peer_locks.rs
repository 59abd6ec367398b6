//! A lock per peer: requests of one peer are served one after the other, because opening its session may take a while.

use std::{collections::HashMap, sync::Arc};

use libp2p::PeerId;
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

/// The locks that are held or waited for: at most one for each request.
#[derive(Default)]
pub(super) struct PeerLocks {
    by_peer: Mutex<HashMap<PeerId, Arc<AsyncMutex<()>>>>,
}

/// The lock of a peer, released when dropped.
pub(super) struct PeerLock {
    peer: PeerId,
    locks: Arc<PeerLocks>,
    /// `None` while waiting.
    guard: Option<OwnedMutexGuard<()>>,
}

impl PeerLocks {
    /// Waits for the peer's lock.
    pub(super) async fn lock(self: &Arc<Self>, peer: PeerId) -> PeerLock {
        let lock = self.by_peer.lock().entry(peer).or_default().clone();
        // Created before waiting: when the wait is cancelled, drop removes the entry.
        let mut held = PeerLock { peer, locks: self.clone(), guard: None };
        held.guard = Some(lock.lock_owned().await);
        held
    }
}

impl Drop for PeerLock {
    fn drop(&mut self) {
        self.guard = None;
        let mut by_peer = self.locks.by_peer.lock();
        let is_last = by_peer.get(&self.peer).is_some_and(|lock| Arc::strong_count(lock) == 1);
        if is_last {
            by_peer.remove(&self.peer);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_peer_has_one_lock_and_no_entry_is_left() {
        let locks = Arc::new(PeerLocks::default());
        let [peer, other] = [PeerId::random(), PeerId::random()];
        let first = locks.lock(peer).await;
        let of_other = locks.lock(other).now_or_never().expect("another peer has its own lock");
        let mut second = Box::pin(locks.lock(peer));
        let mut cancelled = Box::pin(locks.lock(peer));
        assert!((&mut second).now_or_never().is_none() && (&mut cancelled).now_or_never().is_none());
        drop(cancelled);
        drop(first);
        let second = second.now_or_never().expect("it has the lock");
        assert!(locks.lock(peer).now_or_never().is_none());
        drop((second, of_other));
        assert!(locks.by_peer.lock().is_empty());
    }
}
