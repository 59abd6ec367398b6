//! The content of parts: decoded bytes and text, and what is derived from them.

use std::borrow::Cow;

use memchr::memmem;
use restante_mail_wire::{charset, transfer};

use super::{BodyValue, Encoding, Found, Part, PartKind, SearchText, Span, Structure, structure};
use crate::html;

/// The numbers of a blob id's path.
const PATH_MAX: usize = 8;

impl Encoding {
    /// A name that `transfer::decode` knows; for an unknown encoding, a name that no encoding has.
    fn name(self) -> &'static str {
        match self {
            Self::Identity => "",
            Self::Base64 => "base64",
            Self::QuotedPrintable => "quoted-printable",
            Self::Unknown => "x-unknown",
        }
    }
}

impl Part {
    /// The length of [`decoded`], and the lines as IMAP counts them.
    pub(super) fn measure(&mut self, raw: &[u8]) {
        let body = self.body.of(raw);
        let size = match self.encoding {
            Encoding::Identity | Encoding::Unknown => body.len(),
            Encoding::Base64 => base64_length(body),
            Encoding::QuotedPrintable => decoded(raw, self).len(),
        };
        self.size = u32::try_from(size).unwrap_or(u32::MAX);
        if self.kind == PartKind::Message || self.media_type.starts_with("text/") {
            let lines = memchr::memchr_iter(b'\n', body).count();
            self.lines = u32::try_from(lines).unwrap_or(u32::MAX);
        }
    }
}

/// What base64 decodes to, without decoding it: padding ends it, other characters are skipped.
fn base64_length(body: &[u8]) -> usize {
    let data = body.get(..memchr::memchr(b'=', body).unwrap_or(body.len())).unwrap_or_default();
    let is_digit = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    data.iter().map(|byte| usize::from(is_digit(byte))).sum::<usize>() * 6 / 8
}

/// The decoded bytes of a part, borrowed where the encoding allows it. For a multipart, its body unchanged.
pub fn decoded<'m>(raw: &'m [u8], part: &Part) -> Cow<'m, [u8]> {
    transfer::decode(part.encoding.name(), part.body.of(raw)).bytes
}

/// A part's text with its line breaks unchanged, and whether there were problems in decoding it. At most about `encoded_max` bytes
/// of the encoded body are read, whole lines if it has some.
pub(super) fn text_of(raw: &[u8], part: &Part, encoded_max: usize) -> charset::Decoded {
    let body = part.body.of(raw);
    let body = match body.get(..encoded_max) {
        None => body,
        Some(beginning) => match memchr::memrchr(b'\n', beginning) {
            None => beginning,
            Some(end) => beginning.get(..=end).unwrap_or_default(),
        },
    };
    let bytes = transfer::decode(part.encoding.name(), body);
    let label = part.charset.as_deref().unwrap_or("utf-8");
    let mut text = charset::decode(label, &bytes.bytes);
    text.is_problem |= bytes.is_problem;
    text
}

/// The text of a `text/*` part. With `bytes_max` other than 0 it is cut to so many bytes of UTF-8, between two characters and,
/// in HTML, not inside of a tag.
pub fn body_value(raw: &[u8], part: &Part, bytes_max: usize) -> BodyValue {
    let charset::Decoded { text, is_problem } = text_of(raw, part, usize::MAX);
    let mut value = with_line_feeds(text);
    let is_truncated = bytes_max > 0 && value.len() > bytes_max;
    if is_truncated {
        let cut = match part.media_type.as_str() {
            "text/html" => html::cut(&value, bytes_max).len(),
            _ => value.floor_char_boundary(bytes_max),
        };
        value.truncate(cut);
    }
    BodyValue { value, is_encoding_problem: is_problem, is_truncated }
}

fn with_line_feeds(text: String) -> String {
    if memmem::find(text.as_bytes(), b"\r\n").is_some() { text.replace("\r\n", "\n") } else { text }
}

/// The part that the numbers of a blob id name: `[3]` for `be12-3`, `[3, 2]` for `be12-3-2`, the second part of the message in
/// the third one. None when there is no such part, when it is a multipart, and for paths of more than 8 numbers.
pub fn find(raw: &[u8], path: &[u16]) -> Option<Found> {
    if path.len() > PATH_MAX {
        return None;
    }
    let (last, messages) = path.split_last()?;
    let mut raw = Cow::Borrowed(raw);
    for number in messages {
        let part = leaf(&raw, *number).filter(|part| part.kind == PartKind::Message)?;
        raw = Cow::Owned(decoded(&raw, &part).into_owned());
    }
    let part = leaf(&raw, *last)?;
    let bytes = decoded(&raw, &part).into_owned();
    Some(Found { part, bytes })
}

