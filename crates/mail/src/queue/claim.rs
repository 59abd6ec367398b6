//! Claims recipients that are due, and records their outcomes.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use restante_core::{Error, Kind};
use restante_records::{AccountId, Body, Change, Properties, Record, RecordId, Revision, Value};
use tracing::warn;

use super::{
    NewMessage, QueuedId, QueuedRecipient, QueuedState, Reply,
    add::create,
    edit::{Edit, Editor, Reader},
    joint::Request,
    stored::{Stored, StoredAttempt, add_lateness, number, set, state_number, view},
};
use crate::schema::queued;

/// After so many leases in a row that end without an outcome, a recipient is held: it may be what crashes the process.
const LOST_LEASES_MAX: u64 = 20;
/// How long a recipient that has ended is remembered, in seconds: longer than a peer repeats a message whose acknowledgement it has missed.
const REMEMBER_SECONDS: u64 = 5 * 86_400;
/// The longest reason that is kept.
const REASON_CHARS_MAX: usize = 500;

const KIND: Kind = queued::KIND;

/// The right to try a recipient, until the lease ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The recipient.
    pub id: QueuedId,
    /// The commit that created the lease.
    pub claimed: Revision,
}

/// A recipient that is being tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// The right to try it.
    pub lease: Lease,
    /// The recipient; its `attempts` count this one.
    pub recipient: QueuedRecipient,
    /// Whether the attempt before this one ended without an outcome.
    pub is_lease_lost: bool,
}

/// What happens to a recipient after an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It was delivered, and leaves the queue, no matter who holds the lease now.
    Delivered,
    /// It has failed for good or is not to be sent, and leaves the queue.
    Dropped,
    /// It will be tried again.
    Postponed {
        /// When, in seconds since 1970.
        due: u64,
        /// The reply.
        reply: Reply,
        /// Whether the delay has been reported.
        is_delay_reported: bool,
    },
    /// It was not tried, and the attempt does not count. Returns to a later time are counted in `returns`, until an attempt is recorded.
    Returned {
        /// When it is tried, in seconds since 1970.
        due: u64,
    },
    /// It could not be prepared, and the attempt does not count. After too many such faults it is held.
    Faulted {
        /// When it is tried again, in seconds since 1970.
        due: u64,
        /// Why.
        why: String,
        /// After how many faults it is held.
        faults_max: u32,
    },
}

/// Recipients that end together, and the report about them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The recipients.
    pub endings: Vec<(Lease, Ending)>,
    /// The report, which is added in the same commit if at least one of the endings is recorded.
    pub notice: Option<NewMessage>,
}

/// A request to claim recipients of one account.
#[derive(Clone)]
pub(super) struct ClaimRequest {
    ids: Arc<[QueuedId]>,
    lease_until: u64,
}

#[async_trait]
impl Request for ClaimRequest {
    type Answer = Vec<Claimed>;

    fn records(&self) -> Vec<RecordId> {
        self.ids.iter().map(|id| id.record).collect()
    }

    async fn commit(
        editor: &Editor,
        account: AccountId,
        requests: &[Self],
    ) -> Result<Vec<Vec<Claimed>>, Error> {
        let mut claim = Claim { leases: BTreeMap::new() };
        let mut request_of: BTreeMap<RecordId, usize> = BTreeMap::new();
        for (number, request) in requests.iter().enumerate() {
            for id in request.ids.iter() {
                claim.leases.insert(id.record, request.lease_until);
                request_of.insert(id.record, number);
            }
        }
        let mut answers = vec![Vec::new(); requests.len()];
        let (recipients, committed) = editor.edit_in_turn(account, &claim).await?;
        let Some(committed) = committed else { return Ok(answers) };
        for (recipient, is_lease_lost) in recipients {
            let lease = Lease { id: recipient.id, claimed: committed.revision };
            let number = request_of.get(&recipient.id.record);
            if let Some(claimed) = number.and_then(|number| answers.get_mut(*number)) {
                claimed.push(Claimed { lease, recipient, is_lease_lost });
            }
        }
        Ok(answers)
    }
}

