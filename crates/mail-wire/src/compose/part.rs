//! Writing of parts: their fields, and multiparts.

use std::{borrow::Cow, collections::HashSet};

use memchr::memmem;

use super::{
    ComposeError, Content, DEPTH_MAX, FieldValue, Part, Problem,
    body::{self, Encoding},
    field::{self, FieldWriter},
};
use crate::header::is_token;

/// The beginning of boundaries. A random number in hexadecimal digits and an underscore follow.
const BOUNDARY_START: &str = "=_";
const BOUNDARY_DIGITS: usize = 32;

/// A part with what must be known of all of them before one can be written.
struct Planned<'p> {
    part: &'p Part,
    encoding: Encoding,
    body: PlannedBody<'p>,
}

enum PlannedBody<'p> {
    Leaf(Cow<'p, [u8]>),
    Parts(Vec<Planned<'p>>),
}

/// Appends the fields of the root part, the empty line and the body.
pub(super) fn write_root(root: &Part, seed: [u8; 16], out: &mut Vec<u8>) -> Result<(), ComposeError> {
    let root = Planned::new(root, 0)?;
    let mut writer = PartWriter { boundary: boundary(&root, seed), multiparts: 0, out };
    writer.part(&root)?;
    // Otherwise parsers would treat the message as truncated, or add a line break that changes it.
    match root.encoding {
        Encoding::Base64 => writer.out.extend_from_slice(b"\r\n"),
        Encoding::QuotedPrintable if !writer.out.ends_with(b"\n") => writer.out.extend_from_slice(b"=\r\n"),
        _ => {}
    }
    Ok(())
}

impl<'p> Planned<'p> {
    fn new(part: &'p Part, depth: usize) -> Result<Self, ComposeError> {
        if depth > DEPTH_MAX {
            return Err(ComposeError::new("Content-Type", Problem::Depth));
        }
        let (kind, subtype) = part.media_type.split_once('/').unwrap_or_default();
        let is_name = |name: &str| (1..=127).contains(&name.len()) && name.bytes().all(is_token);
        let is_multipart = kind.eq_ignore_ascii_case("multipart");
        if !is_name(kind) || !is_name(subtype) || is_multipart != matches!(part.content, Content::Parts(_)) {
            return Err(ComposeError::new("Content-Type", Problem::MediaType));
        }
        let content = match &part.content {
            Content::Text(text) => body::with_crlf(text),
            Content::Bytes(bytes) => Cow::Borrowed(bytes.as_ref()),
            Content::Parts(parts) => {
                let parts = parts.iter().map(|part| Self::new(part, depth + 1));
                let parts = parts.collect::<Result<Vec<_>, _>>()?;
                let has_octets = parts.iter().any(|part| part.encoding == Encoding::EightBit);
                let encoding = if has_octets { Encoding::EightBit } else { Encoding::SevenBit };
                return Ok(Self { part, encoding, body: PlannedBody::Parts(parts) });
            }
        };
        let is_text = matches!(part.content, Content::Text(_)) || kind.eq_ignore_ascii_case("text");
        let is_message = kind.eq_ignore_ascii_case("message");
        let encoding = Encoding::of(&content, is_text, is_message);
        Ok(Self { part, encoding, body: PlannedBody::Leaf(content) })
    }

    /// Adds the numbers of all boundaries that occur in the part. None can occur in base64 and quoted-printable, as they begin
    /// with `=_`.
    fn add_numbers(&self, numbers: &mut HashSet<u128>) {
        for (name, _) in &self.part.fields {
            numbers.extend(numbers_in(name.as_bytes()));
        }
        match &self.body {
            PlannedBody::Leaf(content) => {
                if matches!(self.encoding, Encoding::SevenBit | Encoding::EightBit) {
                    numbers.extend(numbers_in(content));
                }
            }
            PlannedBody::Parts(parts) => {
                for part in parts {
                    part.add_numbers(numbers);
                }
            }
        }
    }
}

/// The common beginning of all boundaries of the message, which occurs nowhere in it.
fn boundary(root: &Planned<'_>, seed: [u8; 16]) -> String {
    let mut taken = HashSet::new();
    root.add_numbers(&mut taken);
    let mut number = u128::from_be_bytes(seed);
    while taken.contains(&number) {
        number = number.wrapping_add(1);
    }
    format!("{BOUNDARY_START}{number:0BOUNDARY_DIGITS$x}_")
}

/// The numbers in places where a text could begin with a boundary.
fn numbers_in(content: &[u8]) -> impl Iterator<Item = u128> {
    memmem::find_iter(content, BOUNDARY_START).filter_map(|at| {
        let start = at + BOUNDARY_START.len();
        let digits = std::str::from_utf8(content.get(start..start + BOUNDARY_DIGITS)?).ok()?;
        u128::from_str_radix(digits, 16).ok()
    })
}

struct PartWriter<'w> {
    boundary: String,
    /// The number of multiparts so far.
    multiparts: usize,
    out: &'w mut Vec<u8>,
}

