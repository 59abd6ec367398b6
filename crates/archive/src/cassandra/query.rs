//! Pages: slices of windows, or the merged keys of topics and hashes, whose rows are then read.
//!
//! A page is read with the catalogue in memory while the table `state` is read in parallel. If `state` shows that the catalogue
//! was out of date, the page is read again with a newer one, which has everything that was acknowledged before the query began.

use std::collections::{BTreeMap, HashMap, HashSet};

use foldhash::fast::RandomState;
use futures_util::{StreamExt, TryStreamExt, stream};
use restante_core::{Cursor, Key, MessageHash};

use super::{
    Shared,
    append::{LOOKUP_KEYS, key_of},
    catalog::View,
    epochs::Epoch,
    page,
    plan::{Access, Observed},
    schema::{self, BoundKey, EpochId, KeyRow, Statement, TopicKey, ValueRow},
};
use crate::{Direction, Error, PAGE_BYTES_MAX, Page, Query, query::KeyRange};

/// Rows of one slice: at most 8 MiB with the longest values that are stored in rows.
const SLICE_ROWS: usize = 250;
/// Keys of one slice.
const SLICE_KEYS: usize = 2_000;
/// The most windows or spans that are read at the same time.
const UNITS: usize = 8;
/// Concurrent slices of topics, and lookups.
const REQUESTS: usize = 32;
/// Hashes in one request.
const HASHES: usize = 50;
/// Attempts to read a page while epochs are dropped.
const ATTEMPTS: usize = 5;

/// A message that was found.
pub(super) struct Found {
    pub(super) epoch: EpochId,
    pub(super) key: Key,
    pub(super) value: Vec<u8>,
}

impl Found {
    pub(super) fn body_bytes(&self) -> usize {
        schema::decode_value(&self.value).map_or(0, |value| value.body_bytes as usize)
    }
}

/// One page of a query.
pub(super) async fn query(shared: &Shared, query: &Query) -> Result<Page, Error> {
    let (state, mut page) = tokio::join!(shared.state(), read(shared, query));
    if shared.is_current(&state?) && page.is_ok() {
        return page;
    }
    for attempt in 0..ATTEMPTS {
        let was_stale = shared.sync().await?;
        // An error may come from an epoch that was dropped, which another task of this server may have noticed first.
        if page.is_err() && !was_stale && attempt > 0 {
            break;
        }
        // The catalogue is newer than the query now.
        page = read(shared, query).await;
        if page.is_ok() {
            break;
        }
    }
    page
}

/// The page according to the catalogue in memory.
async fn read(shared: &Shared, query: &Query) -> Result<Page, Error> {
    let cursor = match query.cursor {
        Some(Cursor::At(key)) => Some(key),
        Some(Cursor::Message(hash)) => Some(find(shared, hash).await?),
        None => None,
    };
    let reading = Reading::new(shared, query, query.range(cursor));
    let mut found = Vec::new();
    if query.hashes.is_empty() {
        reading.read_units(&mut found).await?;
    } else {
        let keys = reading.keys_by_hash(&query.hashes).await?;
        reading.read_keys(&keys, &mut found).await?;
    }
    page::assemble(shared, query, found).await
}

/// The key of the oldest message with a hash.
async fn find(shared: &Shared, hash: MessageHash) -> Result<Key, Error> {
    let everything = Query { hashes: vec![hash], limit: 1, ..Query::default() };
    let reading = Reading::new(shared, &everything, everything.range(None));
    let keys = reading.keys_by_hash(&everything.hashes).await?;
    let mut found = Vec::new();
    reading.read_keys(&keys, &mut found).await?;
    let first = found.first().map(|found: &Found| found.key);
    first.ok_or_else(|| Error::not_found(format!("cursor {hash} is not archived")))
}

/// A query and what is needed to read it.
struct Reading<'a> {
    shared: &'a Shared,
    query: &'a Query,
    range: KeyRange,
    /// In the order of time; epochs without wanted topics are left out.
    views: Vec<View>,
    /// The wanted topics of all epochs; `None` for all.
    wanted: Option<HashSet<TopicKey, RandomState>>,
}

/// A window or a span of windows, and the view of its epoch.
#[derive(Clone, Copy)]
enum Unit {
    Window(usize, i64),
    Span(usize, i64),
}

/// The rows of a unit.
struct UnitRows {
    rows: Vec<Found>,
    /// Whether the unit has no more rows in the range.
    is_complete: bool,
    /// Rows that were read, also those of other topics.
    seen: usize,
}

