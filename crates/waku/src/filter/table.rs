//! Subscribers as sessions: their entries in the table of all who are connected.
//!
//! The filter does not depend on the table. A subscriber whose session can't be opened, or not within [`TABLE_TIMEOUT`], is
//! served all the same: it stands in no list, and no operator can close it. Nothing is pushed later, and no lock is held,
//! because the table is slow; only the answer to the request that changes a subscription waits.

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

/// How long the table may take: twice as long as it gives the database behind it unless it was set otherwise, so that the table
/// itself has given up by then, and knows what became of it.
const TABLE_TIMEOUT: Duration = Duration::from_secs(2);
/// Sessions that are being opened at once. When so many don't end, the table hangs, and further ones are not tried.
const OPENING_MAX: usize = 256;
/// The door's name in the table.
const DOOR: &str = "waku_filter";
/// No node has this id, so that no session has an id with it.
const NO_NODE: NodeId = NodeId(0);

/// The table, for subscribers.
pub(super) struct Table {
    sessions: Arc<dyn Sessions>,
    /// A peer may subscribe at several nodes, as clients do that can't afford to miss a message. Each subscription is a session
    /// of its own; one resource for all would have them take each other's place.
    resource: String,
    opening: Arc<Semaphore>,
    unlisted: AtomicU64,
    runtime: Handle,
}

impl Table {
    /// The table of `live`. Its tasks run on the present runtime.
    pub(super) fn new(live: &Live) -> Self {
        Self {
            sessions: live.sessions.clone(),
            resource: format!("filter/{}", live.nodes.here()),
            opening: Arc::new(Semaphore::new(OPENING_MAX)),
            unlisted: AtomicU64::new(0),
            runtime: Handle::current(),
        }
    }

    /// Opens the session of a peer. It always gives an id: one of its own when the table gives none.
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
                // When it is opened after all, it is nobody's.
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
        SessionId { opened_us, node: NO_NODE, place: 0 }
    }

    /// Notes how many criteria a subscriber has.
    pub(super) async fn note_criteria(&self, subscriber: &Subscriber) {
        if subscriber.id().node == NO_NODE {
            return;
        }
        let changes = [(InfoKey::TOPICS, Some(number(subscriber.seat.interest_count())))];
        let merged = timeout(TABLE_TIMEOUT, self.sessions.merge_info(subscriber.id(), &changes)).await;
        note(merged.unwrap_or(Ok(false)));
    }

    /// Closes a session without waiting for it. Its subscriber keeps its seat until then: the table tells the seat's hub.
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

    /// Closes a session for which there was no place.
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
