//! A server with made-up users, and clients that exchange single lines.

use std::{
    collections::{HashMap, HashSet},
    net::SocketAddr,
    path::Path,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use prometheus_client::{encoding::text::encode, registry::Registry};
use restante_core::{Error, ErrorKind, ManualClock, Timestamp};
use restante_directory::{self as directory, EmailAddress, Resolution, State};
use restante_net::{NetMetrics, tls::Certificates};
use restante_operate::Door;
use restante_records::{AccountId, RecordId};
use restante_smtp::{
    Delivered, Delivery, DeliveryEntry, DeliveryError, Journal, LmtpAddress, LmtpConfig, Parts, ReceivedMail,
    Recipients, Report, SmtpConfig, SmtpDoor, SmtpMetrics, Target,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpStream, UnixStream},
    time::timeout,
};

/// Long enough for the busiest machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// The most bytes of the account of `small@example.org`.
pub(crate) const SMALL_QUOTA: u64 = 1_000;

/// Resolves each local part of example.org.
struct Users;

fn target(number: u32, address: &str) -> directory::Target {
    let address = address.parse().unwrap();
    let (state, quota_bytes, detail) = (State::Active, None, None);
    directory::Target::Account { account: AccountId(number), address, state, quota_bytes, detail }
}

#[async_trait]
impl Recipients for Users {
    async fn resolve(&self, address: &EmailAddress) -> Result<Resolution, Error> {
        if address.domain().as_str() != "example.org" {
            return Ok(Resolution::Foreign);
        }
        let anna = target(100, "anna@example.org");
        let targets = match address.local() {
            "anna" | "anna+shop" | "\"a b\"" | "jürgen" => vec![anna],
            "bob" => vec![target(101, "bob@example.org")],
            "carol" => vec![target(102, "carol@example.org")],
            "postmaster" => vec![target(103, "postmaster@example.org")],
            "both" => vec![anna, target(101, "bob@example.org")],
            "outside" => vec![anna, directory::Target::Foreign("x@example.net".parse().unwrap())],
            "small" => match target(104, "small@example.org") {
                directory::Target::Account { account, address, state, detail, .. } => {
                    let quota_bytes = Some(SMALL_QUOTA);
                    vec![directory::Target::Account { account, address, state, quota_bytes, detail }]
                }
                foreign => vec![foreign],
            },
            "disabled" => match target(105, "disabled@example.org") {
                directory::Target::Account { account, address, quota_bytes, detail, .. } => {
                    let state = State::Disabled;
                    vec![directory::Target::Account { account, address, state, quota_bytes, detail }]
                }
                foreign => vec![foreign],
            },
            "circle" => return Err(Error::conflict("in a circle")),
            "away" => return Err(Error::unavailable("the directory is away")),
            number if number.starts_with("user") => {
                let account = number.trim_start_matches("user").parse().unwrap();
                vec![target(account, &address.to_string())]
            }
            _ => return Ok(Resolution::Unknown),
        };
        Ok(Resolution::Targets(targets))
    }
}

/// Stores messages in memory, and fails when a test says so.
#[derive(Default)]
pub(crate) struct Stored {
    pub(crate) mails: Mutex<Vec<(ReceivedMail, Vec<Target>)>>,
    /// What fails, by local parts. `None` is the quota.
    pub(crate) failing: Mutex<HashMap<&'static str, Option<ErrorKind>>>,
    seen: Mutex<HashSet<(AccountId, [u8; 32])>>,
}

#[async_trait]
impl Delivery for Stored {
    async fn has_space(&self, target: &Target, bytes: u64) -> Result<bool, Error> {
        Ok(target.quota_bytes.is_none_or(|quota| bytes <= quota))
    }

    async fn deliver(&self, mail: ReceivedMail, targets: &[Target]) -> Report {
        let deliver = |target: &Target| match self.failing.lock().get(target.address.local()) {
            Some(Some(kind)) => Err(DeliveryError::Store(Error::new(*kind, "it was asked to fail"))),
            Some(None) => Err(DeliveryError::OverQuota),
            None if self.seen.lock().insert((target.account, mail.digest)) => {
                Ok(Delivered::New(RecordId(u64::from(target.account.0))))
            }
            None => Ok(Delivered::Repeated),
        };
        let results: Vec<_> = targets.iter().map(deliver).collect();
        let new = targets.iter().zip(&results).filter(|(_, r)| matches!(r, Ok(Delivered::New(_))));
        let new: Vec<Target> = new.map(|(target, _)| target.clone()).collect();
        if !new.is_empty() {
            self.mails.lock().push((mail, new));
        }
        Report { message_id: Some("id@example.net".to_owned()), results }
    }

