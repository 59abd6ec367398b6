use memchr::memchr;

use super::{
    scan::{Scanner, Token, is_space, without_quoted_pairs},
    text::{as_text, nfc},
};
use crate::{charset, transfer::octet};

/// A value with parameters: that of Content-Type or Content-Disposition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parameters {
    /// The text before the first semicolon, in lower case, without white space and comments: `text/plain`, `attachment`.
    pub value: String,
    /// Names in lower case and decoded values, in order of their first appearance, each name once.
    pub parameters: Vec<(String, String)>,
}

impl Parameters {
    /// The value of a parameter, whose name is given in lower case.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.parameters.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }
}

/// Parses a value with parameters, RFC 2045 and RFC 2231 (continuations, charsets).
///
/// A parameter in RFC 2231's form takes precedence over a plain one of the same name, and the first of two equal ones over the
/// second. The values of `name` and `filename` are also decoded by RFC 2047, and normalized to NFC: no standard allows that, but
/// it occurs in real mail.
pub fn as_parameters(value: &[u8]) -> Parameters {
    let mut pieces = Pieces { rest: value, has_quotes: true };
    let (head, first) = split_head(pieces.next().unwrap_or_default());
    let mut sections = Vec::new();
    for piece in std::iter::once(first).chain(pieces) {
        push_sections(piece, &mut sections);
    }
    Parameters { value: lower_case(&without_comments(head)), parameters: join(sections) }
}

/// Splits off a parameter that no semicolon separates from the value.
fn split_head(piece: &[u8]) -> (&[u8], &[u8]) {
    let before = memchr(b'=', piece).and_then(|at| piece.get(..at)).unwrap_or_default().trim_ascii_end();
    let space = before.iter().rposition(|byte| is_space(*byte));
    match space.and_then(|at| piece.split_at_checked(at)) {
        Some((head, parameter)) if !head.contains(&b'(') => (head, parameter),
        _ => (piece, b""),
    }
}

/// Adds the text between two semicolons; this may be several sections if semicolons are missing after quotes.
fn push_sections(piece: &[u8], sections: &mut Vec<Section>) {
    let mut rest = piece;
    while let Some(at) = memchr(b'=', rest) {
        let (name, value) = rest.split_at(at);
        let (value, after) = parameter_value(value.get(1..).unwrap_or_default());
        sections.extend(Section::new(name, value, sections.len()));
        rest = after;
    }
}

/// A parameter as written, or a piece of one.
#[derive(Debug)]
struct Section {
    name: String,
    form: Form,
    /// The number after the first `*`; 0 if there is none.
    number: u32,
    value: Vec<u8>,
    /// Its index in the field.
    order: usize,
}

/// The form of a section; the best form is the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Form {
    /// `name*=`, or `name*0*=`: with a charset, and octets in hexadecimal.
    Extended { is_continued: bool },
    /// `name*0=`.
    Continued,
    /// `name=`.
    Plain,
}

impl Section {
    /// A section; `None` if the name is malformed.
    fn new(name: &[u8], value: Vec<u8>, order: usize) -> Option<Self> {
        let name = lower_case(&without_comments(name));
        let (name, is_extended) = name.strip_suffix('*').map_or((name.as_str(), false), |name| (name, true));
        let (name, number) = match name.rsplit_once('*') {
            Some((name, number)) => (name, Some(number.parse().ok()?)),
            None => (name, None),
        };
        let form = match (is_extended, number) {
            (true, _) => Form::Extended { is_continued: number.is_some() },
            (false, Some(_)) => Form::Continued,
            (false, None) => Form::Plain,
        };
        let section = Self { name: name.to_owned(), form, number: number.unwrap_or_default(), value, order };
        let is_name = !name.is_empty() && name.bytes().all(is_token);
        is_name.then_some(section)
    }

    fn is_continued(&self) -> bool {
        matches!(self.form, Form::Continued | Form::Extended { is_continued: true })
    }
}

/// Joins sections, in the order in which the parameters first appear.
fn join(mut sections: Vec<Section>) -> Vec<(String, String)> {
    sections.sort_by(|a, b| (&a.name, a.number, a.form, a.order).cmp(&(&b.name, b.number, b.form, b.order)));
    let mut joined: Vec<(usize, String, String)> = Vec::new();
    for same_name in sections.chunk_by(|a, b| a.name == b.name) {
        let order = same_name.iter().map(|section| section.order).min().unwrap_or_default();
        let Some(first) = same_name.first().filter(|first| first.number == 0) else { continue };
        joined.push((order, first.name.clone(), value_of(first, same_name)));
    }
    joined.sort_by_key(|(order, ..)| *order);
    joined.into_iter().map(|(_, name, value)| (name, value)).collect()
}

