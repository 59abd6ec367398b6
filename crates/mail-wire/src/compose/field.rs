//! Writing of header fields.

use super::{ComposeError, FieldValue, Problem};
use crate::header::{Address, Group, as_addresses, as_message_ids, as_urls, is_field_name, is_token};

/// Where lines are folded. RFC 2047, section 2 allows 76 octets for lines with encoded words, and 75 for the words; elsewhere two
/// octets may follow.
const COLUMN_MAX: usize = 76;
/// The most octets of a line without its line break, RFC 5322, section 2.1.1.
pub(super) const LINE_MAX: usize = 998;
/// The most octets of a word that is written without encoding; longer ones are encoded, so that they can be split.
const PLAIN_WORD_MAX: usize = 900;
/// The most octets of a name or a parameter that is written in one piece, quoted if necessary.
const PIECE_MAX: usize = 60;
/// The most octets of a section of a parameter, not counting its name and charset.
const SECTION_MAX: usize = 48;

/// Appends a field with its line break; nothing for a list without items.
pub(super) fn write(name: &str, value: &FieldValue, out: &mut Vec<u8>) -> Result<(), ComposeError> {
    if value.is_empty() {
        return Ok(());
    }
    let mut writer = FieldWriter::begin(name, out)?;
    match value {
        FieldValue::Raw(raw) => writer.raw(raw)?,
        FieldValue::Text(text) => writer.text(text)?,
        FieldValue::Addresses(addresses) => writer.addresses(addresses)?,
        FieldValue::GroupedAddresses(groups) => writer.groups(groups)?,
        FieldValue::MessageIds(ids) => writer.in_brackets(ids, b"", as_message_ids)?,
        FieldValue::Date(date) => writer.item(&date.to_rfc_5322())?,
        FieldValue::Urls(urls) => writer.in_brackets(urls, b",", as_urls)?,
    }
    writer.end();
    Ok(())
}

/// Writes one field, folded.
pub(super) struct FieldWriter<'f> {
    name: &'f str,
    out: &'f mut Vec<u8>,
    /// Octets of the line so far.
    column: usize,
}

impl<'f> FieldWriter<'f> {
    /// Writes the name and the colon.
    pub(super) fn begin(name: &'f str, out: &'f mut Vec<u8>) -> Result<Self, ComposeError> {
        if !is_field_name(name) || name.len() > COLUMN_MAX {
            return Err(ComposeError::new(name, Problem::Name));
        }
        let mut writer = Self { name, out, column: 0 };
        writer.push(name.as_bytes());
        writer.push(b":");
        Ok(writer)
    }

    pub(super) fn end(self) {
        self.out.extend_from_slice(b"\r\n");
    }

    pub(super) fn error(&self, problem: Problem) -> ComposeError {
        ComposeError::new(self.name, problem)
    }

    /// Appends without a fold.
    pub(super) fn push(&mut self, octets: &[u8]) {
        self.out.extend_from_slice(octets);
        self.column += octets.len();
    }

    /// Appends a space or a fold, and an item that can't be folded.
    pub(super) fn item(&mut self, item: &str) -> Result<(), ComposeError> {
        if self.column + 1 + item.len() > COLUMN_MAX {
            self.fold();
        }
        // Two octets are reserved for what follows an address.
        if self.column + 1 + item.len() + 2 > LINE_MAX {
            return Err(self.error(Problem::TooLong));
        }
        self.push(b" ");
        self.push(item.as_bytes());
        Ok(())
    }

    fn fold(&mut self) {
        self.out.extend_from_slice(b"\r\n");
        self.column = 0;
    }

    /// A value as it is, folded before white space.
    fn raw(&mut self, value: &str) -> Result<(), ComposeError> {
        self.refuse_line_breaks(value)?;
        let mut rest = value.as_bytes();
        while !rest.is_empty() {
            let is_space = |byte: &&u8| matches!(byte, b' ' | b'\t');
            let space = rest.iter().take_while(is_space).count();
            let word = rest.iter().skip(space).take_while(|byte| !is_space(byte)).count();
            let (chunk, after) = rest.split_at(space + word);
            let is_foldable = space > 0 && word > 0;
            if is_foldable && self.column + chunk.len() > COLUMN_MAX {
                self.fold();
            }
            if self.column + chunk.len() > LINE_MAX {
                return Err(self.error(Problem::TooLong));
            }
            self.push(chunk);
            rest = after;
        }
        Ok(())
    }

