//! Emails as JSON (RFC 8621 §4.1).

use restante_mail::{
    Keywords, SEEN, email,
    message::{BodyValue, Message, Part, PartKind, Shorthand, Structure, header_of, write_header_json},
    row::Row,
};
use restante_mail_wire::header::{Header, as_raw};
use restante_records::{Properties, Property, RecordId, Value};

use crate::core::{BlobRef, IdType, List, Members, Object, answers::write_json, args::write_utc_date};

use super::properties::{EmailProperty, HeaderWanted, PartProperty, Wanted};

const NULL: &[u8] = b"null";

/// Where the stored JSON of an email is.
#[derive(Clone, Copy)]
pub(crate) enum Ready<'r> {
    /// None of it is requested.
    Unread,
    Row(&'r Row),
    Message(&'r Message),
}

impl Ready<'_> {
    fn json(&self, shorthand: Shorthand) -> &[u8] {
        match self {
            Self::Unread => NULL,
            Self::Row(row) => row.json(shorthand).unwrap_or(NULL),
            Self::Message(message) => message.json(shorthand),
        }
    }
}

/// What the store knows about an email.
#[derive(Clone, Copy)]
pub(crate) struct Stored<'r> {
    pub(crate) id: RecordId,
    pub(crate) properties: &'r Properties,
    pub(crate) keywords: &'r Keywords,
}

/// An email, with the data that is requested.
#[derive(Clone, Copy)]
pub(crate) struct Rendering<'r> {
    /// `None` for a blob that is not an email of the store: its metadata is null.
    pub(crate) stored: Option<Stored<'r>>,
    pub(crate) blob: &'r BlobRef,
    /// 0 when it is not requested.
    pub(crate) size: u64,
    pub(crate) ready: Ready<'r>,
    /// Empty when no parts are requested.
    pub(crate) structure: &'r Structure,
    /// The raw message, or as much of its beginning as is needed.
    pub(crate) raw: &'r [u8],
    /// Body values by the numbers of their parts.
    pub(crate) values: &'r [(u16, BodyValue)],
}

impl Rendering<'_> {
    /// Writes the email as a JSON object.
    pub(crate) fn write(&self, wanted: &Wanted, out: &mut Vec<u8>) {
        if wanted.properties.is_empty() {
            out.push(b'{');
        }
        for (property, name) in wanted.properties.iter().zip(&wanted.names) {
            out.extend_from_slice(name);
            match property {
                EmailProperty::BlobId => write_json(&self.blob.to_string(), out),
                EmailProperty::Size => write_json(&self.size, out),
                EmailProperty::Ready(shorthand) => out.extend_from_slice(self.ready.json(*shorthand)),
                EmailProperty::Headers => write_headers(self.header(), out),
                EmailProperty::Header(header) => write_header(self.header(), header, out),
                EmailProperty::BodyStructure => match self.structure.parts.first() {
                    Some(root) => self.part(wanted).write_tree(root, out),
                    None => out.extend_from_slice(NULL),
                },
                EmailProperty::BodyValues => self.write_values(out),
                EmailProperty::TextBody => self.write_parts(&self.structure.text_body, wanted, out),
                EmailProperty::HtmlBody => self.write_parts(&self.structure.html_body, wanted, out),
                EmailProperty::Attachments => self.write_parts(&self.structure.attachments, wanted, out),
                metadata => match &self.stored {
                    Some(stored) => stored.write(metadata, out),
                    None => out.extend_from_slice(NULL),
                },
            }
        }
        out.push(b'}');
    }

    fn header(&self) -> Header<'_> {
        Header::parse(header_of(self.raw))
    }

    fn part<'r>(&'r self, wanted: &'r Wanted) -> PartWriter<'r> {
        PartWriter { blob: self.blob, structure: self.structure, raw: self.raw, properties: &wanted.parts }
    }

    fn write_parts(&self, numbers: &[u16], wanted: &Wanted, out: &mut Vec<u8>) {
        let writer = self.part(wanted);
        let mut list = List::open(out);
        for number in numbers {
            if let Some(part) = self.structure.part(*number) {
                writer.write(part, list.item());
            }
        }
    }

    fn write_values(&self, out: &mut Vec<u8>) {
        let mut object = Object::open(out);
        for (number, value) in self.values {
            let mut item = object.object(&number.to_string());
            item.field("value", &value.value);
            item.field("isEncodingProblem", &value.is_encoding_problem);
            item.field("isTruncated", &value.is_truncated);
        }
    }
}

