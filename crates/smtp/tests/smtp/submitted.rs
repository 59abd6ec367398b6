//! How submitted messages are processed.

use restante_core::{ErrorKind, Timestamp};
use restante_directory::{Operation, Scope};
use restante_mail::queue::{Notify, Return, SourceKind, Transmission};
use restante_smtp::Outcome;

use crate::{
    support::Client,
    users::{NOW, Users},
};

const MESSAGE: &str =
    "From: anna@example.org\r\nTo: x@example.net\r\nDate: d\r\nMessage-ID: <a@b>\r\n\r\ntext\r\n.\r\n";

/// Begins a message from anna to these recipients.
async fn begin(client: &mut Client, recipients: &[&str]) {
    client.dialogue(&[("MAIL FROM:<anna@example.org>", "250 2.1.0")]).await;
    for recipient in recipients {
        client.dialogue(&[(format!("RCPT TO:<{recipient}>").as_str(), "250 2.1.5")]).await;
    }
    client.dialogue(&[("DATA", "354")]).await;
}

/// Sends a message from anna, and returns the reply.
async fn send(client: &mut Client, message: &str) -> String {
    begin(client, &["x@example.net"]).await;
    client.send(message).await;
    client.reply().await
}

#[tokio::test]
async fn sm13_a_message_is_queued_for_all_its_recipients_at_once() {
    let users = Users::start().await;
    let mut client = users.anna().await;
    begin(
        &mut client,
        &["Foreign@Example.NET", "bob@example.org", "Foreign@Example.NET", "away@example.org"],
    )
    .await;
    client.send(MESSAGE).await;
    client.expect("250 2.0.0 queued as ").await;
    let (message, raw) = users.sent.only();
    assert_eq!((message.source.kind, message.source.account), (SourceKind::Smtp, Some(users.anna)));
    let addresses: Vec<&str> =
        message.recipients.iter().map(|recipient| recipient.address.as_str()).collect();
    assert_eq!(addresses, ["Foreign@example.net", "bob@example.org", "away@example.org"]);
    assert_eq!((message.sender.as_str(), message.due), ("anna@example.org", NOW as u64));
    assert_eq!(message.recipients[0].notify, Notify::default());
    assert_eq!(message.size, raw.len() as u64);
    let (received, rest) = raw.split_at(raw.find("From: ").unwrap());
    assert!(received.starts_with("Received: by mail.example.org with ESMTPSA id "), "{received}");
    assert!(!received.contains("127.0.0.1") && !received.contains("client.example.net"), "{received}");
    assert_eq!(rest, MESSAGE.strip_suffix(".\r\n").unwrap());
    let entries = users.journal.0.lock();
    assert_eq!(entries.len(), 4);
    assert!(
        entries
            .iter()
            .all(|entry| entry.outcome == Outcome::Queued && entry.message_id.as_deref() == Some("a@b"))
    );
    assert_eq!(entries[0].account.as_ref().map(|(account, _)| *account), Some(users.anna));
    let queued = "restante_smtp_messages_total{protocol=\"submission\",result=\"queued\"}";
    assert_eq!(users.metric(queued), 1);
}

#[tokio::test]
async fn sm13_the_same_message_again_is_another_one() {
    let users = Users::start().await;
    let mut client = users.anna().await;
    for _ in 0..2 {
        assert!(send(&mut client, MESSAGE).await.starts_with("250"));
    }
    assert_eq!(users.sent.count(), 2);
}

#[tokio::test]
async fn sm13_a_message_that_can_not_be_queued_is_not_acknowledged() {
    let users = Users::start().await;
    let mut client = users.anna().await;
    for (kind, reply) in [(ErrorKind::Unavailable, "451 4.3.0"), (ErrorKind::Full, "452 4.3.1")] {
        *users.sent.failing.lock() = Some(kind);
        assert!(send(&mut client, MESSAGE).await.starts_with(reply));
    }
    *users.sent.failing.lock() = None;
    assert!(send(&mut client, MESSAGE).await.starts_with("250"));
    assert_eq!(users.sent.count(), 1);
}

#[tokio::test]
async fn sm13_the_sender_is_an_address_of_the_account() {
    let users = Users::start().await;
    let mut client = users.anna().await;
    for own in [
        "anna@example.org",
        "Anna@Example.ORG",
        "anna+shop@example.org",
        "info@example.org",
        "carol@example.org",
    ] {
        client.dialogue(&[(format!("MAIL FROM:<{own}>").as_str(), "250"), ("RSET", "250")]).await;
    }
    // Mail for the team is also sent to others.
    for other in [
        "bob@example.org",
        "team@example.org",
        "away@example.org",
        "nobody@example.org",
        "anna@example.net",
        "a@[192.0.2.1]",
    ] {
        client.dialogue(&[(format!("MAIL FROM:<{other}>").as_str(), "553 5.7.1")]).await;
    }
    // A notification that a message was read has no sender.
    client.dialogue(&[("MAIL FROM:<>", "250")]).await;
}

