use memchr::memchr2;

/// The longest line of a text. RFC 5321 §4.5.3.1.6 has 1,000 bytes; programs send longer ones.
pub const TEXT_LINE_BYTES_MAX: usize = 64 << 10;

/// How a bare CR or LF is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Newlines {
    /// The message is refused: [`DataDecoder::error`]. A relay that treats one as a line break sees another end of the message
    /// (CVE-2023-51764).
    Strict,
    /// It becomes CRLF. The end of the message is still `CRLF.CRLF` only.
    Repaired,
}

/// Why a message must be refused, after its end was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DataError {
    /// It has a bare CR or LF.
    #[error("the message has a CR or LF that is not part of CRLF")]
    BareNewline,
    /// A line is longer than [`TEXT_LINE_BYTES_MAX`].
    #[error("a line of the message is too long")]
    LineTooLong,
}

/// Decodes what follows `DATA`: finds the end, and removes the dots that the client has put before lines that begin with one.
///
/// The end is `CRLF.CRLF` and nothing else; the CRLF of the command counts as the line break before the first byte.
#[derive(Clone, Debug)]
pub struct DataDecoder {
    newlines: Newlines,
    at: At,
    error: Option<DataError>,
    /// The number of bytes in the current line so far.
    line_bytes: usize,
}

/// The decoder's state after the last byte. `after_crlf` is whether the line began after CRLF, and not after a repaired line break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    LineStart { after_crlf: bool },
    Dot { after_crlf: bool },
    DotCr { after_crlf: bool },
    Line,
    Cr,
    End,
}

impl DataDecoder {
    /// A decoder before the first byte of a message.
    pub fn new(newlines: Newlines) -> Self {
        Self { newlines, at: At::LineStart { after_crlf: true }, error: None, line_bytes: 0 }
    }

    /// Whether the end was read.
    pub fn is_done(&self) -> bool {
        self.at == At::End
    }

    /// Why the message must be refused, if that is known by now. What was decoded since then is incomplete.
    pub fn error(&self) -> Option<DataError> {
        self.error
    }

    /// Decodes bytes and appends the message to `out`, at most two bytes for each. Returns how many were consumed: all, or those
    /// up to the end.
    pub fn decode(&mut self, input: &[u8], out: &mut Vec<u8>) -> usize {
        let mut rest = input;
        while let Some((&byte, after)) = rest.split_first() {
            match self.at {
                At::End => break,
                At::Line => {
                    let text = memchr2(b'\r', b'\n', rest).unwrap_or(rest.len());
                    let (text, after_text) = rest.split_at_checked(text).unwrap_or((rest, &[]));
                    self.push(text, out);
                    rest = after_text;
                    self.at_newline(&mut rest, out);
                    continue;
                }
                At::LineStart { after_crlf } if byte == b'.' => self.at = At::Dot { after_crlf },
                At::Dot { after_crlf } if byte == b'\r' => self.at = At::DotCr { after_crlf },
                At::DotCr { after_crlf: true } if byte == b'\n' => self.at = At::End,
                At::DotCr { .. } => {
                    // The line was a single dot, and does not both begin and end with CRLF.
                    self.push(b".", out);
                    self.at = At::Cr;
                    continue;
                }
                At::Dot { .. } if byte == b'\n' => {
                    self.push(b".", out);
                    self.at = At::Line;
                    continue;
                }
                At::LineStart { .. } | At::Dot { .. } => {
                    self.at = At::Line;
                    continue;
                }
                At::Cr if byte == b'\n' => self.end_line(true, out),
                At::Cr if byte == b'\r' => self.note(DataError::BareNewline),
                At::Cr => {
                    self.note(DataError::BareNewline);
                    self.end_line(false, out);
                    continue;
                }
            }
            rest = after;
        }
        input.len() - rest.len()
    }

    /// Reads the CR or LF at which a text ends, if the input has not ended.
    fn at_newline(&mut self, rest: &mut &[u8], out: &mut Vec<u8>) {
        let Some((&byte, after)) = rest.split_first() else { return };
        *rest = after;
        if byte == b'\r' {
            self.at = At::Cr;
        } else {
            self.note(DataError::BareNewline);
            self.end_line(false, out);
        }
    }

    fn end_line(&mut self, after_crlf: bool, out: &mut Vec<u8>) {
        self.append(b"\r\n", out);
        self.line_bytes = 0;
        self.at = At::LineStart { after_crlf };
    }

    fn push(&mut self, text: &[u8], out: &mut Vec<u8>) {
        self.line_bytes = self.line_bytes.saturating_add(text.len());
        if self.line_bytes > TEXT_LINE_BYTES_MAX {
            self.note(DataError::LineTooLong);
        }
        self.append(text, out);
    }

    fn append(&self, bytes: &[u8], out: &mut Vec<u8>) {
        if self.error.is_none() {
            out.extend_from_slice(bytes);
        }
    }

