//! Queries: a range of keys in one statement, with the account's head at the same moment.

use std::ops::Bound;

use restante_lmdb::key::{KeyBuf, take_number};
use tokio_postgres::types::ToSql;

use super::{
    Shared,
    error::value as sql_value,
    schema::{account_to_sql, after_prefix, corrupt, from_sql, index_key, index_prefix, to_sql},
};
use crate::{
    AccountId, Count, Cursor, Direction, Error, IndexSchema, Page, Query, RecordId, Revision, Value,
    entries::{self, Entry},
    rows::AccountRow,
    validate::{CheckedQuery, check_query},
};

const PAGE_UP: &str = "SELECT NULL::bytea, (SELECT head FROM account WHERE account = $1), (SELECT epoch FROM feed_head) \
     UNION ALL (SELECT key, NULL, NULL FROM entry WHERE account = $1 AND key >= $2 AND key < $3 \
     ORDER BY key LIMIT $4 OFFSET $5)";
const PAGE_DOWN: &str = "SELECT NULL::bytea, (SELECT head FROM account WHERE account = $1), (SELECT epoch FROM feed_head) \
     UNION ALL (SELECT key, NULL, NULL FROM entry WHERE account = $1 AND key >= $2 AND key < $3 \
     ORDER BY key DESC LIMIT $4 OFFSET $5)";
const COUNT: &str = "SELECT count(*), (SELECT head FROM account WHERE account = $1), (SELECT epoch FROM feed_head) \
     FROM entry WHERE account = $1 AND key >= $2 AND key < $3";

impl Shared {
    /// [`crate::Records::query`].
    pub(super) async fn query(&self, account: AccountId, query: &Query) -> Result<Page, Error> {
        let CheckedQuery { index, after } = check_query(&self.schema, query)?;
        let keys = Keys::of(query, index, after.as_ref());
        let sql = match query.direction {
            Direction::Ascending => PAGE_UP,
            Direction::Descending => PAGE_DOWN,
        };
        let (account_number, limit, skip) =
            (account_to_sql(account), to_sql(query.limit as u64 + 1), to_sql(query.skip));
        let parameters: [&(dyn ToSql + Sync); 5] = [&account_number, &keys.from, &keys.to, &limit, &skip];
        let lease = self.reader().await?;
        let connection = lease.connection.clone();
        let work = async { connection.query("read a page", sql, &parameters).await };
        let rows = lease.drive("read a page", work).await?;
        let mut found: Vec<Vec<u8>> = Vec::with_capacity(rows.len());
        let mut state = Revision(0);
        for row in &rows {
            match sql_value::<Option<Vec<u8>>>(row, 0)? {
                Some(key) => found.push(key),
                None => state = self.state_of(account, query, sql_value(row, 1)?, sql_value(row, 2)?)?,
            }
        }
        // The parts of a union have no order among each other that SQL promises.
        found.sort_unstable();
        if query.direction == Direction::Descending {
            found.reverse();
        }
        page(account, query, index, &found, state)
    }

    /// [`crate::Records::count`].
    pub(super) async fn count(&self, account: AccountId, query: &Query) -> Result<Count, Error> {
        let CheckedQuery { index, after } = check_query(&self.schema, query)?;
        let keys = Keys::of(query, index, after.as_ref());
        let account_number = account_to_sql(account);
        let parameters: [&(dyn ToSql + Sync); 3] = [&account_number, &keys.from, &keys.to];
        let lease = self.reader().await?;
        let connection = lease.connection.clone();
        let work = async { connection.query("count entries", COUNT, &parameters).await };
        let rows = lease.drive("count entries", work).await?;
        let row = rows.first().ok_or_else(|| Error::internal("a count has no row"))?;
        let state = self.state_of(account, query, sql_value(row, 1)?, sql_value(row, 2)?)?;
        Ok(Count { entries: from_sql(sql_value(row, 0)?), state })
    }