fn leaf(raw: &[u8], number: u16) -> Option<Part> {
    structure(raw).part(number).filter(|part| part.kind != PartKind::Multipart).cloned()
}

/// The text to search in; of all bodies together at most `bytes_max` bytes.
pub fn search_text(raw: &[u8], structure: &Structure, bytes_max: usize) -> SearchText {
    let mut found = SearchText::default();
    let mut room = bytes_max;
    for part in &structure.parts {
        found.names.extend(part.name.clone());
        if part.kind != PartKind::Leaf || !part.media_type.starts_with("text/") || room == 0 {
            continue;
        }
        // Some HTML is mostly markup: more of it is read than is kept.
        let text = text_of(raw, part, room.saturating_mul(4)).text;
        let mut text = if part.media_type == "text/html" { html::text(&text) } else { text };
        text.truncate(text.floor_char_boundary(room));
        room -= text.len();
        if !text.is_empty() {
            found.bodies.push(text);
        }
    }
    found
}

/// The beginning of the first text that is not empty, with white space collapsed.
pub(super) fn preview(raw: &[u8], structure: &Structure, chars_max: usize) -> String {
    /// Newsletters begin with tens of kilobytes of styles.
    const HTML_BYTES_MAX: usize = 256 << 10;
    const TEXT_BYTES_MAX: usize = 16 << 10;
    /// A message of many empty parts is not searched to its end.
    const PARTS_MAX: usize = 4;

    let parts = structure.text_body.iter().take(PARTS_MAX).chain(structure.html_body.iter().take(PARTS_MAX));
    for part in parts.filter_map(|number| structure.part(*number)) {
        let text = match part.media_type.as_str() {
            "text/html" => html::visible(&text_of(raw, part, HTML_BYTES_MAX).text, 8 * chars_max),
            "text/plain" => text_of(raw, part, TEXT_BYTES_MAX).text,
            _ => continue,
        };
        let preview = collapsed(&text, chars_max);
        if !preview.is_empty() {
            return preview;
        }
    }
    String::new()
}

/// Words with one space between them. Senders hide text after rows of invisible characters: next to white space, these count as
/// white space.
fn collapsed(text: &str, chars_max: usize) -> String {
    let mut out = String::with_capacity(chars_max);
    let mut count = 0;
    let mut has_gap = false;
    for character in text.chars() {
        if character.is_whitespace() || character.is_control() {
            has_gap = count > 0;
            continue;
        }
        let is_invisible =
            matches!(character, '\u{ad}' | '\u{34f}' | '\u{200b}'..='\u{200f}' | '\u{2060}' | '\u{feff}');
        if is_invisible && (has_gap || count == 0) {
            continue;
        }
        if count + usize::from(has_gap) >= chars_max {
            break;
        }
        if has_gap {
            out.push(' ');
            count += 1;
            has_gap = false;
        }
        out.push(character);
        count += 1;
    }
    out
}

/// The message as SMTP would carry it: each bare CR and LF becomes CRLF, and NUL is removed. Borrowed if nothing changes.
pub fn repaired(raw: &[u8]) -> Cow<'_, [u8]> {
    let is_sound = |at: usize| match raw.get(at) {
        Some(b'\r') => raw.get(at + 1) == Some(&b'\n'),
        Some(b'\n') => at > 0 && raw.get(at - 1) == Some(&b'\r'),
        _ => false,
    };
    if memchr::memchr3_iter(b'\r', b'\n', 0, raw).all(is_sound) {
        return Cow::Borrowed(raw);
    }
    let mut repaired = Vec::with_capacity(raw.len() + raw.len() / 32);
    let mut bytes = raw.iter().copied().filter(|byte| *byte != 0).peekable();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\r' => {
                bytes.next_if_eq(&b'\n');
                repaired.extend_from_slice(b"\r\n");
            }
            b'\n' => repaired.extend_from_slice(b"\r\n"),
            _ => repaired.push(byte),
        }
    }
    Cow::Owned(repaired)
}

/// The whole of a message, as one attachment.
pub(super) fn opaque(header_bytes: usize, length: usize) -> Part {
    let offset = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
    Part {
        number: 1,
        parent: 0,
        kind: PartKind::Leaf,
        header: Span { start: 0, end: offset(header_bytes) },
        body: Span { start: offset(header_bytes), end: offset(length) },
        encoding: Encoding::Identity,
        size: 0,
        lines: 0,
        media_type: "application/octet-stream".to_owned(),
        charset: None,
        name: None,
        disposition: Some("attachment".to_owned()),
        cid: None,
        language: None,
        location: None,
    }
}

#[cfg(test)]
mod tests;
