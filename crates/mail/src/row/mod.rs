//! The row of an email: the body of its record, from which listings are answered without the raw message.
//!
//! `docs/formats/mail-row.md` describes it byte by byte.

mod codes;
mod parts;
mod varint;

use std::ops::Range;

use bytes::Bytes;
use restante_core::{Error, ErrorKind};
use restante_mail_wire::subject;
use serde::Deserialize;

use crate::message::{Message, Shorthand, Structure};
use varint::{Reader, put, unzigzag, zigzag};

/// The maximum length of a row. Records allow four times as much, but each listing reads whole rows.
pub const ROW_BYTES_MAX: usize = 64 << 10;
/// The bytes of all ready JSON in a row: what would exceed them is left out.
const JSON_BYTES_MAX: usize = 48 << 10;
const VERSION: u8 = 1;
/// The number of properties that have ready JSON: all of [`Shorthand`] except `hasAttachment`.
const FRAGMENTS: usize = 12;
const ALL: [Shorthand; FRAGMENTS] = [
    Shorthand::MessageId,
    Shorthand::InReplyTo,
    Shorthand::References,
    Shorthand::Sender,
    Shorthand::From,
    Shorthand::To,
    Shorthand::Cc,
    Shorthand::Bcc,
    Shorthand::ReplyTo,
    Shorthand::Subject,
    Shorthand::SentAt,
    Shorthand::Preview,
];

/// In the lengths of fragments: the property is null, or too long for the row. JSON has at least two bytes.
const NULL: u64 = 0;
const LEFT_OUT: u64 = 1;

/// The bits of the second byte.
const HAS_ATTACHMENT: u8 = 1;
const HAS_SENT_AT: u8 = 2;
const HAS_PARTS: u8 = 4;

impl Message {
    /// Its row, [`ROW_BYTES_MAX`] at most: what does not fit is left out and read from the raw message.
    pub fn row(&self) -> Bytes {
        let mut lengths = Vec::with_capacity(2 * FRAGMENTS);
        let mut json = Vec::with_capacity(512);
        for shorthand in ALL {
            let fragment = self.fragment(shorthand);
            let is_small = json.len() + fragment.len() <= JSON_BYTES_MAX;
            put(if is_small { fragment.len() as u64 } else { LEFT_OUT }, &mut lengths);
            json.extend_from_slice(if is_small { fragment } else { b"" });
        }
        let mut numbers = Vec::with_capacity(16);
        put(self.size, &mut numbers);
        put(u64::from(self.header_bytes), &mut numbers);
        if let Some(seconds) = self.sent_at {
            put(zigzag(seconds), &mut numbers);
        }
        let length = 2 + numbers.len() + lengths.len() + json.len();
        let parts = parts::encode(&self.structure).filter(|parts| length + parts.len() <= ROW_BYTES_MAX);
        let flag = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        let flags = flag(self.has_attachment, HAS_ATTACHMENT)
            | flag(self.sent_at.is_some(), HAS_SENT_AT)
            | flag(parts.is_some(), HAS_PARTS);
        [&[VERSION, flags], &*numbers, &*lengths, &*json, parts.as_deref().unwrap_or_default()]
            .concat()
            .into()
    }
}

/// The row of an email. Reading it copies nothing; its parts are decoded on demand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    bytes: Bytes,
    size: u64,
    header_bytes: u32,
    sent_at: Option<i64>,
    has_attachment: bool,
    fragments: [Fragment; FRAGMENTS],
    /// Where the parts begin.
    parts: Option<usize>,
}

/// Where the ready JSON of a property is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Fragment {
    #[default]
    Null,
    LeftOut,
    At(Range<usize>),
}

impl Row {
    /// Reads the body of an email's record.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] when the bytes are not a row, or are one of a later version.
    pub fn read(bytes: Bytes) -> Result<Self, Error> {
        let mut reader = Reader::new(&bytes);
        match reader.byte() {
            Some(VERSION) => {}
            Some(version) => {
                let text = format!("the row of an email has version {version}, this program reads {VERSION}");
                return Err(Error::new(ErrorKind::Corrupt, text));
            }
            None => return Err(damaged("is empty")),
        }
        let row = Self::read_fields(&bytes, &mut reader).ok_or_else(|| damaged("is cut off or damaged"))?;
        for fragment in &row.fragments {
            if let Fragment::At(range) = fragment {
                let json = bytes.get(range.clone()).unwrap_or_default();
                std::str::from_utf8(json).map_err(|_| damaged("has JSON that is not UTF-8"))?;
            }
        }
        Ok(row)
    }

