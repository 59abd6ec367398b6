//! Answering a query in one snapshot: find the rows by an index, then fetch the bodies of those on the page.
//!
//! Rows of an index contain timestamp, hash, topic and id of a message, so that a skipped row costs no read of the message
//! itself.

use std::collections::{BinaryHeap, HashMap};

use foldhash::fast::RandomState;
use restante_core::{Cursor, Key, MessageHash, Timestamp};
use rusqlite::{Connection, Row, Rows, Transaction};

use super::{
    Shared,
    known::{RowId, Wanted, WantedTopics},
    schema,
};
use crate::{
    Direction, PAGE_BYTES_MAX, Page, Part, Query, RowAt, TopicName, Topics, query::KeyRange, record,
};

/// The cost of seeking a topic, in rows of a scan: about 2 microseconds and 0.15.
const SEEK_ROWS: u64 = 12;
/// The cost of a row of a merge, in rows of a scan.
const MERGE_ROWS: u64 = 2;
/// The part of a merge's cost that is spent on a scan before it, in case the range is short: 1 in this many.
const GLANCE: u64 = 8;
/// Up to this many messages that don't match are read and skipped, instead of seeking the next one that does.
const GAP_MAX: i64 = 8;

/// A query, with its topics resolved where that is possible without the database.
pub(super) struct Ask {
    query: Query,
    wanted: Option<Wanted>,
}

impl Ask {
    pub(super) fn new(shared: &Shared, query: &Query) -> Self {
        if shared.is_read_only {
            return Self { query: query.clone(), wanted: None }; // the snapshot shows which topics exist
        }
        let wanted = shared.known.read().wanted(query);
        let without_topics = Query {
            channel: None,
            topics: Topics::Any,
            start: query.start,
            end: query.end,
            hashes: query.hashes.clone(),
            cursor: query.cursor,
            direction: query.direction,
            limit: query.limit,
            bodies: query.bodies,
        };
        Self { query: without_topics, wanted: Some(wanted) }
    }
}

/// One page of the messages that match; `None` when the cursor's message doesn't exist.
pub(super) fn query(
    shared: &Shared,
    connection: &mut Connection,
    ask: Ask,
) -> rusqlite::Result<Option<Page>> {
    let Ask { query, wanted } = ask;
    let snapshot = connection.transaction()?;
    let wanted = match wanted {
        Some(wanted) => wanted,
        None => {
            learn_topics(shared, &snapshot)?;
            shared.known.read().wanted(&query)
        }
    };
    let view = View { shared, snapshot: &snapshot, direction: query.direction };
    let cursor = match query.cursor {
        None => None,
        Some(Cursor::At(key)) => Some(key),
        Some(Cursor::Message(hash)) => match view.place_of(&hash, &query)? {
            Some(key) => Some(key),
            None => return Ok(None),
        },
    };
    let range = query.range(cursor);
    let limit = query.limit + 1; // one more row shows whether more remain
    let found = if wanted.is_empty() {
        Vec::new()
    } else if !query.hashes.is_empty() {
        view.by_hashes(&range, &wanted, &query.hashes, limit)?
    } else {
        view.in_range(&range, &wanted, limit)?
    };
    view.page(found, &query).map(Some)
}

/// Loads the topics that another process has added.
fn learn_topics(shared: &Shared, snapshot: &Connection) -> rusqlite::Result<()> {
    let next: RowId = snapshot.prepare_cached(schema::NEXT_TOPIC)?.query_row([], |row| row.get(0))?;
    if shared.known.read().knows_until(next) {
        return Ok(());
    }
    shared.known.write().load_new(snapshot)
}

/// A key that is ordered in the direction of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RowPosition {
    timestamp: i64,
    hash: [u8; 32],
}

impl RowPosition {
    fn of(key: Key, direction: Direction) -> Self {
        match direction {
            Direction::Forward => Self { timestamp: key.timestamp.0, hash: key.message_hash.0 },
            // Inverting all bits inverts the order too.
            Direction::Backward => {
                Self { timestamp: !key.timestamp.0, hash: key.message_hash.0.map(|byte| !byte) }
            }
        }
    }

