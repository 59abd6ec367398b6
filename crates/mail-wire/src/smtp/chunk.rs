use memchr::memchr2;

use super::Newlines;

/// Decodes the chunks of a message that is sent with `BDAT` (RFC 3030).
///
/// The length of a chunk determines where it ends, so no server takes a bare CR or LF for the end of the message: it is not
/// refused as after `DATA`. In text it becomes CRLF, because other programs write none; bytes of `BODY=BINARYMIME` stay as they
/// are.
#[derive(Clone, Debug)]
pub struct ChunkDecoder {
    is_text: bool,
    /// Whether the last byte was a CR.
    is_after_cr: bool,
}

impl ChunkDecoder {
    /// A decoder before the first chunk of a message, of text or of any bytes.
    pub fn new(is_text: bool) -> Self {
        Self { is_text, is_after_cr: false }
    }

    /// Decodes bytes of a chunk and appends them to `out`, at most two for each and two more.
    pub fn decode(&mut self, input: &[u8], out: &mut Vec<u8>) {
        if !self.is_text {
            out.extend_from_slice(input);
            return;
        }
        let mut rest = input;
        while let Some((&byte, after)) = rest.split_first() {
            if self.is_after_cr && byte != b'\r' {
                self.is_after_cr = false;
                out.extend_from_slice(b"\r\n");
                if byte == b'\n' {
                    rest = after;
                    continue;
                }
            }
            let text = memchr2(b'\r', b'\n', rest).unwrap_or(rest.len());
            let (text, after_text) = rest.split_at_checked(text).unwrap_or((rest, &[]));
            out.extend_from_slice(text);
            rest = after_text;
            if let Some((&newline, after)) = rest.split_first() {
                rest = after;
                match newline {
                    b'\r' => self.is_after_cr = true, // several before an LF are one line break with it
                    _ => out.extend_from_slice(b"\r\n"),
                }
            }
        }
    }

    /// Ends the message, after its last chunk.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        if std::mem::take(&mut self.is_after_cr) {
            out.extend_from_slice(b"\r\n");
        }
    }
}

impl Newlines {
    /// Whether all line breaks of a text are CRLF.
    #[cfg(test)]
    fn are_clean(text: &[u8]) -> bool {
        let without: Vec<&[u8]> = text.split(|b| *b == b'\n').collect();
        let (last, lines) = without.split_last().unwrap();
        lines.iter().all(|line| line.strip_suffix(b"\r").is_some_and(|line| !line.contains(&b'\r')))
            && !last.contains(&b'\r')
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{super::properties::decode_chunks, *};

    #[test]
    fn sm6_text_of_chunks_has_crlf_only() {
        for (input, expected) in [
            ("a\r\nb\r\n", "a\r\nb\r\n"),
            ("a\nb", "a\r\nb"),
            ("a\rb", "a\r\nb"),
            ("a\r\r\nb", "a\r\nb"),
            ("a\n\n", "a\r\n\r\n"),
            ("a\r", "a\r\n"),
            ("\r\n.\r\n", "\r\n.\r\n"),
            ("..", ".."),
        ] {
            assert_eq!(decode_chunks(true, input.as_bytes(), &[]), expected.as_bytes(), "{input:?}");
        }
    }

    #[test]
    fn sm6_binary_chunks_stay_as_they_are() {
        let bytes: Vec<u8> = (0..=255).chain(*b"\r\r\n\n.\r\n").collect();
        assert_eq!(decode_chunks(false, &bytes, &[3, 200]), bytes);
    }

    proptest! {
        #[test]
        fn splits_change_nothing(
            input in "[a.\r\n]{0,60}", splits in proptest::collection::vec(0_usize..60, 0..10)
        ) {
            super::super::properties::chunks(input.as_bytes(), &splits);
            prop_assert!(Newlines::are_clean(&decode_chunks(true, input.as_bytes(), &splits)));
        }

        #[test]
        fn clean_text_stays_as_it_is(lines in proptest::collection::vec("[ -~]{0,20}", 0..10)) {
            let text = lines.join("\r\n");
            prop_assert_eq!(decode_chunks(true, text.as_bytes(), &[]), text.as_bytes());
        }
    }
}
