//! Line breaks and long lines.

use std::borrow::Cow;

use memchr::{memchr, memchr_iter, memchr3, memrchr2};

/// The longest line that leaves this server, without its line break (RFC 5322 §2.1.1).
pub const LINE_BYTES_MAX: usize = 998;

/// The message with CRLF for each line break, also for a CR or LF alone, without NUL, its last line ended.
pub(super) fn normalized(message: &[u8]) -> Cow<'_, [u8]> {
    if is_normal(message) {
        return Cow::Borrowed(message);
    }
    let mut normal = Vec::with_capacity(message.len() + message.len() / 32 + 2);
    let mut rest = message;
    let mut is_after_cr = false;
    while !rest.is_empty() {
        let text_bytes = memchr3(b'\r', b'\n', 0, rest).unwrap_or(rest.len());
        let (text, after) = rest.split_at(text_bytes);
        if is_after_cr && !text.is_empty() {
            normal.extend_from_slice(b"\r\n");
            is_after_cr = false;
        }
        normal.extend_from_slice(text);
        rest = match after {
            // Several CR before one LF are one line break, as for the door.
            [b'\r', after @ ..] => {
                is_after_cr = true;
                after
            }
            [b'\n', after @ ..] => {
                normal.extend_from_slice(b"\r\n");
                is_after_cr = false;
                after
            }
            [_, after @ ..] => after,
            [] => after,
        };
    }
    if is_after_cr || !(normal.is_empty() || normal.ends_with(b"\r\n")) {
        normal.extend_from_slice(b"\r\n");
    }
    Cow::Owned(normal)
}

pub(super) fn is_normal(message: &[u8]) -> bool {
    (message.is_empty() || message.ends_with(b"\r\n")) && !is_broken(message)
}

/// Whether there is a NUL, or a CR or LF alone.
pub(super) fn is_broken(content: &[u8]) -> bool {
    if memchr(0, content).is_some() {
        return true;
    }
    let mut returns = memchr_iter(b'\r', content);
    // Each LF has the CR before it, and there is no other CR.
    let mut newlines = memchr_iter(b'\n', content);
    !newlines.all(|at| returns.next().is_some_and(|before| before + 1 == at)) || returns.next().is_some()
}

/// Whether a line is longer than [`LINE_BYTES_MAX`].
pub(super) fn has_long(message: &[u8]) -> bool {
    let mut start = 0;
    for end in memchr_iter(b'\n', message) {
        if end - start > LINE_BYTES_MAX + 1 {
            return true; // with its CR
        }
        start = end + 1;
    }
    message.len() - start > LINE_BYTES_MAX
}

/// The message with each long line broken before white space, or at the maximum length if there is none; the rest begins with a
/// space, which makes it the continuation of a header field.
pub(super) fn folded(message: &[u8]) -> Vec<u8> {
    let mut folded = Vec::with_capacity(message.len() + message.len() / 256 + 16);
    for line in message.split_inclusive(|byte| *byte == b'\n') {
        let mut text = line.strip_suffix(b"\r\n").unwrap_or(line);
        let line_break = line.get(text.len()..).unwrap_or_default();
        let mut is_first = true;
        loop {
            let space = usize::from(!is_first);
            if space + text.len() <= LINE_BYTES_MAX {
                break;
            }
            let window = text.get(..LINE_BYTES_MAX - space).unwrap_or(text);
            // White space with something before it.
            let begin = window.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
            let blank = window.get(begin..).and_then(|words| memrchr2(b' ', b'\t', words));
            let at = blank.map_or(char_start(window), |at| begin + at);
            let (piece, after) = text.split_at(at);
            if !is_first {
                folded.push(b' ');
            }
            folded.extend_from_slice(piece);
            folded.extend_from_slice(b"\r\n");
            // The space that begins the next line replaces the text's own white space, if there is some.
            text = after.strip_prefix(b" ").or_else(|| after.strip_prefix(b"\t")).unwrap_or(after);
            is_first = false;
        }
        if !is_first {
            folded.push(b' ');
        }
        folded.extend_from_slice(text);
        folded.extend_from_slice(line_break);
    }
    folded
}

/// The largest length up to which a text can be cut without cutting a UTF-8 character; all of it, if it is not UTF-8.
fn char_start(window: &[u8]) -> usize {
    let continued = window.iter().rev().take_while(|byte| (0x80..0xc0).contains(*byte)).count();
    let lead = window.len().saturating_sub(continued + 1);
    let is_cut = window.get(lead).is_some_and(|byte| *byte >= 0xc0) && lead > 0 && continued < 4;
    if is_cut { lead } else { window.len() }
}
