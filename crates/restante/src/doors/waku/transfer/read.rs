//! Reads messages from a file in batches.

use std::{
    fmt,
    io::{self, BufRead},
};

use restante_archive::Message;
use restante_import::{Findings, Refusal};

use super::{FileFormat, ndjson, protobuf};

/// Messages in one batch: enough that a sync to disk costs little for each.
const BATCH_MESSAGES_MAX: usize = 4_000;
/// A batch ends with the message that brings its bodies to this many bytes.
const BATCH_BYTES_MAX: usize = 16 << 20;

/// The first bytes of compressed files. No record or line begins with them.
const COMPRESSED: [(&str, &[u8]); 4] =
    [("gzip", b"\x1f\x8b"), ("zstd", b"\x28\xb5\x2f\xfd"), ("xz", b"\xfd7zXZ\0"), ("bzip2", b"BZh")];

/// Reads messages, verifies each, and records those that it refuses.
pub(crate) struct Reader {
    source: Box<dyn BufRead + Send>,
    format: FileFormat,
    buffer: Vec<u8>,
    /// NDJSON: lines read. Protobuf: bytes read.
    place: u64,
    is_lost: bool,
    refused: Findings,
}

/// What was read at the position of a record.
pub(super) enum Next {
    End,
    Message(Message),
    /// The record is wrong, but the next one may be right.
    Refusal(Refusal),
    /// The record is wrong, and the position of the next one is unknown.
    Lost(Refusal),
}

impl Reader {
    pub(crate) fn new(source: Box<dyn BufRead + Send>, format: FileFormat) -> Self {
        Self { source, format, buffer: Vec::new(), place: 0, is_lost: false, refused: Findings::default() }
    }

    /// Checks that the file is not compressed, by its first bytes.
    pub(crate) fn check_plain(&mut self) -> io::Result<()> {
        let head = self.source.fill_buf()?;
        match COMPRESSED.iter().find(|(_, magic)| head.starts_with(magic)) {
            None => Ok(()),
            Some((name, _)) => Err(io::Error::other(format!(
                "it is compressed by {name}: decompress it first, as in 'zcat FILE | restante archive import'"
            ))),
        }
    }

    /// The next messages; none at the end.
    pub(crate) fn batch(&mut self) -> io::Result<Vec<Message>> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        while batch.len() < BATCH_MESSAGES_MAX && bytes < BATCH_BYTES_MAX {
            let Some(message) = self.next()? else { break };
            bytes += message.body.len();
            batch.push(message);
        }
        Ok(batch)
    }

    /// The records that were refused so far.
    pub(crate) fn refused(&self) -> &Findings {
        &self.refused
    }

    /// The next valid message; invalid ones before it are refused.
    fn next(&mut self) -> io::Result<Option<Message>> {
        while !self.is_lost {
            let place = self.place;
            match self.record()? {
                Next::End => break,
                Next::Message(message) => return Ok(Some(message)),
                Next::Refusal(refusal) => self.refuse(place, &refusal),
                Next::Lost(refusal) => {
                    self.is_lost = true;
                    self.refuse(place, &refusal);
                }
            }
        }
        Ok(None)
    }

    fn record(&mut self) -> io::Result<Next> {
        match self.format {
            FileFormat::Protobuf => protobuf::next(&mut self.source, &mut self.buffer, &mut self.place),
            FileFormat::Ndjson => ndjson::next(&mut self.source, &mut self.buffer, &mut self.place),
        }
    }

    fn refuse(&mut self, place_before: u64, refusal: &Refusal) {
        let (format, place) = (self.format, self.place);
        // A line is identified by its number once it was read, a record by its start.
        self.refused.add(|| match format {
            FileFormat::Ndjson => format!("line {place}: {refusal}"),
            FileFormat::Protobuf => format!("byte {place_before}: {refusal}"),
        });
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader")
            .field("format", &self.format)
            .field("place", &self.place)
            .finish_non_exhaustive()
    }
}
