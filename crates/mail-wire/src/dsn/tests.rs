use proptest::prelude::*;

use super::*;

const MESSAGE: &[u8] =
    b"From: anna@example.org\r\nMessage-ID: <1@example.org>\r\nSubject: hello\r\n\r\n.text\r\n";

fn recipient(address: &str) -> ReportedRecipient<'_> {
    ReportedRecipient {
        address,
        original: None,
        status: "5.1.1",
        code: 550,
        text: "no such user",
        server: Some("mx.example.net"),
        expired: None,
        last_attempt: 1_000_000_000,
        will_retry_until: None,
    }
}

fn report(recipients: Vec<ReportedRecipient<'_>>) -> Report<'_> {
    Report {
        action: Action::Failed,
        host: "mail.example.org",
        from: "mailer-daemon@mail.example.org",
        to: "anna@example.org",
        envelope_id: None,
        arrived: 999_990_000,
        now: 1_000_000_100,
        is_utf8: false,
        original: MESSAGE,
        returned: Returned::Whole,
        recipients,
        seed: [7; 16],
    }
}

fn text(report: &Report<'_>) -> String {
    String::from_utf8(report.write()).unwrap()
}

/// The lines of the part with this type, without its header.
fn part<'t>(message: &'t str, media_type: &str) -> &'t str {
    let (_, part) = message.split_once(&format!("Content-Type: {media_type}")).unwrap();
    let (_, body) = part.split_once("\r\n\r\n").unwrap();
    body.split_once("\r\n--=_").map_or(body, |(body, _)| body)
}

#[test]
fn dsn4_a_report_has_a_text_a_status_and_the_message() {
    let message = text(&report(vec![recipient("bob@example.net")]));
    let (header, _) = message.split_once("\r\n\r\n").unwrap();
    for field in [
        "From: Mail Delivery System <mailer-daemon@mail.example.org>",
        "To: anna@example.org",
        "Auto-Submitted: auto-replied",
        "In-Reply-To: <1@example.org>",
        "MIME-Version: 1.0",
        "Content-Type: multipart/report;",
        "report-type=delivery-status",
    ] {
        assert!(header.contains(field), "{field}: {header}");
    }
    let for_people = part(&message, "text/plain");
    assert!(for_people.contains("could not be delivered to this recipient"), "{for_people}");
    assert!(for_people.contains("The server mx.example.net replied: 550 5.1.1 no such user"), "{for_people}");
    assert_eq!(
        part(&message, "message/delivery-status"),
        "Reporting-MTA: dns; mail.example.org\r\n\
         Arrival-Date: Sat, 8 Sep 2001 23:00:00 +0000\r\n\
         \r\n\
         Final-Recipient: rfc822;bob@example.net\r\n\
         Action: failed\r\n\
         Status: 5.1.1\r\n\
         Remote-MTA: dns; mx.example.net\r\n\
         Diagnostic-Code: smtp; 550 5.1.1 no such user\r\n\
         Last-Attempt-Date: Sun, 9 Sep 2001 01:46:40 +0000\r\n"
    );
    assert_eq!(part(&message, "message/rfc822").as_bytes(), MESSAGE);
}

#[test]
fn dsn4_the_same_report_is_the_same_bytes() {
    let report = report(vec![recipient("bob@example.net")]);
    assert_eq!(report.write(), report.write());
}

#[test]
fn dsn4_a_status_has_the_class_of_what_happened() {
    for (action, status, expected) in [
        (Action::Failed, "4.4.1", "Action: failed\r\nStatus: 5.4.1"),
        (Action::Delayed, "4.4.1", "Action: delayed\r\nStatus: 4.4.1"),
        (Action::Delivered, "2.0.0", "Action: delivered\r\nStatus: 2.0.0"),
        (Action::Relayed, "", "Action: relayed\r\nStatus: 2.0.0"),
        (Action::Expanded, "2.1.5", "Action: expanded\r\nStatus: 2.1.5"),
        (Action::Failed, "5.x", "Action: failed\r\nStatus: 5.0.0"),
    ] {
        let recipient = ReportedRecipient { status, ..recipient("bob@example.net") };
        let message = text(&Report { action, ..report(vec![recipient]) });
        assert!(message.contains(expected), "{expected}: {message}");
    }
}

