use proptest::prelude::*;
use restante_mail::message;

use super::*;

const DATE: &str = "Date: Sun, 9 Sep 2001 01:46:40 +0000\r\n";
const MESSAGE_ID: &str = "Message-ID: <id@example.org>\r\n";

fn origin() -> OriginFields {
    let date = Date { seconds: 1_000_000_000, offset_minutes: 0 };
    OriginFields { date, message_id: "id@example.org".to_owned() }
}

/// A message that was submitted by JMAP, prepared.
fn submitted(message: &str) -> String {
    String::from_utf8(prepared(message.as_bytes(), Some(&origin())).into_owned()).unwrap()
}

/// A message that was not submitted by JMAP, prepared.
fn smtp(message: &str) -> String {
    String::from_utf8(prepared(message.as_bytes(), None).into_owned()).unwrap()
}

/// Checks what must hold for every message that leaves.
fn assert_fit(message: &[u8]) {
    let mut rest = message;
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let line = rest[..end].strip_suffix(b"\r").expect("a LF alone");
        assert!(!line.contains(&b'\r') && !line.contains(&0), "{}", line.escape_ascii());
        assert!(line.len() <= LINE_BYTES_MAX, "{} bytes", line.len());
        rest = &rest[end + 1..];
    }
    assert!(rest.is_empty(), "the last line is not ended: {}", rest.escape_ascii());
}

/// The decoded bodies of all parts except multiparts, with their types.
fn bodies(message: &[u8]) -> Vec<(String, Vec<u8>)> {
    let structure = message::structure(message);
    let leaves = structure.parts.iter().filter(|part| part.kind != message::PartKind::Multipart);
    leaves.map(|part| (part.media_type.clone(), message::decoded(message, part).into_owned())).collect()
}

#[test]
fn out13_all_line_breaks_leave_as_crlf_and_nul_not_at_all() {
    for (stored, sent) in [
        ("a: b\r\n\r\nc\r\n", "a: b\r\n\r\nc\r\n"),
        ("a: b\n\nc\n", "a: b\r\n\r\nc\r\n"),
        ("a: b\r\rc", "a: b\r\nc\r\n"),
        ("a: b\r\n\r\nc", "a: b\r\n\r\nc\r\n"),
        ("a: b\r\n\r\nc\r", "a: b\r\n\r\nc\r\n"),
        ("a: b\r\n\r\nx\r\r\ny\r\n", "a: b\r\n\r\nx\r\ny\r\n"),
        ("a: b\r\n\r\nx\r\0\ny\0\r\n", "a: b\r\n\r\nx\r\ny\r\n"),
        ("a: b\r\n\r\n\n.\n.\r\n\r.\r", "a: b\r\n\r\n\r\n.\r\n.\r\n\r\n.\r\n"),
        ("", ""),
    ] {
        assert_eq!(smtp(stored), sent, "{stored:?}");
    }
}

#[test]
fn su3_bcc_leaves_a_message_when_it_is_sent() {
    let stored =
        "From: a@b\r\nBCC : c@d,\r\n\te@f\r\nTo: g@h\r\nBcc: i@j\r\nResent-Bcc: k@l\r\n\r\nBcc: body\r\n";
    let sent = "From: a@b\r\nTo: g@h\r\n\r\nBcc: body\r\n";
    assert_eq!(submitted(stored), format!("{DATE}{MESSAGE_ID}{sent}"));
    assert_eq!(smtp(stored), stored, "what others sent is not changed");
    assert_eq!(submitted("Bcc: c@d\n"), format!("{DATE}{MESSAGE_ID}"));
}

/// A message that was imported without them was sent without them.
#[test]
fn su3_a_message_is_sent_with_date_and_message_id() {
    let stored = "From: a@b\r\n\r\nDate: body\r\n";
    assert_eq!(submitted(stored), format!("{DATE}{MESSAGE_ID}{stored}"));
    let dated = "date : now\r\nFrom: a@b\r\n\r\nText\r\n";
    assert_eq!(submitted(dated), format!("{MESSAGE_ID}{dated}"));
    let named = "From: a@b\r\nMESSAGE-ID: <x@y>\r\nDate: now\r\n\r\nText\r\n";
    assert_eq!(submitted(named), named);
    assert_eq!(smtp(stored), stored, "what others sent is not changed");
}