    pub(super) fn text(&mut self, text: &str) -> Result<(), ComposeError> {
        self.refuse_line_breaks(text)?;
        let text = printable(text);
        let words: Vec<&str> = text.split(' ').collect();
        // White space next to other white space, or at an end, would not be preserved when the field is parsed.
        let is_empty_beside = |at: usize| {
            let before = at.checked_sub(1).and_then(|before| words.get(before));
            [before, words.get(at + 1)].into_iter().flatten().any(|word| word.is_empty())
        };
        let mut encoded: Option<String> = None;
        for (at, word) in words.iter().enumerate() {
            let is_plain = word.is_ascii() && !word.contains("=?") && word.len() <= PLAIN_WORD_MAX;
            let needs_encoding = words.len() > 1 && (word.is_empty() || is_empty_beside(at)) || !is_plain;
            match (&mut encoded, needs_encoding) {
                (Some(run), true) => {
                    run.push(' ');
                    run.push_str(word);
                }
                (None, true) => encoded = Some((*word).to_owned()),
                (_, false) => {
                    self.encoded_words(encoded.take().as_deref().unwrap_or_default())?;
                    self.word(word)?;
                }
            }
        }
        self.encoded_words(encoded.as_deref().unwrap_or_default())
    }

    /// A word as it is; nothing of an empty text.
    fn word(&mut self, word: &str) -> Result<(), ComposeError> {
        if word.is_empty() { Ok(()) } else { self.item(word) }
    }

    /// Text as encoded words, the shorter of B and Q. The first word fills the line.
    fn encoded_words(&mut self, text: &str) -> Result<(), ComposeError> {
        const FRAME: usize = " =?utf-8?q??=".len();
        const FIRST_MIN: usize = 24;
        let q_length: usize = text.bytes().map(q_octet_length).sum();
        let is_q = q_length <= text.len().div_ceil(3) * 4;
        let octets_of = |room: usize| if is_q { room } else { room / 4 * 3 };
        let all = octets_of(COLUMN_MAX - FRAME);
        let rest_of_line = octets_of(COLUMN_MAX.saturating_sub(self.column + FRAME));
        let first = if rest_of_line < FIRST_MIN { all } else { rest_of_line };
        let length_of =
            |piece: &str| if is_q { piece.bytes().map(q_octet_length).sum() } else { piece.len() };
        for piece in pieces(text, first, all, length_of) {
            let word = if is_q {
                format!("=?utf-8?q?{}?=", q_encoded(piece))
            } else {
                format!("=?utf-8?b?{}?=", base64_simd::STANDARD.encode_to_string(piece))
            };
            self.item(&word)?;
        }
        Ok(())
    }

    fn addresses(&mut self, addresses: &[Address]) -> Result<(), ComposeError> {
        let mut is_first = true;
        for address in addresses {
            // Without a name and an address there is nothing to write.
            if address.email.is_empty()
                && address.name.as_deref().is_none_or(|name| display_name(name).is_empty())
            {
                continue;
            }
            if !is_first {
                self.push(b",");
            }
            is_first = false;
            self.address(address)?;
        }
        Ok(())
    }

    fn groups(&mut self, groups: &[Group]) -> Result<(), ComposeError> {
        let mut is_first = true;
        for group in groups {
            if !is_first {
                self.push(b",");
            }
            is_first = false;
            let Some(name) = &group.name else {
                self.addresses(&group.addresses)?;
                continue;
            };
            if display_name(name).is_empty() {
                self.item("\"\"")?;
            }
            self.phrase(name)?;
            self.push(b":");
            self.addresses(&group.addresses)?;
            self.push(b";");
        }
        Ok(())
    }

    fn address(&mut self, address: &Address) -> Result<(), ComposeError> {
        let email = address.email.as_str();
        self.refuse_line_breaks(email)?;
        let in_brackets = format!("<{email}>");
        if !is_plain_address(email) && !email.is_empty() && !is_read_again(email) {
            return Err(self.error(Problem::Ambiguous));
        }
        let name = address.name.as_deref().unwrap_or_default();
        self.phrase(name)?;
        let is_bare = display_name(name).is_empty() && is_plain_address(email);
        self.item(if is_bare { email } else { &in_brackets })
    }

    /// A display name: as it is, in quotes, or as encoded words.
    fn phrase(&mut self, name: &str) -> Result<(), ComposeError> {
        self.refuse_line_breaks(name)?;
        let name = display_name(name);
        if name.is_empty() {
            return Ok(());
        }
        let quoted = quoted(&name);
        if !name.is_ascii() || quoted.len() > PIECE_MAX {
            return self.encoded_words(&name);
        }
        let is_atom = |word: &str| !word.is_empty() && !word.contains("=?") && word.bytes().all(is_atext);
        if name.split(' ').all(is_atom) { self.item(&name) } else { self.item(&quoted) }
    }

    /// Appends items in brackets. It is an error if one would not be parsed as the same item.
    fn in_brackets(
        &mut self,
        items: &[String],
        separator: &[u8],
        read: impl Fn(&[u8]) -> Option<Vec<String>>,
    ) -> Result<(), ComposeError> {
        for (at, item) in items.iter().enumerate() {
            self.refuse_line_breaks(item)?;
            if at > 0 {
                self.push(separator);
            }
            let in_brackets = format!("<{item}>");
            let is_the_same = read(in_brackets.as_bytes()).is_some_and(|read| read == [item.as_str()]);
            if !is_the_same || item.contains(char::is_control) {
                return Err(self.error(Problem::Ambiguous));
            }
            self.item(&in_brackets)?;
        }
        Ok(())
    }

