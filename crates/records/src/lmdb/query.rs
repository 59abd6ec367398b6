//! Queries.

use std::ops::Bound;

use restante_lmdb::{
    View,
    key::{KeyBuf, Pack, after_prefix, take_number},
};

use crate::{
    AccountId, Count, Cursor, Direction, Error, IndexOrder, IndexSchema, Page, Query, RecordId, Value,
    entries::{self, Entry, EntryKey},
    validate::{CheckedQuery, check_query},
};

use super::{
    Engine,
    schema::{AccountRow, INDEX, corrupt, generation, index_key, index_prefix, skip_value},
};

impl Engine {
    /// [`crate::Records::query`].
    pub(super) fn query(&self, account: AccountId, query: &Query) -> Result<Page, Error> {
        let mut walk = Walk::new(account, query, check_query(&self.ledger.schema, query)?, query.skip);
        self.store.read(|view| {
            let row = walk.run(view)?;
            walk.page(&row)
        })
    }

    /// The pages of queries that read at most `rows_max` rows, skipped rows included; `None` for the other queries.
    pub(super) fn query_each_short(
        &self,
        account: AccountId,
        queries: &[Query],
        rows_max: u64,
    ) -> Result<Vec<Option<Page>>, Error> {
        let schema = &self.ledger.schema;
        self.store.read(|view| {
            let row = AccountRow::read(view, account)?;
            let mut pages = Vec::with_capacity(queries.len());
            for query in queries {
                let checked = check_query(schema, query)?;
                let limit = usize::try_from(rows_max.saturating_sub(query.skip)).unwrap_or(usize::MAX);
                let limit = limit.min(query.limit);
                if limit == 0 {
                    pages.push(None);
                    continue;
                }
                let mut walk = Walk { limit, ..Walk::new(account, query, checked, query.skip) };
                walk.run_with(view, &row)?;
                let is_whole = !walk.has_more || limit == query.limit;
                pages.push(if is_whole { Some(walk.page(&row)?) } else { None });
            }
            Ok(pages)
        })
    }

    /// The page of a query that reads at most `rows_max` rows, skipped rows included; otherwise `None`.
    pub(super) fn query_short(
        &self,
        account: AccountId,
        query: &Query,
        rows_max: u64,
    ) -> Result<Option<Page>, Error> {
        let mut pages = self.query_each_short(account, std::slice::from_ref(query), rows_max)?;
        Ok(pages.pop().flatten())
    }

    /// [`crate::Records::count`]: a walk that skips every entry.
    pub(super) fn count(&self, account: AccountId, query: &Query) -> Result<Count, Error> {
        let mut walk = Walk::new(account, query, check_query(&self.ledger.schema, query)?, u64::MAX);
        self.store.read(|view| {
            let row = walk.run(view)?;
            Ok(Count { entries: walk.skipped, state: row.kind(query.kind).state })
        })
    }
}

/// A page that is being read.
struct Walk<'q> {
    account: AccountId,
    query: &'q Query,
    /// The most ids to find.
    limit: usize,
    index: &'q IndexSchema,
    /// Where the previous page ended.
    after: Option<EntryKey>,
    /// How many entries to skip before the page begins.
    skip: u64,
    /// Entries that were skipped so far.
    skipped: u64,
    found: Vec<RecordId>,
    /// The values of the last part, if they are requested.
    values: Vec<Value>,
    /// The key of the last entry of a full page.
    last: KeyBuf,
    /// Whether there is one entry more than the page has room for.
    has_more: bool,
}

/// A range of keys.
struct Keys {
    from: Bound<KeyBuf>,
    to: Bound<KeyBuf>,
}

impl<'q> Walk<'q> {
    fn new(account: AccountId, query: &'q Query, checked: CheckedQuery<'q>, skip: u64) -> Self {
        let CheckedQuery { index, after } = checked;
        let (found, values, last) = (Vec::new(), Vec::new(), KeyBuf::new());
        let (limit, skipped, has_more) = (query.limit, 0, false);
        Self { account, query, limit, index, after, skip, skipped, found, values, last, has_more }
    }

    /// Reads the page; returns the account's row as of the same moment.
    fn run(&mut self, view: &View<'_>) -> Result<AccountRow, Error> {
        let row = AccountRow::read(view, self.account)?;
        self.run_with(view, &row)?;
        Ok(row)
    }

