//! Text and JSON for people and scripts.

use std::{
    fmt::Display,
    io::{self, Write},
};

use indicatif::HumanCount;
use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter};

/// A number with its noun: `1 email`, `1,000 emails`.
pub(crate) fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{} {}", HumanCount(count), if count == 1 { one } else { many })
}

/// Reports damaged records that are missing in what a command has printed, and the command that lists them.
pub(crate) fn left_out(damaged: u64, check: impl Display) -> String {
    let records = counted(damaged, "damaged record was", "damaged records were");
    format!("{records} left out: see restante {check}")
}

/// How a list is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// Columns, for people.
    Table,
    /// One JSON object a line.
    Ndjson,
    /// One JSON array.
    Json,
}

/// How statistics are printed.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum ReportFormat {
    /// A table, for people.
    Text,
    /// One JSON object.
    Json,
}

/// The text on one line, without characters that could control the terminal of the reader.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if drives_terminal(c) { ' ' } else { c }).collect()
}

/// Whether a character is a command for the terminal rather than text: control characters, line ends, and those that change the writing
/// direction, which make a text look like another one.
pub(crate) fn drives_terminal(c: char) -> bool {
    let is_direction =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let is_line_end = matches!(c, '\u{2028}' | '\u{2029}');
    c.is_control() || is_direction || is_line_end
}

/// Writes a value as JSON in which no character controls a terminal: such characters are escaped, which does not change the value.
pub(crate) fn write_json(out: impl Write, value: &impl Serialize) -> io::Result<()> {
    let mut serializer = serde_json::Serializer::with_formatter(out, SafeFormatter);
    value.serialize(&mut serializer).map_err(io::Error::from)
}

/// JSON without spaces and with more escapes than it needs.
struct SafeFormatter;

impl Formatter for SafeFormatter {
    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        let mut rest = fragment;
        while let Some((at, c)) = rest.char_indices().find(|(_, c)| drives_terminal(*c)) {
            let (text, behind) = rest.split_at(at);
            CompactFormatter.write_string_fragment(writer, text)?;
            write!(writer, "\\u{:04x}", u32::from(c))?; // none of them is above U+FFFF
            rest = behind.get(c.len_utf8()..).unwrap_or_default();
        }
        CompactFormatter.write_string_fragment(writer, rest)
    }
}

/// The text cut to at most this many characters, the last of them an ellipsis if something was cut.
pub(crate) fn short(text: &str, chars_max: usize) -> String {
    if text.chars().count() <= chars_max {
        return text.to_owned();
    }
    let mut cut: String = text.chars().take(chars_max.saturating_sub(1)).collect();
    cut.push('…');
    cut
}
