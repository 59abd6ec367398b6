//! Answering a query: choose topics, visit the windows in order, query each in the cheaper way, cut one page.
//!
//! Statements are sent ahead of the answers as long as they are likely to be needed, so that a page over many windows doesn't
//! wait for each of them. The first statement also reads the catalogue's state, which shows whether the catalogue was new enough.

use std::{collections::HashMap, pin::pin};

use foldhash::fast::RandomState;
use futures_util::{StreamExt, TryStreamExt, stream::FuturesOrdered};
use restante_core::{Cursor, Key, MessageHash, Timestamp};
use tokio_postgres::{Row, types::ToSql};

use super::{
    Shared,
    attempt::{AttemptError, Doing},
    catalog::{Answer, Window, get},
    connect::Connection,
    schema::{self, Access, STATE_TOPIC, Select},
    units::{
        GATHERED_ROW, LOCK_WINDOW, MERGE_ROW, OPEN_WINDOW, SEEK_GATHERED, SEEK_TOPIC, STATEMENT, Unit, Units,
    },
};
use crate::{
    Direction, Error, PAGE_BYTES_MAX, Page, Part, Query, RowAt,
    query::KeyRange,
    record,
    topics::{Selection, TopicId},
};

/// How often a query starts over because the catalogue was older than the database, or a plan was wrong.
const ATTEMPTS: usize = 5;
/// The most statements in flight.
const STATEMENTS_AHEAD: usize = 32;
/// A page of at least this many rows is read on two connections.
const WIDE_ROWS: usize = 4_000;
/// The part of a large page that each of them reads: a little more than half, because counts are rough.
const WIDE_SHARE: f64 = 0.51;
/// A part that will likely return at most this share of a large page is read from its end, see [`Reading::is_read_from_end`].
const FROM_END_SHARE: f64 = 0.6;
/// Where fewer rows are expected, nothing can be gained or learnt.
const FROM_END_ROWS_MIN: f64 = 1_000.0;
/// How much sparser, or denser, than the whole window its next part is assumed to be: after a gap, many rows would be read in
/// vain.
const DENSITY_MIN: f64 = 0.25;
const DENSITY_MAX: f64 = 64.0;
/// The most rows that are read from an end, in pages.
const FROM_END_PAGES: usize = 2;
/// Rows whose size is used to estimate how much memory the other rows of a statement need.
const SAMPLE_ROWS: usize = 32;
/// The most memory that is reserved on that estimate.
const RESERVED_BYTES_MAX: f64 = (16 << 20) as f64;
/// More rows are requested than are likely needed, because counts are rough.
const LIKELY: f64 = 1.2;
/// More topics than this are not read from all windows at once.
const GATHERED_TOPICS_MAX: usize = 64;
/// A hash that sorts after all others.
const BEHIND_ALL: [u8; 33] = [0xff; 33];

/// One page of the messages that match.
pub(super) async fn query(shared: &Shared, query: &Query) -> Result<Page, Error> {
    query.check_bounds()?;
    let mut attempt = 1;
    let mut seen = None;
    loop {
        let lease = shared.database.reader().await?;
        let is_first = attempt == 1;
        let reading = Reading { shared, query, connection: &lease.connection.clone(), is_first };
        match lease.drive("answer", Box::pin(reading.page(&mut seen))).await {
            Ok(Some(page)) => return Ok(page),
            Ok(None) if attempt < ATTEMPTS => {}
            Ok(None) => {
                return Err(Error::unavailable("postgres' windows change too fast to be read"));
            }
            Err(error) if attempt < ATTEMPTS && error.is_stale_catalog() => shared.reload().await?,
            Err(error) if attempt < ATTEMPTS && error.is_worth_repeating() => {}
            Err(error) => return Err(error.into()),
        }
        attempt += 1;
    }
}

/// The database's state at some moment: the sequence and the drops.
type StateSeen = (i64, i64);

/// The state at some moment since the query began.
type Seen = Option<StateSeen>;

/// A query and the connection that it uses.
#[derive(Clone, Copy)]
pub(super) struct Reading<'a> {
    pub(super) shared: &'a Shared,
    pub(super) query: &'a Query,
    connection: &'a Connection,
    /// Whether this is the first attempt. Later ones read everything in order, so that they don't fail for the same reason.
    is_first: bool,
}