#[tokio::test]
async fn su3_a_submission_has_the_same_message_id_in_each_attempt_and_in_the_log() {
    let blobs = restante_blobs::Config::new(restante_blobs::EngineUrl::Memory);
    let blobs = restante_blobs::open(blobs).await.unwrap().blobs;
    let raw = Bytes::from("From: a@b.example\r\n\r\nText\r\n");
    let blob = blobs.put(&mut raw.clone()).await.unwrap().id;
    let preparing = BlobPreparing::new(blobs);
    let of_key = |key: u8, kind| QueuedMessage {
        source: Source { kind, account: None, record: restante_records::RecordId(1), key: [key; 32] },
        blob,
        size: raw.len() as u64,
        sender: "a@Bücher.example".to_owned(),
        envelope_id: None,
        returned: None,
        transmission: Transmission::default(),
        queued: 1_000_000_000,
    };
    let mut ids = Vec::new();
    for key in [1, 1, 2] {
        let message = of_key(key, SourceKind::Submission);
        let sent = preparing.prepare(&message).await.unwrap();
        assert!(sent.bytes.starts_with(DATE.as_bytes()), "{}", sent.bytes.escape_ascii());
        let id = sent.message_id().unwrap();
        assert!(id.ends_with("@xn--bcher-kva.example"), "{id}");
        assert_eq!(preparing.message_id(&message).await.as_ref(), Some(&id));
        ids.push(id);
    }
    assert_eq!(ids[0], ids[1]);
    assert_ne!(ids[0], ids[2], "another submission of the same email");
    let forwarded = of_key(1, SourceKind::Forward);
    assert_eq!(preparing.prepare(&forwarded).await.unwrap().bytes, raw);
    assert_eq!(preparing.message_id(&forwarded).await, None);
}

#[test]
fn out13_a_text_with_long_lines_is_encoded() {
    let line = "word ".repeat(400);
    let stored = format!("Subject: x\r\nContent-Type: text/plain\r\n\r\n.{line}\r\nend\r\n");
    let sent = smtp(&stored);
    assert_fit(sent.as_bytes());
    assert!(
        sent.contains("MIME-Version: 1.0\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\n"),
        "{sent}"
    );
    assert_eq!(bodies(sent.as_bytes()), [("text/plain".into(), format!(".{line}\r\nend\r\n").into_bytes())]);
}

#[test]
fn out13_parts_with_long_lines_are_encoded_and_others_are_not() {
    let long = "x".repeat(3_000);
    let stored = format!(
        "MIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n\r\nshort\r\n\
         --b\r\nContent-Type: text/html\r\ncontent-transfer-encoding: 8bit\r\n\r\n{long}\r\n\
         --b\r\nContent-Type: application/x-data\r\nContent-Transfer-Encoding: base64\r\n\r\n{long}\r\n\
         --b\r\nContent-Type: message/rfc822\r\n\r\nSubject: y\r\n\r\n{long}\r\n--b--\r\n"
    );
    let sent = smtp(&stored);
    assert_fit(sent.as_bytes());
    assert!(sent.contains("--b\r\n\r\nshort\r\n--b\r\n"), "{sent}");
    let (before, after) = (bodies(stored.as_bytes()), bodies(sent.as_bytes()));
    assert_eq!(before[..3], after[..3]);
    assert_eq!(bodies(&after[3].1), [("text/plain".to_owned(), long.into_bytes())]);
}

/// Their NULs were dropped, and each CR or LF alone became a line break.
#[test]
fn out13_binary_parts_arrive_with_the_same_bytes() {
    let content: Vec<u8> = (0..=255).cycle().take(5_120).collect();
    let part = |kind: &str, encoding: &str, body: &[u8]| {
        [format!("Content-Type: {kind}\r\nContent-Transfer-Encoding: {encoding}\r\n\r\n").as_bytes(), body]
            .concat()
    };
    let single = part("application/octet-stream", "Binary", &content);
    let nested = part("message/rfc822", "binary", &single);
    let unended = part("application/octet-stream", "binary", b"abc");
    let multipart = [
        b"MIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=b\r\nContent-Transfer-Encoding: binary\r\n\r\n--b\r\n",
        part("text/plain", "7bit", b"a\nb").as_slice(),
        b"\r\n--b\r\n",
        &single,
        b"\r\n--b\r\n",
        &nested,
        b"\r\n--b--\r\n",
    ]
    .concat();
    for stored in [&single, &unended] {
        let sent = prepared(stored, None);
        assert_fit(&sent);
        assert_eq!(bodies(&sent), bodies(stored));
        assert!(sent.is_ascii() && !sent.escape_ascii().to_string().to_lowercase().contains("binary"));
    }
    let sent = prepared(&multipart, None);
    assert_fit(&sent);
    assert!(!sent.escape_ascii().to_string().to_lowercase().contains("binary"));
    let (before, after) = (bodies(&multipart), bodies(&sent));
    assert_eq!(after[0].1, b"a\r\nb", "a line break of text is one");
    assert_eq!(after[1], before[1]);
    assert_eq!(bodies(&after[2].1), bodies(&before[2].1));
    let whole = part("application/octet-stream", "binary", b"a\r\nb\r\n");
    assert_eq!(prepared(&whole, None), whole, "what stays the same is not encoded");
}

