//! The fields of a header as bytes, each with its line breaks.

use std::ops::Range;

use memchr::memchr;

/// The field at an offset, with the lines that continue it; `None` at the empty line and at the end.
fn field_at(message: &[u8], at: usize) -> Option<Range<usize>> {
    let rest = message.get(at..)?;
    if rest.is_empty() || rest.starts_with(b"\r\n") || rest.starts_with(b"\n") {
        return None;
    }
    let mut end = 0;
    loop {
        let line = rest.get(end..)?;
        end += memchr(b'\n', line).map_or(line.len(), |newline| newline + 1);
        if !rest.get(end).is_some_and(|byte| matches!(byte, b' ' | b'\t')) {
            return Some(at..at + end);
        }
    }
}

/// The fields of a header, and the name of each; a line without a colon is its own name.
fn fields(message: &[u8]) -> impl Iterator<Item = (Range<usize>, &[u8])> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let field = field_at(message, at)?;
        at = field.end;
        let text = message.get(field.clone())?;
        let name = text.get(..memchr(b':', text).unwrap_or(text.len()))?;
        Some((field, name.trim_ascii_end()))
    })
}

/// The length of a header with the empty line after it; the whole length of a message without an empty line.
pub(crate) fn header_bytes(message: &[u8]) -> usize {
    let end = fields(message).last().map_or(0, |(field, _)| field.end);
    let rest = message.get(end..).unwrap_or_default();
    end + if rest.starts_with(b"\r\n") { 2 } else { usize::from(rest.starts_with(b"\n")) }
}

/// Whether a message has a field with a name.
pub(crate) fn has_field(message: &[u8], name: &str) -> bool {
    fields(message).any(|(_, found)| found.eq_ignore_ascii_case(name.as_bytes()))
}

/// The values of all fields with a name, trimmed.
pub(crate) fn field_values<'m>(message: &'m [u8], name: &str) -> impl Iterator<Item = &'m [u8]> {
    fields(message).filter(move |(_, found)| found.eq_ignore_ascii_case(name.as_bytes())).filter_map(
        |(field, _)| {
            let text = message.get(field)?;
            Some(text.get(memchr(b':', text)? + 1..)?.trim_ascii())
        },
    )
}

/// The message without the fields of these names; `None` when it has none of them.
pub(crate) fn without_fields(message: &[u8], names: &[&str]) -> Option<Vec<u8>> {
    let mut kept = Vec::new();
    let mut copied = 0;
    for (field, name) in fields(message) {
        if names.iter().any(|removed| name.eq_ignore_ascii_case(removed.as_bytes())) {
            kept.extend_from_slice(message.get(copied..field.start).unwrap_or_default());
            copied = field.end;
        }
    }
    if copied == 0 {
        return None;
    }
    kept.extend_from_slice(message.get(copied..).unwrap_or_default());
    Some(kept)
}
