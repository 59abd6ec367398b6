use super::*;

fn text(value: &str) -> FieldValue {
    FieldValue::Text(value.to_owned())
}

#[test]
fn es1_line_breaks_in_values_are_refused() {
    for bad in ["a\rb", "a\nb", "a\r\n b", "a\r\nBcc: x@y", "\0", "a\r\n"] {
        let email = Address { name: None, email: bad.to_owned() };
        let group = Group { name: Some(bad.to_owned()), addresses: Vec::new() };
        let values = [
            FieldValue::Raw(bad.to_owned()),
            FieldValue::Text(bad.to_owned()),
            FieldValue::Addresses(vec![email.clone()]),
            FieldValue::Addresses(vec![address(bad, "a@b")]),
            FieldValue::GroupedAddresses(vec![group]),
            FieldValue::GroupedAddresses(vec![Group { name: None, addresses: vec![email] }]),
            FieldValue::MessageIds(vec![bad.to_owned()]),
            FieldValue::Urls(vec![bad.to_owned()]),
        ];
        for value in values {
            assert_eq!(field("X", value.clone()), Err(Problem::LineBreak), "{value:?}");
        }
        let changes: [fn(&mut Part, String); 4] = [
            |part, bad| part.name = Some(bad),
            |part, bad| part.cid = Some(bad),
            |part, bad| part.location = Some(bad),
            |part, bad| part.parameters.push(("x".to_owned(), bad)),
        ];
        for change in changes {
            let mut part = text_part("");
            change(&mut part, bad.to_owned());
            let error = message(&[], part).write(&origin()).unwrap_err();
            assert_eq!(error.problem, Problem::LineBreak);
        }
    }
}

#[test]
fn es1_fields_that_can_not_be_written_are_refused() {
    for name in ["", "a b", "a:b", "a\r\nb", "grüße", "x".repeat(77).as_str()] {
        assert_eq!(field(name, text("x")), Err(Problem::Name), "{name:?}");
    }
    for name in ["Content-Type", "content-id", "Content-Transfer-Encoding", "CONTENT-X"] {
        assert_eq!(field(name, text("x")), Err(Problem::Reserved), "{name:?}");
    }
    // An open comment or quote would end in the next address.
    let emails =
        ["a(b", "a\"b", "a\u{2}b", "a,b", "a>b", "a<b", "a(b)c", "\"a", "a  b", "a\tb", " a", "a @ b"];
    for email in emails {
        assert_eq!(
            field("To", FieldValue::Addresses(vec![address("", email)])),
            Err(Problem::Ambiguous),
            "{email}"
        );
    }
    for id in ["", "a\u{2}b", "a b", "a>b", "<a", "a(b)c"] {
        assert_eq!(
            field("References", FieldValue::MessageIds(vec![id.to_owned()])),
            Err(Problem::Ambiguous),
            "{id}"
        );
    }
    assert_eq!(field("List-Help", FieldValue::Urls(vec!["http://a b".to_owned()])), Err(Problem::Ambiguous));
    let long = "x".repeat(1_000);
    assert_eq!(field("X", FieldValue::Raw(long.clone())), Err(Problem::TooLong));
    assert_eq!(field("X", FieldValue::MessageIds(vec![long.clone()])), Err(Problem::TooLong));
    assert_eq!(field("X", FieldValue::Addresses(vec![address("", &long)])), Err(Problem::TooLong));
    let error = message(&[("X-A", text("a\nb"))], text_part("")).write(&origin()).unwrap_err();
    assert_eq!(error.to_string(), "can't write X-A: a field's value has no line breaks and no NUL");
}

#[test]
fn es2_text_is_encoded_where_it_must_be() {
    let rows = [
        ("", "Subject:\r\n"),
        ("hello world", "Subject: hello world\r\n"),
        ("grüße", "Subject: =?utf-8?b?Z3LDvMOfZQ==?=\r\n"),
        ("many words and one ü", "Subject: many words and one =?utf-8?b?w7w=?=\r\n"),
        ("ü ß plain é", "Subject: =?utf-8?b?w7wgw58=?= plain =?utf-8?b?w6k=?=\r\n"),
        (" two  spaces", "Subject: =?utf-8?q?_two__spaces?=\r\n"),
        ("a trailing ", "Subject: a =?utf-8?q?trailing_?=\r\n"),
        (" ", "Subject: =?utf-8?q?_?=\r\n"),
        ("=?utf-8?q?x?=", "Subject: =?utf-8?b?PT91dGYtOD9xP3g/PQ==?=\r\n"),
        ("a\tb\u{1}c\u{85}", "Subject: a bc\r\n"),
    ];
    for (value, expected) in rows {
        assert_eq!(field("Subject", text(value)).unwrap(), expected, "{value:?}");
        properties::field_is_read_again("Subject", &text(value));
    }
}

#[test]
fn es2_fields_are_folded_before_column_78() {
    let values = [
        text(&"word ".repeat(60)),
        text(&"größer ".repeat(60)),
        text(&"中".repeat(200)),
        text(&"x".repeat(2_000)),
        FieldValue::Raw(" word".repeat(60)),
        FieldValue::Addresses(vec![address("Jörg Müller", "joerg.mueller@example.com"); 20]),
        FieldValue::Addresses(vec![address(&"Long Name ".repeat(20), "a@example.com"); 2]),
        FieldValue::GroupedAddresses(vec![
            Group {
                name: Some("Group \"one\"".to_owned()),
                addresses: vec![address("", "a@example.com"); 20]
            };
            3
        ]),
        FieldValue::MessageIds(vec!["0123456789012345678901234567890123456789@example.com".to_owned(); 10]),
        FieldValue::Urls(vec!["https://example.com/archive/of/a/list".to_owned(); 10]),
    ];
    for value in values {
        let field = field("X-Field", value.clone()).unwrap();
        let lines: Vec<&str> = field.split_terminator("\r\n").collect();
        assert!(lines.len() > 3 && lines.iter().all(|line| line.len() <= 78), "{field}");
        assert!(lines.iter().skip(1).all(|line| line.starts_with(' ')), "{field}");
        properties::field_is_read_again("X-Field", &value);
    }
    let long = format!("{} {}", "x".repeat(200), "y".repeat(900));
    let field = field("Subject", text(&long)).unwrap();
    assert_eq!(field.split("\r\n").map(str::len).collect::<Vec<_>>(), [8, 201, 901, 0]);
}

