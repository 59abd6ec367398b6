//! DMARC results of received messages by day, for the console and for aggregate reports (RFC 7489 §7.2).
//!
//! A row stands for messages that a report counts together, since they have the same properties. The rows of a day are bounded:
//! further messages are counted in one row without a domain, see [`Row::others`]. Days are those of UTC, numbered since 1970.

mod read;
mod row;
#[cfg(test)]
mod tests;

use std::{collections::HashMap, ops::Bound, sync::Arc};

use restante_core::{Error, ErrorKind};
use restante_records::{AccountId, Change, Commit, Get, Properties, Query, Record, RecordId, Records, Value};
use tokio::sync::Mutex;

pub use read::{DomainSeen, RowPage, SeenRow};
pub use row::{Disposition, DkimSeen, Row, SpfScope, SpfSeen};

use crate::{
    queue::{number, property_text},
    schema::dmarc_seen,
};
use row::{Stored, key_hash, note};

/// The reserved account of the rows.
const ACCOUNT: AccountId = AccountId(194);

/// Rows that are read or written together: a row takes a few hundred bytes.
const STEP: usize = 256;
/// How often a commit is planned again when other servers' commits come before it.
const TRIES_MAX: usize = 32;
/// The longest DMARC record that is kept. No report is sent for a longer one.
const RECORD_BYTES_MAX: usize = 2_048;

/// Messages to add to one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewRow {
    /// The day on which they were received.
    pub day: u64,
    /// What they have in common.
    pub row: Row,
    /// The DMARC record of the domain, as last seen.
    pub record: Option<String>,
    /// The number of messages.
    pub count: u64,
}

/// The rows. Cloning shares them. All handles of one process on one store should be clones of one, so that their edits don't conflict.
#[derive(Clone)]
pub struct DmarcRows {
    records: Arc<dyn Records>,
    rows_per_day_max: usize,
    /// Held while records change, so that edits of this process don't conflict.
    turn: Arc<Mutex<()>>,
}

impl DmarcRows {
    /// The rows in these records, which were opened with [`crate::kinds`] in their schema.
    pub fn new(records: Arc<dyn Records>, rows_per_day_max: usize) -> Self {
        Self { records, rows_per_day_max, turn: Arc::default() }
    }

    /// Adds messages to their rows, and removes from `rows` those that were added.
    ///
    /// # Errors
    /// Those of a commit: `rows` still has what is not known to have been added. After `Full` and `Unavailable` some of it may have been.
    pub async fn add(&self, rows: &mut Vec<NewRow>) -> Result<(), Error> {
        let _turn = self.turn.lock().await;
        while !rows.is_empty() {
            let at = rows.len().saturating_sub(STEP);
            self.add_some(rows.get(at..).unwrap_or_default()).await?;
            rows.truncate(at);
        }
        Ok(())
    }

    async fn add_some(&self, rows: &[NewRow]) -> Result<(), Error> {
        let mut tries = 0;
        loop {
            let state = self.records.states(ACCOUNT).await?.of(dmarc_seen::KIND);
            let changes = self.plan(rows).await?;
            let commit = Commit::of(changes).if_in_state(dmarc_seen::KIND, state);
            tries += 1;
            match self.records.commit(ACCOUNT, commit).await {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Conflict && tries < TRIES_MAX => {}
                Err(error) => return Err(error.context("counting what DMARC found")),
            }
        }
    }

    /// The changes that add messages to their rows. Messages for which no row is left are added to the row of all others.
    async fn plan(&self, rows: &[NewRow]) -> Result<Vec<Change>, Error> {
        let mut room: HashMap<u64, usize> = HashMap::new();
        let mut planned: HashMap<(u64, Row), Planned> = HashMap::new();
        for new in rows {
            let mut row = new.row.clone();
            let mut known = self.planned(&planned, new.day, &row).await?;
            if known.is_none() && !row.is_others() {
                let left = match room.get(&new.day) {
                    Some(left) => *left,
                    None => self.room(new.day).await?,
                };
                room.insert(new.day, left.saturating_sub(1));
                if left == 0 {
                    row = Row::others();
                    known = self.planned(&planned, new.day, &row).await?;
                }
            }
            let mut plan = known.unwrap_or_default();
            plan.count = plan.count.saturating_add(new.count);
            let record = new.record.as_ref().filter(|record| record.len() <= RECORD_BYTES_MAX);
            if !row.is_others() && record.is_some() {
                plan.record = record.cloned();
            }
            planned.insert((new.day, row), plan);
        }
        planned.into_iter().map(|((day, row), plan)| change(day, row, plan)).collect()
    }

