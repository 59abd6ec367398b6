use memchr::memmem;

/// The end of a message.
pub const DATA_END: &[u8] = b".\r\n";

/// Writes a message piece by piece as it follows `DATA`: with an additional dot before lines that begin with one (RFC 5321 §4.5.2).
#[derive(Clone, Copy, Debug)]
pub struct DataWriter {
    is_line_start: bool,
}

impl Default for DataWriter {
    fn default() -> Self {
        Self { is_line_start: true }
    }
}

impl DataWriter {
    /// Appends a piece.
    pub fn write(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        out.reserve(piece.len() + piece.len() / 64 + 8);
        if self.is_line_start && piece.starts_with(b".") {
            out.push(b'.');
        }
        let mut copied = 0;
        // After a bare LF, too: a server that treats it as a line break finds no end there.
        for newline in memmem::find_iter(piece, b"\n.") {
            let dot = newline + 1;
            out.extend_from_slice(piece.get(copied..dot).unwrap_or_default());
            out.push(b'.');
            copied = dot;
        }
        out.extend_from_slice(piece.get(copied..).unwrap_or_default());
        if let Some(last) = piece.last() {
            self.is_line_start = *last == b'\n';
        }
    }

    /// Appends a line break if the last line has none. [`DATA_END`] follows.
    pub fn finish(self, out: &mut Vec<u8>) {
        if !self.is_line_start {
            out.extend_from_slice(b"\r\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{
        super::super::{Newlines, properties},
        *,
    };

    fn written(message: &[u8]) -> Vec<u8> {
        in_pieces(message, usize::MAX)
    }

    fn in_pieces(message: &[u8], bytes: usize) -> Vec<u8> {
        let (mut writer, mut out) = (DataWriter::default(), Vec::new());
        message.chunks(bytes.min(message.len()).max(1)).for_each(|piece| writer.write(piece, &mut out));
        writer.finish(&mut out);
        out.extend_from_slice(DATA_END);
        out
    }

    #[test]
    fn out13_lines_that_begin_with_a_dot_get_another() {
        for (message, wire) in [
            ("", ".\r\n"),
            ("a\r\n", "a\r\n.\r\n"),
            (".\r\n", "..\r\n.\r\n"),
            ("a\r\n.\r\nb\r\n", "a\r\n..\r\nb\r\n.\r\n"),
            ("a\r\n..b\r\n.c\r\n", "a\r\n...b\r\n..c\r\n.\r\n"),
            ("a.\r\n", "a.\r\n.\r\n"),
            ("a\r\n.", "a\r\n..\r\n.\r\n"),
        ] {
            assert_eq!(String::from_utf8(written(message.as_bytes())).unwrap(), wire, "{message:?}");
        }
    }

    proptest! {
        #[test]
        fn out13_a_server_reads_the_message_and_nothing_behind_it(
            lines in proptest::collection::vec("\\.{0,3}[ -~]{0,20}", 0..12), piece_bytes in 1_usize..20,
        ) {
            let message: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
            let wire = written(message.as_bytes());
            prop_assert_eq!(&wire, &properties::dot_stuffed(message.as_bytes()));
            prop_assert_eq!(&wire, &in_pieces(message.as_bytes(), piece_bytes));
            let (decoder, decoded, consumed) = properties::decode_data(Newlines::Strict, &wire, &[]);
            prop_assert!(decoder.is_done() && decoder.error().is_none());
            prop_assert_eq!((decoded.as_slice(), consumed), (message.as_bytes(), wire.len()));
        }
    }
}