    /// The state of the kind of a query, if the indexes are still those of this server.
    fn state_of(
        &self,
        account: AccountId,
        query: &Query,
        head: Option<&[u8]>,
        epoch: i64,
    ) -> Result<Revision, Error> {
        self.check_epoch(epoch)?;
        let Some(head) = head else { return Ok(Revision(0)) };
        let head = AccountRow::decode(head).ok_or_else(|| corrupt(account, b"head"))?;
        Ok(head.kind(query.kind).state)
    }
}

/// The page of keys that were found, one more than it has room for if there are more.
fn page(
    account: AccountId,
    query: &Query,
    index: &IndexSchema,
    found: &[Vec<u8>],
    state: Revision,
) -> Result<Page, Error> {
    let known_bytes = index_prefix(query.kind, index.index).len();
    let mut page = Page { ids: Vec::new(), values: Vec::new(), next: None, state };
    let mut last: Option<(Entry, RecordId)> = None;
    for key in found.iter().take(query.limit) {
        let (values, id) = parts(key, known_bytes, index).ok_or_else(|| corrupt(account, key))?;
        page.ids.push(id);
        if query.with_values {
            let value: Option<&Value> = values.last();
            page.values.push(value.cloned().ok_or_else(|| corrupt(account, key))?);
        }
        last = Some((values, id));
    }
    if found.len() > query.limit {
        page.next = last.map(|(values, id)| -> Cursor { entries::cursor(query.kind, index, &values, id) });
    }
    Ok(page)
}

/// The values and the id of the key of an entry.
pub(super) fn parts(key: &[u8], known_bytes: usize, index: &IndexSchema) -> Option<(Entry, RecordId)> {
    let mut rest = key.get(known_bytes..)?;
    let mut values = Entry::new();
    for _ in &index.parts {
        values.push(entries::take_value(&mut rest)?);
    }
    let id = RecordId(take_number(&mut rest)?);
    rest.is_empty().then_some((values, id))
}

/// The keys from one on, up to another one.
struct Keys {
    from: Vec<u8>,
    to: Vec<u8>,
}

impl Keys {
    /// The keys that a query asks for, from behind its cursor on.
    fn of(query: &Query, index: &IndexSchema, after: Option<&entries::EntryKey>) -> Self {
        let mut prefix = index_prefix(query.kind, index.index);
        entries::pack_values(&mut prefix, &query.equals);
        let at = |value: &Value| {
            let mut key = prefix.clone();
            entries::pack_value(&mut key, value);
            key.into_vec()
        };
        let (from, to) = &query.range;
        let mut keys = Self {
            from: match from {
                Bound::Unbounded => prefix.to_vec(),
                Bound::Included(value) => at(value),
                Bound::Excluded(value) => after_prefix(&at(value)),
            },
            to: match to {
                Bound::Unbounded => after_prefix(&prefix),
                Bound::Included(value) => after_prefix(&at(value)),
                Bound::Excluded(value) => at(value),
            },
        };
        if let Some(after) = after {
            let is_scattered = index.order == crate::IndexOrder::Scattered;
            let mut values = KeyBuf::new();
            // A scattered index is walked in the order of ids, whatever the values of the cursor are.
            entries::pack_values(&mut values, if is_scattered { &query.equals } else { &after.values[..] });
            let place = index_key(query.kind, index.index, &values, after.id).into_vec();
            keys.go_on_behind(place, query.direction);
        }
        keys
    }

    /// Leaves out what a walk in this direction meets before it is behind `place`.
    fn go_on_behind(&mut self, mut place: Vec<u8>, direction: Direction) {
        match direction {
            Direction::Ascending => {
                place.push(0); // the smallest key above it
                self.from = place.max(std::mem::take(&mut self.from));
            }
            Direction::Descending => self.to = place.min(std::mem::take(&mut self.to)),
        }
    }
}