#[tokio::test]
async fn sm13_the_author_is_an_address_of_the_account() {
    let users = Users::start().await;
    let mut client = users.anna().await;
    for own in ["anna@example.org", "Anna <info@example.org>", "a@x <anna+y@example.org>, carol@example.org"]
    {
        let message = format!("From: {own}\r\n\r\n.\r\n");
        assert!(send(&mut client, &message).await.starts_with("250"), "{own}");
    }
    let count = users.sent.count();
    for other in [
        "From: bob@example.org\r\n",
        "From: anna@example.org, bob@example.org\r\n",
        "From: \"anna@example.org\" <boss@example.net>\r\n",
        "From: anna@example.org\r\nFrom: boss@example.net\r\n",
        "Subject: from nobody\r\n",
    ] {
        let reply = send(&mut client, &format!("{other}\r\n.\r\n")).await;
        assert!(reply.starts_with("550 5.7.1"), "{other}: {reply}");
    }
    assert_eq!(users.sent.count(), count);
    assert_eq!(users.sent.blobs.lock().len(), count, "nothing is stored of what is refused");
}

#[tokio::test]
async fn sm13_a_message_is_completed_and_its_bcc_removed() {
    let users = Users::start().await;
    let mut client = users.anna().await;
    let message = "From: anna@example.org\r\nBcc: secret@example.net\r\n\r\ntext\r\n.\r\n";
    assert!(send(&mut client, message).await.starts_with("250"));
    let (_, raw) = users.sent.only();
    assert!(!raw.contains("secret"), "{raw}");
    assert!(raw.contains("\r\nDate: Fri, 15 Jan 2027 08:00:00 +0000\r\nMessage-ID: <"), "{raw}");
    assert!(raw.ends_with("@mail.example.org>\r\nFrom: anna@example.org\r\n\r\ntext\r\n"), "{raw}");
}

#[tokio::test]
async fn sm13_what_no_server_may_be_sent_is_refused() {
    let users = Users::start().await;
    let mut client = users.anna().await;
    for (message, reply) in [
        ("From: anna@example.org\r\n\r\na\0b\r\n.\r\n", "550 5.6.0"),
        ("From: anna@example.org\r\n\r\na\nb\r\n.\r\n", "550 5.5.2"),
        ("From: anna@example.org\r\n\r\na\n.\nb\r\n.\r\n", "550 5.5.2"),
    ] {
        assert!(send(&mut client, message).await.starts_with(reply), "{message:?}");
    }
    client.dialogue(&[("MAIL FROM:<anna@example.org> BODY=BINARYMIME", "555 5.5.4")]).await;
    assert_eq!(users.sent.count(), 0);
}

#[tokio::test]
async fn sm13_recipients_that_this_server_does_not_have_are_refused_at_once() {
    let users = Users::start().await;
    let mut client = users.anna().await;
    client
        .dialogue(&[
            ("MAIL FROM:<anna@example.org>", "250"),
            ("RCPT TO:<nobody@example.org>", "550 5.1.1"),
            ("RCPT TO:<x@[192.0.2.1]>", "553 5.1.3"),
            ("RCPT TO:<jürgen@example.net>", "553 5.6.7"),
            ("RCPT TO:<Bob+list@example.org>", "250"),
            ("RCPT TO: <x@example.net>", "250"),
        ])
        .await;
}

#[tokio::test]
async fn sub7_parameters_of_the_envelope_are_kept() {
    let users = Users::start().await;
    let mut client = users.anna().await;
    client
        .dialogue(&[
            ("MAIL FROM: <anna@example.org> RET=HDRS ENVID=QQ+2B1 AUTH=<> SMTPUTF8 BODY=8BITMIME", "250"),
            ("RCPT TO:<x@example.net> NOTIFY=SUCCESS,DELAY ORCPT=rfc822;y@example.net", "250"),
            ("RCPT TO:<z@example.net> NOTIFY=NEVER", "250"),
            ("DATA", "354"),
        ])
        .await;
    client.send("From: anna@example.org\r\nSubject: ä\r\n\r\n.\r\n").await;
    client.expect("250").await;
    let (message, _) = users.sent.only();
    assert_eq!((message.returned, message.envelope_id.as_deref()), (Some(Return::Headers), Some("QQ+2B1")));
    assert_eq!(message.transmission, Transmission { is_8bit: true, is_utf8: true });
    let [one, other] = message.recipients.as_slice() else { panic!("two recipients") };
    assert_eq!(one.notify, Notify { on_success: true, on_failure: false, on_delay: true });
    assert_eq!(one.original.as_deref(), Some("rfc822;y@example.net"));
    assert_eq!(other.notify, Notify { on_success: false, on_failure: false, on_delay: false });
}

