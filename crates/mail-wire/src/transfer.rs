//! Content-Transfer-Encoding: decodes a part's body from its octets in the message (RFC 2045, section 6).

use std::borrow::Cow;

use base64_simd::STANDARD;
use memchr::memchr;

use crate::compose;

/// A decoded body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoded<'b> {
    /// The octets; those of the message itself if nothing had to be decoded.
    pub bytes: Cow<'b, [u8]>,
    /// The encoding is unknown, or the body is invalid or truncated. `bytes` is what could be decoded.
    pub is_problem: bool,
}

/// Decodes a body by the value of its Content-Transfer-Encoding, in any case; an empty value means 7bit.
///
/// With an unknown encoding the octets are returned unchanged, with a problem.
pub fn decode<'b>(encoding: &str, body: &'b [u8]) -> Decoded<'b> {
    let encoding = encoding.trim_ascii();
    let is = |name: &str| encoding.eq_ignore_ascii_case(name);
    if encoding.is_empty() || is("7bit") || is("8bit") || is("binary") {
        return Decoded { bytes: Cow::Borrowed(body), is_problem: false };
    }
    if is("base64") {
        let (bytes, problem) = base64(body);
        return Decoded { bytes: Cow::Owned(bytes), is_problem: problem.is_some() };
    }
    if is("quoted-printable") {
        let (bytes, is_problem) = quoted_printable(body);
        return Decoded { bytes: Cow::Owned(bytes), is_problem };
    }
    Decoded { bytes: Cow::Borrowed(body), is_problem: true }
}

/// Appends a content as quoted-printable, in which CRLF are line breaks; the last line ends with CRLF.
pub fn write_quoted_printable(content: &[u8], out: &mut Vec<u8>) {
    compose::body::quoted_printable(content, out);
    if !out.ends_with(b"\r\n") && !content.is_empty() {
        out.extend_from_slice(b"=\r\n"); // a break that is not part of the content
    }
}

/// Appends a content as lines of base64, each ended by CRLF.
pub fn write_base64(content: &[u8], out: &mut Vec<u8>) {
    compose::body::base64(content, out);
    if !content.is_empty() {
        out.extend_from_slice(b"\r\n");
    }
}

/// What is wrong with base64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Base64Problem {
    /// Only the padding at the end is missing.
    Unpadded,
    /// A character is left over, or there are characters other than base64 and white space.
    Broken,
}

/// Decodes base64 with white space anywhere. Other characters are skipped; padding ends it (RFC 2045, section 6.8).
pub(crate) fn base64(encoded: &[u8]) -> (Vec<u8>, Option<Base64Problem>) {
    let mut dense = Vec::with_capacity(encoded.len());
    for line in encoded.split(|byte| *byte == b'\n') {
        dense.extend_from_slice(line.trim_ascii());
    }
    if let Ok(decoded) = STANDARD.decode_inplace(&mut dense) {
        let length = decoded.len();
        dense.truncate(length);
        return (dense, None);
    }
    base64_in_parts(encoded)
}

/// The same, character by character.
fn base64_in_parts(encoded: &[u8]) -> (Vec<u8>, Option<Base64Problem>) {
    let mut decoded = Vec::with_capacity(encoded.len() / 4 * 3 + 3);
    let mut is_broken = false;
    let (mut bits, mut bit_count, mut padding) = (0_u32, 0_u32, 0_u32);
    for byte in encoded {
        let Some(value) = sextet(*byte) else {
            padding += u32::from(*byte == b'=');
            is_broken |= *byte != b'=' && !byte.is_ascii_whitespace();
            continue;
        };
        if padding > 0 {
            is_broken = true;
            break;
        }
        bits = bits << 6 | u32::from(value);
        bit_count += 6;
        if bit_count == 24 {
            decoded.extend_from_slice(bits.to_be_bytes().get(1..).unwrap_or_default());
            (bits, bit_count) = (0, 0);
        }
    }
    let expected_padding = match bit_count {
        0 => 0,
        12 => 2,
        18 => 1,
        _ => u32::MAX, // six bits are less than an octet
    };
    let whole = usize::try_from(bit_count / 8).unwrap_or_default();
    let last = (bits << (24 - bit_count)).to_be_bytes();
    decoded.extend(last.into_iter().skip(1).take(whole));
    let problem = if is_broken || expected_padding == u32::MAX || padding > expected_padding {
        Some(Base64Problem::Broken)
    } else {
        (padding < expected_padding).then_some(Base64Problem::Unpadded)
    };
    (decoded, problem)
}

fn sextet(byte: u8) -> Option<u8> {
    match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}

/// Decodes quoted-printable. White space at the end of a line is removed; a `=` without a valid code after it is preserved.
fn quoted_printable(encoded: &[u8]) -> (Vec<u8>, bool) {
    let mut decoded = Vec::with_capacity(encoded.len());
    let mut is_problem = false;
    for line in encoded.split_inclusive(|byte| *byte == b'\n') {
        let (text, line_break) = match line {
            [text @ .., b'\r', b'\n'] => (text, "\r\n"),
            [text @ .., b'\n'] => (text, "\n"),
            text => (text, ""),
        };
        let text = without_trailing_space(text);
        if let Some(text) = text.strip_suffix(b"=") {
            is_problem |= unquote(text, &mut decoded);
        } else {
            is_problem |= unquote(text, &mut decoded);
            decoded.extend_from_slice(line_break.as_bytes());
        }
    }
    (decoded, is_problem)
}

fn without_trailing_space(mut line: &[u8]) -> &[u8] {
    while let [before @ .., b' ' | b'\t'] = line {
        line = before;
    }
    line
}

/// Appends a decoded line of quoted-printable without its line break; returns true if it has a `=` that is not followed by two
/// hexadecimal digits.
fn unquote(line: &[u8], decoded: &mut Vec<u8>) -> bool {
    let mut rest = line;
    let mut is_problem = false;
    while let Some(at) = memchr(b'=', rest) {
        let (plain, escaped) = rest.split_at(at);
        decoded.extend_from_slice(plain);
        rest = match escaped {
            [_, high, low, after @ ..] if let Some(octet) = octet(*high, *low) => {
                decoded.push(octet);
                after
            }
            _ => {
                is_problem = true;
                decoded.push(b'=');
                escaped.get(1..).unwrap_or_default()
            }
        };
    }
    decoded.extend_from_slice(rest);
    is_problem
}

/// The octet of two hexadecimal digits.
pub(crate) fn octet(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some(digit(high)? << 4 | digit(low)?)
}

#[cfg(test)]
mod tests;