impl<'a> Reading<'a> {
    fn new(shared: &'a Shared, query: &'a Query, range: KeyRange) -> Self {
        let mut views = shared.catalog.views(query);
        views.retain(|view| {
            let ends_before = view.epoch.end_ns != i64::MAX && view.epoch.end_ns <= range.from.timestamp.0;
            let begins_behind = range.until.is_some_and(|until| view.epoch.first_ns > until.timestamp.0);
            !ends_before && !begins_behind
        });
        let is_all = views.iter().any(|view| view.wanted.is_none());
        let wanted = views.iter().filter_map(|view| view.wanted.as_ref()).flatten().copied().collect();
        Self { shared, query, range, views, wanted: if is_all { None } else { Some(wanted) } }
    }

    /// The rows needed to know whether more remain than fit on a page.
    fn rows_wanted(&self) -> usize {
        self.query.limit + 1
    }

    fn is_backward(&self) -> bool {
        self.query.direction == Direction::Backward
    }

    /// Whether a page needs no more rows: the last one that was found is past its end.
    fn is_full(&self, found: &[Found]) -> bool {
        let bytes = || found.iter().rev().skip(1).map(Found::body_bytes).sum::<usize>();
        found.len() >= self.rows_wanted() || (found.len() > 1 && bytes() >= PAGE_BYTES_MAX)
    }

    fn is_wanted(&self, value: &[u8]) -> bool {
        let Some(wanted) = &self.wanted else { return true };
        schema::decode_value(value).is_none_or(|value| wanted.contains(&value.topic))
    }

    /// Reads units in the direction of the query until the page is full. The more of them were empty, the more are read at once.
    async fn read_units(&self, found: &mut Vec<Found>) -> Result<(), Error> {
        let mut observed = Observed::default();
        let mut waiting = Vec::new();
        let mut spans = self.spans().into_iter();
        let mut at_once = 1;
        loop {
            while waiting.len() < at_once {
                let Some((place, span, windows)) = spans.next() else { break };
                self.add_units(place, span, windows, &observed, found.len(), &mut waiting);
            }
            if waiting.is_empty() {
                return Ok(());
            }
            let rest = waiting.split_off(at_once.min(waiting.len()));
            let units = std::mem::replace(&mut waiting, rest);
            let missing = self.rows_wanted() - found.len();
            let reads: Vec<_> = units.into_iter().map(|unit| self.read_unit(unit, missing)).collect();
            let results: Vec<UnitRows> = stream::iter(reads).buffered(UNITS).try_collect().await?;
            let before = found.len();
            for result in results {
                observed.add(result.seen, result.rows.len());
                found.extend(result.rows);
                if !result.is_complete || self.is_full(found) {
                    return Ok(());
                }
            }
            at_once = if found.len() == before { (at_once * 2).min(UNITS) } else { at_once.clamp(1, 2) };
        }
    }

    /// The spans with windows in the range, in the direction of the query.
    fn spans(&self) -> Vec<(usize, i64, Vec<i64>)> {
        let mut spans: Vec<(usize, i64, Vec<i64>)> = Vec::new();
        for (place, view) in self.views.iter().enumerate() {
            let epoch = &view.epoch;
            let first = epoch.window(self.range.from.timestamp.0.max(epoch.first_ns));
            let last = self.range.until.map_or(i64::MAX, |until| epoch.window(until.timestamp.0));
            if first > last {
                continue;
            }
            for window in view.contents.windows.range(first..=last) {
                let span = Epoch::span(*window);
                match spans.last_mut().filter(|last| (last.0, last.1) == (place, span)) {
                    Some((.., windows)) => windows.push(*window),
                    None => spans.push((place, span, vec![*window])),
                }
            }
        }
        if self.is_backward() {
            spans.reverse();
            spans.iter_mut().for_each(|(.., windows)| windows.reverse());
        }
        spans
    }

    /// Chooses how to read a span.
    fn add_units(
        &self,
        place: usize,
        span: i64,
        windows: Vec<i64>,
        observed: &Observed,
        found: usize,
        units: &mut Vec<Unit>,
    ) {
        let Some(view) = self.views.get(place) else { return };
        let access = match &view.wanted {
            None => Access::Scan,
            Some(wanted) => observed.access(
                wanted.len(),
                view.topics,
                windows.len(),
                self.rows_wanted().saturating_sub(found),
            ),
        };
        match access {
            Access::Scan => units.extend(windows.into_iter().map(|window| Unit::Window(place, window))),
            Access::Merge => units.push(Unit::Span(place, span)),
        }
    }

    async fn read_unit(&self, unit: Unit, missing: usize) -> Result<UnitRows, Error> {
        match unit {
            Unit::Window(place, window) => self.scan(place, window, missing).await,
            Unit::Span(place, span) => self.merge(place, span, missing).await,
        }
    }

