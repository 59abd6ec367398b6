//! How messages are printed.

use std::io::{self, Write};

use restante_core::Timestamp;

use super::transfer::json::JsonEntry;
use crate::output::{Format, drives_terminal, printable, short, write_json};

/// The minimum and maximum width of a topic in a table, in characters.
const TOPIC_WIDTHS: std::ops::RangeInclusive<usize> = 13..=48;
/// The most characters of a payload in a table.
const PAYLOAD_CHARS_MAX: usize = 60;

/// Prints messages as they arrive, page by page.
pub(crate) struct Printer<W> {
    out: W,
    format: Format,
    topic_width: Option<usize>,
    printed: u64,
}

impl<W: Write> Printer<W> {
    pub(crate) fn new(out: W, format: Format) -> Self {
        Self { out, format, topic_width: None, printed: 0 }
    }

    /// How many messages were printed.
    pub(crate) fn printed(&self) -> u64 {
        self.printed
    }

    /// Prints a page and flushes it, so that a reader of a pipe sees it at once.
    pub(crate) fn page(&mut self, entries: &[JsonEntry]) -> io::Result<()> {
        if self.format == Format::Table && self.topic_width.is_none() {
            self.head(entries)?;
        }
        for entry in entries {
            match self.format {
                Format::Table => self.row(entry)?,
                Format::Ndjson => {
                    write_json(&mut self.out, entry)?;
                    self.out.write_all(b"\n")?;
                }
                Format::Json => {
                    self.out.write_all(if self.printed == 0 { b"[\n" } else { b",\n" })?;
                    write_json(&mut self.out, entry)?;
                }
            }
            self.printed += 1;
        }
        self.out.flush()
    }

    /// Prints what follows the last message.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        if self.format == Format::Json {
            self.out.write_all(if self.printed == 0 { b"[]\n" } else { b"\n]\n" })?;
        }
        self.out.flush()
    }

    /// The head of the table. The first page determines the width of the topics, since later ones are not known yet.
    fn head(&mut self, entries: &[JsonEntry]) -> io::Result<()> {
        let topics =
            entries.iter().filter_map(|entry| Some(entry.message.as_ref()?.content_topic.chars().count()));
        let width = topics.max().unwrap_or(0).clamp(*TOPIC_WIDTHS.start(), *TOPIC_WIDTHS.end());
        self.topic_width = Some(width);
        if entries.is_empty() {
            return Ok(());
        }
        writeln!(
            self.out,
            "{:<30}  {:<width$}  {:>7}  {:<10}  payload",
            "time", "content topic", "bytes", "hash"
        )
    }

    fn row(&mut self, entry: &JsonEntry) -> io::Result<()> {
        let width = self.topic_width.unwrap_or(*TOPIC_WIDTHS.start());
        let hash = short(&entry.message_hash, 10);
        let Some(message) = &entry.message else {
            return writeln!(self.out, "{:<30}  {:<width$}  {:>7}  {hash}", "", "", "");
        };
        let time = message.timestamp.map(|nanos| Timestamp(nanos).to_string()).unwrap_or_default();
        let topic = short(&printable(&message.content_topic), width);
        let payload = message.payload_bytes().unwrap_or_default();
        let shown = show_payload(&payload);
        writeln!(self.out, "{time:<30}  {topic:<width$}  {:>7}  {hash}  {shown}", payload.len())
    }
}

/// A payload as text if it is printable, otherwise its first bytes in hex.
fn show_payload(payload: &[u8]) -> String {
    let is_text = |text: &&str| !text.chars().any(|c| drives_terminal(c) && !c.is_whitespace());
    match std::str::from_utf8(payload).ok().filter(is_text) {
        Some(text) => short(&printable(text), PAYLOAD_CHARS_MAX),
        None => {
            let hex: String =
                payload.iter().take(PAYLOAD_CHARS_MAX).map(|byte| format!("{byte:02x}")).collect();
            format!("0x{}", short(&hex, PAYLOAD_CHARS_MAX - 2))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doors::waku::transfer::json::{JsonMessage, encode};

    fn entry(payload: &[u8]) -> JsonEntry {
        JsonEntry {
            message_hash: format!("0x{}", "ab".repeat(32)),
            message: Some(JsonMessage {
                payload: encode(payload),
                content_topic: "/toy/1/chat/proto".into(),
                timestamp: Some(1_554_076_800_000_000_000),
                ..JsonMessage::default()
            }),
            pubsub_topic: Some("/waku/2/rs/1/0".into()),
        }
    }

    fn print(format: Format, pages: &[&[JsonEntry]]) -> String {
        let mut out = Vec::new();
        let mut printer = Printer::new(&mut out, format);
        for page in pages {
            printer.page(page).unwrap();
        }
        printer.finish().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_table_shows_text_as_text_and_bytes_as_hex() {
        let table =
            print(Format::Table, &[&[entry("grüß\nGott".as_bytes()), entry(&[0, 255])], &[entry(b"more")]]);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 4, "one head, three rows");
        assert!(lines[0].starts_with("time "), "{table}");
        assert_eq!(
            lines[1],
            "2019-04-01T00:00:00.000000000Z  /toy/1/chat/proto       11  0xabababa…  grüß Gott"
        );
        assert!(lines[2].ends_with("  0x00ff"), "{table}");
    }

    #[test]
    fn nothing_in_a_message_drives_the_terminal() {
        let mut hostile = entry(b"\x1b[2Jboo");
        hostile.message.as_mut().unwrap().content_topic = "/\x1b[2J/1/x/proto".into();
        let table = print(Format::Table, &[&[hostile]]);
        assert!(!table.contains('\x1b'), "{table:?}");
    }

    /// Right-to-left overrides and similar characters show a text in another order; U+009B begins a control sequence.
    #[test]
    fn nothing_in_a_message_turns_text_around() {
        let controls = [
            '\u{61c}', '\u{9b}', '\u{200e}', '\u{200f}', '\u{2028}', '\u{202a}', '\u{202e}', '\u{2066}',
            '\u{2069}',
        ];
        for control in controls {
            let text = format!("pay {control}01 to me");
            let mut hostile = entry(text.as_bytes());
            hostile.message.as_mut().unwrap().content_topic = format!("/{control}/1/x/proto");
            for format in [Format::Table, Format::Ndjson, Format::Json] {
                let printed = print(format, &[&[hostile.clone()]]);
                assert!(!printed.contains(control), "{format:?} {printed:?}");
            }
            let json: JsonEntry =
                serde_json::from_str(&print(Format::Ndjson, &[&[hostile.clone()]])).unwrap();
            assert_eq!(json, hostile, "JSON means the same");
        }
    }

    #[test]
    fn json_is_one_array_whatever_the_pages() {
        for pages in [&[][..], &[&[][..]], &[&[entry(b"1"), entry(b"2")], &[entry(b"3")]]] {
            let array: Vec<JsonEntry> = serde_json::from_str(&print(Format::Json, pages)).unwrap();
            assert_eq!(array.len(), pages.iter().map(|page| page.len()).sum::<usize>());
        }
    }

    #[test]
    fn ndjson_is_one_line_a_message() {
        let text = print(Format::Ndjson, &[&[entry(b"1")], &[entry(b"2")]]);
        let entries: Vec<JsonEntry> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(entries, [entry(b"1"), entry(b"2")]);
    }
}
