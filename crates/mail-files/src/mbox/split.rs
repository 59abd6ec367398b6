//! Finds where one message ends and the next one begins.

use std::{
    fs::File,
    io::{self, BufRead, Read},
    os::unix::fs::FileExt,
};

use super::{from_line, status};
use crate::header::{first_field, is_blank, line_bytes};

/// A longer line is read in parts, which never begin a message.
const LINE_BYTES_MAX: usize = 64 << 10;
/// The longest header in which a Content-Length is used.
const HEADER_BYTES_MAX: usize = 256 << 10;

/// One message of an mbox. `from_line`, `content` and `blank` are all of its bytes in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// The line before it.
    pub from_line: Vec<u8>,
    /// The message as it is in the file, or its length if it is too long.
    pub content: Content,
    /// The empty line after it, which is not part of the message.
    pub blank: Vec<u8>,
    /// Whether it is unquoted in the file: lines that begin with `From ` have no `>`.
    pub is_unquoted: bool,
}

/// The bytes of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// All of them.
    Bytes(Vec<u8>),
    /// The length, which exceeds the reader's limit.
    TooLong(u64),
}

/// Reads a file at any offset.
pub trait LookAhead {
    /// Fills a buffer from an offset, as far as there are bytes.
    ///
    /// # Errors
    /// Those of the system.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;
}

impl LookAhead for File {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut read = 0;
        while let Some(rest) = buffer.get_mut(read..).filter(|rest| !rest.is_empty()) {
            match FileExt::read_at(self, rest, offset + read as u64) {
                Ok(0) => break,
                Ok(bytes) => read += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }
}

impl LookAhead for &[u8] {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let rest = usize::try_from(offset).ok().and_then(|offset| self.get(offset..)).unwrap_or_default();
        let bytes = rest.len().min(buffer.len());
        for (to, from) in buffer.iter_mut().zip(rest) {
            *to = *from;
        }
        Ok(bytes)
    }
}

/// Reads an mbox message by message, with one message in memory.
///
/// A message begins where a line `From ` with a date follows an empty line. If the first message has a Content-Length that leads
/// to such a line or to the end of the file, the file is assumed to be mboxcl: each Content-Length that does so is used.
#[derive(Debug)]
pub struct Splitter<R, L> {
    reader: R,
    ahead: L,
    bytes_max: u64,
    /// The number of bytes that were read.
    offset: u64,
    /// The line before the next message.
    next_from: Option<Vec<u8>>,
    /// Whether Content-Length is used; `None` before the first message.
    has_lengths: Option<bool>,
}

/// A message that is being read.
struct Building {
    split: Split,
    bytes: u64,
    bytes_max: u64,
    is_in_header: bool,
}

impl Building {
    fn push(&mut self, part: &[u8]) {
        self.bytes += part.len() as u64;
        match &mut self.split.content {
            Content::Bytes(bytes) if self.bytes <= self.bytes_max => bytes.extend_from_slice(part),
            content => *content = Content::TooLong(self.bytes),
        }
    }

    /// Its Content-Length, from the header. Our own export adds none: if there is one, it belongs to the message as it was sent.
    fn content_length(&self) -> Option<u64> {
        let Content::Bytes(header) = &self.split.content else { return None };
        if status::is_ours(header) {
            return None;
        }
        let mut rest = header.get(..header.len().min(HEADER_BYTES_MAX))?;
        while !rest.is_empty() {
            if let Some((value, _)) = first_field(rest, "Content-Length") {
                return std::str::from_utf8(value).ok()?.parse().ok();
            }
            rest = rest.get(line_bytes(rest)..).unwrap_or_default();
        }
        None
    }
}

impl<R: BufRead, L: LookAhead> Splitter<R, L> {
    /// A splitter of an mbox that `reader` reads from its beginning, and `ahead` at any offset. Messages longer than `bytes_max`
    /// are skipped.
    pub fn new(reader: R, ahead: L, bytes_max: u64) -> Self {
        Self { reader, ahead, bytes_max, offset: 0, next_from: None, has_lengths: None }
    }

    /// The number of bytes that were read so far.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The next message.
    ///
    /// # Errors
    /// Those of the reader; `InvalidData` if the file does not begin as an mbox.
    pub fn next_message(&mut self) -> io::Result<Option<Split>> {
        let Some(from_line) = self.take_from_line()? else { return Ok(None) };
        let split =
            Split { from_line, content: Content::Bytes(Vec::new()), blank: Vec::new(), is_unquoted: false };
        let mut building = Building { split, bytes: 0, bytes_max: self.bytes_max, is_in_header: true };
        let mut line = Vec::new();
        let mut is_line_start = true;
        // An empty line is part of the message only if no message begins after it.
        let mut blank: Vec<u8> = Vec::new();
        while self.read_line(&mut line)? {
            let begins_message = is_line_start && !blank.is_empty() && from_line::time_of(&line).is_some();
            if begins_message {
                self.next_from = Some(line);
                break;
            }
            building.push(&blank);
            blank.clear();
            if is_line_start && is_blank(&line) {
                blank.clone_from(&line);
                if building.is_in_header {
                    building.is_in_header = false;
                    if self.take_by_length(&mut building, &blank)? {
                        blank.clear();
                    }
                }
            } else {
                building.push(&line);
            }
            is_line_start = line.ends_with(b"\n");
        }
        building.split.blank = blank;
        Ok(Some(building.split))
    }

