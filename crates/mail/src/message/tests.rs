use super::*;

fn outline(raw: &str) -> Vec<String> {
    let structure = structure(raw.as_bytes());
    let show = |part: &Part| {
        let body = String::from_utf8_lossy(part.body.of(raw.as_bytes())).into_owned();
        let body = if part.kind == PartKind::Multipart { String::new() } else { format!(" {body:?}") };
        format!("{}<{} {}{body}", part.number, part.parent, part.media_type)
    };
    structure.parts.iter().map(show).collect()
}

#[test]
fn e6_parts_are_numbered_depth_first() {
    let raw = "Content-Type: multipart/mixed; boundary=\"a b\"\r\n\r\npreamble\r\n--a b\r\nX: y\r\n\r\none\r\n--a b\r\n\
        Content-Type: multipart/alternative; boundary=c\r\n\r\n--c\r\n\r\ntwo\r\n\r\n--c \t\r\n\
        content-TYPE: Text/Html\r\n\r\nthree\r\n--c--\r\nepilogue\r\n--a b\r\nContent-Type: image/png\r\n\r\nfour\r\n--a b--\r\nepilogue";
    assert_eq!(
        outline(raw),
        [
            "1<0 multipart/mixed",
            "2<1 text/plain \"one\"",
            "3<1 multipart/alternative",
            "4<3 text/plain \"two\\r\\n\"",
            "5<3 text/html \"three\"",
            "6<1 image/png \"four\"",
        ]
    );
    assert_eq!(
        outline(&raw.replace("\r\n", "\n")),
        outline(raw).iter().map(|it| it.replace("\\r", "")).collect::<Vec<_>>()
    );
    let structure = structure(raw.as_bytes());
    let children = |number| structure.children(number).map(|part| part.number).collect::<Vec<_>>();
    assert_eq!(
        [children(0), children(1), children(3), children(2)],
        [vec![1], vec![2, 3, 6], vec![4, 5], vec![]]
    );
    let third = structure.part(3).unwrap();
    assert!(String::from_utf8_lossy(third.body.of(raw.as_bytes())).ends_with("--c--\r\nepilogue"));
    assert_eq!(third.header.of(raw.as_bytes()), b"Content-Type: multipart/alternative; boundary=c\r\n");
}

#[test]
fn e6_properties_of_a_part() {
    let raw = "Content-Type: Image/PNG; name=old.png\r\nContent-Disposition: INLINE; filename=\"new name.png\"\r\n\
        Content-ID: <c@d>\r\nContent-Language: de, en-GB\r\nContent-Location: http://a/\r\n b\r\nContent-Transfer-Encoding: BASE64\r\n\r\nYQ==";
    let part = &structure(raw.as_bytes()).parts[0];
    assert_eq!(part.media_type, "image/png");
    assert_eq!(part.name.as_deref(), Some("new name.png"));
    assert_eq!(part.disposition.as_deref(), Some("inline"));
    assert_eq!(part.cid.as_deref(), Some("c@d"));
    assert_eq!(part.language.as_deref(), Some(&["de".to_owned(), "en-GB".to_owned()][..]));
    assert_eq!(part.location.as_deref(), Some("http://a/b"));
    assert_eq!((part.charset.as_deref(), part.encoding, part.size), (None, Encoding::Base64, 1));
}

#[test]
fn e6_name_is_that_of_the_disposition_else_that_of_the_type() {
    let name = |header: &str| structure(format!("{header}\r\n\r\n").as_bytes()).parts[0].name.clone();
    assert_eq!(name("Content-Type: a/b; name=\"=?utf-8?b?w6kudHh0?=\"").as_deref(), Some("é.txt"));
    assert_eq!(name("Content-Type: a/b; name=a\r\nContent-Disposition: attachment").as_deref(), Some("a"));
    assert_eq!(
        name("Content-Type: a/b; name=a\r\nContent-Disposition: x; filename*=utf-8''b; filename=c")
            .as_deref(),
        Some("b")
    );
    assert_eq!(
        name("Content-Disposition: attachment; filename=two words.pdf").as_deref(),
        Some("two words.pdf")
    );
    assert_eq!(name("Content-Type: a/b; name=\"\""), None);
}

