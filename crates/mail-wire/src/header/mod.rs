//! Header fields, and the forms in which JMAP returns their values (RFC 8621, section 4.1.2).
//!
//! The functions for the forms take a field's value as in [`Field::value`]: the octets after the colon, with folds. All of them
//! parse invalid values as well as possible, as real mail breaks every rule: RFC 5322 with its obsolete syntax, RFC 6532 (UTF-8
//! in fields), RFC 2047 only where it is allowed.

mod addresses;
mod bracketed;
mod date;
pub(crate) mod encoded_word;
mod form;
mod parameters;
mod scan;
mod text;

use memchr::memchr;

pub use addresses::{Address, Group, as_addresses, as_grouped_addresses};
pub use bracketed::{as_message_ids, as_urls};
pub use date::{Date, as_date};
pub use form::{Form, HeaderProperty};
pub(crate) use parameters::is_token;
pub use parameters::{Parameters, as_parameters};
pub use text::{as_raw, as_text};

/// The header fields of a message or of a part of one.
#[derive(Clone, Copy, Debug)]
pub struct Header<'m> {
    fields: &'m [u8],
    bytes: usize,
}

/// A header field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'m> {
    /// The name as written: visible ASCII without a colon.
    pub name: &'m str,
    /// The octets after the colon: with folds, without the last line break.
    pub value: &'m [u8],
}

impl<'m> Header<'m> {
    /// The header of a message or part: everything up to the first empty line, or to the end. Lines end with LF or CRLF.
    pub fn parse(message: &'m [u8]) -> Self {
        let mut rest = message;
        while let Some((line, after)) = split_line(rest) {
            if without_line_break(line).is_empty() {
                break;
            }
            rest = after;
        }
        let end = message.len() - rest.len();
        let empty_line = match rest {
            [b'\r', b'\n', ..] => 2,
            [b'\n', ..] => 1,
            _ => 0,
        };
        Self { fields: message.get(..end).unwrap_or_default(), bytes: end + empty_line }
    }

    /// All fields in order. Lines that are not fields, such as the `From ` line of an mbox, are left out.
    pub fn fields(&self) -> impl Iterator<Item = Field<'m>> + use<'m> {
        let mut rest = self.fields;
        std::iter::from_fn(move || {
            while !rest.is_empty() {
                let (field, after) = rest.split_at(field_end(rest));
                rest = after;
                if let Some(field) = Field::parse(field) {
                    return Some(field);
                }
            }
            None
        })
    }

    /// The last field of that name, in any case: the instance that JMAP uses for a field that may occur only once.
    pub fn last(&self, name: &str) -> Option<Field<'m>> {
        self.all(name).last()
    }

    /// All fields of that name, in any case and in order.
    pub fn all<'n>(&self, name: &'n str) -> impl Iterator<Item = Field<'m>> + use<'m, 'n> {
        self.fields().filter(move |field| field.is(name))
    }

    /// The length of the header in octets, including the empty line after it: the offset of the body.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl<'m> Field<'m> {
    /// Whether the field has that name, in any case.
    pub fn is(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }

    /// Parses a field from its lines; white space before the colon is obsolete syntax.
    fn parse(lines: &'m [u8]) -> Option<Self> {
        let (name, value) = lines.split_at(memchr(b':', lines)?);
        let name = std::str::from_utf8(name).ok()?.trim_end_matches([' ', '\t']);
        let value = value.get(1..)?;
        is_field_name(name).then(|| Self { name, value: without_line_break(value) })
    }
}

/// Whether a text can be a field's name: visible ASCII without a colon, and not empty.
pub(crate) fn is_field_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':')
}

/// The first line with its line break, and what follows; `None` at the end.
fn split_line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = memchr(b'\n', bytes).map_or(bytes.len(), |at| at + 1);
    if length == 0 { None } else { bytes.split_at_checked(length) }
}

/// Where the first field ends: after the first line that isn't followed by white space.
fn field_end(bytes: &[u8]) -> usize {
    let mut rest = bytes;
    while let Some((_, after)) = split_line(rest) {
        rest = after;
        if !after.starts_with(b" ") && !after.starts_with(b"\t") {
            break;
        }
    }
    bytes.len() - rest.len()
}

fn without_line_break(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

#[cfg(test)]
mod tests;
