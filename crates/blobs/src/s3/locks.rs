//! One operation at a time on a blob, within this server. Conflicts with other servers are resolved by manifests and the trash.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use restante_core::BlobId;
use tokio::sync::OwnedMutexGuard;

/// The locks of the blobs with an operation in progress.
#[derive(Default)]
pub(super) struct Locks {
    by_id: Mutex<HashMap<BlobId, Arc<tokio::sync::Mutex<()>>>>,
}

/// Blobs that are locked until this is dropped.
pub(super) struct Held {
    locks: Arc<Locks>,
    ids: Vec<BlobId>,
    guards: Vec<OwnedMutexGuard<()>>,
}

impl Locks {
    /// Waits until no other operation works on any of these blobs.
    pub(super) async fn hold(self: &Arc<Self>, ids: &[BlobId]) -> Held {
        // Always in the same order, so that there are no deadlocks.
        let mut ids = ids.to_vec();
        ids.sort_unstable();
        ids.dedup();
        let mut held = Held { locks: self.clone(), ids: Vec::new(), guards: Vec::new() };
        for id in ids {
            held.ids.push(id); // before it waits: a cancelled waiter cleans up, too
            let lock = self.by_id.lock().entry(id).or_default().clone();
            held.guards.push(lock.lock_owned().await);
        }
        held
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.guards.clear();
        let mut by_id = self.locks.by_id.lock();
        for id in &self.ids {
            // New references to a lock are only taken under this mutex.
            if by_id.get(id).is_some_and(|lock| Arc::strong_count(lock) == 1) {
                by_id.remove(id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_blob_has_one_holder_and_nothing_stays() {
        let locks = Arc::new(Locks::default());
        let holders = Arc::new([const { AtomicU32::new(0) }; 4]);
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..64_u8 {
            let (locks, holders) = (locks.clone(), holders.clone());
            tasks.spawn(async move {
                let ids = [n % 4, (n / 4) % 4, n % 4];
                let held = locks.hold(&ids.map(|n| BlobId([n; 32]))).await;
                for id in ids.into_iter().take(2).collect::<std::collections::BTreeSet<_>>() {
                    assert_eq!(holders[usize::from(id)].fetch_add(1, Ordering::SeqCst), 0);
                }
                tokio::task::yield_now().await;
                for id in ids.into_iter().take(2).collect::<std::collections::BTreeSet<_>>() {
                    holders[usize::from(id)].fetch_sub(1, Ordering::SeqCst);
                }
                drop(held);
            });
        }
        tasks.join_all().await;
        assert!(locks.by_id.lock().is_empty());
    }

    #[tokio::test]
    async fn who_gives_up_waiting_leaves_nothing() {
        let locks = Arc::new(Locks::default());
        let held = locks.hold(&[BlobId([1; 32])]).await;
        let waiting = locks.hold(&[BlobId([0; 32]), BlobId([1; 32])]);
        tokio::time::timeout(std::time::Duration::from_millis(1), waiting).await.err().unwrap();
        drop(held);
        drop(locks.hold(&[BlobId([0; 32]), BlobId([1; 32])]).await);
        assert!(locks.by_id.lock().is_empty());
    }
}
