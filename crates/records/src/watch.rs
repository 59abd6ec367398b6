use std::{pin::pin, sync::Arc};

use tokio::sync::{Notify, broadcast};

use crate::{AccountId, Position, Revision};

/// The most announcements that wait for a slow watcher.
const WAITING_MAX: usize = 1_024;

/// The announcement of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// The account.
    pub account: AccountId,
    /// This revision of the account is visible, and all before it.
    pub revision: Revision,
}

/// This many announcements were left out, because the watcher was slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} announcements of commits were left out: the watcher was slow")]
pub struct Lagged(pub u64);

/// Receives announcements of commits.
pub struct Watch {
    announcements: broadcast::Receiver<Announcement>,
    wake: Arc<Notify>,
}

impl Watch {
    /// The next announcement; `None` when the store is gone.
    ///
    /// # Errors
    /// [`Lagged`] when announcements were left out; the later ones follow.
    pub async fn next(&mut self) -> Option<Result<Announcement, Lagged>> {
        let Self { announcements, wake } = self;
        loop {
            if let Some(next) = look(announcements) {
                return next;
            }
            let mut woken = pin!(wake.notified());
            woken.as_mut().enable(); // before the last look, so that no announcement is missed
            if let Some(next) = look(announcements) {
                return next;
            }
            woken.await;
        }
    }
}

/// The next announcement if there is one already; `None` in its place when the store is gone.
fn look(
    announcements: &mut broadcast::Receiver<Announcement>,
) -> Option<Option<Result<Announcement, Lagged>>> {
    match announcements.try_recv() {
        Ok(announcement) => Some(Some(Ok(announcement))),
        Err(broadcast::error::TryRecvError::Lagged(count)) => Some(Some(Err(Lagged(count)))),
        Err(broadcast::error::TryRecvError::Closed) => Some(None),
        Err(broadcast::error::TryRecvError::Empty) => None,
    }
}

/// A commit, as the servers of one store announce it to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCommit {
    /// The account.
    pub account: AccountId,
    /// Its revision.
    pub revision: Revision,
    /// Its position in the feed.
    pub position: Position,
}

/// For engines that poll for the commits of other servers: if the commits of each server are also passed to the others by other
/// means, they are announced at once. Commits that are not passed are found by the next poll.
pub trait Peers: Send + Sync + 'static {
    /// The commits of this server from now on.
    fn commits(&self) -> PeerCommits;

    /// Announces a commit of another server through [`crate::Records::watch`], unless it was announced already. The commit must
    /// be visible, and of this store.
    fn announce(&self, commit: PeerCommit);
}

/// Receives the commits of this server.
pub struct PeerCommits(broadcast::Receiver<PeerCommit>);

impl PeerCommits {
    /// Waits for the next commit; `None` when the store is gone. A slow receiver misses commits.
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

/// Sends the commits of this server to receivers.
pub struct PeerSender(broadcast::Sender<PeerCommit>);

impl PeerSender {
    /// A sender without receivers.
    pub fn new() -> Self {
        Self(broadcast::Sender::new(WAITING_MAX))
    }

    /// Sends a commit to all receivers, without waiting for slow ones.
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
///
/// Sending an announcement and waking the waiting watchers are separate: an engine wakes them after it has answered, so that the
/// caller of the commit comes first.
#[derive(Clone)]
pub(crate) struct Announcer(Arc<Channel>);

struct Channel {
    /// `None` during drop.
    announcements: Option<broadcast::Sender<Announcement>>,
    wake: Arc<Notify>,
}

impl Announcer {
    pub(crate) fn new() -> Self {
        let announcements = Some(broadcast::Sender::new(WAITING_MAX));
        Self(Arc::new(Channel { announcements, wake: Arc::default() }))
    }

    /// Sends an announcement, and wakes the waiting watchers.
    pub(crate) fn announce(&self, announcement: Announcement) {
        self.send(announcement);
        self.wake();
    }

    /// Sends an announcement without waking watchers.
    pub(crate) fn send(&self, announcement: Announcement) {
        if let Some(announcements) = &self.0.announcements {
            let _ = announcements.send(announcement); // fails when nobody watches
        }
    }

    /// Wakes the waiting watchers.
    pub(crate) fn wake(&self) {
        self.0.wake.notify_waiters();
    }

    pub(crate) fn watch(&self) -> Watch {
        let announcements = match &self.0.announcements {
            Some(announcements) => announcements.subscribe(),
            None => broadcast::Sender::new(1).subscribe(),
        };
        Watch { announcements, wake: self.0.wake.clone() }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.announcements = None; // first, so that the watchers that are woken see that it is gone
        self.wake.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    const FIRST: Announcement = Announcement { account: AccountId(1), revision: Revision(1) };

    /// The next item of a watch, if there is one within a moment.
    async fn next(watch: &mut Watch) -> Option<Option<Result<Announcement, Lagged>>> {
        timeout(Duration::from_millis(20), watch.next()).await.ok()
    }

    #[tokio::test]
    async fn who_looks_finds_what_was_sent_and_who_waits_is_woken() {
        let announcer = Announcer::new();
        let mut watch = announcer.watch();
        assert_eq!(next(&mut watch).await, None);
        announcer.send(FIRST);
        assert_eq!(next(&mut watch).await, Some(Some(Ok(FIRST))), "without being woken");
        let waiting = tokio::spawn(async move { (watch.next().await, watch) });
        tokio::task::yield_now().await;
        announcer.announce(FIRST);
        assert_eq!(waiting.await.unwrap().0, Some(Ok(FIRST)));
    }

    #[tokio::test]
    async fn a_watch_ends_when_the_last_announcer_is_gone_also_for_who_waits() {
        let announcer = Announcer::new();
        let (mut watch, mut other) = (announcer.watch(), announcer.watch());
        let waiting = tokio::spawn(async move { watch.next().await });
        tokio::task::yield_now().await;
        let clone = announcer.clone();
        drop(announcer);
        assert_eq!(next(&mut other).await, None, "a clone announces");
        drop(clone);
        assert_eq!(waiting.await.unwrap(), None);
        assert_eq!(next(&mut other).await, Some(None));
    }
}
