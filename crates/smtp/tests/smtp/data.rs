use restante_core::nonzero;

use crate::support::{Client, Server};

/// What other servers once took for the end of a message (CVE-2023-51764 and its relatives).
const FALSE_ENDS: [&str; 9] =
    ["\n.\n", "\n.\r\n", "\r.\r", "\r\n.\r", "\r\n.\n", "\r.\r\n", "\n.\r", "\r\r\n.\r\r\n", "\n\n.\r\n"];
const SMUGGLED: &str =
    "MAIL FROM:<evil@example.net>\r\nRCPT TO:<bob@example.org>\r\nDATA\r\na: 1\r\n\r\nevil\r\n.\r\n";

#[tokio::test]
async fn sm5_no_message_is_smuggled_behind_a_false_end() {
    let server = Server::start().await;
    for end in FALSE_ENDS {
        let mut client = server.smtp().await;
        let reply = client.mail(format!("a: 1\r\n\r\ntext{end}{SMUGGLED}")).await;
        assert!(reply.starts_with("550 5.5.2"), "{end:?}: {reply}");
        client.dialogue(&[("NOOP", "250 2.0.0"), ("QUIT", "221")]).await;
    }
    assert_eq!(server.messages(), Vec::<String>::new());
}

#[tokio::test]
async fn sm5_trusted_lmtp_clients_get_their_line_breaks_repaired() {
    let server = Server::start().await;
    let mut client = server.lmtp().await;
    for (sent, stored) in [
        ("a: 1\n\ntext\r\n", "a: 1\r\n\r\ntext\r\n"),
        ("a: 1\r\n\r\nmac\rline\r\n", "a: 1\r\n\r\nmac\r\nline\r\n"),
        (
            "a: 1\r\n\r\nx\n.\nMAIL FROM:<evil@example.net>\r\n",
            "a: 1\r\n\r\nx\r\n.\r\nMAIL FROM:<evil@example.net>\r\n",
        ),
    ] {
        assert!(client.mail(format!("{sent}.\r\n")).await.starts_with("250 2.1.5"));
        assert_eq!(server.messages().last().unwrap(), stored);
    }
}

#[tokio::test]
async fn sm5_other_lmtp_clients_are_not_trusted() {
    let server = Server::with(|_, lmtp| lmtp.trusted.clear()).await;
    let mut client = server.lmtp().await;
    assert!(client.mail("a: 1\n\ntext\r\n.\r\n").await.starts_with("550 5.5.2"));
    assert_eq!(server.messages().len(), 0);
}

#[tokio::test]
async fn sm5_a_dot_at_once_is_an_empty_message_and_first_dots_are_removed() {
    let server = Server::start().await;
    let mut client = server.smtp().await;
    assert!(client.mail(".\r\n").await.starts_with("250"));
    assert!(client.mail("..a: 1\r\n\r\n..\r\n...\r\n.x\r\n.\r\n").await.starts_with("250"));
    assert_eq!(server.messages(), ["", ".a: 1\r\n\r\n.\r\n..\r\nx\r\n"]);
}

