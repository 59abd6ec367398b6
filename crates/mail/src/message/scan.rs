//! Finds the parts of a message in one pass over its bytes (RFC 2046 §5.1).

use std::sync::LazyLock;

use memchr::{memchr, memmem};

use super::{Encoding, HEADER_BYTES_MAX, NESTING_MAX, PARTS_MAX, Part, PartKind, Span, mime::Mime};

/// The message has more parts, deeper ones or longer headers than it may have.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLarge;

/// The parts of a message, depth first. Sizes and lines are not yet counted.
pub(super) fn parts(raw: &[u8]) -> Result<Vec<Part>, TooLarge> {
    let mut scanner = Scanner { raw, parts: Vec::new(), open: Vec::new(), unfinished: Vec::new() };
    let mut position = scanner.part_at(0, 0, "text/plain")?;
    while !scanner.open.is_empty() {
        let Some(delimiter) = scanner.next_delimiter(position) else { break };
        position = scanner.continue_at(delimiter)?;
    }
    scanner.finish();
    Ok(scanner.parts)
}

/// The length of as many whole lines of a header as [`HEADER_BYTES_MAX`] allows.
pub(super) fn header_within_bound(raw: &[u8]) -> usize {
    let mut end = 0;
    while let Some(length) = memchr(b'\n', raw.get(end..).unwrap_or_default()) {
        let line = raw.get(end..end + length).unwrap_or_default();
        if end + length + 1 > HEADER_BYTES_MAX {
            return end;
        }
        end += length + 1;
        if matches!(line, [] | [b'\r']) {
            return end;
        }
    }
    if raw.len() > HEADER_BYTES_MAX { end } else { raw.len() }
}

/// A multipart whose closing delimiter has not been seen.
struct Open {
    number: u16,
    boundary: Vec<u8>,
    is_digest: bool,
    has_parts: bool,
}

/// A line that separates parts.
struct Delimiter {
    /// The multipart that it belongs to, counted from the outermost.
    level: usize,
    /// Whether it is the last one of that multipart.
    is_closing: bool,
    /// The end of the content before it: the line break belongs to the delimiter.
    content_end: usize,
    /// The beginning of the next line.
    next: usize,
}

struct Scanner<'m> {
    raw: &'m [u8],
    parts: Vec<Part>,
    open: Vec<Open>,
    /// The numbers of the parts whose end is not known, each inside the one before.
    unfinished: Vec<u16>,
}

/// The beginning of a delimiter, except for one on the first line.
static DASHES: LazyLock<memmem::Finder<'static>> = LazyLock::new(|| memmem::Finder::new(b"\n--"));

