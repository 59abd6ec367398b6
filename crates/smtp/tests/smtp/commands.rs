use crate::support::Server;

const MAIL: &str = "MAIL FROM:<sender@example.net>";
const RCPT: &str = "RCPT TO:<anna@example.org>";

#[tokio::test]
async fn sm1_ehlo_lists_what_is_offered_and_no_version() {
    let server = Server::start().await;
    let mut client = server.smtp_unread().await;
    assert_eq!(client.reply().await, "220 mail.example.org ESMTP");
    let offered = client.say("EHLO client.example.net").await;
    assert_eq!(
        offered,
        "250-mail.example.org\r\n250-PIPELINING\r\n250-SIZE 70000000\r\n250-8BITMIME\r\n250-SMTPUTF8\r\n\
         250-ENHANCEDSTATUSCODES\r\n250 CHUNKING"
    );
    assert_eq!(client.say("HELO client.example.net").await, "250 mail.example.org");
}

#[tokio::test]
async fn sm2_commands_come_in_order() {
    let server = Server::start().await;
    let mut client = server.smtp_unread().await;
    client.expect("220 ").await;
    client
        .dialogue(&[
            (MAIL, "503 5.5.1"),
            ("EHLO client.example.net", "250"),
            (RCPT, "503 5.5.1"),
            ("DATA", "503 5.5.1"),
            (MAIL, "250 2.1.0"),
            (MAIL, "503 5.5.1"),
            ("DATA", "503 5.5.1"),
            (RCPT, "250 2.1.5"),
            ("RSET", "250 2.0.0"),
            (RCPT, "503 5.5.1"),
        ])
        .await;
}

