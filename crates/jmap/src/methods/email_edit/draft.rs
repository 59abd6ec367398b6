//! The Email object of a creation, checked (RFC 8621 §4.6) and brought into the order in which it is written.
//!
//! No blobs are read here: they are named, and [`Draft::blobs`] lists them.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use restante_mail_wire::{
    compose::FieldValue,
    header::{Address, Date, Form, Group, HeaderProperty},
};
use serde_json::{Map, Value};

use crate::core::SetError;

/// The most parts of one message; also the limit for their nesting: anything beyond would be read back as one opaque attachment.
const PARTS_MAX: usize = 1_000;
const DEPTH_MAX: usize = 32;
/// The most reasons in the description of an error: a request may have a million wrong properties.
const REASONS_MAX: usize = 20;
/// The longest name of a header field, so that its first line is not too long.
const NAME_BYTES_MAX: usize = 127;

/// The properties that are a header field in one form, in the order in which the fields are written.
const FIELDS: [(&str, &str, Form); 11] = [
    ("sentAt", "Date", Form::Date),
    ("from", "From", Form::Addresses),
    ("sender", "Sender", Form::Addresses),
    ("replyTo", "Reply-To", Form::Addresses),
    ("to", "To", Form::Addresses),
    ("cc", "Cc", Form::Addresses),
    ("bcc", "Bcc", Form::Addresses),
    ("subject", "Subject", Form::Text),
    ("messageId", "Message-ID", Form::MessageIds),
    ("inReplyTo", "In-Reply-To", Form::MessageIds),
    ("references", "References", Form::MessageIds),
];

/// The other properties that a creation may have: those of the account, and those of the body.
const OTHERS: [&str; 8] = [
    "mailboxIds",
    "keywords",
    "receivedAt",
    "bodyStructure",
    "bodyValues",
    "textBody",
    "htmlBody",
    "attachments",
];

/// Header fields as they are written: names with values.
pub(crate) type Fields = Vec<(String, FieldValue)>;

/// A message to write.
#[derive(Debug)]
pub(crate) struct Draft {
    /// The header fields except those of the body, and without those that the server adds.
    pub(crate) fields: Fields,
    pub(crate) body: DraftBody,
}

/// The body of a message to write.
#[derive(Debug)]
pub(crate) enum DraftBody {
    /// The whole tree of parts.
    Structure(Box<DraftPart>),
    /// The parts that the tree is made of.
    Lists { text: Option<Box<DraftPart>>, html: Option<Box<DraftPart>>, attachments: Vec<DraftPart> },
}

/// A part of a message to write.
#[derive(Debug)]
pub(crate) struct DraftPart {
    /// In lower case, such as `text/plain`; `None` when not given.
    media_type: Option<String>,
    /// The name of the file.
    pub(crate) name: Option<String>,
    /// Only for a blob: text of a creation is written as UTF-8.
    pub(crate) charset: Option<String>,
    pub(crate) disposition: Option<String>,
    pub(crate) cid: Option<String>,
    pub(crate) language: Vec<String>,
    pub(crate) location: Option<String>,
    /// Its other header fields.
    pub(crate) fields: Fields,
    pub(crate) content: Content,
}

/// What a part consists of.
#[derive(Debug)]
pub(crate) enum Content {
    /// A text of `bodyValues`, which any number of parts may share.
    Text(Arc<str>),
    /// The id of a blob.
    Blob(String),
    /// The parts of a multipart.
    Parts(Vec<DraftPart>),
}

/// The properties that are invalid, with the reason for each.
#[derive(Debug, Default)]
pub(crate) struct Invalid {
    /// In the order in which they were found.
    pub(crate) properties: Vec<String>,
    known: HashSet<String>,
    /// The reasons of the first ones, at most [`REASONS_MAX`].
    why: Vec<String>,
}

