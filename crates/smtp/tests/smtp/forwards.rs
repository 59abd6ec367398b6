//! Mail whose alias leads to another server, and the reports about it.

use restante_core::ErrorKind;
use restante_mail::queue::SourceKind;

use crate::{support::Client, users::Users};

const MESSAGE: &str = "Subject: hello\r\n\r\ntext\r\n.\r\n";

async fn begin(client: &mut Client, sender: &str, recipients: &[&str]) {
    client.dialogue(&[(format!("MAIL FROM:<{sender}>").as_str(), "250")]).await;
    for recipient in recipients {
        client.dialogue(&[(format!("RCPT TO:<{recipient}>").as_str(), "250 2.1.5")]).await;
    }
    client.dialogue(&[("DATA", "354")]).await;
}

#[tokio::test]
async fn fwd1_mail_of_an_alias_is_stored_here_and_queued_for_elsewhere() {
    let users = Users::start().await;
    let mut client = users.smtp().await;
    begin(&mut client, "s@example.com", &["team@example.org"]).await;
    client.send(MESSAGE).await;
    client.expect("250 2.0.0").await;
    let (message, raw) = users.sent.only();
    assert_eq!((message.source.kind, message.source.account), (SourceKind::Forward, None));
    assert_eq!(message.sender, "srs-s=example.com@example.org");
    let recipient = &message.recipients[0];
    assert_eq!((message.recipients.len(), recipient.address.as_str()), (1, "team@example.net"));
    assert_eq!(recipient.original.as_deref(), Some("rfc822;team@example.org"));
    let start = "Delivered-To: team@example.org\r\nReceived: from client.example.net ([127.0.0.1])\r\n";
    assert!(raw.starts_with(start) && raw.ends_with("\r\nSubject: hello\r\n\r\ntext\r\n"), "{raw}");
    assert!(!raw.contains("Return-Path"), "{raw}");
    let mails = users.stored.mails.lock();
    assert_eq!((mails.len(), mails[0].1[0].account), (1, users.anna));
    assert!(!String::from_utf8_lossy(&mails[0].0.raw).contains("Delivered-To"));
}

#[tokio::test]
async fn fwd1_an_alias_that_leads_only_elsewhere_stores_nothing_here() {
    let users = Users::start().await;
    let mut client = users.smtp().await;
    begin(&mut client, "", &["away@example.org"]).await;
    client.send(MESSAGE).await;
    client.expect("250 2.0.0").await;
    let (message, _) = users.sent.only();
    let addresses: Vec<&str> =
        message.recipients.iter().map(|recipient| recipient.address.as_str()).collect();
    assert_eq!(
        (message.sender.as_str(), addresses.as_slice()),
        ("", &["x@example.net", "y@example.com"][..])
    );
    assert!(users.stored.mails.lock().is_empty());
}

#[tokio::test]
async fn fwd1_what_a_peer_sends_again_is_forwarded_once() {
    let users = Users::start().await;
    for _ in 0..2 {
        let mut client = users.smtp().await;
        begin(&mut client, "s@example.com", &["team@example.org", "team@example.org"]).await;
        client.send(MESSAGE).await;
        client.expect("250 2.0.0").await;
    }
    assert_eq!(users.sent.count(), 1);
}

#[tokio::test]
async fn fwd1_a_forward_is_durable_before_it_is_acknowledged() {
    let users = Users::start().await;
    *users.sent.failing.lock() = Some(ErrorKind::Unavailable);
    let mut client = users.smtp().await;
    begin(&mut client, "s@example.com", &["team@example.org"]).await;
    client.send(MESSAGE).await;
    client.expect("451 4.3.0").await;
    *users.sent.failing.lock() = None;
    // What can't be stored here is not forwarded either: the peer sends all of it again.
    users.stored.failing.lock().insert("bob", Some(ErrorKind::Full));
    begin(&mut client, "s@example.com", &["away@example.org", "bob@example.org"]).await;
    client.send(MESSAGE).await;
    client.expect("451 4.3.0").await;
    assert_eq!(users.sent.count(), 0);
}