    fn read_fields(bytes: &Bytes, reader: &mut Reader<'_>) -> Option<Self> {
        let flags = reader.byte().filter(|flags| *flags < 2 * HAS_PARTS)?;
        let size = reader.number()?;
        let header_bytes = reader.number_of_32_bits()?;
        let sent_at = match flags & HAS_SENT_AT {
            0 => None,
            _ => Some(unzigzag(reader.number()?)),
        };
        let mut lengths = [0; FRAGMENTS];
        for length in &mut lengths {
            *length = reader.number()?;
        }
        let mut start = bytes.len() - reader.rest().len();
        let mut fragments = [const { Fragment::Null }; FRAGMENTS];
        for (fragment, length) in fragments.iter_mut().zip(lengths) {
            *fragment = match length {
                NULL => Fragment::Null,
                LEFT_OUT => Fragment::LeftOut,
                _ => {
                    let end =
                        start.checked_add(usize::try_from(length).ok()?).filter(|end| *end <= bytes.len())?;
                    Fragment::At(std::mem::replace(&mut start, end)..end)
                }
            };
        }
        let has_parts = flags & HAS_PARTS != 0;
        let is_complete = has_parts || start == bytes.len();
        is_complete.then(|| Self {
            bytes: bytes.clone(),
            size,
            header_bytes,
            sent_at,
            has_attachment: flags & HAS_ATTACHMENT != 0,
            fragments,
            parts: has_parts.then_some(start),
        })
    }

    /// The length of the raw message.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The length of the message's header, including the empty line after it.
    pub fn header_bytes(&self) -> u32 {
        self.header_bytes
    }

    /// The message's Date in seconds since 1970.
    pub fn sent_at(&self) -> Option<i64> {
        self.sent_at
    }

    /// Whether a client shows an attachment.
    pub fn has_attachment(&self) -> bool {
        self.has_attachment
    }

    /// The value of a property as JSON in UTF-8. None when it was too long for the row: read the raw message.
    pub fn json(&self, shorthand: Shorthand) -> Option<&[u8]> {
        match self.fragments.get(shorthand as usize) {
            Some(Fragment::At(range)) => self.bytes.get(range.clone()),
            Some(Fragment::LeftOut) => None,
            Some(Fragment::Null) => Some(b"null"),
            None if self.has_attachment => Some(b"true"),
            None => Some(b"false"),
        }
    }

    /// The parts and body lists. None when they were too large for the row: read the raw message.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] when the bytes are damaged.
    pub fn structure(&self) -> Result<Option<Structure>, Error> {
        let Some(start) = self.parts else { return Ok(None) };
        let bytes = self.bytes.get(start..).unwrap_or_default();
        parts::decode(bytes).map(Some).ok_or_else(|| damaged("has damaged parts"))
    }

    /// What `Email/query` sorts by for `from` and `to`: the name of the first address, else the address, else nothing (RFC 8621
    /// §4.4.2). Nothing for a property that was too long for the row.
    pub fn address_key(&self, shorthand: Shorthand) -> String {
        #[derive(Deserialize)]
        struct Address {
            name: Option<String>,
            email: String,
        }

        let json = self.json(shorthand).unwrap_or_default();
        let Some(addresses) = json.strip_prefix(b"[") else { return String::new() };
        // Only the first address is read, no matter what follows it.
        match serde_json::Deserializer::from_slice(addresses).into_iter::<Address>().next() {
            Some(Ok(Address { name: Some(name), .. })) if !name.is_empty() => name,
            Some(Ok(Address { email, .. })) => email,
            _ => String::new(),
        }
    }

    /// What `Email/query` sorts by for `subject`: the base subject (RFC 5256 §2.1).
    pub fn subject_key(&self) -> String {
        let json = self.json(Shorthand::Subject).unwrap_or_default();
        serde_json::from_slice::<Option<String>>(json)
            .ok()
            .flatten()
            .map(|it| subject::base_subject(&it))
            .unwrap_or_default()
    }
}

fn damaged(how: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the row of an email {how}, rebuild it from the raw message"))
}

/// Any bytes as a row, for the fuzz target.
///
/// # Panics
/// When reading panics, or when parts are accepted that would be written differently.
#[doc(hidden)]
pub fn fuzz_row(bytes: &[u8]) {
    if let Ok(row) = Row::read(Bytes::copy_from_slice(bytes)) {
        for shorthand in ALL {
            let _ = row.json(shorthand);
        }
        let _ = (row.address_key(Shorthand::From), row.subject_key());
        if let (Ok(Some(structure)), Some(start)) = (row.structure(), row.parts) {
            assert_eq!(
                parts::encode(&structure).as_deref(),
                bytes.get(start..),
                "parts that would be written otherwise"
            );
        }
    }
}

#[cfg(test)]
mod tests;
