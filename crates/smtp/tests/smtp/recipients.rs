use restante_core::ErrorKind;
use restante_records::{AccountId, RecordId};
use restante_smtp::{DeliveryEntry, NotedReply, Outcome};

use crate::support::{Server, until};

const MESSAGE: &str = "a: 1\r\n\r\ntext\r\n.\r\n";

#[tokio::test]
async fn sm9_recipients_are_accepted_or_refused_by_the_directory() {
    let server = Server::start().await;
    let mut client = server.smtp().await;
    client
        .dialogue(&[
            ("MAIL FROM:<sender@example.net>", "250"),
            ("RCPT TO:<anna@example.org>", "250 2.1.5"),
            ("RCPT TO:<Anna+shop@Example.ORG>", "250 2.1.5"),
            ("RCPT TO:<both@example.org>", "250 2.1.5"),
            ("RCPT TO:<nobody@example.org>", "550 5.1.1"),
            ("RCPT TO:<anna@example.net>", "554 5.7.1"),
            ("RCPT TO:<anna@[192.0.2.1]>", "554 5.7.1"),
            ("RCPT TO:<disabled@example.org>", "550 5.2.1"),
            ("RCPT TO:<outside@example.org>", "550 5.7.1"),
            ("RCPT TO:<circle@example.org>", "550 5.4.6"),
            ("RCPT TO:<away@example.org>", "451 4.3.0"),
            ("RCPT TO:<a..b@example.org>", "553 5.1.3"),
        ])
        .await;
    let recipients = |result: &str| {
        server.metric(&format!("restante_smtp_recipients_total{{protocol=\"smtp\",result=\"{result}\"}}"))
    };
    assert_eq!((recipients("accepted"), recipients("relay"), recipients("unavailable")), (3, 2, 1));
}

#[tokio::test]
async fn sm9_postmaster_without_a_domain_is_somebody() {
    let server = Server::with(|smtp, _| smtp.postmaster = Some("bob@example.org".parse().unwrap())).await;
    let mut client = server.smtp().await;
    client.dialogue(&[("MAIL FROM:<>", "250"), ("RCPT TO:<Postmaster>", "250"), ("DATA", "354")]).await;
    client.send(MESSAGE).await;
    client.expect("250").await;
    assert_eq!(server.stored.mails.lock()[0].1[0].account, AccountId(101));
}

#[tokio::test]
async fn sm9_a_quota_is_checked_with_the_size_that_is_named() {
    for (is_permanent, reply) in [(false, "452 4.2.2"), (true, "552 5.2.2")] {
        let server = Server::with(|smtp, _| smtp.quota_is_permanent = is_permanent).await;
        let mut client = server.smtp().await;
        client
            .dialogue(&[
                ("MAIL FROM:<> SIZE=1001", "250"),
                ("RCPT TO:<small@example.org>", reply),
                ("RSET", "250"),
                ("MAIL FROM:<> SIZE=1000", "250"),
                ("RCPT TO:<small@example.org>", "250"),
            ])
            .await;
    }
}

#[tokio::test]
async fn sm10_a_message_is_accepted_when_all_have_it_and_repeating_stores_nothing_twice() {
    let server = Server::start().await;
    let mut client = server.smtp().await;
    let mut send = async |reply: &str| {
        client
            .dialogue(&[
                ("MAIL FROM:<sender@example.net>", "250"),
                ("RCPT TO:<anna@example.org>", "250"),
                ("RCPT TO:<bob@example.org>", "250"),
                ("RCPT TO:<both@example.org>", "250"),
                ("DATA", "354"),
            ])
            .await;
        client.send(MESSAGE).await;
        client.expect(reply).await;
    };
    server.stored.failing.lock().insert("bob", Some(ErrorKind::Full));
    send("452 4.3.1").await;
    server.stored.failing.lock().insert("bob", Some(ErrorKind::Unavailable));
    send("451 4.3.0").await;
    server.stored.failing.lock().insert("bob", None);
    send("452 4.2.2").await;
    server.stored.failing.lock().clear();
    send("250 2.0.0").await;
    send("250 2.0.0").await;
    let stored: Vec<Vec<u32>> =
        server.stored.mails.lock().iter().map(|(_, to)| to.iter().map(|t| t.account.0).collect()).collect();
    assert_eq!(stored, [[100], [101]]);
}