#[test]
fn out13_long_lines_of_a_header_are_folded() {
    let stored = format!("To: {}\r\nX: {}\r\n\r\ntext\r\n", "a@b.example, ".repeat(200), "y".repeat(2_500));
    let sent = smtp(&stored);
    assert_fit(sent.as_bytes());
    assert!(sent.ends_with("\r\n\r\ntext\r\n"), "{sent}");
    let to = restante_mail_wire::header::Header::parse(sent.as_bytes()).last("To").unwrap();
    assert_eq!(restante_mail_wire::header::as_addresses(to.value).len(), 200);
}

#[test]
fn out13_long_lines_that_belong_to_no_part_are_broken() {
    let long = "z".repeat(5_000);
    let preamble =
        format!("Content-Type: multipart/mixed; boundary=b\r\n\r\n{long}\r\n--b\r\n\r\na\r\n--b--\r\n");
    assert_fit(smtp(&preamble).as_bytes());
    let no_boundary = format!("Content-Type: multipart/mixed\r\n\r\n{long}ä{long}");
    assert_fit(smtp(&no_boundary).as_bytes());
    let unknown = format!("Content-Transfer-Encoding: x-unknown\r\n\r\n{long}\r\n");
    assert_fit(smtp(&unknown).as_bytes());
}

#[test]
fn out11_parts_with_other_bytes_are_encoded_for_a_server_without_8bitmime() {
    let stored = "MIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=b\r\nContent-Transfer-Encoding: 8bit\r\n\r\n\
        --b\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\n\r\ngrüße\r\n\
        --b\r\nContent-Type: application/x-data\r\n\r\näöü\r\n\
        --b\r\nContent-Type: message/rfc822\r\nContent-Transfer-Encoding: 8bit\r\n\r\nSubject: y\r\n\
        Content-Type: text/plain; charset=utf-8\r\n\r\nübel\r\n\
        --b\r\n\r\nplain\r\n--b--\r\n";
    let sent = to_seven_bit(stored.as_bytes()).unwrap();
    assert!(sent.is_ascii());
    assert_fit(&sent);
    let (before, after) = (bodies(stored.as_bytes()), bodies(&sent));
    assert_eq!((&before[..2], &before[3..]), (&after[..2], &after[3..]));
    assert_eq!(bodies(&after[2].1), [("text/plain".to_owned(), "übel".into())]);
    let text = String::from_utf8(sent).unwrap();
    assert!(!text.contains("8bit"), "{text}");
}

#[test]
fn out11_what_is_signed_or_has_a_header_in_utf8_is_not_encoded() {
    for message in [
        "DKIM-Signature: v=1\r\nContent-Type: text/plain; charset=utf-8\r\n\r\nä\r\n",
        "Content-Type: multipart/signed; boundary=b\r\n\r\n--b\r\n\r\nä\r\n--b--\r\n",
        "Subject: ä\r\n\r\nä\r\n",
        "Content-Transfer-Encoding: x-unknown\r\n\r\nä\r\n",
        "Content-Type: multipart/mixed; boundary=b\r\n\r\nä\r\n--b\r\n\r\na\r\n--b--\r\n",
    ] {
        assert_eq!(to_seven_bit(message.as_bytes()), None, "{message}");
    }
}

#[test]
fn how_a_message_may_be_transmitted_is_seen() {
    let seen = |message: &str| {
        let Transmission { is_8bit, is_utf8 } = sniff(message.as_bytes());
        (is_8bit, is_utf8)
    };
    assert_eq!(seen("Subject: a\r\n\r\nb\r\n"), (false, false));
    assert_eq!(seen("Subject: a\r\n\r\nä\r\n"), (true, false));
    assert_eq!(seen("Subject: ä\r\n\r\nb\r\n"), (true, true));
}

proptest! {
    #[test]
    fn out13_nothing_leaves_with_bare_newlines_nul_or_long_lines(
        pieces in proptest::collection::vec(
            prop_oneof![
                "[ -~ä\r\n\0.]{0,20}", "x{990,1010}", "(word ){190,210}", Just("\r\n".to_owned()), Just("\r\n\r\n--b\r\n".to_owned()),
                Just("Content-Type: multipart/mixed; boundary=b\r\n".to_owned()), Just("--b\r\n".to_owned()),
                Just("Content-Type: message/rfc822\r\n\r\n".to_owned()), Just("\r\n--b--".to_owned()),
                Just("Content-Transfer-Encoding: base64\r\n".to_owned()),
                Just("Content-Transfer-Encoding: binary\r\n".to_owned()), Just("Subject: a\r\n\r\n".to_owned()),
            ], 0..12),
    ) {
        let stored = pieces.concat();
        for origin in [Some(&origin()), None] {
            let sent = prepared(stored.as_bytes(), origin);
            assert_fit(&sent);
            prop_assert_eq!(prepared(&sent, origin), sent.clone(), "it is done once");
        }
        if let Some(encoded) = to_seven_bit(&prepared(stored.as_bytes(), None)) {
            assert_fit(&encoded);
            prop_assert!(encoded.is_ascii());
        }
    }
}
