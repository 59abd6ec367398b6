//! Lists and counts recipients.

use std::{
    collections::{HashMap, hash_map::Entry},
    fmt,
    ops::Bound,
    str::FromStr,
};

use bytes::Bytes;
use restante_core::Error;
use restante_records::{AccountId, Cursor, Get, QUERY_ROWS_MAX, Query, Record, RecordId, Value};

use super::{
    QueuedId, QueuedRecipient, QueuedState,
    account::QueueAccount,
    edit::Editor,
    stored::{number, property_text, state_number, text, view},
};
use crate::{hex, schema::queued};

/// The longest page of a list.
pub const LIST_MAX: usize = 1_000;
/// The most records that are read for one page: when few of them match, the page is short, and others follow.
const READ_MAX: usize = 16_384;
/// The most domains that are counted separately.
const DOMAINS_MAX: usize = 20_000;
/// Records that are read together.
const ROWS: usize = 256;

/// A filter: recipients of the queue for which all of these hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListFilter {
    /// Their domain, in any case.
    pub domain: Option<String>,
    /// The account that sends.
    pub account: Option<AccountId>,
    /// The envelope sender, in any case; empty for `<>`.
    pub sender: Option<String>,
    /// Whether they are tried.
    pub state: Option<QueuedState>,
}

/// Where a list continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListCursor {
    account: QueueAccount,
    after: Option<Cursor>,
}

impl fmt::Display for ListCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.account.number(), self.after.as_ref().map(hex::of_cursor).unwrap_or_default())
    }
}

impl FromStr for ListCursor {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || Error::invalid("not a place in the list of the queue");
        let (account, after) = text.split_once('-').ok_or_else(wrong)?;
        let number: usize = account.parse().map_err(|_| wrong())?;
        let account = QueueAccount::all().nth(number).ok_or_else(wrong)?;
        let after = hex::cursor(after).ok_or_else(wrong)?;
        Ok(Self { account, after: Some(after).filter(|after| !after.0.is_empty()) })
    }
}

/// A page of the queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListPage {
    /// The recipients; there may be fewer than were asked for even if more follow.
    pub recipients: Vec<QueuedRecipient>,
    /// Where the next page begins; `None` after the last.
    pub next: Option<ListCursor>,
}

/// The recipients of a domain in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainCount {
    /// The domain, or `…` for all domains beyond those that are counted separately.
    pub domain: String,
    /// Its recipients.
    pub recipients: u64,
    /// Those of them that are held.
    pub held: u64,
    /// When the oldest of them is or was due, in seconds since 1970; while it is being tried, the end of the lease.
    pub oldest_due: u64,
}

/// The size of the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Recipients that are tried when they are due.
    pub waiting: u64,
    /// Recipients that are held.
    pub held: u64,
    /// Recipients that have ended and are remembered.
    pub remembered: u64,
    /// When the first of those that are waiting is or was due, in seconds since 1970; `None` when none is waiting.
    pub oldest_due: Option<u64>,
}

/// A recipient that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueItem {
    /// The recipient.
    pub id: QueuedId,
    /// Its domain; one of more than 128 bytes is `#` and a hash.
    pub domain: String,
}

/// A page of what is due.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DuePage {
    /// In the order of time.
    pub items: Vec<DueItem>,
    /// Where the next page begins; `None` after the last.
    pub next: Option<Cursor>,
}

impl ListFilter {
    /// The query on the most selective index for it.
    fn query(&self) -> Query {
        let state = self.state.map(state_number);
        let of = |index| Query::new(queued::KIND, index);
        if let Some(domain) = &self.domain {
            let query = of(queued::BY_DOMAIN).equals(property_text(&domain.to_lowercase()));
            return match state {
                Some(state) => query.equals(state),
                None => query,
            };
        }
        if let Some(sender) = &self.sender {
            return of(queued::BY_SENDER).equals(property_text(&sender.to_lowercase()));
        }
        if let Some(account) = self.account {
            return of(queued::BY_ACCOUNT).equals(u64::from(account.0));
        }
        match state {
            Some(state) => of(queued::BY_DUE).equals(state),
            None => of(queued::BY_DUE),
        }
    }

    /// Checks what the index did not.
    fn matches(&self, recipient: &QueuedRecipient) -> bool {
        let message = &recipient.message;
        self.domain.as_ref().is_none_or(|domain| recipient.domain == domain.to_lowercase())
            && self
                .sender
                .as_ref()
                .is_none_or(|sender| message.sender.to_lowercase() == sender.to_lowercase())
            && self.account.is_none_or(|account| message.source.account == Some(account))
            && self.state.is_none_or(|state| recipient.state == state)
    }
}

