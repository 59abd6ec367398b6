//! A segment that accepts messages, or waits to be sealed: its log on disk, its index in memory.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use foldhash::fast::RandomState;
use hashbrown::HashTable;
use parking_lot::{Mutex, RwLock};
use restante_core::{Key, MessageHash};

use super::{
    merge::{Next, merge},
    order::Order,
    schema::{IndexInput, IndexRow, LOG_HEADER_BYTES, SegmentId, encode_index},
    segment::{Find, Found, Span, access},
};
use crate::{
    Direction, Part, TopicName,
    plan::Access,
    topics::{Selection, TopicId, TopicSet},
};

/// See the module.
pub(super) struct Active {
    pub(super) id: SegmentId,
    log: Bytes,
    index: RwLock<ActiveIndex>,
    /// The names of the topics, shared with pages; rebuilt after topics were added.
    names: Mutex<Arc<[TopicName]>>,
    last_added: Mutex<Instant>,
    /// The log's length with the space that is reserved after its records.
    file_len: AtomicU64,
}

#[derive(Default)]
struct ActiveIndex {
    rows: Vec<IndexRow>,
    /// The rows before this one are durable and visible.
    visible_rows: usize,
    by_time: Order,
    by_topic: Vec<Order>,
    by_hash: HashTable<HashedRow>,
    hasher: RandomState,
    topics: Vec<(TopicId, TopicName)>,
    log_len: u64,
    body_bytes: u64,
}

/// A row and the upper half of its hash's hash, so that a growing table need not read the rows.
#[derive(Clone, Copy)]
struct HashedRow {
    hash: u32,
    row: u32,
}

/// What a commit adds to a segment.
#[derive(Default)]
pub(super) struct Addition {
    /// New topics in the order of their numbers in the segment, which follow those that it already has.
    pub(super) topics: Vec<(TopicId, TopicName)>,
    pub(super) rows: Vec<IndexRow>,
    /// The log's length after the commit.
    pub(super) log_len: u64,
    /// Bytes of the bodies.
    pub(super) body_bytes: u64,
}

/// The segment's size once what was staged is published.
pub(super) struct Staged {
    rows: usize,
    log_len: u64,
    body_bytes: u64,
}

impl Active {
    /// An empty segment over a mapped log, which may reach beyond the file's end.
    pub(super) fn new(id: SegmentId, log: Bytes) -> Self {
        let index = ActiveIndex { log_len: LOG_HEADER_BYTES, ..ActiveIndex::default() };
        Self {
            id,
            log,
            index: RwLock::new(index),
            names: Mutex::new(Arc::new([])),
            last_added: Mutex::new(Instant::now()),
            file_len: AtomicU64::new(0),
        }
    }

    /// Adds rows whose records have been written. They are known from now on, and visible once they are published.
    pub(super) fn stage(&self, addition: Addition) -> Staged {
        let mut index = self.index.write();
        for topic in addition.topics {
            index.topics.push(topic);
            index.by_topic.push(Order::default());
        }
        index.rows.reserve(addition.rows.len());
        for row in addition.rows {
            index.insert(row);
        }
        *self.last_added.lock() = Instant::now();
        Staged { rows: index.rows.len(), log_len: addition.log_len, body_bytes: addition.body_bytes }
    }

    /// Makes staged rows visible, whose records are durable now. Rows are published in the order in which they were staged.
    pub(super) fn publish(&self, staged: Staged) {
        let mut index = self.index.write();
        index.visible_rows = staged.rows;
        index.log_len = staged.log_len;
        index.body_bytes += staged.body_bytes;
    }

    /// How long ago something was last added.
    pub(super) fn quiet_for(&self) -> Duration {
        self.last_added.lock().elapsed()
    }

    pub(super) fn rows(&self) -> u64 {
        self.index.read().visible_rows as u64
    }

    pub(super) fn log_len(&self) -> u64 {
        self.index.read().log_len
    }

    /// The log's bytes on disk.
    pub(super) fn disk_bytes(&self) -> u64 {
        self.log_len().max(self.file_len.load(Ordering::Relaxed))
    }

    pub(super) fn set_file_len(&self, len: u64) {
        self.file_len.store(len, Ordering::Relaxed);
    }

