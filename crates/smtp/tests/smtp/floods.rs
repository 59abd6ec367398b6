//! Many malicious clients, and one that is not. The numbers are scaled down by settings: the code that bounds memory and time is the same.

use std::{collections::VecDeque, net::IpAddr};

use restante_core::nonzero;
use restante_smtp::SmtpConfig;

use crate::{
    support::{Client, Server, proxy_header_of, until},
    users::{PASSWORD, Users, plain},
};

const KNOWN: [u8; 4] = [198, 51, 100, 7];
const MESSAGE: &str = "a: 1\r\n\r\n.\r\n";

async fn behind_proxy(change: impl FnOnce(&mut SmtpConfig)) -> Server {
    let local: IpAddr = "127.0.0.1".parse().unwrap();
    Server::with(|smtp, _| {
        smtp.proxies = vec![local];
        change(smtp);
    })
    .await
}

async fn connect(server: &Server, address: [u8; 4]) -> Client {
    let mut client = server.smtp_unread().await;
    client.send(proxy_header_of(address)).await;
    client
}

async fn greeted(server: &Server, address: [u8; 4]) -> Client {
    let mut client = connect(server, address).await;
    client.expect("220 ").await;
    client.dialogue(&[("EHLO client.example.net", "250")]).await;
    client
}

/// The address of an attacker.
fn attacker(number: u16) -> [u8; 4] {
    let [high, low] = number.to_be_bytes();
    [10, high, low, 1]
}

async fn expect_served(server: &Server) {
    let before = server.stored.mails.lock().len();
    let mut known = greeted(server, KNOWN).await;
    let message = format!("number: {before}\r\n\r\n.\r\n");
    let reply = known.mail(message).await;
    assert!(reply.starts_with("250"), "{reply}");
    assert_eq!(server.stored.mails.lock().len(), before + 1);
}

#[tokio::test]
async fn sm12_two_thousand_connections_keep_no_known_sender_out() {
    let server = behind_proxy(|smtp| smtp.connections_max = nonzero!(50)).await;
    let mut open = VecDeque::new();
    for number in 0..2_000 {
        open.push_back(greeted(&server, attacker(number)).await);
        if open.len() > 100 {
            let mut oldest = open.pop_front().unwrap();
            assert!(oldest.is_closed().await, "it was idle for longest");
        }
        if number % 500 == 499 {
            expect_served(&server).await;
        }
    }
}

#[tokio::test]
async fn sm12_a_network_connects_and_guesses_only_so_often_in_a_minute() {
    let server = behind_proxy(|smtp| {
        smtp.connects_per_minute_max = nonzero!(4);
        smtp.network_factor = 3;
    })
    .await;
    let mut refused = 0;
    for host in 0..20 {
        let mut client = connect(&server, [10, 0, 0, host]).await;
        refused += usize::from(client.reply().await.starts_with("421 4.7.0"));
    }
    assert_eq!(refused, 8, "twelve of its network were admitted");
    greeted(&server, [10, 0, 1, 1]).await;
    expect_served(&server).await;
    assert_eq!(server.metric("restante_smtp_limits_total{limit=\"connects\"}"), 8);
    // 0 means no limit.
    let server = behind_proxy(|smtp| {
        smtp.connects_per_minute_max = nonzero!(1);
        smtp.network_factor = 0;
    })
    .await;
    for host in 0..20 {
        greeted(&server, [10, 0, 0, host]).await;
    }
}

#[tokio::test]
async fn sm12_unknown_recipients_of_many_addresses_are_bounded_and_others_are_served() {
    let server = behind_proxy(|smtp| {
        smtp.unknown_per_minute_max = nonzero!(3);
        smtp.network_factor = 4;
    })
    .await;
    let mut answered = 0;
    for number in 0..500_u16 {
        // 25 networks with 20 addresses each.
        let address = [10, 0, (number / 20) as u8, (number % 20) as u8];
        let mut client = greeted(&server, address).await;
        client.dialogue(&[("MAIL FROM:<>", "250")]).await;
        for guess in 0..200 {
            let reply = client.say(&format!("RCPT TO:<guess{number}-{guess}@example.org>")).await;
            if reply.starts_with("421 4.7.1") {
                break;
            }
            assert!(reply.starts_with("550 5.1.1"), "{reply}");
            answered += 1;
        }
        assert!(client.is_closed().await);
    }
    assert_eq!(answered, 25 * 3 * 4, "100,000 guesses were meant");
    expect_served(&server).await;
}

/// Clients that begin messages and never end them kept all others out until a time-out of minutes.
#[tokio::test(start_paused = true)]
async fn sm12_slow_talkers_within_messages_give_their_connections_to_others() {
    for by_data in [false, true] {
        let server = behind_proxy(|smtp| smtp.connections_max = nonzero!(20)).await;
        let mut slow = Vec::new();
        for number in 0..20 {
            let mut client = greeted(&server, attacker(number)).await;
            client.begin().await;
            if by_data {
                client.dialogue(&[("DATA", "354")]).await;
                client.send("a: 1\r\n").await;
            }
            slow.push(client);
        }
        expect_served(&server).await;
        assert!(slow[0].is_closed().await, "the one that was slow for longest");
        expect_served(&server).await;
    }
}