impl Editor {
    /// See [`super::Queue::list`].
    pub(super) async fn list(
        &self,
        filter: &ListFilter,
        after: Option<&ListCursor>,
        limit: usize,
    ) -> Result<ListPage, Error> {
        let limit = limit.clamp(1, LIST_MAX);
        let (mut page, mut read) = (ListPage::default(), 0);
        let from = after.map_or(0, |after| after.account.number());
        let mut cursor = after.and_then(|after| after.after.clone());
        for account in QueueAccount::all().skip(from) {
            loop {
                if page.recipients.len() >= limit || read >= READ_MAX {
                    page.next = Some(ListCursor { account, after: cursor });
                    return Ok(page);
                }
                // Reads only as many as still fit, so that the cursor is right after the last one that was read.
                let mut query = filter.query().limit(ROWS.min(limit - page.recipients.len()));
                query.after = cursor.take();
                let found = self.records.query(account.account(), &query).await?;
                read += found.ids.len();
                let records = self.whole(account.account(), found.ids).await?;
                let recipients =
                    records.iter().filter_map(|record| view(account.account(), record).ok().flatten());
                page.recipients.extend(recipients.filter(|recipient| filter.matches(recipient)));
                cursor = found.next;
                if cursor.is_none() {
                    break;
                }
            }
        }
        Ok(page)
    }

    /// A page of the records of one account that match the index of a filter.
    pub(super) async fn matching(
        &self,
        account: AccountId,
        filter: &ListFilter,
        after: Option<Cursor>,
    ) -> Result<(Vec<QueuedId>, Option<Cursor>), Error> {
        let mut query = filter.query().limit(ROWS);
        query.after = after;
        let found = self.records.query(account, &query).await?;
        let records = self.whole(account, found.ids).await?;
        let recipients = records.iter().filter_map(|record| view(account, record).ok().flatten());
        let ids = recipients.filter(|recipient| filter.matches(recipient)).map(|recipient| recipient.id);
        Ok((ids.collect(), found.next))
    }