    fn key(self, direction: Direction) -> Key {
        match direction {
            Direction::Forward => {
                Key { timestamp: Timestamp(self.timestamp), message_hash: MessageHash(self.hash) }
            }
            Direction::Backward => Key {
                timestamp: Timestamp(!self.timestamp),
                message_hash: MessageHash(self.hash.map(|byte| !byte)),
            },
        }
    }
}

/// A message that was found, ordered by its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Found {
    position: RowPosition,
    topic: RowId,
    id: i64,
}

/// An end of a range, as statements expect it.
#[derive(Clone, Copy)]
struct End {
    timestamp: i64,
    hash: [u8; 33],
    hash_len: usize,
}

impl End {
    fn at(key: Key) -> Self {
        let mut hash = [0; 33];
        hash.first_chunk_mut::<32>()
            .expect("33 are more than 32")
            .copy_from_slice(key.message_hash.as_bytes());
        Self { timestamp: key.timestamp.0, hash, hash_len: 32 }
    }

    /// Before all messages with this timestamp: no hash is shorter than an empty one.
    fn before(timestamp: Timestamp) -> Self {
        Self { timestamp: timestamp.0, hash: [0; 33], hash_len: 0 }
    }

    /// After everything: no hash is as long as this one.
    fn of_all() -> Self {
        Self { timestamp: i64::MAX, hash: [0xff; 33], hash_len: 33 }
    }

    fn hash(&self) -> &[u8] {
        self.hash.get(..self.hash_len).unwrap_or_default()
    }
}

/// A range without its ends.
#[derive(Clone, Copy)]
struct Between {
    after: End,
    before: End,
}

impl Between {
    fn new(range: &KeyRange) -> Self {
        // A range includes its beginning only if there is no cursor; then it begins with a timestamp.
        let after = if range.from_excluded { End::at(range.from) } else { End::before(range.from.timestamp) };
        Self { after, before: range.until.map_or(End::of_all(), End::at) }
    }

    /// The rest of the range after a position, in the direction of the query.
    fn behind(self, position: RowPosition, direction: Direction) -> Self {
        let end = End::at(position.key(direction));
        match direction {
            Direction::Forward => Self { after: end, ..self },
            Direction::Backward => Self { before: end, ..self },
        }
    }

    /// The part of the range up to a position.
    fn up_to(self, position: RowPosition, direction: Direction) -> Self {
        let end = End::at(position.key(direction));
        match direction {
            Direction::Forward => Self { before: end, ..self },
            Direction::Backward => Self { after: end, ..self },
        }
    }
}

/// The outcome of a scan.
enum Scanned {
    /// Enough was found, or the range is over.
    Done,
    /// So many rows were read that another access path is better from here on.
    UpTo(RowPosition),
}

/// What a query reads.
struct View<'a> {
    shared: &'a Shared,
    snapshot: &'a Transaction<'a>,
    direction: Direction,
}