/// How rows are read.
struct Ask {
    access: Access,
    direction: Direction,
    with_state: bool,
    /// How many rows are expected.
    expects: f64,
}

/// Rows of one window.
#[derive(Default)]
struct Found {
    bytes: Vec<u8>,
    offsets: Vec<u32>,
    topics: Vec<TopicId>,
    body_bytes: usize,
    /// Whether rows were left unread, because there were enough bytes.
    is_cut: bool,
    /// Whether rows are missing at the start, because the part was read from the end and had too many.
    lacks_start: bool,
    /// The state, if it was requested.
    state: Option<StateSeen>,
}

/// The rows found so far, in the order of the query.
#[derive(Default)]
struct Gathered {
    found: Vec<Found>,
    rows: usize,
    body_bytes: usize,
    state: Option<StateSeen>,
    /// Whether there is a row after those that fill the page with their bytes, which shows that more remain.
    is_full: bool,
    /// Whether rows are missing before the last ones that were found.
    lacks_rows: bool,
}

impl Gathered {
    fn add(&mut self, next: Found) {
        let had_enough = self.body_bytes >= PAGE_BYTES_MAX;
        self.is_full = self.is_full || next.is_cut || (had_enough && !next.offsets.is_empty());
        self.lacks_rows = self.lacks_rows || next.lacks_start;
        self.rows += next.offsets.len();
        self.body_bytes += next.body_bytes;
        self.state = self.state.or(next.state);
        self.found.push(next);
    }

    fn append(&mut self, behind: Self) {
        behind.found.into_iter().for_each(|found| self.add(found));
    }

    /// Whether nothing more has to be read: there are enough rows, or the page has to start over.
    fn is_enough(&self, limit: usize) -> bool {
        self.rows >= limit || self.is_full || self.lacks_rows
    }
}

