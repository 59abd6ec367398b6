//! One thing at a time for each peer: its requests are served in turn, because opening its session may take a while.

use std::{collections::HashMap, sync::Arc};

use libp2p::PeerId;
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

/// The peer_locks that are taken or waited for: no more than there are requests.
#[derive(Default)]
pub(super) struct PeerLocks {
    by_peer: Mutex<HashMap<PeerId, Arc<AsyncMutex<()>>>>,
}

/// A peer's turn, until it is dropped.
pub(super) struct PeerLock {
    peer: PeerId,
    peer_locks: Arc<PeerLocks>,
    /// None while it is waited for.
    guard: Option<OwnedMutexGuard<()>>,
}

impl PeerLocks {
    /// Waits until nobody else has the peer's turn.
    pub(super) async fn take(self: &Arc<Self>, peer: PeerId) -> PeerLock {
        let lock = self.by_peer.lock().entry(peer).or_default().clone();
        // Made before the wait, so that nothing is left behind by who gives it up.
        let mut turn = PeerLock { peer, peer_locks: self.clone(), guard: None };
        turn.guard = Some(lock.lock_owned().await);
        turn
    }
}

impl Drop for PeerLock {
    fn drop(&mut self) {
        self.guard = None;
        let mut by_peer = self.peer_locks.by_peer.lock();
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
    async fn a_peer_has_one_turn_at_a_time_and_leaves_nothing_behind() {
        let peer_locks = Arc::new(PeerLocks::default());
        let [peer, other] = [PeerId::random(), PeerId::random()];
        let first = peer_locks.take(peer).await;
        let elsewhere = peer_locks.take(other).now_or_never().expect("another peer has its own");
        let mut second = Box::pin(peer_locks.take(peer));
        let mut given_up = Box::pin(peer_locks.take(peer));
        assert!((&mut second).now_or_never().is_none() && (&mut given_up).now_or_never().is_none());
        drop(given_up);
        drop(first);
        let second = second.now_or_never().expect("it is its turn");
        assert!(peer_locks.take(peer).now_or_never().is_none());
        drop((second, elsewhere));
        assert!(peer_locks.by_peer.lock().is_empty());
    }
}