#[tokio::test]
async fn fwd1_a_refusal_for_good_holds_no_forward_back() {
    let users = Users::with(|smtp, _| smtp.quota_is_permanent = true).await;
    users.stored.failing.lock().insert("bob", None);
    let mut client = users.smtp().await;
    begin(&mut client, "s@example.com", &["away@example.org", "bob@example.org"]).await;
    client.send(MESSAGE).await;
    client.expect("552 5.2.2").await; // the peer does not send it again
    assert_eq!(users.sent.count(), 1);
}

#[tokio::test]
async fn fwd1_lmtp_replies_for_each_recipient() {
    let users = Users::start().await;
    let mut client = users.lmtp().await;
    users.stored.failing.lock().insert("bob", Some(ErrorKind::Full));
    begin(&mut client, "s@example.com", &["away@example.org", "bob@example.org", "team@example.org"]).await;
    client.send(MESSAGE).await;
    for reply in ["250 2.1.5", "452 4.3.1", "250 2.1.5"] {
        client.expect(reply).await;
    }
    assert_eq!(users.sent.count(), 2);
}

#[tokio::test]
async fn fwd2_a_report_to_a_rewritten_sender_goes_back_to_the_sender() {
    let users = Users::start().await;
    let mut client = users.smtp().await;
    begin(&mut client, "", &["srs-S=example.com@example.org"]).await;
    client.send(MESSAGE).await;
    client.expect("250 2.0.0").await;
    let (message, _) = users.sent.only();
    assert_eq!((message.sender.as_str(), message.recipients[0].address.as_str()), ("", "S@example.com"));
    client
        .dialogue(&[
            ("MAIL FROM:<spam@example.com>", "250"),
            ("RCPT TO:<srs-s=example.com@example.org>", "550 5.7.1"),
        ])
        .await;
}

/// The hash doesn't cover the domain: an address in any domain was accepted.
#[tokio::test]
async fn fwd2_a_rewritten_sender_in_a_domain_of_others_is_not_relayed() {
    let users = Users::start().await;
    let mut client = users.smtp().await;
    client
        .dialogue(&[("MAIL FROM:<>", "250"), ("RCPT TO:<srs-s=example.com@elsewhere.example>", "554 5.7.1")])
        .await;
    assert_eq!(users.sent.count(), 0);
}

#[tokio::test]
async fn fwd3_a_message_that_comes_back_is_not_forwarded_again() {
    let users = Users::start().await;
    let mut client = users.smtp().await;
    for (field, reply) in [
        ("Delivered-To: Away@example.org", "550 5.4.6"),
        ("Delivered-To: team@example.org", "250 2.0.0"),
        ("X-Delivered-To: away@example.org", "250 2.0.0"),
    ] {
        begin(&mut client, "s@example.com", &["away@example.org"]).await;
        client.send(format!("{field}\r\n{MESSAGE}")).await;
        client.expect(reply).await;
    }
    // Also if the alias has users of this server: the peer would send it again and again.
    for mut client in [users.smtp().await, users.lmtp().await] {
        begin(&mut client, "s@example.com", &["team@example.org"]).await;
        client.send(format!("Delivered-To: team@example.org\r\n{MESSAGE}")).await;
        client.expect("550 5.4.6").await;
    }
    assert_eq!(users.sent.count(), 2);
    let hops = "Received: from a by b\r\n".repeat(101);
    begin(&mut client, "s@example.com", &["away@example.org"]).await;
    client.send(format!("{hops}{MESSAGE}")).await;
    client.expect("550 5.4.6").await;
    assert_eq!(users.sent.count(), 2);
}

#[tokio::test]
async fn fwd3_a_message_without_lines_is_not_forwarded() {
    let users = Users::start().await;
    let mut client = users.smtp().await;
    client
        .dialogue(&[
            ("MAIL FROM:<s@example.com> BODY=BINARYMIME", "250"),
            ("RCPT TO:<away@example.org>", "550 5.6.1"),
            ("RCPT TO:<anna@example.org>", "250"),
        ])
        .await;
}
