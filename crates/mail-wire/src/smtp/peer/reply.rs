use memchr::memchr;

/// The most lines of one reply. A reply to `EHLO` has about twenty.
pub const REPLY_LINES_MAX: usize = 128;
/// The most bytes of one reply, including its line breaks. RFC 5321 §4.5.3.1.5 allows 512 for a line.
pub const REPLY_BYTES_MAX: usize = 32 << 10;

/// A reply of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerReply {
    /// The reply code, 200 to 599.
    pub code: u16,
    /// The enhanced status code (RFC 3463) with which each line begins, as `5.1.1`, if its class is that of the reply code.
    pub enhanced: Option<String>,
    /// The text of each line, without the enhanced status code. Control characters become `?`, bytes that are not UTF-8 U+FFFD.
    pub lines: Vec<String>,
}

/// Why the bytes from a server are not a reply. Nothing after them can be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// A line does not begin with a reply code.
    #[error("a line of the reply does not begin with a code")]
    Code,
    /// Lines of one reply have different codes.
    #[error("the lines of the reply have different codes")]
    Mixed,
    /// It is longer than [`REPLY_BYTES_MAX`], or has more lines than [`REPLY_LINES_MAX`].
    #[error("the reply is too long")]
    TooLong,
}

/// The result of reading at the beginning of a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadReply {
    /// Bytes that are processed: the caller removes them from its buffer.
    pub consumed: usize,
    /// A reply; `None` if more bytes are needed.
    pub reply: Option<PeerReply>,
}

/// Finds replies in a stream of bytes.
#[derive(Clone, Debug, Default)]
pub struct ReplyReader {
    code: u16,
    lines: Vec<String>,
    /// The number of bytes of the reply so far.
    bytes: usize,
}

impl ReplyReader {
    /// The next reply of a buffer, which holds the bytes that earlier calls have not consumed, and any number of new ones. Lines
    /// may end with a bare LF.
    ///
    /// # Errors
    /// The bytes are not a reply; the reader must not be used again.
    pub fn next(&mut self, buffer: &[u8]) -> Result<ReadReply, ReplyError> {
        let mut consumed = 0;
        loop {
            let rest = buffer.get(consumed..).unwrap_or_default();
            let Some(end) = memchr(b'\n', rest) else {
                if self.bytes + rest.len() > REPLY_BYTES_MAX {
                    return Err(ReplyError::TooLong);
                }
                return Ok(ReadReply { consumed, reply: None });
            };
            consumed += end + 1;
            self.bytes += end + 1;
            let is_last = self.line(rest.get(..end).unwrap_or_default())?;
            if is_last {
                let reply = PeerReply::new(self.code, std::mem::take(&mut self.lines));
                *self = Self::default();
                return Ok(ReadReply { consumed, reply: Some(reply) });
            }
        }
    }

    /// Adds a line; returns whether it is the last one of its reply.
    fn line(&mut self, line: &[u8]) -> Result<bool, ReplyError> {
        if self.bytes > REPLY_BYTES_MAX || self.lines.len() == REPLY_LINES_MAX {
            return Err(ReplyError::TooLong);
        }
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let (code, rest) = line.split_at_checked(3).ok_or(ReplyError::Code)?;
        if !matches!(code, [b'2'..=b'5', b'0'..=b'9', b'0'..=b'9']) {
            return Err(ReplyError::Code);
        }
        let code = code.iter().fold(0, |number, digit| number * 10 + u16::from(digit - b'0'));
        let (is_last, text) = match rest {
            [] => (true, rest),
            [b' ', text @ ..] => (true, text),
            [b'-', text @ ..] => (false, text),
            _ => return Err(ReplyError::Code),
        };
        if !self.lines.is_empty() && self.code != code {
            return Err(ReplyError::Mixed);
        }
        self.code = code;
        let text = String::from_utf8_lossy(text);
        self.lines.push(text.chars().map(|c| if c.is_control() { '?' } else { c }).collect());
        Ok(is_last)
    }
}

impl PeerReply {
    fn new(code: u16, mut lines: Vec<String>) -> Self {
        let enhanced = lines.first().and_then(|line| enhanced_of(code, line)).map(str::to_owned);
        if let Some(status) = &enhanced {
            for line in &mut lines {
                if let Some(text) = line.strip_prefix(status.as_str()) {
                    *line = text.trim_start_matches(' ').to_owned();
                }
            }
        }
        Self { code, enhanced, lines }
    }

    /// Whether the command succeeded.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.code)
    }

    /// Whether the command failed temporarily.
    pub fn is_temporary(&self) -> bool {
        (400..500).contains(&self.code)
    }

    /// Whether the command failed permanently.
    pub fn is_permanent(&self) -> bool {
        self.code >= 500
    }

    /// All lines as one, of at most `bytes_max` bytes.
    pub fn text(&self, bytes_max: usize) -> String {
        let mut text = String::new();
        for line in &self.lines {
            let line = line.trim();
            if !text.is_empty() && !line.is_empty() {
                text.push(' ');
            }
            text.push_str(line);
            if text.len() > bytes_max {
                text.truncate(text.floor_char_boundary(bytes_max));
                break;
            }
        }
        text
    }
}

