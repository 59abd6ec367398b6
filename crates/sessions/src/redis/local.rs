//! The sessions of this node: a table of the `memory` engine, whose calls are ready at once.

use futures_util::{FutureExt, stream::BoxStream};

use crate::{
    Answer, Ended, Error, Found, InfoChange, NewSession, Nodes, SessionId, Sessions,
    memory::{EndedSessions, Memory},
};

pub(super) struct Local(Memory);

impl Local {
    pub(super) fn new(table: Memory) -> Self {
        Self(table)
    }

    /// Opens a session; also returns the sessions that it ended. Their owner has been notified.
    pub(super) fn open(&self, new: NewSession<'_>) -> Result<(SessionId, EndedSessions), Error> {
        self.0.open_now(new)
    }

    /// Ends a session, if it exists, and notifies its owner unless that gave the reason.
    pub(super) fn close(&self, id: SessionId, why: Ended) -> bool {
        at_once(Sessions::close(&self.0, id, why)).unwrap_or(false)
    }

    pub(super) fn set_presence(
        &self,
        id: SessionId,
        priority: Option<i8>,
        changes: &[InfoChange<'_>],
    ) -> Result<bool, Error> {
        at_once(self.0.set_presence(id, priority, changes))
    }

    pub(super) fn merge_info(&self, id: SessionId, changes: &[InfoChange<'_>]) -> Result<bool, Error> {
        at_once(self.0.merge_info(id, changes))
    }

    pub(super) fn by_user(&self, user: &str) -> Found {
        at_once(self.0.by_user(user)).unwrap_or_else(|_| Found::none())
    }

    pub(super) fn by_address(&self, user: &str, resource: &str) -> Found {
        at_once(self.0.by_address(user, resource)).unwrap_or_else(|_| Found::none())
    }

    pub(super) fn by_id(&self, id: SessionId) -> Found {
        at_once(self.0.by_id(id)).unwrap_or_else(|_| Found::none())
    }

    pub(super) fn has(&self, id: SessionId) -> bool {
        !self.by_id(id).is_empty()
    }

    pub(super) fn all(&self) -> BoxStream<'_, Result<Found, Error>> {
        self.0.all()
    }

    /// The numbers of sessions and users.
    pub(super) fn counts(&self) -> (u64, u64) {
        at_once(self.0.counts()).map_or((0, 0), |counts| (counts.sessions, counts.users))
    }

    /// Ends all sessions without notifying owners.
    pub(super) fn clear(&self) {
        let _ = at_once(Nodes::close(&self.0));
    }
}

/// The result of a call that is ready at once.
fn at_once<T>(answer: Answer<'_, Result<T, Error>>) -> Result<T, Error>
where
    Result<T, Error>: Unpin,
{
    answer
        .now_or_never()
        .unwrap_or_else(|| Err(Error::internal("the table of this node did not answer at once")))
}