#[tokio::test]
async fn sm10_what_a_retry_can_not_change_is_refused_for_good() {
    let server = Server::with(|smtp, _| smtp.quota_is_permanent = true).await;
    server.stored.failing.lock().insert("bob", None);
    let mut client = server.smtp().await;
    client
        .dialogue(&[
            ("MAIL FROM:<sender@example.net>", "250"),
            ("RCPT TO:<anna@example.org>", "250"),
            ("RCPT TO:<bob@example.org>", "250"),
            ("DATA", "354"),
        ])
        .await;
    client.send(MESSAGE).await;
    client.expect("552 5.2.2").await;
    assert_eq!(server.stored.mails.lock().len(), 1, "anna has it");
}

#[tokio::test]
async fn sm10_what_is_wrong_inside_is_not_shown() {
    let server = Server::start().await;
    for kind in [ErrorKind::Corrupt, ErrorKind::Internal, ErrorKind::Conflict, ErrorKind::Invalid] {
        server.stored.failing.lock().insert("anna", Some(kind));
        let reply = server.smtp().await.mail(MESSAGE).await;
        assert!(reply.starts_with("451 4.3.0") && !reply.contains("asked"), "{reply}");
    }
}

#[tokio::test]
async fn the_journal_notes_every_recipient() {
    let server = Server::start().await;
    server.stored.failing.lock().insert("bob", Some(ErrorKind::Full));
    let mut client = server.lmtp().await;
    client
        .dialogue(&[
            ("MAIL FROM:<sender@example.net>", "250"),
            ("RCPT TO:<Anna@example.org>", "250"),
            ("RCPT TO:<nobody@example.org>", "550"),
            ("RCPT TO:<both@example.org>", "250"),
            ("DATA", "354"),
        ])
        .await;
    client.send(MESSAGE).await;
    client.expect("250").await;
    client.expect("452").await;
    client.begin().await;
    client.dialogue(&[("DATA", "354")]).await;
    client.send(MESSAGE).await;
    client.expect("250").await;
    let entries = server.journal.0.lock();
    let shown: Vec<(&str, Option<u32>, Outcome)> = entries
        .iter()
        .map(|entry| {
            let account = entry.account.as_ref().map(|(account, _)| account.0);
            (entry.recipient.as_str(), account, entry.outcome.clone())
        })
        .collect();
    let new = Outcome::Stored(RecordId(100));
    let refused = |code, status: &'static str, reason: &'static str| {
        Outcome::Refused(NotedReply { code, status: status.into(), reason: reason.into() })
    };
    assert_eq!(
        shown,
        [
            ("nobody@example.org", None, refused(550, "5.1.1", "no such user here")),
            ("Anna@example.org", Some(100), new.clone()),
            ("both@example.org", Some(100), new),
            (
                "both@example.org",
                Some(101),
                refused(452, "4.3.1", "there is no space for the message now: try again later")
            ),
            ("anna@example.org", Some(100), Outcome::Repeated),
        ]
    );
    let entry = &entries[1];
    assert_eq!((entry.sender.as_str(), entry.hello.as_str()), ("sender@example.net", "client.example.net"));
    assert_eq!((entry.bytes, entry.message_id.as_deref()), (14, Some("id@example.net")));
    assert_eq!(entry.peer, Some("127.0.0.1".parse().unwrap()));
    assert_eq!((entry.id == entries[0].id, entry.id == entries[4].id), (true, false));
}