impl Invalid {
    pub(crate) fn add(&mut self, property: &str, why: impl Into<String>) {
        if !self.known.insert(property.to_owned()) {
            return;
        }
        self.properties.push(property.to_owned());
        if self.why.len() < REASONS_MAX {
            self.why.push(format!("{property}: {}", why.into()));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.properties.is_empty()
    }

    /// `invalidProperties` with all of them.
    pub(crate) fn into_error(self) -> SetError {
        let mut why = self.why.join("; ");
        if self.properties.len() > self.why.len() {
            why.push_str("; and more");
        }
        SetError::invalid(self.properties, why)
    }
}

impl Draft {
    /// The message that this Email object describes. `mailboxIds`, `keywords` and `receivedAt` are ignored. Everything that is invalid
    /// is added to `invalid`; the draft may only be used when nothing was added.
    pub(crate) fn read(email: &Map<String, Value>, invalid: &mut Invalid) -> Self {
        check_names(email, invalid);
        let fields = read_fields(email, &FIELDS, "", invalid);
        for (property, value) in email {
            let header = HeaderProperty::parse(property).filter(|_| !value.is_null());
            if header.is_some_and(|header| is_content_field(header.name)) {
                invalid.add(property, "Content-* fields belong to a body part");
            }
        }
        let mut bodies = Bodies { values: HashMap::new(), parts: 0, property: "bodyValues", invalid };
        bodies.read_values(email);
        let body = bodies.body(email);
        if let DraftBody::Structure(root) = &body {
            let of_email: HashSet<String> =
                fields.iter().map(|(name, _)| name.to_ascii_lowercase()).collect();
            for (name, _) in &root.fields {
                if of_email.contains(&name.to_ascii_lowercase()) {
                    bodies.invalid.add("bodyStructure", format!("{name} is also a property of the email"));
                }
            }
        }
        Self { fields, body }
    }

    /// The ids of the blobs of all parts in the order of the parts, as often as they are used.
    pub(crate) fn blobs(&self) -> Vec<&str> {
        let mut ids = Vec::new();
        for content in self.contents() {
            if let Content::Blob(id) = content {
                ids.push(id.as_str());
            }
        }
        ids
    }

    /// The bytes of the texts of all parts, each counted as often as it is used.
    pub(crate) fn text_bytes(&self) -> u64 {
        let mut bytes = 0;
        for content in self.contents() {
            if let Content::Text(text) = content {
                bytes += text.len() as u64;
            }
        }
        bytes
    }