    pub(super) fn body_bytes(&self) -> u64 {
        self.index.read().body_bytes
    }

    pub(super) fn span(&self) -> Option<Span> {
        let index = self.index.read();
        let timestamp = |row: u32| index.key(row).timestamp;
        let oldest = index.by_time.iter().find(|row| index.is_visible(*row)).map(timestamp)?;
        let newest = index.by_time.before(|_| true).find(|row| index.is_visible(*row)).map(timestamp)?;
        Some(Span { oldest, newest })
    }

    /// The span of all rows, visible or not.
    pub(super) fn known_span(&self) -> Option<Span> {
        let index = self.index.read();
        let oldest = index.by_time.iter().next().map(|row| index.key(row).timestamp)?;
        let newest = index.by_time.before(|_| true).next().map(|row| index.key(row).timestamp)?;
        Some(Span { oldest, newest })
    }

    /// The topics with their message counts.
    pub(super) fn topic_counts(&self) -> Vec<(TopicId, u64)> {
        let index = self.index.read();
        index.topics.iter().zip(&index.by_topic).map(|((id, _), rows)| (*id, rows.len() as u64)).collect()
    }

    pub(super) fn topics(&self) -> Vec<(TopicId, TopicName)> {
        self.index.read().topics.clone()
    }

    /// Whether a row with this key is known, visible or not.
    pub(super) fn contains(&self, key: Key) -> bool {
        let index = self.index.read();
        index.with_hash(&key.message_hash).any(|(_, row)| row.key == key)
    }

    pub(super) fn find_hash(&self, hash: &MessageHash) -> Vec<u32> {
        let index = self.index.read();
        let visible = index.with_hash(hash).filter(|(number, _)| index.is_visible(*number));
        visible.map(|(_, row)| row.offset).collect()
    }

    pub(super) fn part(&self) -> Part {
        let index = self.index.read();
        self.part_of(&index)
    }

    fn part_of(&self, index: &ActiveIndex) -> Part {
        let mut names = self.names.lock();
        if names.len() != index.topics.len() {
            *names = index.topics.iter().map(|(_, name)| name.clone()).collect();
        }
        Part { bytes: self.log.clone(), topics: names.clone() }
    }

    pub(super) fn find(&self, find: &Find<'_>) -> Found {
        let index = self.index.read();
        let mut offsets = Vec::new();
        match find.selection {
            Selection::All => index.scan(find, |_| true, &mut offsets),
            Selection::Topics(set) => index.find_topics(find, set, &mut offsets),
        }
        Found { part: self.part_of(&index), offsets }
    }

    /// The bytes of the index file that the segment gets when it is sealed.
    pub(super) fn encode_index(&self) -> Vec<u8> {
        let index = self.index.read();
        let rows: Vec<IndexRow> =
            index.by_time.iter().filter_map(|row| index.visible(row).copied()).collect();
        let topics: Vec<TopicName> = index.topics.iter().map(|(_, name)| name.clone()).collect();
        encode_index(&IndexInput {
            rows: &rows,
            topics: &topics,
            log_len: index.log_len,
            body_bytes: index.body_bytes,
            salt: self.id.salt,
        })
    }

    /// The mapped log, as long as the mapping exists.
    pub(super) fn log(&self) -> &Bytes {
        &self.log
    }
}

impl ActiveIndex {
    fn insert(&mut self, row: IndexRow) {
        let number = u32::try_from(self.rows.len()).expect("a segment has fewer than 2^32 rows");
        self.rows.push(row);
        let rows = &self.rows;
        let is_less = |other: u32| rows.get(other as usize).is_some_and(|other| other.key < row.key);
        self.by_time.insert(number, is_less);
        if let Some(order) = self.by_topic.get_mut(row.topic as usize) {
            order.insert(number, is_less);
        }
        let hash = short_hash(&self.hasher, &row.key.message_hash);
        self.by_hash.insert_unique(spread(hash), HashedRow { hash, row: number }, |other| spread(other.hash));
    }

    fn key(&self, row: u32) -> Key {
        let row = self.rows.get(row as usize);
        row.map_or(Key { timestamp: Default::default(), message_hash: MessageHash::MIN }, |row| row.key)
    }