impl Scanner<'_> {
    fn from(&self, start: usize) -> &[u8] {
        self.raw.get(start..).unwrap_or_default()
    }

    /// Reads the header at `start` and adds its part. Returns where its body begins.
    fn part_at(&mut self, start: usize, parent: u16, default_type: &str) -> Result<usize, TooLarge> {
        let (header_end, body) = self.header_at(start)?;
        let mime = Mime::read(self.raw.get(start..header_end).unwrap_or_default(), default_type);
        if self.parts.len() == PARTS_MAX {
            return Err(TooLarge);
        }
        let number = u16::try_from(self.parts.len() + 1).map_err(|_| TooLarge)?;
        let media_type_is_multipart = mime.media_type.starts_with("multipart/");
        let is_multipart = media_type_is_multipart && mime.boundary.is_some();
        let kind = match mime.media_type.as_str() {
            _ if is_multipart => PartKind::Multipart,
            "message/rfc822" | "message/global" => PartKind::Message,
            _ => PartKind::Leaf,
        };
        if is_multipart {
            if self.open.len() == NESTING_MAX {
                return Err(TooLarge);
            }
            let is_digest = mime.media_type == "multipart/digest";
            let boundary = mime.boundary.unwrap_or_default();
            self.open.push(Open { number, boundary, is_digest, has_parts: false });
        }
        self.parts.push(Part {
            number,
            parent,
            kind,
            header: span(start, header_end),
            body: span(body, body),
            // RFC 2045 §6.4: a multipart is not encoded as a whole.
            encoding: if is_multipart { Encoding::Identity } else { mime.encoding },
            size: 0,
            lines: 0,
            media_type: mime.media_type,
            charset: mime.charset,
            name: mime.name,
            disposition: mime.disposition,
            cid: mime.cid,
            language: mime.language,
            location: mime.location,
        });
        let has_no_boundary = kind == PartKind::Leaf && media_type_is_multipart;
        if has_no_boundary {
            self.make_text(number);
        }
        self.unfinished.push(number);
        Ok(body)
    }

    /// The end of the header at `start`, and the beginning of the body after the empty line. A delimiter ends a header, too.
    fn header_at(&self, start: usize) -> Result<(usize, usize), TooLarge> {
        if !begins_with_field(self.from(start)) {
            return Ok(match self.from(start) {
                [b'\r', b'\n', ..] => (start, start + 2),
                [b'\n', ..] => (start, start + 1),
                _ => (start, start), // The empty line is missing.
            });
        }
        let mut line_start = start;
        loop {
            let rest = self.from(line_start);
            let length = memchr(b'\n', rest).unwrap_or(rest.len());
            let line = rest.get(..length).unwrap_or_default();
            let next = self.raw.len().min(line_start + length + 1);
            if next - start > HEADER_BYTES_MAX {
                return Err(TooLarge);
            }
            if rest.is_empty() || self.delimiter_of(line).is_some() {
                return Ok((line_start, line_start));
            }
            if matches!(line, [] | [b'\r']) {
                return Ok((line_start, next));
            }
            line_start = next;
        }
    }

    /// The first delimiter of an open multipart at or after `position`, which is the beginning of a line.
    fn next_delimiter(&self, position: usize) -> Option<Delimiter> {
        if let Some(delimiter) = self.delimiter_at(position) {
            return Some(delimiter);
        }
        DASHES.find_iter(self.from(position)).find_map(|at| self.delimiter_at(position + at + 1))
    }

    fn delimiter_at(&self, start: usize) -> Option<Delimiter> {
        let rest = self.from(start);
        if !rest.starts_with(b"--") {
            return None;
        }
        let length = memchr(b'\n', rest).unwrap_or(rest.len());
        let (level, is_closing) = self.delimiter_of(rest.get(..length)?)?;
        let before = self.raw.get(..start).unwrap_or_default();
        let content_end = match before {
            [.., b'\r', b'\n'] => start - 2,
            [.., b'\n'] => start - 1,
            _ => start,
        };
        Some(Delimiter { level, is_closing, content_end, next: self.raw.len().min(start + length + 1) })
    }

    /// The multipart that a line delimits, and whether the line is its closing delimiter. A delimiter of an outer multipart ends
    /// the inner ones, and white space may follow it (RFC 2046 §5.1.1 and §5.1.2). A boundary may be the beginning of another, so
    /// the whole line is compared.
    fn delimiter_of(&self, line: &[u8]) -> Option<(usize, bool)> {
        let text = line.strip_prefix(b"--")?.trim_ascii_end();
        let levels = self.open.iter().enumerate().rev();
        for (level, open) in levels {
            match text.strip_prefix(open.boundary.as_slice()) {
                Some(b"") => return Some((level, false)),
                Some(b"--") => return Some((level, true)),
                _ => {}
            }
        }
        None
    }

    /// Ends what precedes a delimiter, and begins the next part if it is not a closing one. Returns where reading continues.
    fn continue_at(&mut self, delimiter: Delimiter) -> Result<usize, TooLarge> {
        self.close(delimiter.level + 1);
        let Some(open) = self.open.last_mut() else { return Ok(delimiter.next) };
        let (parent, is_digest) = (open.number, open.is_digest);
        let is_first = !std::mem::replace(&mut open.has_parts, true);
        let mut end = delimiter.content_end;
        while let Some(number) = self.unfinished.pop_if(|number| *number != parent) {
            end = self.end_part(number, end);
        }
        // Some senders end with a delimiter that is not a closing one: no empty part follows it.
        let is_last = delimiter.is_closing || delimiter.next == self.raw.len() && !is_first;
        if is_last {
            self.close(delimiter.level);
            return Ok(delimiter.next);
        }
        // RFC 2046 §5.1.5.
        let default_type = if is_digest { "message/rfc822" } else { "text/plain" };
        self.part_at(delimiter.next, parent, default_type)
    }

    /// Closes the open multiparts from a level on.
    fn close(&mut self, level: usize) {
        for open in self.open.split_off(level.min(self.open.len())) {
            if !open.has_parts {
                self.make_text(open.number);
            }
        }
    }

    /// Ends a part, but not before its body begins: the line break of the delimiter may be that of its header. Returns the end,
    /// before which the multipart around it can't end.
    fn end_part(&mut self, number: u16, end: usize) -> usize {
        let Some(part) = self.parts.get_mut(usize::from(number) - 1) else { return end };
        part.body.end = offset(end).max(part.body.start);
        part.body.end as usize
    }

    /// Shows a multipart without any delimiter as text, so that nothing is hidden.
    fn make_text(&mut self, number: u16) {
        if let Some(part) = self.parts.get_mut(usize::from(number) - 1) {
            part.kind = PartKind::Leaf;
            part.media_type = "text/plain".to_owned();
            part.charset.get_or_insert_with(|| "us-ascii".to_owned());
        }
    }

    fn finish(&mut self) {
        self.close(0);
        while let Some(number) = self.unfinished.pop() {
            self.end_part(number, self.raw.len());
        }
    }
}

/// Whether bytes begin with a header field: a name of printable ASCII and a colon. Mailbox files begin with `From ` and a time.
pub(super) fn begins_with_field(bytes: &[u8]) -> bool {
    if bytes.starts_with(b"From ") || bytes.starts_with(b">From ") {
        return memchr(b'\n', bytes)
            .is_some_and(|end| begins_with_name(bytes.get(end + 1..).unwrap_or_default()));
    }
    begins_with_name(bytes)
}

fn begins_with_name(bytes: &[u8]) -> bool {
    let length = bytes.iter().take_while(|byte| byte.is_ascii_graphic() && **byte != b':').count();
    let behind = bytes.get(length..).unwrap_or_default();
    let spaces = behind.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    length > 0 && behind.get(spaces) == Some(&b':')
}

/// Messages of 4 GiB and more are cut before they are read.
fn offset(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

pub(super) fn span(start: usize, end: usize) -> Span {
    Span { start: offset(start), end: offset(end) }
}

#[cfg(test)]
mod tests;