    /// The contents of all parts that are not multiparts, in the order of the parts.
    fn contents(&self) -> Vec<&Content> {
        let mut found: Vec<&Content> = Vec::new();
        let mut waiting: Vec<&DraftPart> = match &self.body {
            DraftBody::Structure(root) => vec![root],
            DraftBody::Lists { text, html, attachments } => {
                let texts = text.iter().chain(html).map(|part| &**part);
                texts.chain(attachments).collect::<Vec<_>>().into_iter().rev().collect()
            }
        };
        while let Some(part) = waiting.pop() {
            match &part.content {
                Content::Parts(parts) => waiting.extend(parts.iter().rev()),
                leaf => found.push(leaf),
            }
        }
        found
    }
}

/// Refuses properties that a creation can't have: server-set ones, `headers`, and unknown names (T5, ES1).
fn check_names(email: &Map<String, Value>, invalid: &mut Invalid) {
    for name in email.keys() {
        let is_known = OTHERS.contains(&name.as_str())
            || FIELDS.iter().any(|(property, ..)| property == name)
            || name.starts_with("header:");
        if !is_known {
            invalid.add(name, "can't be set");
        }
    }
}

/// The property of an Email object that sets a header field.
pub(crate) fn property_of_field(email: &Map<String, Value>, field: &str) -> Option<String> {
    let named = FIELDS
        .iter()
        .find(|(property, name, _)| name.eq_ignore_ascii_case(field) && email.contains_key(*property));
    let has_name = |property: &&String| {
        HeaderProperty::parse(property).is_some_and(|header| header.name.eq_ignore_ascii_case(field))
    };
    let named = named.map(|(property, ..)| (*property).to_owned());
    named.or_else(|| email.keys().find(has_name).cloned())
}

fn is_content_field(name: &str) -> bool {
    name.get(..8).is_some_and(|start| start.eq_ignore_ascii_case("content-"))
}

/// The header fields of an email or a part: first those with a property of their own, then the `header:` properties. `within` is the
/// property of the email that a part belongs to, empty for the email itself.
fn read_fields(
    object: &Map<String, Value>,
    table: &[(&str, &str, Form)],
    within: &str,
    invalid: &mut Invalid,
) -> Fields {
    let mut fields = Fields::new();
    let mut seen: HashMap<String, &str> = HashMap::new(); // the property of each field, by the field's name in lower case
    let named = table.iter().filter_map(|(property, name, form)| {
        let value = object.get(*property)?;
        Some((*property, Some(HeaderProperty { name, form: *form, all: false }), value))
    });
    let others = object.iter().filter(|(property, _)| property.starts_with("header:"));
    let others = others.map(|(property, value)| (property.as_str(), HeaderProperty::parse(property), value));
    for (property, header, value) in named.chain(others) {
        let reported = if within.is_empty() { property } else { within };
        // The reported property comes before the text.
        let said = |why: String| if within.is_empty() { why } else { format!("{property} {why}") };
        let Some(header) = header else {
            let is_form = HeaderProperty::parse_any_form(property).is_some();
            let why = if is_form { "has a form that the field does not have" } else { "is no header field" };
            invalid.add(reported, said(why.to_owned()));
            continue;
        };
        if value.is_null() {
            continue;
        }
        let name = header.name.to_ascii_lowercase();
        if let Some(other) = seen.get(&name) {
            if within.is_empty() {
                invalid.add(other, format!("is the same header field as {property}"));
            }
            invalid.add(reported, said(format!("is the same header field as {other}")));
            continue;
        }
        seen.insert(name, property);
        match field_values(header, value) {
            Some(values) => fields.extend(values.into_iter().map(|value| (header.name.to_owned(), value))),
            None => invalid.add(reported, said("has no value of its form, or has line breaks".to_owned())),
        }
    }
    fields
}

/// The value of each instance of a field.
fn field_values(header: HeaderProperty<'_>, value: &Value) -> Option<Vec<FieldValue>> {
    if header.name.len() > NAME_BYTES_MAX {
        return None;
    }
    if !header.all {
        return Some(vec![field_value(header.form, value)?]);
    }
    value.as_array()?.iter().map(|value| field_value(header.form, value)).collect()
}

/// A JSON value as the value of a header field; `None` when it does not have the form, or could end the line of the field.
fn field_value(form: Form, value: &Value) -> Option<FieldValue> {
    Some(match form {
        Form::Raw => FieldValue::Raw(line(value)?),
        Form::Text => FieldValue::Text(line(value)?),
        Form::Addresses => FieldValue::Addresses(addresses(value)?),
        Form::GroupedAddresses => {
            let groups = value.as_array()?.iter().map(group).collect::<Option<_>>()?;
            FieldValue::GroupedAddresses(groups)
        }
        Form::MessageIds => FieldValue::MessageIds(lines(value)?),
        Form::Date => FieldValue::Date(Date::parse(value.as_str()?)?),
        Form::Urls => FieldValue::Urls(lines(value)?),
    })
}

fn addresses(value: &Value) -> Option<Vec<Address>> {
    value.as_array()?.iter().map(address).collect()
}

fn address(value: &Value) -> Option<Address> {
    let object = only(value, &["name", "email"])?;
    Some(Address { name: nullable_line(object.get("name"))?, email: line(object.get("email")?)? })
}

fn group(value: &Value) -> Option<Group> {
    let object = only(value, &["name", "addresses"])?;
    Some(Group { name: nullable_line(object.get("name"))?, addresses: addresses(object.get("addresses")?)? })
}

/// An object that has no members other than these.
fn only<'a>(value: &'a Value, members: &[&str]) -> Option<&'a Map<String, Value>> {
    let object = value.as_object()?;
    object.keys().all(|key| members.contains(&key.as_str())).then_some(object)
}

fn lines(value: &Value) -> Option<Vec<String>> {
    value.as_array()?.iter().map(line).collect()
}

/// A text that is allowed in a header field: without line breaks and zero bytes.
fn line(value: &Value) -> Option<String> {
    let text = value.as_str()?;
    (!text.contains(['\r', '\n', '\0'])).then(|| text.to_owned())
}

fn nullable_line(value: Option<&Value>) -> Option<Option<String>> {
    match value {
        None | Some(Value::Null) => Some(None),
        Some(value) => line(value).map(Some),
    }
}

/// Reads the body of an Email object.
struct Bodies<'a> {
    /// The texts of `bodyValues`.
    values: HashMap<String, Arc<str>>,
    parts: usize,
    /// The property that is being read: errors are reported under its name.
    property: &'static str,
    invalid: &'a mut Invalid,
}

