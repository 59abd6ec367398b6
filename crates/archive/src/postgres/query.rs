//! Answering a query: choose topics, visit the windows in order, ask each in the cheaper way, cut one page.
//!
//! Statements are sent ahead of the answers as long as it is likely that they are needed, so that a page over many windows
//! doesn't wait for each of them; and while they run, one look at the catalogue's state tells whether it was new enough.

use std::{collections::HashMap, pin::pin};

use foldhash::fast::RandomState;
use futures_util::{StreamExt, TryStreamExt, stream::FuturesOrdered};
use restante_core::{Cursor, ErrorKind, Key, MessageHash, Timestamp};
use tokio_postgres::{Row, types::ToSql};

use super::{
    Shared,
    catalog::{Answer, Candidate, Window, catch_up, get},
    connect::Connection,
    fault::{Doing, Fault},
    schema::{self, Access, Select},
};
use crate::{
    Direction, Error, PAGE_BYTES_MAX, Page, Part, Query, RowAt,
    query::KeyRange,
    record,
    topics::{Selection, TopicId},
};

/// How often a query is begun anew because the catalogue was older than the database.
const ATTEMPTS: usize = 5;
/// Statements under way at most.
const STATEMENTS_AHEAD: usize = 32;
/// More rows are asked than are likely needed, because counts are rough.
const LIKELY: f64 = 1.2;
/// A hash that is behind all others.
const BEHIND_ALL: [u8; 33] = [0xff; 33];

// What a step costs the server, in microseconds, measured on the history data set; their proportions decide.
const SCAN_ROW: f64 = 0.3;
const SEEK_TOPIC: f64 = 9.0;
const MERGE_ROW: f64 = 1.2;

/// One page of the messages that match.
pub(super) async fn query(shared: &Shared, query: &Query) -> Result<Page, Error> {
    query.check_bounds()?;
    let mut attempt = 1;
    loop {
        match shared.database.in_time("answer", attempt_query(shared, query)).await? {
            Ok(Some(page)) => return Ok(page),
            Ok(None) if attempt < ATTEMPTS => {}
            Ok(None) => {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    "postgres' windows change too fast to be read",
                ));
            }
            Err(fault) if attempt < ATTEMPTS && fault.is_stale_catalog() => shared.reload().await?,
            Err(fault) if attempt < ATTEMPTS && fault.is_worth_repeating() => {}
            Err(fault) => return Err(fault.into()),
        }
        attempt += 1;
    }
}

/// One attempt; `None` when the catalogue was too old. What failed in the database is the inner error.
async fn attempt_query(shared: &Shared, query: &Query) -> Result<Result<Option<Page>, Fault>, Error> {
    let connection = shared.database.reader().await?;
    let reading = Reading { shared, query, connection: &connection };
    let answered = reading.page().await;
    if answered.is_ok() {
        connection.end();
    }
    Ok(answered)
}

/// A query and the connection that it is asked on.
struct Reading<'a> {
    shared: &'a Shared,
    query: &'a Query,
    connection: &'a Connection,
}

/// Rows of one window.
#[derive(Default)]
struct Found {
    bytes: Vec<u8>,
    offsets: Vec<u32>,
    topics: Vec<TopicId>,
}