    /// The same with the account's row already read.
    fn run_with(&mut self, view: &View<'_>, row: &AccountRow) -> Result<(), Error> {
        match self.index.order {
            IndexOrder::Ordered => self.ordered(view),
            IndexOrder::Scattered => self.scattered(view, row.next_id),
        }
    }

    /// The page that was read.
    fn page(self, row: &AccountRow) -> Result<Page, Error> {
        let next = if self.has_more { Some(self.cursor()?) } else { None };
        let state = row.kind(self.query.kind).state;
        Ok(Page { ids: self.found, values: self.values, next, state })
    }

    /// Reads the entries of an ordered index, which are contiguous.
    fn ordered(&mut self, view: &View<'_>) -> Result<(), Error> {
        let mut prefix = index_prefix(self.account, self.query.kind, self.index.index);
        entries::pack_values(&mut prefix, &self.query.equals);
        let mut keys = keys_of(&prefix, &self.query.range);
        if let Some(after) = &self.after {
            let mut values = KeyBuf::new();
            entries::pack_values(&mut values, &after.values);
            keys.go_on_behind(
                index_key(self.account, self.query.kind, self.index, &values, after.id),
                self.query.direction,
            );
        }
        let left_parts = self.index.parts.len().saturating_sub(self.query.equals.len());
        self.read(view, &keys, prefix.len(), left_parts)
    }

    /// Searches each generation of a scattered index. Generations are in the order of ids, and so are equal values within each.
    fn scattered(&mut self, view: &View<'_>, next_id: RecordId) -> Result<(), Error> {
        let mut values = KeyBuf::new();
        entries::pack_values(&mut values, &self.query.equals);
        let (mut oldest, mut newest) = (0, generation(next_id));
        let after = self.after.as_ref().map(|place| place.id);
        match (after, self.query.direction) {
            (Some(id), Direction::Ascending) => oldest = generation(id),
            (Some(id), Direction::Descending) => newest = newest.min(generation(id)),
            (None, _) => {}
        }
        for step in 0..=newest.saturating_sub(oldest) {
            let generation = match self.query.direction {
                Direction::Ascending => oldest + step,
                Direction::Descending => newest - step,
            };
            let mut prefix = index_prefix(self.account, self.query.kind, self.index.index);
            prefix.put_number(generation);
            prefix.put_bytes(&values);
            let mut keys = keys_of(&prefix, &(Bound::Unbounded, Bound::Unbounded));
            if let Some(id) = after {
                let place = index_key(self.account, self.query.kind, self.index, &values, id);
                keys.go_on_behind(place, self.query.direction);
            }
            self.read(view, &keys, prefix.len(), 0)?;
            if self.has_more {
                break;
            }
        }
        Ok(())
    }

    /// Reads entries until the page is full and one more is seen. Each key has `known_bytes` bytes that are the same for all,
    /// then the values of `left_parts` parts, then the id.
    fn read(
        &mut self,
        view: &View<'_>,
        keys: &Keys,
        known_bytes: usize,
        left_parts: usize,
    ) -> Result<(), Error> {
        if keys.are_none() {
            return Ok(());
        }
        let direction = match self.query.direction {
            Direction::Ascending => restante_lmdb::Direction::Ascending,
            Direction::Descending => restante_lmdb::Direction::Descending,
        };
        let mut rows = view.range(INDEX, as_slice(&keys.from), as_slice(&keys.to), direction)?;
        while let Some((key, _)) = rows.next()? {
            if self.skipped < self.skip {
                self.skipped += 1;
                continue;
            }
            if self.found.len() == self.limit {
                self.has_more = true;
                return Ok(());
            }
            self.found.push(id_of(key, known_bytes, left_parts).ok_or_else(|| corrupt(INDEX, key))?);
            if self.query.with_values {
                let value = match left_parts {
                    0 => self.query.equals.last().cloned(),
                    _ => last_value(key, known_bytes, left_parts),
                };
                self.values.push(value.ok_or_else(|| corrupt(INDEX, key))?);
            }
            if self.found.len() == self.limit {
                self.last = KeyBuf::from_slice(key);
            }
        }
        Ok(())
    }

