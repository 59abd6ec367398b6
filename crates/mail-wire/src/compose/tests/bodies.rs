use mail_parser::{MessageParser, MimeHeaders};

use super::*;

/// The encoding that is chosen for a part, and the body as written.
fn encoded(part: Part) -> (String, String) {
    let written = message(&[], part).write(&origin()).unwrap();
    let header = Header::parse(&written);
    let encoding = header.last("Content-Transfer-Encoding").map(|field| as_text(field.value));
    let body = String::from_utf8_lossy(&written[header.bytes()..]).into_owned();
    (encoding.unwrap_or_default(), body)
}

fn octets(media_type: &str, octets: &[u8]) -> Part {
    Part::new(media_type, Content::Bytes(Bytes::copy_from_slice(octets)))
}

#[test]
fn es2_text_has_crlf_and_the_shortest_encoding() {
    let long = "x".repeat(999);
    let rows = [
        ("", "", String::new()),
        ("one\ntwo\r\nthree\rfour", "", "one\r\ntwo\r\nthree\r\nfour".to_owned()),
        ("ends with space \n", "", "ends with space \r\n".to_owned()),
        ("mostly ASCII, one ü \nx", "quoted-printable", "mostly ASCII, one =C3=BC=20\r\nx=\r\n".to_owned()),
        ("fünf von zehn\n", "quoted-printable", "f=C3=BCnf von zehn\r\n".to_owned()),
        ("中文中文", "base64", "5Lit5paH5Lit5paH\r\n".to_owned()),
        ("nul\0 and bell\u{7} in a text", "quoted-printable", "nul=00 and bell=07 in a text=\r\n".to_owned()),
        (
            &long,
            "quoted-printable",
            format!("{}{}=\r\n", format!("{}=\r\n", "x".repeat(75)).repeat(13), "x".repeat(24)),
        ),
    ];
    for (text, encoding, body) in rows {
        assert_eq!(encoded(text_part(text)), (encoding.to_owned(), body), "{text:?}");
    }
    let (encoding, body) = encoded(text_part(&"one ü in a longer line = quoted\n".repeat(100)));
    assert_eq!(encoding, "quoted-printable");
    assert!(body.lines().all(|line| line.len() <= 76));
}

#[test]
fn es2_octets_are_kept_as_they_are() {
    let rows: &[(&str, &[u8], &str, &str)] = &[
        ("application/octet-stream", b"plain", "base64", "cGxhaW4=\r\n"),
        ("text/plain", b"one\r\ntwo", "", "one\r\ntwo"),
        ("text/plain", b"bare\nline feed and cr\r", "quoted-printable", "bare=0Aline feed and cr=0D=\r\n"),
        ("text/plain", b"\xff\xfe\xfd", "base64", "//79\r\n"),
        ("message/rfc822", b"Subject: x\r\n\r\nhi", "", "Subject: x\r\n\r\nhi"),
        ("message/rfc822", "Subject: ü\r\n\r\nhi".as_bytes(), "8bit", "Subject: ü\r\n\r\nhi"),
        ("message/rfc822", b"Subject: x\n\nhi", "base64", "U3ViamVjdDogeAoKaGk=\r\n"),
    ];
    for (media_type, content, encoding, body) in rows {
        let (found_encoding, found) = encoded(octets(media_type, content));
        assert_eq!(
            (found_encoding.as_str(), found.as_str()),
            (*encoding, *body),
            "{}",
            content.escape_ascii()
        );
    }
    let (_, body) = encoded(octets("image/png", &[0x5a; 1_000]));
    assert!(body.split_terminator("\r\n").all(|line| line.len() <= 76));
    assert_eq!(transfer::decode("base64", body.as_bytes()).bytes, vec![0x5a; 1_000]);
}

#[test]
fn es2_a_multipart_with_octets_says_so() {
    let inner = octets("message/rfc822", "Subject: ü\r\n\r\n".as_bytes());
    let root = Part::new("multipart/mixed", Content::Parts(vec![text_part("x"), inner]));
    assert_eq!(encoded(root).0, "8bit");
}

