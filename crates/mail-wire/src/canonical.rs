//! The canonical forms of header fields and bodies, which DKIM and ARC sign (RFC 6376 §3.4).

use memchr::{memchr, memchr_iter};

/// How much of a canonical body is buffered before it is passed on.
const CHUNK_BYTES: usize = 16 << 10;

/// A canonical form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canonical {
    /// As written, except for empty lines at the end of the body (RFC 6376 §3.4.1, §3.4.3).
    Simple,
    /// Without differences in white space, or in the case of field names (RFC 6376 §3.4.2, §3.4.4).
    Relaxed,
}

impl Canonical {
    /// Appends a header field. `name` is what precedes the colon, `value` what follows it without the last line break; no line
    /// break is appended.
    pub fn append_field(self, name: &[u8], value: &[u8], to: &mut Vec<u8>) {
        if self == Self::Simple {
            to.extend_from_slice(name);
            to.push(b':');
            to.extend_from_slice(value);
            return;
        }
        to.extend(name.trim_ascii_end().iter().map(u8::to_ascii_lowercase));
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

    /// Passes a body in canonical form to `sink`, in order: in one pass, and with a buffer of fixed size.
    pub fn body(self, body: &[u8], sink: &mut dyn FnMut(&[u8])) {
        let mut writer = BodyWriter { form: self, sink, chunk: Vec::new(), empty_lines: 0, is_empty: true };
        let mut start = 0;
        for end in memchr_iter(b'\n', body) {
            let is_line_end = end > start && body.get(end - 1) == Some(&b'\r');
            if is_line_end {
                writer.line(body.get(start..end - 1).unwrap_or_default());
                start = end + 1;
            }
        }
        let rest = body.get(start..).unwrap_or_default();
        if !rest.is_empty() {
            writer.line(rest); // a last line without a line break gets one
        }
        if writer.is_empty && self == Self::Simple {
            writer.push(b"\r\n"); // RFC 6376 §3.4.3: an empty body is a line break
        }
        writer.flush();
    }
}

/// The value of a signature's field with an empty `b=` (RFC 6376 §3.5): this is what the signature covers of its own field.
pub fn without_signature(value: &[u8]) -> Vec<u8> {
    let mut unsigned = Vec::with_capacity(value.len());
    for (number, tag) in value.split(|byte| *byte == b';').enumerate() {
        if number > 0 {
            unsigned.push(b';');
        }
        let equals = memchr(b'=', tag);
        let (name, _) = tag.split_at(equals.unwrap_or(tag.len()));
        let is_signature = equals.is_some() && name.trim_ascii() == b"b";
        unsigned.extend_from_slice(if is_signature { name } else { tag });
        if is_signature {
            unsigned.push(b'=');
        }
    }
    unsigned
}

struct BodyWriter<'s> {
    form: Canonical,
    sink: &'s mut dyn FnMut(&[u8]),
    chunk: Vec<u8>,
    /// Empty lines, which count only if another line follows.
    empty_lines: usize,
    is_empty: bool,
}

impl BodyWriter<'_> {
    /// Adds a line, without its line break.
    fn line(&mut self, line: &[u8]) {
        let length = match self.form {
            Canonical::Simple => line.len(),
            Canonical::Relaxed => line.iter().rposition(|byte| !is_space(*byte)).map_or(0, |last| last + 1),
        };
        let line = line.get(..length).unwrap_or_default();
        if line.is_empty() {
            self.empty_lines += 1;
            return;
        }
        for _ in 0..std::mem::take(&mut self.empty_lines) {
            self.push(b"\r\n");
        }
        match self.form {
            Canonical::Simple => self.push(line),
            Canonical::Relaxed => self.words(line),
        }
        self.push(b"\r\n");
    }

    /// Adds a line with each run of white space replaced by one space.
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
        self.is_empty = false;
        if bytes.len() > CHUNK_BYTES {
            self.flush();
            (self.sink)(bytes);
            return;
        }
        if self.chunk.len() + bytes.len() > CHUNK_BYTES {
            self.flush();
        }
        self.chunk.extend_from_slice(bytes);
    }

    fn flush(&mut self) {
        if !self.chunk.is_empty() {
            (self.sink)(&self.chunk);
            self.chunk.clear();
        }
    }
}

fn is_space(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(form: Canonical, text: &str) -> String {
        let mut canonical = Vec::new();
        form.body(text.as_bytes(), &mut |bytes| canonical.extend_from_slice(bytes));
        String::from_utf8(canonical).unwrap()
    }

    fn field(form: Canonical, name: &str, value: &str) -> String {
        let mut canonical = Vec::new();
        form.append_field(name.as_bytes(), value.as_bytes(), &mut canonical);
        String::from_utf8(canonical).unwrap()
    }

    #[test]
    fn the_examples_of_rfc_6376_section_3_4_5_hold() {
        assert_eq!(field(Canonical::Relaxed, "A", " X"), "a:X");
        assert_eq!(field(Canonical::Relaxed, "B ", " Y\t\r\n\tZ  "), "b:Y Z");
        assert_eq!(field(Canonical::Simple, "B ", " Y\t\r\n\tZ  "), "B : Y\t\r\n\tZ  ");
        assert_eq!(body(Canonical::Relaxed, " C \r\nD \t E\r\n\r\n\r\n"), " C\r\nD E\r\n");
        assert_eq!(body(Canonical::Simple, " C \r\nD \t E\r\n\r\n\r\n"), " C \r\nD \t E\r\n");
    }

    #[test]
    fn the_ends_of_bodies_are_canonical() {
        for (text, simple, relaxed) in [
            ("", "\r\n", ""),
            ("\r\n\r\n", "\r\n", ""),
            (" \t\r\n", " \t\r\n", ""),
            ("no end", "no end\r\n", "no end\r\n"),
            ("a\r\n\r\nb\r\n", "a\r\n\r\nb\r\n", "a\r\n\r\nb\r\n"),
            ("bare\nfeed\r\n", "bare\nfeed\r\n", "bare\nfeed\r\n"),
        ] {
            assert_eq!(body(Canonical::Simple, text), simple, "{text:?}");
            assert_eq!(body(Canonical::Relaxed, text), relaxed, "{text:?}");
        }
    }

    #[test]
    fn a_long_body_comes_in_chunks_of_bounded_size() {
        let text = "words of a line\r\n".repeat(10_000);
        let (mut bytes, mut longest) = (0, 0);
        Canonical::Relaxed.body(text.as_bytes(), &mut |chunk| {
            bytes += chunk.len();
            longest = longest.max(chunk.len());
        });
        assert_eq!((bytes, longest <= CHUNK_BYTES), (text.len(), true));
    }

    #[test]
    fn only_the_signature_is_removed() {
        let removed = without_signature(b" v=1; bh=abc=; b = xy\r\n z==; d=b=x");
        assert_eq!(removed, b" v=1; bh=abc=; b =; d=b=x");
    }
}