    /// The rows with a hash, and their numbers.
    fn with_hash<'a>(&'a self, wanted: &'a MessageHash) -> impl Iterator<Item = (u32, &'a IndexRow)> {
        let hash = short_hash(&self.hasher, wanted);
        let candidates = self.by_hash.iter_hash(spread(hash)).filter(move |candidate| candidate.hash == hash);
        let rows =
            candidates.filter_map(|candidate| Some((candidate.row, self.rows.get(candidate.row as usize)?)));
        rows.filter(move |(_, row)| row.key.message_hash == *wanted)
    }

    fn is_visible(&self, row: u32) -> bool {
        (row as usize) < self.visible_rows
    }

    /// The row with that number, if it is visible.
    fn visible(&self, row: u32) -> Option<&IndexRow> {
        self.rows.get(row as usize).filter(|_| self.is_visible(row))
    }

    fn find_topics(&self, find: &Find<'_>, set: &TopicSet, offsets: &mut Vec<u32>) {
        let is_wanted: Vec<bool> = self.topics.iter().map(|(id, _)| set.contains(*id)).collect();
        let wanted =
            || self.by_topic.iter().zip(&is_wanted).filter(|(_, wanted)| **wanted).map(|(order, _)| order);
        let (rows, topics) = wanted().fold((0, 0), |(rows, topics), order| (rows + order.len(), topics + 1));
        if rows == 0 {
            return;
        }
        match access(find, self.rows.len(), self.rows.len(), rows, topics) {
            Access::Scan => self.scan(find, |topic| is_wanted.get(topic as usize) == Some(&true), offsets),
            Access::Merge => self.merge(find, wanted(), offsets),
        }
    }

    /// Whether a row is before the range, and whether it is before the range's end: the criteria that [`Order`] searches by.
    fn walk<'a>(&'a self, order: &'a Order, find: &Find<'a>) -> Box<dyn Iterator<Item = &'a IndexRow> + 'a> {
        let range = find.range;
        match find.direction {
            Direction::Forward => {
                let rows = order.from(move |row| range.is_before(self.key(row)));
                let rows = rows.filter_map(|row| self.visible(row));
                Box::new(rows.take_while(move |row| !range.is_behind(row.key)))
            }
            Direction::Backward => {
                let rows = order.before(move |row| !range.is_behind(self.key(row)));
                let rows = rows.filter_map(|row| self.visible(row));
                Box::new(rows.take_while(move |row| !range.is_before(row.key)))
            }
        }
    }

    fn scan(&self, find: &Find<'_>, is_wanted: impl Fn(u32) -> bool, offsets: &mut Vec<u32>) {
        let rows = self.walk(&self.by_time, find).filter(|row| is_wanted(row.topic));
        offsets.extend(rows.take(find.limit).map(|row| row.offset));
    }

    fn merge<'a>(&'a self, find: &Find<'a>, wanted: impl Iterator<Item = &'a Order>, offsets: &mut Vec<u32>) {
        let lists = wanted
            .map(|order| self.walk(order, find).map(|row| (in_direction(row.key, find.direction), row)));
        merge(lists.collect(), |row| {
            offsets.push(row.offset);
            if offsets.len() < find.limit { Next::More } else { Next::Enough }
        });
    }
}

/// A key that ascends in the direction of a query.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Directed<K: Ord> {
    Forward(K),
    Backward(std::cmp::Reverse<K>),
}

pub(super) fn in_direction<K: Ord>(key: K, direction: Direction) -> Directed<K> {
    match direction {
        Direction::Forward => Directed::Forward(key),
        Direction::Backward => Directed::Backward(std::cmp::Reverse(key)),
    }
}

/// Eight bytes of a message hash are enough to distinguish rows, and too many to make them equal on purpose.
fn short_hash(hasher: &RandomState, hash: &MessageHash) -> u32 {
    use std::hash::BuildHasher;
    let first = hash.0.first_chunk::<8>().map_or(0, |first| u64::from_le_bytes(*first));
    (hasher.hash_one(first) >> 32) as u32
}

/// The hash table takes buckets from the lower bits and tags from the upper ones.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