/// The text of this server was shown there as a reply of the other one.
#[test]
fn dsn4_an_expiry_and_the_last_reply_are_apart() {
    let expired = ReportedRecipient {
        status: "4.3.0",
        code: 451,
        text: "come later",
        expired: Some("delivery was tried for 5 days"),
        ..recipient("bob@example.net")
    };
    let message = text(&report(vec![expired]));
    let status = part(&message, "message/delivery-status");
    assert!(status.contains("Status: 5.4.7\r\n"), "{status}");
    assert!(status.contains("Diagnostic-Code: smtp; 451 4.3.0 come later\r\n"), "{status}");
    let for_people = part(&message, "text/plain");
    assert!(for_people.contains("It is not tried any more: delivery was tried for 5 days"), "{for_people}");
    assert!(
        for_people.contains("The server mx.example.net replied at last: 451 4.3.0 come later"),
        "{for_people}"
    );
}

#[test]
fn dsn4_a_delay_says_until_when_it_is_tried() {
    let delayed = ReportedRecipient { will_retry_until: Some(1_000_400_000), ..recipient("bob@example.net") };
    let message = text(&Report { action: Action::Delayed, ..report(vec![delayed]) });
    let date = "Thu, 13 Sep 2001 16:53:20 +0000";
    assert!(part(&message, "message/delivery-status").contains(&format!("Will-Retry-Until: {date}")));
    assert!(part(&message, "text/plain").contains(date), "{message}");
}

#[test]
fn dsn5_the_header_alone_is_returned_when_asked() {
    let message = text(&Report { returned: Returned::Header, ..report(vec![recipient("bob@example.net")]) });
    let header = part(&message, "text/rfc822-headers");
    assert!(header.contains("Subject: hello"), "{message}");
    assert!(!message.contains(".text"), "{message}");
    let none = text(&Report { original: b"", ..report(vec![recipient("bob@example.net")]) });
    assert!(!none.contains("attached") && !none.contains("rfc822-headers"), "{none}");
}

#[test]
fn dsn5_what_the_sender_named_is_in_the_report() {
    let named =
        ReportedRecipient { original: Some("rfc822;b+2Bx@example.net"), ..recipient("bob@example.net") };
    let message = text(&Report { envelope_id: Some("QQ+3D314"), ..report(vec![named]) });
    let status = part(&message, "message/delivery-status");
    assert!(status.contains("Original-Envelope-Id: QQ=314\r\n"), "{status}");
    assert!(status.contains("Original-Recipient: rfc822;b+x@example.net\r\nFinal-Recipient:"), "{status}");
}

#[test]
fn dsn6_a_message_sent_with_smtputf8_is_reported_in_utf8() {
    let original = "From: jürgen@example.org\r\nSubject: grüße\r\n\r\ntext\r\n";
    let utf8 = |returned| {
        text(&Report {
            is_utf8: true,
            to: "jürgen@example.org",
            original: original.as_bytes(),
            returned,
            ..report(vec![recipient("bärbel@example.net")])
        })
    };
    let message = utf8(Returned::Whole);
    let status = part(&message, "message/global-delivery-status");
    assert!(status.contains("Final-Recipient: utf-8;bärbel@example.net\r\n"), "{status}");
    assert_eq!(part(&message, "message/global\r\n"), original);
    assert!(part(&utf8(Returned::Header), "message/global-headers").contains("grüße"));
}

#[test]
fn dsn6_without_smtputf8_a_report_is_ascii() {
    let odd = ReportedRecipient { text: "gibt es nicht: bärbel", ..recipient("bärbel@example.net") };
    let message = text(&report(vec![odd]));
    let status = part(&message, "message/delivery-status");
    assert!(status.contains("Final-Recipient: utf-8;b\\x{E4}rbel@example.net\r\n"), "{status}");
    assert!(status.contains("gibt es nicht: b?rbel"), "{status}");
    assert!(message.is_ascii(), "the text for people is encoded: {message}");
}

proptest! {
    #[test]
    fn dsn4_no_text_breaks_a_report(
        reply in "[ -~\r\n\0äß]{0,80}", address in "[ -~\r\n@\"<>]{0,30}", id in "[ -~\r\n]{0,20}", to in "\\PC{0,20}",
    ) {
        let odd = ReportedRecipient { text: &reply, original: Some(&id), ..recipient(&address) };
        let report = Report { envelope_id: Some(&id), to: &to, ..report(vec![odd]) };
        let bytes = report.write();
        prop_assert!(bytes.ends_with(b"\r\n"));
        for line in String::from_utf8_lossy(&bytes).split("\r\n") {
            prop_assert!(line.len() <= 998 && !line.contains(['\r', '\n', '\0']), "{:?}", line);
        }
        prop_assert_eq!(String::from_utf8_lossy(&bytes).matches("Final-Recipient:").count(), 1);
    }
}
