use restante_search::{DOCUMENT_BYTES_MAX, Field, Filter, HeaderName, SearchText, matches};

use super::*;
use crate::message::structure;

fn of(raw: &str) -> Document {
    document(RecordId(5), 7, raw.as_bytes(), &structure(raw.as_bytes()))
}

fn finds(raw: &str, field: Field, text: &str) -> bool {
    matches(&of(raw), &Filter::In(field, SearchText::parse(text).unwrap()))
}

fn finds_header(raw: &str, name: &str, text: Option<&str>) -> bool {
    let text = text.map(|text| SearchText::parse(text).unwrap());
    matches(&of(raw), &Filter::Header(HeaderName::new(name).unwrap(), text))
}

const MIXED: &str = "From: =?utf-8?q?Ren=C3=A9?= Dupont <rene@example.org>\r\n\
To: undisclosed: a@example.org, \"B, C\" <b@example.org>;\r\n\
Cc: c@example.org\r\n\
Bcc: d@example.org\r\n\
Subject: =?utf-8?q?caf=C3=A9?= plans\r\n\
X-Thing: folded\r\n value\r\n\
X-Thing: other\r\n\
MIME-Version: 1.0\r\n\
Content-Type: multipart/mixed; boundary=x\r\n\
\r\n\
--x\r\n\
Content-Type: text/html; charset=iso-8859-1\r\n\
Content-Transfer-Encoding: quoted-printable\r\n\
\r\n\
<html><head><title>the title</title><style>p { color: hidden }</style></head>\
<body>Gr=FC=DFe <img alt=3D\"a picture\"> <script>secret()</script></body></html>\r\n\
--x\r\n\
Content-Type: text/plain; name=\"notes.txt\"\r\n\
Content-Disposition: attachment; filename=\"notes.txt\"\r\n\
Content-Transfer-Encoding: base64\r\n\
\r\n\
aW5zaWRlIHRoZSBub3Rlcw==\r\n\
--x\r\n\
Content-Type: application/pdf\r\n\
Content-Disposition: attachment; filename*=utf-8''na%C3%AFve%20plan.pdf\r\n\
\r\n\
binary\r\n\
--x--\r\n";

#[test]
fn eq2_addresses_are_found_by_name_and_by_address() {
    for (field, text) in [
        (Field::From, "rene"),
        (Field::From, "dupont"),
        (Field::From, "rene@example.org"),
        (Field::To, "a@example.org"),
        (Field::To, "'b c'"),
        (Field::Cc, "c@example.org"),
        (Field::Bcc, "d@example.org"),
    ] {
        assert!(finds(MIXED, field, text), "{field:?} {text}");
    }
    assert!(!finds(MIXED, Field::From, "b@example.org"));
}

#[test]
fn eq2_subjects_and_bodies_are_decoded() {
    assert!(finds(MIXED, Field::Subject, "cafe plans"));
    assert!(finds(MIXED, Field::Body, "grüsse"));
}

#[test]
fn eq2_markup_scripts_and_styles_are_not_found_but_titles_and_alternative_texts() {
    for text in ["'the title'", "'a picture'"] {
        assert!(finds(MIXED, Field::Body, text), "{text}");
    }
    for text in ["html", "img", "alt", "secret", "color", "hidden"] {
        assert!(!finds(MIXED, Field::Body, text), "{text}");
    }
}

#[test]
fn eq2_text_attachments_and_names_of_attachments_are_found() {
    assert!(finds(MIXED, Field::Body, "'inside the notes'"));
    assert!(!finds(MIXED, Field::Body, "binary"));
    assert!(finds(MIXED, Field::Attachments, "notes.txt"));
    assert!(finds(MIXED, Field::Attachments, "naive plan"));
}

#[test]
fn eq1_each_header_field_is_found_by_name_and_value() {
    assert!(finds_header(MIXED, "x-thing", None));
    assert!(finds_header(MIXED, "X-Thing", Some("'folded value'")));
    assert!(finds_header(MIXED, "X-Thing", Some("other")));
    assert!(finds_header(MIXED, "subject", Some("café")));
    assert!(!finds_header(MIXED, "x-other", None));
}

#[test]
fn documents_of_any_message_are_within_their_bound() {
    let long = "word\u{fffd} ".repeat(1 << 20);
    let headers = format!("X-Long: {long}\r\n").repeat(4);
    let addresses = format!("To: {}x@example.org\r\n", "x@example.org, ".repeat(200_000));
    for raw in [
        format!("Subject: {long}\r\n\r\n{long}"),
        format!("{headers}\r\n{long}"),
        format!("{addresses}\r\n{long}"),
        format!("{}\r\nx", "A: b\r\n".repeat(100_000)),
    ] {
        let document = of(&raw);
        assert!(document.bytes() <= DOCUMENT_BYTES_MAX, "{}", document.bytes());
    }
    assert_eq!(of("").id, RecordId(5));
}

#[test]
fn eq2_a_phrase_does_not_reach_from_one_part_into_the_next() {
    let raw = "Content-Type: multipart/alternative; boundary=x\r\n\r\n--x\r\n\r\nfoo qaa1\r\n--x\r\n\
        Content-Type: text/html\r\n\r\n<p>qbb1 bar</p>\r\n--x--\r\n";
    assert_eq!(of(raw).body, ["foo qaa1", "qbb1 bar"]);
    assert!(finds(raw, Field::Body, "'foo qaa1' 'qbb1 bar'"));
    assert!(!finds(raw, Field::Body, "'qaa1 qbb1'"));
}
