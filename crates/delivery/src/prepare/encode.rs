//! Re-encodes parts that can't be transmitted as they are.

use std::ops::Range;

use restante_mail::message::{self, Encoding, Part, PartKind};
use restante_mail_wire::{
    header::{Header, as_parameters},
    transfer,
};

use super::{
    fields::{field_values, header_bytes, without_fields},
    lines,
};

/// How deep messages within messages are re-encoded.
const DEPTH_MAX: usize = 8;

/// A property of a part that prevents its transmission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unfit {
    LongLines,
    EightBit,
    /// Bytes that the repair of line breaks would change, in a part that is declared as `binary`.
    Binary,
}

impl Unfit {
    fn is_in(self, content: &[u8]) -> bool {
        match self {
            Self::LongLines => lines::has_long(content),
            Self::EightBit => !content.is_ascii(),
            Self::Binary => lines::is_broken(content),
        }
    }
}

/// The message with all of its parts in ASCII, for a server without 8BITMIME (RFC 6152 §3); `None` when this is not possible: its
/// header has other bytes, or a signature would become invalid.
pub fn to_seven_bit(message: &[u8]) -> Option<Vec<u8>> {
    let header = message.get(..header_bytes(message))?;
    if !header.is_ascii() || field_values(message, "DKIM-Signature").next().is_some() {
        return None;
    }
    let encoded = rewritten(message, Unfit::EightBit, 0)?;
    encoded.is_ascii().then_some(encoded)
}

/// The message with all parts re-encoded that have long lines; `None` when there are none.
pub(super) fn without_long_lines(message: &[u8]) -> Option<Vec<u8>> {
    rewritten(message, Unfit::LongLines, 0)
}

/// The message with all parts re-encoded that are declared as `binary` and that the repair of line breaks would change (RFC 3030
/// §3: without BINARYMIME they can't be sent as they are); `None` when there are none.
pub(super) fn without_binary(message: &[u8]) -> Option<Vec<u8>> {
    rewritten(message, Unfit::Binary, 0)
}

/// Whether the header of a part declares its body as `binary`.
fn is_declared_binary(header: &[u8]) -> bool {
    let value = field_values(header, "Content-Transfer-Encoding").last();
    value.is_some_and(|value| as_parameters(value).value == "binary")
}

/// A range of the message, and the text that replaces it.
struct Edit {
    range: Range<usize>,
    text: Vec<u8>,
}

fn rewritten(raw: &[u8], unfit: Unfit, depth: usize) -> Option<Vec<u8>> {
    let structure = message::structure(raw);
    let is_signed = structure.parts.iter().any(|part| part.media_type == "multipart/signed");
    if is_signed && unfit == Unfit::EightBit {
        return None; // RFC 1847 §2.1: what is signed must not be changed
    }
    let mut edits = Vec::new();
    for part in &structure.parts {
        let body = part.body.of(raw);
        // The repair ends the last line of the message.
        let is_unended =
            unfit == Unfit::Binary && part.body.end as usize == raw.len() && !body.ends_with(b"\r\n");
        if unfit.is_in(body) || is_unended {
            edit_part(raw, part, unfit, depth, &mut edits);
        }
    }
    if edits.is_empty() {
        return None;
    }
    let mut out = Vec::with_capacity(raw.len() * 3 / 2);
    let mut copied = 0;
    for edit in edits {
        out.extend_from_slice(raw.get(copied..edit.range.start).unwrap_or_default());
        out.extend_from_slice(&edit.text);
        copied = edit.range.end;
    }
    out.extend_from_slice(raw.get(copied..).unwrap_or_default());
    Some(out)
}

/// Adds the edits of a part, in the order of the message.
fn edit_part(raw: &[u8], part: &Part, unfit: Unfit, depth: usize, edits: &mut Vec<Edit>) {
    let body_range = part.body.start as usize..part.body.end as usize;
    let header = part.header.of(raw);
    let is_binary = is_declared_binary(header);
    let (encoding, body) = match part.kind {
        PartKind::Multipart if unfit == Unfit::EightBit => ("7bit", None),
        PartKind::Multipart if unfit == Unfit::Binary && is_binary => ("8bit", None),
        PartKind::Multipart => return,
        PartKind::Message if part.encoding == Encoding::Identity => {
            let Some((encoding, body)) = nested(raw, part, unfit, depth) else { return };
            (encoding, Some(body))
        }
        PartKind::Leaf if unfit == Unfit::Binary && !is_binary => return,
        PartKind::Leaf | PartKind::Message => {
            // A multipart that could not be read as such can't be encoded, and neither can a part with an unknown encoding.
            let value =
                Header::parse(header).last("Content-Type").map(|field| as_parameters(field.value).value);
            let is_multipart = value.is_some_and(|value| value.starts_with("multipart/"));
            if is_multipart || part.encoding == Encoding::Unknown {
                return;
            }
            let is_text = part.media_type.starts_with("text/") && unfit != Unfit::Binary;
            let (encoding, body) = encoded(&message::decoded(raw, part), is_text);
            (encoding, Some(body))
        }
    };
    let is_message_header = part.number == 1;
    let text = header_with(header, encoding, is_message_header);
    edits.push(Edit { range: part.header.start as usize..body_range.start, text });
    if let Some(text) = body {
        edits.push(Edit { range: body_range, text });
    }
}

/// A message within the message: its own parts are encoded, since it can't be encoded as a whole (RFC 2046 §5.2.1); one with a
/// header in UTF-8 can (RFC 6532 §3.7).
fn nested(raw: &[u8], part: &Part, unfit: Unfit, depth: usize) -> Option<(&'static str, Vec<u8>)> {
    let body = part.body.of(raw);
    let inner = if depth < DEPTH_MAX { rewritten(body, unfit, depth + 1) } else { None };
    // Broken lines that are left are not in binary parts, and are repaired afterwards.
    let is_fit = inner.as_deref().is_some_and(|inner| unfit == Unfit::Binary || !unfit.is_in(inner));
    match inner {
        Some(inner) if is_fit => Some((if inner.is_ascii() { "7bit" } else { "8bit" }, inner)),
        _ if part.media_type == "message/global" && unfit != Unfit::Binary => Some(encoded(body, false)),
        _ => None,
    }
}

/// A content in the shorter of the two encodings, and the name of the encoding. Quoted-printable is only for text.
fn encoded(content: &[u8], is_text: bool) -> (&'static str, Vec<u8>) {
    let mut out = Vec::with_capacity(content.len() * 3 / 2);
    if is_text {
        let quoted = content.iter().filter(|byte| !byte.is_ascii() || **byte == b'=').count();
        if content.len() + 2 * quoted <= content.len().div_ceil(3) * 4 {
            transfer::write_quoted_printable(content, &mut out);
            return ("quoted-printable", out);
        }
    }
    transfer::write_base64(content, &mut out);
    ("base64", out)
}

/// A header with this encoding, and the empty line after it.
fn header_with(header: &[u8], encoding: &str, is_message_header: bool) -> Vec<u8> {
    let mut text = without_fields(header, &["Content-Transfer-Encoding"]).unwrap_or_else(|| header.to_vec());
    if !text.is_empty() && !text.ends_with(b"\n") {
        text.extend_from_slice(b"\r\n");
    }
    if is_message_header && field_values(header, "MIME-Version").next().is_none() {
        text.extend_from_slice(b"MIME-Version: 1.0\r\n");
    }
    text.extend_from_slice(format!("Content-Transfer-Encoding: {encoding}\r\n\r\n").as_bytes());
    text
}