/// Claims those of the given records that are due.
struct Claim {
    /// When each lease ends.
    leases: BTreeMap<RecordId, u64>,
}

#[async_trait]
impl Edit for Claim {
    type Plan = Vec<(QueuedRecipient, bool)>;

    async fn plan(&self, reader: &Reader<'_>) -> Result<(Vec<Change>, Self::Plan), Error> {
        let ids = self.leases.keys().copied().collect();
        let (mut changes, mut claimed) = (Vec::new(), Vec::new());
        for record in reader.read(ids).await? {
            let Some(lease_until) = self.leases.get(&record.id).copied() else { continue };
            let is_due = number(&record.properties, queued::DUE).is_some_and(|due| due <= reader.now);
            if !is_due || !is_tried(&record) {
                continue;
            }
            let mut recipient = match view(reader.account, &record) {
                Ok(Some(recipient)) => recipient,
                Ok(None) => continue,
                Err(error) => {
                    warn!(account = reader.account.0, record = record.id.0, %error, "a queued recipient is held");
                    changes.push(hold_damaged(&record));
                    continue;
                }
            };
            let was_leased = recipient.is_leased;
            let lost = number(&record.properties, queued::LOST_LEASES).unwrap_or(0) + u64::from(was_leased);
            if lost >= LOST_LEASES_MAX {
                changes.push(hold_lost(&record)?);
                continue;
            }
            recipient.attempts = recipient.attempts.saturating_add(1);
            recipient.is_leased = true;
            recipient.due = lease_until;
            let mut properties = record.properties;
            add_lateness(&mut properties, reader.now);
            recipient.first_due = number(&properties, queued::FIRST_DUE).unwrap_or(recipient.first_due);
            set(&mut properties, queued::DUE, Some(Value::Number(lease_until)));
            set(&mut properties, queued::ATTEMPTS, Some(Value::Number(recipient.attempts.into())));
            set(&mut properties, queued::LEASE, Some(Value::Revision));
            set(&mut properties, queued::LOST_LEASES, (lost > 0).then_some(Value::Number(lost)));
            changes.push(update(record.id, None, properties));
            claimed.push((recipient, was_leased));
        }
        Ok((changes, claimed))
    }
}

fn update(id: RecordId, body: Option<Body>, properties: Properties) -> Change {
    Change::Update { kind: KIND, id, body, properties: Some(properties) }
}

/// Holds a record that can't be read, unchanged otherwise, for the operator.
fn hold_damaged(record: &Record) -> Change {
    let mut properties = record.properties.clone();
    set(&mut properties, queued::STATE, Some(Value::Number(state_number(QueuedState::Held))));
    update(record.id, None, properties)
}

fn hold_lost(record: &Record) -> Result<Change, Error> {
    let mut stored = Stored::read(&record.body)?;
    stored.reason = Some(format!("{LOST_LEASES_MAX} attempts in a row ended without an outcome"));
    let mut properties = without_lease(&record.properties);
    set(&mut properties, queued::STATE, Some(Value::Number(state_number(QueuedState::Held))));
    Ok(update(record.id, Some(stored.body(record.body.blobs.clone())?), properties))
}

fn without_lease(properties: &Properties) -> Properties {
    let mut properties = properties.clone();
    set(&mut properties, queued::LEASE, None);
    set(&mut properties, queued::LOST_LEASES, None);
    properties
}

/// Extends leases.
struct Renew<'a> {
    leases: &'a [Lease],
    /// Only leases that end before this time.
    before: u64,
    until: u64,
}

#[async_trait]
impl Edit for Renew<'_> {
    /// The leases whose recipients may still be tried.
    type Plan = Vec<Lease>;

    async fn plan(&self, reader: &Reader<'_>) -> Result<(Vec<Change>, Vec<Lease>), Error> {
        let ids = self.leases.iter().map(|lease| lease.id.record).collect();
        let (mut changes, mut valid) = (Vec::new(), Vec::new());
        for record in reader.read(ids).await? {
            let Some(lease) = self.leases.iter().find(|lease| is_leased(&record, lease)) else { continue };
            if is_tried(&record) {
                valid.push(*lease);
            }
            if number(&record.properties, queued::DUE).is_some_and(|due| due < self.before) {
                let mut properties = record.properties;
                set(&mut properties, queued::DUE, Some(Value::Number(self.until)));
                changes.push(update(record.id, None, properties));
            }
        }
        Ok((changes, valid))
    }
}