    /// A parameter with the semicolon before it.
    pub(super) fn parameter(&mut self, name: &str, value: &str) -> Result<(), ComposeError> {
        let is_name = !name.is_empty() && name.len() <= PIECE_MAX && name.bytes().all(is_attribute);
        if !is_name {
            return Err(self.error(Problem::Ambiguous));
        }
        self.refuse_line_breaks(value)?;
        let value = printable(value);
        let is_token = !value.is_empty() && value.bytes().all(is_token);
        let quoted = quoted(&value);
        // Parsers decode names by RFC 2047, too.
        let is_decoded = value.contains("=?") || value.starts_with(' ');
        if value.is_ascii() && !is_decoded && quoted.len() <= PIECE_MAX {
            self.push(b";");
            let value = if is_token { value } else { quoted };
            return self.item(&format!("{name}={value}"));
        }
        self.extended_parameter(name, &value)
    }

    /// A parameter by RFC 2231, in several pieces if it is long.
    fn extended_parameter(&mut self, name: &str, value: &str) -> Result<(), ComposeError> {
        let length_of = |piece: &str| piece.bytes().map(percent_octet_length).sum();
        let pieces = pieces(value, SECTION_MAX, SECTION_MAX, length_of);
        let is_single = pieces.len() <= 1;
        for (at, piece) in pieces.iter().enumerate() {
            let charset = if at == 0 { "utf-8''" } else { "" };
            let section = if is_single { String::new() } else { format!("*{at}") };
            self.push(b";");
            self.item(&format!("{name}{section}*={charset}{}", percent_encoded(piece)))?;
        }
        Ok(())
    }

    fn refuse_line_breaks(&self, value: &str) -> Result<(), ComposeError> {
        if value.contains(['\r', '\n', '\0']) { Err(self.error(Problem::LineBreak)) } else { Ok(()) }
    }
}

/// The text without control characters; a tab becomes a space.
fn printable(text: &str) -> String {
    let spaced = text.chars().map(|character| if character == '\t' { ' ' } else { character });
    spaced.filter(|character| !character.is_control()).collect()
}

/// A display name as it will be parsed: without control characters and surrounding white space.
fn display_name(name: &str) -> String {
    printable(name).trim().to_owned()
}

/// Whether an address is written without brackets if it has no name, and is certain to be parsed unchanged.
fn is_plain_address(email: &str) -> bool {
    let is_plain = |character: char| match u8::try_from(character) {
        Ok(byte) if byte.is_ascii() => is_atext(byte) || byte == b'.' || byte == b'@',
        _ => !character.is_control(),
    };
    !email.is_empty() && email.chars().all(is_plain)
}

/// Whether an address in brackets is parsed unchanged, and has no unclosed quote or comment that could end in another address.
fn is_read_again(email: &str) -> bool {
    let list = format!("<{email}>, \")\" <a@b>");
    let is_same = |address: &Address| address.name.is_none() && address.email == email;
    let read = as_addresses(list.as_bytes());
    !email.contains(char::is_control) && read.len() == 2 && read.first().is_some_and(is_same)
}

/// Splits text between characters into pieces: the first has at most the length `first`, others `max`.
fn pieces(text: &str, first: usize, max: usize, length_of: impl Fn(&str) -> usize) -> Vec<&str> {
    let mut pieces = Vec::new();
    let (mut start, mut length) = (0, 0);
    for (at, character) in text.char_indices() {
        let end = at + character.len_utf8();
        let added = length_of(text.get(at..end).unwrap_or_default());
        let limit = if pieces.is_empty() { first } else { max };
        if length + added > limit {
            pieces.extend(text.get(start..at));
            (start, length) = (at, 0);
        }
        length += added;
    }
    pieces.extend(text.get(start..).filter(|last| !last.is_empty()));
    pieces
}

/// Octets that the Q encoding leaves unchanged, also in a phrase (RFC 2047, section 5).
fn is_q_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!*+-/".contains(&byte)
}

fn q_octet_length(byte: u8) -> usize {
    if is_q_plain(byte) || byte == b' ' { 1 } else { 3 }
}

fn q_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len() * 3);
    for byte in text.bytes() {
        match byte {
            b' ' => encoded.push('_'),
            _ if is_q_plain(byte) => encoded.push(char::from(byte)),
            _ => encoded.push_str(&format!("={byte:02X}")),
        }
    }
    encoded
}

/// RFC 2231's attribute-char.
fn is_attribute(byte: u8) -> bool {
    is_token(byte) && !b"*'%".contains(&byte)
}

fn percent_octet_length(byte: u8) -> usize {
    if is_attribute(byte) { 1 } else { 3 }
}

fn percent_encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len() * 3);
    for byte in text.bytes() {
        if is_attribute(byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// RFC 5322's atext.
fn is_atext(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-/=?^_`{|}~".contains(&byte)
}

/// A quoted string.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        if matches!(character, '"' | '\\') {
            quoted.push('\\');
        }
        quoted.push(character);
    }
    quoted.push('"');
    quoted
}
