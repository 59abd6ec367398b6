//! A server with a directory of users who submit mail, and an outbox that records what they sent.

use std::{net::SocketAddr, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use prometheus_client::{encoding::text::encode, registry::Registry};
use restante_core::{BlobId, Error, ErrorKind, ManualClock, Timestamp, nonzero};
use restante_directory::{
    Access, Actor, Answer, Directory, DirectoryConfig, DirectoryMetrics, EmailAddress, NewPassword,
    Operation, Role,
};
use restante_mail::{
    queue::NewMessage,
    sending::{SendingLimits, SendingMetrics},
};
use restante_net::{
    NetMetrics,
    tls::{CertificateFiles, Certificates, ClientTls, Verify},
};
use restante_operate::Door;
use restante_records::{AccountId, EngineUrl, Opened, Schema};
use restante_smtp::{
    ForwardSender, Forwards, LmtpAddress, LmtpConfig, Outbox, Parts, SmtpConfig, SmtpDoor, SmtpMetrics,
    SubmissionConfig, SubmissionParts,
};
use rustls::{ClientConfig, pki_types::ServerName};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::support::{Client, Entries, Stored, proxy_header_of};

pub(crate) const NOW: i64 = 1_800_000_000;
pub(crate) const PASSWORD: &str = "correct horse";

/// Stores queued messages in memory, and fails when a test says so.
#[derive(Default)]
pub(crate) struct Sent {
    pub(crate) blobs: Mutex<Vec<Bytes>>,
    pub(crate) messages: Mutex<Vec<NewMessage>>,
    pub(crate) failing: Mutex<Option<ErrorKind>>,
}

#[async_trait]
impl Outbox for Sent {
    async fn put(&self, raw: Bytes) -> Result<BlobId, Error> {
        let mut blobs = self.blobs.lock();
        blobs.push(raw);
        Ok(BlobId([blobs.len() as u8; 32]))
    }

    async fn queue(&self, message: NewMessage) -> Result<(), Error> {
        if let Some(kind) = *self.failing.lock() {
            return Err(Error::new(kind, "it was asked to fail"));
        }
        let mut messages = self.messages.lock();
        if !messages.iter().any(|known| known.source.key == message.source.key) {
            messages.push(message);
        }
        Ok(())
    }
}

impl Sent {
    /// The only message that was queued, and its bytes.
    pub(crate) fn only(&self) -> (NewMessage, String) {
        let messages = self.messages.lock();
        assert_eq!(messages.len(), 1);
        let raw = self.blobs.lock()[usize::from(messages[0].blob.0[0]) - 1].clone();
        (messages[0].clone(), String::from_utf8(raw.to_vec()).unwrap())
    }

    pub(crate) fn count(&self) -> usize {
        self.messages.lock().len()
    }
}

/// Rewrites senders in a form that tests can read.
pub(crate) struct Rewritten;

impl ForwardSender for Rewritten {
    fn rewrite(&self, sender: &str, alias: &EmailAddress) -> String {
        format!("srs-{}@{}", sender.replace('@', "="), alias.domain())
    }

    fn original(&self, address: &str) -> Option<String> {
        let (local, _) = address.rsplit_once('@')?;
        Some(local.strip_prefix("srs-")?.replace('=', "@"))
    }
}

/// A running server with users.
pub(crate) struct Users {
    pub(crate) door: SmtpDoor,
    pub(crate) directory: Directory,
    pub(crate) sent: Arc<Sent>,
    pub(crate) stored: Arc<Stored>,
    pub(crate) journal: Arc<Entries>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) limits: SendingLimits,
    pub(crate) anna: AccountId,
    registry: Registry,
    config: Arc<ClientConfig>,
    /// The records are closed with it.
    _opened: Opened,
    _folder: TempDir,
}

