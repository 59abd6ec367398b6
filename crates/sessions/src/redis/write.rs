//! Open, close and change: first in the table of this node, then by one script in Redis.
//!
//! A failure of Redis does not fail the call: the session is open, closed or changed here, and the supervisor catches up.

use std::sync::Arc;

use redis::{Cmd, Value};

use super::{
    link::{Link, LinkError},
    local::Local,
    reply,
    schema::{Row, field_of, location_of},
    scripts::Script,
    table::Table,
};
use crate::{Answer, Ended, Error, NewSession, Session, SessionId, memory, redis_metrics::Op};

/// The answer of a script that changes or closes a session.
enum UpdateOutcome {
    Done,
    /// Redis does not have it.
    Missing,
    /// Another node has ended it; the notification is on its way.
    EndedByOther,
}

impl UpdateOutcome {
    fn read(value: &Value) -> Result<Self, LinkError> {
        Ok(match reply::int(value)? {
            1.. => Self::Done,
            0 => Self::Missing,
            _ => Self::EndedByOther,
        })
    }
}

impl Table {
    pub(super) fn open<'a>(&'a self, new: NewSession<'a>) -> Answer<'a, Result<SessionId, Error>> {
        let (id, ended) = match self.local.open(new) {
            Ok(opened) => opened,
            Err(error) => return Answer::ready(Err(error)),
        };
        let Some(link) = self.link() else {
            self.mark_missed();
            return Answer::ready(Ok(id));
        };
        let unfinished = Unfinished { table: self, id, opened: Some(ended) };
        Answer::later(async move {
            match self.write_opened(&link, id).await {
                true => unfinished.finish(),
                false => drop(unfinished), // queues a repair
            }
            Ok(id)
        })
    }

    /// Writes a session that was opened. Returns false when there is nothing to write.
    async fn write_opened(&self, link: &Link, id: SessionId) -> bool {
        let (found, revision) = self.now(id);
        // It may have ended already: another session with its resource was opened.
        let Some(session) = found.first() else { return false };
        let mut call = self.row_call(link, Script::Open, &session, revision);
        call.arg(location_of(&session)).arg(self.sessions_per_user_max);
        let opened = link.call(Op::Open, &call).await;
        if let Err(error) = opened.and_then(|losers| self.end_sessions(&losers)) {
            self.mark_missed();
            self.report(link, &error);
        } else if !self.local.has(id) {
            // It has ended while it was being written, and its removal may have come first.
            self.erase(link, id).await;
        }
        true
    }

    fn row_call(&self, link: &Link, script: Script, session: &Session<'_>, revision: u64) -> Cmd {
        let mut call = self.call(link, script);
        call.arg(self.here.0).arg(session.user()).arg(session.resource());
        call.arg(Row::of(session, revision)).arg(&field_of(session.id));
        call
    }

    pub(super) fn close(&self, id: SessionId, why: Ended) -> Answer<'_, Result<bool, Error>> {
        if id.node == self.here { self.close_own(id, why) } else { self.close_others(id, why) }
    }

    fn close_own(&self, id: SessionId, why: Ended) -> Answer<'_, Result<bool, Error>> {
        if !self.local.close(id, why) {
            return Answer::ready(Ok(false));
        }
        let Some(link) = self.link() else {
            self.mark_missed();
            return Answer::ready(Ok(true));
        };
        let unfinished = Unfinished { table: self, id, opened: None };
        Answer::later(async move {
            let was_there = self.erase(&link, id).await;
            unfinished.finish();
            Ok(was_there)
        })
    }

    fn close_others(&self, id: SessionId, why: Ended) -> Answer<'_, Result<bool, Error>> {
        let Some(link) = self.link() else { return Answer::ready(Err(self.last_error())) };
        Answer::later(async move {
            match self.close_in_redis(&link, id, why).await {
                Ok(outcome) => Ok(matches!(outcome, UpdateOutcome::Done)),
                Err(error) => {
                    self.report(&link, &error);
                    Err(error.into())
                }
            }
        })
    }

    /// Removes from Redis a session that has ended here. Returns false if another node had ended it before.
    pub(super) async fn erase(&self, link: &Link, id: SessionId) -> bool {
        match self.close_in_redis(link, id, Ended::Left).await {
            Ok(UpdateOutcome::Done | UpdateOutcome::Missing) => true,
            Ok(UpdateOutcome::EndedByOther) => false,
            Err(error) => {
                self.mark_missed();
                self.report(link, &error);
                true
            }
        }
    }

    async fn close_in_redis(
        &self,
        link: &Link,
        id: SessionId,
        why: Ended,
    ) -> Result<UpdateOutcome, LinkError> {
        let is_own = u8::from(id.node == self.here);
        let mut call = self.call(link, Script::Close);
        call.arg(id.node.0).arg(&id.to_bytes()).arg(&field_of(id)).arg(why.as_str()).arg(is_own);
        UpdateOutcome::read(&link.call(Op::Close, &call).await?)
    }

    /// Changes a session of this node, first in its own table.
    pub(super) fn update<'a>(
        &'a self,
        id: SessionId,
        change: impl FnOnce(&Local) -> Result<bool, Error>,
    ) -> Answer<'a, Result<bool, Error>> {
        let (changed, revision) =
            self.change(|local| change(local).map(|is_there| is_there.then(|| local.by_id(id))));
        let found = match changed {
            Ok(Some(found)) => found,
            Ok(None) => return Answer::ready(Ok(false)),
            Err(error) => return Answer::ready(Err(error)),
        };
        let Some(link) = self.link() else {
            self.mark_missed();
            return Answer::ready(Ok(true));
        };
        let unfinished = Unfinished { table: self, id, opened: None };
        Answer::later(async move {
            let outcome = match found.first() {
                Some(session) => self.write_change(&link, &session, revision).await,
                None => return Ok(false),
            };
            match outcome {
                Ok(UpdateOutcome::Done) => unfinished.finish(),
                // Queues a repair.
                Ok(UpdateOutcome::Missing) => drop(unfinished),
                Ok(UpdateOutcome::EndedByOther) => {
                    unfinished.finish();
                    return Ok(false);
                }
                Err(error) => {
                    unfinished.finish();
                    self.mark_missed();
                    self.report(&link, &error);
                }
            }
            Ok(true)
        })
    }

    async fn write_change(
        &self,
        link: &Arc<Link>,
        session: &Session<'_>,
        revision: u64,
    ) -> Result<UpdateOutcome, LinkError> {
        let call = self.row_call(link, Script::Update, session, revision);
        UpdateOutcome::read(&link.call(Op::Update, &call).await?)
    }
}

/// A local change that is being written to Redis. If the caller cancels that, dropping this queues a repair.
struct Unfinished<'a> {
    table: &'a Table,
    id: SessionId,
    /// The sessions that opening it has ended. If it is cancelled no caller knows its id, so it is closed here.
    opened: Option<memory::EndedSessions>,
}

impl Unfinished<'_> {
    fn finish(self) {
        std::mem::forget(self);
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        let Some(ended) = &self.opened else { return self.table.queue_repair(self.id) };
        let mut ids = self.table.with_others_of_its_user(self.id);
        ids.extend(ended.iter().map(|(id, _)| *id));
        self.table.local.close(self.id, Ended::Left); // before its repair
        for id in ids {
            self.table.queue_repair(id);
        }
    }
}
