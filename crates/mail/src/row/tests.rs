use proptest::prelude::*;

use super::*;
use crate::message::{Part, PartKind, read};

fn row_of(raw: &[u8]) -> (Message, Row) {
    let message = read(raw);
    let row = Row::read(message.row()).unwrap();
    (message, row)
}

/// The row has the same values as the message.
fn assert_same(message: &Message, row: &Row) {
    assert_eq!((row.size(), row.header_bytes()), (message.size, message.header_bytes));
    assert_eq!((row.sent_at(), row.has_attachment()), (message.sent_at, message.has_attachment));
    for shorthand in ALL.into_iter().chain([Shorthand::HasAttachment]) {
        assert_eq!(row.json(shorthand), Some(message.json(shorthand)), "{shorthand:?}");
    }
    assert_eq!(row.structure().unwrap().as_ref(), Some(&message.structure));
}

const TYPICAL: &str = "Return-Path: <anna.example@mail.example.org>\r\nReceived: from a by b; Thu, 30 Oct 2014 14:12:00 +0800\r\n\
    Message-ID: <CAJ4mKGbY7=3sTvMbQ0zR1xJv@mail.example.org>\r\nIn-Reply-To: <20141029131200.4d1b9c3e@host.example.net>\r\n\
    References: <20141029131200.4d1b9c3e@host.example.net>\r\nFrom: Anna Example <anna.example@mail.example.org>\r\n\
    To: Bernd Beispiel <bernd@host.example.net>, list@lists.example.org\r\nSubject: Re: The figures of the last quarter\r\n\
    Date: Thu, 30 Oct 2014 14:12:00 +0800\r\nMIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=\"outer\"\r\n\r\n\
    --outer\r\nContent-Type: multipart/alternative; boundary=\"inner\"\r\n\r\n--inner\r\nContent-Type: text/plain; charset=UTF-8\r\n\
    Content-Transfer-Encoding: quoted-printable\r\n\r\nHello Bernd,\r\n\r\nthe figures are attached. They are better than we thought they \
    would be, and the second page has what you asked for. Please tell me by Friday whether something is missing, since the printer wants \
    them on Monday. I have left out the table of the year before, because nobody reads it.\r\n\r\nAnna\r\n--inner\r\n\
    Content-Type: text/html; charset=UTF-8\r\nContent-Transfer-Encoding: base64\r\n\r\nPHA+SGVsbG88L3A+\r\n--inner--\r\n--outer\r\n\
    Content-Type: application/pdf; name=\"figures.pdf\"\r\nContent-Disposition: attachment; filename=\"figures.pdf\"\r\n\
    Content-Transfer-Encoding: base64\r\n\r\nJVBERi0xLjQ=\r\n--outer--\r\n";

#[test]
fn e5_a_row_has_what_the_message_has() {
    let (message, row) = row_of(TYPICAL.as_bytes());
    assert_eq!(message.structure.parts.len(), 5);
    assert!(message.has_attachment);
    assert_same(&message, &row);
    for raw in ["", "no header", "A: b\r\n\r\n", "Date: 1 Jan 1960 00:00:00 +0100\r\n\r\n"] {
        let (message, row) = row_of(raw.as_bytes());
        assert_same(&message, &row);
    }
}

#[test]
fn the_row_of_a_typical_mail_is_short() {
    let row = read(TYPICAL.as_bytes()).row();
    assert!(row.len() < 850, "{} bytes", row.len());
}

#[test]
fn the_row_of_a_mail_has_the_bytes_that_the_format_lists() {
    let row =
        read(b"Subject: a\r\nDate: 1 Jan 1970 00:00:01 +0000\r\nContent-Type: image/x-b; name=c\r\n\r\nd")
            .row();
    let mut expected = vec![1, 2 | 4, 81, 80, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 22, 2];
    expected.extend(b"\"a\"\"1970-01-01T00:00:01Z\"\"\"");
    expected.extend([1, 0b0011_0000, 0b0000_0010, 1, 0, 78, 2, 1, 0, 9]);
    expected.extend(b"image/x-b\x01c");
    assert_eq!(row, expected);
}

/// The page documents what is stored on disk, so this test keeps the numbers from being changed.
#[test]
fn the_page_of_the_format_lists_every_code() {
    let page = include_str!("../../../../docs/formats/mail-row.md");
    let lists = [
        ("media types", codes::MEDIA_TYPES),
        ("charsets", codes::CHARSETS),
        ("dispositions", codes::DISPOSITIONS),
    ];
    for (name, codes) in lists {
        let line = format!("\n| {name} | `{}` |\n", codes.join("` `"));
        assert!(page.contains(&line), "{line}");
    }
}

#[test]
fn properties_that_are_too_long_are_left_out() {
    let addresses: Vec<_> = (0..2_000).map(|n| format!("recipient-{n}@host.example.net")).collect();
    let raw = format!("To: {}\r\nSubject: short\r\n\r\nx", addresses.join(",\r\n "));
    let (message, row) = row_of(raw.as_bytes());
    assert!(message.json(Shorthand::To).len() > JSON_BYTES_MAX);
    assert_eq!(row.json(Shorthand::To), None);
    assert_eq!(row.address_key(Shorthand::To), "");
    assert_eq!(row.json(Shorthand::Subject), Some(&b"\"short\""[..]));
    assert_eq!(row.structure().unwrap().unwrap(), message.structure);
}