    /// Reads the rows of a window and skips those of other topics.
    async fn scan(&self, place: usize, window: i64, missing: usize) -> Result<UnitRows, Error> {
        let mut result = UnitRows { rows: Vec::new(), is_complete: true, seen: 0 };
        let Some(view) = self.views.get(place) else { return Ok(result) };
        let epoch = view.epoch.id;
        let part = schema::window_part(window);
        let (mut from, mut until) = self.bounds(&self.range);
        // A slice of a query for few rows need not be long, unless most of its rows are of other topics.
        let mut rows_max = if self.wanted.is_none() { missing.min(SLICE_ROWS) } else { SLICE_ROWS };
        loop {
            let statement =
                if self.is_backward() { Statement::Backward(epoch) } else { Statement::Forward(epoch) };
            let values =
                (part.as_slice(), from.0, from.1.as_slice(), until.0, until.1.as_slice(), rows_max as i32);
            let rows: Vec<ValueRow> = self.shared.database.read("read messages", statement, values).await?;
            let is_last = rows.len() < rows_max;
            result.seen += rows.len();
            for (timestamp, hash, value) in rows {
                let edge = if self.is_backward() { &mut until } else { &mut from };
                *edge = (timestamp, hash.clone());
                let (Some(key), Some(value)) = (key_of(timestamp, &hash), value) else { continue };
                if self.is_wanted(&value) {
                    result.rows.push(Found { epoch, key, value });
                }
            }
            if is_last {
                return Ok(result);
            }
            if result.rows.len() >= missing || self.is_full(&result.rows) {
                result.is_complete = false;
                return Ok(result);
            }
            rows_max = SLICE_ROWS;
        }
    }

    /// The bounds of a slice, both exclusive.
    fn bounds(&self, range: &KeyRange) -> ((i64, Vec<u8>), (i64, Vec<u8>)) {
        // An empty hash sorts before all others, so no hash of the timestamp is excluded.
        let from_hash = if range.from_excluded { range.from.message_hash.0.to_vec() } else { Vec::new() };
        let from = (range.from.timestamp.0, from_hash);
        let until = range.until.map(|until| (until.timestamp.0, until.message_hash.0.to_vec()));
        (from, until.unwrap_or_else(schema::end_of_slice))
    }

    /// Merges the keys of the wanted topics in a span, and reads their messages.
    async fn merge(&self, place: usize, span: i64, missing: usize) -> Result<UnitRows, Error> {
        let mut result = UnitRows { rows: Vec::new(), is_complete: true, seen: 0 };
        let Some(view) = self.views.get(place) else { return Ok(result) };
        let wanted = view.wanted.as_deref().unwrap_or_default();
        let keys_max = (missing * 4 / wanted.len().max(1)).clamp(missing.min(20), SLICE_KEYS).min(missing);
        let mut range = self.range;
        loop {
            let slices: Vec<_> = wanted
                .iter()
                .map(|topic| self.keys_of_topic(&view.epoch, topic, span, range, keys_max))
                .collect();
            let slices: Vec<Vec<Key>> = stream::iter(slices).buffer_unordered(REQUESTS).try_collect().await?;
            // After the end of a truncated slice there may be more keys of its topic.
            let ends =
                slices.iter().filter(|keys| keys.len() >= keys_max).filter_map(|keys| keys.last().copied());
            let edge = if self.is_backward() { ends.max() } else { ends.min() };
            let mut keys: Vec<Key> = slices.into_iter().flatten().collect();
            keys.sort_unstable();
            if let Some(edge) = edge {
                let is_backward = self.is_backward();
                keys.retain(|key| if is_backward { *key >= edge } else { *key <= edge });
            }
            if self.is_backward() {
                keys.reverse();
            }
            let keys: Vec<(EpochId, Key)> = keys.into_iter().map(|key| (view.epoch.id, key)).collect();
            let is_complete = self.read_some_keys(&keys, missing, &mut result.rows).await?;
            if !is_complete
                || (edge.is_some() && (result.rows.len() >= missing || self.is_full(&result.rows)))
            {
                result.is_complete = false;
                return Ok(result);
            }
            let Some(edge) = edge else { return Ok(result) };
            match self.query.direction {
                Direction::Forward => {
                    range.from = edge;
                    range.from_excluded = true;
                }
                Direction::Backward => range.until = Some(edge),
            }
        }
    }

    /// The first keys of a topic in a span, in the direction of the query.
    async fn keys_of_topic(
        &self,
        epoch: &Epoch,
        topic: &TopicKey,
        span: i64,
        range: KeyRange,
        keys_max: usize,
    ) -> Result<Vec<Key>, Error> {
        let (from, until) = self.bounds(&range);
        let statement = if self.is_backward() {
            Statement::KeysBackward(epoch.id)
        } else {
            Statement::KeysForward(epoch.id)
        };
        let part = schema::posting_part(topic, span);
        let values = (part, from.0, from.1, until.0, until.1, keys_max as i32);
        let rows: Vec<KeyRow> = self.shared.database.read("read keys by topic", statement, values).await?;
        Ok(rows.into_iter().filter_map(|(timestamp, hash)| key_of(timestamp, &hash)).collect())
    }