/// The value of a parameter. `first` is its best first section, `sections` are all of its sections by number.
fn value_of(first: &Section, sections: &[Section]) -> String {
    if first.form == Form::Plain {
        return plain_value(first);
    }
    let (label, first_octets) = match first.form {
        Form::Extended { .. } => charset_and_octets(&first.value),
        _ => ("utf-8", first.value.clone()),
    };
    let mut octets = first_octets;
    let mut next = 1;
    for section in sections.iter().filter(|section| first.is_continued() && section.is_continued()) {
        if section.number != next {
            continue;
        }
        match section.form {
            Form::Extended { .. } => octets.extend(percent_decoded(&section.value)),
            _ => octets.extend_from_slice(&section.value),
        }
        next += 1;
    }
    let text = charset::decode(label, &octets).text;
    nfc(text.chars().filter(|character| !character.is_control()).collect())
}

/// The value of a parameter without RFC 2231: UTF-8 as in RFC 6532.
fn plain_value(section: &Section) -> String {
    let is_name = matches!(section.name.as_str(), "name" | "filename");
    if is_name { as_text(&section.value) } else { String::from_utf8_lossy(&section.value).into_owned() }
}

/// The charset's label, and the decoded octets, of `charset'language'octets`. Without the single quotes, all of it is octets of UTF-8.
fn charset_and_octets(value: &[u8]) -> (&str, Vec<u8>) {
    let mut pieces = value.splitn(3, |byte| *byte == b'\'');
    let (Some(label), Some(_language), Some(octets)) = (pieces.next(), pieces.next(), pieces.next()) else {
        return ("utf-8", percent_decoded(value));
    };
    let label = std::str::from_utf8(label).unwrap_or_default();
    (if label.is_empty() { "utf-8" } else { label }, percent_decoded(octets))
}

/// Decodes `%` and two hexadecimal digits; anything else is unchanged.
fn percent_decoded(value: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(value.len());
    let mut rest = value;
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        match (first, after) {
            (b'%', [high, low, after @ ..]) if let Some(octet) = octet(*high, *low) => {
                decoded.push(octet);
                rest = after;
            }
            (other, _) => decoded.push(other),
        }
    }
    decoded
}

/// Iterates over the text between semicolons that are not in quotes.
///
/// An unclosed quote would include everything that follows. So it and later ones do not count as quotes, which also keeps the
/// time linear.
struct Pieces<'v> {
    rest: &'v [u8],
    has_quotes: bool,
}

impl<'v> Iterator for Pieces<'v> {
    type Item = &'v [u8];

    fn next(&mut self) -> Option<&'v [u8]> {
        if self.rest.is_empty() {
            return None;
        }
        let closed = if self.has_quotes { piece_length(self.rest) } else { None };
        self.has_quotes = closed.is_some();
        let length = closed.or_else(|| memchr(b';', self.rest)).unwrap_or(self.rest.len());
        let (piece, after) = self.rest.split_at(length);
        self.rest = after.get(1..).unwrap_or_default();
        Some(piece)
    }
}

/// The number of octets before the first semicolon that is not in quotes, or all; `None` if a quote is not closed.
fn piece_length(value: &[u8]) -> Option<usize> {
    let mut is_in_quotes = false;
    let mut is_quoted = false;
    for (at, byte) in value.iter().enumerate() {
        match byte {
            _ if is_quoted => is_quoted = false,
            b'\\' if is_in_quotes => is_quoted = true,
            b'"' => is_in_quotes = !is_in_quotes,
            b';' if !is_in_quotes => return Some(at),
            _ => {}
        }
    }
    (!is_in_quotes).then_some(value.len())
}

/// A parameter's value without quotes and quoted pairs, or without a comment that is separated from it; and what follows the quotes.
fn parameter_value(value: &[u8]) -> (Vec<u8>, &[u8]) {
    let is_break = |byte: &u8| matches!(byte, b'\r' | b'\n' | 0);
    let value = value.trim_ascii();
    let mut scanner = Scanner::new(value);
    if let Some(Token::Quoted(quoted)) = scanner.next() {
        let mut unquoted = without_quoted_pairs(quoted);
        unquoted.retain(|byte| !is_break(byte));
        return (unquoted, scanner.rest());
    }
    let value = value.strip_prefix(b"\"").unwrap_or(value);
    let comment = value.windows(2).position(|pair| matches!(pair, [first, b'('] if is_space(*first)));
    let mut value = value.get(..comment.unwrap_or(value.len())).unwrap_or_default().trim_ascii().to_vec();
    value.retain(|byte| !is_break(byte));
    (value, b"")
}

/// RFC 2045's token: visible ASCII except `tspecials`.
pub(crate) fn is_token(byte: u8) -> bool {
    byte.is_ascii_graphic() && !b"()<>@,;:\\\"/[]?=".contains(&byte)
}

/// The octets without white space and comments.
fn without_comments(value: &[u8]) -> Vec<u8> {
    let mut plain = Vec::new();
    for token in Scanner::new(value) {
        match token {
            Token::Space | Token::Comment(_) => {}
            Token::Quoted(text) | Token::Literal(text) | Token::Encoded(_, text) | Token::Atom(text) => {
                plain.extend_from_slice(text);
            }
            Token::Special(special) => plain.push(special),
        }
    }
    plain
}

fn lower_case(text: &[u8]) -> String {
    String::from_utf8_lossy(text).to_ascii_lowercase()
}