    fn note(&mut self, error: DataError) {
        if error == DataError::BareNewline && self.newlines == Newlines::Repaired {
            return;
        }
        self.error.get_or_insert(error);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{
        super::properties::{decode_data, dot_stuffed},
        *,
    };

    /// The result of a strict decoder: the message, or why it is refused; and the bytes after its end.
    fn strict(input: &[u8]) -> (Result<Vec<u8>, DataError>, Vec<u8>) {
        let (decoder, message, consumed) = decode_data(Newlines::Strict, input, &[]);
        assert!(decoder.is_done(), "{input:?} has no end");
        (decoder.error().map_or(Ok(message), Err), input[consumed..].to_vec())
    }

    fn repaired(input: &[u8]) -> Vec<u8> {
        let (decoder, message, _) = decode_data(Newlines::Repaired, input, &[]);
        assert!(decoder.is_done() && decoder.error().is_none(), "{input:?}");
        message
    }

    #[test]
    fn sm5_data_ends_at_crlf_dot_crlf_only() {
        let (message, rest) = strict(b"a: b\r\n\r\ntext\r\n.\r\nQUIT\r\n");
        assert_eq!((message.unwrap(), rest), (b"a: b\r\n\r\ntext\r\n".to_vec(), b"QUIT\r\n".to_vec()));
    }

    #[test]
    fn sm5_a_dot_at_once_is_an_empty_message() {
        assert_eq!(strict(b".\r\nRSET\r\n"), (Ok(Vec::new()), b"RSET\r\n".to_vec()));
    }

    #[test]
    fn sm5_a_first_dot_of_a_line_is_removed() {
        assert_eq!(strict(b"..\r\n.a\r\n...\r\n.\r\n").0.unwrap(), b".\r\na\r\n..\r\n");
        assert_eq!(strict(b".a\r\n.\r\n").0.unwrap(), b"a\r\n");
    }

    /// CVE-2023-51764 and related attacks: each of these ended the message for some server.
    #[test]
    fn sm5_bare_newlines_around_a_dot_never_end_a_message() {
        for end in [
            "\n.\n",
            "\n.\r\n",
            "\r.\r",
            "\r\n.\r",
            "\r\n.\n",
            "\r.\r\n",
            "\n.\r",
            "\r\r\n.\r\r\n",
            "\n\n.\r\n",
        ] {
            let input = format!("text{end}MAIL FROM:<evil@example.net>\r\n.\r\nQUIT\r\n");
            let (message, rest) = strict(input.as_bytes());
            assert_eq!(message, Err(DataError::BareNewline), "{end:?}");
            assert_eq!(rest, b"QUIT\r\n", "{end:?}: it is read to its true end");
        }
    }

    #[test]
    fn sm5_any_bare_newline_is_found() {
        for input in
            ["a\nb\r\n.\r\n", "a\rb\r\n.\r\n", "\n\r\n.\r\n", "a\r\r\n.\r\n", ".\n\r\n.\r\n", ".\rx\r\n.\r\n"]
        {
            assert_eq!(strict(input.as_bytes()).0, Err(DataError::BareNewline), "{input:?}");
        }
    }

    #[test]
    fn sm5_repaired_newlines_are_crlf() {
        for (input, expected) in [
            ("a\nb\r\n.\r\n", "a\r\nb\r\n"),
            ("a\rb\r\n.\r\n", "a\r\nb\r\n"),
            ("a\r\r\nb\r\n.\r\n", "a\r\nb\r\n"),
            ("a\n\nb\r\n.\r\n", "a\r\n\r\nb\r\n"),
            ("a\n..b\r\n.\r\n", "a\r\n.b\r\n"),
            ("a\n.\nb\r\n.\r\n", "a\r\n.\r\nb\r\n"),
            ("a\n.\r\nb\r\n.\r\n", "a\r\n.\r\nb\r\n"),
            ("a\r\n.\rb\r\n.\r\n", "a\r\n.\r\nb\r\n"),
        ] {
            assert_eq!(String::from_utf8(repaired(input.as_bytes())).unwrap(), expected, "{input:?}");
        }
    }

    #[test]
    fn sm3_lines_of_64_kib_pass_and_longer_ones_are_refused_after_the_end() {
        let of = |bytes: usize| [&vec![b'x'; bytes][..], b"\r\n.\r\n"].concat();
        assert_eq!(strict(&of(TEXT_LINE_BYTES_MAX)).0.unwrap().len(), TEXT_LINE_BYTES_MAX + 2);
        assert_eq!(strict(&of(TEXT_LINE_BYTES_MAX + 1)).0, Err(DataError::LineTooLong));
    }

    proptest! {
        #[test]
        fn what_was_dot_stuffed_decodes_to_itself(
            lines in proptest::collection::vec("\\.{0,3}[ -~]{0,20}", 0..10),
            splits in proptest::collection::vec(0_usize..200, 0..8),
        ) {
            let message: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
            let wire = dot_stuffed(message.as_bytes());
            let (decoder, decoded, consumed) = decode_data(Newlines::Strict, &wire, &splits);
            prop_assert!(decoder.is_done() && decoder.error().is_none());
            prop_assert_eq!((decoded.as_slice(), consumed), (message.as_bytes(), wire.len()));
        }

        #[test]
        fn splits_change_nothing(
            input in "[a.\r\n]{0,60}", splits in proptest::collection::vec(0_usize..60, 0..10)
        ) {
            super::super::properties::data(input.as_bytes(), &splits);
        }
    }
}
