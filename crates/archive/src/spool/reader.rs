//! Reads a generation that accepts no more messages, in batches.

use std::{path::Path, sync::Arc};

use bytes::Bytes;
use restante_core::Cursor;

use super::{folder, store::generation_config};
use crate::{Archive, Error, Message, Query, Row, log};

/// A batch ends with the message that brings its bodies to this many bytes: an engine stores this in well under a second.
const BATCH_BYTES_MAX: usize = 4 << 20;

/// A generation that is read from its beginning to its end.
pub(super) struct Reader {
    pub(super) number: u64,
    archive: Arc<dyn Archive>,
    /// Messages in the generation.
    expected: u64,
    /// Damaged records in it, which are not among those.
    damaged: u64,
    /// Messages that were returned.
    given: u64,
    cursor: Option<Cursor>,
    is_at_end: bool,
}

/// Consecutive messages.
pub(super) struct Batch {
    pub(super) messages: Vec<Message>,
    next: Option<Cursor>,
}

impl Reader {
    /// Opens a generation that is no longer written to.
    pub(super) async fn open(spool: &Path, number: u64) -> Result<Self, Error> {
        let place = folder::generation(spool, number);
        let opened = log::open(place, generation_config(true)).await?;
        let stats = opened.upkeep.stats().await?;
        Ok(Self {
            number,
            archive: opened.archive,
            expected: stats.messages,
            damaged: stats.damaged,
            given: 0,
            cursor: None,
            is_at_end: false,
        })
    }

    /// The next messages, at most this many; the same ones until [`Reader::advance`]. `None` at the end.
    pub(super) async fn batch(&self, messages_max: usize) -> Result<Option<Batch>, Error> {
        if self.is_at_end {
            return Ok(None);
        }
        let query = Query { cursor: self.cursor, limit: messages_max, ..Query::default() };
        let page = self.archive.query(&query).await?;
        let mut batch = Batch { messages: Vec::with_capacity(page.len()), next: page.next };
        let mut bytes = 0;
        for row in page.rows() {
            if bytes >= BATCH_BYTES_MAX {
                batch.next = batch.messages.last().map(|last| Cursor::At(last.key()));
                break;
            }
            bytes += row.body.len();
            batch.messages.push(message_of(&row));
        }
        Ok(Some(batch))
    }

    /// Notes that the batch is done.
    pub(super) fn advance(&mut self, batch: &Batch) {
        self.given += batch.messages.len() as u64;
        self.cursor = batch.next;
        self.is_at_end = batch.next.is_none();
    }

    /// Whether nothing was found in the generation.
    pub(super) fn is_empty(&self) -> bool {
        self.expected == 0
    }

    /// How many messages of the generation could not be read, once its end is reached.
    pub(super) fn missing(&self) -> u64 {
        self.damaged + self.expected.saturating_sub(self.given)
    }
}

/// An owned message from a row.
fn message_of(row: &Row<'_>) -> Message {
    Message {
        message_hash: row.message_hash,
        channel: row.channel.into(),
        topic: row.topic.into(),
        timestamp: row.timestamp,
        body: Bytes::copy_from_slice(row.body),
    }
}