#[test]
fn e6_charset_of_a_text_is_us_ascii_unless_it_is_given() {
    let charset = |header: &str| structure(format!("{header}\r\n\r\n").as_bytes()).parts[0].charset.clone();
    assert_eq!(charset("X-A: b").as_deref(), Some("us-ascii"));
    assert_eq!(charset("Content-Type: text/html").as_deref(), Some("us-ascii"));
    assert_eq!(charset("Content-Type: text/html; charset=\"UTF-8\"").as_deref(), Some("UTF-8"));
    assert_eq!(charset("Content-Type: application/pdf"), None);
    assert_eq!(charset("Content-Type: application/json; charset=utf-8").as_deref(), Some("utf-8"));
}

#[test]
fn e6_a_content_type_that_is_none_means_plain_text() {
    for value in ["text", "", ";", "/", "a/", "\u{e9}/x", "a/b/c", "text; charset=x", "a@b/c x=y"] {
        let raw = format!("Content-Type: {value}\r\n\r\nx");
        assert_eq!(structure(raw.as_bytes()).parts[0].media_type, "text/plain", "{value}");
    }
    assert_eq!(
        structure(b"Content-Type: a/b\r\nContent-Type: c/d\r\n\r\n").parts[0].media_type,
        "c/d",
        "the last counts"
    );
}

#[test]
fn e6_a_semicolon_may_be_missing_behind_the_type() {
    let raw = "Content-Type: multipart/mixed\r\n\tboundary=\"a\"\r\n\r\n--a\r\nContent-Type: text/html charset=utf-8\r\n\r\none\r\n--a--";
    assert_eq!(outline(raw), ["1<0 multipart/mixed", "2<1 text/html \"one\""]);
    assert_eq!(structure(raw.as_bytes()).parts[1].charset.as_deref(), Some("utf-8"));
}

#[test]
fn an_outer_delimiter_ends_the_inner_parts() {
    let raw = "Content-Type: multipart/mixed; boundary=a\r\n\r\n--a\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n\r\none\
        \r\n--a\r\n\r\ntwo\r\n--b\r\nno delimiter\r\n--a--";
    let expected = [
        "1<0 multipart/mixed",
        "2<1 multipart/mixed",
        "3<2 text/plain \"one\"",
        "4<1 text/plain \"two\\r\\n--b\\r\\nno delimiter\"",
    ];
    assert_eq!(outline(raw), expected);
}

#[test]
fn a_boundary_may_begin_like_another() {
    let raw = "Content-Type: multipart/mixed; boundary=a\r\n\r\n--a\r\nContent-Type: multipart/mixed; boundary=ab\r\n\r\n--ab\r\n\r\none\
        \r\n--abc\r\n--ab--\r\n--a\r\n\r\n -- a\r\n--a --\r\n--a--";
    let expected = [
        "1<0 multipart/mixed",
        "2<1 multipart/mixed",
        "3<2 text/plain \"one\\r\\n--abc\"",
        "4<1 text/plain \" -- a\\r\\n--a --\"",
    ];
    assert_eq!(outline(raw), expected);
}

#[test]
fn what_is_cut_off_is_read_to_its_end() {
    let raw = "Content-Type: multipart/mixed; boundary=a\r\n\r\n--a\r\nContent-Type: text/html\r\n\r\none\r\n--a\r\n\r\ntwo";
    assert_eq!(outline(raw), ["1<0 multipart/mixed", "2<1 text/html \"one\"", "3<1 text/plain \"two\""]);
    for length in 0..raw.len() {
        let message = read(&raw.as_bytes()[..length]);
        assert_eq!(message.size, length as u64);
        assert!(!message.structure.parts.is_empty());
    }
}

