//! Operators' actions on recipients in the queue.

use std::collections::BTreeMap;

use async_trait::async_trait;
use restante_core::Error;
use restante_records::{AccountId, Body, Change, Cursor, Properties, Record, RecordId, Value};

use super::{
    ListFilter, QueuedId, QueuedState,
    account::QueueAccount,
    claim::gone,
    edit::{Edit, Editor, Reader},
    stored::{Stored, add_lateness, is_scheduled, number, set, state_number},
};
use crate::schema::queued;

/// The most recipients of one commit.
const STEP: usize = 256;

/// The recipients that an operator selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// The ones with these ids. Those that no longer exist are left out.
    Ids(Vec<QueuedId>),
    /// All that match.
    Matching(ListFilter),
}

/// What is done with them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Hold {
        why: String,
    },
    Release,
    /// Including recipients that their author has scheduled for later, if they were named by their ids.
    Retry {
        is_named: bool,
    },
    Drop,
}

struct Operate<'a> {
    ids: &'a [RecordId],
    action: &'a Action,
}

#[async_trait]
impl Edit for Operate<'_> {
    type Plan = Vec<RecordId>;

    /// The changes, and the records that change.
    async fn plan(&self, reader: &Reader<'_>) -> Result<(Vec<Change>, Vec<RecordId>), Error> {
        let (mut changes, mut changed) = (Vec::new(), Vec::new());
        for record in reader.read(self.ids.to_vec()).await? {
            let change = match self.action {
                Action::Hold { why } => hold(&record, why)?,
                Action::Release => release(&record, reader.now)?,
                Action::Retry { is_named } => retry(&record, *is_named, reader.now),
                Action::Drop => gone(&record, reader.now)?,
            };
            if let Some(change) = change {
                changes.push(change);
                changed.push(record.id);
            }
        }
        Ok((changes, changed))
    }
}

fn is_in(record: &Record, state: QueuedState) -> bool {
    number(&record.properties, queued::STATE) == Some(state_number(state))
}

fn in_state(record: &Record, state: QueuedState) -> Properties {
    let mut properties = record.properties.clone();
    set(&mut properties, queued::STATE, Some(Value::Number(state_number(state))));
    properties
}

/// The body with a reason; `None` for a body that can't be read, which stays as it is.
fn with_reason(record: &Record, reason: Option<&str>) -> Result<Option<Body>, Error> {
    let Ok(mut stored) = Stored::read(&record.body) else { return Ok(None) };
    stored.reason = reason.map(str::to_owned);
    stored.body(record.body.blobs.clone()).map(Some)
}

/// Holds a recipient. An attempt that is under way is finished.
fn hold(record: &Record, why: &str) -> Result<Option<Change>, Error> {
    if !is_in(record, QueuedState::Due) {
        return Ok(None);
    }
    let body = with_reason(record, Some(why))?;
    let properties = Some(in_state(record, QueuedState::Held));
    Ok(Some(Change::Update { kind: queued::KIND, id: record.id, body, properties }))
}

fn release(record: &Record, now: u64) -> Result<Option<Change>, Error> {
    if !is_in(record, QueuedState::Held) {
        return Ok(None);
    }
    let body = with_reason(record, None)?;
    let mut properties = in_state(record, QueuedState::Due);
    add_lateness(&mut properties, now);
    let due = number(&properties, queued::DUE).unwrap_or(0).max(now);
    set(&mut properties, queued::DUE, Some(Value::Number(due)));
    set(&mut properties, queued::FAULTS, None);
    Ok(Some(Change::Update { kind: queued::KIND, id: record.id, body, properties: Some(properties) }))
}

/// Makes a recipient due now. One that is being tried, held or due anyway stays as it is, and so does one that its author has
/// scheduled for later (RFC 4865), unless it is named.
fn retry(record: &Record, is_named: bool, now: u64) -> Option<Change> {
    let is_scheduled = is_scheduled(&record.properties, now);
    if is_scheduled && !is_named {
        return None;
    }
    let is_leased = number(&record.properties, queued::LEASE).is_some();
    let is_later = number(&record.properties, queued::DUE).is_some_and(|due| due > now);
    if !is_in(record, QueuedState::Due) || is_leased || !is_later {
        return None;
    }
    let mut properties = record.properties.clone();
    set(&mut properties, queued::DUE, Some(Value::Number(now)));
    Some(Change::Update { kind: queued::KIND, id: record.id, body: None, properties: Some(properties) })
}

/// Removes records of recipients that have ended and need not be remembered any longer.
struct Forget {
    before: u64,
}

#[async_trait]
impl Edit for Forget {
    type Plan = bool;

    /// The changes, and whether there are more.
    async fn plan(&self, reader: &Reader<'_>) -> Result<(Vec<Change>, bool), Error> {
        let query = restante_records::Query::new(queued::KIND, queued::BY_REMEMBERED)
            .between(std::ops::Bound::Unbounded, std::ops::Bound::Excluded(self.before.into()))
            .limit(STEP);
        let page = reader.records.query(reader.account, &query).await?;
        let destroyed = page.ids.into_iter().map(|id| Change::Destroy { kind: queued::KIND, id });
        Ok((destroyed.collect(), page.next.is_some()))
    }
}

impl Editor {
    /// Applies an action to a selection, some hundred at a time; returns how many recipients it changed.
    pub(super) async fn operate(&self, selection: &Selection, action: &Action) -> Result<u64, Error> {
        match selection {
            Selection::Ids(ids) => Ok(self.operate_on_ids(ids, action).await?.len() as u64),
            Selection::Matching(filter) => {
                let mut changed = 0;
                for account in QueueAccount::all().map(QueueAccount::account) {
                    let mut after: Option<Cursor> = None;
                    loop {
                        let (ids, next) = self.matching(account, filter, after).await?;
                        let ids: Vec<RecordId> = ids.into_iter().map(|id| id.record).collect();
                        changed += self.operate_on(account, &ids, action).await?.len() as u64;
                        after = next;
                        if after.is_none() {
                            break;
                        }
                    }
                }
                Ok(changed)
            }
        }
    }

    /// Applies an action to recipients; returns those that it changed.
    pub(super) async fn operate_on_ids(
        &self,
        ids: &[QueuedId],
        action: &Action,
    ) -> Result<Vec<QueuedId>, Error> {
        let mut accounts: BTreeMap<AccountId, Vec<RecordId>> = BTreeMap::new();
        for id in ids {
            let known = accounts.entry(id.account).or_default();
            if !known.contains(&id.record) {
                known.push(id.record);
            }
        }
        let mut changed = Vec::new();
        for (account, ids) in accounts {
            let records = self.operate_on(account, &ids, action).await?;
            changed.extend(records.into_iter().map(|record| QueuedId { account, record }));
        }
        Ok(changed)
    }

    async fn operate_on(
        &self,
        account: AccountId,
        ids: &[RecordId],
        action: &Action,
    ) -> Result<Vec<RecordId>, Error> {
        let mut changed = Vec::new();
        for ids in ids.chunks(STEP) {
            changed.extend(self.edit(account, &Operate { ids, action }).await?.0);
        }
        Ok(changed)
    }

    /// See [`super::Queue::forget`].
    pub(super) async fn forget(&self) -> Result<bool, Error> {
        let mut has_more = false;
        let mut first_error = None;
        let forget = Forget { before: self.now() };
        for account in QueueAccount::all() {
            match self.edit(account.account(), &forget).await {
                Ok((has_more_here, _)) => has_more |= has_more_here,
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        first_error.map_or(Ok(has_more), Err)
    }
}