impl Reading<'_> {
    /// The page; `None` when it has to start over, because the catalogue was out of date or a part that was read from its end was
    /// too large. A catalogue as new as the state that an earlier attempt saw is new enough: that was after the query began.
    async fn page(&self, seen: &mut Seen) -> Result<Option<Page>, AttemptError> {
        self.shared.catalog.load_if_other(self.connection).await?;
        let cursor = self.place_of_cursor().await?;
        let range = self.query.range(cursor);
        let answer = self.shared.catalog.ask(self.query, &range);
        let is_known_to_be_new =
            seen.is_some_and(|(sequence, drops)| answer.sequence >= sequence && answer.drops == drops);
        let found = self.find(&answer, &range, !is_known_to_be_new).await?;
        if found.lacks_rows {
            return Ok(None);
        }
        if is_known_to_be_new {
            return self.assemble(found.found, &answer).await;
        }
        let (sequence, drops) = match found.state {
            Some(state) => state,
            None => self.state().await?, // no window has any of the topics
        };
        if drops != answer.drops || sequence != answer.sequence {
            self.shared.catalog.refresh(self.connection).await?;
            *seen = Some((sequence, drops));
            if self.shared.catalog.has_changed(self.query, &range, &answer) {
                return Ok(None);
            }
        }
        self.assemble(found.found, &answer).await
    }

    async fn state(&self) -> Result<(i64, i64), AttemptError> {
        let statement = self.connection.prepared(schema::STATE_KEY, || schema::STATE.to_owned()).await;
        let row = self.connection.client.query_one(&statement.doing("read its state")?, &[]).await;
        let row = row.doing("read its state")?;
        Ok((get(&row, 0)?, get(&row, 1)?))
    }

    /// The key of the cursor. A message identified by its hash is searched for in all windows, the newest first.
    async fn place_of_cursor(&self) -> Result<Option<Key>, AttemptError> {
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
        Err(Error::not_found(format!("cursor {hash} is not archived")).into())
    }

    async fn find_hash(&self, window: &Window, hash: &MessageHash) -> Result<Option<i64>, AttemptError> {
        let key = (window.generation, Select::new(Access::FindHash, Direction::Forward, false));
        let statement = self.connection.prepared(key, || key.1.sql(&window.leaf())).await;
        let row =
            self.connection.client.query_opt(&statement.doing("look up a hash")?, &[&&hash.0[..]]).await;
        row.doing("look up a hash")?.map(|row| get(&row, 0)).transpose()
    }

    /// Rows of the windows in the direction of the query, until there are enough, and the state, if it is requested and there is
    /// a window to query.
    async fn find(
        &self,
        answer: &Answer,
        range: &KeyRange,
        with_state: bool,
    ) -> Result<Gathered, AttemptError> {
        let limit = self.query.limit + 1; // one more row shows whether more remain
        let mut gathered = Gathered::default();
        if let Some(topics) = self.gathered_topics(answer, range) {
            gathered.add(self.gather(&topics, range, limit, with_state).await?);
            return Ok(gathered);
        }
        let mut units = Units::new(self, answer, *range);
        if limit >= WIDE_ROWS {
            Box::pin(self.find_wide(&mut units, limit, with_state, &mut gathered)).await?;
        }
        if !gathered.is_enough(limit) {
            let with_state = with_state && gathered.state.is_none();
            self.ask_all(&mut units, answer, limit, with_state, &mut gathered).await?;
        }
        Ok(gathered)
    }

    /// Reads the first rows of a large page on two connections, each its half, if a second one is free: for so many rows, the
    /// server and this process have more to do than one processor each.
    async fn find_wide(
        &self,
        units: &mut Units<'_>,
        limit: usize,
        with_state: bool,
        gathered: &mut Gathered,
    ) -> Result<(), AttemptError> {
        let half = limit as f64 * WIDE_SHARE;
        let first = units.take(half);
        let second = units.take(half);
        if second.is_empty() {
            units.give_back(first);
            return Ok(());
        }
        let Some(lease) = self.shared.database.reader_if_free().await else {
            units.give_back(second);
            units.give_back(first);
            return Ok(());
        };
        let connection = lease.connection.clone();
        let other = Reading { connection: &connection, ..*self };
        let (mut ours, mut others) = (Gathered::default(), Gathered::default());
        let answer = units.answer;
        let (mut first, mut second) = (first.into_iter(), second.into_iter());
        let (mine, its) = tokio::join!(
            self.ask_all(&mut first, answer, limit, with_state, &mut ours),
            lease.drive("answer", other.ask_all(&mut second, answer, limit, false, &mut others)),
        );
        mine?;
        its?;
        *gathered = ours;
        if !gathered.is_enough(limit) {
            gathered.append(others);
        }
        Ok(())
    }

    /// Queries unit after unit until there are enough rows, and the first also for the state. Units that are likely needed are
    /// queried without waiting for earlier answers.
    async fn ask_all(
        &self,
        units: &mut (dyn Iterator<Item = Unit> + Send),
        answer: &Answer,
        limit: usize,
        mut with_state: bool,
        gathered: &mut Gathered,
    ) -> Result<(), AttemptError> {
        let mut under_way = FuturesOrdered::new();
        let mut expected = 0.0;
        loop {
            while under_way.len() < STATEMENTS_AHEAD {
                let is_likely_enough = gathered.rows as f64 + expected >= limit as f64 * LIKELY;
                if is_likely_enough && !under_way.is_empty() {
                    break;
                }
                let Some(unit) = units.next() else { break };
                expected += unit.expects;
                let with_state = std::mem::take(&mut with_state);
                let missing = limit - gathered.rows;
                under_way.push_back(async move {
                    Ok::<_, AttemptError>((self.ask(&unit, answer, missing, with_state).await?, unit.expects))
                });
            }
            let Some((next, expects)) = under_way.try_next().await? else { return Ok(()) };
            expected -= expects;
            gathered.add(next);
            if gathered.is_enough(limit) {
                return Ok(());
            }
        }
    }

    /// The topics' numbers, if querying all windows of the range at once is cheaper than one after the other: for few rows of few
    /// topics, far apart in time.
    fn gathered_topics(&self, answer: &Answer, range: &KeyRange) -> Option<Vec<i32>> {
        let Selection::Topics(set) = &answer.selection else { return None };
        let is_small = set.ids().len() <= GATHERED_TOPICS_MAX;
        if !is_small || !self.query.hashes.is_empty() || answer.windows.len() < 2 {
            return None;
        }
        let (mut windows, mut rows) = (0.0, 0.0);
        for unit in Units::new(self, answer, *range) {
            windows += 1.0;
            rows += unit.expects;
        }
        let topics = set.ids().len() as f64;
        let asked =
            if rows <= self.query.limit as f64 { windows } else { windows * self.query.limit as f64 / rows };
        let one_by_one = asked.max(1.0) * (STATEMENT + topics * SEEK_TOPIC)
            + rows.min(self.query.limit as f64) * MERGE_ROW;
        let at_once = STATEMENT
            + self.shared.catalog.window_count() as f64 * LOCK_WINDOW
            + answer.windows.len() as f64 * (OPEN_WINDOW + topics * SEEK_GATHERED)
            + rows * GATHERED_ROW;
        (at_once < one_by_one).then(|| set.ids().iter().map(|id| *id as i32).collect())
    }

    /// Rows of all windows of the range.
    async fn gather(
        &self,
        topics: &Vec<i32>,
        range: &KeyRange,
        limit: usize,
        with_state: bool,
    ) -> Result<Found, AttemptError> {
        let (from, until) = bounds(range);
        let limit = limit as i64;
        let parameters: [&(dyn ToSql + Sync); 6] = [&from.0, &from.1, &until.0, &until.1, &limit, topics];
        let everywhere = Window { generation: 0, first_ns: i64::MIN, end_ns: i64::MAX };
        let direction = self.query.direction;
        let ask = Ask { access: Access::Gather, direction, with_state, expects: 0.0 };
        self.read(&everywhere, ask, &parameters).await
    }

    /// Queries one unit.
    async fn ask(
        &self,
        unit: &Unit,
        answer: &Answer,
        limit: usize,
        with_state: bool,
    ) -> Result<Found, AttemptError> {
        let window = &unit.candidate.window;
        let (from, until) = bounds(&unit.range);
        let access = self.access(unit, &answer.selection);
        let is_from_end = self.is_read_from_end(unit, access);
        let direction = if is_from_end { Direction::Backward } else { self.query.direction };
        let rows_max = if is_from_end { self.query.limit * FROM_END_PAGES } else { limit };
        let limit = rows_max as i64;
        let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![&from.0, &from.1, &until.0, &until.1, &limit];
        let bits = Bits::of(&answer.selection);
        let topics;
        let hashes: Vec<&[u8]>;
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
            }
            _ => {}
        }
        let mut found = self
            .read(
                window,
                Ask { access, direction, with_state, expects: unit.expects.min(limit as f64) },
                &parameters,
            )
            .await?;
        if is_from_end {
            found.offsets.reverse();
            found.lacks_start = found.is_cut || found.offsets.len() >= rows_max;
            let density = unit.candidate.density * found.offsets.len() as f64 / unit.expects_here.max(1.0);
            let density = density.clamp(DENSITY_MIN, DENSITY_MAX);
            self.shared.catalog.note_part(window, density, found.lacks_start);
        }
        Ok(found)
    }

    /// Whether a part of a large page is read from its end and reversed afterwards. PostgreSQL fills its 8 KB pages from the
    /// end, so rows that arrived in the order of time have descending addresses; reading memory in ascending order takes a
    /// quarter less time. Only where the whole part is likely needed.
    fn is_read_from_end(&self, unit: &Unit, access: Access) -> bool {
        let is_forward = self.query.direction == Direction::Forward;
        let is_in_order_of_time = matches!(access, Access::All | Access::Scan);
        let is_part = unit.expects <= self.query.limit as f64 * FROM_END_SHARE;
        let is_large = self.query.limit >= WIDE_ROWS && unit.expects >= FROM_END_ROWS_MIN;
        self.is_first && is_forward && is_in_order_of_time && is_part && is_large && !unit.candidate.is_uneven
    }

    /// The cheaper access path to the rows.
    fn access(&self, unit: &Unit, selection: &Selection) -> Access {
        match (selection, self.query.hashes.is_empty()) {
            (Selection::All, true) => Access::All,
            (Selection::All, false) => Access::Hashes,
            (Selection::Topics(_), false) => Access::HashesOfTopics,
            (Selection::Topics(_), true) => unit.cheaper(self.query.limit + 1),
        }
    }

    async fn read(
        &self,
        window: &Window,
        ask: Ask,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Found, AttemptError> {
        let what = "read messages";
        let select = Select {
            with_state: ask.with_state,
            ..Select::new(ask.access, ask.direction, self.query.bodies)
        };
        let prepared =
            self.connection.prepared((window.generation, select), || select.sql(&window.leaf())).await;
        let statement = prepared.doing(what)?;
        let rows =
            self.connection.client.query_raw(&statement, parameters.iter().copied()).await.doing(what)?;
        let mut rows = pin!(rows);
        let mut collected = Collected { expects: ask.expects, ..Collected::default() };
        while let Some(row) = rows.next().await {
            let has_enough = collected.found.body_bytes >= PAGE_BYTES_MAX;
            collected.add(&row.doing(what)?, self.query.bodies)?;
            if has_enough {
                self.connection.abandon(); // what is still to come may be much
                collected.found.is_cut = true;
                break;
            }
        }
        Ok(collected.found)
    }

    /// Builds the page from the rows that were found, with the names of their topics; `None` when the windows have changed
    /// meanwhile.
    async fn assemble(&self, found: Vec<Found>, answer: &Answer) -> Result<Option<Page>, AttemptError> {
        let catalog = &self.shared.catalog;
        let (mut parts, mut rows) = (Vec::new(), Vec::new());
        for window in found.into_iter().filter(|window| !window.offsets.is_empty()) {
            let mut names = catalog.names(&window.topics);
            if names.is_none() {
                catalog.refresh(self.connection).await?; // a topic may be newer than the catalogue
                names = catalog.names(&window.topics);
            }
            let Some(names) = names else {
                // A topic that is still unknown was removed with its window, or by hand.
                let is_pruned = !catalog.is_at(answer.sequence, answer.drops);
                let lost = "postgres has messages whose topic is missing: run archive check";
                return if is_pruned { Ok(None) } else { Err(Error::corrupt(lost).into()) };
            };
            let part = u32::try_from(parts.len()).expect("a page has fewer parts than there are windows");
            rows.extend(window.offsets.into_iter().map(|offset| RowAt { part, offset }));
            parts.push(Part { bytes: window.bytes.into(), topics: names.into() });
        }
        Ok(Some(Page::assemble(parts, rows, self.query)))
    }
}

