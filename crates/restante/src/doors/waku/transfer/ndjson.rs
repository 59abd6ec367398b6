//! Reads one JSON object per line.

use std::io::{self, BufRead, Read};

use restante_archive::{BODY_BYTES_MAX, Message};

use super::{Refusal, json::JsonEntry, read::Next, verified};

/// A line longer than this contains no message that an archive accepts: base64 needs 4 bytes for 3, the rest is names.
const LINE_BYTES_MAX: usize = BODY_BYTES_MAX / 3 * 4 + (64 << 10);

/// The next line that is not empty; `line` counts all of them.
pub(super) fn next(source: &mut dyn BufRead, buffer: &mut Vec<u8>, line: &mut u64) -> io::Result<Next> {
    loop {
        buffer.clear();
        let len = source.take(LINE_BYTES_MAX as u64 + 1).read_until(b'\n', buffer)?;
        if len == 0 {
            return Ok(Next::End);
        }
        *line += 1;
        if len > LINE_BYTES_MAX {
            if buffer.last() != Some(&b'\n') {
                source.skip_until(b'\n')?;
            }
            return Ok(Next::Refusal(Refusal(format!("the line is longer than {LINE_BYTES_MAX} bytes"))));
        }
        let text = buffer.trim_ascii();
        if !text.is_empty() {
            return Ok(parse(text).map_or_else(Next::Refusal, Next::Message));
        }
    }
}

fn parse(text: &[u8]) -> Result<Message, Refusal> {
    let entry: JsonEntry =
        serde_json::from_slice(text).map_err(|error| Refusal(format!("not an entry: {error}")))?;
    let (hash, pubsub_topic, wire) = entry.into_parts()?;
    verified(hash, &pubsub_topic, wire)
}