    /// The cursor at the end of the page.
    fn cursor(&self) -> Result<Cursor, Error> {
        let damaged = || corrupt(INDEX, &self.last);
        let id = self.found.last().copied().ok_or_else(damaged)?;
        let known_bytes = index_prefix(self.account, self.query.kind, self.index.index).len();
        let mut rest = self.last.get(known_bytes..).ok_or_else(damaged)?;
        if self.index.order == IndexOrder::Scattered {
            take_number(&mut rest).ok_or_else(damaged)?;
        }
        let mut values = Entry::new();
        for _ in &self.index.parts {
            values.push(entries::take_value(&mut rest).ok_or_else(damaged)?);
        }
        Ok(entries::cursor(self.query.kind, self.index, &values, id))
    }
}

/// The keys that begin with `prefix`, followed by a value in a range.
fn keys_of(prefix: &KeyBuf, range: &(Bound<Value>, Bound<Value>)) -> Keys {
    let at = |value: &Value| {
        let mut key = prefix.clone();
        entries::pack_value(&mut key, value);
        key
    };
    let (from, to) = range;
    Keys {
        from: match from {
            Bound::Unbounded => Bound::Included(prefix.clone()),
            Bound::Included(value) => Bound::Included(at(value)),
            Bound::Excluded(value) => after_prefix(&at(value)).map_or(Bound::Unbounded, Bound::Included),
        },
        to: match to {
            Bound::Unbounded => after_prefix(prefix).map_or(Bound::Unbounded, Bound::Excluded),
            Bound::Included(value) => after_prefix(&at(value)).map_or(Bound::Unbounded, Bound::Excluded),
            Bound::Excluded(value) => Bound::Excluded(at(value)),
        },
    }
}

impl Keys {
    /// Removes the keys up to and including `place`, in this direction.
    fn go_on_behind(&mut self, place: KeyBuf, direction: Direction) {
        match (direction, &self.from, &self.to) {
            (Direction::Ascending, Bound::Included(from), _) if *from > place => {}
            (Direction::Descending, _, Bound::Excluded(to)) if *to < place => {}
            (Direction::Ascending, ..) => self.from = Bound::Excluded(place),
            (Direction::Descending, ..) => self.to = Bound::Excluded(place),
        }
    }

    /// Whether the range is empty.
    fn are_none(&self) -> bool {
        match (&self.from, &self.to) {
            (Bound::Included(from) | Bound::Excluded(from), Bound::Included(to) | Bound::Excluded(to)) => {
                from >= to
            }
            (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        }
    }
}

fn as_slice(bound: &Bound<KeyBuf>) -> Bound<&[u8]> {
    match bound {
        Bound::Included(key) => Bound::Included(key),
        Bound::Excluded(key) => Bound::Excluded(key),
        Bound::Unbounded => Bound::Unbounded,
    }
}

fn id_of(key: &[u8], known_bytes: usize, left_parts: usize) -> Option<RecordId> {
    let mut rest = key.get(known_bytes..)?;
    for _ in 0..left_parts {
        skip_value(&mut rest)?;
    }
    let id = take_number(&mut rest)?;
    rest.is_empty().then_some(RecordId(id))
}

/// The value of the last part, of at least one.
fn last_value(key: &[u8], known_bytes: usize, left_parts: usize) -> Option<Value> {
    let mut rest = key.get(known_bytes..)?;
    for _ in 1..left_parts {
        skip_value(&mut rest)?;
    }
    entries::take_value(&mut rest)
}

#[cfg(test)]
mod tests {
    use super::super::{
        schema::{ACCOUNT as ACCOUNT_TABLE, GENERATION_BITS, account_key},
        testing::{ACCOUNT, BY_MAILBOX, BY_MESSAGE_ID, EMAIL, MESSAGE_ID, create, email, engine, make},
    };
    use super::*;
    use crate::Properties;

    /// Walks page by page, with this many ids per page.
    fn walk(engine: &Engine, query: &Query, limit: usize) -> Vec<RecordId> {
        let mut query = query.clone().limit(limit);
        let mut ids = Vec::new();
        loop {
            let page = engine.query(ACCOUNT, &query).unwrap();
            assert!(page.ids.len() == limit || page.next.is_none());
            ids.extend(page.ids);
            match page.next {
                Some(next) => query = query.after(next),
                None => return ids,
            }
        }
    }

