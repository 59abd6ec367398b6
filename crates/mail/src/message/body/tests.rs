use proptest::prelude::*;

use super::{super::read, *};

fn part_of(header: &str, body: &[u8]) -> (Vec<u8>, Part) {
    let raw = [format!("{header}\r\n\r\n").as_bytes(), body].concat();
    let part = structure(&raw).parts[0].clone();
    (raw, part)
}

fn value(header: &str, body: &[u8], bytes_max: usize) -> (String, bool, bool) {
    let (raw, part) = part_of(header, body);
    let value = body_value(&raw, &part, bytes_max);
    (value.value, value.is_encoding_problem, value.is_truncated)
}

#[test]
fn e8_values_are_decoded_with_lf() {
    assert_eq!(value("X-A: b", b"a\r\nb\r\n", 0), ("a\nb\n".to_owned(), false, false));
    let header =
        "Content-Type: text/plain; charset=iso-8859-1\r\nContent-Transfer-Encoding: Quoted-Printable";
    assert_eq!(value(header, b"caf=E9=\r\n!\r\n", 0), ("café!\n".to_owned(), false, false));
    let header = "Content-Type: text/plain; charset=\"UTF-8\"\r\nContent-Transfer-Encoding: base64 (comment)";
    assert_eq!(value(header, b"Y2Fm\r\nw6k=\r\n", 0), ("café".to_owned(), false, false));
}

#[test]
fn e8_unknown_charsets_and_encodings_and_bad_bytes_are_problems() {
    let problem = |header: &str, body: &[u8]| value(header, body, 0).1;
    assert!(problem("Content-Type: text/plain; charset=x-nothing", b"a"));
    assert!(problem("Content-Transfer-Encoding: x-uuencode", b"a"));
    assert!(problem("Content-Type: text/plain; charset=utf-8", b"\xff"));
    assert!(problem("Content-Transfer-Encoding: base64", b"YQ"), "cut off");
    assert!(problem("Content-Transfer-Encoding: quoted-printable", b"=zz"));
    assert!(!problem("Content-Type: text/plain; charset=utf-8", "é".as_bytes()));
    assert!(!problem("Content-Transfer-Encoding: 8BIT", b"a"));
    assert_eq!(value("Content-Type: text/plain; charset=utf-8", b"a\xffb", 0).0, "a\u{fffd}b");
}

#[test]
fn e8_values_are_cut_between_characters_and_not_inside_of_a_tag() {
    let utf_8 = "Content-Type: text/plain; charset=utf-8";
    assert_eq!(value(utf_8, "aéb".as_bytes(), 2), ("a".to_owned(), false, true));
    assert_eq!(value(utf_8, "aéb".as_bytes(), 3), ("aé".to_owned(), false, true));
    assert_eq!(value(utf_8, "aéb".as_bytes(), 4), ("aéb".to_owned(), false, false));
    assert_eq!(value(utf_8, "aéb".as_bytes(), 0), ("aéb".to_owned(), false, false));
    let html = "Content-Type: text/html; charset=utf-8";
    assert_eq!(value(html, b"ab<p title='x'>c", 8), ("ab".to_owned(), false, true));
    assert_eq!(value(utf_8, b"ab<p title='x'>c", 8), ("ab<p tit".to_owned(), false, true));
}

#[test]
fn e9_preview_is_collapsed_text_of_256_characters() {
    let preview = |header: &str, body: &str| read(format!("{header}\r\n\r\n{body}").as_bytes()).preview;
    assert_eq!(preview("X-A: b", "  Hello\r\n\r\n\tworld \r\n"), "Hello world");
    let utf_8 = "Content-Type: text/plain; charset=utf-8";
    assert_eq!(preview(utf_8, &"é".repeat(1_000)), "é".repeat(256));
    assert_eq!(preview(utf_8, &"ab ".repeat(1_000)).chars().count(), 256);
    assert_eq!(preview(utf_8, "a\u{200b} \u{200b}\u{a0}\u{200c}\u{feff} b"), "a\u{200b} b");
    let html = "Content-Type: text/html";
    assert_eq!(
        preview(html, "<style>p {}</style><title>T</title><p>Hello<br>you &amp; me"),
        "Hello you & me"
    );
    assert_eq!(preview("Content-Type: image/png", "abc"), "");
    let styles = format!("<style>{}</style>Hello", "p {} ".repeat(20_000));
    assert_eq!(preview(html, &styles), "Hello", "behind a long beginning");
    let alternative = "Content-Type: multipart/alternative; boundary=b";
    let body = "--b\r\n\r\n \r\n--b\r\nContent-Type: text/html\r\n\r\n<p>Hello\r\n--b--";
    assert_eq!(preview(alternative, body), "Hello", "beside an empty text");
}

