//! Reading rows.

use std::collections::BTreeMap;

use restante_core::Error;
use restante_records::{Cursor, Get, Property, Query, Record, Value};

use super::{
    ACCOUNT, DmarcRows, STEP,
    row::{Row, Stored, was_sent},
};
use crate::{
    queue::{number, property_text},
    schema::dmarc_seen,
};

/// The DMARC results of a domain's messages in a day.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DomainSeen {
    /// The domain whose DMARC record was applied; empty for messages beyond the rows of the day. A domain of more than 128 bytes is
    /// `#` and a hash.
    pub domain: String,
    /// Its messages that passed.
    pub passed: u64,
    /// Its messages that failed.
    pub failed: u64,
}

/// A row with its messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenRow {
    /// What they have in common.
    pub row: Row,
    /// The DMARC record of the domain, as last seen with this row.
    pub record: Option<String>,
    /// The number of messages.
    pub count: u64,
}

/// A page of rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowPage {
    /// In no particular order.
    pub rows: Vec<SeenRow>,
    /// Where the next page begins; `None` after the last.
    pub next: Option<Cursor>,
}

impl DmarcRows {
    /// The days that have rows, the newest first; at most `limit`.
    ///
    /// # Errors
    /// Those of a query.
    pub async fn days(&self, limit: usize) -> Result<Vec<u64>, Error> {
        let mut days = Vec::new();
        while days.len() < limit {
            let mut query = Query::new(dmarc_seen::KIND, dmarc_seen::BY_DAY).descending().limit(1);
            if let Some(day) = days.last() {
                let day: &u64 = day;
                query =
                    query.between(std::ops::Bound::Unbounded, std::ops::Bound::Excluded(Value::Number(*day)));
            }
            let found = self.small(self.records.query(ACCOUNT, &query).await?.ids).await?;
            match found.first().and_then(|record| number(&record.properties, dmarc_seen::DAY)) {
                Some(day) => days.push(day),
                None => break,
            }
        }
        Ok(days)
    }

    /// The domains of a day, those with the most failures first. It reads all rows of the day.
    ///
    /// # Errors
    /// Those of a query.
    pub async fn domains(&self, day: u64) -> Result<Vec<DomainSeen>, Error> {
        let mut domains: BTreeMap<String, DomainSeen> = BTreeMap::new();
        let mut after = None;
        loop {
            let mut query =
                Query::new(dmarc_seen::KIND, dmarc_seen::BY_DAY).equals(day).limit(STEP).with_values();
            query.after = after;
            let page = self.records.query(ACCOUNT, &query).await?;
            for record in self.small(page.ids).await? {
                let domain = text_of(&record, dmarc_seen::DOMAIN);
                let count = number(&record.properties, dmarc_seen::COUNT).unwrap_or(0);
                let seen = domains
                    .entry(domain.clone())
                    .or_insert_with(|| DomainSeen { domain, ..DomainSeen::default() });
                match number(&record.properties, dmarc_seen::PASSED) {
                    Some(_) => seen.passed += count,
                    None => seen.failed += count,
                }
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let mut domains: Vec<DomainSeen> = domains.into_values().collect();
        domains.sort_by(|a, b| b.failed.cmp(&a.failed).then_with(|| b.passed.cmp(&a.passed)));
        Ok(domains)
    }

    /// A page of the rows of a domain in a day.
    ///
    /// # Errors
    /// Those of a query; `Corrupt`.
    pub async fn rows(&self, day: u64, domain: &str, after: Option<Cursor>) -> Result<RowPage, Error> {
        let mut query = Query::new(dmarc_seen::KIND, dmarc_seen::BY_DAY)
            .equals(day)
            .equals(property_text(domain))
            .limit(STEP);
        query.after = after;
        let page = self.records.query(ACCOUNT, &query).await?;
        let mut rows = Vec::with_capacity(page.ids.len());
        for record in self.whole(page.ids).await? {
            let Stored { row, record: dmarc } = Stored::read(&record)?;
            let count = number(&record.properties, dmarc_seen::COUNT).unwrap_or(0);
            rows.push(SeenRow { row, record: dmarc, count });
        }
        Ok(RowPage { rows, next: page.next })
    }

    /// The domains of a day whose reports are done, and whether one was sent: a domain that asks for no report gets none.
    ///
    /// # Errors
    /// Those of a query.
    pub async fn reported(&self, day: u64) -> Result<BTreeMap<String, bool>, Error> {
        let (mut reported, mut after) = (BTreeMap::new(), None);
        loop {
            let mut query = Query::new(dmarc_seen::KIND, dmarc_seen::BY_REPORTED).equals(day).limit(STEP);
            query.after = after;
            let page = self.records.query(ACCOUNT, &query).await?;
            for record in self.whole(page.ids).await? {
                let was_sent_before =
                    reported.entry(text_of(&record, dmarc_seen::REPORTED_DOMAIN)).or_default();
                *was_sent_before |= was_sent(&record);
            }
            after = page.next;
            if after.is_none() {
                return Ok(reported);
            }
        }
    }

    async fn small(&self, ids: Vec<restante_records::RecordId>) -> Result<Vec<Record>, Error> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let found = self.records.get(ACCOUNT, &Get::small(dmarc_seen::KIND, ids)).await?;
        Ok(found.into_iter().flatten().collect())
    }
}

/// The text of a property; empty when there is none.
fn text_of(record: &Record, property: Property) -> String {
    let texts = record.properties.values(property);
    let text = texts.into_iter().find_map(|value| match value {
        Value::Text(text) => Some(String::from_utf8_lossy(text).into_owned()),
        _ => None,
    });
    text.unwrap_or_default()
}
