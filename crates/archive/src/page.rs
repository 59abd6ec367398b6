use std::sync::Arc;

use bytes::Bytes;
use restante_core::{Cursor, Key, MessageHash, Timestamp};

use crate::{
    Direction, PAGE_BYTES_MAX, Query, TopicName, mapped,
    record::{self, Record},
};

/// How many rows ahead records are prefetched: about as many as are read while memory responds.
const ROWS_AHEAD: usize = 4;
/// Records further apart than this count as scattered.
const GAP_BYTES: u32 = 2048;

/// One page of an answer: offsets of records in shared buffers. Nothing is copied or decoded until a row is read, and the buffers
/// (usually mapped segments) live as long as the page.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// The buffers that contain the rows.
    pub parts: Vec<Part>,
    /// The rows in ascending order.
    pub rows: Vec<RowAt>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<Cursor>,
    /// Whether the rows have bodies.
    pub bodies: bool,
}

/// A buffer of records and the names of the topics that they refer to by number.
#[derive(Clone, Debug)]
pub struct Part {
    /// The records, as [`crate::record`] describes.
    pub bytes: Bytes,
    /// The name of each topic number.
    pub topics: Arc<[TopicName]>,
}

/// Where a row's record begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowAt {
    /// Index into [`Page::parts`].
    pub part: u32,
    /// Byte offset in the part's buffer.
    pub offset: u32,
}

/// One message of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row<'a> {
    /// See [`crate::Message::message_hash`].
    pub message_hash: MessageHash,
    /// See [`crate::Message::timestamp`].
    pub timestamp: Timestamp,
    /// See [`crate::Message::channel`].
    pub channel: &'a str,
    /// See [`crate::Message::topic`].
    pub topic: &'a str,
    /// The stored bytes; empty when the query excluded bodies.
    pub body: &'a [u8],
}

impl Row<'_> {
    /// The row's position in the total order.
    pub fn key(&self) -> Key {
        Key { timestamp: self.timestamp, message_hash: self.message_hash }
    }
}

impl Page {
    /// Truncates the rows that were found, in the direction of the query, to one page. Rows beyond the limit show that more
    /// remain.
    pub(crate) fn assemble(parts: Vec<Part>, mut found: Vec<RowAt>, query: &Query) -> Self {
        let found_len = found.len();
        found.truncate(query.limit);
        if body_bytes_at_most(&parts, &found) > PAGE_BYTES_MAX as u64 {
            cut_at_bytes(&parts, &mut found);
        }
        let has_more = found.len() < found_len;
        let last = found.last().filter(|_| has_more);
        let last_key = last.and_then(|at| key_at(parts.get(at.part as usize)?, at.offset));
        if query.direction == Direction::Backward {
            found.reverse();
        }
        Self { parts, rows: found, next: last_key.map(Cursor::At), bodies: query.bodies }
    }

    /// How many rows the page has.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether the page has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The rows in ascending order, without those whose record was damaged on the disk after it had been verified.
    pub fn rows(&self) -> impl DoubleEndedIterator<Item = Row<'_>> {
        self.rows.iter().filter_map(|at| self.row(*at))
    }

    /// The bodies alone, in the order of the rows: the fastest way through a page.
    pub fn bodies(&self) -> impl Iterator<Item = &[u8]> {
        let soon = self.rows.iter().skip(ROWS_AHEAD);
        let mut soon = soon.zip(self.rows.iter().skip(ROWS_AHEAD - 1));
        self.rows.iter().filter_map(move |at| {
            if let Some((soon, before)) = soon.next() {
                self.fetch_ahead(*soon, *before);
            }
            let part = self.parts.get(at.part as usize)?;
            record::body_at(&part.bytes, at.offset as usize)
        })
    }

    /// Prefetches a record that will be needed soon. Not where records are adjacent: there the processor detects the pattern, and
    /// a hint only gets in the way.
    #[inline]
    fn fetch_ahead(&self, soon: RowAt, before: RowAt) {
        let gap = soon.offset.wrapping_sub(before.offset);
        if gap > GAP_BYTES
            && let Some(part) = self.parts.get(soon.part as usize)
        {
            mapped::fetch_ahead(&part.bytes, soon.offset as usize);
        }
    }

    fn row(&self, at: RowAt) -> Option<Row<'_>> {
        let part = self.parts.get(at.part as usize)?;
        let message = Record::read(&part.bytes, at.offset as usize)?.message()?;
        let name = part.topics.get(message.topic as usize)?;
        Some(Row {
            message_hash: MessageHash(*message.hash),
            timestamp: message.timestamp,
            channel: &name.channel,
            topic: &name.topic,
            body: if self.bodies { message.body } else { &[] },
        })
    }
}

/// The key of the message whose record begins at `offset`.
pub(crate) fn key_at(part: &Part, offset: u32) -> Option<Key> {
    Record::read(&part.bytes, offset as usize)?.message().map(|message| message.key())
}

/// An upper bound of the bodies' bytes that does not read the records: those of a run are adjacent between the first and the last
/// offset.
fn body_bytes_at_most(parts: &[Part], rows: &[RowAt]) -> u64 {
    let mut bytes = 0;
    for run in rows.chunk_by(|one, other| one.part == other.part) {
        let (first, last) =
            run.iter().fold((u32::MAX, 0), |(first, last), at| (at.offset.min(first), at.offset.max(last)));
        let part = run.first().and_then(|at| parts.get(at.part as usize));
        let last_record = part.and_then(|part| Record::read(&part.bytes, last as usize));
        bytes += u64::from(last - first) + last_record.map_or(0, |record| record.len() as u64);
    }
    bytes
}

/// Ends a page with the row that brings its bodies to [`PAGE_BYTES_MAX`].
fn cut_at_bytes(parts: &[Part], rows: &mut Vec<RowAt>) {
    let mut bytes = 0;
    let mut len = 0;
    for at in rows.iter() {
        if bytes >= PAGE_BYTES_MAX {
            break;
        }
        let part = parts.get(at.part as usize);
        let record = part.and_then(|part| Record::read(&part.bytes, at.offset as usize));
        bytes += record.and_then(|record| record.message()).map_or(0, |message| message.body.len());
        len += 1;
    }
    rows.truncate(len);
}
