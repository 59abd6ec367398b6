//! Foreign texts in replies and in the journal.

/// A text as printable ASCII in one line: other characters become `?`, and it is truncated to `bytes_max`.
pub(crate) fn printable(text: &str, bytes_max: usize) -> String {
    let shown = |char: char| match char {
        ' '..='~' => char,
        '\t' | '\r' | '\n' => ' ',
        _ => '?',
    };
    text.trim().chars().take(bytes_max).map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_others_is_one_line_of_ascii() {
        assert_eq!(printable(" a\r\n250 ok\0\u{e9} ", 100), "a  250 ok??");
        assert_eq!(printable("abcdef", 3), "abc");
        assert_eq!(printable("\u{1f4a9}\u{1f4a9}", 1), "?");
    }
}