#[test]
fn e6_sizes_are_those_of_the_decoded_bytes_and_lines_those_of_the_encoded() {
    let (_, part) = part_of("Content-Transfer-Encoding: base64", b"YWJj\r\nZA==\r\n");
    assert_eq!((part.size, part.lines), (4, 2));
    let (_, part) = part_of("Content-Transfer-Encoding: quoted-printable", b"a=3Db=\r\nc\r\n");
    assert_eq!((part.size, part.lines), (6, 2));
    let (_, part) = part_of("Content-Type: image/png", b"a\r\nb\r\n");
    assert_eq!((part.size, part.lines), (6, 0));
    let (_, part) = part_of("Content-Type: message/rfc822", b"A: b\r\n\r\nc");
    assert_eq!((part.size, part.lines, part.kind), (9, 2, PartKind::Message));
}

#[test]
fn parts_of_nested_messages_are_found_by_their_numbers() {
    let inner = "Content-Type: multipart/mixed; boundary=i\r\n\r\n--i\r\n\r\none\r\n--i\r\n\
        Content-Transfer-Encoding: base64\r\n\r\ndHdv\r\n--i--\r\n";
    let raw = format!(
        "Content-Type: multipart/mixed; boundary=o\r\n\r\n--o\r\n\r\ntext\r\n--o\r\nContent-Type: message/rfc822\r\n\r\n\
         {inner}\r\n--o\r\nContent-Type: message/rfc822\r\nContent-Transfer-Encoding: base64\r\n\r\nQTogYg0KDQpj\r\n--o--\r\n"
    );
    let bytes =
        |path: &[u16]| find(raw.as_bytes(), path).map(|found| String::from_utf8(found.bytes).unwrap());
    assert_eq!(bytes(&[2]).as_deref(), Some("text"));
    assert_eq!(bytes(&[3]).as_deref(), Some(inner));
    assert_eq!(bytes(&[3, 2]).as_deref(), Some("one"));
    assert_eq!(bytes(&[3, 3]).as_deref(), Some("two"));
    assert_eq!(bytes(&[4]).as_deref(), Some("A: b\r\n\r\nc"));
    assert_eq!(bytes(&[4, 1]).as_deref(), Some("c"));
    for path in [&[][..], &[0], &[1], &[5], &[2, 1], &[3, 1], &[3, 4], &[4, 1, 1], &[3; 9]] {
        assert_eq!(bytes(path), None, "{path:?}");
    }
}

#[test]
fn eq2_text_for_search_has_all_texts_and_names() {
    let raw = "Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n\r\nplain\r\n--b\r\nContent-Type: text/html\r\n\r\n\
        <style>x</style><b>bo</b>ld<img alt=picture>\r\n--b\r\nContent-Type: text/csv; name=\"a b.csv\"\r\n\r\n1,2\r\n--b\r\n\
        Content-Type: application/pdf\r\nContent-Disposition: attachment; filename*=utf-8''%C3%A9.pdf\r\n\r\nbinary\r\n--b--";
    let text = |bytes_max| search_text(raw.as_bytes(), &structure(raw.as_bytes()), bytes_max);
    assert_eq!(text(1_000).bodies, ["plain", "bold picture", "1,2"]);
    assert_eq!(text(1_000).names, ["a b.csv", "é.pdf"]);
    assert_eq!(text(3).bodies, ["pla"]);
    assert_eq!(text(7).bodies, ["plain", "1,"]);
    assert_eq!(text(0).bodies, [""; 0]);
    assert_eq!(text(0).names.len(), 2);
}

#[test]
fn import_repairs_line_breaks_and_removes_nul() {
    let repair = |raw: &str| String::from_utf8(repaired(raw.as_bytes()).into_owned()).unwrap();
    assert_eq!(repair("a\nb\rc\r\nd\n\re\r\r\nf"), "a\r\nb\r\nc\r\nd\r\n\r\ne\r\n\r\nf");
    assert_eq!(repair("a\0b\r\0\nc"), "ab\r\nc");
    assert_eq!(repair("\n"), "\r\n");
    assert_eq!(repair("a\r"), "a\r\n");
    assert!(matches!(repaired(b"a\r\nb"), Cow::Borrowed(_)));
    assert!(matches!(repaired(b""), Cow::Borrowed(_)));
}

proptest! {
    #[test]
    fn import_repairs_once(raw in proptest::collection::vec(prop_oneof![Just(b'\r'), Just(b'\n'), Just(0), Just(b'a')], 0..64)) {
        let first = repaired(&raw).into_owned();
        prop_assert!(!first.contains(&0));
        prop_assert!(matches!(repaired(&first), Cow::Borrowed(_)));
    }

    #[test]
    fn e6_size_is_the_length_of_the_decoded_bytes(
        encoding in prop_oneof![Just("base64"), Just("quoted-printable"), Just("8bit"), Just("x-other")],
        body in proptest::collection::vec(prop_oneof![5 => b'A'..=b'Z', 1 => Just(b'='), 1 => Just(b'\n'), 1 => any::<u8>()], 0..96),
    ) {
        let (raw, part) = part_of(&format!("Content-Transfer-Encoding: {encoding}"), &body);
        prop_assert_eq!(part.size as usize, decoded(&raw, &part).len());
    }
}
