//! Reads and changes of the reserved accounts.

use std::{ops::Deref, sync::Arc};

use bytes::Bytes;
use restante_core::{Clock, ErrorKind, Timestamp};
use restante_records::{
    AccountId, Change, Commit, Committed, Cursor, Get, Kind, Query, Record, RecordId, Records, Revision,
    Value, Watch,
};
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use crate::{
    Domain, EmailAddress, Error,
    entry::{self, AddressEntry, DomainEntry},
    schema::{
        ADDRESS, ADDRESS_BY_NAME, DOMAIN, DOMAIN_BY_HASH, OPERATION, OPERATION_BY_TIME, OPERATION_TIME,
        SHARDS, Shard, hash64,
    },
};

/// How often a change is tried while other servers change the same shard.
const TRIES: usize = 16;
/// The most operations in the log of a shard; the oldest are removed first.
const OPERATIONS_PER_SHARD_MAX: u64 = 256;
/// The most items of one page of a list.
pub const PAGE_MAX: usize = 1_000;

/// The author of an operation: an operator's name and the way it came, as in `root on the command line`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Actor(pub String);

/// An operation of an operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationEntry {
    /// The time, in nanoseconds since 1970.
    pub at: i64,
    /// The author.
    pub who: String,
    /// A description.
    pub what: String,
}

/// One page of a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page<T> {
    /// The items of the page.
    pub items: Vec<T>,
    /// The beginning of the next page; `None` on the last.
    pub next: Option<String>,
}

/// A record that was read, with its decoded contents.
pub(crate) struct Found<T> {
    pub(crate) shard: Shard,
    pub(crate) id: RecordId,
    /// The commit that last changed it.
    pub(crate) revision: Revision,
    pub(crate) entry: T,
}

impl<T> Deref for Found<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.entry
    }
}

/// What to do with the record of an address or a domain.
pub(crate) enum Step<T> {
    Create(T),
    Update(T),
    Destroy,
    /// Destroys it, and creates this record in the same commit.
    DestroyFor(Change),
}

/// A step, its line for the operators' log, and the result for the caller.
pub(crate) struct Plan<T, A> {
    pub(crate) step: Step<T>,
    pub(crate) log: String,
    pub(crate) answer: A,
}

/// Something that is stored as one record of a shard.
pub(crate) trait Entry: Sized {
    const KIND: Kind;
    /// The name by which the record is found.
    type Name;

    fn shard(name: &Self::Name) -> Shard;
    fn query(name: &Self::Name) -> Query;
    fn read(record: &Record) -> Result<Self, Error>;
    fn create(&self) -> Result<Change, Error>;

    /// Replaces the record with this id.
    fn update(&self, id: RecordId) -> Result<Change, Error> {
        match self.create()? {
            Change::Create { kind, body, properties } => {
                Ok(Change::Update { kind, id, body: Some(body), properties: Some(properties) })
            }
            other => Ok(other),
        }
    }
}

impl Entry for AddressEntry {
    const KIND: Kind = ADDRESS;
    type Name = EmailAddress;

    fn shard(address: &EmailAddress) -> Shard {
        Shard::of(&address.to_string())
    }

    fn query(address: &EmailAddress) -> Query {
        Query::new(ADDRESS, ADDRESS_BY_NAME)
            .equals(hash64(address.domain().as_str().as_bytes()))
            .equals(Bytes::copy_from_slice(address.local().as_bytes()))
    }

    fn read(record: &Record) -> Result<Self, Error> {
        Self::read(record)
    }

    fn create(&self) -> Result<Change, Error> {
        Ok(Change::Create { kind: ADDRESS, body: self.body()?, properties: self.properties() })
    }
}

impl Entry for DomainEntry {
    const KIND: Kind = DOMAIN;
    type Name = Domain;

    fn shard(domain: &Domain) -> Shard {
        Shard::of(domain.as_str())
    }

    fn query(domain: &Domain) -> Query {
        Query::new(DOMAIN, DOMAIN_BY_HASH).equals(hash64(domain.as_str().as_bytes()))
    }

    fn read(record: &Record) -> Result<Self, Error> {
        Self::read(record)
    }

    fn create(&self) -> Result<Change, Error> {
        Ok(Change::Create { kind: DOMAIN, body: self.body()?, properties: self.properties() })
    }
}

pub(crate) struct Store {
    records: Arc<dyn Records>,
    pub(crate) clock: Arc<dyn Clock>,
    /// One change of a shard at a time: concurrent ones of this server would only conflict.
    writers: [Mutex<()>; SHARDS],
}

