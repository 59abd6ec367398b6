//! A parser of event streams: an HTTP head, chunks (RFC 9112 section 7.1), and in them lines of events. It accepts input in
//! parts of any size and buffers at most one line.

use anyhow::{Context, bail, ensure};

/// The longest line: an event has one message.
const LINE_BYTES_MAX: usize = 256 << 10;

/// The state of the parser.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// In the line with the status.
    Status,
    /// In the header lines.
    Head,
    /// In the line with a chunk's size.
    Size,
    /// In a chunk, with this many bytes left.
    Chunk(usize),
    /// At the line end after a chunk.
    ChunkEnd,
    /// After the last chunk.
    End,
}

/// Reads one stream.
#[derive(Debug)]
pub(super) struct Reader {
    state: State,
    /// A line of the framing that is not complete.
    frame: Vec<u8>,
    /// An incomplete line of the body.
    line: Vec<u8>,
    is_chunked: bool,
}

impl Reader {
    pub(super) fn new() -> Self {
        Self { state: State::Status, frame: Vec::new(), line: Vec::new(), is_chunked: false }
    }

    /// Whether the head was complete and successful.
    pub(super) fn is_open(&self) -> bool {
        !matches!(self.state, State::Status | State::Head)
    }

    /// Parses received bytes and passes every complete line of the body, without its end, to `hear`.
    pub(super) fn take(&mut self, mut bytes: &[u8], mut hear: impl FnMut(&[u8])) -> anyhow::Result<()> {
        while !bytes.is_empty() {
            bytes = match self.state {
                State::Chunk(missing) => self.take_body(bytes, missing, &mut hear)?,
                State::End => bail!("the server has ended the stream"),
                _ => self.take_frame(bytes)?,
            };
        }
        ensure!(self.state != State::End, "the server has ended the stream");
        Ok(())
    }

    /// Consumes bytes of the current chunk and returns the rest.
    fn take_body<'a>(
        &mut self,
        bytes: &'a [u8],
        missing: usize,
        hear: &mut impl FnMut(&[u8]),
    ) -> anyhow::Result<&'a [u8]> {
        let (body, rest) = bytes.split_at_checked(missing).unwrap_or((bytes, &[]));
        let left = missing - body.len();
        self.state = if left == 0 { State::ChunkEnd } else { State::Chunk(left) };
        let mut lines = body.split(|byte| *byte == b'\n');
        let last = lines.next_back().unwrap_or_default();
        for line in lines {
            if self.line.is_empty() {
                hear(line);
            } else {
                self.line.extend_from_slice(line);
                hear(&self.line);
                self.line.clear();
            }
        }
        self.line.extend_from_slice(last);
        ensure!(
            self.line.len() <= LINE_BYTES_MAX,
            "a line of an event is longer than {LINE_BYTES_MAX} bytes"
        );
        Ok(rest)
    }

    /// Consumes bytes outside chunks up to the end of a line and returns the rest.
    fn take_frame<'a>(&mut self, bytes: &'a [u8]) -> anyhow::Result<&'a [u8]> {
        let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
            self.frame.extend_from_slice(bytes);
            ensure!(
                self.frame.len() <= LINE_BYTES_MAX,
                "a line of the head is longer than {LINE_BYTES_MAX} bytes"
            );
            return Ok(&[]);
        };
        let (line, rest) = bytes.split_at_checked(end + 1).unwrap_or((bytes, &[]));
        self.frame.extend_from_slice(line);
        let line = std::mem::take(&mut self.frame);
        self.state = self.after(String::from_utf8_lossy(&line).trim())?;
        Ok(rest)
    }

    /// The state after a line of the framing.
    fn after(&mut self, line: &str) -> anyhow::Result<State> {
        Ok(match self.state {
            State::Status => {
                ensure!(line.split(' ').nth(1) == Some("200"), "a stream was answered with '{line}'");
                State::Head
            }
            State::Head if line.is_empty() => {
                ensure!(self.is_chunked, "a stream that is not in chunks can't be read");
                State::Size
            }
            State::Head => {
                let header = line.to_ascii_lowercase();
                self.is_chunked |= header.starts_with("transfer-encoding:") && header.contains("chunked");
                State::Head
            }
            State::Size => {
                let size = line.split(';').next().unwrap_or_default();
                let size = usize::from_str_radix(size, 16);
                match size.with_context(|| format!("not the size of a chunk: '{line}'"))? {
                    0 => State::End,
                    size => State::Chunk(size),
                }
            }
            State::ChunkEnd => State::Size,
            State::Chunk(_) | State::End => self.state,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";

    fn lines_in_pieces(stream: &[u8], size: usize) -> anyhow::Result<Vec<String>> {
        let mut reader = Reader::new();
        let mut lines = Vec::new();
        for piece in stream.chunks(size) {
            reader.take(piece, |line| lines.push(String::from_utf8_lossy(line).into_owned()))?;
        }
        assert!(reader.is_open());
        Ok(lines)
    }

    #[test]
    fn lines_are_parsed_in_parts_of_any_size() {
        // Two events, the second split between two chunks.
        let stream =
            format!("{HEAD}f\r\nevent: a\ndata: \r\n3\r\n1\n\n\r\n8;x=y\r\ndata: 2\n\r\n1\r\n\n\r\n");
        for size in [1, 2, 3, 7, 1_000] {
            let lines = lines_in_pieces(stream.as_bytes(), size).unwrap();
            assert_eq!(lines, ["event: a", "data: 1", "", "data: 2", ""], "in pieces of {size}");
        }
    }

    #[test]
    fn an_answer_that_is_not_a_stream_is_an_error() {
        for (stream, why) in [
            ("HTTP/1.1 503 Service Unavailable\r\n\r\n".to_owned(), "503"),
            ("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc".to_owned(), "not in chunks"),
            (format!("{HEAD}x\r\n"), "size of a chunk"),
            (format!("{HEAD}0\r\n"), "ended"),
        ] {
            let error = lines_in_pieces(stream.as_bytes(), 9).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