    async fn delivered_before(&self, digest: &[u8; 32], target: &Target) -> Result<Option<RecordId>, Error> {
        let is_there = self.seen.lock().contains(&(target.account, *digest));
        Ok(is_there.then_some(RecordId(u64::from(target.account.0))))
    }
}

#[derive(Default)]
pub(crate) struct Entries(pub(crate) Mutex<Vec<DeliveryEntry>>);

impl Journal for Entries {
    fn note(&self, entry: DeliveryEntry) {
        self.0.lock().push(entry);
    }
}

/// A running server.
pub(crate) struct Server {
    pub(crate) door: Arc<SmtpDoor>,
    pub(crate) stored: Arc<Stored>,
    pub(crate) journal: Arc<Entries>,
    registry: Registry,
}

impl Server {
    pub(crate) async fn start() -> Self {
        Self::with(|_, _| {}).await
    }

    /// A server with changed settings. The greeting is sent at once, and unknown recipients are not slowed.
    pub(crate) async fn with(change: impl FnOnce(&mut SmtpConfig, &mut LmtpConfig)) -> Self {
        Self::with_tls(None, change).await
    }

    pub(crate) async fn with_tls(
        certificates: Option<Arc<Certificates>>,
        change: impl FnOnce(&mut SmtpConfig, &mut LmtpConfig),
    ) -> Self {
        Self::with_parts(certificates, change, |_| {}).await
    }

    /// A server with changed settings and parts.
    pub(crate) async fn with_parts(
        certificates: Option<Arc<Certificates>>,
        change: impl FnOnce(&mut SmtpConfig, &mut LmtpConfig),
        change_parts: impl FnOnce(&mut Parts),
    ) -> Self {
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let mut smtp = SmtpConfig {
            listen: vec![any],
            hostname: "mail.example.org".to_owned(),
            greeting_delay_ms: 0,
            unknown_delay_ms: 0,
            ..SmtpConfig::default()
        };
        let mut lmtp = LmtpConfig { listen: vec![LmtpAddress::Tcp(any)], ..LmtpConfig::default() };
        change(&mut smtp, &mut lmtp);
        let (stored, journal) = (Arc::new(Stored::default()), Arc::new(Entries::default()));
        let mut parts = Parts {
            recipients: Arc::new(Users),
            delivery: stored.clone(),
            journal: Some(journal.clone()),
            certificates,
            clock: Arc::new(ManualClock::new(Timestamp(1_000_000_000_000_000_000))),
            submission: None,
            forwards: None,
            checks: None,
            quarantine: None,
            metrics: SmtpMetrics::default(),
            net: NetMetrics::default(),
        };
        change_parts(&mut parts);
        let door = Arc::new(SmtpDoor::start(parts, smtp, lmtp).await.unwrap());
        let mut registry = Registry::default();
        door.register(&mut registry);
        Self { door, stored, journal, registry }
    }

    /// A client of SMTP that was greeted and has said EHLO.
    pub(crate) async fn smtp(&self) -> Client {
        let mut client = self.smtp_unread().await;
        client.expect("220 mail.example.org ESMTP").await;
        client.say("EHLO client.example.net").await;
        client
    }

    pub(crate) async fn smtp_unread(&self) -> Client {
        Client::new(TcpStream::connect(self.door.smtp_addresses()[0]).await.unwrap())
    }

    /// A client of LMTP that was greeted and has said LHLO.
    pub(crate) async fn lmtp(&self) -> Client {
        let mut client = match &self.door.lmtp_addresses()[0] {
            LmtpAddress::Tcp(address) => Client::new(TcpStream::connect(address).await.unwrap()),
            LmtpAddress::Unix(path) => unix(path).await,
        };
        client.expect("220 mail.example.org LMTP").await;
        client.say("LHLO client.example.net").await;
        client
    }

    pub(crate) fn recipients(&self) -> Arc<dyn Recipients> {
        Arc::new(Users)
    }

    /// The messages that were stored, without our trace fields.
    pub(crate) fn messages(&self) -> Vec<String> {
        let of = |(mail, _): &(ReceivedMail, Vec<Target>)| {
            let text = String::from_utf8(mail.raw.to_vec()).unwrap();
            let end = text.find(" +0000\r\n").unwrap() + " +0000\r\n".len();
            text[end..].to_owned()
        };
        self.stored.mails.lock().iter().map(of).collect()
    }

