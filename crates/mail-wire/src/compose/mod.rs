//! Writing messages: fields, and a tree of parts (rules ES1 and ES2).
//!
//! The result has lines of at most 998 octets, CRLF between them and no CR or LF elsewhere, and fields that are folded before
//! column 78 where possible. [`crate::header`] parses it to the same values.

pub(crate) mod body;
mod field;
mod origin_fields;
mod part;

use std::sync::Arc;

use bytes::Bytes;

pub use self::origin_fields::OriginFields;
use crate::header::{Address, Date, Group};

/// The deepest nesting of multiparts. Deeper ones are refused.
pub const DEPTH_MAX: usize = 32;

/// A message to be written.
#[derive(Clone, Debug)]
pub struct Message {
    /// Header fields in order, except those that describe the root part.
    pub fields: Vec<(String, FieldValue)>,
    /// The body.
    pub root: Part,
}

/// The value of a header field, in the form in which it was given.
///
/// A list without items writes no field. Control characters can't be preserved and are removed from text and names; a tab becomes
/// a space. Values that would not be parsed unchanged in their form, and all that contain line breaks or NUL, are refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FieldValue {
    /// What follows the colon, including the leading space.
    Raw(String),
    /// Text, encoded by RFC 2047 where it needs to be.
    Text(String),
    /// Addresses.
    Addresses(Vec<Address>),
    /// Addresses and groups of them.
    GroupedAddresses(Vec<Group>),
    /// Message ids without brackets.
    MessageIds(Vec<String>),
    /// A point in time.
    Date(Date),
    /// URLs without brackets.
    Urls(Vec<String>),
}

/// A part of a message.
#[derive(Clone, Debug)]
pub struct Part {
    /// The media type, such as `text/plain`; of [`Content::Parts`] a `multipart`.
    pub media_type: String,
    /// Parameters of Content-Type other than `name` and, for a multipart, `boundary`. [`Content::Text`] always has the charset UTF-8.
    pub parameters: Vec<(String, String)>,
    /// The value of Content-Disposition.
    pub disposition: Option<String>,
    /// The name of a file: `filename` of Content-Disposition, or `name` of Content-Type if there is no disposition.
    pub name: Option<String>,
    /// Content-ID without brackets.
    pub cid: Option<String>,
    /// The tags of Content-Language.
    pub languages: Vec<String>,
    /// Content-Location.
    pub location: Option<String>,
    /// Other fields. Content-Type and Content-Transfer-Encoding can't be among them.
    pub fields: Vec<(String, FieldValue)>,
    /// The body.
    pub content: Content,
}

/// The content of a part.
#[derive(Clone, Debug)]
pub enum Content {
    /// Text, in which any line break is written as CRLF. Several parts may share one.
    Text(Arc<str>),
    /// Octets, which are preserved.
    Bytes(Bytes),
    /// The parts of a multipart.
    Parts(Vec<Part>),
}

/// Values for fields that a message lacks.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'o> {
    /// Random octets, from which Message-ID and boundaries are made.
    pub seed: [u8; 16],
    /// The date.
    pub date: Date,
    /// The domain of the Message-ID.
    pub host: &'o str,
}

/// Why a message can't be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("can't write {field}: {problem}")]
pub struct ComposeError {
    /// The name of the header field.
    pub field: String,
    /// What is wrong with it.
    pub problem: Problem,
}

/// Why a header field can't be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The name is invalid, or longer than a line.
    #[error("a field's name is visible ASCII without a colon, at most 76 characters")]
    Name,
    /// The value has a line break or NUL.
    #[error("a field's value has no line breaks and no NUL")]
    LineBreak,
    /// The value would not be parsed unchanged.
    #[error("a reader would take the value for another one")]
    Ambiguous,
    /// A line would be longer than 998 octets.
    #[error("the value has a word that is too long for a line")]
    TooLong,
    /// The field describes a part, and is set by the part's properties.
    #[error("the field is given by other properties")]
    Reserved,
    /// The media type is invalid, or doesn't match the content.
    #[error("the media type is malformed, or not that of the content")]
    MediaType,
    /// Multiparts are nested too deeply.
    #[error("multiparts are nested too deeply")]
    Depth,
}

