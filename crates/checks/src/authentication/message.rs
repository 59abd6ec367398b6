//! A message as its signatures see it.

use std::{collections::HashMap, ops::Range};

use aws_lc_rs::digest::{Context, Digest, SHA256};
use bytes::Bytes;
use memchr::{memchr, memchr_iter};

/// How much of a canonical body is collected before it is hashed.
const CHUNK_BYTES: usize = 16 << 10;
/// A longer header is not canonicalized: each signature would take its time.
pub(super) const HEADER_BYTES_MAX: usize = 1 << 20;

/// The two canonical forms (RFC 6376 §3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Canonical {
    Simple,
    Relaxed,
}

/// A field of the header: all its lines, with the last line break.
#[derive(Clone, Debug)]
struct FieldLines {
    lines: Range<usize>,
    /// Where its colon is.
    colon: usize,
}

/// A message, its fields split once.
#[derive(Clone, Debug)]
pub(super) struct Message {
    raw: Bytes,
    fields: Vec<FieldLines>,
    /// The fields of a name in lower case, in order.
    by_name: HashMap<String, Vec<usize>>,
    body: usize,
}

/// A header field.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field<'m> {
    /// As written, with white space before the colon.
    name: &'m [u8],
    /// The bytes behind the colon, without the last line break.
    pub(super) value: &'m [u8],
}

/// The hash of a body in canonical form, and how many bytes it has.
#[derive(Clone, Copy, Debug)]
pub(super) struct BodyHash {
    pub(super) digest: Digest,
    pub(super) bytes: u64,
}

impl Message {
    /// Splits the header. None when it is too long to be looked at.
    pub(super) fn parse(raw: Bytes) -> Option<Self> {
        let mut message = Self { raw, fields: Vec::new(), by_name: HashMap::new(), body: 0 };
        let raw = message.raw.clone();
        let mut start = 0;
        while let Some(line) = raw.get(start..).filter(|rest| !rest.is_empty()) {
            let end = start + memchr(b'\n', line).map_or(line.len(), |at| at + 1);
            if end > HEADER_BYTES_MAX {
                return None;
            }
            let text = raw.get(start..end).unwrap_or_default();
            if matches!(text, b"\r\n" | b"\n") {
                start = end;
                break;
            }
            message.add_line(text, start..end);
            start = end;
        }
        message.body = start;
        Some(message)
    }

    fn add_line(&mut self, text: &[u8], lines: Range<usize>) {
        let is_continued = text.starts_with(b" ") || text.starts_with(b"\t");
        if is_continued {
            if let Some(field) = self.fields.last_mut() {
                field.lines.end = lines.end;
            }
            return;
        }
        let Some(colon) = memchr(b':', text) else {
            return; // no field: the line that an mbox puts before a message
        };
        let name = text.get(..colon).unwrap_or_default().trim_ascii_end().to_ascii_lowercase();
        let number = self.fields.len();
        self.fields.push(FieldLines { colon: lines.start + colon, lines });
        if let Ok(name) = String::from_utf8(name) {
            self.by_name.entry(name).or_default().push(number);
        }
    }

    /// The fields of a name in lower case, from the top.
    pub(super) fn all(&self, name: &str) -> impl DoubleEndedIterator<Item = Field<'_>> + ExactSizeIterator {
        self.by_name.get(name).map(Vec::as_slice).unwrap_or_default().iter().map(|number| self.field(*number))
    }

    fn field(&self, number: usize) -> Field<'_> {
        let part = |range: Range<usize>| self.raw.get(range).unwrap_or_default();
        let Some(FieldLines { lines, colon }) = self.fields.get(number) else {
            return Field { name: b"", value: b"" };
        };
        let value = part(colon + 1..lines.end);
        let value = value.strip_suffix(b"\n").unwrap_or(value);
        let value = value.strip_suffix(b"\r").unwrap_or(value);
        Field { name: part(lines.start..*colon), value }
    }

    pub(super) fn body(&self) -> &[u8] {
        self.raw.get(self.body..).unwrap_or_default()
    }

    /// What a signature of these names signs (RFC 6376 §3.7): the fields, of equal names the last first, and the signature's own one with an empty `b=`,
    /// which no line break follows.
    pub(super) fn signed_data(&self, names: &[String], own: Field<'_>, form: Canonical) -> Vec<u8> {
        let mut data = Vec::with_capacity(1_024);
        let mut taken: HashMap<&str, usize> = HashMap::new();
        for name in names {
            let before = taken.entry(name).or_insert(0);
            // A name without a field left stands for no bytes (RFC 6376 §5.4).
            if let Some(field) = self.all(name).rev().nth(*before) {
                field.append(form, &mut data);
                data.extend_from_slice(b"\r\n");
            }
            *before += 1;
        }
        let value = without_signature(own.value);
        Field { name: own.name, value: &value }.append(form, &mut data);
        data
    }

    /// The SHA-256 of the body in canonical form.
    pub(super) fn body_hash(&self, form: Canonical) -> BodyHash {
        let mut hasher =
            BodyHasher { context: Context::new(&SHA256), chunk: Vec::new(), empty_lines: 0, bytes: 0 };
        let body = self.body();
        let mut start = 0;
        for end in memchr_iter(b'\n', body) {
            let is_line_end = end > start && body.get(end - 1) == Some(&b'\r');
            if is_line_end {
                hasher.line(body.get(start..end - 1).unwrap_or_default(), form);
                start = end + 1;
            }
        }
        let rest = body.get(start..).unwrap_or_default();
        if !rest.is_empty() {
            hasher.line(rest, form); // a last line without its end gets one
        }
        if hasher.bytes == 0 && form == Canonical::Simple {
            hasher.push(b"\r\n"); // RFC 6376 §3.4.3: an empty body is a line break
        }
        hasher.finish()
    }
}

