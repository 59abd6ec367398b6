//! The canonical form "relaxed" of header fields and bodies (RFC 6376 §3.4.2, §3.4.4).

use aws_lc_rs::digest::{Context, Digest, SHA256};
use memchr::memchr_iter;

/// How much of a canonical body is collected before it is hashed.
const CHUNK_BYTES: usize = 16 << 10;

/// Appends a header field: its name in lowercase, a colon, its value unfolded, with single spaces and none at its ends. No line break follows.
pub(super) fn field(name: &str, value: &[u8], to: &mut Vec<u8>) {
    to.extend(name.bytes().map(|byte| byte.to_ascii_lowercase()));
    to.push(b':');
    let mut is_first = true;
    // RFC 6376 §2.8: white space is SP and HTAB; line breaks of folds are removed.
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
    for word in value.split(is_space).filter(|word| !word.is_empty()) {
        if !is_first {
            to.push(b' ');
        }
        to.extend_from_slice(word);
        is_first = false;
    }
}

/// The SHA-256 of a body in canonical form: in one pass, and a buffer of fixed size.
pub(super) fn body_hash(body: &[u8]) -> Digest {
    let mut hasher = BodyHasher { context: Context::new(&SHA256), chunk: Vec::new(), empty_lines: 0 };
    let mut start = 0;
    for end in memchr_iter(b'\n', body) {
        let is_line_end = end > start && body.get(end - 1) == Some(&b'\r');
        if is_line_end {
            hasher.line(body.get(start..end - 1).unwrap_or_default());
            start = end + 1;
        }
    }
    let rest = body.get(start..).unwrap_or_default();
    if !rest.is_empty() {
        hasher.line(rest); // a last line without its end gets one
    }
    hasher.finish()
}

struct BodyHasher {
    context: Context,
    chunk: Vec<u8>,
    /// Empty lines that count only when another line follows.
    empty_lines: usize,
}

impl BodyHasher {
    /// Adds a line, without its end.
    fn line(&mut self, line: &[u8]) {
        let length = line.iter().rposition(|byte| !is_space(*byte)).map_or(0, |last| last + 1);
        let line = line.get(..length).unwrap_or_default();
        if line.is_empty() {
            self.empty_lines += 1;
            return;
        }
        for _ in 0..std::mem::take(&mut self.empty_lines) {
            self.push(b"\r\n");
        }
        self.words(line);
        self.push(b"\r\n");
    }

    /// Adds a line with each run of white space as one space.
    fn words(&mut self, line: &[u8]) {
        let mut rest = line;
        while let Some(at) = rest.iter().position(|byte| is_space(*byte)) {
            let (word, spaces) = rest.split_at(at);
            self.push(word);
            self.push(b" ");
            let behind = spaces.iter().position(|byte| !is_space(*byte)).unwrap_or(spaces.len());
            rest = spaces.get(behind..).unwrap_or_default();
        }
        self.push(rest);
    }

    fn push(&mut self, bytes: &[u8]) {
        if bytes.len() > CHUNK_BYTES {
            self.flush();
            self.context.update(bytes);
            return;
        }
        if self.chunk.len() + bytes.len() > CHUNK_BYTES {
            self.flush();
        }
        self.chunk.extend_from_slice(bytes);
    }

    fn flush(&mut self) {
        self.context.update(&self.chunk);
        self.chunk.clear();
    }

    fn finish(mut self) -> Digest {
        self.flush();
        self.context.finish()
    }
}

fn is_space(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

/// The text of a signature's field with the value of its `b=` removed (RFC 6376 §3.5): what is signed of the field itself.
#[cfg(test)]
pub(super) fn without_signature(value: &str) -> String {
    let at = value.split(';').scan(0, |at, tag| {
        let start = *at;
        *at += tag.len() + 1;
        Some((start, tag))
    });
    for (start, tag) in at {
        let (name, content) = tag.split_once('=').unwrap_or((tag, ""));
        if name.trim() == "b" {
            let end = start + tag.len();
            return format!("{}{}", &value[..end - content.len()], &value[end..]);
        }
    }
    value.to_owned()
}
