//! Writes store answers and messages as JSON, without intermediate copies, into one buffer.

use std::sync::Arc;

use restante_archive::{Direction, Page, Row};
use restante_core::{Cursor, MessageHash};
use restante_waku_wire::{
    WakuMessageView,
    rpc::store::{KeyValue, StoreQueryResponse},
};

use crate::{live::Event, store};

/// The bytes of an entry besides payload and topics: names, hash, numbers.
const ENTRY_BYTES: usize = 256;
/// The bytes of an entry without data: name and hash.
const HASH_ENTRY_BYTES: usize = 90;
/// The bytes of an answer besides its entries.
const ANSWER_BYTES: usize = 192;

/// The longest answer with `rows` messages of up to `message_bytes_max` bytes each; 0 without data.
pub(crate) fn longest_answer(rows: usize, message_bytes_max: usize) -> usize {
    ANSWER_BYTES + rows * (message_bytes_max / 3 * 4 + ENTRY_BYTES)
}

/// The longest answer from our own archive, whose pages are cut as they are for peers.
pub(crate) fn longest_page(rows: usize, message_bytes_max: usize) -> usize {
    let cut = ANSWER_BYTES + rows * ENTRY_BYTES + store::PAGE_BYTES_MAX / 3 * 4;
    longest_answer(rows, message_bytes_max).min(cut)
}

/// The approximate length of the answer; usually a little more, so that the buffer need not grow.
pub(crate) fn estimate_size(page: &Page, include_data: bool) -> usize {
    estimate_rows_size(page.rows(), include_data)
}

fn estimate_rows_size<'a>(rows: impl Iterator<Item = Row<'a>>, include_data: bool) -> usize {
    let size = |row: Row<'_>| if include_data { estimate_row_size(&row) } else { HASH_ENTRY_BYTES };
    ANSWER_BYTES + rows.map(size).sum::<usize>()
}

/// The approximate length of an entry with data.
pub(crate) fn estimate_row_size(row: &Row<'_>) -> usize {
    row.body.len() / 3 * 4 + row.topic.len() + row.channel.len() + ENTRY_BYTES
}

/// A page as nwaku answers a store query: `message` and `pubsubTopic` only with data, the cursor only when more remain. A page
/// that would become too long is cut, and more remain then.
pub(crate) fn write_answer(page: &Page, include_data: bool, direction: Direction) -> Vec<u8> {
    let mut rows: Vec<Row<'_>> = page.rows().collect();
    let cut_at = store::cut(&mut rows, direction);
    let mut out = Vec::with_capacity(estimate_rows_size(rows.iter().copied(), include_data));
    out.extend_from_slice(ANSWER_HEAD);
    for (index, row) in rows.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write_entry(row, include_data, &mut out);
    }
    write_answer_end(cut_at.or(page.next.map(hash_of)), &mut out);
    out
}

const ANSWER_HEAD: &[u8] = br#"{"requestId":"","statusCode":200,"statusDesc":"OK","messages":["#;

fn write_answer_end(next: Option<MessageHash>, out: &mut Vec<u8>) {
    out.push(b']');
    if let Some(next) = next {
        out.extend_from_slice(br#","paginationCursor":""#);
        write_hash(next, out);
        out.push(b'"');
    }
    out.push(b'}');
}

/// The answer of another node's store contains an invalid hash or message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// The answer of another node's store, in the format of our own.
pub(crate) fn write_remote_answer(
    answer: &StoreQueryResponse,
    include_data: bool,
) -> Result<Vec<u8>, Malformed> {
    let mut out = Vec::with_capacity(ANSWER_BYTES + remote_size(answer));
    out.extend_from_slice(ANSWER_HEAD);
    for (index, entry) in answer.messages.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write_remote_entry(entry, include_data, &mut out)?;
    }
    let next = answer.pagination_cursor.as_deref().map(read_hash).transpose()?;
    write_answer_end(next, &mut out);
    Ok(out)
}