#[tokio::test]
async fn sub7_a_message_is_held_as_long_as_the_client_says() {
    let users = Users::with(|_, submission| submission.hold_seconds_max = 3_600).await;
    let mut client = users.anna().await;
    for (parameter, due) in [
        ("HOLDFOR=3600", NOW + 3_600),
        ("HOLDUNTIL=2027-01-15T08:10:00Z", NOW + 600),
        ("HOLDUNTIL=2027-01-15T07:00:00Z", NOW),
    ] {
        let mail = format!("MAIL FROM:<anna@example.org> {parameter}");
        client.dialogue(&[(mail.as_str(), "250"), ("RCPT TO:<x@example.net>", "250"), ("DATA", "354")]).await;
        client.send(MESSAGE).await;
        client.expect("250").await;
        assert_eq!(users.sent.messages.lock().last().unwrap().due, due as u64, "{parameter}");
    }
    client
        .dialogue(&[
            ("MAIL FROM:<anna@example.org> HOLDFOR=3601", "501 5.5.4"),
            ("MAIL FROM:<anna@example.org> HOLDUNTIL=2027-01-15T09:00:01Z", "501 5.5.4"),
            ("MAIL FROM:<anna@example.org> HOLDFOR=0", "501 5.5.4"),
        ])
        .await;
    let users = Users::with(|_, submission| submission.hold_seconds_max = 0).await;
    let mut client = users.anna().await;
    assert!(!client.say("EHLO client.example.net").await.contains("FUTURERELEASE"));
    client.dialogue(&[("MAIL FROM:<anna@example.org> HOLDFOR=1", "555 5.5.4")]).await;
}

#[tokio::test]
async fn sub5_a_stolen_password_sends_a_hundred_messages_and_the_operator_sees_it() {
    let users = Users::start().await;
    let (mut sent, mut client) = (0, users.anna().await);
    for _ in 0..100 {
        sent += usize::from(send(&mut client, MESSAGE).await.starts_with("250"));
    }
    assert!(send(&mut client, MESSAGE).await.starts_with("450 4.7.1"));
    // From then on MAIL is refused for this reason, on other connections, too.
    client.dialogue(&[("MAIL FROM:<anna@example.org>", "450 4.7.1")]).await;
    users.anna().await.dialogue(&[("MAIL FROM:<anna@example.org>", "450 4.7.1")]).await;
    assert_eq!((sent, users.sent.count()), (100, 100));
    let limited = users.limits.limited();
    assert_eq!((limited.len(), limited[0].account), (1, users.anna));
    users.clock.set(Timestamp::from_seconds(NOW + 3_600 + 600));
    assert!(send(&mut client, MESSAGE).await.starts_with("250"));
}

#[tokio::test]
async fn sub5_recipients_of_a_day_are_limited() {
    let users = Users::with(|_, submission| submission.recipients_per_day_max = 3).await;
    let mut client = users.anna().await;
    let many = ["a@example.net", "b@example.net", "c@example.net", "d@example.net"];
    begin(&mut client, &many).await;
    client.send(MESSAGE).await;
    client.expect("550 5.5.3").await;
    begin(&mut client, &many[..2]).await;
    client.send(MESSAGE).await;
    client.expect("250").await;
    begin(&mut client, &many[..2]).await;
    client.send(MESSAGE).await;
    client.expect("450 4.7.1").await;
    begin(&mut client, &many[..1]).await;
    client.send(MESSAGE).await;
    client.expect("250").await;
}

#[tokio::test]
async fn sub4_chunks_are_submitted_as_well() {
    let users = Users::start().await;
    let mut client = users.anna().await;
    client.dialogue(&[("MAIL FROM:<anna@example.org>", "250"), ("RCPT TO:<x@example.net>", "250")]).await;
    client.send("BDAT 24\r\nFrom: anna@example.org\r\n").await;
    client.expect("250 2.0.0 chunk").await;
    client.send("BDAT 8 LAST\r\n\r\n.tex\r\n").await;
    client.expect("250 2.0.0 queued").await;
    assert!(users.sent.only().1.ends_with("From: anna@example.org\r\n\r\n.tex\r\n"));
}

/// The scope of a token does not matter here: tokens can't be used to log in by SMTP, and passwords are valid for everything.
#[tokio::test]
async fn sub1_passwords_are_good_for_sending() {
    let users = Users::start().await;
    let address = "127.0.0.1".parse().unwrap();
    let login = users.directory.check_password(address, "anna@example.org", crate::users::PASSWORD).await;
    assert!(login.unwrap().allows(Scope::Send));
    let removed = Operation::RemoveAccount { address: "anna@example.org".parse().unwrap() };
    let mut client = users.anna().await;
    users.operate(removed).await;
    client.expect("421 4.7.0").await;
}