impl View<'_> {
    /// The key of the message with a hash; if that hash has several timestamps, one of them.
    fn place_of(&self, hash: &MessageHash, query: &Query) -> rusqlite::Result<Option<Key>> {
        // Usually it is where the query reads, which leaves few generations.
        let start = query.start.unwrap_or(Timestamp::MIN);
        let end = query.end.unwrap_or(Timestamp::MAX);
        let mut place = self.find_hash(hash, start, end)?;
        if place.is_none() {
            place = self.find_hash(hash, Timestamp::MIN, Timestamp::MAX)?;
        }
        Ok(place)
    }

    fn find_hash(
        &self,
        hash: &MessageHash,
        start: Timestamp,
        end: Timestamp,
    ) -> rusqlite::Result<Option<Key>> {
        let mut statement = self.snapshot.prepare_cached(schema::BY_HASH)?;
        let mut rows = statement.query((&hash.as_bytes()[..], start.0, end.0))?;
        while let Some(row) = rows.next()? {
            if let Some(found) = self.found(row)? {
                return Ok(Some(found.position.key(self.direction)));
            }
        }
        Ok(None)
    }

    /// The first messages of a range that have one of the hashes.
    fn by_hashes(
        &self,
        range: &KeyRange,
        wanted: &Wanted,
        hashes: &[MessageHash],
        limit: usize,
    ) -> rusqlite::Result<Vec<Found>> {
        let mut hashes = hashes.to_vec();
        hashes.sort_unstable();
        hashes.dedup();
        let start = range.from.timestamp;
        let end = range.until.map_or(Timestamp::MAX, |until| until.timestamp);
        let mut statement = self.snapshot.prepare_cached(schema::BY_HASH)?;
        let mut all = Vec::new();
        for hash in &hashes {
            let mut rows = statement.query((&hash.as_bytes()[..], start.0, end.0))?;
            while let Some(row) = rows.next()? {
                if let Some(found) = self.found(row)?
                    && wanted.contains(found.topic)
                    && range.contains(found.position.key(self.direction))
                {
                    all.push(found);
                }
            }
        }
        all.sort_unstable();
        all.truncate(limit);
        Ok(all)
    }

    /// The first messages of a range, by the cheaper access path.
    fn in_range(&self, range: &KeyRange, wanted: &Wanted, limit: usize) -> rusqlite::Result<Vec<Found>> {
        let between = Between::new(range);
        let mut found = Vec::new();
        let topics = match wanted {
            Wanted::All => {
                self.scan(between, wanted, limit, u64::MAX, &mut found)?;
                return Ok(found);
            }
            Wanted::Topics(topics) => topics,
        };
        let rows_max = rows_to_scan(topics, limit);
        match self.scan(between, wanted, limit, rows_max, &mut found)? {
            Scanned::Done => {}
            Scanned::UpTo(place) => {
                let rest = between.behind(place, self.direction);
                found.append(&mut self.merge(rest, topics, limit - found.len())?);
            }
        }
        Ok(found)
    }

    /// Walks a range in the direction of the query and collects wanted rows.
    fn scan(
        &self,
        between: Between,
        wanted: &Wanted,
        limit: usize,
        rows_max: u64,
        found: &mut Vec<Found>,
    ) -> rusqlite::Result<Scanned> {
        let sql = match self.direction {
            Direction::Forward => schema::SCAN_FORWARD,
            Direction::Backward => schema::SCAN_BACKWARD,
        };
        let mut statement = self.snapshot.prepare_cached(sql)?;
        let Between { after, before } = between;
        let mut rows = statement.query((after.timestamp, after.hash(), before.timestamp, before.hash()))?;
        let mut looked_at = 0;
        while let Some(row) = rows.next()? {
            looked_at += 1;
            let is_last_look = looked_at >= rows_max;
            if !is_last_look && !wanted.contains(topic_of(row)?) {
                continue;
            }
            let Some(this) = self.found(row)? else { continue };
            if wanted.contains(this.topic) {
                found.push(this);
                if found.len() >= limit {
                    return Ok(Scanned::Done);
                }
            }
            if is_last_look {
                return Ok(Scanned::UpTo(this.position));
            }
        }
        Ok(Scanned::Done)
    }

    /// The first messages of the topics in a range. The messages found for one topic bound the search in the next.
    fn merge(&self, between: Between, topics: &WantedTopics, limit: usize) -> rusqlite::Result<Vec<Found>> {
        let sql = match self.direction {
            Direction::Forward => schema::TOPIC_FORWARD,
            Direction::Backward => schema::TOPIC_BACKWARD,
        };
        let mut statement = self.snapshot.prepare_cached(sql)?;
        let mut first: BinaryHeap<Found> = BinaryHeap::new();
        let mut between = between;
        for topic in &topics.by_size {
            let Between { after, before } = between;
            let ends = (after.timestamp, after.hash(), before.timestamp, before.hash(), topic);
            let mut rows = statement.query(ends)?;
            while let Some(this) = self.next_found(&mut rows)? {
                if first.len() >= limit {
                    if first.peek().is_some_and(|last| this >= *last) {
                        break; // and so are all later ones
                    }
                    first.pop();
                }
                first.push(this);
            }
            drop(rows);
            if first.len() >= limit
                && let Some(last) = first.peek()
            {
                between = between.up_to(last.position, self.direction);
            }
        }
        Ok(first.into_sorted_vec())
    }

    /// The next row that is sound.
    fn next_found(&self, rows: &mut Rows<'_>) -> rusqlite::Result<Option<Found>> {
        while let Some(row) = rows.next()? {
            if let Some(found) = self.found(row)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The message of a row (timestamp, hash, topic, id); one that can't be a message is counted as damaged.
    fn found(&self, row: &Row<'_>) -> rusqlite::Result<Option<Found>> {
        let id = row.get(3)?;
        let hash = row.get_ref(1)?.as_blob().ok().and_then(|hash| <[u8; 32]>::try_from(hash).ok());
        let (Some(hash), Ok(timestamp)) = (hash, row.get_ref(0)?.as_i64()) else {
            self.shared.count_damaged(id);
            return Ok(None);
        };
        let key = Key { timestamp: Timestamp(timestamp), message_hash: MessageHash(hash) };
        Ok(Some(Found { position: RowPosition::of(key, self.direction), topic: topic_of(row)?, id }))
    }

    /// Truncates the rows that were found to one page and fetches it.
    fn page(&self, mut found: Vec<Found>, query: &Query) -> rusqlite::Result<Page> {
        let in_all = found.len();
        found.truncate(query.limit);
        let mut records = Records::new(found.len());
        if query.bodies {
            let fits = self.fetch(&found, &mut records)?;
            if !fits {
                records = Records::new(found.len());
                let len = self.fetch_in_order(&found, &mut records)?;
                found.truncate(len);
            }
        } else {
            for (place, this) in found.iter().enumerate() {
                self.add(&mut records, place, this, &[])?;
            }
        }
        let has_more = found.len() < in_all;
        let last = found.last().filter(|_| has_more);
        let next = last.map(|last| Cursor::At(last.position.key(self.direction)));
        Ok(records.into_page(self.direction, next, query.bodies))
    }

    /// Fetches bodies in the order of the file. False when a page has no space for them all.
    fn fetch(&self, found: &[Found], records: &mut Records) -> rusqlite::Result<bool> {
        let mut by_id: Vec<(i64, usize)> =
            found.iter().zip(0..).map(|(this, place)| (this.id, place)).collect();
        by_id.sort_unstable();
        let mut statement = self.snapshot.prepare_cached(schema::BODIES)?;
        for run in by_id.chunk_by(|(one, _), (other, _)| other - one <= GAP_MAX) {
            let (Some((first, _)), Some((last, _))) = (run.first(), run.last()) else { continue };
            let mut rows = statement.query((first, last))?;
            let mut wanted = run.iter().peekable();
            while let Some(row) = rows.next()? {
                let id: i64 = row.get(0)?;
                while wanted.next_if(|(other, _)| *other < id).is_some() {} // an index has a row that doesn't exist
                let Some((_, place)) = wanted.next_if(|(other, _)| *other == id) else { continue };
                let (Some(this), Ok(body)) = (found.get(*place), row.get_ref(1)?.as_blob()) else { continue };
                self.add(records, *place, this, body)?;
                if records.body_bytes >= PAGE_BYTES_MAX {
                    return Ok(false);
                }
            }
        }
        for (place, this) in found.iter().enumerate() {
            if !records.has(place) {
                self.shared.count_damaged(this.id);
            }
        }
        Ok(true)
    }

    /// Fetches bodies in the order of the query until the page is full, and returns the number of its rows.
    fn fetch_in_order(&self, found: &[Found], records: &mut Records) -> rusqlite::Result<usize> {
        let mut statement = self.snapshot.prepare_cached(schema::BODIES)?;
        for (place, this) in found.iter().enumerate() {
            if records.body_bytes >= PAGE_BYTES_MAX {
                return Ok(place);
            }
            let mut rows = statement.query((this.id, this.id))?;
            let row = rows.next()?;
            let body = row.map(|row| row.get_ref(1)).transpose()?.and_then(|value| value.as_blob().ok());
            match body {
                Some(body) => self.add(records, place, this, body)?,
                None => self.shared.count_damaged(this.id),
            }
        }
        Ok(found.len())
    }

    /// Adds a record, unless the name of its topic is unknown.
    fn add(&self, records: &mut Records, place: usize, this: &Found, body: &[u8]) -> rusqlite::Result<()> {
        let number = match records.numbers.get(&this.topic) {
            Some(number) => *number,
            None => match self.topic_name(this.topic)? {
                Some(name) => records.add_name(this.topic, name),
                None => {
                    self.shared.count_damaged(this.id);
                    return Ok(());
                }
            },
        };
        records.add(place, number, this.position.key(self.direction), body);
        Ok(())
    }

    /// A topic's name. One that was removed a moment ago is still in the snapshot.
    fn topic_name(&self, topic: RowId) -> rusqlite::Result<Option<TopicName>> {
        if let Some(name) = self.shared.known.read().name(topic) {
            return Ok(Some(name.clone()));
        }
        let mut statement = self.snapshot.prepare_cached(schema::TOPIC_NAME)?;
        let mut rows = statement.query([topic])?;
        let Some(row) = rows.next()? else { return Ok(None) };
        let (Ok(channel), Ok(topic)) = (row.get_ref(0)?.as_str(), row.get_ref(1)?.as_str()) else {
            return Ok(None);
        };
        Ok(Some(TopicName { channel: channel.into(), topic: topic.into() }))
    }
}

/// The topic of a row (timestamp, hash, topic, id); 0, which no topic has, when it is invalid.
fn topic_of(row: &Row<'_>) -> rusqlite::Result<RowId> {
    let topic = row.get_ref(2)?.as_i64().ok();
    Ok(topic.and_then(|topic| RowId::try_from(topic).ok()).unwrap_or(0))
}

/// How many rows of the range to walk before each wanted topic is sought.
///
/// A page of L rows costs about `L R / n` rows by scan, where n of R rows are of k wanted topics, and `12 k` by merge. The
/// distribution of a topic's messages over time is unknown, so a scan that is estimated to be cheaper and finds little ends after
/// twice the cost of the merge; and where the merge is estimated to be cheaper, an eighth of its cost is spent on a trial scan of
/// the range, which may be short. So for any content of the range, a page costs at most three times the cheaper way.
fn rows_to_scan(topics: &WantedTopics, limit: usize) -> u64 {
    let limit = limit as u64;
    let merge = topics.by_size.len() as u64 * SEEK_ROWS + topics.messages.min(limit) * MERGE_ROWS;
    let scan = limit.saturating_mul(topics.messages_in_all) / topics.messages.max(1);
    if scan <= merge { merge * 2 } else { (merge / GLANCE).max(1) }
}

/// The records of a page being built, in the order in which they were fetched.
struct Records {
    bytes: Vec<u8>,
    body_bytes: usize,
    /// By the index of the row on the page.
    offsets: Vec<Option<u32>>,
    names: Vec<TopicName>,
    numbers: HashMap<RowId, u32, RandomState>,
}

impl Records {
    fn new(rows: usize) -> Self {
        Self {
            bytes: Vec::new(),
            body_bytes: 0,
            offsets: vec![None; rows],
            names: Vec::new(),
            numbers: HashMap::default(),
        }
    }

    fn has(&self, place: usize) -> bool {
        matches!(self.offsets.get(place), Some(Some(_)))
    }

    fn add_name(&mut self, topic: RowId, name: TopicName) -> u32 {
        let number = u32::try_from(self.names.len()).expect("a page has fewer topics than rows");
        self.names.push(name);
        self.numbers.insert(topic, number);
        number
    }

    fn add(&mut self, place: usize, topic: u32, key: Key, body: &[u8]) {
        let offset = u32::try_from(self.bytes.len()).expect("a page is bounded by PAGE_BYTES_MAX");
        record::encode_message(0, topic, key, body, &mut self.bytes);
        self.body_bytes += body.len();
        if let Some(slot) = self.offsets.get_mut(place) {
            *slot = Some(offset);
        }
    }

    fn into_page(self, direction: Direction, next: Option<Cursor>, bodies: bool) -> Page {
        let rows = self.offsets.into_iter().flatten().map(|offset| RowAt { part: 0, offset });
        let mut rows: Vec<RowAt> = rows.collect();
        if direction == Direction::Backward {
            rows.reverse();
        }
        let part = Part { bytes: self.bytes.into(), topics: self.names.into() };
        Page { parts: vec![part], rows, next, bodies }
    }
}
