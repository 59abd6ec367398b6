//! SMTP with the directory and the mail of this server, on in-memory engines.

use std::{net::SocketAddr, sync::Arc};

use restante_blobs::Upkeep;
use restante_core::{ManualClock, Timestamp};
use restante_directory::{
    Actor, Answer, Directory, DirectoryConfig, DirectoryMetrics, Operation, Role, State,
};
use restante_mail::{Mail, MailConfig, MailMetrics};
use restante_operate::Door;
use restante_records::{AccountId, EngineUrl, Schema};
use restante_smtp::{LmtpAddress, LmtpConfig, MailDelivery, Parts, SmtpConfig, SmtpDoor, SmtpMetrics};
use tokio::net::TcpStream;

use crate::support::Client;

struct Server {
    door: SmtpDoor,
    mail: Mail,
    directory: Directory,
    blobs: Arc<dyn Upkeep>,
}

async fn start() -> Server {
    let clock = Arc::new(ManualClock::new(Timestamp::from_seconds(1_800_000_000)));
    let mut kinds = restante_mail::kinds();
    kinds.extend(restante_directory::kinds());
    let records = restante_records::Config::new(EngineUrl::Memory, Schema::new(kinds).unwrap());
    let records = restante_records::open(records).await.unwrap();
    let blobs = restante_blobs::Config::new(restante_blobs::EngineUrl::Memory);
    let blobs = restante_blobs::open(blobs).await.unwrap();
    let (settings, metrics) = (DirectoryConfig::default(), DirectoryMetrics::default());
    let (directory, _) = Directory::open(&records, settings, clock.clone(), metrics).await.unwrap();
    let (config, metrics) = (MailConfig::default(), MailMetrics::default());
    let mail = Mail::new(records.records.clone(), blobs.blobs.clone(), clock.clone(), config, metrics);
    let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let smtp = SmtpConfig {
        listen: vec![any],
        hostname: "mail.example.org".to_owned(),
        greeting_delay_ms: 0,
        ..SmtpConfig::default()
    };
    let lmtp = LmtpConfig { listen: vec![LmtpAddress::Tcp(any)], ..LmtpConfig::default() };
    let parts = Parts {
        recipients: Arc::new(directory.clone()),
        delivery: Arc::new(MailDelivery::new(mail.clone(), &smtp)),
        journal: None,
        certificates: None,
        clock,
        submission: None,
        forwards: None,
        checks: None,
        quarantine: None,
        metrics: SmtpMetrics::default(),
        net: Default::default(),
    };
    let door = SmtpDoor::start(parts, smtp, lmtp).await.unwrap();
    let server = Server { door, mail, directory, blobs: blobs.upkeep };
    let domain = "example.org".parse().unwrap();
    server.operate(Operation::AddDomain { domain, separator: Some('+'), catch_all: None }).await;
    server
}

impl Server {
    async fn operate(&self, operation: Operation) -> Answer {
        self.directory.operate(&Actor("a test".to_owned()), operation).await.unwrap()
    }

    async fn add(&self, name: &str, quota_bytes: Option<u64>) -> AccountId {
        let address = format!("{name}@example.org").parse().unwrap();
        let add = Operation::AddAccount { address, password: None, role: Role::User, quota_bytes };
        match self.operate(add).await {
            Answer::Password { account: Some(account), .. } => AccountId(account),
            _ => panic!("a new account has a number"),
        }
    }

    async fn lmtp(&self) -> Client {
        let LmtpAddress::Tcp(address) = self.door.lmtp_addresses()[0] else { panic!("it is a port") };
        let mut client = Client::new(TcpStream::connect(address).await.unwrap());
        client.expect("220").await;
        client.dialogue(&[("LHLO client.example.net", "250")]).await;
        client
    }

    /// How many emails are in the mailbox with a role.
    async fn emails(&self, account: AccountId, role: &str) -> u64 {
        let (mailboxes, _) = self.mail.mailboxes(account).await.unwrap();
        let mailbox = mailboxes.iter().find(|mailbox| mailbox.role.is_some_and(|r| r.as_str() == role));
        mailbox.map_or(0, |mailbox| mailbox.total)
    }
}

async fn send(client: &mut Client, recipients: &[&str], message: &str, replies: &[&str]) {
    client.dialogue(&[("MAIL FROM:<sender@example.net>", "250")]).await;
    for recipient in recipients {
        client.dialogue(&[(&format!("RCPT TO:<{recipient}@example.org>"), "250 2.1.5")]).await;
    }
    client.dialogue(&[("DATA", "354")]).await;
    client.send(format!("{message}\r\n.\r\n")).await;
    for reply in replies {
        client.expect(reply).await;
    }
}

const MESSAGE: &str = "Message-ID: <1@example.net>\r\nSubject: one\r\n\r\ntext";

#[tokio::test]
async fn sm10_a_message_is_in_each_mailbox_once_with_one_blob() {
    let server = start().await;
    let (anna, bob) = (server.add("anna", None).await, server.add("bob", None).await);
    let all = "all@example.org".parse().unwrap();
    let targets = vec!["anna@example.org".parse().unwrap(), "bob@example.org".parse().unwrap()];
    server.operate(Operation::AddAlias { address: all, targets }).await;
    let mut client = server.lmtp().await;
    for _ in 0..2 {
        send(&mut client, &["anna+shop", "all", "bob"], MESSAGE, &["250 2.1.5"; 3]).await;
        assert_eq!((server.emails(anna, "inbox").await, server.emails(bob, "inbox").await), (1, 1));
    }
    send(&mut client, &["bob"], &format!("{MESSAGE} another"), &["250"]).await;
    assert_eq!((server.emails(anna, "inbox").await, server.emails(bob, "inbox").await), (1, 2));
    // The clock is fixed, but our id differs: the repeated message is another blob, to which nothing refers.
    assert_eq!(server.blobs.stats().await.unwrap().blobs, 3);
}

