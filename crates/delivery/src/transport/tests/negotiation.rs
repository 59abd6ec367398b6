//! The extensions of a server, and what it is sent depending on them.

use restante_mail::queue::Return;

use super::*;

const BOB: &str = "bob@example.net";
const TEXT: &str = "MIME-Version: 1.0\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\n\r\ngrüße\r\n";

#[tokio::test(start_paused = true)]
async fn out11_other_bytes_are_sent_as_they_are_to_a_server_with_8bitmime() {
    let fake = Fake::new(&["8BITMIME"]);
    assert_eq!(send(&fake, &message(TEXT), &[BOB]).await, [is(250, "2.0.0")]);
    assert_eq!(fake.commands()[1], "MAIL FROM:<anna@example.org> BODY=8BITMIME");
    assert_eq!(fake.messages(), [TEXT]);
    assert_eq!(send(&fake, &plain(), &[BOB]).await, [is(250, "2.0.0")]);
    assert_eq!(fake.count("MAIL FROM:<anna@example.org> BODY"), 1, "ASCII needs nothing");
}

#[tokio::test(start_paused = true)]
async fn out11_other_bytes_are_encoded_for_a_server_without_8bitmime_before_they_are_signed() {
    let fake = Fake::new(&[]);
    let signer = Arc::new(FixedSigner("DKIM-Signature: x\r\n"));
    let remote = SmtpRemote::new(&RemoteConfig::default(), RemoteParts { signer, ..parts(&fake) }).unwrap();
    let attempted =
        remote.connect(DOMAIN).await.ok().unwrap().send(&message(TEXT), &recipients(&[BOB])).await;
    assert_eq!(codes(&attempted), [is(250, "2.0.0")]);
    let sent = fake.messages().remove(0);
    assert!(sent.starts_with("DKIM-Signature: x\r\nMIME-Version: 1.0\r\n"), "{sent}");
    assert!(sent.contains("Content-Transfer-Encoding: ") && sent.is_ascii(), "{sent}");
    let signed = message(&format!("DKIM-Signature: y\r\n{TEXT}"));
    assert_eq!(send(&fake, &signed, &[BOB]).await, [is(554, "5.6.3")], "a foreign signature would break");
}

#[tokio::test(start_paused = true)]
async fn out11_mail_that_needs_smtputf8_goes_only_to_servers_that_have_it() {
    let header = Outgoing { transmission: utf8(), ..message("Subject: grüße\r\n\r\ntext\r\n") };
    let (with, without) = (Fake::new(&["8BITMIME", "SMTPUTF8"]), Fake::new(&["8BITMIME"]));
    assert_eq!(send(&with, &header, &[BOB]).await, [is(250, "2.0.0")]);
    assert_eq!(with.commands()[1], "MAIL FROM:<anna@example.org> BODY=8BITMIME SMTPUTF8");
    assert_eq!(send(&without, &header, &[BOB]).await, [is(550, "5.6.7")]);
    let sender = Outgoing { sender: "jürgen@example.org".into(), ..plain() };
    assert_eq!(send(&with, &sender, &[BOB]).await, [is(250, "2.0.0")]);
    assert_eq!(send(&without, &sender, &[BOB]).await, [is(550, "5.6.7")]);
    let found = send(&without, &plain(), &["bärbel@example.net", BOB]).await;
    assert_eq!(found, [is(550, "5.6.7"), is(250, "2.0.0")]);
    assert_eq!(send(&with, &plain(), &["bärbel@example.net"]).await, [is(250, "2.0.0")]);
    assert_eq!(
        with.commands().iter().rev().find(|line| line.starts_with("MAIL")).unwrap(),
        "MAIL FROM:<anna@example.org> SMTPUTF8"
    );
}

