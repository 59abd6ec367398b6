//! Decodes text in the character sets used in mail.

use encoding_rs::{Encoding, ISO_2022_JP, UTF_8, UTF_16BE, UTF_16LE, WINDOWS_1252};

mod utf_7;

/// Decoded text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// The text, with U+FFFD for what could not be decoded. A byte order mark is removed.
    pub text: String,
    /// The charset is unknown, or bytes do not belong to it.
    pub is_problem: bool,
}

/// A character set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Charset {
    Ascii,
    Utf7,
    Utf16,
    Other(&'static Encoding),
}

/// Decodes bytes of the charset that `label` names, in any case. An empty label means US-ASCII.
///
/// Bytes of an unknown charset, and of US-ASCII with octets above 127, are decoded as UTF-8 and marked as a problem: mail without
/// a label or with a wrong one is most often UTF-8.
pub fn decode(label: &str, bytes: &[u8]) -> Decoded {
    match Charset::from_label(label) {
        Some(charset) => charset.decode(bytes),
        None => Decoded { text: utf_8(bytes).text, is_problem: true },
    }
}

impl Charset {
    pub(crate) fn from_label(label: &str) -> Option<Self> {
        let label = label.trim_matches(|c: char| c.is_ascii_whitespace() || c == '"' || c == '\'');
        let is = |name: &str| label.eq_ignore_ascii_case(name);
        if label.is_empty() || is("us-ascii") || is("ascii") {
            return Some(Self::Ascii);
        }
        if is("utf-7") || is("unicode-1-1-utf-7") {
            return Some(Self::Utf7);
        }
        if is("utf-16") {
            return Some(Self::Utf16);
        }
        if is("utf8mb4") || is("utf_8") {
            return Some(Self::Other(UTF_8));
        }
        // The web's table of labels lacks these, which occur in mail.
        if is("cp1252") || is("latin-1") || is("iso-latin-1") {
            return Some(Self::Other(WINDOWS_1252));
        }
        Encoding::for_label_no_replacement(label.as_bytes()).map(Self::Other)
    }

    /// Whether the meaning of octets depends on distant octets before them: then texts must be decoded before they are joined.
    pub(crate) fn has_state(self) -> bool {
        matches!(self, Self::Utf7 | Self::Utf16) || self == Self::Other(ISO_2022_JP)
    }

    pub(crate) fn decode(self, bytes: &[u8]) -> Decoded {
        match self {
            Self::Ascii => {
                let decoded = utf_8(bytes);
                Decoded { is_problem: !bytes.is_ascii(), ..decoded }
            }
            Self::Utf7 => utf_7::decode(bytes),
            // RFC 2781, section 4.3: big-endian unless a byte order mark says otherwise.
            Self::Utf16 if bytes.starts_with(&[0xff, 0xfe]) => by_table(UTF_16LE, bytes),
            Self::Utf16 => by_table(UTF_16BE, bytes),
            Self::Other(encoding) => by_table(encoding, bytes),
        }
    }
}

fn utf_8(bytes: &[u8]) -> Decoded {
    by_table(UTF_8, bytes)
}

fn by_table(encoding: &'static Encoding, bytes: &[u8]) -> Decoded {
    let (text, is_problem) = encoding.decode_with_bom_removal(bytes);
    Decoded { text: text.into_owned(), is_problem }
}

#[cfg(test)]
mod tests;