#[test]
fn es2_parts_are_alternative_related_and_mixed() {
    let part = |media_type: &str| Part::new(media_type, Content::Text("x".into()));
    let inline = |cid: &str| Part {
        disposition: Some("Inline".to_owned()),
        cid: Some(cid.to_owned()),
        ..octets("image/png", b"x")
    };
    let attached = || Part { disposition: Some("attachment".to_owned()), ..octets("application/pdf", b"x") };
    let (text, html) = (|| Some(part("text/plain")), || Some(part("text/html")));
    let rows = [
        (Part::assemble(None, None, vec![]), "text/plain"),
        (Part::assemble(text(), None, vec![]), "text/plain"),
        (Part::assemble(None, html(), vec![]), "text/html"),
        (Part::assemble(text(), html(), vec![]), "alternative(text/plain text/html)"),
        (Part::assemble(None, None, vec![attached()]), "mixed(application/pdf)"),
        (
            Part::assemble(text(), None, vec![attached(), inline("a")]),
            "mixed(text/plain application/pdf image/png)",
        ),
        (
            Part::assemble(text(), html(), vec![attached(), inline("a"), inline("b")]),
            "mixed(alternative(text/plain related(text/html image/png image/png)) application/pdf)",
        ),
        (Part::assemble(None, html(), vec![inline("a")]), "related(text/html image/png)"),
    ];
    for (root, expected) in rows {
        assert_eq!(shape(&root), expected);
        properties::part_is_read_again(&root);
    }
    let related = Part::assemble(None, html(), vec![inline("a")]);
    assert_eq!(related.parameters, [("type".to_owned(), "text/html".to_owned())]);
}

fn shape(part: &Part) -> String {
    let Content::Parts(parts) = &part.content else { return part.media_type.clone() };
    let parts: Vec<String> = parts.iter().map(shape).collect();
    format!("{}({})", part.media_type.trim_start_matches("multipart/"), parts.join(" "))
}

#[test]
fn es2_parts_have_their_fields() {
    let part = Part {
        parameters: vec![
            ("format".to_owned(), "flowed".to_owned()),
            ("Charset".to_owned(), "latin1".to_owned()),
            ("NAME".to_owned(), "other".to_owned()),
        ],
        disposition: Some("inline".to_owned()),
        name: Some("a.txt".to_owned()),
        cid: Some("c@d".to_owned()),
        languages: vec!["en".to_owned(), "de-CH".to_owned()],
        location: Some("http://a/b".to_owned()),
        fields: vec![("X-A".to_owned(), FieldValue::Text("b".to_owned()))],
        ..text_part("a text with ü")
    };
    let expected = "X-A: b\r\n\
        Content-Type: text/plain; charset=utf-8; format=flowed\r\n\
        Content-Disposition: inline; filename=a.txt\r\n\
        Content-ID: <c@d>\r\n\
        Content-Language: en, de-CH\r\n\
        Content-Location: http://a/b\r\n\
        Content-Transfer-Encoding: quoted-printable\r\n\
        \r\n\
        a text with =C3=BC=\r\n";
    assert!(written(&message(&[], part.clone())).ends_with(expected));
    for name in [
        "Content-Type",
        "content-transfer-encoding",
        "Content-Disposition",
        "Content-ID",
        "Content-Language",
        "Content-Location",
    ] {
        let mut part = part.clone();
        part.fields.push((name.to_owned(), FieldValue::Raw(" x".to_owned())));
        assert_eq!(message(&[], part).write(&origin()).unwrap_err().problem, Problem::Reserved, "{name}");
    }
    let mut given = text_part("x");
    given.fields.push(("Content-Disposition".to_owned(), FieldValue::Raw(" inline".to_owned())));
    assert!(written(&message(&[], given)).contains("Content-Disposition: inline\r\n"));
}

#[test]
fn es1_malformed_parts_are_refused() {
    let refused = |part: Part| message(&[], part).write(&origin()).unwrap_err().problem;
    let parts = || Content::Parts(vec![text_part("x")]);
    for media_type in
        ["", "text", "text/", "/plain", "text/pl ain", "text/plain; x=y", "multipart/mixed", "grüße/x"]
    {
        assert_eq!(
            refused(Part::new(media_type, Content::Text("".into()))),
            Problem::MediaType,
            "{media_type}"
        );
    }
    assert_eq!(refused(Part::new("text/plain", parts())), Problem::MediaType);
    let mut deep = text_part("x");
    for _ in 0..DEPTH_MAX {
        deep = Part::new("multipart/mixed", Content::Parts(vec![deep]));
    }
    assert!(message(&[], deep.clone()).write(&origin()).is_ok());
    assert_eq!(refused(Part::new("multipart/mixed", Content::Parts(vec![deep]))), Problem::Depth);
    assert_eq!(
        refused(Part { disposition: Some("in line".to_owned()), ..text_part("x") }),
        Problem::Ambiguous
    );
    assert_eq!(refused(Part { languages: vec!["e n".to_owned()], ..text_part("x") }), Problem::Ambiguous);
    assert_eq!(
        refused(Part { parameters: vec![("a*".to_owned(), "b".to_owned())], ..text_part("x") }),
        Problem::Ambiguous
    );
}

