use tokio::sync::broadcast;

use crate::{AccountId, Revision};

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
