use super::*;

/// The text, and whether there was a problem.
fn decoded(label: &str, bytes: &[u8]) -> (String, bool) {
    let Decoded { text, is_problem } = decode(label, bytes);
    (text, is_problem)
}

#[test]
fn e8_bytes_of_known_charsets_are_decoded() {
    let rows: &[(&str, &[u8], &str)] = &[
        ("utf-8", "grün".as_bytes(), "grün"),
        ("UTF-8", b"\xef\xbb\xbfmark", "mark"),
        ("utf8", "ß".as_bytes(), "ß"),
        ("iso-8859-1", b"gr\xfcn", "grün"),
        ("\"ISO-8859-15\"", b"\xa4", "€"),
        ("latin1", b"\xe9", "é"),
        ("cp1252", b"\x80", "€"),
        ("windows-1251", b"\xcf\xf0\xe8\xe2\xe5\xf2", "Привет"),
        ("koi8-r", b"\xf0\xd2\xc9\xd7\xc5\xd4", "Привет"),
        ("iso-2022-jp", b"\x1b$B$3$s\x1b(B", "こん"),
        ("shift_jis", b"\x82\xb1", "こ"),
        ("euc-kr", b"\xb0\xa1", "가"),
        ("big5", b"\xa4\xa4", "中"),
        ("gb2312", b"\xd6\xd0", "中"),
        ("gb18030", b"\xd6\xd0", "中"),
        ("utf-16", b"\xff\xfeh\x00", "h"),
        ("utf-16", b"\xfe\xff\x00h", "h"),
        ("utf-16", b"\x00h", "h"),
        ("utf-16le", b"h\x00", "h"),
        ("us-ascii", b"plain", "plain"),
        ("", b"plain", "plain"),
    ];
    for (label, bytes, text) in rows {
        assert_eq!(decoded(label, bytes), ((*text).to_owned(), false), "{label}");
    }
}

#[test]
fn e8_what_is_not_of_the_charset_is_a_problem_and_replaced() {
    assert_eq!(decoded("utf-8", b"a\xffb"), ("a\u{fffd}b".to_owned(), true));
    assert_eq!(decoded("us-ascii", b"a\xffb"), ("a\u{fffd}b".to_owned(), true));
    assert_eq!(decoded("us-ascii", "grün".as_bytes()), ("grün".to_owned(), true));
    assert_eq!(decoded("utf-16le", b"h\x00x"), ("h\u{fffd}".to_owned(), true));
    assert_eq!(decoded("shift_jis", b"\x82"), ("\u{fffd}".to_owned(), true));
}

#[test]
fn e8_an_unknown_charset_is_a_problem_and_read_as_utf_8() {
    for label in
        ["x-unknown", "unknown-8bit", "iso-2022-kr", "replacement", "ut\u{fc}f", "x".repeat(10_000).as_str()]
    {
        assert_eq!(decoded(label, "grün\u{0}".as_bytes()), ("grün\0".to_owned(), true));
    }
}

#[test]
fn e8_utf_7_is_decoded() {
    let rows: &[(&[u8], &str, bool)] = &[
        (b"A+ImIDkQ.", "A≢Α.", false), // RFC 2152
        (b"Hi Mom -+Jjo--!", "Hi Mom -☺-!", false),
        (b"+ZeVnLIqe-", "日本語", false),
        (b"Item 3 is +AKM-1.", "Item 3 is £1.", false),
        (b"1 +- 1", "1 + 1", false),
        (b"+2D3eAA-", "\u{1f600}", false),
        (b"+2D0-", "\u{fffd}", true),
        (b"a + b", "a + b", true),
        (b"+A", "", true),
        (b"\xe4", "\u{fffd}", true),
    ];
    for (bytes, text, is_problem) in rows {
        assert_eq!(decoded("UTF-7", bytes), ((*text).to_owned(), *is_problem), "{text}");
    }
}