impl Reading<'_> {
    async fn page(&self) -> Result<Option<Page>, Fault> {
        let cursor = self.place_of_cursor().await?;
        let range = self.query.range(cursor);
        let answer = self.shared.catalog.ask(self.query, &range);
        let (found, state) = tokio::join!(self.find(&answer, &range), self.state());
        let (sequence, drops) = state?;
        let found = found?;
        let is_new_enough = drops == answer.drops && sequence <= answer.sequence;
        if !is_new_enough {
            catch_up(&self.shared.catalog, &self.shared.database).await?;
            if self.has_changed(&answer, &range) {
                return Ok(None);
            }
        }
        self.assemble(found).await.map(Some)
    }

    async fn state(&self) -> Result<(i64, i64), Fault> {
        let statement = self.connection.prepared(schema::STATE_KEY, || schema::STATE.to_owned()).await;
        let row = self.connection.client.query_one(&statement.doing("read its state")?, &[]).await;
        let row = row.doing("read its state")?;
        Ok((get(&row, 0)?, get(&row, 1)?))
    }

    /// Whether what the catalogue has learnt since could have changed the answer.
    fn has_changed(&self, before: &Answer, range: &KeyRange) -> bool {
        let now = self.shared.catalog.ask(self.query, range);
        let candidates = |answer: &Answer| -> Vec<(i64, usize)> {
            let known = answer.windows.iter().filter_map(|window| {
                let candidate = self.shared.catalog.candidate(window, &answer.selection)?;
                Some((window.generation, candidate.wanted_topics))
            });
            known.collect()
        };
        now.drops != before.drops || candidates(&now) != candidates(before) || {
            let Selection::Topics(set) = &before.selection else { return now.windows != before.windows };
            let Selection::Topics(new) = &now.selection else { return true };
            set.ids() != new.ids()
        }
    }

    /// The key that the cursor stands for. A message named by its hash is looked for in all windows, the newest first.
    async fn place_of_cursor(&self) -> Result<Option<Key>, Fault> {
        let hash = match self.query.cursor {
            None => return Ok(None),
            Some(Cursor::At(key)) => return Ok(Some(key)),
            Some(Cursor::Message(hash)) => hash,
        };
        catch_up_if_behind(self).await?;
        let mut windows = self.shared.catalog.windows();
        windows.reverse();
        for windows in windows.chunks(STATEMENTS_AHEAD) {
            let look_ups = windows.iter().map(|window| self.find_hash(window, &hash));
            let found = futures_util::future::try_join_all(look_ups).await?;
            if let Some(timestamp) = found.into_iter().flatten().next() {
                return Ok(Some(Key { timestamp: Timestamp(timestamp), message_hash: hash }));
            }
        }
        Err(Error::new(ErrorKind::NotFound, format!("cursor {hash} is not archived")).into())
    }

    async fn find_hash(&self, window: &Window, hash: &MessageHash) -> Result<Option<i64>, Fault> {
        let key = (window.generation, Select::new(Access::FindHash, Direction::Forward, false));
        let statement = self.connection.prepared(key, || key.1.sql(&window.leaf())).await;
        let row =
            self.connection.client.query_opt(&statement.doing("look up a hash")?, &[&&hash.0[..]]).await;
        row.doing("look up a hash")?.map(|row| get(&row, 0)).transpose()
    }

    /// Rows of the windows in the direction of the query, until there are enough.
    async fn find(&self, answer: &Answer, range: &KeyRange) -> Result<Vec<Found>, Fault> {
        let limit = self.query.limit + 1; // one more tells whether more remain
        let mut windows = answer.windows.clone();
        if self.query.direction == Direction::Backward {
            windows.reverse();
        }
        let mut windows = windows.iter();
        let mut under_way = FuturesOrdered::new();
        let mut found = Vec::new();
        let (mut rows, mut bytes, mut expected) = (0, 0, 0.0);
        loop {
            while under_way.len() < STATEMENTS_AHEAD {
                let is_likely_enough = rows as f64 + expected >= limit as f64 * LIKELY;
                if is_likely_enough && !under_way.is_empty() {
                    break;
                }
                let Some(candidate) = self.next_candidate(&mut windows, answer) else { break };
                let expects = self.expects(&candidate, range);
                expected += expects;
                under_way.push_back(async move {
                    Ok::<_, Fault>((self.ask(&candidate, answer, range, limit).await?, expects))
                });
            }
            let Some((next, expects)) = under_way.try_next().await? else { return Ok(found) };
            expected -= expects;
            rows += next.offsets.len();
            bytes += next.bytes.len();
            found.push(next);
            if rows >= limit || bytes > PAGE_BYTES_MAX + rows * record::HEADER_BYTES {
                return Ok(found);
            }
        }
    }

    /// The next window that may have rows.
    fn next_candidate(
        &self,
        windows: &mut std::slice::Iter<'_, Window>,
        answer: &Answer,
    ) -> Option<Candidate> {
        for window in windows {
            let candidate = self.shared.catalog.candidate(window, &answer.selection);
            if candidate.is_some() {
                return candidate;
            }
        }
        None
    }

    /// How many rows a window will likely give.
    fn expects(&self, candidate: &Candidate, range: &KeyRange) -> f64 {
        if !self.query.hashes.is_empty() {
            return 0.0; // nobody knows where a hash is
        }
        candidate.wanted_messages as f64 * share_of(&candidate.window, range, self.shared.now().0)
    }

    /// Asks one window.
    async fn ask(
        &self,
        candidate: &Candidate,
        answer: &Answer,
        range: &KeyRange,
        limit: usize,
    ) -> Result<Found, Fault> {
        let window = &candidate.window;
        let (from, until) = bounds(range);
        let limit = limit as i64;
        let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![&from.0, &from.1, &until.0, &until.1, &limit];
        let bits = Bits::of(&answer.selection);
        let topics;
        let hashes: Vec<&[u8]>;
        let share = share_of(window, range, self.shared.now().0);
        let access = self.access(candidate, &answer.selection, share);
        match access {
            Access::Scan => parameters.extend([&bits.bytes as &(dyn ToSql + Sync), &bits.len]),
            Access::Merge => {
                topics = self.shared.catalog.wanted_in(window, &answer.selection);
                parameters.push(&topics);
            }
            Access::Hashes | Access::HashesOfTopics => {
                hashes = distinct(&self.query.hashes);
                parameters.push(&hashes);
                if access == Access::HashesOfTopics {
                    parameters.extend([&bits.bytes as &(dyn ToSql + Sync), &bits.len]);
                }
                return self.read(window, access, &parameters).await;
            }
            _ => {}
        }
        self.read(window, access, &parameters).await
    }

    /// Which way to the rows is the cheaper one.
    fn access(&self, candidate: &Candidate, selection: &Selection, share: f64) -> Access {
        match (selection, self.query.hashes.is_empty()) {
            (Selection::All, true) => Access::All,
            (Selection::All, false) => Access::Hashes,
            (Selection::Topics(_), false) => Access::HashesOfTopics,
            (Selection::Topics(_), true) => cheaper(candidate, share, self.query.limit + 1),
        }
    }

    async fn read(
        &self,
        window: &Window,
        access: Access,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Found, Fault> {
        let what = "read messages";
        let select = Select::new(access, self.query.direction, self.query.bodies);
        let prepared =
            self.connection.prepared((window.generation, select), || select.sql(&window.leaf())).await;
        let statement = prepared.doing(what)?;
        let rows =
            self.connection.client.query_raw(&statement, parameters.iter().copied()).await.doing(what)?;
        let mut rows = pin!(rows);
        let mut collected = Collected::default();
        while let Some(row) = rows.next().await {
            let has_enough = collected.body_bytes >= PAGE_BYTES_MAX;
            collected.add(&row.doing(what)?, self.query.bodies)?;
            if has_enough {
                break; // the row behind tells that more remain
            }
        }
        Ok(collected.found)
    }

    /// Makes the page of what was found, with the names of its topics.
    async fn assemble(&self, found: Vec<Found>) -> Result<Page, Fault> {
        let (mut parts, mut rows) = (Vec::new(), Vec::new());
        for window in found.into_iter().filter(|window| !window.offsets.is_empty()) {
            let names = match self.shared.catalog.names(&window.topics) {
                Some(names) => names,
                None => self.names_after_refresh(&window.topics).await?,
            };
            let part = u32::try_from(parts.len()).expect("a page has fewer parts than there are windows");
            rows.extend(window.offsets.into_iter().map(|offset| RowAt { part, offset }));
            parts.push(Part { bytes: window.bytes.into(), topics: names.into() });
        }
        Ok(Page::assemble(parts, rows, self.query))
    }

    /// A topic may be newer than the catalogue. One that isn't there even then was lost by somebody's hand.
    async fn names_after_refresh(&self, topics: &[TopicId]) -> Result<Vec<crate::TopicName>, Fault> {
        catch_up(&self.shared.catalog, &self.shared.database).await?;
        self.shared.catalog.names(topics).ok_or_else(|| {
            Error::new(ErrorKind::Corrupt, "postgres has messages whose topic is missing: run archive check")
                .into()
        })
    }
}

