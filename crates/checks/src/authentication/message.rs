//! A message in the form in which signatures cover it.

use std::{collections::HashMap, ops::Range};

use aws_lc_rs::digest::{Context, Digest, SHA256};
use bytes::Bytes;
use memchr::memchr;
use restante_mail_wire::canonical::{Canonical, without_signature};

/// A longer header is not canonicalized: each signature would take time for it.
pub(super) const HEADER_BYTES_MAX: usize = 1 << 20;

/// A field of the header: all its lines, with the last line break.
#[derive(Clone, Debug)]
struct FieldLines {
    lines: Range<usize>,
    /// The offset of its colon.
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
    /// As written, including white space before the colon.
    name: &'m [u8],
    /// The bytes after the colon, without the last line break.
    pub(super) value: &'m [u8],
}

/// The hash of a body in canonical form, and how many bytes it has.
#[derive(Clone, Copy, Debug)]
pub(super) struct BodyHash {
    pub(super) digest: Digest,
    pub(super) bytes: u64,
}

impl Message {
    /// Splits the header. `None` if it is too long.
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
            return; // not a field, such as the line that an mbox puts before a message
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

    /// The data that a signature of these names covers (RFC 6376 §3.7): the fields, of equal names the last first, and the
    /// signature's own field with an empty `b=` and without its line break.
    pub(super) fn signed_data(&self, names: &[String], own: Field<'_>, form: Canonical) -> Vec<u8> {
        let mut data = Vec::with_capacity(1_024);
        let mut taken: HashMap<&str, usize> = HashMap::new();
        for name in names {
            let before = taken.entry(name).or_insert(0);
            // A name for which no field is left adds no bytes (RFC 6376 §5.4).
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
        let mut hasher = Context::new(&SHA256);
        let mut bytes = 0_u64;
        form.body(self.body(), &mut |chunk| {
            hasher.update(chunk);
            bytes = bytes.saturating_add(u64::try_from(chunk.len()).unwrap_or(u64::MAX));
        });
        BodyHash { digest: hasher.finish(), bytes }
    }
}

impl Field<'_> {
    /// Appends the field in canonical form, without a line break.
    pub(super) fn append(self, form: Canonical, to: &mut Vec<u8>) {
        form.append_field(self.name, self.value, to);
    }

    /// The field with an empty `b=`.
    pub(super) fn append_unsigned(self, form: Canonical, to: &mut Vec<u8>) {
        let value = without_signature(self.value);
        Field { name: self.name, value: &value }.append(form, to);
    }
}