fn is_leased(record: &Record, lease: &Lease) -> bool {
    record.id == lease.id.record && number(&record.properties, queued::LEASE) == Some(lease.claimed.0)
}

/// Whether it has not ended, and is not held.
fn is_tried(record: &Record) -> bool {
    number(&record.properties, queued::STATE) == Some(state_number(QueuedState::Due))
}

/// A request to record outcomes in one account.
#[derive(Clone)]
pub(super) struct EndRequest(Arc<[Outcome]>);

#[async_trait]
impl Request for EndRequest {
    /// How many endings were recorded.
    type Answer = usize;

    fn records(&self) -> Vec<RecordId> {
        let endings = self.0.iter().flat_map(|outcome| &outcome.endings);
        endings.map(|(lease, _)| lease.id.record).collect()
    }

    async fn commit(editor: &Editor, account: AccountId, requests: &[Self]) -> Result<Vec<usize>, Error> {
        let (noted, _) = editor.edit_in_turn(account, &End { requests }).await?;
        Ok(noted)
    }
}

/// Records outcomes.
struct End<'a> {
    requests: &'a [EndRequest],
}

#[async_trait]
impl Edit for End<'_> {
    /// How many endings of each request were recorded.
    type Plan = Vec<usize>;

    async fn plan(&self, reader: &Reader<'_>) -> Result<(Vec<Change>, Vec<usize>), Error> {
        let records = reader.read(self.requests.iter().flat_map(Request::records).collect()).await?;
        let records: BTreeMap<RecordId, Record> =
            records.into_iter().map(|record| (record.id, record)).collect();
        let mut changes = Vec::new();
        let mut noted = Vec::with_capacity(self.requests.len());
        for EndRequest(outcomes) in self.requests {
            noted.push(note(outcomes, &records, reader.now, &mut changes)?);
        }
        Ok((changes, noted))
    }
}

/// Adds the changes that record some outcomes; returns how many endings they record.
fn note(
    outcomes: &[Outcome],
    records: &BTreeMap<RecordId, Record>,
    now: u64,
    changes: &mut Vec<Change>,
) -> Result<usize, Error> {
    let mut noted = 0;
    for outcome in outcomes {
        let before = noted;
        for (lease, ending) in &outcome.endings {
            let Some(record) = records.get(&lease.id.record) else { continue };
            if !is_leased(record, lease) && *ending != Ending::Delivered {
                continue; // another sender is trying it now
            }
            if let Some(change) = ended(record, ending, now)? {
                changes.push(change);
                noted += 1;
            }
        }
        if let Some(notice) = outcome.notice.as_ref().filter(|_| noted > before) {
            for recipient in &notice.recipients {
                changes.push(create(notice, recipient, now)?);
            }
        }
    }
    Ok(noted)
}

