//! Reads protobuf `WakuMessageKeyValue`s, each after its length.

use std::io::{self, BufRead, Read};

use bytes::Bytes;
use restante_archive::{BODY_BYTES_MAX, Message};
use restante_waku_wire::KeyValueView;

use super::{Refusal, read::Next, verified};

/// A record longer than this contains no message that an archive accepts.
const RECORD_BYTES_MAX: u64 = BODY_BYTES_MAX as u64 + (64 << 10);
/// The most bytes of a length.
const LENGTH_BYTES_MAX: usize = 10;

/// The next record; `offset` is moved past it.
pub(super) fn next(source: &mut dyn BufRead, buffer: &mut Vec<u8>, offset: &mut u64) -> io::Result<Next> {
    buffer.clear();
    let Some(length) = read_length(source, buffer)? else {
        let what = if buffer.is_empty() { return Ok(Next::End) } else { "there is no length here" };
        return Ok(Next::Lost(Refusal(what.into())));
    };
    if length > RECORD_BYTES_MAX {
        return Ok(Next::Lost(Refusal(format!(
            "a record of {length} bytes: the limit is {RECORD_BYTES_MAX}"
        ))));
    }
    let read = source.take(length).read_to_end(buffer)? as u64;
    if read < length {
        return Ok(Next::Lost(Refusal(format!(
            "the file ends {} bytes before the record does",
            length - read
        ))));
    }
    *offset += buffer.len() as u64;
    Ok(parse(buffer).map_or_else(Next::Refusal, Next::Message))
}

/// Reads a length and leaves its bytes in the buffer; `None` at the end of the file or when it is invalid.
fn read_length(source: &mut dyn BufRead, buffer: &mut Vec<u8>) -> io::Result<Option<u64>> {
    while buffer.len() < LENGTH_BYTES_MAX {
        if source.take(1).read_to_end(buffer)? == 0 {
            return Ok(None);
        }
        let is_last = buffer.last().is_some_and(|byte| byte & 0x80 == 0);
        if is_last {
            return Ok(prost::encoding::decode_varint(&mut buffer.as_slice()).ok());
        }
    }
    Ok(None)
}

fn parse(mut record: &[u8]) -> Result<Message, Refusal> {
    let entry = KeyValueView::take(&mut record).map_err(|error| Refusal(format!("not a record: {error}")))?;
    let entry = entry.ok_or_else(|| Refusal("not a record: it is empty".into()))?;
    verified(entry.message_hash, entry.pubsub_topic, Bytes::copy_from_slice(entry.message))
}
