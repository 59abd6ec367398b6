use super::*;

mod addresses;
mod dates;
mod parameters;
mod robustness;
mod texts;

fn names_and_values(message: &[u8]) -> Vec<(String, String)> {
    let header = Header::parse(message);
    header.fields().map(|field| (field.name.to_owned(), field.value.escape_ascii().to_string())).collect()
}

#[test]
fn e2_header_ends_at_the_first_empty_line() {
    let rows: &[(&[u8], usize, usize)] = &[
        (b"", 0, 0),
        (b"\r\nbody: 1", 0, 2),
        (b"\nbody: 1", 0, 1),
        (b"a: 1", 1, 4),
        (b"a: 1\r\n", 1, 6),
        (b"a: 1\r\n\r\nb: 2", 1, 8),
        (b"a: 1\n\nb: 2", 1, 6),
        (b"a: 1\r\n \r\n\t\r\n\r\nb: 2", 1, 14), // lines of white space are folds
        (b"a: 1\r\nb: 2\n\r\nc: 3", 2, 13),
        (b"a: 1\r\r\nb: 2\r\n", 2, 13),
    ];
    for (message, fields, bytes) in rows {
        let header = Header::parse(message);
        assert_eq!(
            (header.fields().count(), header.bytes()),
            (*fields, *bytes),
            "{}",
            message.escape_ascii()
        );
    }
}

#[test]
fn e2_headers_are_listed_in_order_with_raw_values() {
    let message = b"From sender Mon Jan  1 00:00:00 2024\r\n\
        folded before the first field\r\n\
        Subject:  one\r\n\ttwo\r\n  three \r\n\
        subject:\r\n\
        X-Old \t: value: with colon\r\n\
        no colon here\r\n\
        : no name\r\n\
        two words: not a field\r\n\
        Gr\xc3\xbc\xc3\x9fe: not ASCII\r\n\
        To:a@b\r\n\
        \r\n\
        Body: x";
    let expected = [
        ("Subject", "  one\\r\\n\\ttwo\\r\\n  three "),
        ("subject", ""),
        ("X-Old", " value: with colon"),
        ("To", "a@b"),
    ];
    let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(names_and_values(message), expected);
    let folded = b" folded first\r\na: 1\r\n";
    assert_eq!(names_and_values(folded), [("a".to_owned(), " 1".to_owned())]);
}

#[test]
fn e2_the_last_instance_is_given_and_all_on_request() {
    let header =
        Header::parse(b"Received: 1\r\nSubject: x\r\nreceived: 2\r\nRECEIVED: 3\r\n\r\nReceived: 4\r\n");
    assert_eq!(header.last("Received").unwrap().value, b" 3");
    assert_eq!(header.last("rEcEiVeD").unwrap().name, "RECEIVED");
    assert_eq!(header.last("Receive"), None);
    let values: Vec<&[u8]> = header.all("received").map(|field| field.value).collect();
    assert_eq!(values, [b" 1", b" 2", b" 3"]);
}

#[test]
fn e2_header_properties_have_their_suffixes_in_order() {
    let parsed = |property| HeaderProperty::parse(property).map(|found| (found.name, found.form, found.all));
    assert_eq!(parsed("header:Subject"), Some(("Subject", Form::Raw, false)));
    assert_eq!(parsed("header:sUbject:all"), Some(("sUbject", Form::Raw, true)));
    assert_eq!(parsed("header:Subject:asText"), Some(("Subject", Form::Text, false)));
    assert_eq!(parsed("header:X-To:asAddresses:all"), Some(("X-To", Form::Addresses, true)));
    assert_eq!(parsed("header:Subject:asRaw"), Some(("Subject", Form::Raw, false)));
    let refused = [
        "header:",
        "header",
        "Header:Subject",
        "subject",
        "header::asText",
        "header:Sub ject",
        "header:Gr\u{fc}\u{df}e",
        "header:Subject:",
        "header:Subject:astext",
        "header:Subject:text",
        "header:Subject:All",
        "header:Subject:all:asText",
        "header:Subject:asText:all:",
        "header:Subject:asText:all:all",
        "header:Subject:asText:asText",
        "header:Subject:asDate",
    ];
    for property in refused {
        assert_eq!(HeaderProperty::parse(property), None, "{property}");
    }
}