/// The entries of the journal, the oldest first: sender, recipient, account, Message-ID, bytes and outcome.
fn noted(server: &Server) -> Vec<String> {
    let show = |entry: &DeliveryEntry| {
        let account = entry.account.as_ref().map_or("-", |(_, address)| address);
        let id = entry.message_id.as_deref().unwrap_or("-");
        let outcome = match &entry.outcome {
            Outcome::Stored(_) => "stored".to_owned(),
            Outcome::Junk { reason, .. } => format!("junk: {reason}"),
            Outcome::Quarantined(reason) => format!("quarantined: {reason}"),
            Outcome::Repeated => "repeated".to_owned(),
            Outcome::Refused(reply) => format!("{} {}", reply.code, reply.status),
            Outcome::BrokenOff => "broken off".to_owned(),
            Outcome::Queued => "queued".to_owned(),
            outcome => panic!("a door does not send: {outcome:?}"),
        };
        let (sender, recipient, bytes) = (&entry.sender, &entry.recipient, entry.bytes);
        format!("{sender} to {recipient} of {account}, {id}, {bytes}: {outcome}")
    };
    server.journal.0.lock().iter().map(show).collect()
}

#[tokio::test]
async fn the_journal_notes_what_is_refused_before_a_message() {
    let server = Server::with(|smtp, _| smtp.message_bytes_max = restante_core::nonzero!(2_000)).await;
    let mut client = server.smtp().await;
    client
        .dialogue(&[
            ("MAIL FROM:<big@example.net> SIZE=2001", "552"),
            ("MAIL FROM:<jürgen@example.net>", "553"),
            ("MAIL FROM:<> SIZE=1500", "250"),
            ("RCPT TO:<small@example.org>", "452"),
            ("RCPT TO:<nobody@example.org>", "550"),
        ])
        .await;
    assert_eq!(
        noted(&server),
        [
            "big@example.net to  of -, -, 0: 552 5.3.4",
            "jürgen@example.net to  of -, -, 0: 553 5.6.7",
            " to small@example.org of small@example.org, -, 0: 452 4.2.2",
            " to nobody@example.org of -, -, 0: 550 5.1.1",
        ]
    );
}

#[tokio::test]
async fn the_journal_notes_messages_that_are_refused_or_never_end() {
    let server = Server::with(|smtp, _| smtp.message_bytes_max = restante_core::nonzero!(2_000)).await;
    let mut client = server.smtp().await;
    let reply = client.mail(format!("Message-ID: <a@b>\r\n\r\n{}.\r\n", "0123456\r\n".repeat(300))).await;
    assert!(reply.starts_with("552"), "{reply}");
    let reply = client.mail("Message-ID: <c@d>\r\n\r\nx\ny\r\n.\r\n").await;
    assert!(reply.starts_with("550 5.5.2"), "{reply}");
    let hops = "Received: x\r\n".repeat(101);
    let reply = client.mail(format!("{hops}Message-ID: <e@f>\r\n\r\n.\r\n")).await;
    assert!(reply.starts_with("550 5.4.6"), "{reply}");
    client.begin().await;
    client.send("BDAT 21\r\nMessage-ID: <g@h>\r\n\r\n").await;
    client.expect("250").await;
    drop(client); // between two chunks
    until("the last message is noted", || server.journal.0.lock().len() == 4).await;
    let mut client = server.smtp().await;
    client.begin().await;
    client.dialogue(&[("DATA", "354")]).await;
    client.send("Message-ID: <i@j>\r\n\r\nhalf").await;
    drop(client);
    until("the last message is noted", || server.journal.0.lock().len() == 5).await;
    let entries = noted(&server);
    let is = |index: usize, start: &str, end: &str| {
        let (entry, envelope) =
            (&entries[index], "sender@example.net to anna@example.org of anna@example.org, ");
        let rest = entry.strip_prefix(envelope).unwrap_or_else(|| panic!("{entry}"));
        assert!(rest.starts_with(start) && rest.ends_with(end), "{entry}");
    };
    is(0, "a@b, 2", ": 552 5.3.4");
    is(1, "c@d, ", ": 550 5.5.2");
    is(2, "e@f, 1334", ": 550 5.4.6");
    is(3, "g@h, 21", ": broken off");
    is(4, "i@j, ", ": broken off");
}