impl PartWriter<'_> {
    fn part(&mut self, planned: &Planned<'_>) -> Result<(), ComposeError> {
        // The last character ensures that no boundary is the beginning of another.
        let boundary = format!("{}{}_", self.boundary, self.multiparts);
        self.fields(planned, &boundary)?;
        self.out.extend_from_slice(b"\r\n");
        match &planned.body {
            PlannedBody::Leaf(content) => planned.encoding.write(content, self.out),
            PlannedBody::Parts(parts) => {
                self.multiparts += 1;
                for part in parts {
                    self.out.extend_from_slice(format!("--{boundary}\r\n").as_bytes());
                    self.part(part)?;
                    self.out.extend_from_slice(b"\r\n");
                }
                self.out.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
            }
        }
        Ok(())
    }

    fn fields(&mut self, planned: &Planned<'_>, boundary: &str) -> Result<(), ComposeError> {
        let part = planned.part;
        for (name, value) in &part.fields {
            if is_reserved(name, part) {
                return Err(ComposeError::new(name, Problem::Reserved));
            }
            field::write(name, value, self.out)?;
        }
        self.content_type(part, boundary)?;
        self.content_disposition(part)?;
        if let Some(cid) = &part.cid {
            field::write("Content-ID", &FieldValue::MessageIds(vec![cid.clone()]), self.out)?;
        }
        if !part.languages.is_empty() {
            self.content_language(&part.languages)?;
        }
        if let Some(location) = &part.location {
            field::write("Content-Location", &FieldValue::Text(location.clone()), self.out)?;
        }
        if planned.encoding != Encoding::SevenBit {
            let encoding = format!(" {}", planned.encoding.name());
            field::write("Content-Transfer-Encoding", &FieldValue::Raw(encoding), self.out)?;
        }
        Ok(())
    }

    fn content_type(&mut self, part: &Part, boundary: &str) -> Result<(), ComposeError> {
        let mut writer = FieldWriter::begin("Content-Type", self.out)?;
        writer.item(&part.media_type.to_ascii_lowercase())?;
        let given = match &part.content {
            Content::Text(_) => Some(("charset", "utf-8")),
            Content::Bytes(_) => None,
            Content::Parts(_) => Some(("boundary", boundary)),
        };
        if let Some((name, value)) = given {
            writer.parameter(name, value)?;
        }
        let name = part.name.as_deref().filter(|_| part.disposition.is_none());
        for (parameter, value) in &part.parameters {
            let is = |name: &str| parameter.eq_ignore_ascii_case(name);
            let is_given = given.is_some_and(|(name, _)| is(name)) || (is("name") && part.name.is_some());
            if !is_given {
                writer.parameter(parameter, value)?;
            }
        }
        if let Some(name) = name {
            writer.parameter("name", name)?;
        }
        writer.end();
        Ok(())
    }

    fn content_disposition(&mut self, part: &Part) -> Result<(), ComposeError> {
        let Some(disposition) = &part.disposition else { return Ok(()) };
        let mut writer = FieldWriter::begin("Content-Disposition", self.out)?;
        if disposition.is_empty() || !disposition.bytes().all(is_token) {
            return Err(writer.error(Problem::Ambiguous));
        }
        writer.item(disposition)?;
        if let Some(name) = &part.name {
            writer.parameter("filename", name)?;
        }
        writer.end();
        Ok(())
    }

    fn content_language(&mut self, languages: &[String]) -> Result<(), ComposeError> {
        let mut writer = FieldWriter::begin("Content-Language", self.out)?;
        for (at, language) in languages.iter().enumerate() {
            let is_tag = !language.is_empty()
                && language.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
            if !is_tag {
                return Err(writer.error(Problem::Ambiguous));
            }
            if at > 0 {
                writer.push(b",");
            }
            writer.item(language)?;
        }
        writer.end();
        Ok(())
    }
}

/// Whether a field is written by the part's properties.
fn is_reserved(name: &str, part: &Part) -> bool {
    let is = |field: &str| name.eq_ignore_ascii_case(field);
    is("Content-Type")
        || is("Content-Transfer-Encoding")
        || (is("Content-Disposition") && part.disposition.is_some())
        || (is("Content-ID") && part.cid.is_some())
        || (is("Content-Language") && !part.languages.is_empty())
        || (is("Content-Location") && part.location.is_some())
}