impl Store {
    pub(crate) fn new(records: Arc<dyn Records>, clock: Arc<dyn Clock>) -> Self {
        Self { records, clock, writers: std::array::from_fn(|_| Mutex::new(())) }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(crate) async fn query(
        &self,
        account: AccountId,
        query: &Query,
    ) -> Result<restante_records::Page, Error> {
        self.records.query(account, query).await.map_err(of_records)
    }

    pub(crate) async fn get(&self, account: AccountId, get: &Get) -> Result<Vec<Option<Record>>, Error> {
        self.records.get(account, get).await.map_err(of_records)
    }

    pub(crate) async fn commit(&self, account: AccountId, commit: Commit) -> Result<Committed, Error> {
        self.records.commit(account, commit).await.map_err(of_records)
    }

    /// The last commit of an account.
    pub(crate) async fn revision(&self, account: AccountId) -> Result<Revision, Error> {
        Ok(self.records.states(account).await.map_err(of_records)?.revision)
    }

    pub(crate) fn watch(&self) -> Watch {
        self.records.watch()
    }

    /// The first record that a query finds, and the state of its kind before that.
    pub(crate) async fn first(
        &self,
        account: AccountId,
        query: Query,
        with_body: bool,
    ) -> Result<(Option<Record>, Revision), Error> {
        let query = query.limit(1);
        for _ in 0..TRIES {
            let page = self.query(account, &query).await?;
            let Some(id) = page.ids.first() else { return Ok((None, page.state)) };
            let get = Get { kind: query.kind, ids: vec![*id], with_body };
            if let Some(Some(record)) = self.get(account, &get).await?.pop() {
                return Ok((Some(record), page.state));
            }
            // It was destroyed meanwhile: the query now finds something else.
        }
        Err(busy())
    }

    /// The record of an address or a domain.
    pub(crate) async fn find<T: Entry>(&self, name: &T::Name) -> Result<Option<Found<T>>, Error> {
        let shard = T::shard(name);
        let (record, _) = self.first(shard.account(), T::query(name), true).await?;
        record
            .map(|record| {
                Ok(Found { shard, id: record.id, revision: record.revision, entry: T::read(&record)? })
            })
            .transpose()
    }

    /// Changes the record of an address or a domain, and writes the operators' log, in one commit. `plan` is called again when
    /// other servers have changed the shard at the same time.
    pub(crate) async fn change<T: Entry, A>(
        &self,
        actor: &Actor,
        name: &T::Name,
        plan: impl Fn(Option<&T>) -> Result<Plan<T, A>, Error>,
    ) -> Result<A, Error> {
        let shard = T::shard(name);
        let _writer = match self.writers.get(usize::from(shard.number())) {
            Some(writer) => writer.lock().await,
            None => return Err(Error::internal("a shard beyond the last")),
        };
        for _ in 0..TRIES {
            let (record, state) = self.first(shard.account(), T::query(name), true).await?;
            let id = record.as_ref().map(|record| record.id);
            let entry = record.map(|record| T::read(&record)).transpose()?;
            let Plan { step, log, answer } = plan(entry.as_ref())?;
            let changes = match (step, id) {
                (Step::Create(entry), None) => vec![entry.create()?],
                (Step::Update(entry), Some(id)) => vec![entry.update(id)?],
                (Step::Destroy, Some(id)) => vec![Change::Destroy { kind: T::KIND, id }],
                (Step::DestroyFor(other), Some(id)) => vec![Change::Destroy { kind: T::KIND, id }, other],
                _ => return Err(Error::internal("a plan does not fit what is there")),
            };
            let mut commit = Commit::of(changes).if_in_state(T::KIND, state);
            commit.changes.extend(self.log(shard, actor, log).await?);
            match self.commit(shard.account(), commit).await {
                Ok(_) => return Ok(answer),
                // NotFound: another server has removed the same old line of the log.
                Err(error) if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::NotFound) => {}
                Err(error) => return Err(error),
            }
        }
        Err(busy())
    }

    /// The changes that add an operation to the log and remove those beyond the bound.
    async fn log(&self, shard: Shard, actor: &Actor, what: String) -> Result<Vec<Change>, Error> {
        let at = self.now().nanos();
        let body = entry::encode(&OperationEntry { at, who: actor.0.clone(), what })?;
        let time = u64::try_from(at).unwrap_or_default();
        let properties = restante_records::Properties::default().with(OPERATION_TIME, time);
        let mut changes = vec![Change::Create { kind: OPERATION, body, properties }];
        let beyond = Query::new(OPERATION, OPERATION_BY_TIME).descending().skip(OPERATIONS_PER_SHARD_MAX - 1);
        let page = self.query(shard.account(), &beyond).await?;
        changes.extend(page.ids.into_iter().map(|id| Change::Destroy { kind: OPERATION, id }));
        Ok(changes)
    }

