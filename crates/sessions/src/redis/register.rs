//! The lease of this node, and registering its sessions again.

use futures_util::{StreamExt, stream};
use tokio::time::Instant;

use super::{
    link::{Link, LinkError},
    nodes, reply,
    schema::{Row, id_of_field, why_of},
    scripts::Script,
    table::Table,
};
use crate::{NodeState, SessionId, redis_metrics::Op};

/// Sessions that one script registers; it blocks Redis meanwhile.
const REGISTER_SESSIONS: usize = 100;
/// Fields of a hash per page, and about as many concurrent removals.
const PAGE_FIELDS: usize = 100;
/// Rows that are removed at the same time.
const ERASE_AT_ONCE: usize = 32;

/// The result of a heartbeat.
pub(super) struct Beat {
    /// Whether others had ended sessions of this node; there may be more of them.
    pub(super) had_mail: bool,
    pub(super) nodes: Vec<NodeState>,
}

impl Table {
    /// Takes or renews the lease, and ends the sessions that others have ended. If the lease was not held, all sessions must be
    /// registered again.
    pub(super) async fn beat(&self, link: &Link) -> Result<Beat, LinkError> {
        let asked = Instant::now();
        let lease_ms = u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX);
        let mut call = self.call(link, Script::Beat);
        call.arg(self.here.0).arg(&self.token).arg(&self.name).arg(lease_ms);
        let answer = link.call(Op::Beat, &call).await?;
        if reply::array(&answer)?.is_empty() {
            return Err(LinkError::lost("another node has the same id: restart this one"));
        }
        let [was_held, mail, nodes] = reply::fields(&answer)?;
        let (_, nodes) = nodes::read(nodes)?;
        if reply::int(was_held)? != 1 {
            // While the lease was lost the others may have swept everything, also what was just registered. It is marked before the
            // lease is recorded, so that this node never counts as synchronised.
            self.mark_missed();
        }
        self.record_leases(asked, &nodes);
        let had_mail = self.read_mail(link, mail).await?;
        Ok(Beat { had_mail, nodes })
    }

    /// Ends the sessions that others have ended, and removes these entries. Returns whether there were any.
    async fn read_mail(&self, link: &Link, mail: &redis::Value) -> Result<bool, LinkError> {
        let mail = reply::pairs(mail)?;
        if mail.is_empty() {
            return Ok(false);
        }
        let mut read = redis::cmd("HDEL");
        read.arg(self.keys.mail(self.here));
        for (field, why) in mail {
            if let (Some(id), Some(why)) = (id_of_field(self.here, field), why_of(why)) {
                self.local.close(id, why);
            }
            read.arg(field);
        }
        link.ask(Op::Beat, &read).await?;
        Ok(true)
    }

    /// Renews the lease during longer work, when a third of it is over.
    pub(super) async fn beat_if_due(&self, link: &Link) -> Result<(), LinkError> {
        let due = Instant::now() + self.lease * 2 / 3;
        if self.lease_end().is_none_or(|end| end < due) {
            self.beat(link).await?;
        }
        Ok(())
    }

    /// Makes Redis have exactly the sessions of this node.
    pub(super) async fn register_all(&self, link: &Link) -> Result<(), LinkError> {
        let missed = self.missed();
        self.erase_ended(link).await?;
        let mut all = self.local.all();
        let mut batch = Vec::with_capacity(REGISTER_SESSIONS);
        while let Some(found) = all.next().await {
            // The table of this node returns no errors.
            let Ok(found) = found else { continue };
            for session in &found {
                batch.push(session.id);
                if batch.len() == REGISTER_SESSIONS {
                    self.register(link, &batch).await?;
                    batch.clear();
                    self.beat_if_due(link).await?;
                }
            }
        }
        self.register(link, &batch).await?;
        self.caught_up_to(missed);
        Ok(())
    }

    /// Removes rows of sessions that ended while Redis was unreachable.
    async fn erase_ended(&self, link: &Link) -> Result<(), LinkError> {
        let mut cursor = 0;
        loop {
            let mut ask = redis::cmd("HSCAN");
            ask.arg(self.keys.index(self.here)).arg(cursor).arg("COUNT").arg(PAGE_FIELDS);
            let answer = link.ask(Op::Register, &ask).await?;
            let [next, page] = reply::fields(&answer)?;
            let mut ended = Vec::new();
            for (field, _) in reply::pairs(page)? {
                let id = id_of_field(self.here, field);
                ended.extend(id.filter(|id| !self.local.has(*id)));
            }
            let erase = |id| async move {
                self.erase(link, id).await;
            };
            stream::iter(ended).for_each_concurrent(ERASE_AT_ONCE, erase).await;
            self.beat_if_due(link).await?;
            cursor = reply::number(next)?;
            if cursor == 0 {
                return Ok(());
            }
        }
    }

    /// Registers sessions in one step, as they are now.
    async fn register(&self, link: &Link, ids: &[SessionId]) -> Result<(), LinkError> {
        let mut call = self.call(link, Script::Register);
        call.arg(self.here.0).arg(self.sessions_per_user_max);
        let mut count = 0;
        for id in ids {
            let (found, revision) = self.now(*id);
            if let Some(session) = found.first() {
                call.arg(session.user()).arg(session.resource()).arg(Row::of(&session, revision));
                count += 1;
            }
        }
        if count == 0 {
            return Ok(());
        }
        let losers = link.call(Op::Register, &call).await?;
        self.end_sessions(&losers)?;
        self.metrics.registered.inc_by(count);
        for id in ids {
            // It may have ended after it was read and before it was written.
            if !self.local.has(*id) {
                self.erase(link, *id).await;
            }
        }
        Ok(())
    }

    /// Makes Redis agree with this node on one session.
    pub(super) async fn repair(&self, link: &Link, id: SessionId) {
        if !self.local.has(id) {
            self.erase(link, id).await;
            return;
        }
        if let Err(error) = self.register(link, &[id]).await {
            self.mark_missed();
            self.report(link, &error);
        }
    }
}
