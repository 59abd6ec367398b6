use tokio::sync::broadcast;

use crate::{AccountId, Position, Revision};

/// Announcements that wait for a slow watcher at most.
const WAITING_MAX: usize = 1_024;

/// Something was committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// In this account.
    pub account: AccountId,
    /// This revision of it can be seen, and all before it.
    pub revision: Revision,
}

/// So many announcements were left out, because the watcher was slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} announcements of commits were left out: the watcher was slow")]
pub struct Lagged(pub u64);

/// Tells which accounts have been committed to.
pub struct Watch(broadcast::Receiver<Announcement>);

impl Watch {
    /// The next announcement; `None` when the store is gone.
    ///
    /// # Errors
    /// [`Lagged`] when announcements were left out; those after them follow.
    pub async fn next(&mut self) -> Option<Result<Announcement, Lagged>> {
        match self.0.recv().await {
            Ok(announcement) => Some(Ok(announcement)),
            Err(broadcast::error::RecvError::Lagged(count)) => Some(Err(Lagged(count))),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

/// A commit, as servers on one store announce it to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCommit {
    /// The account.
    pub account: AccountId,
    /// Its revision.
    pub revision: Revision,
    /// Its position in the feed.
    pub position: Position,
}

/// For engines that look for the commits of other servers at intervals: when the commits of each server are passed to the others by other
/// means, they are announced at once. What is not passed is found by the next look.
pub trait Peers: Send + Sync + 'static {
    /// The commits of this server from now on.
    fn commits(&self) -> PeerCommits;

    /// Announces a commit of another server by [`crate::Records::watch`], unless that was done. It must be visible, and of this store.
    fn announce(&self, commit: PeerCommit);
}

/// Receives the commits of this server.
pub struct PeerCommits(broadcast::Receiver<PeerCommit>);

impl PeerCommits {
    /// Waits for the next commit; `None` when the store is gone. Those that a slow receiver misses are left out.
    pub async fn next(&mut self) -> Option<PeerCommit> {
        loop {
            match self.0.recv().await {
                Ok(commit) => return Some(commit),
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }
}

/// Passes on the commits of this server.
pub struct PeerSender(broadcast::Sender<PeerCommit>);

impl PeerSender {
    /// Without receivers.
    pub fn new() -> Self {
        Self(broadcast::Sender::new(WAITING_MAX))
    }

    /// Passes a commit to all receivers; without waiting for slow ones.
    pub fn send(&self, commit: PeerCommit) {
        let _ = self.0.send(commit); // fails when nobody receives
    }

    /// A receiver of the commits from now on.
    pub fn commits(&self) -> PeerCommits {
        PeerCommits(self.0.subscribe())
    }
}

impl Default for PeerSender {
    fn default() -> Self {
        Self::new()
    }
}

/// Sends announcements. Clones share their watchers.
#[derive(Clone)]
pub(crate) struct Announcer(broadcast::Sender<Announcement>);

impl Announcer {
    pub(crate) fn new() -> Self {
        Self(broadcast::Sender::new(WAITING_MAX))
    }

    pub(crate) fn announce(&self, announcement: Announcement) {
        let _ = self.0.send(announcement); // fails when nobody watches
    }

    pub(crate) fn watch(&self) -> Watch {
        Watch(self.0.subscribe())
    }
}