    /// Adds an operation to the log that changes nothing in the directory.
    pub(crate) async fn note(&self, shard: Shard, actor: &Actor, what: String) -> Result<(), Error> {
        let _writer = match self.writers.get(usize::from(shard.number())) {
            Some(writer) => writer.lock().await,
            None => return Err(Error::internal("a shard beyond the last")),
        };
        for _ in 0..TRIES {
            let commit = Commit::of(self.log(shard, actor, what.clone()).await?);
            match self.commit(shard.account(), commit).await {
                // Another server has removed the same old line of the log.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                noted => return noted.map(|_| ()),
            }
        }
        Err(busy())
    }

    /// The last operations, the newest first, at most `limit`.
    pub(crate) async fn operations(&self, limit: usize) -> Result<Vec<OperationEntry>, Error> {
        let mut newest: Vec<OperationEntry> = Vec::new();
        let query = Query::new(OPERATION, OPERATION_BY_TIME).descending().limit(limit.clamp(1, PAGE_MAX));
        for shard in Shard::all() {
            let page = self.query(shard.account(), &query).await?;
            let found = self.get(shard.account(), &Get::whole(OPERATION, page.ids)).await?;
            for record in found.into_iter().flatten() {
                newest.push(entry::decode(&record, "operation")?);
            }
        }
        newest.sort_by_key(|operation| std::cmp::Reverse(operation.at));
        newest.truncate(limit);
        Ok(newest)
    }

    /// One page of an index over all shards, shard after shard.
    pub(crate) async fn page(
        &self,
        query: &Query,
        after: Option<&str>,
        limit: usize,
    ) -> Result<(Vec<(Shard, Record)>, Option<String>), Error> {
        let limit = limit.clamp(1, PAGE_MAX);
        let (first, mut cursor) = match after {
            Some(after) => read_cursor(after)?,
            None => (0, None),
        };
        let mut rows = Vec::new();
        for shard in Shard::all().skip(usize::from(first)) {
            let mut query = query.clone().limit(limit - rows.len());
            query.after = cursor.take();
            let page = self.query(shard.account(), &query).await?;
            let get = Get::whole(query.kind, page.ids);
            let found = self.get(shard.account(), &get).await?;
            rows.extend(found.into_iter().flatten().map(|record| (shard, record)));
            if let Some(next) = page.next {
                return Ok((rows, Some(write_cursor(shard.number(), Some(&next)))));
            }
            let behind = shard.number() + 1;
            if rows.len() >= limit && usize::from(behind) < SHARDS {
                return Ok((rows, Some(write_cursor(behind, None))));
            }
        }
        Ok((rows, None))
    }

    /// All records with these values in an index, of all shards.
    pub(crate) async fn all(
        &self,
        kind: Kind,
        index: restante_records::Index,
        value: Value,
    ) -> Result<Vec<(Shard, Record)>, Error> {
        let query = Query::new(kind, index).equals(value);
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let (rows, next) = self.page(&query, after.as_deref(), PAGE_MAX).await?;
            all.extend(rows);
            after = match next {
                Some(next) => Some(next),
                None => return Ok(all),
            };
        }
    }
}

/// An error of the records, with that context.
pub(crate) fn of_records(error: Error) -> Error {
    error.context("the records of the directory")
}

fn busy() -> Error {
    Error::unavailable("other servers change the same part of the directory: try again")
}

fn write_cursor(shard: u8, cursor: Option<&Cursor>) -> String {
    format!("{shard}.{}", hex::encode(cursor.map_or(&[][..], |cursor| &cursor.0)))
}

fn read_cursor(text: &str) -> Result<(u8, Option<Cursor>), Error> {
    let wrong = || {
        Error::invalid("the place where the page is to begin is none: use the one that the last page gave")
    };
    let (shard, cursor) = text.split_once('.').ok_or_else(wrong)?;
    let shard = shard.parse().ok().and_then(Shard::numbered).ok_or_else(wrong)?;
    let cursor = hex::decode(cursor).map_err(|_| wrong())?;
    Ok((shard.number(), (!cursor.is_empty()).then(|| Cursor(cursor.into()))))
}
