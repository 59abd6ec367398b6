use memchr::memmem;

/// Appends a message as it follows `DATA`: with a dot more before lines that begin with one, and the dot that ends it (RFC 5321 §4.5.2).
/// Its lines end with CRLF, the last one too.
pub fn write_data(message: &[u8], out: &mut Vec<u8>) {
    out.reserve(message.len() + message.len() / 64 + 8);
    if message.starts_with(b".") {
        out.push(b'.');
    }
    let mut copied = 0;
    for at in memmem::find_iter(message, b"\r\n.") {
        let dot = at + 2;
        out.extend_from_slice(message.get(copied..dot).unwrap_or_default());
        out.push(b'.');
        copied = dot;
    }
    out.extend_from_slice(message.get(copied..).unwrap_or_default());
    if !message.is_empty() && !message.ends_with(b"\r\n") {
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b".\r\n");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{
        super::super::{Newlines, properties},
        *,
    };

    fn written(message: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        write_data(message, &mut out);
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
            lines in proptest::collection::vec("\\.{0,3}[ -~]{0,20}", 0..12)
        ) {
            let message: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
            let wire = written(message.as_bytes());
            prop_assert_eq!(&wire, &properties::dot_stuffed(message.as_bytes()));
            let (decoder, decoded, consumed) = properties::decode_data(Newlines::Strict, &wire, &[]);
            prop_assert!(decoder.is_done() && decoder.error().is_none());
            prop_assert_eq!((decoded.as_slice(), consumed), (message.as_bytes(), wire.len()));
        }
    }
}
