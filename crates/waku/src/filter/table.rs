//! The sessions of subscribers in the session table.
//!
//! The filter does not depend on the table. A subscriber whose session can't be opened within [`TABLE_TIMEOUT`] is still served,
//! but it is not listed, and no operator can close it. A slow table delays no push, and no lock is held while waiting for it;
//! only the answer to the request that changes a subscription waits.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use libp2p::PeerId;
use restante_sessions::{
    Ended, Error, InfoChange, InfoKey, InfoValue, Live, NewSession, NodeId, SessionId, Sessions,
};
use tokio::{runtime::Handle, sync::Semaphore, time::timeout};
use tracing::debug;

use super::{push_streams::Opener, subscriber::Subscriber};

/// How long the table may take: twice its default time-out for the database, so that the table gives up first and knows the
/// result.
const TABLE_TIMEOUT: Duration = Duration::from_secs(2);
/// The most sessions that are being opened. When this many don't finish, the table hangs, and no further ones are opened.
const OPENING_MAX: usize = 256;
/// The door's name in the table.
const DOOR: &str = "waku_filter";
/// The node id of subscribers without a session: no node has it.
const NO_NODE: NodeId = NodeId(0);

/// The session table, for subscribers.
pub(super) struct Table {
    sessions: Arc<dyn Sessions>,
    /// The resource includes the node: a peer may subscribe at several nodes, and with one resource these sessions would replace
    /// each other.
    resource: String,
    opening: Arc<Semaphore>,
    unlisted: AtomicU64,
    runtime: Handle,
}

impl Table {
    /// Uses the table of `live`. Its tasks run on the current runtime.
    pub(super) fn new(live: &Live) -> Self {
        Self {
            sessions: live.sessions.clone(),
            resource: format!("filter/{}", live.nodes.here()),
            opening: Arc::new(Semaphore::new(OPENING_MAX)),
            unlisted: AtomicU64::new(0),
            runtime: Handle::current(),
        }
    }

    /// Opens the session of a peer. Returns an id without a session when the table fails.
    pub(super) async fn open(&self, peer: PeerId, criteria: usize, opener: &dyn Opener) -> SessionId {
        let Ok(permit) = self.opening.clone().try_acquire_owned() else { return self.unlisted_id() };
        let (sessions, resource) = (self.sessions.clone(), self.resource.clone());
        let (user, address) = (peer.to_string(), opener.address(peer));
        let mut opening = self.runtime.spawn(async move {
            let info: [InfoChange<'_>; 3] = [
                (InfoKey::DOOR, Some(InfoValue::Text(DOOR))),
                (InfoKey::TOPICS, Some(number(criteria))),
                (InfoKey::ADDRESS, address.map(InfoValue::Address)),
            ];
            let opened = sessions.open(NewSession { user: &user, resource: &resource, info: &info }).await;
            drop(permit);
            opened
        });
        match timeout(TABLE_TIMEOUT, &mut opening).await {
            Ok(Ok(Ok(id))) => return id,
            Ok(Ok(Err(error))) => debug!(%peer, %error, "no session was opened for a filter subscriber"),
            Ok(Err(_)) => debug!(%peer, "opening a session for a filter subscriber failed"),
            Err(_) => {
                debug!(%peer, "opening a session for a filter subscriber takes too long");
                // Close it if it is opened after all.
                let sessions = self.sessions.clone();
                self.runtime.spawn(async move {
                    if let Ok(Ok(id)) = opening.await {
                        note(sessions.close(id, Ended::Left).await);
                    }
                });
            }
        }
        self.unlisted_id()
    }

    fn unlisted_id(&self) -> SessionId {
        let opened_us = self.unlisted.fetch_add(1, Ordering::Relaxed);
        SessionId { opened_us, node: NO_NODE, user_hash: 0 }
    }

    /// Updates the number of a subscriber's criteria in its session.
    pub(super) async fn note_criteria(&self, subscriber: &Subscriber) {
        if subscriber.id().node == NO_NODE {
            return;
        }
        let changes = [(InfoKey::TOPICS, Some(number(subscriber.subscription.interest_count())))];
        let merged = timeout(TABLE_TIMEOUT, self.sessions.merge_info(subscriber.id(), &changes)).await;
        note(merged.unwrap_or(Ok(false)));
    }

    /// Closes a session without waiting for it. The hub's subscription stays until the table notifies the hub.
    pub(super) fn close(&self, subscriber: &Arc<Subscriber>, why: Ended) {
        if subscriber.id().node == NO_NODE {
            return;
        }
        let (sessions, subscriber) = (self.sessions.clone(), subscriber.clone());
        self.runtime.spawn(async move {
            let closed = timeout(TABLE_TIMEOUT, sessions.close(subscriber.id(), why)).await;
            note(closed.unwrap_or(Ok(false)));
        });
    }

    /// Closes a session whose subscriber was refused.
    pub(super) async fn close_unused(&self, id: SessionId) {
        if id.node != NO_NODE {
            let closed = timeout(TABLE_TIMEOUT, self.sessions.close(id, Ended::Left)).await;
            note(closed.unwrap_or(Ok(false)));
        }
    }
}

fn number(criteria: usize) -> InfoValue<'static> {
    InfoValue::Number(i64::try_from(criteria).unwrap_or(i64::MAX))
}

fn note(changed: Result<bool, Error>) {
    if let Err(error) = changed {
        debug!(%error, "the session of a filter subscriber was not changed");
    }
}