#[tokio::test]
async fn sm2_some_commands_are_answered_at_any_time() {
    let server = Server::start().await;
    let mut client = server.smtp_unread().await;
    client.expect("220 ").await;
    for _ in 0..2 {
        client
            .dialogue(&[
                ("NOOP", "250 2.0.0"),
                ("VRFY anna", "252 2.5.1"),
                ("EXPN list", "502 5.5.1"),
                ("HELP", "214 2.0.0"),
                ("RSET", "250 2.0.0"),
                ("EHLO client.example.net", "250"),
                (MAIL, "250"),
            ])
            .await;
    }
    client.dialogue(&[("QUIT", "221 2.0.0")]).await;
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn sm2_wrong_commands_have_the_code_of_what_is_wrong() {
    let server = Server::start().await;
    let mut client = server.smtp().await;
    client
        .dialogue(&[
            ("TURN", "500 5.5.1"),
            ("LHLO client.example.net", "500 5.5.1"),
            ("NOOP \0", "500 5.5.2"),
            ("MAIL sender@example.net", "501 5.5.4"),
            ("MAIL FROM: <sender@example.net>", "501 5.5.4"),
            ("MAIL FROM:<sender@example.net> NOTIFY=NEVER", "555 5.5.4"),
            ("MAIL FROM:<sender@example.net> SIZE=70000001", "552 5.3.4"),
            ("MAIL FROM:<sender@example.net> SIZE=70000000 BODY=8BITMIME SMTPUTF8", "250 2.1.0"),
            ("RCPT TO:<anna@example.org> NOTIFY=NEVER", "555 5.5.4"),
        ])
        .await;
}

#[tokio::test]
async fn sm2_parameters_need_ehlo() {
    let server = Server::start().await;
    let mut client = server.smtp().await;
    client
        .dialogue(&[
            ("HELO client.example.net", "250"),
            ("MAIL FROM:<sender@example.net> SIZE=1", "555 5.5.4"),
            (MAIL, "250"),
        ])
        .await;
}

/// James forgot the end of a transaction: every second message was answered 503.
#[tokio::test]
async fn sm2_a_finished_or_failed_message_leaves_no_transaction() {
    let server = Server::start().await;
    let mut client = server.smtp().await;
    for _ in 0..3 {
        assert!(client.mail("a: 1\r\n\r\ntext\r\n.\r\n").await.starts_with("250 2.0.0"));
        client.dialogue(&[(RCPT, "503 5.5.1"), ("DATA", "503 5.5.1")]).await;
        assert!(client.mail("a: 1\r\n\r\nbare\ntext\r\n.\r\n").await.starts_with("550 5.5.2"));
        client.dialogue(&[(RCPT, "503 5.5.1"), ("DATA", "503 5.5.1")]).await;
    }
    assert_eq!(server.metric("restante_smtp_messages_total{protocol=\"smtp\",result=\"refused\"}"), 3);
}

#[tokio::test]
async fn sm3_a_line_that_is_too_long_is_one_error() {
    let server = Server::start().await;
    let mut client = server.smtp().await;
    let long = "x".repeat(100_000);
    client.dialogue(&[(&long, "500 5.5.2"), ("NOOP", "250")]).await;
}

#[tokio::test]
async fn sm3_a_hundred_recipients_are_the_least_and_the_limit_is_for_now() {
    let server = Server::with(|smtp, _| smtp.recipients_max = restante_core::nonzero!(100)).await;
    let mut client = server.smtp().await;
    client.dialogue(&[(MAIL, "250")]).await;
    for number in 0..100 {
        client.dialogue(&[(&format!("RCPT TO:<user{number}@example.org>"), "250 2.1.5")]).await;
    }
    client.dialogue(&[(RCPT, "452 4.5.3"), ("DATA", "354 ")]).await;
    client.send("a: 1\r\n\r\ntext\r\n.\r\n").await;
    client.expect("250 2.0.0").await;
    let mails = server.stored.mails.lock();
    assert_eq!((mails.len(), mails[0].1.len()), (1, 100), "one message for all");
}

#[tokio::test]
async fn sm3_a_client_that_stalls_is_closed() {
    let server = Server::with(|smtp, _| smtp.command_timeout_ms = restante_core::nonzero!(20)).await;
    let mut client = server.smtp_unread().await;
    client.expect("220 ").await;
    client.send("EHLO cl").await;
    client.expect("421 4.4.2").await;
    assert!(client.is_closed().await);

    let server = Server::with(|smtp, _| smtp.data_timeout_ms = restante_core::nonzero!(20)).await;
    let mut client = server.smtp_unread().await;
    client.expect("220 ").await;
    let line = format!("EHLO a.example\r\n{MAIL}\r\n{RCPT}\r\nDATA\r\na: 1\r\n");
    client.send(line).await;
    for start in ["250", "250", "250", "354 ", "421 4.4.2"] {
        client.expect(start).await;
    }
    assert!(client.is_closed().await);
    assert_eq!(server.metric("restante_smtp_messages_total{protocol=\"smtp\",result=\"broken_off\"}"), 1);
}

#[tokio::test]
async fn sm4_the_empty_sender_postmaster_routes_and_quotes_are_accepted() {
    let server = Server::start().await;
    let mut client = server.smtp().await;
    client
        .dialogue(&[
            ("MAIL FROM:<>", "250 2.1.0"),
            ("RCPT TO:<postmaster>", "250 2.1.5"),
            ("RCPT TO:<@relay.example:bob@example.org>", "250 2.1.5"),
            ("RCPT TO:<\"a b\"@example.org>", "250 2.1.5"),
            ("DATA", "354 "),
        ])
        .await;
    client.send("a: 1\r\n\r\ntext\r\n.\r\n").await;
    client.expect("250").await;
    let accounts: Vec<u32> = server.stored.mails.lock()[0].1.iter().map(|target| target.account.0).collect();
    assert_eq!(accounts, [103, 101, 100]);
    assert!(server.last().starts_with("Return-Path: <>\r\n"));
}

#[tokio::test]
async fn sm4_addresses_beyond_ascii_need_smtputf8() {
    let server = Server::start().await;
    let mut client = server.smtp().await;
    client
        .dialogue(&[
            ("MAIL FROM:<jürgen@example.net>", "553 5.6.7"),
            (MAIL, "250"),
            ("RCPT TO:<jürgen@example.org>", "553 5.6.7"),
            ("RSET", "250"),
            ("MAIL FROM:<jürgen@example.net> SMTPUTF8", "250"),
            ("RCPT TO:<jürgen@example.org>", "250"),
            ("DATA", "354 "),
        ])
        .await;
    client.send("a: 1\r\n\r\ntext\r\n.\r\n").await;
    client.expect("250").await;
    assert!(server.last().contains(" with UTF8SMTP id "), "{}", server.last());
}

#[tokio::test]
async fn sm7_pipelined_replies_come_in_order() {
    let server = Server::start().await;
    let mut client = server.smtp().await;
    let lines = [MAIL, "RCPT TO:<nobody@example.org>", RCPT, "RCPT TO:<x@example.net>", "DATA"];
    client.send(lines.map(|line| format!("{line}\r\n")).concat()).await;
    for start in ["250 2.1.0", "550 5.1.1", "250 2.1.5", "554 5.7.1", "354 "] {
        client.expect(start).await;
    }
    client.send("a: 1\r\n\r\n1\r\n.\r\nMAIL FROM:<>\r\nNOOP\r\nQUIT\r\n").await;
    for start in ["250 2.0.0", "250 2.1.0", "250 2.0.0", "221 2.0.0"] {
        client.expect(start).await;
    }
    assert_eq!(server.messages(), ["a: 1\r\n\r\n1\r\n"]);
}

#[tokio::test]
async fn sm7_replies_are_sent_before_more_is_waited_for() {
    let server = Server::start().await;
    let mut client = server.smtp().await;
    client.send("NOOP\r\nVRFY an").await;
    client.expect("250 2.0.0").await;
    client.send("na\r\n").await;
    client.expect("252 ").await;
}

#[tokio::test]
async fn sm7_a_client_that_talks_before_the_banner_is_refused() {
    let server = Server::with(|smtp, _| smtp.greeting_delay_ms = 3_600_000).await;
    let mut client = server.smtp_unread().await;
    client.send("EHLO client.example.net\r\n").await;
    client.expect("554 5.5.1").await;
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn sm7_lmtp_clients_may_talk_at_once() {
    let server = Server::with(|smtp, _| smtp.greeting_delay_ms = 3_600_000).await;
    server.lmtp().await.dialogue(&[(MAIL, "250")]).await;
}
