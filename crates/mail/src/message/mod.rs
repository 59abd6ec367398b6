//! A raw message (RFC 5322, MIME) as JMAP shows it: its parts, body lists, preview and the ready JSON of its header properties.
//!
//! Everything here takes any bytes, never fails, and takes time linear in their number. CPU only: a caller on an async runtime
//! passes messages beyond some hundred kilobytes to a blocking pool.

mod body;
mod lists;
mod mime;
mod names;
mod properties;
mod scan;

pub use body::{body_value, decoded, find, repaired, search_text};
pub use names::attachment_names;
pub use properties::write_header_json;
use properties::{Fields, write_string};
use restante_mail_wire::header::{self, Form};

/// A message of more parts than this is one opaque attachment: see [`read`].
pub const PARTS_MAX: usize = 1_000;
/// A message whose multiparts are nested deeper than this is one opaque attachment.
pub const NESTING_MAX: usize = 32;
/// A message in which a header, its own or that of a part, is longer than this is one opaque attachment.
pub const HEADER_BYTES_MAX: usize = 256 << 10;
/// The characters of a preview (RFC 8621 §4.1.4).
pub const PREVIEW_CHARS_MAX: usize = 256;
/// The thread keys of a message: its own id, 16 of In-Reply-To and 16 of References.
pub const THREAD_KEYS_MAX: usize = 33;

/// Reads a message. It never fails: what is broken is read as far as possible, and a message beyond [`PARTS_MAX`],
/// [`NESTING_MAX`] or [`HEADER_BYTES_MAX`] has one part, an attachment of type `application/octet-stream`.
pub fn read(raw: &[u8]) -> Message {
    let structure = structure(raw);
    let (header, header_bytes) = match structure.parts.first() {
        Some(part) => (part.header.of(raw), part.body.start),
        None => (<&[u8]>::default(), 0),
    };
    let fields = Fields::read(header);
    let has_attachment = structure.has_attachment(raw);
    let preview = body::preview(raw, &structure, PREVIEW_CHARS_MAX);
    Message {
        size: raw.len() as u64,
        header_bytes,
        has_attachment,
        message_id: fields.message_id.and_then(header::as_message_ids).and_then(|ids| ids.into_iter().next()),
        sent_at: fields.date.and_then(header::as_date).map(|date| date.seconds),
        newest_received: fields.newest_received,
        thread_keys: fields.thread_keys(),
        fragments: fragments(&fields, &preview),
        preview,
        structure,
    }
}

/// The ready JSON in the order of [`Shorthand`]; empty for null.
fn fragments(fields: &Fields<'_>, preview: &str) -> Vec<Vec<u8>> {
    let header_fields = [
        (fields.message_id, Form::MessageIds),
        (fields.in_reply_to, Form::MessageIds),
        (fields.references, Form::MessageIds),
        (fields.sender, Form::Addresses),
        (fields.from, Form::Addresses),
        (fields.to, Form::Addresses),
        (fields.cc, Form::Addresses),
        (fields.bcc, Form::Addresses),
        (fields.reply_to, Form::Addresses),
        (fields.subject, Form::Text),
        (fields.date, Form::Date),
    ];
    let mut fragments = Vec::with_capacity(header_fields.len() + 1);
    for (value, form) in header_fields {
        let mut fragment = Vec::new();
        if let Some(value) = value {
            write_header_json(form, value, &mut fragment);
        }
        if fragment == b"null" {
            fragment.clear();
        }
        fragments.push(fragment);
    }
    let mut fragment = Vec::new();
    write_string(preview, &mut fragment);
    fragments.push(fragment);
    fragments
}

