//! Changes the records of the quarantine: each edit on the condition that no other server has changed them meanwhile.

use std::ops::Bound;

use restante_core::{BlobId, Error, ErrorKind};
use restante_records::{Change, Commit, Get, Query, RecordId, Revision};

use super::{
    ACCOUNT, Leaving, NewQuarantined, Quarantine, Totals,
    item::{self, RECIPIENTS_MAX, key_hash, key_of},
};
use crate::{queue::number, schema::quarantined};

/// How often an edit is planned again when other servers' commits come before it.
const TRIES_MAX: usize = 32;
/// Records that are removed in one commit.
const STEP: usize = 256;
const DAY_SECONDS: u64 = 86_400;

impl Quarantine {
    /// See [`Quarantine::keep`]: the blob is there.
    pub(super) async fn add(&self, message: &NewQuarantined, blob: BlobId) -> Result<Vec<RecordId>, Error> {
        let mut totals = self.totals.lock().await;
        let mut tries = 0;
        let (ids, created) = loop {
            let state = self.state().await?;
            let (mut known, mut changes) = (Vec::new(), Vec::new());
            for recipients in message.recipients.chunks(RECIPIENTS_MAX) {
                match self.find(&key_of(message, recipients)).await? {
                    Some(id) => known.push(id),
                    None => {
                        let (body, properties) = item::write(message, recipients, blob)?;
                        changes.push(Change::Create { kind: quarantined::KIND, body, properties });
                    }
                }
            }
            if changes.is_empty() {
                return Ok(known);
            }
            let commit = Commit::of(changes).if_in_state(quarantined::KIND, state);
            tries += 1;
            match self.records.commit(ACCOUNT, commit).await {
                Ok(committed) => {
                    let created = committed.created;
                    known.extend(&created);
                    break (known, created);
                }
                Err(error) if error.kind() == ErrorKind::Conflict && tries < TRIES_MAX => {}
                Err(error) => return Err(error.context("putting a message into quarantine")),
            }
        };
        self.metrics.count_kept(created.len() as u64);
        if let Some(totals) = totals.as_mut() {
            totals.messages += created.len() as u64;
            totals.bytes += message.raw.len() as u64 * created.len() as u64;
        }
        // The message is kept: if something fails from here on, it is tried again with the next message.
        if let Err(error) = self.make_room(&ids, &mut totals).await {
            tracing::warn!(%error, "the quarantine could not be made smaller: it is tried again");
        }
        Ok(ids)
    }

    async fn state(&self) -> Result<Revision, Error> {
        Ok(self.records.states(ACCOUNT).await?.of(quarantined::KIND))
    }

    async fn find(&self, key: &[u8; 32]) -> Result<Option<RecordId>, Error> {
        let query = Query::new(quarantined::KIND, quarantined::BY_KEY).equals(key_hash(key)).limit(STEP);
        let ids = self.records.query(ACCOUNT, &query).await?.ids;
        let found = self.whole(ids).await?;
        Ok(found.iter().find(|record| item::is_of(record, key)).map(|record| record.id))
    }

    /// Removes records, counts them, and returns those that existed. Records that are already gone are left out.
    pub(super) async fn destroy(
        &self,
        ids: &[RecordId],
        how: Leaving,
        totals: &mut Option<Totals>,
    ) -> Result<Vec<RecordId>, Error> {
        let mut removed = Vec::new();
        for ids in ids.chunks(STEP) {
            let mut tries = 0;
            loop {
                let found = self.records.get(ACCOUNT, &Get::small(quarantined::KIND, ids.to_vec())).await?;
                let mut there: Vec<_> = found.into_iter().flatten().collect();
                there.sort_by_key(|record| record.id);
                there.dedup_by_key(|record| record.id); // an id may be named twice
                if there.is_empty() {
                    break;
                }
                let destroyed = there.iter().map(|it| Change::Destroy { kind: quarantined::KIND, id: it.id });
                tries += 1;
                match self.records.commit(ACCOUNT, Commit::of(destroyed)).await {
                    Ok(_) => {
                        removed.extend(there.iter().map(|it| it.id));
                        self.metrics.count_left(how, there.len() as u64);
                        if let Some(totals) = totals.as_mut() {
                            let size = |it: &restante_records::Record| {
                                number(&it.properties, quarantined::SIZE).unwrap_or(0)
                            };
                            totals.messages = totals.messages.saturating_sub(there.len() as u64);
                            totals.bytes = totals.bytes.saturating_sub(there.iter().map(size).sum());
                        }
                        break;
                    }
                    // Another server has removed one of them.
                    Err(error)
                        if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Conflict)
                            && tries < TRIES_MAX => {}
                    Err(error) => return Err(error.context("removing messages from quarantine")),
                }
            }
        }
        if let Some(totals) = totals {
            self.metrics.show(totals);
        }
        Ok(removed)
    }

    /// See [`Quarantine::expire`].
    pub(super) async fn expire_all(&self) -> Result<u64, Error> {
        let mut totals = self.totals.lock().await;
        let until = self.now().saturating_sub(self.config.days_kept.get().saturating_mul(DAY_SECONDS));
        let mut removed = 0;
        loop {
            let query = Query::new(quarantined::KIND, quarantined::BY_AT)
                .between(Bound::Unbounded, Bound::Excluded(until.into()))
                .limit(STEP);
            let ids = self.records.query(ACCOUNT, &query).await?.ids;
            let step = self.destroy(&ids, Leaving::Expired, &mut totals).await?.len() as u64;
            removed += step;
            if step == 0 {
                break;
            }
        }
        // Other servers have kept and removed messages, too: the totals are counted anew.
        *totals = None;
        Ok(removed + self.make_room(&[], &mut totals).await?)
    }

    /// Removes the oldest messages, but none of `kept`, while there are more than the settings allow. Returns how many.
    async fn make_room(&self, kept: &[RecordId], totals: &mut Option<Totals>) -> Result<u64, Error> {
        if totals.is_none() {
            *totals = Some(self.count().await?);
        }
        let mut removed = 0;
        while let Some(known) = totals.filter(|totals| self.is_too_much(totals)) {
            let too_many = known.messages.saturating_sub(self.config.messages_max.get() as u64);
            // When only their bytes are too many, messages are removed one at a time.
            let step = usize::try_from(too_many).unwrap_or(STEP).clamp(1, STEP);
            let query = Query::new(quarantined::KIND, quarantined::BY_AT).limit(step + kept.len());
            let oldest = self.records.query(ACCOUNT, &query).await?.ids;
            let oldest: Vec<RecordId> =
                oldest.into_iter().filter(|id| !kept.contains(id)).take(step).collect();
            let step = self.destroy(&oldest, Leaving::Displaced, totals).await?.len() as u64;
            removed += step;
            if step == 0 {
                break;
            }
        }
        if let Some(totals) = totals {
            self.metrics.show(totals);
        }
        Ok(removed)
    }

    fn is_too_much(&self, totals: &Totals) -> bool {
        totals.messages > self.config.messages_max.get() as u64 || totals.bytes > self.config.bytes_max.get()
    }
}