    /// The whole of the last stored message.
    pub(crate) fn last(&self) -> String {
        String::from_utf8(self.stored.mails.lock().last().unwrap().0.raw.to_vec()).unwrap()
    }

    /// The value of a metric, 0 if it does not exist.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let mut text = String::new();
        encode(&mut text, &self.registry).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0, |value| value.parse::<f64>().unwrap() as u64)
    }
}

pub(crate) async fn unix(path: &Path) -> Client {
    Client::new(UnixStream::connect(path).await.unwrap())
}

/// A client.
pub(crate) struct Client {
    stream: Box<dyn AsyncReadWrite>,
    read: Vec<u8>,
}

impl Client {
    pub(crate) fn new(stream: impl AsyncReadWrite + 'static) -> Self {
        Self { stream: Box::new(stream), read: Vec::new() }
    }

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        timeout(PATIENCE, self.stream.write_all(bytes.as_ref())).await.unwrap().unwrap();
        self.stream.flush().await.unwrap();
    }

    /// The next reply, with all of its lines; empty at the end of the connection.
    pub(crate) async fn reply(&mut self) -> String {
        let mut reply = String::new();
        loop {
            while let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.read.drain(..=end).collect();
                let line = String::from_utf8(line).unwrap();
                reply.push_str(&line);
                assert!(line.ends_with("\r\n"), "{line:?}");
                if line.as_bytes()[3] == b' ' {
                    return reply.trim_end().to_owned();
                }
            }
            let read =
                timeout(PATIENCE, self.stream.read_buf(&mut self.read)).await.expect("a reply in time");
            if !matches!(read, Ok(1..)) {
                assert!(self.read.is_empty() && reply.is_empty(), "{reply}");
                return String::new();
            }
        }
    }

    /// Reads a reply, which must begin like this.
    #[track_caller]
    pub(crate) fn expect<'c>(&'c mut self, start: &'c str) -> impl Future<Output = ()> + 'c {
        let caller = std::panic::Location::caller();
        async move {
            let reply = self.reply().await;
            assert!(reply.starts_with(start), "{caller}: {reply:?} and not {start:?}");
        }
    }

    /// Sends a line and returns the reply.
    pub(crate) async fn say(&mut self, line: &str) -> String {
        self.send(format!("{line}\r\n")).await;
        self.reply().await
    }

    /// Sends each line, and expects a reply that begins like this.
    #[track_caller]
    pub(crate) fn dialogue<'c>(
        &'c mut self,
        lines: &'c [(&'c str, &'c str)],
    ) -> impl Future<Output = ()> + 'c {
        let caller = std::panic::Location::caller();
        async move {
            for (line, start) in lines {
                let reply = self.say(line).await;
                assert!(reply.starts_with(start), "{caller}: {line}: {reply:?} and not {start:?}");
            }
        }
    }

    /// Begins a message to anna.
    pub(crate) async fn begin(&mut self) {
        self.dialogue(&[
            ("MAIL FROM:<sender@example.net>", "250 2.1.0"),
            ("RCPT TO:<anna@example.org>", "250 2.1.5"),
        ])
        .await;
    }

    /// Sends a message to anna up to the reply to its end.
    pub(crate) async fn mail(&mut self, wire: impl AsRef<[u8]>) -> String {
        self.begin().await;
        self.dialogue(&[("DATA", "354 ")]).await;
        self.send(wire).await;
        self.reply().await
    }

    /// Whether the connection has ended.
    pub(crate) async fn is_closed(&mut self) -> bool {
        self.reply().await.is_empty()
    }

    pub(crate) fn into_stream(self) -> Box<dyn AsyncReadWrite> {
        self.stream
    }
}

/// A stream of any kind.
pub(crate) trait AsyncReadWrite: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> AsyncReadWrite for S {}

/// The header of a proxy's connection from `192.0.2.<host>`.
pub(crate) fn proxy_header(host: u8) -> Vec<u8> {
    proxy_header_of([192, 0, 2, host])
}

/// The header of a proxy's connection from any address of IPv4.
pub(crate) fn proxy_header_of(address: [u8; 4]) -> Vec<u8> {
    let start = *b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c";
    [&start[..], &address, &[203, 0, 113, 9, 0x1f, 0x90, 0x01, 0xbb]].concat()
}

/// Waits until something holds.
pub(crate) async fn until(what: &str, holds: impl Fn() -> bool) {
    let holding = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, holding).await.unwrap_or_else(|_| panic!("never: {what}"));
}
