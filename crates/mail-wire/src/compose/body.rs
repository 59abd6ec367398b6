//! Encodes and writes bodies.

use std::borrow::Cow;

use base64_simd::STANDARD;

use super::field::LINE_MAX;

/// The most octets of a quoted-printable line before the `=` of a soft line break (RFC 2045, section 6.7).
const QUOTED_LINE_MAX: usize = 75;
/// The octets that one line of base64 encodes: 76 characters.
const BASE64_LINE_OCTETS: usize = 57;

/// How a body is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    SevenBit,
    EightBit,
    QuotedPrintable,
    Base64,
}

/// The properties that determine the encoding.
#[derive(Debug, Default)]
struct Survey {
    /// The longest line, without CRLF.
    line_max: usize,
    /// Whether it has a NUL, or a CR or LF that is not part of a line break.
    has_bare: bool,
    /// Whether it has octets above 127.
    has_octets: bool,
    /// Whether it has control characters other than tabs and line breaks.
    has_controls: bool,
    /// How many octets quoted-printable writes as three.
    quoted: usize,
}

impl Encoding {
    /// The encoding for a content: the simplest that preserves it, and for text the shortest.
    pub(super) fn of(content: &[u8], is_text: bool, is_message: bool) -> Self {
        if !is_text && !is_message {
            return Self::Base64;
        }
        let survey = Survey::of(content);
        let fits_lines = !survey.has_bare && survey.line_max <= LINE_MAX;
        if fits_lines && !survey.has_octets && !survey.has_controls {
            return Self::SevenBit;
        }
        // RFC 2046, section 5.2.1 allows no encoding of a message; what doesn't fit into lines is encoded nevertheless.
        if is_message {
            return if fits_lines { Self::EightBit } else { Self::Base64 };
        }
        let quoted_length = content.len() + 2 * survey.quoted;
        if quoted_length <= content.len().div_ceil(3) * 4 { Self::QuotedPrintable } else { Self::Base64 }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::SevenBit => "7bit",
            Self::EightBit => "8bit",
            Self::QuotedPrintable => "quoted-printable",
            Self::Base64 => "base64",
        }
    }

    /// Appends a content, without a line break after it.
    pub(super) fn write(self, content: &[u8], out: &mut Vec<u8>) {
        match self {
            Self::SevenBit | Self::EightBit => out.extend_from_slice(content),
            Self::QuotedPrintable => quoted_printable(content, out),
            Self::Base64 => base64(content, out),
        }
    }
}

impl Survey {
    fn of(content: &[u8]) -> Self {
        let mut survey = Self::default();
        let mut line = 0;
        let mut rest = content;
        while let Some((&byte, after)) = rest.split_first() {
            rest = after;
            if byte == b'\r'
                && let Some(after) = after.strip_prefix(b"\n")
            {
                rest = after;
                line = 0;
                continue;
            }
            line += 1;
            survey.line_max = survey.line_max.max(line);
            survey.has_bare |= matches!(byte, b'\r' | b'\n' | 0);
            survey.has_octets |= !byte.is_ascii();
            survey.has_controls |= byte.is_ascii_control() && byte != b'\t';
            survey.quoted += usize::from(needs_quoting(byte, after));
        }
        survey
    }
}

/// The text with each CRLF, CR or LF as CRLF.
pub(super) fn with_crlf(text: &str) -> Cow<'_, [u8]> {
    if !text.contains(['\r', '\n']) {
        return Cow::Borrowed(text.as_bytes());
    }
    let mut normal = Vec::with_capacity(text.len() + text.len() / 32);
    let mut rest = text.as_bytes();
    while let Some(at) = memchr::memchr2(b'\r', b'\n', rest) {
        let (line, line_break) = rest.split_at(at);
        normal.extend_from_slice(line);
        normal.extend_from_slice(b"\r\n");
        rest = match line_break {
            [b'\r', b'\n', after @ ..] | [_, after @ ..] => after,
            [] => b"",
        };
    }
    normal.extend_from_slice(rest);
    Cow::Owned(normal)
}

/// Whether quoted-printable has to write an octet in hexadecimal, which depends on what follows it.
fn needs_quoting(byte: u8, after: &[u8]) -> bool {
    match byte {
        b'=' => true,
        b' ' | b'\t' => after.is_empty() || after.starts_with(b"\r\n"),
        _ => !byte.is_ascii_graphic(),
    }
}

/// Appends quoted-printable, without a line break after it.
pub(crate) fn quoted_printable(content: &[u8], out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    let digit = |value: u8| DIGITS.get(usize::from(value)).copied().unwrap_or_default();
    let mut column = 0;
    let mut rest = content;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte == b'\r'
            && let Some(after) = after.strip_prefix(b"\n")
        {
            out.extend_from_slice(b"\r\n");
            rest = after;
            column = 0;
            continue;
        }
        let is_quoted = needs_quoting(byte, after);
        let length = if is_quoted { 3 } else { 1 };
        if column + length > QUOTED_LINE_MAX {
            out.extend_from_slice(b"=\r\n");
            column = 0;
        }
        column += length;
        if is_quoted {
            out.extend_from_slice(&[b'=', digit(byte >> 4), digit(byte & 15)]);
        } else {
            out.push(byte);
        }
    }
}

/// Appends lines of base64, without a line break after the last one.
pub(crate) fn base64(content: &[u8], out: &mut Vec<u8>) {
    out.reserve(content.len() / BASE64_LINE_OCTETS * 78 + 78);
    for (at, line) in content.chunks(BASE64_LINE_OCTETS).enumerate() {
        if at > 0 {
            out.extend_from_slice(b"\r\n");
        }
        STANDARD.encode_append(line, out);
    }
}