    /// The line before the next message; `None` at the end of the file.
    fn take_from_line(&mut self) -> io::Result<Option<Vec<u8>>> {
        if let Some(line) = self.next_from.take() {
            return Ok(Some(line));
        }
        if self.offset > 0 {
            return Ok(None);
        }
        let mut line = Vec::new();
        if !self.read_line(&mut line)? {
            return Ok(None);
        }
        if !line.starts_with(b"From ") {
            let why = "it does not begin with a line that starts with 'From '";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok(Some(line))
    }

    /// Reads a line with its line break, or a part of a long one; returns false at the end of the file.
    fn read_line(&mut self, line: &mut Vec<u8>) -> io::Result<bool> {
        line.clear();
        (&mut self.reader).take(LINE_BYTES_MAX as u64).read_until(b'\n', line)?;
        self.offset += line.len() as u64;
        Ok(!line.is_empty())
    }

    /// Reads the body by the length in the header, if that is used. Nothing of the body has been read yet.
    fn take_by_length(&mut self, building: &mut Building, blank: &[u8]) -> io::Result<bool> {
        if self.has_lengths == Some(false) {
            return Ok(false);
        }
        let length = building.content_length();
        let leads_to_end = match length {
            Some(length) => self.is_end(length)?,
            None => false,
        };
        self.has_lengths.get_or_insert(leads_to_end);
        let Some(mut left) = length.filter(|_| leads_to_end) else { return Ok(false) };
        building.push(blank);
        let mut is_line_start = true;
        while left > 0 {
            let mut part = Vec::new();
            let most = left.min(LINE_BYTES_MAX as u64);
            (&mut self.reader).take(most).read_until(b'\n', &mut part)?;
            if part.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.offset += part.len() as u64;
            left -= part.len() as u64;
            // In mboxcl2 nothing is quoted.
            building.split.is_unquoted |= is_line_start && part.starts_with(b"From ");
            is_line_start = part.ends_with(b"\n");
            building.push(&part);
        }
        Ok(true)
    }

    /// Whether a body of this length from here on ends at the end of the file, or where a message begins.
    fn is_end(&self, length: u64) -> io::Result<bool> {
        let Some(end) = self.offset.checked_add(length) else { return Ok(false) };
        // The last byte of the body, and what follows it.
        let mut buffer = [0; 512];
        let (start, body) = if length > 0 { (end - 1, 1) } else { (end, 0) };
        let read = self.ahead.read_at(start, &mut buffer)?;
        let Some((last, behind)) = buffer.get(..read).and_then(|read| read.split_at_checked(body)) else {
            return Ok(false); // the file ends earlier
        };
        if behind.is_empty() {
            return Ok(true);
        }
        // The last line of the body may have no line break.
        let end_of_line =
            if matches!(last, [] | [b'\n']) { behind } else { after_line_end(behind).unwrap_or_default() };
        Ok(match after_line_end(end_of_line) {
            Some([]) => true,
            Some(next) => begins_message(next),
            None => false,
        })
    }
}

fn after_line_end(text: &[u8]) -> Option<&[u8]> {
    text.strip_prefix(b"\r\n").or_else(|| text.strip_prefix(b"\n"))
}

fn begins_message(text: &[u8]) -> bool {
    text.get(..line_bytes(text)).is_some_and(|line| from_line::time_of(line).is_some())
}

/// Removes the quoting of mboxrd from a message: one `>` of each line that begins with one or more `>` and `From `.
pub fn unquoted(content: Vec<u8>) -> Vec<u8> {
    if memchr::memmem::find(&content, b">From ").is_none() {
        return content;
    }
    let mut message = Vec::with_capacity(content.len());
    let mut rest = content.as_slice();
    while let Some((line, after)) =
        rest.split_at_checked(line_bytes(rest)).filter(|(line, _)| !line.is_empty())
    {
        let line = line.strip_prefix(b">").filter(|inner| is_from(inner)).unwrap_or(line);
        message.extend_from_slice(line);
        rest = after;
    }
    message
}

/// Adds a message to a file with mboxrd quoting: lines that begin with `From `, also after `>`, get one more `>`.
pub(super) fn quote(message: &[u8], out: &mut dyn io::Write) -> io::Result<()> {
    let mut rest = message;
    while let Some((line, after)) =
        rest.split_at_checked(line_bytes(rest)).filter(|(line, _)| !line.is_empty())
    {
        if is_from(line) {
            out.write_all(b">")?;
        }
        out.write_all(line)?;
        rest = after;
    }
    Ok(())
}

/// Whether a line is `From `, quoted or not.
fn is_from(line: &[u8]) -> bool {
    let quotes = line.iter().take_while(|byte| **byte == b'>').count();
    line.get(quotes..).is_some_and(|line| line.starts_with(b"From "))
}
