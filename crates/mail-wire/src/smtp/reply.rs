/// The longest line of a text: a whole reply line has at most 512 bytes (RFC 5321 §4.5.3.1.5).
const TEXT_BYTES_MAX: usize = 480;

/// A reply to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply<'t> {
    /// Three digits.
    pub code: u16,
    /// The enhanced status (RFC 3463), as `2.1.5`; empty if there must be none (RFC 2034 §3).
    pub status: &'t str,
    /// The text for people. Each line of it is a line of the reply.
    pub text: &'t str,
}

impl<'t> Reply<'t> {
    /// A reply with these parts.
    pub const fn new(code: u16, status: &'t str, text: &'t str) -> Self {
        Self { code, status, text }
    }

    /// Whether it is a permanent refusal.
    pub const fn is_permanent(&self) -> bool {
        self.code >= 500
    }

    /// Appends the reply to `out`. Whatever the text is, it is one reply: control characters become `?`, long lines are truncated.
    pub fn write(&self, out: &mut Vec<u8>) {
        let mut lines = self.text.split('\n').peekable();
        while let Some(line) = lines.next() {
            let separator = if lines.peek().is_some() { '-' } else { ' ' };
            out.extend_from_slice(self.code.to_string().as_bytes());
            out.push(separator as u8);
            if !self.status.is_empty() {
                out.extend_from_slice(self.status.as_bytes());
                out.push(b' ');
            }
            let end = line.floor_char_boundary(TEXT_BYTES_MAX);
            for c in line.get(..end).unwrap_or_default().chars() {
                let shown = if c.is_control() { '?' } else { c };
                out.extend_from_slice(shown.encode_utf8(&mut [0; 4]).as_bytes());
            }
            out.extend_from_slice(b"\r\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(reply: Reply<'_>) -> String {
        let mut out = Vec::new();
        reply.write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_reply_has_a_line_for_each_line_of_its_text() {
        assert_eq!(written(Reply::new(250, "2.1.5", "recipient ok")), "250 2.1.5 recipient ok\r\n");
        let hello = Reply::new(250, "", "mail.example.org\nPIPELINING\nSIZE 100");
        assert_eq!(written(hello), "250-mail.example.org\r\n250-PIPELINING\r\n250 SIZE 100\r\n");
        assert_eq!(written(Reply::new(354, "", "go on")), "354 go on\r\n");
    }

    #[test]
    fn a_text_of_a_client_adds_no_line() {
        assert_eq!(written(Reply::new(550, "5.1.1", "no\r250 ok\0")), "550 5.1.1 no?250 ok?\r\n");
        assert_eq!(written(Reply::new(550, "5.1.1", &"ä".repeat(1_000))).len(), 10 + TEXT_BYTES_MAX + 2);
    }

    proptest! {
        #[test]
        fn a_written_reply_reads_back(code in 200_u16..600, text in "[ -~äß]{0,100}(\n[ -~]{0,100}){0,3}") {
            let bytes = written(Reply::new(code, "2.0.0", &text));
            let mut lines: Vec<&str> = Vec::new();
            let mut is_over = false;
            for line in bytes.strip_suffix("\r\n").unwrap().split("\r\n") {
                prop_assert!(!is_over && line.len() <= 510);
                prop_assert_eq!(line[..3].parse::<u16>().unwrap(), code);
                is_over = line.as_bytes()[3] == b' ';
                lines.push(line[4..].strip_prefix("2.0.0 ").unwrap());
            }
            prop_assert!(is_over);
            prop_assert_eq!(lines.join("\n"), text);
        }
    }
}