#[tokio::test(start_paused = true)]
async fn out11_a_domain_in_another_script_needs_no_smtputf8() {
    let fake = Fake::new(&[]);
    let message = Outgoing { sender: "anna@bücher.example".into(), ..plain() };
    assert_eq!(send(&fake, &message, &["bob@bücher.example"]).await, [is(250, "2.0.0")]);
    let commands = fake.commands();
    assert_eq!(commands[1], "MAIL FROM:<anna@xn--bcher-kva.example>");
    assert_eq!(commands[2], "RCPT TO:<bob@xn--bcher-kva.example>");
}

/// Mail that came without SMTPUTF8 and has raw bytes in its header is passed on as it came, as all servers do.
#[tokio::test(start_paused = true)]
async fn out11_a_header_with_other_bytes_is_passed_on_when_it_came_without_smtputf8() {
    let fake = Fake::new(&["8BITMIME"]);
    let raw = Outgoing {
        transmission: Transmission { is_8bit: true, is_utf8: false },
        ..message("Subject: ä\r\n\r\nx\r\n")
    };
    assert_eq!(send(&fake, &raw, &[BOB]).await, [is(250, "2.0.0")]);
}

#[tokio::test(start_paused = true)]
async fn out14_a_message_beyond_the_size_of_a_server_is_not_sent() {
    let fake = Fake::new(&["SIZE 20"]);
    assert_eq!(send(&fake, &plain(), &[BOB]).await, [is(552, "5.3.4")]);
    assert_eq!(fake.count("MAIL"), 0);
    let fake = Fake::new(&["SIZE 1000"]);
    assert_eq!(send(&fake, &plain(), &[BOB]).await, [is(250, "2.0.0")]);
    assert_eq!(fake.commands()[1], "MAIL FROM:<anna@example.org> SIZE=25");
}

#[tokio::test(start_paused = true)]
async fn dsn5_ret_envid_notify_and_orcpt_are_passed_to_a_server_with_dsn() {
    let message = Outgoing { returned: Some(Return::Headers), envelope_id: Some("QQ+3D1".into()), ..plain() };
    let recipient = Recipient {
        address: BOB.into(),
        notify: Notify { on_success: true, on_failure: true, on_delay: false },
        original: Some("rfc822;b+2Bx@example.net".into()),
    };
    let fake = Fake::new(&["DSN"]);
    let attempted = connected(&fake).await.send(&message, std::slice::from_ref(&recipient)).await;
    assert!(attempted[0].is_reported_further);
    assert_eq!(fake.commands()[1], "MAIL FROM:<anna@example.org> RET=HDRS ENVID=QQ+3D1");
    assert_eq!(
        fake.commands()[2],
        "RCPT TO:<bob@example.net> NOTIFY=SUCCESS,FAILURE ORCPT=rfc822;b+2Bx@example.net"
    );
    let fake = Fake::new(&[]);
    let attempted = connected(&fake).await.send(&message, &[recipient]).await;
    assert!(!attempted[0].is_reported_further, "this server reports that it was relayed");
    assert_eq!(fake.commands()[1..3], ["MAIL FROM:<anna@example.org>", "RCPT TO:<bob@example.net>"]);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_can_not_be_signed_now_is_tried_again() {
    let fake = Fake::new(&[]);
    let signer = Arc::new(FixedSigner("fail"));
    let remote = SmtpRemote::new(&RemoteConfig::default(), RemoteParts { signer, ..parts(&fake) }).unwrap();
    let mut connection = remote.connect(DOMAIN).await.ok().unwrap();
    assert_eq!(codes(&connection.send(&plain(), &recipients(&[BOB])).await), [is(451, "4.3.0")]);
    assert!(connection.is_open() && fake.count("MAIL") == 0);
}

#[tokio::test(start_paused = true)]
async fn an_old_server_is_greeted_with_helo() {
    let fake = Fake::new(&[]).says("ehlo", "500 what").says("helo", "250 old.example.net");
    assert_eq!(send(&fake, &plain(), &[BOB]).await, [is(250, "2.0.0")]);
    assert_eq!(fake.commands()[..2], ["EHLO mail.example.org", "HELO mail.example.org"]);
}