impl Bodies<'_> {
    fn bad(&mut self, why: impl Into<String>) {
        self.invalid.add(self.property, why);
    }

    /// ES1: `isTruncated` and `isEncodingProblem` may only be false.
    fn read_values(&mut self, email: &Map<String, Value>) {
        let values = match email.get("bodyValues") {
            None | Some(Value::Null) => return,
            Some(Value::Object(values)) => values,
            Some(_) => return self.bad("is no object"),
        };
        for (part, value) in values {
            let object = only(value, &["value", "isTruncated", "isEncodingProblem"]);
            let text = object.and_then(|object| object.get("value")).and_then(Value::as_str);
            let is_whole = object.is_some_and(|object| {
                let flags = ["isTruncated", "isEncodingProblem"];
                flags.iter().all(|flag| object.get(*flag).is_none_or(|flag| *flag == Value::Bool(false)))
            });
            match text {
                Some(text) if is_whole => {
                    self.values.insert(part.clone(), text.into());
                }
                _ => self.bad(format!("{part} is no whole text")),
            }
        }
    }

    /// `bodyStructure`, or the lists.
    fn body(&mut self, email: &Map<String, Value>) -> DraftBody {
        if let Some(structure) = present(email, "bodyStructure") {
            for list in ["textBody", "htmlBody", "attachments"] {
                if present(email, list).is_some() {
                    self.invalid.add(list, "can't be given beside bodyStructure");
                }
            }
            self.property = "bodyStructure";
            return DraftBody::Structure(Box::new(self.part(structure, 1)));
        }
        let text = present(email, "textBody").map(|list| self.only_part("textBody", list, "text/plain"));
        let html = present(email, "htmlBody").map(|list| self.only_part("htmlBody", list, "text/html"));
        let attachments = present(email, "attachments").map(|list| self.attachments(list));
        let mut attachments = attachments.unwrap_or_default();
        for part in &mut attachments {
            if part.fields.iter().any(|(name, _)| name.eq_ignore_ascii_case("Content-Disposition")) {
                continue;
            }
            // Without a disposition, a text or an image would be read back as a part of the body.
            let is_shown = html.is_some() && part.cid.is_some();
            let disposition = if is_shown { "inline" } else { "attachment" };
            part.disposition.get_or_insert_with(|| disposition.to_owned());
        }
        DraftBody::Lists { text, html, attachments }
    }

    /// ES1: exactly one part, of this type.
    fn only_part(&mut self, property: &'static str, list: &Value, media_type: &str) -> Box<DraftPart> {
        self.property = property;
        let part = match list.as_array().map(Vec::as_slice) {
            Some([part]) => self.part(part, 1),
            _ => {
                self.bad("is not a list of exactly one part");
                return Box::new(DraftPart::of(media_type, Content::Text(Arc::default())));
            }
        };
        // MIME's default is a plain text, also of a blob.
        let is_default = part.media_type.is_none() && media_type == "text/plain";
        if !is_default && part.media_type.as_deref() != Some(media_type) {
            self.bad(format!("is not of type {media_type}"));
        }
        Box::new(DraftPart { media_type: Some(media_type.to_owned()), ..part })
    }

    fn attachments(&mut self, list: &Value) -> Vec<DraftPart> {
        self.property = "attachments";
        let Some(list) = list.as_array() else {
            self.bad("is no list");
            return Vec::new();
        };
        list.iter().map(|part| self.part(part, 2)).collect()
    }

    /// One part with its sub-parts.
    fn part(&mut self, value: &Value, depth: usize) -> DraftPart {
        let empty = || DraftPart::of("text/plain", Content::Text(Arc::default()));
        let Some(object) = value.as_object() else {
            self.bad("has a part that is no object");
            return empty();
        };
        self.parts += 1;
        if self.parts > PARTS_MAX || depth > DEPTH_MAX {
            self.bad(format!("has more than {PARTS_MAX} parts, or more than {DEPTH_MAX} in each other"));
            return empty();
        }
        self.check_part_names(object);
        let content = self.content(object, depth);
        let media_type = self.media_type(object, &content);
        let charset = self.token(object, "charset");
        let fields = read_fields(object, &[], self.property, self.invalid);
        self.check_part_fields(object, &fields);
        DraftPart {
            media_type,
            name: self.line(object, "name"),
            charset,
            disposition: self.token(object, "disposition").map(|text| text.to_ascii_lowercase()),
            cid: self.line(object, "cid"),
            language: self.languages(object),
            location: self.line(object, "location"),
            fields,
            content,
        }
    }

    fn check_part_names(&mut self, object: &Map<String, Value>) {
        const KNOWN: [&str; 11] = [
            "partId",
            "blobId",
            "size",
            "name",
            "type",
            "charset",
            "disposition",
            "cid",
            "language",
            "location",
            "subParts",
        ];
        for name in object.keys() {
            if !KNOWN.contains(&name.as_str()) && !name.starts_with("header:") {
                self.bad(format!("a part can't have {name}"));
            }
        }
        if !matches!(object.get("size"), None | Some(Value::Null)) && present(object, "blobId").is_none() {
            self.bad("a part that is given by partId can't have a size");
        }
    }

    /// ES1: a leaf has either a partId of `bodyValues` or a blobId, a multipart neither.
    fn content(&mut self, object: &Map<String, Value>, depth: usize) -> Content {
        let part = present(object, "partId");
        let blob = present(object, "blobId");
        if let Some(parts) = present(object, "subParts") {
            if part.is_some() || blob.is_some() {
                self.bad("a multipart can't have a partId or a blobId");
            }
            let Some(parts) = parts.as_array().filter(|parts| !parts.is_empty()) else {
                self.bad("subParts is no list of parts");
                return Content::Parts(Vec::new());
            };
            return Content::Parts(parts.iter().map(|part| self.part(part, depth + 1)).collect());
        }
        match (part, blob) {
            (Some(Value::String(part)), None) => {
                if present(object, "charset").is_some() {
                    self.bad("a part that is given by partId can't have a charset");
                }
                if let Some(text) = self.values.get(part) {
                    return Content::Text(text.clone());
                }
                self.bad(format!("the partId {part} is not in bodyValues"));
            }
            (None, Some(Value::String(blob))) => return Content::Blob(blob.clone()),
            _ => self.bad("a part needs either a partId or a blobId"),
        }
        Content::Text(Arc::default())
    }

    fn media_type(&mut self, object: &Map<String, Value>, content: &Content) -> Option<String> {
        let is_multipart = matches!(content, Content::Parts(_));
        let given = present(object, "type")?.as_str().unwrap_or_default().to_ascii_lowercase();
        let is_type = given.split_once('/').is_some_and(|(kind, sub)| is_token(kind) && is_token(sub));
        if !is_type {
            self.bad("a part has a type that is none");
        } else if given.starts_with("multipart/") != is_multipart {
            self.bad("a part has subParts exactly when its type is multipart");
        }
        Some(given)
    }

    /// ES1: no Content-Transfer-Encoding, and no field that a property of the part sets already.
    fn check_part_fields(&mut self, object: &Map<String, Value>, fields: &Fields) {
        for (name, _) in fields {
            let lower = name.to_ascii_lowercase();
            let properties: &[&str] = match lower.as_str() {
                // The type decides how the part is written, so only its property may set it.
                "content-transfer-encoding" | "content-type" => {
                    self.bad(format!("a part can't have {name}"));
                    continue;
                }
                "content-disposition" => &["disposition", "name"],
                "content-id" => &["cid"],
                "content-language" => &["language"],
                "content-location" => &["location"],
                _ => continue,
            };
            if properties.iter().any(|property| present(object, property).is_some()) {
                self.bad(format!("a part has {name} twice"));
            }
        }
    }

    fn line(&mut self, object: &Map<String, Value>, name: &str) -> Option<String> {
        let value = present(object, name)?;
        let text = line(value);
        if text.is_none() {
            self.bad(format!("a part has a {name} that is no text of one line"));
        }
        text
    }

    fn token(&mut self, object: &Map<String, Value>, name: &str) -> Option<String> {
        let text = self.line(object, name)?;
        if !is_token(&text) {
            self.bad(format!("a part has a {name} that is no token"));
            return None;
        }
        Some(text)
    }

    fn languages(&mut self, object: &Map<String, Value>) -> Vec<String> {
        let Some(value) = present(object, "language") else { return Vec::new() };
        match lines(value).filter(|tags| tags.iter().all(|tag| is_token(tag))) {
            Some(tags) => tags,
            None => {
                self.bad("a part has a language that is no list of language tags");
                Vec::new()
            }
        }
    }
}

fn present<'a>(object: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    object.get(name).filter(|value| !value.is_null())
}

/// RFC 2045 §5.1.
fn is_token(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_graphic() && !b"()<>@,;:\\\"/[]?=".contains(&byte);
    !text.is_empty() && text.len() <= 127 && text.bytes().all(is_allowed)
}

impl DraftPart {
    fn of(media_type: &str, content: Content) -> Self {
        Self {
            media_type: Some(media_type.to_owned()),
            name: None,
            charset: None,
            disposition: None,
            cid: None,
            language: Vec::new(),
            location: None,
            fields: Vec::new(),
            content,
        }
    }

    /// Its type: the given one, or the one of its content.
    pub(crate) fn media_type(&self) -> &str {
        match (&self.media_type, &self.content) {
            (Some(media_type), _) => media_type,
            (None, Content::Parts(_)) => "multipart/mixed",
            (None, Content::Text(_)) => "text/plain",
            (None, Content::Blob(_)) => "application/octet-stream",
        }
    }
}

#[cfg(test)]
mod tests;
