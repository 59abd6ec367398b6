use std::net::IpAddr;

use restante_core::nonzero;
use restante_smtp::SmtpConfig;

use crate::support::{Client, Server, proxy_header, until};

/// A server that trusts the header of a proxy on loopback, as loopback itself is not limited.
async fn behind_proxy(change: impl FnOnce(&mut SmtpConfig)) -> Server {
    let local: IpAddr = "127.0.0.1".parse().unwrap();
    Server::with(|smtp, _| {
        smtp.proxies = vec![local];
        change(smtp);
    })
    .await
}

async fn connect(server: &Server, host: u8) -> Client {
    let mut client = server.smtp_unread().await;
    client.send(proxy_header(host)).await;
    client
}

async fn greeted(server: &Server, host: u8) -> Client {
    let mut client = connect(server, host).await;
    client.expect("220 ").await;
    client.dialogue(&[("EHLO client.example.net", "250")]).await;
    client
}

#[tokio::test]
async fn sm12_an_address_has_so_many_connections() {
    let server = behind_proxy(|smtp| smtp.connections_per_address_max = nonzero!(2)).await;
    let (mut one, mut two) = (greeted(&server, 1).await, greeted(&server, 1).await);
    one.begin().await;
    two.begin().await;
    assert!(connect(&server, 1).await.is_closed().await, "both are in use");
    greeted(&server, 2).await.begin().await;
    one.dialogue(&[("RSET", "250"), ("NOOP", "250")]).await;
    greeted(&server, 1).await;
    assert!(one.is_closed().await, "an idle one goes for a new one");
    two.dialogue(&[("NOOP", "250")]).await;
}

#[tokio::test]
async fn sm12_an_address_connects_so_often_in_a_minute() {
    let server = behind_proxy(|smtp| smtp.connects_per_minute_max = nonzero!(2)).await;
    for _ in 0..2 {
        greeted(&server, 1).await.dialogue(&[("QUIT", "221")]).await;
    }
    connect(&server, 1).await.expect("421 4.7.0").await;
    greeted(&server, 2).await;
}

#[tokio::test]
async fn sm12_an_address_sends_so_many_messages_in_a_minute() {
    let server = behind_proxy(|smtp| smtp.messages_per_minute_max = nonzero!(2)).await;
    let mut client = greeted(&server, 1).await;
    for _ in 0..2 {
        assert!(client.mail("a: 1\r\n\r\n.\r\n").await.starts_with("250"));
    }
    client.dialogue(&[("MAIL FROM:<>", "450 4.7.1")]).await;
    greeted(&server, 1).await.dialogue(&[("MAIL FROM:<>", "450 4.7.1")]).await;
    greeted(&server, 2).await.begin().await;
}

#[tokio::test]
async fn sm12_an_address_guesses_so_many_recipients_in_a_minute() {
    let server = behind_proxy(|smtp| smtp.unknown_per_minute_max = nonzero!(2)).await;
    let mut client = greeted(&server, 1).await;
    client
        .dialogue(&[
            ("MAIL FROM:<>", "250"),
            ("RCPT TO:<a@example.org>", "550 5.1.1"),
            ("RCPT TO:<b@example.org>", "550 5.1.1"),
            ("RCPT TO:<c@example.org>", "421 4.7.1"),
        ])
        .await;
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn sm12_lmtp_has_no_limits_of_addresses() {
    let server = Server::with(|smtp, _| {
        smtp.messages_per_minute_max = nonzero!(1);
        smtp.connects_per_minute_max = nonzero!(1);
        smtp.unknown_per_minute_max = nonzero!(1);
    })
    .await;
    for _ in 0..3 {
        let mut client = server.lmtp().await;
        client.begin().await;
        client.dialogue(&[("RCPT TO:<a@example.org>", "550"), ("RCPT TO:<b@example.org>", "550")]).await;
    }
}

#[tokio::test]
async fn sm12_ten_errors_end_a_connection() {
    let server = Server::start().await;
    let mut client = server.smtp().await;
    for _ in 0..9 {
        client.dialogue(&[("WHAT", "500 5.5.1")]).await;
    }
    assert!(client.mail("a: 1\r\n\r\n.\r\n").await.starts_with("250"), "a message starts the count again");
    for _ in 0..10 {
        client.dialogue(&[("WHAT", "500 5.5.1")]).await;
    }
    client.expect("421 4.7.0").await;
    assert!(client.is_closed().await);
}

#[tokio::test]
async fn messages_share_memory_and_wait_for_it_only_so_long() {
    let server = Server::with(|smtp, _| {
        smtp.message_bytes_max = nonzero!(1_000_000);
        smtp.memory_bytes_max = nonzero!(2_500_000);
        smtp.memory_timeout_ms = 10;
    })
    .await;
    let line = "x".repeat(998) + "\r\n";
    let mut holding = Vec::new();
    for number in 1..=2 {
        let mut client = server.smtp().await;
        client.begin().await;
        client.dialogue(&[("DATA", "354")]).await;
        client.send(line.repeat(990)).await;
        until("it is in memory", || server.metric("restante_smtp_memory_bytes") >= number * 990_000).await;
        holding.push(client);
    }
    let mut third = server.smtp().await;
    let reply = third.mail(line.repeat(990) + ".\r\n").await;
    assert!(reply.starts_with("452 4.3.1"), "{reply}");
    for mut client in holding {
        client.send(".\r\n").await;
        client.expect("250").await;
    }
    let reply = third.mail(line.repeat(990) + ".\r\n").await;
    assert!(reply.starts_with("250"), "{reply}");
    until("all is given back", || server.metric("restante_smtp_memory_bytes") == 0).await;
}

/// A few large messages that never end kept all other mail out.
#[tokio::test]
async fn a_large_message_that_stands_still_gives_its_memory_to_others() {
    let server = Server::with(|smtp, _| {
        smtp.message_bytes_max = nonzero!(3_000_000);
        smtp.memory_bytes_max = nonzero!(4_100_000);
        smtp.memory_timeout_ms = 4_000;
    })
    .await;
    let line = "x".repeat(998) + "\r\n";
    for by_chunks in [false, true] {
        let mut still = server.smtp().await;
        still.begin().await;
        if by_chunks {
            still.send(format!("BDAT 2500000\r\n{}", line.repeat(2_500))).await;
            still.expect("250").await;
        } else {
            still.dialogue(&[("DATA", "354")]).await;
            still.send(line.repeat(2_500)).await;
        }
        until("it is in memory", || server.metric("restante_smtp_memory_bytes") >= 2_500_000).await;
        let mut other = server.smtp().await;
        let reply = other.mail(line.repeat(2_500) + ".\r\n").await;
        assert!(reply.starts_with("250"), "{reply}");
        still.expect("421 4.3.1").await;
    }
}