    /// The keys of messages with these hashes in the range, in the direction of the query.
    async fn keys_by_hash(&self, hashes: &[MessageHash]) -> Result<Vec<(EpochId, Key)>, Error> {
        let distinct: HashSet<MessageHash, RandomState> = hashes.iter().copied().collect();
        let distinct: Vec<MessageHash> = distinct.into_iter().collect();
        let mut requests = Vec::new();
        for view in &self.views {
            for hashes in distinct.chunks(HASHES) {
                let parts: Vec<Vec<u8>> = hashes.iter().map(|hash| schema::hash_part(&hash.0)).collect();
                requests.push((view.epoch.id, parts));
            }
        }
        let reads: Vec<_> = requests
            .into_iter()
            .map(|(epoch, parts)| async move {
                let rows: Vec<KeyRow> = self
                    .shared
                    .database
                    .read("read keys by hash", Statement::KeysOfParts(epoch), (parts,))
                    .await?;
                Ok::<_, Error>((epoch, rows))
            })
            .collect();
        let found: Vec<(EpochId, Vec<KeyRow>)> =
            stream::iter(reads).buffer_unordered(REQUESTS).try_collect().await?;
        let mut keys = Vec::new();
        for (epoch, rows) in found {
            let of_epoch = rows.into_iter().filter_map(|(timestamp, hash)| key_of(timestamp, &hash));
            keys.extend(of_epoch.filter(|key| self.range.contains(*key)).map(|key| (epoch, key)));
        }
        keys.sort_unstable_by_key(|(_, key)| *key);
        if self.is_backward() {
            keys.reverse();
        }
        Ok(keys)
    }

    async fn read_keys(&self, keys: &[(EpochId, Key)], found: &mut Vec<Found>) -> Result<(), Error> {
        self.read_some_keys(keys, self.rows_wanted(), found).await.map(drop)
    }

    /// Reads the messages of keys, which are in the direction of the query, until there are enough; returns whether all were
    /// read. A key without a message was left by an interrupted append: it is skipped.
    async fn read_some_keys(
        &self,
        keys: &[(EpochId, Key)],
        missing: usize,
        found: &mut Vec<Found>,
    ) -> Result<bool, Error> {
        let mut rest = keys;
        while !rest.is_empty() {
            if found.len() >= missing || self.is_full(found) {
                return Ok(false);
            }
            let some = rest.len().min((missing - found.len()).clamp(1, SLICE_ROWS));
            let (now, later) = rest.split_at(some);
            rest = later;
            let mut rows = self.rows_of(now).await?;
            for (epoch, key) in now {
                if let Some(value) = rows.remove(key)
                    && self.is_wanted(&value)
                {
                    found.push(Found { epoch: *epoch, key: *key, value });
                }
            }
        }
        Ok(true)
    }

    /// The values of messages, with one request for each window.
    async fn rows_of(&self, keys: &[(EpochId, Key)]) -> Result<HashMap<Key, Vec<u8>, RandomState>, Error> {
        let epochs: HashMap<EpochId, Epoch, RandomState> =
            self.views.iter().map(|view| (view.epoch.id, view.epoch)).collect();
        let mut windows: BTreeMap<(EpochId, i64), Vec<BoundKey<'_>>> = BTreeMap::new();
        for (id, key) in keys {
            let Some(epoch) = epochs.get(id) else { continue };
            let window = epoch.window(key.timestamp.0);
            windows.entry((*id, window)).or_default().push((key.timestamp.0, key.message_hash.0.as_slice()));
        }
        let requests: Vec<_> = windows
            .iter()
            .flat_map(|((epoch, window), keys)| keys.chunks(LOOKUP_KEYS).map(|keys| (*epoch, *window, keys)))
            .collect();
        let reads: Vec<_> = requests
            .into_iter()
            .map(|(epoch, window, keys)| async move {
                let values = (schema::window_part(window), keys);
                let rows: Result<Vec<ValueRow>, Error> =
                    self.shared.database.read("read messages", Statement::Rows(epoch), values).await;
                rows
            })
            .collect();
        let rows: Vec<Vec<_>> = stream::iter(reads).buffer_unordered(REQUESTS).try_collect().await?;
        let mut values = HashMap::default();
        for (timestamp, hash, value) in rows.into_iter().flatten() {
            if let (Some(key), Some(value)) = (key_of(timestamp, &hash), value) {
                values.insert(key, value);
            }
        }
        Ok(values)
    }
}