impl Message {
    /// The message's octets.
    ///
    /// Date, Message-ID and MIME-Version are added where they are missing.
    pub fn write(&self, origin: &Origin<'_>) -> Result<Vec<u8>, ComposeError> {
        let mut message = Vec::new();
        for (name, value) in &self.fields {
            if is_content_field(name) {
                return Err(ComposeError::new(name, Problem::Reserved));
            }
            field::write(name, value, &mut message)?;
        }
        if !self.has("Date") {
            field::write("Date", &FieldValue::Date(origin.date), &mut message)?;
        }
        if !self.has("Message-ID") {
            let id = format!("{:032x}@{}", u128::from_be_bytes(origin.seed), origin.host);
            field::write("Message-ID", &FieldValue::MessageIds(vec![id]), &mut message)?;
        }
        if !self.has("MIME-Version") {
            field::write("MIME-Version", &FieldValue::Raw(" 1.0".to_owned()), &mut message)?;
        }
        part::write_root(&self.root, origin.seed, &mut message)?;
        Ok(message)
    }

    /// Whether a field of that name will be written.
    fn has(&self, name: &str) -> bool {
        let mut fields = self.fields.iter().chain(&self.root.fields);
        fields.any(|(found, value)| found.eq_ignore_ascii_case(name) && !value.is_empty())
    }
}

impl Part {
    /// A part with nothing but its content.
    pub fn new(media_type: &str, content: Content) -> Self {
        Self {
            media_type: media_type.to_owned(),
            parameters: Vec::new(),
            disposition: None,
            name: None,
            cid: None,
            languages: Vec::new(),
            location: None,
            fields: Vec::new(),
            content,
        }
    }

    /// The tree of parts for a text, the same as HTML, and attachments, any of which may be missing.
    ///
    /// Text and HTML are alternatives. Attachments that are inline and have a Content-ID are related to the HTML, others are
    /// mixed with the rest. If everything is missing, the result is an empty text.
    pub fn assemble(text: Option<Self>, html: Option<Self>, attachments: Vec<Self>) -> Self {
        let is_inline = |part: &Self| {
            let is_inline = part
                .disposition
                .as_ref()
                .is_some_and(|disposition| disposition.eq_ignore_ascii_case("inline"));
            is_inline && part.cid.is_some()
        };
        let has_html = html.is_some();
        let (inline, mixed): (Vec<Self>, Vec<Self>) =
            attachments.into_iter().partition(|part| has_html && is_inline(part));
        let html = html.map(|html| if inline.is_empty() { html } else { Self::related(html, inline) });
        let body = match (text, html) {
            (Some(text), Some(html)) => {
                Some(Self::new("multipart/alternative", Content::Parts(vec![text, html])))
            }
            (text, html) => text.or(html),
        };
        if mixed.is_empty() {
            return body.unwrap_or_else(|| Self::new("text/plain", Content::Text(Arc::default())));
        }
        Self::new("multipart/mixed", Content::Parts(body.into_iter().chain(mixed).collect()))
    }

    /// HTML with the parts that it shows. RFC 2387, section 3.1 requires the first part's type.
    fn related(html: Self, shown: Vec<Self>) -> Self {
        let parameters = vec![("type".to_owned(), html.media_type.clone())];
        let parts = std::iter::once(html).chain(shown).collect();
        Self { parameters, ..Self::new("multipart/related", Content::Parts(parts)) }
    }
}

impl FieldValue {
    /// Whether it is a list without items, for which no field is written.
    fn is_empty(&self) -> bool {
        match self {
            Self::Addresses(addresses) => addresses.is_empty(),
            Self::GroupedAddresses(groups) => groups.is_empty(),
            Self::MessageIds(items) | Self::Urls(items) => items.is_empty(),
            Self::Raw(_) | Self::Text(_) | Self::Date(_) => false,
        }
    }
}

impl ComposeError {
    fn new(field: &str, problem: Problem) -> Self {
        Self { field: field.to_owned(), problem }
    }
}

/// Whether a field describes a body.
fn is_content_field(name: &str) -> bool {
    name.split_at_checked(8).is_some_and(|(start, _)| start.eq_ignore_ascii_case("content-"))
}

#[cfg(test)]
mod tests;
