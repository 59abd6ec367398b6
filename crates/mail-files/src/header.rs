//! Fields that programs add to the messages in their files.

use memchr::memchr;

/// The length of the first line, including its line break.
pub(crate) fn line_bytes(text: &[u8]) -> usize {
    memchr(b'\n', text).map_or(text.len(), |at| at + 1)
}

/// Whether a line is empty.
pub(crate) fn is_blank(line: &[u8]) -> bool {
    matches!(line, b"\n" | b"\r\n")
}

/// The value of the first line if it is this field, and what follows the line.
pub(crate) fn first_field<'t>(text: &'t [u8], name: &str) -> Option<(&'t [u8], &'t [u8])> {
    let (line, rest) = text.split_at_checked(line_bytes(text))?;
    let (found, value) = line.split_at_checked(name.len())?;
    let value = value.strip_prefix(b":")?;
    found.eq_ignore_ascii_case(name.as_bytes()).then(|| (value.trim_ascii(), rest))
}

/// A message without the fields with these names, in lowercase; there may be several fields of one name.
pub(crate) fn without_fields(message: &[u8], names: &[&str]) -> Vec<u8> {
    let mut kept = Vec::with_capacity(message.len());
    let mut rest = message;
    let mut is_dropped = false;
    while let Some((line, after)) =
        rest.split_at_checked(line_bytes(rest)).filter(|(line, _)| !line.is_empty())
    {
        if is_blank(line) {
            break;
        }
        let is_continued = line.first().is_some_and(|byte| matches!(byte, b' ' | b'\t'));
        if !is_continued {
            let name = memchr(b':', line).and_then(|at| line.get(..at)).unwrap_or_default().trim_ascii();
            is_dropped = names.iter().any(|dropped| name.eq_ignore_ascii_case(dropped.as_bytes()));
        }
        if !is_dropped {
            kept.extend_from_slice(line);
        }
        rest = after;
    }
    kept.extend_from_slice(rest);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_dropped_with_their_continuations_and_nothing_else() {
        let message = b"Status: RO\nSubject: x\nX-Keywords: a\n b\n\tc\nTo: y\n\nStatus: body\n";
        let kept = without_fields(message, &["status", "x-keywords"]);
        assert_eq!(kept, b"Subject: x\nTo: y\n\nStatus: body\n");
        assert_eq!(without_fields(b"no header", &["status"]), b"no header");
        assert_eq!(without_fields(b"", &["status"]), b"");
    }

    #[test]
    fn only_the_first_line_is_a_first_field() {
        assert_eq!(first_field(b"STATUS:  R \r\nTo: x", "Status"), Some((&b"R"[..], &b"To: x"[..])));
        assert_eq!(first_field(b"To: x\nStatus: R\n", "Status"), None);
        assert_eq!(first_field(b"Status", "Status"), None);
    }
}
