use restante_core::ErrorKind;
use restante_smtp::LmtpAddress;

use crate::support::{Server, unix};

const MESSAGE: &str = "a: 1\r\n\r\ntext\r\n.\r\n";

#[tokio::test]
async fn sm11_lmtp_says_lhlo_and_offers_what_it_must() {
    let server = Server::start().await;
    let mut client = server.lmtp().await;
    client
        .dialogue(&[("EHLO client.example.net", "500 5.5.1"), ("HELO client.example.net", "500 5.5.1")])
        .await;
    let offered = client.say("LHLO client.example.net").await;
    assert!(offered.contains("250-PIPELINING\r\n") && offered.contains("250-ENHANCEDSTATUSCODES\r\n"));
}

#[tokio::test]
async fn sm11_each_accepted_recipient_has_a_reply_in_order_repeats_too() {
    let server = Server::start().await;
    server.stored.failing.lock().insert("bob", Some(ErrorKind::Full));
    server.stored.failing.lock().insert("carol", None);
    let mut client = server.lmtp().await;
    client
        .dialogue(&[
            ("MAIL FROM:<sender@example.net>", "250"),
            ("RCPT TO:<anna@example.org>", "250"),
            ("RCPT TO:<bob@example.org>", "250"),
            ("RCPT TO:<nobody@example.org>", "550 5.1.1"),
            ("RCPT TO:<carol@example.org>", "250"),
            ("RCPT TO:<anna@example.org>", "250"),
            ("RCPT TO:<both@example.org>", "250"),
            ("DATA", "354"),
        ])
        .await;
    client.send(MESSAGE).await;
    for reply in ["250 2.1.5", "452 4.3.1", "452 4.2.2", "250 2.1.5", "452 4.3.1"] {
        client.expect(reply).await;
    }
    client.dialogue(&[("NOOP", "250 2.0.0")]).await;
    assert_eq!(server.messages().len(), 1);
}

#[tokio::test]
async fn sm11_the_last_chunk_has_the_replies_too() {
    let server = Server::start().await;
    let mut client = server.lmtp().await;
    client
        .dialogue(&[
            ("MAIL FROM:<>", "250"),
            ("RCPT TO:<anna@example.org>", "250"),
            ("RCPT TO:<bob@example.org>", "250"),
        ])
        .await;
    client.send("BDAT 6\r\na: 1\r\nBDAT 2 LAST\r\n\r\n").await;
    for reply in ["250 2.0.0", "250 2.1.5", "250 2.1.5"] {
        client.expect(reply).await;
    }
    client.dialogue(&[("NOOP", "250 2.0.0")]).await;
}

#[tokio::test]
async fn sm11_a_message_that_is_refused_is_refused_for_each() {
    let server = Server::with(|_, lmtp| lmtp.trusted.clear()).await;
    let mut client = server.lmtp().await;
    client
        .dialogue(&[
            ("MAIL FROM:<>", "250"),
            ("RCPT TO:<anna@example.org>", "250"),
            ("RCPT TO:<bob@example.org>", "250"),
            ("DATA", "354"),
        ])
        .await;
    client.send("bare\nline\r\n.\r\n").await;
    for reply in ["550 5.5.2", "550 5.5.2"] {
        client.expect(reply).await;
    }
    client.dialogue(&[("NOOP", "250 2.0.0")]).await;
}

#[tokio::test]
async fn sm11_data_needs_a_recipient() {
    let server = Server::start().await;
    let mut client = server.lmtp().await;
    client
        .dialogue(&[
            ("MAIL FROM:<>", "250"),
            ("RCPT TO:<nobody@example.org>", "550"),
            ("DATA", "503 5.5.1"),
            ("NOOP", "250"),
        ])
        .await;
}

#[tokio::test]
async fn sm11_lmtp_is_served_on_unix_sockets() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lmtp");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap()); // what a killed server leaves behind
    let server = Server::with(|_, lmtp| lmtp.listen = vec![LmtpAddress::Unix(path.clone())]).await;
    let mut client = server.lmtp().await;
    assert!(client.mail(MESSAGE).await.starts_with("250 2.1.5"));
    assert!(
        server.last().contains("Received: from client.example.net\r\n\tby mail.example.org with LMTP id ")
    );
    assert_eq!(server.journal.0.lock()[0].peer, None);
    let mut second = unix(&path).await;
    second.expect("220").await;
    restante_operate::Door::close(&*server.door).await;
    assert!(!path.exists());
}

/// When it stopped, a server removed whatever was then at the path of its socket.
#[tokio::test]
async fn a_file_that_has_replaced_a_unix_socket_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lmtp");
    let server = Server::with(|_, lmtp| lmtp.listen = vec![LmtpAddress::Unix(path.clone())]).await;
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "notes").unwrap();
    restante_operate::Door::close(&*server.door).await;
    assert_eq!(std::fs::read(&path).unwrap(), b"notes");
}