impl Stored<'_> {
    /// Writes a property that comes from the store, not from the message.
    fn write(&self, property: &EmailProperty, out: &mut Vec<u8>) {
        match property {
            EmailProperty::Id => IdType::Email.write(self.id, out),
            EmailProperty::ThreadId => {
                let thread = self.numbers(email::THREAD).next().unwrap_or_default();
                IdType::Thread.write(RecordId(thread), out);
            }
            EmailProperty::MailboxIds => {
                let mut object = Set::open(out);
                for mailbox in self.numbers(email::MAILBOX) {
                    IdType::Mailbox.write(RecordId(mailbox), object.key());
                }
            }
            EmailProperty::Keywords => {
                let mut object = Set::open(out);
                if self.properties.values(email::UNSEEN).next().is_none() {
                    write_json(SEEN, object.key());
                }
                for name in self.numbers(email::KEYWORD).filter_map(|number| self.keywords.name(number)) {
                    write_json(name, object.key());
                }
            }
            EmailProperty::ReceivedAt => {
                let seconds = self.numbers(email::RECEIVED).next().unwrap_or_default();
                write_utc_date(i64::try_from(seconds).unwrap_or(i64::MAX), out);
            }
            _ => out.extend_from_slice(NULL), // all others are written by the caller
        }
    }

    fn numbers(&self, property: Property) -> impl Iterator<Item = u64> {
        self.properties.values(property).filter_map(|value| match value {
            Value::Number(number) => Some(*number),
            _ => None,
        })
    }
}

/// A JSON object whose values are all true.
struct Set<'w> {
    out: &'w mut Vec<u8>,
    is_empty: bool,
}

impl<'w> Set<'w> {
    fn open(out: &'w mut Vec<u8>) -> Self {
        out.push(b'{');
        Self { out, is_empty: true }
    }

    /// Returns where the next key goes: the caller writes one JSON string.
    fn key(&mut self) -> &mut Vec<u8> {
        self.out.extend_from_slice(if self.is_empty { b"" } else { b":true," });
        self.is_empty = false;
        self.out
    }
}

impl Drop for Set<'_> {
    fn drop(&mut self) {
        self.out.extend_from_slice(if self.is_empty { b"}" } else { b":true}" });
    }
}

/// Writes parts of one message.
struct PartWriter<'r> {
    blob: &'r BlobRef,
    structure: &'r Structure,
    raw: &'r [u8],
    properties: &'r [PartProperty],
}

impl PartWriter<'_> {
    /// A part with its sub-parts (E6). The tree is at most [`restante_mail::message::NESTING_MAX`] levels deep.
    fn write_tree(&self, part: &Part, out: &mut Vec<u8>) {
        let mut object = Object::open(out);
        self.write_members(part, &mut object);
        if part.kind == PartKind::Multipart {
            let mut list = object.list("subParts");
            for child in self.structure.children(part.number) {
                self.write_tree(child, list.item());
            }
        } else if self.properties.contains(&PartProperty::SubParts) {
            object.member("subParts").extend_from_slice(NULL);
        }
    }

    /// A part of one of the lists, which contain no multiparts.
    fn write(&self, part: &Part, out: &mut Vec<u8>) {
        let mut object = Object::open(out);
        self.write_members(part, &mut object);
        if self.properties.contains(&PartProperty::SubParts) {
            object.member("subParts").extend_from_slice(NULL);
        }
    }

    /// All members except `subParts`.
    fn write_members(&self, part: &Part, object: &mut Object<'_>) {
        let is_multipart = part.kind == PartKind::Multipart;
        for property in self.properties {
            if *property == PartProperty::SubParts {
                continue;
            }
            let out = object.member(property.name());
            match property {
                PartProperty::PartId | PartProperty::BlobId if is_multipart => out.extend_from_slice(NULL),
                PartProperty::PartId => write_json(&part.number.to_string(), out),
                PartProperty::BlobId => write_json(&self.blob.part(part.number).to_string(), out),
                PartProperty::Size => write_json(&part.size, out),
                PartProperty::Name => write_json(&part.name, out),
                PartProperty::Type => write_json(&part.media_type, out),
                PartProperty::Charset => write_json(&part.charset, out),
                PartProperty::Disposition => write_json(&part.disposition, out),
                PartProperty::Cid => write_json(&part.cid, out),
                PartProperty::Language => write_json(&part.language, out),
                PartProperty::Location => write_json(&part.location, out),
                PartProperty::Headers => write_headers(self.header(part), out),
                PartProperty::Header(header) => write_header(self.header(part), header, out),
                PartProperty::SubParts => {}
            }
        }
    }

    fn header(&self, part: &Part) -> Header<'_> {
        Header::parse(part.header.of(self.raw))
    }
}

/// All fields in order, raw (E2).
fn write_headers(header: Header<'_>, out: &mut Vec<u8>) {
    let mut list = List::open(out);
    for field in header.fields() {
        let mut object = list.object();
        object.field("name", field.name);
        object.field("value", &as_raw(field.value));
    }
}

/// The last instance of a field, or null; or all instances, if requested (E2).
fn write_header(header: Header<'_>, wanted: &HeaderWanted, out: &mut Vec<u8>) {
    if !wanted.is_all {
        match header.last(&wanted.name) {
            Some(field) => write_header_json(wanted.form, field.value, out),
            None => out.extend_from_slice(NULL),
        }
        return;
    }
    let mut list = List::open(out);
    for field in header.all(&wanted.name) {
        write_header_json(wanted.form, field.value, list.item());
    }
}