/// The approximate length of the entries of another node's answer.
pub(crate) fn remote_size(answer: &StoreQueryResponse) -> usize {
    let len = |entry: &KeyValue| entry.message.as_ref().map_or(0, |message| message.len() / 3 * 4);
    answer.messages.iter().map(|entry| len(entry) + ENTRY_BYTES).sum()
}

fn write_remote_entry(entry: &KeyValue, include_data: bool, out: &mut Vec<u8>) -> Result<(), Malformed> {
    let hash = read_hash(entry.message_hash.as_deref().ok_or(Malformed)?)?;
    out.extend_from_slice(br#"{"messageHash":""#);
    write_hash(hash, out);
    out.push(b'"');
    if include_data {
        let wire = entry.message.as_deref().ok_or(Malformed)?;
        let view = WakuMessageView::parse(wire).map_err(|_| Malformed)?;
        out.extend_from_slice(br#","message":"#);
        write_message(&with_version(view), 0, out);
        out.extend_from_slice(br#","pubsubTopic":"#);
        write_text(entry.pubsub_topic.as_deref().unwrap_or_default(), out);
    }
    out.push(b'}');
    Ok(())
}

fn read_hash(bytes: &[u8]) -> Result<MessageHash, Malformed> {
    bytes.try_into().map(MessageHash).map_err(|_| Malformed)
}

/// The approximate length of messages as JSON.
pub(crate) fn estimate_messages_size(events: &[Arc<Event>]) -> usize {
    let len = |event: &Arc<Event>| event.body.len() / 3 * 4 + event.topic.len() + ENTRY_BYTES;
    events.iter().map(len).sum()
}

/// Messages as a JSON array.
pub(crate) fn write_messages(events: &[Arc<Event>]) -> Vec<u8> {
    let mut out = Vec::with_capacity(2 + estimate_messages_size(events));
    out.push(b'[');
    for event in events {
        // Every message that arrives can be decoded; one that could not would have nothing to show.
        let Ok(view) = WakuMessageView::parse(&event.body) else { continue };
        if out.len() > 1 {
            out.push(b',');
        }
        write_message(&with_version(view), 0, &mut out);
    }
    out.push(b']');
    out
}

/// One message of an answer.
fn write_entry(row: &Row<'_>, include_data: bool, out: &mut Vec<u8>) {
    if include_data {
        return write_full_entry(row, &with_version(message_of(row)), out);
    }
    out.extend_from_slice(br#"{"messageHash":""#);
    write_hash(row.message_hash, out);
    out.extend_from_slice(br#""}"#);
}

/// One message of an export: an entry of an answer, except that an absent version stays absent, so that an import creates the
/// same message.
pub(crate) fn write_export_entry(row: &Row<'_>, out: &mut Vec<u8>) {
    write_full_entry(row, &message_of(row), out);
}

fn write_full_entry(row: &Row<'_>, message: &WakuMessageView<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(br#"{"messageHash":""#);
    write_hash(row.message_hash, out);
    out.extend_from_slice(br#"","message":"#);
    write_message(message, row.timestamp.nanos(), out);
    out.extend_from_slice(br#","pubsubTopic":"#);
    write_text(row.channel, out);
    out.push(b'}');
}

/// The message as nwaku shows it: one without a version has version 0.
fn with_version(mut message: WakuMessageView<'_>) -> WakuMessageView<'_> {
    message.version.get_or_insert(0);
    message
}

/// One message of a live stream: as in relay's routes, with its pubsub topic and hash in addition.
pub(crate) fn write_row(row: &Row<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(estimate_row_size(row));
    write_message(&with_version(message_of(row)), row.timestamp.nanos(), &mut out);
    out.pop(); // more fields follow the last one
    out.extend_from_slice(br#","pubsubTopic":"#);
    write_text(row.channel, &mut out);
    out.extend_from_slice(br#","messageHash":""#);
    write_hash(row.message_hash, &mut out);
    out.extend_from_slice(br#""}"#);
    out
}

/// The same for a message that has just arrived.
pub(crate) fn write_event(event: &Event) -> Vec<u8> {
    write_row(&Row {
        message_hash: event.message_hash,
        timestamp: event.timestamp,
        channel: &event.channel,
        topic: &event.topic,
        body: &event.body,
    })
}

/// A message; `timestamp` is shown if it has none.
fn write_message(view: &WakuMessageView<'_>, timestamp: i64, out: &mut Vec<u8>) {
    out.extend_from_slice(br#"{"payload":"#);
    write_base64(view.payload, out);
    out.extend_from_slice(br#","contentTopic":"#);
    write_text(view.content_topic, out);
    if let Some(version) = view.version {
        out.extend_from_slice(br#","version":"#);
        write_number(version.into(), out);
    }
    out.extend_from_slice(br#","timestamp":"#);
    write_number(view.timestamp.unwrap_or(timestamp), out);
    if let Some(meta) = view.meta.filter(|meta| !meta.is_empty()) {
        out.extend_from_slice(br#","meta":"#);
        write_base64(meta, out);
    }
    if let Some(ephemeral) = view.ephemeral {
        out.extend_from_slice(if ephemeral { br#","ephemeral":true"# } else { br#","ephemeral":false"# });
    }
    if let Some(proof) = view.proof.filter(|proof| !proof.is_empty()) {
        out.extend_from_slice(br#","proof":"#);
        write_base64(proof, out);
    }
    out.push(b'}');
}

/// The row's body as a message.
///
/// Another door may have stored something else there. Such a row is served as a message whose payload is the whole body and whose
/// topic and timestamp are the row's, so that everything in the archive is accessible and nothing breaks a page.
fn message_of<'a>(row: &Row<'a>) -> WakuMessageView<'a> {
    let view = WakuMessageView::parse(row.body).ok();
    if let Some(view) = view.filter(|view| view.content_topic == row.topic) {
        return view;
    }
    let mut foreign = WakuMessageView::default();
    foreign.payload = row.body;
    foreign.content_topic = row.topic;
    foreign
}

fn hash_of(cursor: Cursor) -> MessageHash {
    match cursor {
        Cursor::At(key) => key.message_hash,
        Cursor::Message(hash) => hash,
    }
}

fn write_hash(hash: MessageHash, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| DIGITS.get(usize::from(nibble)).copied().unwrap_or(b'0');
    let mut text = [0; 66];
    let [zero, x, digits @ ..] = &mut text;
    (*zero, *x) = (b'0', b'x');
    for (pair, byte) in digits.chunks_exact_mut(2).zip(hash.as_bytes()) {
        pair.copy_from_slice(&[digit(byte >> 4), digit(byte & 15)]);
    }
    out.extend_from_slice(&text);
}

fn write_base64(bytes: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    base64_simd::STANDARD.encode_append(bytes, out);
    out.push(b'"');
}

fn write_number(number: i64, out: &mut Vec<u8>) {
    if number < 0 {
        out.push(b'-');
    }
    let mut digits = [0; 20];
    let mut rest = number.unsigned_abs();
    let mut len = 0;
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        len += 1;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(digits.last_chunk::<20>().and_then(|all| all.get(20 - len..)).unwrap_or_default());
}

/// A text in quotes, escaped as RFC 8259 §7 requires: quotes, backslashes and control characters.
fn write_text(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    let mut rest = text.as_bytes();
    while let Some(at) = rest.iter().position(|byte| needs_escape(*byte)) {
        let (plain, special) = rest.split_at(at);
        out.extend_from_slice(plain);
        if let Some((byte, behind)) = special.split_first() {
            write_escape(*byte, out);
            rest = behind;
        }
    }
    out.extend_from_slice(rest);
    out.push(b'"');
}

fn needs_escape(byte: u8) -> bool {
    byte < 0x20 || byte == b'"' || byte == b'\\'
}

fn write_escape(byte: u8, out: &mut Vec<u8>) {
    match byte {
        b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
        control => {
            // Control characters are below 0x20, so the first two hex digits are 00 and the third is 0 or 1.
            let low = control & 15;
            let last = if low < 10 { b'0' + low } else { b'a' + low - 10 };
            out.extend_from_slice(&[b'\\', b'u', b'0', b'0', b'0' + (control >> 4), last]);
        }
    }
}
