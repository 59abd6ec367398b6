//! Finds the newest hits of a query without reading all others.
//!
//! New documents are at the ends of segments, and the newest segments are small. So a search begins at the end of the newest segment,
//! and goes back until no remaining document can be newer than the hits found so far. Documents that were written in another order,
//! such as imported ones, only make it go back further.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    sync::Arc,
};

use ::tantivy::{
    DocId, Searcher, SegmentReader, TantivyError,
    columnar::Column,
    index::SegmentId,
    query::{EnableScoring, Query, Weight},
};
use parking_lot::Mutex;

use crate::{Hit, RecordId};

/// Documents of a block. The latest time is only known for whole blocks.
const BLOCK: DocId = 2_048;

/// Each part of a segment that is read is this many times as large as the one before, since each part costs a lookup of
/// the words.
const GROWTH: DocId = 4;

/// For each segment the latest times of its prefixes: of the first block, of the first two, and so on.
#[derive(Default)]
pub(super) struct Times(Mutex<HashMap<SegmentId, Arc<[i64]>>>);

impl Times {
    /// The times of a segment. They are calculated once: 8 bytes for each block are kept as long as the segment is in use.
    fn of(&self, searcher: &Searcher, segment: &SegmentReader, received: &Column<i64>) -> Arc<[i64]> {
        let id = segment.segment_id();
        if let Some(known) = self.0.lock().get(&id) {
            return known.clone();
        }
        let mut latest = i64::MIN;
        let mut times = Vec::new();
        for first in (0..segment.max_doc()).step_by(BLOCK as usize) {
            for document in first..segment.max_doc().min(first + BLOCK) {
                latest = latest.max(received.first(document).unwrap_or(i64::MIN));
            }
            times.push(latest);
        }
        let times: Arc<[i64]> = times.into();
        let mut known = self.0.lock();
        let readers = searcher.segment_readers();
        known.retain(|id, _| readers.iter().any(|reader| reader.segment_id() == *id));
        known.insert(id, times.clone());
        times
    }
}

/// The newest hits that follow `after`, newest first, at most `count`.
pub(super) fn newest(
    searcher: &Searcher,
    query: &dyn Query,
    times: &Times,
    after: Option<Hit>,
    count: usize,
) -> Result<Vec<Hit>, TantivyError> {
    let weight = query.weight(EnableScoring::disabled_from_searcher(searcher))?;
    let mut segments = Vec::new();
    for segment in searcher.segment_readers() {
        let columns = segment.fast_fields();
        let (numbers, received) = (columns.u64("number")?, columns.i64("received")?);
        let times = times.of(searcher, segment, &received);
        if times.last().is_some_and(|latest| *latest > i64::MIN) {
            segments.push(Segment { reader: segment, numbers, received, times });
        }
    }
    segments.sort_by_key(|segment| Reverse(segment.latest_before(segment.reader.max_doc())));
    let mut newest =
        Newest { count, after: after.map(|after| (after.received, after.id)), hits: BinaryHeap::new() };
    for segment in &segments {
        segment.look(&*weight, &mut newest)?;
    }
    let hits = newest.hits.into_sorted_vec().into_iter();
    Ok(hits.map(|Reverse((received, id))| Hit { id, received }).collect())
}

struct Segment<'s> {
    reader: &'s SegmentReader,
    numbers: Column<u64>,
    received: Column<i64>,
    times: Arc<[i64]>,
}

impl Segment<'_> {
    /// Searches for hits from the end backwards, as long as newer hits than those found are possible.
    fn look(&self, weight: &dyn Weight, newest: &mut Newest) -> Result<(), TantivyError> {
        let alive = self.reader.alive_bitset();
        let mut end = self.reader.max_doc();
        let mut length = BLOCK;
        while end > 0 && newest.is_open_to(self.latest_before(end)) {
            let mut scorer = weight.scorer(self.reader, 1.0)?;
            // If there are few documents, they are read in one part.
            let is_rare = scorer.cost() <= u64::from(BLOCK);
            let start = if is_rare { 0 } else { end.saturating_sub(length).next_multiple_of(BLOCK) };
            let mut document = scorer.doc();
            if document < start {
                document = scorer.seek(start);
            }
            while document < end {
                if alive.is_none_or(|alive| alive.is_alive(document)) {
                    self.add(document, newest);
                }
                document = scorer.advance();
            }
            end = start;
            length = length.saturating_mul(GROWTH);
        }
        Ok(())
    }

    fn add(&self, document: DocId, newest: &mut Newest) {
        let Some(received) = self.received.first(document) else { return };
        if newest.is_open_to(received)
            && let Some(number) = self.numbers.first(document)
        {
            newest.add(received, RecordId(number));
        }
    }

    /// The latest time of the documents before `end`, where a block ends.
    fn latest_before(&self, end: DocId) -> i64 {
        let block = end.saturating_sub(1) / BLOCK;
        self.times.get(block as usize).copied().unwrap_or(i64::MAX)
    }
}

/// The newest hits so far.
struct Newest {
    count: usize,
    /// Only hits that follow this one.
    after: Option<(i64, RecordId)>,
    /// The oldest one first.
    hits: BinaryHeap<Reverse<(i64, RecordId)>>,
}

impl Newest {
    /// Whether a hit of this time may be among the newest.
    fn is_open_to(&self, received: i64) -> bool {
        let is_full = self.hits.len() >= self.count;
        !is_full || self.hits.peek().is_none_or(|Reverse((oldest, _))| received >= *oldest)
    }

    fn add(&mut self, received: i64, id: RecordId) {
        if self.after.is_some_and(|after| (received, id) >= after) {
            return;
        }
        self.hits.push(Reverse((received, id)));
        if self.hits.len() > self.count {
            self.hits.pop();
        }
    }
}