/// anna, bob and carol at example.org; `info@` leads to anna, `team@` to anna and outside, `away@` outside; anna may change carol's mail and read bob's.
async fn fill(directory: &Directory) -> AccountId {
    let operate = async |operation| directory.operate(&Actor("a test".to_owned()), operation).await.unwrap();
    let address = |text: &str| text.parse::<EmailAddress>().unwrap();
    let domain = "example.org".parse().unwrap();
    operate(Operation::AddDomain { domain, separator: Some('+'), catch_all: None }).await;
    let mut accounts = Vec::new();
    for name in ["anna", "bob", "carol"] {
        let password = Some(NewPassword::Given(PASSWORD.to_owned()));
        let address = address(&format!("{name}@example.org"));
        let add = Operation::AddAccount { address, password, role: Role::User, quota_bytes: None };
        match operate(add).await {
            Answer::Password { account: Some(account), .. } => accounts.push(AccountId(account)),
            _ => panic!("a new account has a number"),
        }
    }
    let aliases = [
        ("info", &["anna@example.org"][..]),
        ("team", &["anna@example.org", "Team@example.net"]),
        ("away", &["x@example.net", "y@example.com"]),
    ];
    for (name, targets) in aliases {
        let targets = targets.iter().map(|target| address(target)).collect();
        operate(Operation::AddAlias { address: address(&format!("{name}@example.org")), targets }).await;
    }
    for (owner, access) in [("carol", Access::Write), ("bob", Access::Read)] {
        let (owner, user) = (address(&format!("{owner}@example.org")), address("anna@example.org"));
        operate(Operation::Grant { owner, user, access }).await;
    }
    accounts[0]
}

impl Users {
    pub(crate) async fn start() -> Self {
        Self::with(|_, _| {}).await
    }

    pub(crate) async fn with(change: impl FnOnce(&mut SmtpConfig, &mut SubmissionConfig)) -> Self {
        Self::with_parts(change, |_| {}).await
    }

    /// A server with changed settings and parts.
    pub(crate) async fn with_parts(
        change: impl FnOnce(&mut SmtpConfig, &mut SubmissionConfig),
        change_parts: impl FnOnce(&mut Parts),
    ) -> Self {
        let clock = Arc::new(ManualClock::new(Timestamp::from_seconds(NOW)));
        let mut kinds = restante_mail::kinds();
        kinds.extend(restante_directory::kinds());
        let opened = restante_records::Config::new(EngineUrl::Memory, Schema::new(kinds).unwrap());
        let opened = restante_records::open(opened).await.unwrap();
        let settings = DirectoryConfig { rounds: nonzero!(4_096), ..DirectoryConfig::default() };
        let (directory, follower) =
            Directory::open(&opened, settings, clock.clone(), DirectoryMetrics::default()).await.unwrap();
        tokio::spawn(follower.run());
        let anna = fill(&directory).await;
        let folder = tempfile::tempdir().unwrap();
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let mut smtp = SmtpConfig {
            listen: vec![any],
            hostname: "mail.example.org".to_owned(),
            greeting_delay_ms: 0,
            unknown_delay_ms: 0,
            ..SmtpConfig::default()
        };
        let mut config =
            SubmissionConfig { listen: vec![any], listen_tls: vec![any], ..SubmissionConfig::default() };
        change(&mut smtp, &mut config);
        let limits = SendingLimits::new(
            opened.records.clone(),
            clock.clone(),
            config.rates(),
            SendingMetrics::default(),
        );
        let (sent, stored, journal) =
            (Arc::new(Sent::default()), Arc::default(), Arc::new(Entries::default()));
        let submission = SubmissionParts {
            config,
            directory: directory.clone(),
            outbox: sent.clone(),
            limits: limits.clone(),
        };
        let mut parts = Parts {
            recipients: Arc::new(directory.clone()),
            delivery: Arc::clone(&stored) as Arc<Stored>,
            journal: Some(journal.clone()),
            certificates: Some(certificates(&folder)),
            clock: clock.clone(),
            submission: Some(submission),
            forwards: Some(Forwards { outbox: sent.clone(), sender: Arc::new(Rewritten) }),
            checks: None,
            quarantine: None,
            metrics: SmtpMetrics::default(),
            net: NetMetrics::default(),
        };
        let lmtp = LmtpConfig { listen: vec![LmtpAddress::Tcp(any)], ..LmtpConfig::default() };
        change_parts(&mut parts);
        let door = SmtpDoor::start(parts, smtp, lmtp).await.unwrap();
        let mut registry = Registry::default();
        door.register(&mut registry);
        let config = ClientTls { verify: Verify::Nothing, ..ClientTls::default() };
        let config = Arc::new(config.config().unwrap());
        Self {
            door,
            directory,
            sent,
            stored,
            journal,
            clock,
            limits,
            anna,
            registry,
            config,
            _opened: opened,
            _folder: folder,
        }
    }

