//! The text of HTML, for previews and search.

mod entities;

use memchr::{memchr, memmem};

/// The text to search: without markup, comments, scripts and styles, with entities decoded; the values of the attributes `alt` and
/// `title` are included. White space is collapsed, and a block begins on a new line. Takes time linear in the length of any input.
pub fn text(html: &str) -> String {
    let mut writer =
        Writer { out: String::new(), gap: Gap::None, bytes_max: usize::MAX, is_for_search: true };
    writer.html(html);
    writer.out
}

/// The text that a reader sees first, about `bytes_max` bytes: like [`text`], but without titles.
pub(crate) fn visible(html: &str, bytes_max: usize) -> String {
    let mut writer = Writer { out: String::new(), gap: Gap::None, bytes_max, is_for_search: false };
    writer.html(html);
    writer.out
}

/// Cuts a text to `bytes_max` bytes at most, so that it does not end inside a tag.
pub(crate) fn cut(html: &str, bytes_max: usize) -> &str {
    let text = html.get(..html.floor_char_boundary(bytes_max)).unwrap_or(html);
    let mut from = 0;
    while let Some(at) = memchr(b'<', split(text, from).1.as_bytes()) {
        let start = from + at;
        // What follows the cut decides whether a `<` at its end begins a tag.
        let end = markup_length(split(html, start).1).map(|length| start + length);
        match end {
            Some(end) if end <= text.len() => from = end,
            _ => return split(text, start).0,
        }
    }
    text
}

/// Splits a text at a byte offset; all of it and an empty text if the offset is not a character boundary.
fn split(text: &str, at: usize) -> (&str, &str) {
    text.split_at_checked(at).unwrap_or((text, ""))
}

/// The white space to write before the next character.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Gap {
    None,
    Space,
    Line,
}

struct Writer {
    out: String,
    gap: Gap,
    bytes_max: usize,
    is_for_search: bool,
}

impl Writer {
    fn html(&mut self, html: &str) {
        let mut rest = html;
        while let Some(at) = memchr(b'<', rest.as_bytes()) {
            let (text, markup) = split(rest, at);
            self.text(text);
            if self.out.len() >= self.bytes_max {
                return;
            }
            rest = self.markup(markup);
        }
        self.text(rest);
    }

    /// Text between tags.
    fn text(&mut self, text: &str) {
        let mut rest = text;
        while let Some(at) = memchr(b'&', rest.as_bytes()) {
            let (before, reference) = split(rest, at);
            self.characters(before);
            let (character, length) = entity(reference).unwrap_or(('&', 1));
            self.character(character);
            rest = split(reference, length).1;
        }
        self.characters(rest);
    }

    fn characters(&mut self, text: &str) {
        for character in text.chars() {
            self.character(character);
            if self.out.len() >= self.bytes_max {
                return;
            }
        }
    }

    fn character(&mut self, character: char) {
        if character.is_whitespace() {
            self.gap = self.gap.max(Gap::Space);
            return;
        }
        match self.gap {
            _ if self.out.is_empty() => {}
            Gap::None => {}
            Gap::Space => self.out.push(' '),
            Gap::Line => self.out.push('\n'),
        }
        self.gap = Gap::None;
        self.out.push(character);
    }

    /// Handles what begins at a `<` and returns what follows it.
    fn markup<'h>(&mut self, markup: &'h str) -> &'h str {
        let Some(length) = markup_length(markup) else {
            return ""; // As in a browser: an element that is never closed is not shown.
        };
        let (tag, rest) = split(markup, length);
        let Some(name) = tag_name(tag) else {
            if length == 1 {
                self.character('<');
            }
            return rest;
        };
        let name = name.to_ascii_lowercase();
        self.gap = self.gap.max(gap_of(&name));
        let is_opening = !tag.starts_with("</");
        if !is_opening {
            return rest;
        }
        for (attribute, value) in Attributes::of(tag) {
            let is_title = attribute.eq_ignore_ascii_case("title") && self.is_for_search;
            if is_title || attribute.eq_ignore_ascii_case("alt") {
                self.gap = self.gap.max(Gap::Space);
                self.text(value);
                self.gap = self.gap.max(Gap::Space);
            }
        }
        let is_hidden = matches!(name.as_str(), "script" | "style") || name == "title" && !self.is_for_search;
        if is_hidden { behind_end_tag(rest, &name) } else { rest }
    }
}

/// The length of the tag, comment or declaration that begins at a `<`; 1 when the `<` is a character of the text. None when it
/// has no end.
fn markup_length(markup: &str) -> Option<usize> {
    let bytes = markup.as_bytes();
    if bytes.starts_with(b"<!--") {
        return memmem::find(bytes, b"-->").map(|at| at + 3);
    }
    match (bytes.get(1), bytes.get(2)) {
        (Some(b'!' | b'?'), _) => memchr(b'>', bytes).map(|at| at + 1),
        (Some(b'/'), Some(letter)) if letter.is_ascii_alphabetic() => memchr(b'>', bytes).map(|at| at + 1),
        (Some(letter), _) if letter.is_ascii_alphabetic() => opening_tag_length(bytes),
        _ => Some(1),
    }
}