#[test]
fn empty_parts_and_missing_empty_lines_are_taken() {
    let raw = "Content-Type: multipart/mixed; boundary=a\r\n\r\n--a\r\n--a\r\n\r\n--a\r\nX: y\r\n--a\r\nno header\r\nat all\r\n--a\r\n\r\n\r\n--a--";
    let expected = [
        "1<0 multipart/mixed",
        "2<1 text/plain \"\"",
        "3<1 text/plain \"\"",
        "4<1 text/plain \"\"",
        "5<1 text/plain \"no header\\r\\nat all\"",
        "6<1 text/plain \"\"",
    ];
    assert_eq!(outline(raw), expected);
    assert_eq!(outline(""), ["1<0 text/plain \"\""]);
    assert_eq!(outline("\r\nbody"), ["1<0 text/plain \"body\""]);
    assert_eq!(outline("no header"), ["1<0 text/plain \"no header\""]);
    assert_eq!(outline("From a@b Thu\r\nX: y\r\n\r\nbody"), ["1<0 text/plain \"body\""]);
    assert_eq!(read(b"X: y\r\n\r\nbody").header_bytes, 8);
    assert_eq!(read(b"X: y\r\n").header_bytes, 6);
}

/// A part without an empty line after its header ends where the line break of the delimiter begins, and was outside its multipart.
#[test]
fn a_part_that_an_outer_delimiter_cuts_off_is_inside_of_its_multipart() {
    for cut_off in ["", "X: y\r\n", "Content-Type: multipart/mixed; boundary=c\r\n"] {
        let raw = format!(
            "Content-Type: multipart/mixed; boundary=a\r\n\r\n--a\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n{cut_off}--a\r\n\r\nx"
        );
        let parts = structure(raw.as_bytes()).parts;
        assert_eq!((parts.len(), parts[2].parent), (4, 2), "{cut_off}");
        assert_eq!(parts[2].body.start, parts[2].body.end);
        assert!(parts[2].body.end <= parts[1].body.end, "{parts:?}");
    }
}

#[test]
fn a_multipart_without_delimiters_is_text() {
    assert_eq!(outline("Content-Type: multipart/mixed\r\n\r\nx"), ["1<0 text/plain \"x\""]);
    assert_eq!(outline("Content-Type: multipart/mixed; boundary=\"\"\r\n\r\nx"), ["1<0 text/plain \"x\""]);
    let raw = "Content-Type: multipart/mixed; boundary=a\r\n\r\n--a\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\nx\r\n--a--";
    assert_eq!(outline(raw), ["1<0 multipart/mixed", "2<1 text/plain \"x\""]);
    assert_eq!(outline("Content-Type: multipart/mixed; boundary=a\r\n\r\n--a--"), ["1<0 multipart/mixed"]);
    let raw = "Content-Type: multipart/mixed; boundary=a\r\n\r\n--a\r\n\r\none\r\n--a\r\n";
    assert_eq!(
        outline(raw),
        ["1<0 multipart/mixed", "2<1 text/plain \"one\""],
        "a last delimiter that does not close"
    );
}

#[test]
fn a_message_begins_with_a_field() {
    for raw in ["A: b", "From: x\r\n", "From a@b now\r\nTo : c", "X:"] {
        assert!(is_message(raw.as_bytes()), "{raw}");
    }
    for raw in ["", "\r\nA: b", "no header", " A: b", ":", "\u{e9}: b", "From a@b now", "From a@b\r\n\r\n"] {
        assert!(!is_message(raw.as_bytes()), "{raw}");
    }
}

/// The one part of a message beyond a bound.
fn is_opaque(raw: &[u8]) -> bool {
    let message = read(raw);
    let [part] = &message.structure.parts[..] else { return false };
    let is_opaque = part.media_type == "application/octet-stream";
    if is_opaque {
        assert_eq!(part.body, Span { start: message.header_bytes, end: raw.len() as u32 });
        assert_eq!((message.has_attachment, message.structure.attachments), (true, vec![1]));
    }
    is_opaque
}