/// Reads only the parts, as [`read`] does: for rows that leave out a part tree that is too large for them.
pub fn structure(raw: &[u8]) -> Structure {
    let raw = raw.get(..u32::MAX as usize).unwrap_or(raw); // Offsets have 32 bits.
    let mut parts = match scan::parts(raw) {
        Ok(parts) => parts,
        Err(scan::TooLarge) => vec![body::opaque(scan::header_within_bound(raw), raw.len())],
    };
    for part in &mut parts {
        part.measure(raw);
    }
    Structure::new(parts)
}

/// The header of a message, or of the beginning of one. For a header longer than [`HEADER_BYTES_MAX`], as many whole lines as that
/// allows, which is what [`read`] reads.
pub fn header_of(raw: &[u8]) -> &[u8] {
    raw.get(..scan::header_within_bound(raw)).unwrap_or(raw)
}

/// Whether the bytes begin like a message: with a header field. Other bytes can't be imported or parsed.
pub fn is_message(raw: &[u8]) -> bool {
    scan::begins_with_field(raw)
}

/// What a message is, apart from its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The length of the raw message.
    pub size: u64,
    /// The length of its header, including the empty line after it. The first so many bytes of the raw message have all header fields.
    pub header_bytes: u32,
    /// Its parts and body lists.
    pub structure: Structure,
    /// Whether it has an attachment that a client should show as such (RFC 8621 §4.1.4).
    pub has_attachment: bool,
    /// The beginning of its text with white space collapsed, [`PREVIEW_CHARS_MAX`] at most.
    pub preview: String,
    /// Its first Message-ID, without brackets.
    pub message_id: Option<String>,
    /// Its Date in seconds since 1970.
    pub sent_at: Option<i64>,
    /// The time in its topmost Received field, in seconds since 1970.
    pub newest_received: Option<i64>,
    /// A hash of (message id, base subject) for its own id, and for the first and the last 15 ids of In-Reply-To and of References, ascending,
    /// each once, [`THREAD_KEYS_MAX`] at most: two messages that share one belong to one thread.
    pub thread_keys: Vec<[u8; 16]>,
    /// The ready JSON of each property in the order of [`Shorthand`]; empty for null.
    fragments: Vec<Vec<u8>>,
}

impl Message {
    /// The ready JSON of a property, empty for null and for `hasAttachment`, which has none.
    pub(crate) fn fragment(&self, shorthand: Shorthand) -> &[u8] {
        self.fragments.get(shorthand as usize).map(Vec::as_slice).unwrap_or_default()
    }

    /// The value of a property as JSON, as `Email/get` returns it.
    pub fn json(&self, shorthand: Shorthand) -> &[u8] {
        match (shorthand, self.has_attachment) {
            (Shorthand::HasAttachment, true) => b"true",
            (Shorthand::HasAttachment, false) => b"false",
            _ => match self.fragment(shorthand) {
                b"" => b"null",
                fragment => fragment,
            },
        }
    }
}

/// The properties of an email that are ready JSON in its row (RFC 8621 §4.1.2.3 and §4.1.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shorthand {
    /// `messageId`: strings, or null.
    MessageId,
    /// `inReplyTo`: strings, or null.
    InReplyTo,
    /// `references`: strings, or null.
    References,
    /// `sender`: addresses, or null.
    Sender,
    /// `from`: addresses, or null.
    From,
    /// `to`: addresses, or null.
    To,
    /// `cc`: addresses, or null.
    Cc,
    /// `bcc`: addresses, or null.
    Bcc,
    /// `replyTo`: addresses, or null.
    ReplyTo,
    /// `subject`: a string, or null.
    Subject,
    /// `sentAt`: a Date in its own zone, or null.
    SentAt,
    /// `preview`: a string.
    Preview,
    /// `hasAttachment`: true or false.
    HasAttachment,
}

/// The parts of a message, and which of them a client shows as its body (RFC 8621 §4.1.4).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Structure {
    /// All parts, depth first: the first one is the message itself as a part. A nested message is one part; its own parts
    /// are read from its bytes.
    pub parts: Vec<Part>,
    /// The numbers of the parts of `textBody`, ascending.
    pub text_body: Vec<u16>,
    /// The numbers of the parts of `htmlBody`, ascending.
    pub html_body: Vec<u16>,
    /// The numbers of the parts of `attachments`, ascending.
    pub attachments: Vec<u16>,
}

