//! Listing and counting.

use restante_core::Error;
use restante_records::{Get, QUERY_ROWS_MAX, Query, Record, RecordId, Value};

use super::{
    ACCOUNT, Quarantine, Quarantined,
    item::{domain_of, read},
};
use crate::{hex, queue::property_text, schema::quarantined};

/// The longest page of a list.
pub const LIST_MAX: usize = 500;

/// A filter: messages for which all of these hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListFilter {
    /// The domain of the envelope sender, in any case; empty for `<>`.
    pub domain: Option<String>,
    /// A recipient, in any case.
    pub recipient: Option<String>,
}

/// A page of the quarantine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListPage {
    /// The messages; there may be fewer than were asked for even if more follow.
    pub items: Vec<Quarantined>,
    /// Where the next page begins; `None` after the last.
    pub next: Option<String>,
}

/// The size of the quarantine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// The number of records: a message with more than 100 recipients has several.
    pub messages: u64,
    /// Their bytes. A message that several records share counts once for each.
    pub bytes: u64,
}

impl ListFilter {
    fn query(&self) -> Query {
        let of = |index| Query::new(quarantined::KIND, index);
        match (&self.recipient, &self.domain) {
            (Some(recipient), _) => {
                of(quarantined::BY_RECIPIENT).equals(property_text(&recipient.to_lowercase()))
            }
            (None, Some(domain)) => of(quarantined::BY_DOMAIN).equals(property_text(&domain.to_lowercase())),
            (None, None) => of(quarantined::BY_AT),
        }
    }

    /// Checks what the index did not: with a recipient, the domain.
    fn matches(&self, message: &Quarantined) -> bool {
        self.domain.as_ref().is_none_or(|domain| domain_of(&message.sender) == domain.to_lowercase())
    }
}

impl Quarantine {
    /// See [`Quarantine::list`].
    pub(super) async fn page(
        &self,
        filter: &ListFilter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<ListPage, Error> {
        let mut query = filter.query().descending().limit(limit.clamp(1, LIST_MAX));
        if let Some(after) = after {
            let cursor = hex::cursor(after);
            query.after =
                Some(cursor.ok_or_else(|| Error::invalid("not a place in the list of the quarantine"))?);
        }
        let found = self.records.query(ACCOUNT, &query).await?;
        let records = self.whole(found.ids).await?;
        let items: Result<Vec<Quarantined>, Error> = records.iter().map(read).collect();
        let items = items?.into_iter().filter(|message| filter.matches(message)).collect();
        Ok(ListPage { items, next: found.next.as_ref().map(hex::of_cursor) })
    }

    /// The records with these ids that exist.
    pub(super) async fn whole(&self, ids: Vec<RecordId>) -> Result<Vec<Record>, Error> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let found = self.records.get(ACCOUNT, &Get::whole(quarantined::KIND, ids)).await?;
        Ok(found.into_iter().flatten().collect())
    }

    /// Counts by walking the index, whose last part is the size.
    pub(super) async fn count(&self) -> Result<Totals, Error> {
        let (mut totals, mut after) = (Totals::default(), None);
        loop {
            let mut query =
                Query::new(quarantined::KIND, quarantined::BY_AT).limit(QUERY_ROWS_MAX).with_values();
            query.after = after;
            let page = self.records.query(ACCOUNT, &query).await?;
            totals.messages += page.ids.len() as u64;
            for size in page.values {
                if let Value::Number(size) = size {
                    totals.bytes = totals.bytes.saturating_add(size);
                }
            }
            after = page.next;
            if after.is_none() {
                return Ok(totals);
            }
        }
    }
}