impl Field<'_> {
    /// Appends the field in canonical form, without a line break.
    pub(super) fn append(self, form: Canonical, to: &mut Vec<u8>) {
        match form {
            Canonical::Simple => {
                to.extend_from_slice(self.name);
                to.push(b':');
                to.extend_from_slice(self.value);
            }
            Canonical::Relaxed => {
                to.extend(self.name.trim_ascii_end().iter().map(u8::to_ascii_lowercase));
                to.push(b':');
                let mut is_first = true;
                // RFC 6376 §2.8: white space is SP and HTAB; line breaks of folds are removed.
                let is_space = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
                for word in self.value.split(is_space).filter(|word| !word.is_empty()) {
                    if !is_first {
                        to.push(b' ');
                    }
                    to.extend_from_slice(word);
                    is_first = false;
                }
            }
        }
    }

    /// The field with an empty `b=`.
    pub(super) fn append_unsigned(self, form: Canonical, to: &mut Vec<u8>) {
        let value = without_signature(self.value);
        Field { name: self.name, value: &value }.append(form, to);
    }
}

/// The value of a signature's field, with that of its `b=` removed (RFC 6376 §3.5).
fn without_signature(value: &[u8]) -> Vec<u8> {
    let mut unsigned = Vec::with_capacity(value.len());
    for (number, tag) in value.split(|byte| *byte == b';').enumerate() {
        if number > 0 {
            unsigned.push(b';');
        }
        let equals = memchr(b'=', tag);
        let (name, _) = tag.split_at(equals.unwrap_or(tag.len()));
        let is_signature = equals.is_some() && name.trim_ascii() == b"b";
        unsigned.extend_from_slice(if is_signature { name } else { tag });
        if is_signature {
            unsigned.push(b'=');
        }
    }
    unsigned
}

struct BodyHasher {
    context: Context,
    chunk: Vec<u8>,
    /// Empty lines that count only when another line follows.
    empty_lines: usize,
    bytes: u64,
}

impl BodyHasher {
    /// Adds a line, without its end.
    fn line(&mut self, line: &[u8], form: Canonical) {
        let length = match form {
            Canonical::Simple => line.len(),
            Canonical::Relaxed => line.iter().rposition(|byte| !is_space(*byte)).map_or(0, |last| last + 1),
        };
        let line = line.get(..length).unwrap_or_default();
        if line.is_empty() {
            self.empty_lines += 1;
            return;
        }
        for _ in 0..std::mem::take(&mut self.empty_lines) {
            self.push(b"\r\n");
        }
        match form {
            Canonical::Simple => self.push(line),
            Canonical::Relaxed => self.words(line),
        }
        self.push(b"\r\n");
    }

    /// Adds a line with each run of white space as one space.
    fn words(&mut self, line: &[u8]) {
        let mut rest = line;
        while let Some(at) = rest.iter().position(|byte| is_space(*byte)) {
            let (word, spaces) = rest.split_at(at);
            self.push(word);
            self.push(b" ");
            let behind = spaces.iter().position(|byte| !is_space(*byte)).unwrap_or(spaces.len());
            rest = spaces.get(behind..).unwrap_or_default();
        }
        self.push(rest);
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes = self.bytes.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        if bytes.len() > CHUNK_BYTES {
            self.flush();
            self.context.update(bytes);
            return;
        }
        if self.chunk.len() + bytes.len() > CHUNK_BYTES {
            self.flush();
        }
        self.chunk.extend_from_slice(bytes);
    }

    fn flush(&mut self) {
        self.context.update(&self.chunk);
        self.chunk.clear();
    }

    fn finish(mut self) -> BodyHash {
        self.flush();
        BodyHash { digest: self.context.finish(), bytes: self.bytes }
    }
}

fn is_space(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}
