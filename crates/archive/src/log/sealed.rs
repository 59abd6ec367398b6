//! A segment that is complete: its log and its index, both mapped, neither of which ever changes.

use std::{
    collections::BTreeSet,
    ops::Range,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use restante_core::{Key, MessageHash, Timestamp};
use tracing::error;

use super::{
    active::in_direction,
    merge::{Next, merge},
    schema::{Index, SegmentId, TopicColumn},
    segment::{Budget, Find, Found, Span, access},
};
use crate::{
    Direction, Error, Part, TopicName,
    plan::Access,
    record::{MessageRecord, Record},
    topics::{Dictionary, Selection, TopicId, TopicSet},
};

/// The most damaged rows of a segment that are remembered, so that each is counted once.
const DAMAGED_ROWS_MAX: usize = 10_000;

/// See the module.
pub(super) struct Sealed {
    pub(super) id: SegmentId,
    pub(super) span: Option<Span>,
    pub(super) index: Index,
    log: Bytes,
    names: Arc<[TopicName]>,
    /// The segment's topics: number in the archive, number in the segment; sorted.
    topics: Vec<(TopicId, u32)>,
    /// The same topics by number in the archive.
    present: TopicSet,
    /// A bit for each row whose checksum was verified since the segment was opened. Every record is verified before it is served
    /// for the first time; afterwards the page cache is trusted like the rest of memory.
    verified: Vec<AtomicU64>,
    columns: OnceLock<bool>,
    damaged: Counter,
    /// Rows that were found damaged, so that each is counted and logged once.
    damaged_rows: Mutex<BTreeSet<usize>>,
    /// How often postings were merged, for tests.
    #[cfg(test)]
    merges: AtomicU64,
}

impl Sealed {
    /// Opens a segment from its mapped files and counts its topics in `dictionary`.
    pub(super) fn open(
        id: SegmentId,
        log: Bytes,
        index: Bytes,
        dictionary: &mut Dictionary,
        damaged: Counter,
    ) -> Result<Self, &'static str> {
        let (index, names) = Index::open(index)?;
        if log.len() as u64 != index.log_len {
            return Err("index is of another log: the lengths differ");
        }
        if index.salt != id.salt {
            return Err("index is of another log: the salts differ");
        }
        let timestamps = index.timestamps();
        let span = match (timestamps.first(), timestamps.last()) {
            (Some(oldest), Some(newest)) => {
                Some(Span { oldest: Timestamp(*oldest), newest: Timestamp(*newest) })
            }
            _ => None,
        };
        let mut topics = Vec::with_capacity(names.len());
        let mut present = TopicSet::default();
        let mut shared_names = Vec::with_capacity(names.len());
        for (local, name) in (0..).zip(names.iter()) {
            let (id, name) = dictionary.count(&name.channel, &name.topic, index.topic_rows(local) as u64);
            topics.push((id, local));
            present.add(id);
            shared_names.push(name);
        }
        topics.sort_unstable();
        let verified = std::iter::repeat_with(AtomicU64::default).take(index.rows.div_ceil(64)).collect();
        let names = shared_names.into();
        Ok(Self {
            id,
            span,
            index,
            log,
            names,
            topics,
            present,
            verified,
            columns: OnceLock::new(),
            damaged,
            damaged_rows: Mutex::default(),
            #[cfg(test)]
            merges: AtomicU64::new(0),
        })
    }

    /// Marks every record as verified, because this process has verified or written it.
    pub(super) fn trust_all(&self) {
        for word in &self.verified {
            word.store(u64::MAX, Ordering::Relaxed);
        }
    }

    pub(super) fn part(&self) -> Part {
        Part { bytes: self.log.clone(), topics: self.names.clone() }
    }

    pub(super) fn log(&self) -> &Bytes {
        &self.log
    }

    /// The topics with their message counts.
    pub(super) fn topic_counts(&self) -> Vec<(TopicId, u64)> {
        self.topics.iter().map(|(id, local)| (*id, self.index.topic_rows(*local) as u64)).collect()
    }

    pub(super) fn find(&self, find: &Find<'_>) -> Result<Found, Error> {
        self.check_columns(find.budget)?;
        let mut offsets = Vec::new();
        match find.selection {
            Selection::All => {
                let rows = self.rows_in(find);
                self.scan(find, rows, self.index.offsets(), |_| true, &mut offsets);
            }
            Selection::Topics(set) => self.find_topics(find, set, &mut offsets),
        }
        Ok(Found { part: self.part(), offsets })
    }

    fn find_topics(&self, find: &Find<'_>, set: &TopicSet, offsets: &mut Vec<u32>) {
        let wanted = self.wanted(set);
        if wanted.is_empty() {
            return;
        }
        let wanted_rows: usize = wanted.iter().map(|local| self.index.topic_rows(*local)).sum();
        let rows = self.rows_in(find);
        match access(find, rows.len(), self.index.rows, wanted_rows, wanted.len()) {
            Access::Scan => self.scan_topics(find, rows, &wanted, offsets),
            Access::Merge => self.merge(find, rows, &wanted, offsets),
        }
    }

    pub(super) fn find_hash(&self, hash: &MessageHash, budget: &Budget) -> Result<Vec<u32>, Error> {
        self.check_columns(budget)?;
        let mut offsets = Vec::new();
        for row in self.index.candidates(hash) {
            let is_it = self.record(row).is_some_and(|record| record.hash == &hash.0);
            if is_it && self.is_sound(row, budget) {
                offsets.extend(self.index.offsets().get(row));
            }
        }
        Ok(offsets)
    }

    /// Whether a row with this key exists; a damaged one no longer counts.
    pub(super) fn contains(&self, key: Key) -> Result<bool, Error> {
        let budget = Budget::unlimited();
        self.check_columns(&budget)?;
        let is_it = |row: usize| self.key(row) == Some(key) && self.is_sound(row, &budget);
        Ok(self.index.candidates(&key.message_hash).any(is_it))
    }

    /// Verifies the index's columns when the segment is first used.
    fn check_columns(&self, budget: &Budget) -> Result<(), Error> {
        if self.columns.get().is_none() && !budget.spend(self.index.bytes().len()) {
            return Ok(()); // the answer is discarded
        }
        if self.columns_are_sound() {
            return Ok(());
        }
        let what = format!("index {} is damaged", self.id.index_name());
        Err(Error::corrupt(what))
    }

    /// Verifies the index's columns, once.
    pub(super) fn columns_are_sound(&self) -> bool {
        *self.columns.get_or_init(|| self.index.columns_are_sound())
    }

    /// Whether the index was verified, and is damaged.
    pub(super) fn has_damaged_index(&self) -> bool {
        self.columns.get() == Some(&false)
    }

    /// Whether the index has not been verified yet.
    pub(super) fn is_unverified(&self) -> bool {
        self.columns.get().is_none()
    }

    /// Whether the records of the first and the last row have the timestamps that the index has.
    pub(super) fn has_sound_span(&self) -> bool {
        let mut rows = self.index.offsets().iter().zip(self.index.timestamps());
        let (first, last) = (rows.next(), rows.next_back());
        first.into_iter().chain(last).all(|(offset, timestamp)| self.has_record(*offset, *timestamp))
    }

    /// How many rows can be served because their records are sound.
    pub(super) fn sound_rows(&self) -> usize {
        let offsets = self.index.offsets().iter().zip(self.index.timestamps());
        offsets.filter(|(offset, timestamp)| self.has_record(**offset, **timestamp)).count()
    }

    fn has_record(&self, offset: u32, timestamp: i64) -> bool {
        let record = Record::read(&self.log, offset as usize);
        let record = record.filter(|record| record.is_sound(self.id.seed()));
        let message = record.and_then(|record| record.message());
        message.is_some_and(|message| message.timestamp.0 == timestamp)
    }

    /// The numbers of the rows in the range.
    fn rows_in(&self, find: &Find<'_>) -> Range<usize> {
        let range = find.range;
        let first = self.first_row(range.from.timestamp, |key| range.is_before(key));
        let end =
            range.until.map_or(self.index.rows, |until| self.first_row(until.timestamp, |key| key < until));
        first..end.max(first)
    }

    /// The first row for which `is_before` is false. For keys with timestamps other than `timestamp` the timestamp decides, so
    /// that hashes are read only when needed.
    fn first_row(&self, timestamp: Timestamp, is_before: impl Fn(Key) -> bool) -> usize {
        let timestamps = self.index.timestamps();
        let mut low = timestamps.partition_point(|other| *other < timestamp.0);
        let mut high = timestamps.partition_point(|other| *other <= timestamp.0);
        while low < high {
            let middle = low.midpoint(high);
            if self.key(middle).is_some_and(&is_before) { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// The wanted topics that occur here, by their numbers in the segment.
    fn wanted(&self, set: &TopicSet) -> Vec<u32> {
        let is_short_list = set.ids().len() * 8 < self.topics.len();
        if !is_short_list {
            return self.topics.iter().filter(|(id, _)| set.contains(*id)).map(|(_, local)| *local).collect();
        }
        let present = set.ids().iter().filter(|id| self.present.contains(**id));
        let place = |id: &TopicId| self.topics.binary_search_by_key(id, |(other, _)| *other).ok();
        present.filter_map(place).filter_map(|at| self.topics.get(at)).map(|(_, local)| *local).collect()
    }

    fn scan_topics(&self, find: &Find<'_>, rows: Range<usize>, wanted: &[u32], offsets: &mut Vec<u32>) {
        let mut is_wanted = vec![false; self.topics.len()];
        for local in wanted {
            if let Some(flag) = is_wanted.get_mut(*local as usize) {
                *flag = true;
            }
        }
        let is_wanted = |topic: usize| is_wanted.get(topic) == Some(&true);
        match self.index.topics() {
            TopicColumn::Narrow(topics) => {
                self.scan(find, rows, topics, |topic| is_wanted(usize::from(*topic)), offsets);
            }
            TopicColumn::Wide(topics) => {
                self.scan(find, rows, topics, |topic| is_wanted(*topic as usize), offsets)
            }
        }
    }

    /// Walks a column over a range of rows and adds those that are wanted, 64 rows at a time: as many as share a word of
    /// `verified`, so that one load of it serves them all.
    fn scan<T>(
        &self,
        find: &Find<'_>,
        rows: Range<usize>,
        column: &[T],
        is_wanted: impl Fn(&T) -> bool,
        offsets: &mut Vec<u32>,
    ) {
        let words = rows.start / 64..rows.end.div_ceil(64);
        let mut scan_word = |word: usize| {
            let block = rows.start.max(word * 64)..rows.end.min(word * 64 + 64);
            let begun = offsets.len();
            if self.verified.get(word).is_some_and(|bits| bits.load(Ordering::Relaxed) == u64::MAX) {
                let column = column.get(block.clone()).unwrap_or_default();
                let block_offsets = self.index.offsets().get(block).unwrap_or_default();
                add_wanted(column, block_offsets, &is_wanted, offsets);
            } else {
                let wanted = block.filter(|row| column.get(*row).is_some_and(&is_wanted));
                wanted.for_each(|row| self.take(row, find.budget, offsets));
            }
            if find.direction == Direction::Backward
                && let Some(added) = offsets.get_mut(begun..)
            {
                added.reverse();
            }
            offsets.len() < find.limit && !find.budget.is_spent()
        };
        match find.direction {
            Direction::Forward => words.into_iter().all(&mut scan_word),
            Direction::Backward => words.into_iter().rev().all(&mut scan_word),
        };
        offsets.truncate(find.limit);
    }

    fn merge(&self, find: &Find<'_>, rows: Range<usize>, wanted: &[u32], offsets: &mut Vec<u32>) {
        #[cfg(test)]
        self.merges.fetch_add(1, Ordering::Relaxed);
        let lists: Vec<_> = wanted.iter().map(|local| self.posting(*local, &rows, find.direction)).collect();
        merge(lists, |row| {
            self.take(row, find.budget, offsets);
            if offsets.len() < find.limit && !find.budget.is_spent() { Next::More } else { Next::Enough }
        });
    }

    /// The rows of one topic that are in `rows`, in the direction of the query.
    fn posting(
        &self,
        local: u32,
        rows: &Range<usize>,
        direction: Direction,
    ) -> impl Iterator<Item = (super::active::Directed<u32>, usize)> + use<'_> {
        let posting = self.index.postings(local);
        let first = posting.partition_point(|row| (*row as usize) < rows.start);
        let end = posting.partition_point(|row| (*row as usize) < rows.end);
        let mut posting = posting.get(first..end).unwrap_or_default().iter();
        std::iter::from_fn(move || match direction {
            Direction::Forward => posting.next(),
            Direction::Backward => posting.next_back(),
        })
        .map(move |row| (in_direction(*row, direction), *row as usize))
    }

    /// Adds a row to the answer unless it is damaged.
    #[inline]
    fn take(&self, row: usize, budget: &Budget, offsets: &mut Vec<u32>) {
        if self.is_sound(row, budget) {
            offsets.extend(self.index.offsets().get(row));
        }
    }

    fn record(&self, row: usize) -> Option<MessageRecord<'_>> {
        let offset = *self.index.offsets().get(row)?;
        Record::read(&self.log, offset as usize)?.message()
    }

    fn key(&self, row: usize) -> Option<Key> {
        self.record(row).map(|record| record.key())
    }

    #[inline]
    fn is_sound(&self, row: usize, budget: &Budget) -> bool {
        let bit = 1 << (row % 64);
        match self.verified.get(row / 64) {
            Some(word) if word.load(Ordering::Relaxed) & bit != 0 => true,
            Some(word) => {
                let is_sound = self.verify(row, budget);
                if is_sound {
                    word.fetch_or(bit, Ordering::Relaxed);
                }
                is_sound
            }
            None => false,
        }
    }

    /// Whether the record of a row is undamaged and the one that the index refers to.
    #[cold]
    fn verify(&self, row: usize, budget: &Budget) -> bool {
        let offset = self.index.offsets().get(row).copied().unwrap_or_default();
        let record = Record::read(&self.log, offset as usize);
        if !budget.spend(record.map_or(0, |record| record.len())) {
            return false; // the answer is discarded
        }
        let record = record.filter(|record| record.is_sound(self.id.seed()));
        let timestamp = record.and_then(|record| record.message()).map(|message| message.timestamp.0);
        let is_sound = timestamp.is_some() && timestamp == self.index.timestamps().get(row).copied();
        if !is_sound {
            self.count_damaged(row, offset);
        }
        is_sound
    }

    fn count_damaged(&self, row: usize, offset: u32) {
        let mut rows = self.damaged_rows.lock();
        if rows.len() < DAMAGED_ROWS_MAX && rows.insert(row) {
            self.damaged.inc();
            error!(log = self.id.log_name(), offset, "damaged record left out; see 'restante archive check'");
        }
    }
}

/// Adds the offsets of the wanted ones among at most 64 rows. There is no branch on each row: whether the next one is wanted
/// can't be predicted, and a mispredicted branch costs ten times as much as a store that is overwritten.
#[inline]
fn add_wanted<T>(
    column: &[T],
    column_offsets: &[u32],
    is_wanted: impl Fn(&T) -> bool,
    offsets: &mut Vec<u32>,
) {
    let mut block = [0; 64];
    let mut len = 0;
    for (value, offset) in column.iter().zip(column_offsets) {
        if let Some(slot) = block.get_mut(len) {
            *slot = *offset;
        }
        len += usize::from(is_wanted(value));
    }
    offsets.extend_from_slice(block.get(..len).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use restante_core::TopicBits;

    use super::*;
    use crate::{
        log::schema::{IndexInput, IndexRow, encode_index, encode_log_header},
        query::KeyRange,
        record::encode_message,
    };

    const ROWS: u32 = 900;
    const TOPICS: u32 = 90;

    /// Row `n` has timestamp `n` and topic `n % TOPICS`.
    fn sealed() -> (Sealed, Vec<u32>, Dictionary) {
        let id = SegmentId { window_start: 0, window_len: 1_000, sequence: 1, salt: 77 << 32 };
        let mut log = encode_log_header(&id);
        let mut rows = Vec::new();
        for n in 0..ROWS {
            let message_hash = MessageHash([n as u8; 32]);
            let key = Key { timestamp: Timestamp(i64::from(n)), message_hash };
            rows.push(IndexRow { key, offset: log.len() as u32, topic: n % TOPICS });
            encode_message(id.seed(), n % TOPICS, key, b"body", &mut log);
        }
        let name = |n: u32| TopicName { channel: "c".into(), topic: format!("{n}").into() };
        let topics: Vec<TopicName> = (0..TOPICS).map(name).collect();
        let input = IndexInput {
            rows: &rows,
            topics: &topics,
            log_len: log.len() as u64,
            body_bytes: 0,
            salt: id.salt,
        };
        let index = encode_index(&input);
        let mut dictionary = Dictionary::new(|_| TopicBits::new([0; 3]));
        let sealed = Sealed::open(id, log.into(), index.into(), &mut dictionary, Counter::default()).unwrap();
        (sealed, rows.iter().map(|row| row.offset).collect(), dictionary)
    }

    /// The rows of topics 3 and 50 from timestamp `from` until before `until`.
    fn find(direction: Direction, from: i64, until: i64, limit: usize) -> Vec<usize> {
        let (sealed, offsets, dictionary) = sealed();
        let mut set = TopicSet::default();
        ["3", "50"].iter().for_each(|topic| set.add(dictionary.find("c", topic).unwrap()));
        let key = |timestamp| Key { timestamp: Timestamp(timestamp), message_hash: MessageHash::MIN };
        let range = KeyRange { from: key(from), from_excluded: false, until: Some(key(until)) };
        let selection = Selection::Topics(set.into());
        let budget = Budget::unlimited();
        let found = sealed.find(&Find { range, selection: &selection, direction, limit, budget: &budget });
        assert_eq!(sealed.merges.load(Ordering::Relaxed), 1, "postings were merged");
        let row = |offset: &u32| offsets.iter().position(|other| other == offset).unwrap();
        found.unwrap().offsets.iter().map(row).collect()
    }

    #[test]
    fn merged_postings_give_every_row_of_their_topics_in_the_range() {
        let all =
            [3, 50, 93, 140, 183, 230, 273, 320, 363, 410, 453, 500, 543, 590, 633, 680, 723, 770, 813, 860];
        let reversed = |rows: &[usize]| rows.iter().rev().copied().collect::<Vec<usize>>();
        assert_eq!(find(Direction::Forward, 0, 900, 100), all);
        assert_eq!(find(Direction::Backward, 0, 900, 100), reversed(&all));
        assert_eq!(find(Direction::Forward, 50, 770, 100), all[1..17]);
        assert_eq!(find(Direction::Backward, 50, 770, 100), reversed(&all[1..17]));
        assert_eq!(find(Direction::Forward, 0, 900, 5), all[..5]);
        assert_eq!(find(Direction::Backward, 0, 900, 5), reversed(&all[15..]));
    }
}
