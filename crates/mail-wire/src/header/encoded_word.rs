//! Encoded words, RFC 2047: non-ASCII text in ASCII fields.

use crate::{
    charset::Charset,
    transfer::{Base64Problem, base64, octet},
};

/// A syntactically valid encoded word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EncodedWord<'v> {
    label: &'v [u8],
    is_base64: bool,
    text: &'v [u8],
}

impl<'v> EncodedWord<'v> {
    /// The encoded word at the beginning of `value`, and what follows it. It may contain raw octets of the charset besides
    /// encoded ones, as in some mail.
    pub(crate) fn parse(value: &'v [u8]) -> Option<(Self, &'v [u8])> {
        let rest = value.strip_prefix(b"=?")?;
        let label_length = rest.iter().position(|byte| !is_token(*byte))?;
        let (label, rest) = rest.split_at(label_length);
        let (is_base64, rest) = match rest {
            [b'?', b'B' | b'b', b'?', rest @ ..] => (true, rest),
            [b'?', b'Q' | b'q', b'?', rest @ ..] => (false, rest),
            _ => return None,
        };
        let text_length =
            rest.iter().position(|byte| matches!(byte, b'?' | b' ') || byte.is_ascii_control())?;
        let (text, rest) = rest.split_at(text_length);
        let rest = rest.strip_prefix(b"?=")?;
        (!label.is_empty()).then_some((Self { label, is_base64, text }, rest))
    }

    /// The encoded word that makes up all of `word`.
    pub(crate) fn parse_whole(word: &'v [u8]) -> Option<Self> {
        let (encoded, rest) = Self::parse(word)?;
        rest.is_empty().then_some(encoded)
    }

    /// The charset, without the language that RFC 2231 allows after it; `None` if it is unknown.
    fn charset(&self) -> Option<Charset> {
        let label = self.label.split(|byte| *byte == b'*').next().unwrap_or_default();
        Charset::from_label(std::str::from_utf8(label).ok()?)
    }

    /// The octets of the charset; `None` if the encoding is invalid.
    fn octets(&self) -> Option<Vec<u8>> {
        if !self.is_base64 {
            return q_octets(self.text);
        }
        let (octets, problem) = base64(self.text);
        (problem != Some(Base64Problem::Broken)).then_some(octets)
    }
}

/// A character of RFC 2047's token: visible ASCII except `especials`. `*` separates a language, RFC 2231.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_graphic() && !b"()<>@,;:\"/[]?.=".contains(&byte)
}

/// Decodes the Q encoding.
fn q_octets(text: &[u8]) -> Option<Vec<u8>> {
    let mut octets = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        match (first, after) {
            (b'_', _) => octets.push(b' '),
            (b'=', [high, low, after @ ..]) => {
                octets.push(octet(*high, *low)?);
                rest = after;
            }
            (b'=', _) => return None,
            (other, _) => octets.push(other),
        }
    }
    Some(octets)
}

/// Builds text from words with and without encoding.
///
/// White space between two encoded words is not part of the text (RFC 2047, section 6.2). Octets of adjacent words in one charset
/// are decoded together, as many programs split text within characters.
#[derive(Debug, Default)]
pub(crate) struct TextBuilder<'v> {
    text: String,
    space: &'v [u8],
    run: Option<(Charset, Vec<u8>)>,
}

impl<'v> TextBuilder<'v> {
    /// Adds white space after the last word. Line breaks in it are folds.
    pub(crate) fn push_space(&mut self, space: &'v [u8]) {
        self.space = space;
    }

    /// Adds octets as they are: UTF-8, with U+FFFD for what is invalid. Line breaks and NUL are removed.
    pub(crate) fn push_plain(&mut self, plain: &[u8]) {
        self.end_run();
        push_lossy(self.space, &mut self.text);
        self.space = b"";
        push_lossy(plain, &mut self.text);
    }

    /// Adds an encoded word; unchanged if it can't be decoded.
    pub(crate) fn push_encoded(&mut self, word: EncodedWord<'v>, source: &'v [u8]) {
        let (Some(charset), Some(octets)) = (word.charset(), word.octets()) else {
            return self.push_plain(source);
        };
        match &mut self.run {
            Some((previous, run)) if *previous == charset && !charset.has_state() => {
                run.extend_from_slice(&octets)
            }
            Some(_) => {
                self.end_run();
                self.run = Some((charset, octets));
            }
            None => {
                push_lossy(self.space, &mut self.text);
                self.run = Some((charset, octets));
            }
        }
        self.space = b"";
    }

    /// Returns the text.
    pub(crate) fn finish(mut self) -> String {
        self.end_run();
        push_lossy(self.space, &mut self.text);
        self.text
    }

    /// Appends the pending encoded words. RFC 8621, section 4.1.2.2: control characters in them are removed.
    fn end_run(&mut self) {
        let Some((charset, octets)) = self.run.take() else { return };
        let decoded = charset.decode(&octets).text;
        self.text.extend(decoded.chars().filter(|character| !character.is_control()));
    }
}

/// Appends octets as UTF-8 without line breaks and NUL.
fn push_lossy(octets: &[u8], text: &mut String) {
    for piece in octets.split(|byte| matches!(byte, b'\r' | b'\n' | 0)) {
        text.push_str(&String::from_utf8_lossy(piece));
    }
}