/// Reads what is new in the catalogue, if anything is.
async fn catch_up_if_behind(reading: &Reading<'_>) -> Result<(), Fault> {
    let (sequence, drops) = reading.state().await?;
    if !reading.shared.catalog.is_at(sequence, drops) {
        catch_up(&reading.shared.catalog, &reading.shared.database).await?;
    }
    Ok(())
}

/// The part of a window that lies in a range of time, if its messages are spread evenly over what is over of it.
fn share_of(window: &Window, range: &KeyRange, now: i64) -> f64 {
    let is_current = window.contains(now);
    let end = if is_current { now } else { window.end_ns };
    let length = end as f64 - window.first_ns as f64;
    let from = range.from.timestamp.0.max(window.first_ns) as f64;
    let until = range.until.map_or(end, |until| until.timestamp.0.min(end)) as f64;
    if length <= 0.0 { 1.0 } else { ((until - from) / length).clamp(0.001, 1.0) }
}

/// A scan costs by the rows that it passes until it has enough, a merge by topics and by the rows that each of them gives.
fn cheaper(candidate: &Candidate, share: f64, limit: usize) -> Access {
    let limit = limit as f64;
    let in_range = candidate.messages.max(1) as f64 * share;
    let wanted_in_range = candidate.wanted_messages.max(1) as f64 * share;
    let passed = if wanted_in_range <= limit { in_range } else { in_range * limit / wanted_in_range };
    let topics = candidate.wanted_topics as f64;
    let merged = wanted_in_range.min(limit * topics);
    let (scan, merge) = (passed * SCAN_ROW, topics * SEEK_TOPIC + merged * MERGE_ROW);
    if scan <= merge { Access::Scan } else { Access::Merge }
}

