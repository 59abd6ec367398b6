//! Writes archived messages to a file.

use std::io::{self, Write};

use restante_archive::Row;
use restante_waku_wire::encode_key_value;

use super::{FileFormat, json::JsonEntry};
use crate::output::write_json;

/// Writes messages one after the other.
pub(crate) struct Writer<W> {
    sink: W,
    format: FileFormat,
    buffer: Vec<u8>,
}

impl<W: Write> Writer<W> {
    pub(crate) fn new(sink: W, format: FileFormat) -> Self {
        Self { sink, format, buffer: Vec::new() }
    }

    /// Writes one message.
    pub(crate) fn write(&mut self, row: &Row<'_>) -> io::Result<()> {
        self.buffer.clear();
        match self.format {
            FileFormat::Protobuf => {
                encode_key_value(&row.message_hash, row.body, row.channel, &mut self.buffer)
            }
            FileFormat::Ndjson => {
                write_json(&mut self.buffer, &JsonEntry::of_row(row))?;
                self.buffer.push(b'\n');
            }
        }
        self.sink.write_all(&self.buffer)
    }

    /// Flushes everything to the output.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.sink.flush()?;
        Ok(self.sink)
    }
}