#[test]
fn beyond_the_bound_of_parts_a_message_is_one_attachment() {
    let message = |parts: usize| {
        format!(
            "Subject: x\r\nContent-Type: multipart/mixed; boundary=a\r\n\r\n{}--a--",
            "--a\r\n\r\nx\r\n".repeat(parts)
        )
    };
    assert!(!is_opaque(message(PARTS_MAX - 1).as_bytes()));
    assert!(is_opaque(message(PARTS_MAX).as_bytes()));
    assert!(is_opaque(message(100_000).as_bytes()));
    assert_eq!(read(message(100_000).as_bytes()).json(Shorthand::Subject), b"\"x\"", "its header is read");
}

/// A multipart in a multipart, and so on.
fn nested(levels: usize) -> String {
    let mut message = String::new();
    for level in 0..levels {
        message.push_str(&format!("Content-Type: multipart/mixed; boundary=b{level}\r\n\r\n--b{level}\r\n"));
    }
    message + "\r\nx"
}

#[test]
fn beyond_the_bound_of_nesting_a_message_is_one_attachment() {
    assert!(!is_opaque(nested(NESTING_MAX).as_bytes()));
    assert!(is_opaque(nested(NESTING_MAX + 1).as_bytes()));
    assert!(is_opaque(nested(10_000).as_bytes()));
}

#[test]
fn beyond_the_bound_of_header_bytes_a_message_is_one_attachment() {
    let header = |bytes: usize| format!("Subject: x\r\nX: {}\r\n\r\nbody", "y".repeat(bytes - 19));
    assert!(!is_opaque(header(HEADER_BYTES_MAX).as_bytes()));
    assert!(is_opaque(header(HEADER_BYTES_MAX + 1).as_bytes()));
    assert!(is_opaque("X: y\r\n".repeat(HEADER_BYTES_MAX).as_bytes()));
    assert!(is_opaque(format!("X: {}", "y".repeat(HEADER_BYTES_MAX)).as_bytes()));
    assert_eq!(read(header(HEADER_BYTES_MAX + 1).as_bytes()).json(Shorthand::Subject), b"\"x\"");
    let part =
        format!("Content-Type: multipart/mixed; boundary=a\r\n\r\n--a\r\n{}", header(HEADER_BYTES_MAX + 1));
    assert!(is_opaque(part.as_bytes()), "of a part");
}

/// Each of these took quadratic time in a parser that looks for a delimiter from each part to the end of the message.
#[test]
fn hostile_structure_takes_linear_time() {
    let size = 1 << 20;
    let head = "Content-Type: multipart/mixed; boundary=a\r\n\r\n";
    for piece in [
        "--a\r\nContent-Type: multipart/mixed; boundary=never\r\n\r\nx\r\n",
        "\r\n--",
        "\r\n--a-",
        "--a--\r\n",
        "\r\n--b\r\n",
        "Content-Type: multipart/mixed; boundary=a\r\n\r\n--a\r\n",
        "--a\r\nContent-Type: message/rfc822\r\n\r\n",
        "\n",
        "\r",
        "(",
        "<",
        "=?utf-8?q?=41?= ",
    ] {
        for head in [head, "Subject: ", "From: ", "References: ", "Content-Type: ", ""] {
            let raw = [head, &piece.repeat(size / piece.len())].concat();
            let message = read(raw.as_bytes());
            assert!(message.structure.parts.len() <= PARTS_MAX);
        }
    }
    let boundaries = "boundary;".repeat(20_000);
    let raw = format!("{}\r\nContent-Type: multipart/mixed; {boundaries}\r\n\r\nx", nested(31));
    assert!(read(raw.as_bytes()).structure.parts.len() <= PARTS_MAX);
}