#[test]
fn parts_that_are_too_large_are_left_out() {
    let part = format!("--a\r\nContent-Type: application/pdf; name={}\r\n\r\nx\r\n", "y".repeat(100));
    let raw = format!("Content-Type: multipart/mixed; boundary=a\r\n\r\n{}--a--", part.repeat(999));
    let (message, row) = row_of(raw.as_bytes());
    assert_eq!(message.structure.parts.len(), 1_000);
    assert_eq!(row.structure().unwrap(), None);
    assert_eq!(row.json(Shorthand::Preview), Some(&b"\"\""[..]));
    assert!(message.row().len() < 100);
    let small = "--a\r\n\r\nx\r\n".repeat(999);
    let (message, row) =
        row_of(format!("Content-Type: multipart/mixed; boundary=a\r\n\r\n{small}--a--").as_bytes());
    assert_eq!(row.structure().unwrap().unwrap(), message.structure, "a thousand small parts fit");
}

#[test]
fn eq3_sort_keys_are_the_first_name_else_the_address_and_the_base_subject() {
    let key = |header: &str| row_of(format!("{header}\r\n\r\n").as_bytes()).1;
    assert_eq!(key("From: Anna <a@b>, c@d").address_key(Shorthand::From), "Anna");
    assert_eq!(key("From: a@b, Anna <c@d>").address_key(Shorthand::From), "a@b");
    assert_eq!(key("To: \"\" <a@b>").address_key(Shorthand::To), "a@b");
    assert_eq!(key("X-A: b").address_key(Shorthand::From), "");
    assert_eq!(key("From: ").address_key(Shorthand::From), "");
    assert_eq!(key("Subject: Re: [list] =?utf-8?q?caf=C3=A9?=").subject_key(), "café");
    assert_eq!(key("X-A: b").subject_key(), "");
}

#[test]
fn damaged_rows_are_errors() {
    let row = read(TYPICAL.as_bytes()).row();
    for length in 0..row.len() {
        let is_whole = Row::read(row.slice(..length)).and_then(|row| row.structure()).is_ok();
        assert!(!is_whole, "{length} of {} bytes", row.len());
    }
    let error = |bytes: &[u8]| Row::read(Bytes::copy_from_slice(bytes)).unwrap_err();
    assert_eq!(error(&[]).kind(), ErrorKind::Corrupt);
    assert!(error(&[2, 0]).to_string().contains("version 2"));
    assert!(error(&[1, 8]).to_string().contains("damaged"));
    let mut longer = row.to_vec();
    longer.push(0);
    assert!(Row::read(longer.into()).unwrap().structure().is_err(), "bytes behind the parts");
    for at in 0..row.len() {
        for bit in 0..8 {
            let mut flipped = row.to_vec();
            flipped[at] ^= 1 << bit;
            fuzz_row(&flipped);
        }
    }
}

/// Mail of random pieces, so that all kinds of structures come up.
fn mail() -> impl Strategy<Value = String> {
    let pieces = [
        "Content-Type: multipart/mixed; boundary=a\r\n",
        "Content-Type: multipart/alternative; boundary=b\r\n",
        "Content-Type: multipart/digest; boundary=a--\r\n",
        "Content-Type: text/html; charset=UTF-8\r\n",
        "Content-Type: message/rfc822\r\n",
        "Content-Type: image/png; name=\"x \u{e9}\"\r\n",
        "Content-Disposition: attachment; filename*=utf-8''%E2%82%AC\r\n",
        "Content-Transfer-Encoding: base64\r\n",
        "Content-Transfer-Encoding: quoted-printable\r\n",
        "Content-ID: <a@b>\r\nContent-Language: de, en\r\nContent-Location: x\r\n",
        "Subject: =?utf-8?q?=E2=82=AC?=\r\nFrom: A <a@b>\r\nDate: 1 Jan 2020 00:00:00 +0100\r\n",
        "\r\n",
        "\n",
        "\r\n--a\r\n",
        "\r\n--b\r\n",
        "\r\n--b--\r\n",
        "\r\n--a--\r\n",
        "YWJj=\r\n",
        "text <img src=cid:a@b>",
        "\0\u{1}\"\\",
    ];
    proptest::collection::vec(proptest::sample::select(pieces.to_vec()), 0..40)
        .prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn rows_are_read_as_they_were_written(raw in mail()) {
        let (message, row) = row_of(raw.as_bytes());
        assert_same(&message, &row);
        prop_assert_eq!(&message.structure, &crate::message::structure(raw.as_bytes()));
        for part in &message.structure.parts {
            check_part(part, &message.structure, raw.len());
        }
        let leaves = message.structure.parts.iter().filter(|part| part.kind != PartKind::Multipart);
        for part in leaves {
            let lists = [&message.structure.text_body, &message.structure.html_body, &message.structure.attachments];
            prop_assert!(lists.iter().any(|list| list.contains(&part.number)), "part {} is hidden", part.number);
        }
    }

    #[test]
    fn any_bytes_are_a_row_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
        fuzz_row(&bytes);
        fuzz_row(&[&[1, 4, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], &bytes].concat());
    }
}

/// Each part is inside its multipart, and after its own header.
fn check_part(part: &Part, structure: &Structure, length: usize) {
    assert!(
        part.header.start <= part.header.end
            && part.header.end <= part.body.start
            && part.body.start <= part.body.end
    );
    assert!(part.body.end as usize <= length);
    if let Some(parent) = structure.part(part.parent) {
        assert!(
            parent.body.start <= part.header.start && part.body.end <= parent.body.end,
            "{part:?} in {parent:?}"
        );
    }
}