impl Structure {
    /// The part with a number, see [`Part::number`].
    pub fn part(&self, number: u16) -> Option<&Part> {
        self.parts.get(usize::from(number).checked_sub(1)?)
    }

    /// The parts directly below a multipart, in order.
    pub fn children(&self, number: u16) -> impl Iterator<Item = &Part> {
        self.parts.iter().skip(usize::from(number)).filter(move |part| part.parent == number)
    }
}

/// A part of a message. Offsets are in the raw message that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its number, depth first, from 1: in decimal its `partId`, and in `be12-3` the 3.
    pub number: u16,
    /// The number of the multipart that it is in, 0 for the first part.
    pub parent: u16,
    /// Whether it has parts.
    pub kind: PartKind,
    /// The range of its header, without the empty line after it. For the first part, this is the message's header.
    pub header: Span,
    /// The range of its body, as encoded. The body of a multipart contains its parts.
    pub body: Span,
    /// How the body is encoded.
    pub encoding: Encoding,
    /// The bytes of the decoded body, as [`decoded`] returns it. For a multipart those of its body.
    pub size: u32,
    /// The lines of the encoded body of a text or a message, as IMAP counts them; 0 for all else.
    pub lines: u32,
    /// `type`: lowercase, without parameters.
    pub media_type: String,
    /// `charset`, as written; `us-ascii` for a text that names none.
    pub charset: Option<String>,
    /// `name`, decoded.
    pub name: Option<String>,
    /// `disposition`: lowercase, without parameters.
    pub disposition: Option<String>,
    /// `cid`: the Content-ID without brackets.
    pub cid: Option<String>,
    /// `language`: the tags of Content-Language.
    pub language: Option<Vec<String>>,
    /// `location`: the URI of Content-Location.
    pub location: Option<String>,
}

/// Bytes `start..end` of a raw message. `start` is not beyond `end`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// The first byte.
    pub start: u32,
    /// The offset after the last byte.
    pub end: u32,
}

impl Span {
    /// Those bytes of a raw message, or as many of them as it has, if it is another message.
    pub fn of(self, raw: &[u8]) -> &[u8] {
        let end = raw.len().min(self.end as usize);
        raw.get(self.start as usize..end).unwrap_or_default()
    }
}

/// What is inside a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartKind {
    /// Bytes.
    Leaf,
    /// Parts. It has neither a `partId` nor a blob id.
    Multipart,
    /// A message: bytes that [`read`] reads.
    Message,
}

/// A content transfer encoding (RFC 2045 §6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// `7bit`, `8bit`, `binary`, or none given.
    Identity,
    /// `base64`.
    Base64,
    /// `quoted-printable`.
    QuotedPrintable,
    /// An unknown one: the bytes are returned as they are.
    Unknown,
}

/// The decoded text of a part (RFC 8621 §4.1.4, EmailBodyValue).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BodyValue {
    /// The text; lines end with LF.
    pub value: String,
    /// Whether the encoding or the charset is unknown, or bytes are invalid in it: such bytes become U+FFFD.
    pub is_encoding_problem: bool,
    /// Whether the text is longer than the length that was asked for.
    pub is_truncated: bool,
}

/// A part that a path of numbers names, with its decoded bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The part; its offsets are in the innermost message of the path.
    pub part: Part,
    /// Its decoded bytes.
    pub bytes: Vec<u8>,
}

/// What is searched in a message besides its header.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SearchText {
    /// The text of each text part that has any, of HTML without its markup.
    pub bodies: Vec<String>,
    /// The names of all parts that have one.
    pub names: Vec<String>,
}

#[cfg(test)]
mod tests;