/// A timestamp and a hash.
type Bound<'a> = (i64, &'a [u8]);

/// The bounds of a range as statements take them: both exclusive, a hash that is empty before all others.
fn bounds(range: &KeyRange) -> (Bound<'_>, Bound<'_>) {
    let from_hash: &[u8] = if range.from_excluded { &range.from.message_hash.0 } else { &[] };
    let until: Bound<'_> = match &range.until {
        Some(until) => (until.timestamp.0, &until.message_hash.0),
        None => (i64::MAX, &BEHIND_ALL),
    };
    ((range.from.timestamp.0, from_hash), until)
}

fn distinct(hashes: &[MessageHash]) -> Vec<&[u8]> {
    let mut distinct: Vec<&[u8]> = hashes.iter().map(|hash| &hash.0[..]).collect();
    distinct.sort_unstable();
    distinct.dedup();
    distinct
}

/// The wanted topics as bits: bit n of the bytes, as `get_bit` counts them, stands for topic n.
struct Bits {
    bytes: Vec<u8>,
    len: i32,
}

impl Bits {
    fn of(selection: &Selection) -> Self {
        let Selection::Topics(set) = selection else { return Self { bytes: Vec::new(), len: 0 } };
        let bytes: Vec<u8> = set.words().iter().flat_map(|word| word.to_le_bytes()).collect();
        let len = i32::try_from(bytes.len() * 8).unwrap_or(i32::MAX);
        Self { bytes, len }
    }
}

/// Rows as they come from the server, made into records.
#[derive(Default)]
struct Collected {
    found: Found,
    numbers: HashMap<TopicId, u32, RandomState>,
    body_bytes: usize,
}

impl Collected {
    fn add(&mut self, row: &Row, bodies: bool) -> Result<(), Fault> {
        let hash: &[u8] = get(row, 1)?;
        let Ok(hash) = hash.try_into() else {
            return Err(Error::new(ErrorKind::Corrupt, "postgres has a hash that isn't 32 bytes long").into());
        };
        let key = Key { timestamp: Timestamp(get(row, 0)?), message_hash: MessageHash(hash) };
        let topic = get::<i32>(row, 2)? as TopicId;
        let body: &[u8] = if bodies { get(row, 3)? } else { &[] };
        let topics = &mut self.found.topics;
        let number = *self.numbers.entry(topic).or_insert_with(|| {
            topics.push(topic);
            topics.len() as u32 - 1
        });
        let offset = u32::try_from(self.found.bytes.len()).expect("a page is bounded by PAGE_BYTES_MAX");
        self.found.offsets.push(offset);
        record::encode_message(0, number, key, body, &mut self.found.bytes);
        self.body_bytes += body.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Window = Window { generation: 1, first_ns: 0, end_ns: 1_000 };

    fn candidate(wanted_messages: u64, wanted_topics: usize) -> Candidate {
        Candidate { window: DAY, messages: 50_000, wanted_messages, wanted_topics }
    }

    #[test]
    fn few_rows_of_few_topics_are_merged() {
        assert_eq!(cheaper(&candidate(34, 3), 1.0, 101), Access::Merge);
        assert_eq!(cheaper(&candidate(300, 200), 1.0, 101), Access::Merge);
    }

    #[test]
    fn nearly_everything_is_scanned() {
        assert_eq!(cheaper(&candidate(48_000, 1_500), 1.0, 101), Access::Scan);
        assert_eq!(cheaper(&candidate(48_000, 1_500), 1.0, 10_001), Access::Scan);
    }

    #[test]
    fn a_window_is_spread_over_its_time() {
        let key = |timestamp| Key { timestamp: Timestamp(timestamp), message_hash: MessageHash::MIN };
        let range = KeyRange { from: key(250), from_excluded: false, until: Some(key(500)) };
        assert_eq!(share_of(&DAY, &range, 5_000), 0.25);
        // A window that isn't over has everything in what is over of it.
        assert_eq!(share_of(&DAY, &range, 500), 0.5);
        let all = KeyRange { from: key(i64::MIN), from_excluded: false, until: None };
        assert_eq!(share_of(&DAY, &all, 5_000), 1.0);
    }
}