/// Reads new entries of the catalogue, if there are any.
async fn catch_up_if_behind(reading: &Reading<'_>) -> Result<(), AttemptError> {
    let (sequence, drops) = reading.state().await?;
    if !reading.shared.catalog.is_at(sequence, drops) {
        reading.shared.catalog.refresh(reading.connection).await?;
    }
    Ok(())
}

/// A timestamp and a hash.
type Bound<'a> = (i64, &'a [u8]);

/// The bounds of a range as statements expect them: both exclusive; an empty hash sorts before all others.
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

/// The wanted topics as bits: bit n of the bytes, as `get_bit` counts them, is for topic n.
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

/// Rows from the server, encoded as records.
#[derive(Default)]
struct Collected {
    found: Found,
    numbers: HashMap<TopicId, u32, RandomState>,
    /// How many rows are expected.
    expects: f64,
}

impl Collected {
    fn add(&mut self, row: &Row, bodies: bool) -> Result<(), AttemptError> {
        let hash: &[u8] = get(row, 1)?;
        let topic: i32 = get(row, 2)?;
        if topic == STATE_TOPIC {
            let drops = hash.try_into().map_err(|_| Error::corrupt("postgres' state is not understood"))?;
            self.found.state = Some((get(row, 0)?, i64::from_be_bytes(drops)));
            return Ok(());
        }
        let Ok(hash) = hash.try_into() else {
            return Err(Error::corrupt("postgres has a hash that isn't 32 bytes long").into());
        };
        let key = Key { timestamp: Timestamp(get(row, 0)?), message_hash: MessageHash(hash) };
        let body: &[u8] = if bodies { get(row, 3)? } else { &[] };
        let topic = topic as TopicId;
        let topics = &mut self.found.topics;
        let number = *self.numbers.entry(topic).or_insert_with(|| {
            topics.push(topic);
            topics.len() as u32 - 1
        });
        if self.found.offsets.len() == SAMPLE_ROWS {
            self.reserve();
        }
        let offset = u32::try_from(self.found.bytes.len()).expect("a page is bounded by PAGE_BYTES_MAX");
        self.found.offsets.push(offset);
        record::encode_unchecked(number, key, body, &mut self.found.bytes);
        self.found.body_bytes += body.len();
        Ok(())
    }

    /// Reserves memory for the expected rows, so that the buffer doesn't grow, and move, several times.
    fn reserve(&mut self) {
        let row_bytes = self.found.bytes.len() as f64 / self.found.offsets.len().max(1) as f64;
        let rows = self.expects - self.found.offsets.len() as f64;
        self.found.bytes.reserve((rows * LIKELY * row_bytes).clamp(0.0, RESERVED_BYTES_MAX) as usize);
    }
}