/// The change that an ending makes to a record; `None` when the record has ended already.
fn ended(record: &Record, ending: &Ending, now: u64) -> Result<Option<Change>, Error> {
    let (mut stored, mut properties) = (None, without_lease(&record.properties));
    let uncount = |properties: &mut Properties| {
        let attempts = number(properties, queued::ATTEMPTS).unwrap_or(0).saturating_sub(1);
        set(properties, queued::ATTEMPTS, (attempts > 0).then_some(Value::Number(attempts)));
    };
    match ending {
        Ending::Delivered | Ending::Dropped => return gone(record, now),
        Ending::Postponed { due, reply, is_delay_reported } => {
            let mut body = Stored::read(&record.body)?;
            body.last = Some(StoredAttempt::new(now, reply.clone()));
            body.returns = 0;
            stored = Some(body);
            set(&mut properties, queued::DUE, Some(Value::Number(*due)));
            set(&mut properties, queued::FAULTS, None);
            set(&mut properties, queued::DELAY_REPORTED, is_delay_reported.then_some(Value::Number(1)));
        }
        Ending::Returned { due } => {
            uncount(&mut properties);
            set(&mut properties, queued::DUE, Some(Value::Number(*due)));
            if *due > now {
                let mut body = Stored::read(&record.body)?;
                body.returns = body.returns.saturating_add(1);
                stored = Some(body);
            }
        }
        Ending::Faulted { due, why, faults_max } => {
            uncount(&mut properties);
            let faults = number(&properties, queued::FAULTS).unwrap_or(0) + 1;
            set(&mut properties, queued::DUE, Some(Value::Number(*due)));
            set(&mut properties, queued::FAULTS, Some(Value::Number(faults)));
            let mut body = Stored::read(&record.body)?;
            body.reason = Some(why.chars().take(REASON_CHARS_MAX).collect());
            stored = Some(body);
            if faults >= u64::from(*faults_max) {
                set(&mut properties, queued::STATE, Some(Value::Number(state_number(QueuedState::Held))));
            }
        }
    }
    let body = match stored {
        Some(stored) => Some(stored.body(record.body.blobs.clone())?),
        None => None,
    };
    Ok(Some(update(record.id, body, properties)))
}

/// The change that takes a record out of the queue: it is destroyed, or remembered without its message.
pub(super) fn gone(record: &Record, now: u64) -> Result<Option<Change>, Error> {
    if number(&record.properties, queued::STATE).is_none() {
        return Ok(None);
    }
    let stored = Stored::read(&record.body).ok().filter(Stored::is_remembered);
    let Some(stored) = stored else { return Ok(Some(Change::Destroy { kind: KIND, id: record.id })) };
    let key = record.properties.values(queued::KEY).cloned();
    let mut properties: Properties = key.map(|key| (queued::KEY, key)).collect();
    properties.add(queued::REMEMBERED, Value::Number(now.saturating_add(REMEMBER_SECONDS)));
    Ok(Some(update(record.id, Some(stored.body(Vec::new())?), properties)))
}

impl Editor {
    /// See [`super::Queue::claim`].
    pub(super) async fn claim(&self, ids: &[QueuedId], lease_until: u64) -> Result<Vec<Claimed>, Error> {
        let Some(account) = one_account(ids.iter().copied())? else { return Ok(Vec::new()) };
        let request = ClaimRequest { ids: ids.into(), lease_until };
        self.join(account, &self.edits(account)?.claims, request).await
    }

    /// See [`super::Queue::renew`].
    pub(super) async fn renew(&self, leases: &[Lease], before: u64, until: u64) -> Result<Vec<Lease>, Error> {
        let Some(account) = one_account(leases.iter().map(|lease| lease.id))? else { return Ok(Vec::new()) };
        let renew = Renew { leases, before, until };
        // Usually no lease ends so soon and there is nothing to commit: then there is no need to wait for other edits.
        let (changes, valid) = renew.plan(&self.reader(account)).await?;
        if changes.is_empty() {
            return Ok(valid);
        }
        Ok(self.edit(account, &renew).await?.0)
    }

    /// See [`super::Queue::end`].
    pub(super) async fn end(&self, outcomes: &[Outcome]) -> Result<usize, Error> {
        let endings = outcomes.iter().flat_map(|outcome| &outcome.endings);
        let Some(account) = one_account(endings.map(|(lease, _)| lease.id))? else { return Ok(0) };
        self.join(account, &self.edits(account)?.ends, EndRequest(outcomes.into())).await
    }
}

/// The account of some recipients; `None` for none.
fn one_account(ids: impl Iterator<Item = QueuedId>) -> Result<Option<AccountId>, Error> {
    let mut account = None;
    for id in ids {
        if account.is_some_and(|account| account != id.account) {
            return Err(Error::invalid("the recipients are in several accounts of the queue"));
        }
        account = Some(id.account);
    }
    Ok(account)
}
