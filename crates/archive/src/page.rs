use std::sync::Arc;

use bytes::Bytes;
use restante_core::{Cursor, Key, MessageHash, Timestamp};

use crate::{
    TopicName, mapped,
    record::{self, Record},
};

/// How many rows ahead records are fetched: their memory takes about as long to arrive as so many are read.
const ROWS_AHEAD: usize = 4;
/// Records further apart than this lie scattered.
const GAP_BYTES: u32 = 2048;

/// One page of an answer: places of records in shared buffers. Nothing is copied or decoded until a row is looked at,
/// and the buffers (mapped segments, as a rule) live as long as the page.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// The buffers in which the rows lie.
    pub parts: Vec<Part>,
    /// The rows in ascending order.
    pub rows: Vec<RowAt>,
    /// Where the next page begins; `None` at the end.
    pub next: Option<Cursor>,
    /// Whether the rows show bodies.
    pub bodies: bool,
}

/// A buffer of records and the names of the topics that they mention by number.
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
    /// The stored bytes; empty when the query asked for no bodies.
    pub body: &'a [u8],
}

impl Row<'_> {
    /// The row's place in the total order.
    pub fn key(&self) -> Key {
        Key { timestamp: self.timestamp, message_hash: self.message_hash }
    }
}

impl Page {
    /// How many rows the page has.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether the page has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The rows in ascending order. One whose record was damaged on the disk after it had been verified is left out.
    pub fn rows(&self) -> impl DoubleEndedIterator<Item = Row<'_>> {
        self.rows.iter().filter_map(|at| self.row(*at))
    }

    /// The bodies alone, in the order of the rows: the quickest way through a page.
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

    /// Has a record fetched that will be wanted soon. Not where records lie side by side: there the processor sees the
    /// pattern, and a hint is only in the way.
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
