//! The parts of a message in its row.

use super::{
    codes::{CHARSETS, DISPOSITIONS, MEDIA_TYPES, code, put_code},
    varint::{Reader, put, put_string},
};
use crate::message::{Encoding, PARTS_MAX, Part, PartKind, Span, Structure};

/// The bits of a part's first byte above the kind (2 bits) and the encoding (2 bits).
const IN_TEXT_BODY: u8 = 1 << 4;
const IN_HTML_BODY: u8 = 1 << 5;
const IN_ATTACHMENTS: u8 = 1 << 6;
/// The decoded size is not the length of the body.
const HAS_SIZE: u8 = 1 << 7;

/// The bits of its second byte: what follows.
const HAS_CHARSET: u8 = 1;
const HAS_NAME: u8 = 1 << 1;
const HAS_DISPOSITION: u8 = 1 << 2;
const HAS_CID: u8 = 1 << 3;
const HAS_LANGUAGE: u8 = 1 << 4;
const HAS_LOCATION: u8 = 1 << 5;
const HAS_LINES: u8 = 1 << 6;

const KINDS: [PartKind; 3] = [PartKind::Leaf, PartKind::Multipart, PartKind::Message];
const ENCODINGS: [Encoding; 4] =
    [Encoding::Identity, Encoding::Base64, Encoding::QuotedPrintable, Encoding::Unknown];

/// The bytes of a structure. None if its parts are not listed depth first or its lists are not ascending, as
/// [`crate::message::read`] makes them.
pub(super) fn encode(structure: &Structure) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(32 * structure.parts.len());
    let mut lists = [&structure.text_body, &structure.html_body, &structure.attachments]
        .map(|list| list.iter().peekable());
    let mut position = 0;
    put(structure.parts.len() as u64, &mut out);
    for part in &structure.parts {
        let mut list_bits = 0;
        for (list, bit) in lists.iter_mut().zip([IN_TEXT_BODY, IN_HTML_BODY, IN_ATTACHMENTS]) {
            if list.next_if_eq(&&part.number).is_some() {
                list_bits |= bit;
            }
        }
        position = encode_part(part, list_bits, position, &mut out)?;
    }
    lists.iter_mut().all(|list| list.peek().is_none()).then_some(out)
}

/// Appends a part and returns the position that the next one's header is counted from.
fn encode_part(part: &Part, list_bits: u8, position: u32, out: &mut Vec<u8>) -> Option<u32> {
    let length = part.body.end.checked_sub(part.body.start)?;
    let flag = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
    let has_size = part.size != length;
    out.push(part.kind as u8 | (part.encoding as u8) << 2 | list_bits | flag(has_size, HAS_SIZE));
    out.push(
        flag(part.charset.is_some(), HAS_CHARSET)
            | flag(part.name.is_some(), HAS_NAME)
            | flag(part.disposition.is_some(), HAS_DISPOSITION)
            | flag(part.cid.is_some(), HAS_CID)
            | flag(part.language.is_some(), HAS_LANGUAGE)
            | flag(part.location.is_some(), HAS_LOCATION)
            | flag(part.lines > 0, HAS_LINES),
    );
    let numbers = [
        u32::from(part.number.checked_sub(part.parent)?),
        part.header.start.checked_sub(position)?,
        part.header.end.checked_sub(part.header.start)?,
        part.body.start.checked_sub(part.header.end)?,
        length,
    ];
    let numbers = numbers.into_iter().chain(has_size.then_some(part.size));
    for number in numbers.chain((part.lines > 0).then_some(part.lines)) {
        put(u64::from(number), out);
    }
    put_code(&part.media_type, MEDIA_TYPES, out);
    if let Some(charset) = &part.charset {
        put_code(charset, CHARSETS, out);
    }
    if let Some(name) = &part.name {
        put_string(name, out);
    }
    if let Some(disposition) = &part.disposition {
        put_code(disposition, DISPOSITIONS, out);
    }
    if let Some(cid) = &part.cid {
        put_string(cid, out);
    }
    if let Some(language) = &part.language {
        put(language.len() as u64, out);
        language.iter().for_each(|tag| put_string(tag, out));
    }
    if let Some(location) = &part.location {
        put_string(location, out);
    }
    Some(next_position(part))
}