#[test]
fn es2_boundaries_do_not_occur_in_the_content() {
    let first = "=_07070707070707070707070707070707_";
    let second = "=_07070707070707070707070707070708_";
    let root = |content: &str| {
        Part::new("multipart/mixed", Content::Parts(vec![text_part(content), text_part("x")]))
    };
    assert!(written(&message(&[], root("x"))).contains(&format!("boundary=\"{first}0_\"")));
    assert!(
        written(&message(&[], root(&format!("--{first}0_")))).contains(&format!("boundary=\"{second}0_\""))
    );
    let both = written(&message(&[], root(&format!("{first}{second}"))));
    assert!(both.contains("boundary=\"=_07070707070707070707070707070709_0_\""));
    let mut named = root("x");
    named.fields.push((format!("--{first}0_"), FieldValue::Raw(" x".to_owned())));
    assert!(written(&message(&[], named)).contains(&format!("boundary=\"{second}0_\"")));

    // No boundary is the beginning of another one, whatever their number.
    let inner = || Part::new("multipart/mixed", Content::Parts(vec![text_part("x")]));
    let many = Part::new("multipart/mixed", Content::Parts((0..120).map(|_| inner()).collect()));
    properties::part_is_read_again(&many);
    let written = written(&message(&[], many));
    let boundaries: Vec<&str> =
        written.split("boundary=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert_eq!(boundaries.len(), 121);
    for (at, boundary) in boundaries.iter().enumerate() {
        let others = boundaries.iter().enumerate().filter(|(other, _)| *other != at);
        assert!(others.into_iter().all(|(_, other)| !other.starts_with(boundary)));
    }
}

#[test]
fn es2_another_parser_reads_what_is_written() {
    let attachment = Part {
        disposition: Some("attachment".to_owned()),
        name: Some("grüße aus einem sehr langen Namen, der nicht in eine Zeile passt.pdf".to_owned()),
        ..octets("application/pdf", &[0, 1, 2, 255])
    };
    let html = Part::new("text/html", Content::Text("<p>grüße</p>".into()));
    let root = Part::assemble(Some(text_part("grüße\nan alle\n")), Some(html), vec![attachment]);
    let fields = [
        (
            "Subject",
            FieldValue::Text(
                "Grüße an alle, die diese Nachricht in einem anderen Programm lesen werden".to_owned(),
            ),
        ),
        ("From", FieldValue::Addresses(vec![address("Jörg \"J.\" Müller", "joerg@example.com")])),
        (
            "To",
            FieldValue::Addresses(vec![
                address("Smith, John", "john@example.com"),
                address("", "a@b.example"),
            ]),
        ),
    ];
    let written = message(&fields, root).write(&origin()).unwrap();
    let read = MessageParser::default().parse(&written).unwrap();
    assert_eq!(
        read.subject(),
        Some("Grüße an alle, die diese Nachricht in einem anderen Programm lesen werden")
    );
    let from = read.from().and_then(|from| from.first()).unwrap();
    assert_eq!((from.name(), from.address()), (Some("Jörg \"J.\" Müller"), Some("joerg@example.com")));
    let to = read.to().and_then(|to| to.first()).unwrap();
    assert_eq!((to.name(), to.address()), (Some("Smith, John"), Some("john@example.com")));
    assert_eq!(read.body_text(0).as_deref(), Some("grüße\r\nan alle\r\n"));
    assert_eq!(read.body_html(0).as_deref(), Some("<p>grüße</p>"));
    let attachment = read.attachment(0).unwrap();
    assert_eq!(attachment.contents(), [0, 1, 2, 255]);
    assert_eq!(
        attachment.attachment_name(),
        Some("grüße aus einem sehr langen Namen, der nicht in eine Zeile passt.pdf")
    );
    assert_eq!(as_addresses(read.header_raw("To").unwrap().as_bytes()).len(), 2);
}