#[test]
fn es2_addresses_are_written_in_the_plainest_way() {
    let rows = [
        (address("", "a@b"), "To: a@b\r\n"),
        (address("John Smith", "a@b"), "To: John Smith <a@b>\r\n"),
        (address("Smith, John", "a@b"), "To: \"Smith, John\" <a@b>\r\n"),
        (address("J. \"X\" \\ Smith", "a@b"), "To: \"J. \\\"X\\\" \\\\ Smith\" <a@b>\r\n"),
        (address("two  spaces", "a@b"), "To: \"two  spaces\" <a@b>\r\n"),
        (address("=?utf-8?q?x?=", "a@b"), "To: \"=?utf-8?q?x?=\" <a@b>\r\n"),
        (address("Jörg", "jörg@b"), "To: =?utf-8?b?SsO2cmc=?= <jörg@b>\r\n"),
        (address("  ", "a@b"), "To: a@b\r\n"),
        // Drafts.
        (address("John", ""), "To: John <>\r\n"),
        (address("", "john"), "To: john\r\n"),
        (address("", "john smith"), "To: <john smith>\r\n"),
        (address("", "\"john smith\"@b"), "To: <\"john smith\"@b>\r\n"),
        (address("", "a@[127.0.0.1]"), "To: <a@[127.0.0.1]>\r\n"),
        (address("", ""), "To:\r\n"),
    ];
    for (address, expected) in rows {
        let value = FieldValue::Addresses(vec![address]);
        assert_eq!(field("To", value.clone()).unwrap(), expected);
        properties::field_is_read_again("To", &value);
    }
    let group = |name: Option<&str>, addresses: &[Address]| Group {
        name: name.map(str::to_owned),
        addresses: addresses.to_vec(),
    };
    let groups = FieldValue::GroupedAddresses(vec![
        group(None, &[address("", "a@b"), address("C", "c@d")]),
        group(Some("G, H"), &[address("", "e@f")]),
        group(Some(""), &[]),
        group(Some("I"), &[address("", "g@h"), address("", "i@j")]),
        group(None, &[address("", "k@l")]),
    ]);
    let expected = "To: a@b, C <c@d>, \"G, H\": e@f;, \"\":;, I: g@h, i@j;, k@l\r\n";
    assert_eq!(field("To", groups.clone()).unwrap(), expected);
    properties::field_is_read_again("To", &groups);
}

#[test]
fn es2_lists_are_written_in_brackets() {
    let list = |items: &[&str]| items.iter().map(|item| (*item).to_owned()).collect::<Vec<_>>();
    let ids = FieldValue::MessageIds(list(&["a@b", "c@d"]));
    assert_eq!(field("References", ids).unwrap(), "References: <a@b> <c@d>\r\n");
    let urls = FieldValue::Urls(list(&["mailto:a@b?subject=x", "https://c/(d)"]));
    assert_eq!(field("List-Help", urls).unwrap(), "List-Help: <mailto:a@b?subject=x>, <https://c/(d)>\r\n");
    let date = FieldValue::Date(Date { seconds: 0, offset_minutes: -210 });
    assert_eq!(field("Resent-Date", date).unwrap(), "Resent-Date: Wed, 31 Dec 1969 20:30:00 -0330\r\n");
}

#[test]
fn es2_names_of_files_are_written_by_rfc_2231() {
    let rows = [
        ("a.txt", "attachment; filename=a.txt"),
        ("a b.txt", "attachment; filename=\"a b.txt\""),
        ("", "attachment; filename=\"\""),
        ("\"a\\\"; x=y", "attachment; filename=\"\\\"a\\\\\\\"; x=y\""),
        ("grüße.txt", "attachment; filename*=utf-8''gr%C3%BC%C3%9Fe.txt"),
        ("=?utf-8?q?x?=", "attachment; filename*=utf-8''%3D%3Futf-8%3Fq%3Fx%3F%3D"),
        (" x", "attachment; filename*=utf-8''%20x"),
    ];
    for (name, expected) in rows {
        let mut part = text_part("");
        (part.disposition, part.name) = (Some("attachment".to_owned()), Some(name.to_owned()));
        let written = written(&message(&[], part.clone()));
        assert!(written.contains(&format!("Content-Disposition: {expected}\r\n")), "{written}");
        properties::part_is_read_again(&part);
    }
    let mut part = text_part("");
    part.name = Some("lang ".repeat(50) + "ü");
    let written = written(&message(&[], part));
    let header = Header::parse(written.as_bytes());
    let content_type = header.last("Content-Type").unwrap();
    assert_eq!(as_parameters(content_type.value).get("name"), Some(("lang ".repeat(50) + "ü").as_str()));
    assert!(written.contains(" name*0*=utf-8''") && written.contains(" name*1*="));
    assert!(written.lines().all(|line| line.len() <= 78), "{written}");
}