/// The parts of a multipart begin in its body, and what follows a leaf begins after its body.
fn next_position(part: &Part) -> u32 {
    if part.kind == PartKind::Multipart { part.body.start } else { part.body.end }
}

/// Reads what [`encode`] wrote, and accepts nothing else.
pub(super) fn decode(bytes: &[u8]) -> Option<Structure> {
    let mut reader = Reader::new(bytes);
    let count = usize::try_from(reader.number()?).ok().filter(|count| *count <= PARTS_MAX)?;
    let mut structure = Structure::default();
    let mut position = 0;
    for _ in 0..count {
        let number = u16::try_from(structure.parts.len() + 1).ok()?;
        let (part, list_bits) = decode_part(&mut reader, number, position)?;
        let has_parent = match part.parent {
            0 => number == 1,
            parent => structure.part(parent).is_some_and(|parent| parent.kind == PartKind::Multipart),
        };
        if !has_parent {
            return None;
        }
        let lists = [&mut structure.text_body, &mut structure.html_body, &mut structure.attachments];
        for (list, bit) in lists.into_iter().zip([IN_TEXT_BODY, IN_HTML_BODY, IN_ATTACHMENTS]) {
            list.extend((list_bits & bit != 0).then_some(number));
        }
        position = next_position(&part);
        structure.parts.push(part);
    }
    reader.rest().is_empty().then_some(structure)
}

fn decode_part(reader: &mut Reader<'_>, number: u16, position: u32) -> Option<(Part, u8)> {
    let (first, second) = (reader.byte()?, reader.byte()?);
    let has = |bit: u8| second & bit != 0;
    if second >= 2 * HAS_LINES {
        return None;
    }
    let parent =
        number.checked_sub(u16::try_from(reader.number()?).ok()?).filter(|parent| *parent < number)?;
    let header = span(reader, position)?;
    let gap = reader.number_of_32_bits()?;
    let body = span_from(reader, header.end.checked_add(gap)?)?;
    let length = body.end - body.start;
    let size = match first & HAS_SIZE {
        0 => length,
        _ => reader.number_of_32_bits().filter(|size| *size != length)?,
    };
    let lines = match has(HAS_LINES) {
        false => 0,
        true => reader.number_of_32_bits().filter(|lines| *lines > 0)?,
    };
    let part = Part {
        number,
        parent,
        kind: *KINDS.get(usize::from(first & 3))?,
        header,
        body,
        encoding: *ENCODINGS.get(usize::from(first >> 2 & 3))?,
        size,
        lines,
        media_type: code(reader, MEDIA_TYPES)?,
        charset: optional(has(HAS_CHARSET), || code(reader, CHARSETS))?,
        name: optional(has(HAS_NAME), || reader.string())?,
        disposition: optional(has(HAS_DISPOSITION), || code(reader, DISPOSITIONS))?,
        cid: optional(has(HAS_CID), || reader.string())?,
        language: optional(has(HAS_LANGUAGE), || strings(reader))?,
        location: optional(has(HAS_LOCATION), || reader.string())?,
    };
    Some((part, first & (IN_TEXT_BODY | IN_HTML_BODY | IN_ATTACHMENTS)))
}

/// None when the value should be there but can't be read.
fn optional<T>(is_there: bool, read: impl FnOnce() -> Option<T>) -> Option<Option<T>> {
    if is_there { read().map(Some) } else { Some(None) }
}

/// A distance from `position` and a length.
fn span(reader: &mut Reader<'_>, position: u32) -> Option<Span> {
    let start = position.checked_add(reader.number_of_32_bits()?)?;
    span_from(reader, start)
}

fn span_from(reader: &mut Reader<'_>, start: u32) -> Option<Span> {
    Some(Span { start, end: start.checked_add(reader.number_of_32_bits()?)? })
}

/// Each string takes at least a byte, so a wrong count fails at the end of the bytes.
fn strings(reader: &mut Reader<'_>) -> Option<Vec<String>> {
    let count = reader.number()?;
    let mut strings = Vec::new();
    for _ in 0..count {
        strings.push(reader.string()?);
    }
    Some(strings)
}