    /// The row as already planned, or else as stored; `None` for a new row.
    async fn planned(
        &self,
        planned: &HashMap<(u64, Row), Planned>,
        day: u64,
        row: &Row,
    ) -> Result<Option<Planned>, Error> {
        if let Some(plan) = planned.get(&(day, row.clone())) {
            return Ok(Some(plan.clone()));
        }
        let query = Query::new(dmarc_seen::KIND, dmarc_seen::BY_KEY).equals(key_hash(day, row)?).limit(STEP);
        let ids = self.records.query(ACCOUNT, &query).await?.ids;
        for record in self.whole(ids).await? {
            let stored = Stored::read(&record)?;
            if stored.row == *row && number(&record.properties, dmarc_seen::DAY) == Some(day) {
                let count = number(&record.properties, dmarc_seen::COUNT).unwrap_or(0);
                return Ok(Some(Planned { id: Some(record.id), count, record: stored.record }));
            }
        }
        Ok(None)
    }

    /// How many new rows a day can still have.
    async fn room(&self, day: u64) -> Result<usize, Error> {
        let query = Query::new(dmarc_seen::KIND, dmarc_seen::BY_DAY).equals(day);
        let rows = self.records.count(ACCOUNT, &query).await?.entries;
        Ok(self.rows_per_day_max.saturating_sub(usize::try_from(rows).unwrap_or(usize::MAX)))
    }

    /// Records that the report of a domain about a day was sent, or that none will be sent.
    ///
    /// # Errors
    /// Those of a commit; repeating is safe.
    pub async fn note_reported(&self, day: u64, domain: &str, was_sent: bool) -> Result<(), Error> {
        let properties = Properties::default()
            .with(dmarc_seen::REPORTED_DAY, day)
            .with(dmarc_seen::REPORTED_DOMAIN, property_text(domain));
        let change = Change::Create { kind: dmarc_seen::KIND, body: note(was_sent)?, properties };
        self.records.commit(ACCOUNT, Commit::of([change])).await.map(drop)
    }

    /// Whether [`DmarcRows::note_reported`] was called for the report of a domain about a day.
    ///
    /// # Errors
    /// Those of a query.
    pub async fn is_reported(&self, day: u64, domain: &str) -> Result<bool, Error> {
        let query = Query::new(dmarc_seen::KIND, dmarc_seen::BY_REPORTED)
            .equals(day)
            .equals(property_text(domain))
            .limit(1);
        Ok(!self.records.query(ACCOUNT, &query).await?.ids.is_empty())
    }

    /// Removes the rows and notes of all days before `day`; returns how many records were removed.
    ///
    /// # Errors
    /// Those of a commit; repeating goes on.
    pub async fn forget_before(&self, day: u64) -> Result<u64, Error> {
        let _turn = self.turn.lock().await;
        let mut forgotten = 0;
        for index in [dmarc_seen::BY_DAY, dmarc_seen::BY_REPORTED] {
            let mut failures = 0;
            loop {
                let query = Query::new(dmarc_seen::KIND, index)
                    .between(Bound::Unbounded, Bound::Excluded(day.into()))
                    .limit(STEP);
                let ids = self.records.query(ACCOUNT, &query).await?.ids;
                if ids.is_empty() {
                    break;
                }
                let count = ids.len() as u64;
                let changes = ids.into_iter().map(|id| Change::Destroy { kind: dmarc_seen::KIND, id });
                match self.records.commit(ACCOUNT, Commit::of(changes)).await {
                    Ok(_) => forgotten += count,
                    // Another server has removed some of the same records.
                    Err(error) if error.kind() == ErrorKind::NotFound && failures < TRIES_MAX => {
                        failures += 1;
                    }
                    Err(error) => return Err(error.context("forgetting what DMARC found")),
                }
            }
        }
        Ok(forgotten)
    }

    async fn whole(&self, ids: Vec<RecordId>) -> Result<Vec<Record>, Error> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let found = self.records.get(ACCOUNT, &Get::whole(dmarc_seen::KIND, ids)).await?;
        Ok(found.into_iter().flatten().collect())
    }
}

/// A row as it will be after the commit.
#[derive(Clone, Debug, Default)]
struct Planned {
    id: Option<RecordId>,
    count: u64,
    record: Option<String>,
}

fn change(day: u64, row: Row, plan: Planned) -> Result<Change, Error> {
    let Planned { id, count, record } = plan;
    let mut properties = Properties::default()
        .with(dmarc_seen::DAY, day)
        .with(dmarc_seen::DOMAIN, property_text(&row.domain))
        .with(dmarc_seen::KEY, key_hash(day, &row)?)
        .with(dmarc_seen::COUNT, count);
    if row.is_pass() {
        properties.add(dmarc_seen::PASSED, Value::Number(1));
    }
    let body = Stored { row, record }.body()?;
    Ok(match id {
        None => Change::Create { kind: dmarc_seen::KIND, body, properties },
        Some(id) => {
            Change::Update { kind: dmarc_seen::KIND, id, body: Some(body), properties: Some(properties) }
        }
    })
}