#[test]
fn e3_each_field_is_allowed_its_forms_alone() {
    use Form::{Addresses, Date, GroupedAddresses, MessageIds, Raw, Text, Urls};
    const ALL: [Form; 7] = [Raw, Text, Addresses, GroupedAddresses, MessageIds, Date, Urls];
    let rows: &[(&[&str], &[Form])] = &[
        (&["Subject", "Comments", "Keywords", "SUBJECT"], &[Raw, Text]),
        (
            &[
                "From",
                "Sender",
                "Reply-To",
                "To",
                "Cc",
                "Bcc",
                "Resent-From",
                "Resent-Sender",
                "Resent-Reply-To",
                "Resent-To",
                "Resent-Cc",
                "Resent-Bcc",
                "bcc",
            ],
            &[Raw, Addresses, GroupedAddresses],
        ),
        (&["Message-ID", "In-Reply-To", "References", "Resent-Message-ID", "message-id"], &[Raw, MessageIds]),
        (&["Date", "Resent-Date"], &[Raw, Date]),
        (
            &["List-Help", "List-Unsubscribe", "List-Subscribe", "List-Post", "List-Owner", "List-Archive"],
            &[Raw, Urls],
        ),
        (&["Return-Path", "Received"], &[Raw]),
        (&["List-Id", "X-Anything", "Content-Type", "Delivered-To", "List-Unsubscribe-Post"], &ALL),
    ];
    for (names, forms) in rows {
        for name in *names {
            for form in ALL {
                assert_eq!(form.is_allowed(name), forms.contains(&form), "{name} {form:?}");
            }
        }
    }
}

#[test]
fn e3_forms_are_named_as_in_properties() {
    let rows = [
        ("asRaw", Some(Form::Raw)),
        ("asText", Some(Form::Text)),
        ("asAddresses", Some(Form::Addresses)),
        ("asGroupedAddresses", Some(Form::GroupedAddresses)),
        ("asMessageIds", Some(Form::MessageIds)),
        ("asDate", Some(Form::Date)),
        ("asURLs", Some(Form::Urls)),
        ("asUrls", None),
        ("Text", None),
        ("", None),
    ];
    for (suffix, form) in rows {
        assert_eq!(Form::parse(suffix), form, "{suffix}");
    }
}

#[test]
fn e4_message_ids_have_no_brackets_and_comments() {
    let rows: &[(&str, &[&str])] = &[
        (" <a@b>", &["a@b"]),
        (" <a@b> <c@d>\r\n\t<e@f>", &["a@b", "c@d", "e@f"]),
        ("<a@b><c@d>,<e@f>", &["a@b", "c@d", "e@f"]),
        (" (first) <a@b> (<no@id>) <c@d>", &["a@b", "c@d"]),
        (" < a (x) @ b >", &["a@b"]),
        (" <a\r\n @b>", &["a@b"]),
        (" <\"a\r\n b\" @ [127.0.0.1]>", &["\"a b\"@[127.0.0.1]"]),
        (" Your message of \"Mon, <1>\" <a@b>", &["a@b"]),
        (" <no-at-sign>", &["no-at-sign"]),
        (" <> <a@b>", &["a@b"]),
        (" <cut <a@b>", &["a@b"]),
        (" <a@b> <cut", &["a@b"]),
        (" <grüße@b>", &["grüße@b"]),
        (" <a(unclosed@b>", &["a(unclosed@b"]),
    ];
    for (value, ids) in rows {
        assert_eq!(as_message_ids(value.as_bytes()).unwrap(), *ids, "{value:?}");
    }
    for value in ["", " ", " a@b", " (<a@b>)", " \"<a@b>\"", " <>", " <cut", " some words"] {
        assert_eq!(as_message_ids(value.as_bytes()), None, "{value:?}");
    }
}

#[test]
fn e4_urls_have_no_brackets_and_comments() {
    // The first five are from RFC 2369.
    let rows: &[(&str, &[&str])] = &[
        (" <mailto:list@host.com?subject=help> (List Instructions)", &["mailto:list@host.com?subject=help"]),
        (
            " <ftp://ftp.host.com/list.txt> (FTP),\r\n <mailto:list@host.com?subject=help>",
            &["ftp://ftp.host.com/list.txt", "mailto:list@host.com?subject=help"],
        ),
        (
            " (Use this command to join the list)\r\n <mailto:list-manager@host.com?body=subscribe%20list>",
            &["mailto:list-manager@host.com?body=subscribe%20list"],
        ),
        (" <mailto:moderator@host.com> (Postings are Moderated)", &["mailto:moderator@host.com"]),
        (" <http://www.host.com/list/archive/> (Web Archive)", &["http://www.host.com/list/archive/"]),
        (
            " <http://host/a(b)c>, <http://host/long\r\n  path>",
            &["http://host/a(b)c", "http://host/longpath"],
        ),
        (" <https://a>\r\n\t<https://b>", &["https://a", "https://b"]),
    ];
    for (value, urls) in rows {
        assert_eq!(as_urls(value.as_bytes()).unwrap(), *urls, "{value:?}");
    }
    for value in
        ["", " NO (posting not allowed on this list)", " http://host/", " (<http://host/>)", " <http://cut"]
    {
        assert_eq!(as_urls(value.as_bytes()), None, "{value:?}");
    }
}