    async fn whole(&self, account: AccountId, ids: Vec<RecordId>) -> Result<Vec<Record>, Error> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        self.reader(account).read(ids).await
    }

    /// See [`super::Queue::get`].
    pub(super) async fn find(&self, id: QueuedId) -> Result<Option<QueuedRecipient>, Error> {
        if QueueAccount::of_account(id.account).is_none() {
            return Ok(None);
        }
        let found = self.whole(id.account, vec![id.record]).await?;
        match found.first() {
            Some(record) => view(id.account, record),
            None => Ok(None),
        }
    }

    /// See [`super::Queue::due`].
    pub(super) async fn due(
        &self,
        account: QueueAccount,
        (from, until): (u64, u64),
        after: Option<Cursor>,
        limit: usize,
    ) -> Result<DuePage, Error> {
        let mut query = Query::new(queued::KIND, queued::BY_DUE)
            .equals(state_number(QueuedState::Due))
            .between(Bound::Included(from.into()), Bound::Included(until.into()))
            .limit(limit.clamp(1, QUERY_ROWS_MAX))
            .with_values();
        query.after = after;
        let page = self.records.query(account.account(), &query).await?;
        let items = page.ids.into_iter().zip(page.values).map(|(record, domain)| DueItem {
            id: QueuedId { account: account.account(), record },
            domain: match domain {
                Value::Text(text) => String::from_utf8_lossy(&text).into_owned(),
                _ => String::new(),
            },
        });
        Ok(DuePage { items: items.collect(), next: page.next })
    }

    /// See [`super::Queue::due_of`].
    pub(super) async fn due_of(
        &self,
        account: QueueAccount,
        domain: &str,
        until: u64,
        limit: usize,
    ) -> Result<Vec<QueuedId>, Error> {
        let query = Query::new(queued::KIND, queued::BY_DOMAIN)
            .equals(Bytes::copy_from_slice(domain.as_bytes()))
            .equals(state_number(QueuedState::Due))
            .between(Bound::Unbounded, Bound::Included(until.into()))
            .limit(limit.clamp(1, QUERY_ROWS_MAX));
        let page = self.records.query(account.account(), &query).await?;
        Ok(page.ids.into_iter().map(|record| QueuedId { account: account.account(), record }).collect())
    }

    /// See [`super::Queue::next_due`].
    pub(super) async fn next_due(
        &self,
        account: QueueAccount,
        after: Option<u64>,
    ) -> Result<Option<u64>, Error> {
        let from = after.map_or(Bound::Unbounded, |after| Bound::Excluded(after.into()));
        let query = Query::new(queued::KIND, queued::BY_DUE)
            .equals(state_number(QueuedState::Due))
            .between(from, Bound::Unbounded)
            .limit(1);
        let page = self.records.query(account.account(), &query).await?;
        Ok(self
            .small(account, page.ids)
            .await?
            .first()
            .and_then(|record| number(&record.properties, queued::DUE)))
    }

    async fn small(&self, account: QueueAccount, ids: Vec<RecordId>) -> Result<Vec<Record>, Error> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let found = self.records.get(account.account(), &Get::small(queued::KIND, ids)).await?;
        Ok(found.into_iter().flatten().collect())
    }

    /// See [`super::Queue::domains`].
    pub(super) async fn domains(&self) -> Result<Vec<DomainCount>, Error> {
        let mut domains: HashMap<String, DomainCount> = HashMap::new();
        for account in QueueAccount::all() {
            for state in [QueuedState::Due, QueuedState::Held] {
                self.count_domains(account, state, &mut domains).await?;
            }
        }
        let mut counts: Vec<DomainCount> = domains.into_values().collect();
        counts.sort_by(|a, b| b.recipients.cmp(&a.recipients).then_with(|| a.domain.cmp(&b.domain)));
        Ok(counts)
    }

    /// Walks only the index; a record is read only for the first recipient of each domain in this account, which is the oldest.
    async fn count_domains(
        &self,
        account: QueueAccount,
        state: QueuedState,
        domains: &mut HashMap<String, DomainCount>,
    ) -> Result<(), Error> {
        let mut counted: HashMap<Bytes, u64> = HashMap::new();
        let mut after = None;
        loop {
            let mut query = Query::new(queued::KIND, queued::BY_DUE)
                .equals(state_number(state))
                .limit(QUERY_ROWS_MAX)
                .with_values();
            query.after = after;
            let page = self.records.query(account.account(), &query).await?;
            let mut first = Vec::new();
            for (id, domain) in page.ids.into_iter().zip(page.values) {
                let Value::Text(domain) = domain else { continue };
                match counted.entry(domain) {
                    Entry::Occupied(mut known) => *known.get_mut() += 1,
                    Entry::Vacant(new) => {
                        new.insert(1);
                        first.push(id);
                    }
                }
            }
            for record in self.small(account, first).await? {
                let due = number(&record.properties, queued::DUE).unwrap_or(0);
                let Some(domain) = text(&record.properties, queued::DOMAIN) else { continue };
                let entry = entry(domains, domain);
                entry.oldest_due = entry.oldest_due.min(due);
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        for (domain, recipients) in counted {
            let entry = entry(domains, String::from_utf8_lossy(&domain).into_owned());
            entry.recipients += recipients;
            if state == QueuedState::Held {
                entry.held += recipients;
            }
        }
        Ok(())
    }

    /// See [`super::Queue::totals`].
    pub(super) async fn totals(&self) -> Result<Totals, Error> {
        let mut totals = Totals::default();
        for account in QueueAccount::all() {
            let count = async |query: Query| self.records.count(account.account(), &query).await;
            let of = |state| Query::new(queued::KIND, queued::BY_DUE).equals(state_number(state));
            totals.waiting += count(of(QueuedState::Due)).await?.entries;
            totals.held += count(of(QueuedState::Held)).await?.entries;
            totals.remembered += count(Query::new(queued::KIND, queued::BY_REMEMBERED)).await?.entries;
            let due = self.next_due(account, None).await?;
            totals.oldest_due = [totals.oldest_due, due].into_iter().flatten().min();
        }
        Ok(totals)
    }
}

/// The count of a domain; beyond the most domains that are counted, that of all others.
fn entry(domains: &mut HashMap<String, DomainCount>, domain: String) -> &mut DomainCount {
    let is_apart = domains.len() < DOMAINS_MAX || domains.contains_key(&domain);
    let domain = if is_apart { domain } else { "…".to_owned() };
    let new = DomainCount { domain: domain.clone(), recipients: 0, held: 0, oldest_due: u64::MAX };
    domains.entry(domain).or_insert(new)
}

/// The text of an id, as operators write it: `131-17`.
impl fmt::Display for QueuedId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.account.0, self.record.0)
    }
}

impl FromStr for QueuedId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = || Error::invalid(format!("{text:?} is no id of the queue: use one like 131-17"));
        let (account, record) = text.split_once('-').ok_or_else(wrong)?;
        let account = AccountId(account.parse().map_err(|_| wrong())?);
        if QueueAccount::of_account(account).is_none() {
            return Err(wrong());
        }
        Ok(Self { account, record: RecordId(record.parse().map_err(|_| wrong())?) })
    }
}