/// The enhanced status code with which a line begins: `class.subject.detail`, of the class of the reply code (RFC 2034 §3).
fn enhanced_of(code: u16, line: &str) -> Option<&str> {
    let status = line.split(' ').next()?;
    let mut numbers = status.split('.');
    let (class, subject, detail) = (numbers.next()?, numbers.next()?, numbers.next()?);
    let is_number =
        |text: &str| (1..=3).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_status = numbers.next().is_none() && is_number(subject) && is_number(detail);
    (is_status && class.len() == 1 && class.parse() == Ok(code / 100)).then_some(status)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{super::super::properties::replies, *};

    fn read(input: &str) -> Result<Vec<PeerReply>, ReplyError> {
        replies(input.as_bytes(), &[])
    }

    fn one(input: &str) -> PeerReply {
        read(input).unwrap().remove(0)
    }

    #[test]
    fn out14_replies_are_read_with_all_their_lines() {
        let reply = one("250-mail.example.org hello\r\n250-SIZE 1000\r\n250 PIPELINING\r\n");
        assert_eq!((reply.code, reply.enhanced), (250, None));
        assert_eq!(reply.lines, ["mail.example.org hello", "SIZE 1000", "PIPELINING"]);
        let reply = one("550-5.1.1 no such\r\n550 5.1.1 user\r\n");
        assert_eq!((reply.enhanced.as_deref(), reply.text(100).as_str()), (Some("5.1.1"), "no such user"));
        assert_eq!(one("250\r\n").lines, [""]);
        assert_eq!(one("354 go\n").code, 354, "a line break of LF is forgiven");
        assert_eq!(read("220 a\r\n250 b\r\n").unwrap().len(), 2);
        assert_eq!(read("220-a\r\n220 b").unwrap(), [], "it has not ended");
    }

    #[test]
    fn an_enhanced_code_has_the_class_of_the_reply() {
        for (line, enhanced) in [
            ("550 5.1.1 no", Some("5.1.1")),
            ("450 5.1.1 no", None),
            ("550 5.1 no", None),
            ("550 5.1.1.1 no", None),
            ("550 5.1111.1 no", None),
            ("550 5.1.x no", None),
            ("550 5.1.1", Some("5.1.1")),
        ] {
            assert_eq!(one(&format!("{line}\r\n")).enhanced.as_deref(), enhanced, "{line}");
        }
    }

    #[test]
    fn out14_what_is_no_reply_is_found_at_once() {
        for (input, error) in [
            ("hello\r\n", ReplyError::Code),
            ("25\r\n", ReplyError::Code),
            ("\r\n", ReplyError::Code),
            ("250x\r\n", ReplyError::Code),
            ("150 a\r\n", ReplyError::Code),
            ("650 a\r\n", ReplyError::Code),
            ("2x0 a\r\n", ReplyError::Code),
            ("250-a\r\n550 b\r\n", ReplyError::Mixed),
        ] {
            assert_eq!(read(input), Err(error), "{input:?}");
        }
    }

    #[test]
    fn out14_endless_replies_are_cut() {
        assert_eq!(read(&"250-a\r\n".repeat(REPLY_LINES_MAX + 1)), Err(ReplyError::TooLong));
        assert_eq!(read(&"2".repeat(REPLY_BYTES_MAX + 1)), Err(ReplyError::TooLong));
        assert_eq!(read(&format!("250 {}\r\n", "a".repeat(REPLY_BYTES_MAX))), Err(ReplyError::TooLong));
    }

    #[test]
    fn a_text_has_no_control_characters_and_is_bounded() {
        let reply = one("550 a\rb\0c\u{85}\r\n");
        assert_eq!(reply.text(100), "a?b?c?");
        let long = one(&format!("550-{}\r\n550 b\r\n", "ä".repeat(100)));
        assert_eq!(long.text(11), "ä".repeat(5));
    }

    proptest! {
        #[test]
        fn splits_change_no_reply(
            input in "([2-5][0-9]{2}[- ]([0-9]\\.[0-9]\\.[0-9] )?[a-z]{0,5}\r?\n|[0-9a \r\n-]{0,9}){0,6}",
            splits in proptest::collection::vec(0_usize..80, 0..8),
        ) {
            super::super::super::properties::peer(input.as_bytes(), &splits);
        }

        #[test]
        fn no_bytes_panic(
            input in proptest::collection::vec(any::<u8>(), 0..300),
            splits in proptest::collection::vec(0_usize..300, 0..4),
        ) {
            super::super::super::properties::peer(&input, &splits);
        }
    }
}