/// A `>` inside a quoted value does not end a tag. A quote begins a value only after `=`.
fn opening_tag_length(bytes: &[u8]) -> Option<usize> {
    let mut quote = None;
    let mut last = b' ';
    for (at, &byte) in bytes.iter().enumerate() {
        match quote {
            Some(open) if byte == open => quote = None,
            Some(_) => {}
            None if byte == b'>' => return Some(at + 1),
            None if matches!(byte, b'"' | b'\'') && last == b'=' => quote = Some(byte),
            None => {}
        }
        if !byte.is_ascii_whitespace() {
            last = byte;
        }
    }
    None
}

/// The name in a tag; none in comments and declarations.
fn tag_name(tag: &str) -> Option<&str> {
    let inside = tag.trim_start_matches(['<', '/']);
    let end =
        inside.find(|c: char| c.is_ascii_whitespace() || matches!(c, '/' | '>')).unwrap_or(inside.len());
    let name = split(inside, end).0;
    name.starts_with(|c: char| c.is_ascii_alphabetic()).then_some(name)
}

/// The rest after the end tag of an element whose content is not text; empty when there is no end tag, as in a browser.
fn behind_end_tag<'h>(html: &'h str, name: &str) -> &'h str {
    for at in memmem::find_iter(html.as_bytes(), b"</") {
        let tag = split(html, at).1;
        let is_its_end = tag_name(tag.get(..tag.floor_char_boundary(name.len() + 3)).unwrap_or(tag))
            .is_some_and(|found| found.eq_ignore_ascii_case(name));
        if is_its_end {
            return markup_length(tag).map_or("", |length| split(tag, length).1);
        }
    }
    ""
}

/// The gap before and after an element.
fn gap_of(name: &str) -> Gap {
    const BLOCKS: [&str; 33] = [
        "address",
        "article",
        "aside",
        "blockquote",
        "body",
        "br",
        "center",
        "dd",
        "div",
        "dl",
        "dt",
        "fieldset",
        "figure",
        "footer",
        "form",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "header",
        "hr",
        "li",
        "main",
        "ol",
        "p",
        "pre",
        "section",
        "table",
        "title",
        "tr",
        "ul",
    ];
    match name {
        "td" | "th" | "img" | "option" | "input" | "button" => Gap::Space,
        _ if BLOCKS.binary_search(&name).is_ok() => Gap::Line,
        _ => Gap::None,
    }
}

/// The attributes of a tag that have a value.
struct Attributes<'h> {
    rest: &'h str,
}

impl<'h> Attributes<'h> {
    fn of(tag: &'h str) -> Self {
        let name = tag_name(tag).unwrap_or_default();
        let inside = tag.strip_suffix('>').unwrap_or(tag);
        Self { rest: split(inside, 1 + name.len()).1 }
    }
}

impl<'h> Iterator for Attributes<'h> {
    type Item = (&'h str, &'h str);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let is_between = |c: char| c.is_ascii_whitespace() || matches!(c, '/' | '=');
            let rest = self.rest.trim_start_matches(is_between);
            if rest.is_empty() {
                return None;
            }
            let (name, rest) = split(rest, rest.find(is_between).unwrap_or(rest.len()));
            let Some(value) = rest.trim_ascii_start().strip_prefix('=') else {
                self.rest = rest;
                continue;
            };
            let value = value.trim_ascii_start();
            let (value, rest) = match value.as_bytes().first() {
                Some(&quote @ (b'"' | b'\'')) => {
                    let inside = split(value, 1).1;
                    let (value, rest) =
                        split(inside, memchr(quote, inside.as_bytes()).unwrap_or(inside.len()));
                    (value, split(rest, 1).1)
                }
                _ => split(value, value.find(|c: char| c.is_ascii_whitespace()).unwrap_or(value.len())),
            };
            self.rest = rest;
            return Some((name, value));
        }
    }
}

/// The character of a reference such as `&amp;`, `&#38;` or `&#x26;` at the beginning, and the length of the reference.
fn entity(reference: &str) -> Option<(char, usize)> {
    const NAME_BYTES_MAX: usize = 10;
    let window = reference.get(1..reference.floor_char_boundary(NAME_BYTES_MAX + 2))?;
    let (name, _) = window.split_once(';')?;
    let character = match name.strip_prefix('#') {
        None => entities::named(name)?,
        Some(number) => numbered(number)?,
    };
    Some((character, name.len() + 2))
}

fn numbered(number: &str) -> Option<char> {
    let code = match number.strip_prefix(['x', 'X']) {
        Some(digits) => u32::from_str_radix(digits, 16).ok()?,
        None => number.parse().ok()?,
    };
    match u8::try_from(code) {
        // HTML reads these numbers as bytes of windows-1252.
        Ok(byte @ 0x80..=0x9f) => {
            encoding_rs::WINDOWS_1252.decode_without_bom_handling(&[byte]).0.chars().next()
        }
        Ok(0) => Some('\u{fffd}'),
        _ => char::from_u32(code),
    }
}

#[cfg(test)]
mod tests;