#[tokio::test]
async fn sm5_a_command_line_of_lf_ends_the_connection() {
    let server = Server::start().await;
    let mut client = server.smtp().await;
    client.send("NOOP\nMAIL FROM:<evil@example.net>\r\n").await;
    client.expect("500 5.5.2").await;
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn sm5_a_message_may_come_byte_by_byte() {
    let server = Server::start().await;
    let mut client = server.smtp().await;
    client.begin().await;
    client.dialogue(&[("DATA", "354")]).await;
    for byte in b"a: 1\r\n\r\n..\r\ntext\r\n.\r\n" {
        client.send([*byte]).await;
    }
    client.expect("250").await;
    assert_eq!(server.messages(), ["a: 1\r\n\r\n.\r\ntext\r\n"]);
}

#[tokio::test]
async fn sm3_a_message_that_is_too_big_is_read_to_its_end_and_refused() {
    let server = Server::with(|smtp, _| smtp.message_bytes_max = nonzero!(100_000)).await;
    for mut client in [server.smtp().await, server.lmtp().await] {
        let line = "x".repeat(998) + "\r\n";
        let big = line.repeat(101) + ".\r\n";
        assert!(client.mail(&big).await.starts_with("552 5.3.4"));
        let fits = line.repeat(100) + ".\r\n";
        assert!(client.mail(&fits).await.starts_with("250"));
    }
    assert_eq!(server.messages().iter().map(String::len).collect::<Vec<_>>(), [100_000]);
}

#[tokio::test]
async fn sm3_a_message_without_end_is_cut_off() {
    let server = Server::with(|smtp, _| smtp.message_bytes_max = nonzero!(100_000)).await;
    let mut client = server.smtp().await;
    client.begin().await;
    client.dialogue(&[("DATA", "354")]).await;
    client.send("x\r\n".repeat(100_000)).await;
    client.expect("421 4.3.0").await;
}

#[tokio::test]
async fn sm3_a_line_of_more_than_64_kib_is_refused() {
    let server = Server::start().await;
    let mut client = server.smtp().await;
    let long = |bytes: usize| "x".repeat(bytes) + "\r\n.\r\n";
    assert!(client.mail(long((64 << 10) + 1)).await.starts_with("550 5.5.2"));
    assert!(client.mail(long(64 << 10)).await.starts_with("250"));
}

async fn chunk(client: &mut Client, bytes: &str, last: &str) -> String {
    client.send(format!("BDAT {}{last}\r\n{bytes}", bytes.len())).await;
    client.reply().await
}

#[tokio::test]
async fn sm6_chunks_are_answered_one_by_one_and_joined() {
    let server = Server::start().await;
    let mut client = server.smtp().await;
    client.begin().await;
    for bytes in ["a: 1\r\n", "\r", "\n.\r\n", ""] {
        assert!(chunk(&mut client, bytes, "").await.starts_with("250 2.0.0"));
    }
    assert!(chunk(&mut client, "QUIT\r\n", " LAST").await.starts_with("250 2.0.0 stored"));
    assert_eq!(server.messages(), ["a: 1\r\n\r\n.\r\nQUIT\r\n"]);
    client.begin().await;
    assert!(chunk(&mut client, "", " LAST").await.starts_with("250 2.0.0 stored"), "an empty message");
}

#[tokio::test]
async fn sm6_a_refused_chunk_is_swallowed() {
    let server = Server::with(|smtp, _| smtp.message_bytes_max = nonzero!(10)).await;
    let mut client = server.smtp().await;
    assert!(chunk(&mut client, "QUIT\r\nQUIT\r\n", "").await.starts_with("503 5.5.1"));
    client.dialogue(&[("MAIL FROM:<>", "250"), ("RCPT TO:<nobody@example.org>", "550")]).await;
    assert!(chunk(&mut client, "QUIT\r\n", " LAST").await.starts_with("503 5.5.1"));
    client.dialogue(&[("RSET", "250")]).await;
    client.begin().await;
    assert!(chunk(&mut client, "QUIT\r\n", "").await.starts_with("250"));
    assert!(chunk(&mut client, "QUIT\r\n", "").await.starts_with("552 5.3.4"));
    assert!(chunk(&mut client, "QUIT\r\n", " LAST").await.starts_with("503 5.5.1"));
    client.begin().await;
    assert!(chunk(&mut client, "QUIT\r\nQUIT\r\n", " LAST").await.starts_with("552 5.3.4"));
    client.dialogue(&[("NOOP", "250")]).await;
    assert_eq!(server.messages().len(), 0);
}

#[tokio::test]
async fn sm6_a_chunk_whose_length_is_not_known_ends_the_connection() {
    let server = Server::with(|smtp, _| smtp.message_bytes_max = nonzero!(1_000)).await;
    for (line, reply) in [("BDAT x LAST", "501 5.5.4"), ("BDAT 2001", "421 4.3.0")] {
        let mut client = server.smtp().await;
        client.begin().await;
        client.dialogue(&[(line, reply)]).await;
        assert!(client.is_closed().await);
    }
}

#[tokio::test]
async fn sm6_data_does_not_follow_chunks_and_recipients_neither() {
    let server = Server::start().await;
    let mut client = server.smtp().await;
    client.begin().await;
    assert!(chunk(&mut client, "a: 1\r\n", "").await.starts_with("250"));
    client
        .dialogue(&[
            ("DATA", "503 5.5.1"),
            ("RCPT TO:<bob@example.org>", "503 5.5.1"),
            ("MAIL FROM:<>", "503 5.5.1"),
        ])
        .await;
    assert!(chunk(&mut client, "\r\n", " LAST").await.starts_with("250"));
    assert_eq!(server.messages(), ["a: 1\r\n\r\n"]);
}

#[tokio::test]
async fn sm6_binary_messages_come_in_chunks_and_keep_their_bytes() {
    let server = Server::start().await;
    let mut client = server.smtp().await;
    let begin = [("MAIL FROM:<> BODY=BINARYMIME", "250"), ("RCPT TO:<anna@example.org>", "250")];
    client.dialogue(&begin).await;
    client.dialogue(&[("DATA", "503 5.5.1")]).await;
    assert!(chunk(&mut client, "a: 1\r\n\r\n\r\r\n\n\0", " LAST").await.starts_with("250"));
    client.begin().await;
    assert!(chunk(&mut client, "a: 1\n\nb", " LAST").await.starts_with("250"));
    assert_eq!(server.messages(), ["a: 1\r\n\r\n\r\r\n\n\0", "a: 1\r\n\r\nb"]);
}

#[tokio::test]
async fn sm8_the_stored_message_begins_with_our_trace_fields() {
    let server = Server::start().await;
    let mut client = server.smtp().await;
    let reply = client
        .mail("Return-Path: <x@y.example>\r\nDelivered-To: anna@example.org\r\na: 1\r\n\r\n.\r\n")
        .await;
    let id = reply.rsplit(' ').next().unwrap();
    assert_eq!(
        server.last(),
        format!(
            "Return-Path: <sender@example.net>\r\nReceived: from client.example.net ([127.0.0.1])\r\n\
             \tby mail.example.org with ESMTP id {id}\r\n\tfor <anna@example.org>;\r\n\
             \tSun, 9 Sep 2001 01:46:40 +0000\r\nDelivered-To: anna@example.org\r\na: 1\r\n\r\n"
        )
    );
    let mut client = server.lmtp().await;
    client
        .dialogue(&[
            ("MAIL FROM:<>", "250"),
            ("RCPT TO:<bob@example.org>", "250"),
            ("RCPT TO:<carol@example.org>", "250"),
            ("DATA", "354"),
        ])
        .await;
    client.send("a: 1\r\n\r\n.\r\n").await;
    client.expect("250").await;
    let stored = server.last();
    assert!(stored.contains(" with LMTP id ") && !stored.contains("for <"), "{stored}");
    assert!(!stored.contains("Delivered-To"), "{stored}");
}

#[tokio::test]
async fn sm8_a_message_that_went_through_a_hundred_servers_goes_in_circles() {
    let server = Server::start().await;
    let mut client = server.smtp().await;
    let message = |hops: usize| "Received: from a by b; now\r\n".repeat(hops) + "\r\ntext\r\n.\r\n";
    assert!(client.mail(message(100)).await.starts_with("250"));
    assert!(client.mail(message(101)).await.starts_with("550 5.4.6"));
}

#[tokio::test]
async fn sm8_only_trusted_clients_put_mail_into_junk() {
    let server = Server::start().await;
    let spam = "X-Spam-Flag: YES\r\n\r\n.\r\n";
    server.smtp().await.mail(spam).await;
    assert!(!server.stored.mails.lock()[0].0.to_junk);
    server.lmtp().await.mail(format!("b: 1\r\n{spam}")).await;
    assert!(server.stored.mails.lock()[1].0.to_junk);
}