/// Their delays kept their connections in use: clients that named unknown recipients kept all others out for minutes.
#[tokio::test]
async fn sm12_clients_that_are_slowed_down_for_guessing_give_their_connections_to_others() {
    let server = behind_proxy(|smtp| {
        smtp.connections_max = nonzero!(20);
        smtp.unknown_delay_ms = 3_600_000;
    })
    .await;
    let mut guessing = Vec::new();
    for number in 0..20 {
        let mut client = greeted(&server, attacker(number)).await;
        client.dialogue(&[("MAIL FROM:<>", "250")]).await;
        client.send("RCPT TO:<guess@example.org>\r\n".repeat(5)).await;
        client.expect("550 5.1.1").await;
        client.expect("550 5.1.1").await;
        guessing.push(client);
    }
    expect_served(&server).await;
    assert!(guessing[0].is_closed().await, "the one that was slowed down first");
}

/// A client that was slowed down and continues its message is not closed in favour of others.
#[tokio::test]
async fn sm12_a_client_that_was_slowed_down_still_delivers() {
    let server = behind_proxy(|smtp| {
        smtp.connections_max = nonzero!(2);
        smtp.unknown_delay_ms = 1;
    })
    .await;
    let mut client = greeted(&server, attacker(1)).await;
    client.dialogue(&[("MAIL FROM:<sender@example.net>", "250")]).await;
    for _ in 0..3 {
        client.dialogue(&[("RCPT TO:<guess@example.org>", "550 5.1.1")]).await;
    }
    client.dialogue(&[("RCPT TO:<anna@example.org>", "250"), ("DATA", "354")]).await;
    client.send(format!("a: {}\r\n", "x".repeat(990)).repeat(2)).await;
    until("a part of it has come", || server.metric("restante_smtp_memory_bytes") > 0).await;
    let mut other = greeted(&server, attacker(2)).await;
    let _third = greeted(&server, attacker(3)).await;
    assert!(other.is_closed().await, "it was idle for a shorter time, but the first one sends its message");
    client.send("\r\n.\r\n").await;
    client.expect("250 ").await;
}

#[tokio::test]
async fn sm12_passwords_are_guessed_ten_times_however_many_addresses_guess() {
    let local: IpAddr = "127.0.0.1".parse().unwrap();
    let users = Users::with(|smtp, _| smtp.proxies = vec![local]).await;
    let right = |name: &str| format!("AUTH PLAIN {}", plain("", name, PASSWORD));
    let (anna, bob) = (right("anna@example.org"), right("bob@example.org"));
    users.client_from(KNOWN).await.dialogue(&[(anna.as_str(), "235")]).await;
    let (mut tried, mut limited) = (0, 0);
    for number in 0..100 {
        let mut client = users.client_from(attacker(number)).await;
        let guess = format!("AUTH PLAIN {}", plain("", "anna@example.org", &format!("guess {number}")));
        match client.say(&guess).await {
            reply if reply.starts_with("535 5.7.8") => tried += 1,
            reply if reply.starts_with("454 4.7.0") => limited += 1,
            reply => panic!("{reply}"),
        }
    }
    assert_eq!((tried, limited), (10, 90));
    // A client that has logged in a moment ago, and others, are not kept out.
    users.client_from(KNOWN).await.dialogue(&[(anna.as_str(), "235")]).await;
    users.client_from(KNOWN).await.dialogue(&[(bob.as_str(), "235")]).await;
}

/// Small messages that never ended held all memory.
#[tokio::test(start_paused = true)]
async fn sm12_messages_of_a_flood_hold_bounded_memory_and_others_are_served() {
    let server = behind_proxy(|smtp| {
        smtp.message_bytes_max = nonzero!(1_000_000);
        smtp.memory_bytes_max = nonzero!(3_000_000);
    })
    .await;
    let line = "x".repeat(998) + "\r\n";
    let mut holding = Vec::new();
    for number in 0..40 {
        let mut client = greeted(&server, attacker(number)).await;
        client.begin().await;
        client.dialogue(&[("DATA", "354")]).await;
        client.send(line.repeat(60)).await;
        holding.push(client);
        assert!(server.metric("restante_smtp_memory_bytes") <= 3_000_000);
    }
    until("some is in memory", || server.metric("restante_smtp_memory_bytes") > 1_000_000).await;
    expect_served(&server).await;
    drop(holding);
    until("all is given back", || server.metric("restante_smtp_memory_bytes") == 0).await;
    assert!(greeted(&server, KNOWN).await.mail(MESSAGE).await.starts_with("250"));
}