#[tokio::test]
async fn sm11_a_message_to_a_hundred_recipients_is_one_blob_and_has_a_hundred_replies() {
    let server = start().await;
    let (mut names, mut accounts) = (Vec::new(), Vec::new());
    for number in 0..100 {
        let name = format!("user{number}");
        accounts.push(server.add(&name, None).await);
        names.push(name);
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    send(&mut server.lmtp().await, &names, MESSAGE, &["250 2.1.5"; 100]).await;
    for account in accounts {
        assert_eq!(server.emails(account, "inbox").await, 1);
    }
    assert_eq!(server.blobs.stats().await.unwrap().blobs, 1);
}

#[tokio::test]
async fn sm10_retries_at_the_same_time_store_a_message_once() {
    let server = start().await;
    let anna = server.add("anna", None).await;
    let mut clients = Vec::new();
    for _ in 0..8 {
        let mut client = server.lmtp().await;
        client
            .dialogue(&[
                ("MAIL FROM:<sender@example.net>", "250"),
                ("RCPT TO:<anna@example.org>", "250"),
                ("DATA", "354"),
            ])
            .await;
        clients.push(client);
    }
    for client in &mut clients {
        client.send(format!("{MESSAGE}\r\n.\r\n")).await;
    }
    for client in &mut clients {
        client.expect("250 2.1.5").await;
    }
    assert_eq!(server.emails(anna, "inbox").await, 1);
}

#[tokio::test]
async fn sm11_a_full_account_is_refused_by_itself() {
    let server = start().await;
    let (anna, small) = (server.add("anna", None).await, server.add("small", Some(1_000)).await);
    let mut client = server.lmtp().await;
    let long = format!("{MESSAGE}{}", "\r\nx".repeat(400));
    send(&mut client, &["small", "anna"], &long, &["452 4.2.2", "250 2.1.5"]).await;
    assert_eq!((server.emails(anna, "inbox").await, server.emails(small, "inbox").await), (1, 0));
    client
        .dialogue(&[
            ("MAIL FROM:<> SIZE=2000", "250"),
            ("RCPT TO:<small@example.org>", "452 4.2.2"),
            ("RCPT TO:<nobody@example.org>", "550 5.1.1"),
            ("RSET", "250"),
        ])
        .await;
    send(&mut client, &["small"], MESSAGE, &["250 2.1.5"]).await;
    assert_eq!(server.emails(small, "inbox").await, 1);
}

#[tokio::test]
async fn a_trusted_flag_of_spam_puts_a_message_into_junk() {
    let server = start().await;
    let anna = server.add("anna", None).await;
    send(&mut server.lmtp().await, &["anna"], &format!("X-Spam-Flag: YES\r\n{MESSAGE}"), &["250"]).await;
    assert_eq!((server.emails(anna, "inbox").await, server.emails(anna, "junk").await), (0, 1));
}

#[tokio::test]
async fn hostile_messages_are_delivered() {
    let server = start().await;
    let anna = server.add("anna", None).await;
    let mut client = server.lmtp().await;
    let nested = |depth: usize| {
        let part = |n: usize| format!("Content-Type: multipart/mixed; boundary=b{n}\r\n\r\n--b{n}\r\n");
        (0..depth).map(part).collect::<String>()
    };
    for message in [
        String::new(),
        "no header at all".to_owned(),
        " folded\r\n text".to_owned(),
        nested(1_000),
        format!("Content-Type: multipart/mixed; boundary=b\r\n\r\n{}", "--b\r\n\r\nx\r\n".repeat(20_000)),
        format!("{}\r\nx", "Subject: =?utf-8?Q?x?=\r\n".repeat(20_000)),
    ] {
        send(&mut client, &["anna"], &message, &["250 2.1.5"]).await;
    }
    assert_eq!(server.emails(anna, "inbox").await, 6);
    server.door.close().await;
}

#[tokio::test]
async fn sm9_the_directory_says_where_mail_goes() {
    let server = start().await;
    let anna = server.add("anna", None).await;
    server.add("bob", None).await;
    let parse = |address: &str| address.parse().unwrap();
    server.operate(Operation::SetState { address: parse("bob@example.org"), state: State::Disabled }).await;
    let targets = vec![parse("x@elsewhere.example")];
    server.operate(Operation::AddAlias { address: parse("away@example.org"), targets }).await;
    let (domain, catch_all) = ("example.com".parse().unwrap(), Some(parse("anna@example.org")));
    server.operate(Operation::AddDomain { domain, separator: None, catch_all }).await;
    let mut client = server.lmtp().await;
    client
        .dialogue(&[
            ("MAIL FROM:<sender@example.net>", "250"),
            ("RCPT TO:<anyone@example.com>", "250 2.1.5"),
            ("RCPT TO:<anna+list@example.org>", "250 2.1.5"),
            ("RCPT TO:<bob@example.org>", "550 5.2.1"),
            ("RCPT TO:<away@example.org>", "550 5.7.1"),
            ("RCPT TO:<nobody@example.org>", "550 5.1.1"),
            ("RCPT TO:<x@elsewhere.example>", "554 5.7.1"),
            ("DATA", "354"),
        ])
        .await;
    client.send(format!("{MESSAGE}\r\n.\r\n")).await;
    client.expect("250 2.1.5").await;
    client.expect("250 2.1.5").await;
    assert_eq!(server.emails(anna, "inbox").await, 1, "both recipients are one account");
}
