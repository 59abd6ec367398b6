use memchr::memchr;

/// The longest command line with its line break. RFC 5321 §4.5.3.1.4 has 512, which extensions raise.
pub const COMMAND_LINE_BYTES_MAX: usize = 4_096;

/// Finds command lines in a stream of bytes.
#[derive(Clone, Debug, Default)]
pub struct LineReader {
    /// Whether the rest of a line that is too long is skipped.
    is_skipping: bool,
}

/// The result of reading at the beginning of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadLine<'b> {
    /// Bytes that are processed: the caller removes them from its buffer.
    pub consumed: usize,
    /// A line without its line break; `None` if more bytes are needed.
    pub line: Option<Result<&'b [u8], LineError>>,
}

/// Why a line can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// It is longer than [`COMMAND_LINE_BYTES_MAX`].
    #[error("the command line is too long")]
    TooLong,
    /// It ends with a bare LF. A relay in front of this server may see another line there, so nothing after it can be trusted.
    #[error("the command line does not end with CRLF")]
    BareNewline,
}

impl LineReader {
    /// The next line of a buffer, which holds the bytes that earlier calls have not consumed, and any number of new ones.
    pub fn next<'b>(&mut self, buffer: &'b [u8]) -> ReadLine<'b> {
        let Some(end) = memchr(b'\n', buffer) else {
            // The line break would exceed the limit.
            let is_too_long = buffer.len() >= COMMAND_LINE_BYTES_MAX;
            self.is_skipping |= is_too_long;
            return ReadLine { consumed: if self.is_skipping { buffer.len() } else { 0 }, line: None };
        };
        let consumed = end + 1;
        let is_too_long = std::mem::take(&mut self.is_skipping) || consumed > COMMAND_LINE_BYTES_MAX;
        let line = buffer.get(..end).unwrap_or_default();
        let line = match line.strip_suffix(b"\r") {
            _ if is_too_long => Err(LineError::TooLong),
            Some(line) => Ok(line),
            None => Err(LineError::BareNewline),
        };
        ReadLine { consumed, line: Some(line) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(input: &[u8]) -> Vec<Result<Vec<u8>, LineError>> {
        super::super::properties::lines_of(input, &[])
    }

    #[test]
    fn sm3_a_command_line_has_4096_bytes_at_most() {
        let longest = [&[b'a'; COMMAND_LINE_BYTES_MAX - 2][..], b"\r\nNOOP\r\n"].concat();
        assert_eq!(lines(&longest), [Ok(vec![b'a'; COMMAND_LINE_BYTES_MAX - 2]), Ok(b"NOOP".to_vec())]);
        for more in [1, 2, 100_000] {
            let long = [&vec![b'a'; COMMAND_LINE_BYTES_MAX - 2 + more][..], b"\r\nNOOP\r\n"].concat();
            assert_eq!(lines(&long), [Err(LineError::TooLong), Ok(b"NOOP".to_vec())]);
        }
    }

    #[test]
    fn sm5_a_command_line_ends_at_crlf_only() {
        assert_eq!(lines(b"NOOP\nQUIT\r\n"), [Err(LineError::BareNewline), Ok(b"QUIT".to_vec())]);
        assert_eq!(lines(b"NO\rOP\r\n"), [Ok(b"NO\rOP".to_vec())]);
        assert_eq!(lines(b"NOOP\r"), []);
    }
}