    pub(crate) async fn operate(&self, operation: Operation) -> Answer {
        self.directory.operate(&Actor("a test".to_owned()), operation).await.unwrap()
    }

    /// A client of port 587 that was greeted and has said EHLO, without TLS.
    pub(crate) async fn plain(&self) -> Client {
        greeted(Client::new(TcpStream::connect(self.door.submission_addresses()[0]).await.unwrap())).await
    }

    /// The same with TLS.
    pub(crate) async fn client(&self) -> Client {
        let mut client = self.plain().await;
        client.dialogue(&[("STARTTLS", "220 2.0.0")]).await;
        let mut client = self.in_tls(client).await;
        client.dialogue(&[("EHLO client.example.net", "250")]).await;
        client
    }

    /// The same behind a proxy that reports this address.
    pub(crate) async fn client_from(&self, address: [u8; 4]) -> Client {
        let mut client = Client::new(TcpStream::connect(self.door.submission_addresses()[0]).await.unwrap());
        client.send(proxy_header_of(address)).await;
        let mut client = greeted(client).await;
        client.dialogue(&[("STARTTLS", "220 2.0.0")]).await;
        let mut client = self.in_tls(client).await;
        client.dialogue(&[("EHLO client.example.net", "250")]).await;
        client
    }

    /// A client of port 465 that was greeted and has said EHLO.
    pub(crate) async fn immediate(&self) -> Client {
        let client = Client::new(TcpStream::connect(self.door.submissions_addresses()[0]).await.unwrap());
        greeted(self.in_tls(client).await).await
    }

    async fn in_tls(&self, client: Client) -> Client {
        let name = ServerName::try_from("mail.example.org").unwrap();
        Client::new(
            TlsConnector::from(self.config.clone()).connect(name, client.into_stream()).await.unwrap(),
        )
    }

    /// anna, logged in.
    pub(crate) async fn anna(&self) -> Client {
        let mut client = self.client().await;
        let line = format!("AUTH PLAIN {}", plain("", "anna@example.org", PASSWORD));
        client.dialogue(&[(line.as_str(), "235 2.7.0")]).await;
        client
    }

    /// A client of port 25.
    pub(crate) async fn smtp(&self) -> Client {
        greeted(Client::new(TcpStream::connect(self.door.smtp_addresses()[0]).await.unwrap())).await
    }

    /// A client of LMTP.
    pub(crate) async fn lmtp(&self) -> Client {
        let LmtpAddress::Tcp(address) = self.door.lmtp_addresses()[0] else { panic!("it is a port") };
        let mut client = Client::new(TcpStream::connect(address).await.unwrap());
        client.expect("220").await;
        client.dialogue(&[("LHLO client.example.net", "250")]).await;
        client
    }

    /// The value of a metric, 0 if it does not exist.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let mut text = String::new();
        encode(&mut text, &self.registry).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0, |value| value.parse::<f64>().unwrap() as u64)
    }
}

async fn greeted(mut client: Client) -> Client {
    client.expect("220 mail.example.org ESMTP").await;
    client.dialogue(&[("EHLO client.example.net", "250")]).await;
    client
}

fn certificates(folder: &TempDir) -> Arc<Certificates> {
    let own = rcgen::generate_simple_self_signed(["mail.example.org".to_owned()]).unwrap();
    let files =
        CertificateFiles { certificate: folder.path().join("own.pem"), key: folder.path().join("own.key") };
    std::fs::write(&files.certificate, own.cert.pem()).unwrap();
    std::fs::write(&files.key, own.key_pair.serialize_pem()).unwrap();
    Certificates::load(&[files], &NetMetrics::default()).unwrap()
}

/// The message of SASL PLAIN.
pub(crate) fn plain(identity: &str, name: &str, password: &str) -> String {
    base64(format!("{identity}\0{name}\0{password}"))
}

pub(crate) fn base64(text: impl AsRef<[u8]>) -> String {
    base64_simd::STANDARD.encode_to_string(text)
}