    #[tokio::test]
    async fn a_scattered_index_is_read_through_all_generations_both_ways() {
        let (_folder, engine) = engine();
        let same = || create(Properties::default().with(MESSAGE_ID, "same"));
        let other = || create(Properties::default().with(MESSAGE_ID, "other"));
        let mut expected = Vec::new();
        for generation in [0, 1, 3] {
            // Skips ids, as if the account had used them.
            let skip = move |batch: &mut restante_lmdb::Batch<'_>| {
                let mut row = AccountRow::read(batch.view(), ACCOUNT)?;
                row.next_id = RecordId(((generation + 1) << GENERATION_BITS) - 2);
                batch.put(ACCOUNT_TABLE, &account_key(ACCOUNT), &row.encode());
                Ok(())
            };
            engine.store.write(skip).await.unwrap();
            let ids = make(&engine, [same(), same(), other(), same()]).await;
            expected.extend([ids[0], ids[1], ids[3]]);
        }
        let query = Query::new(EMAIL, BY_MESSAGE_ID).equals("same");
        let backwards: Vec<RecordId> = expected.iter().rev().copied().collect();
        for limit in 1..=10 {
            assert_eq!(walk(&engine, &query, limit), expected, "{limit} a page");
            assert_eq!(walk(&engine, &query.clone().descending(), limit), backwards, "{limit} a page");
        }
    }

    #[tokio::test]
    async fn ranges_begin_and_end_where_they_say() {
        let (_folder, engine) = engine();
        let received = [5, 255, 256, 257, 70_000];
        let ids = make(&engine, received.map(|received| create(email(1, received)))).await;
        make(&engine, [create(email(0, 256)), create(email(2, 256)), create(email(256, 256))]).await;
        use std::ops::Bound::{Excluded, Included, Unbounded};
        let cases = [
            (Unbounded, Unbounded, &ids[..]),
            (Included(255), Included(257), &ids[1..4]),
            (Excluded(255), Excluded(257), &ids[2..3]),
            (Excluded(255), Unbounded, &ids[2..]),
            (Unbounded, Included(5), &ids[..1]),
            (Included(258), Excluded(70_000), &[]),
            (Included(257), Included(255), &[]),
            (Excluded(256), Excluded(256), &[]),
        ];
        for (from, to, expected) in cases {
            let query = Query::new(EMAIL, BY_MAILBOX)
                .equals(1)
                .between(from.map(Value::Number), to.map(Value::Number));
            let mut backwards = expected.to_vec();
            backwards.reverse();
            for limit in 1..=6 {
                assert_eq!(walk(&engine, &query, limit), expected, "{from:?} {to:?}, {limit} a page");
                assert_eq!(
                    walk(&engine, &query.clone().descending(), limit),
                    backwards,
                    "{from:?} {to:?}, {limit} a page"
                );
            }
        }
    }

    #[tokio::test]
    async fn a_cursor_of_elsewhere_in_the_index_leaves_out_what_is_before_it() {
        let (_folder, engine) = engine();
        let ids = make(
            &engine,
            [create(email(1, 10)), create(email(2, 5)), create(email(2, 6)), create(email(3, 1))],
        )
        .await;
        let page = engine.query(ACCOUNT, &Query::new(EMAIL, BY_MAILBOX).limit(2)).unwrap();
        let cursor = page.next.unwrap(); // after (2, 5)
        let of = |mailbox: u64| Query::new(EMAIL, BY_MAILBOX).equals(mailbox).after(cursor.clone());
        assert_eq!(engine.query(ACCOUNT, &of(1)).unwrap().ids, []);
        assert_eq!(engine.query(ACCOUNT, &of(2)).unwrap().ids, ids[2..3]);
        assert_eq!(engine.query(ACCOUNT, &of(3)).unwrap().ids, ids[3..]);
        assert_eq!(engine.query(ACCOUNT, &of(3).descending()).unwrap().ids, []);
        assert_eq!(engine.query(ACCOUNT, &of(1).descending()).unwrap().ids, ids[..1]);
    }
}
