//! Power cuts while users submit mail and peers send mail that is forwarded: nothing that was acknowledged is missing in the
//! queue, its bytes are stored, and what a peer repeats is queued once.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

use std::{collections::BTreeMap, net::SocketAddr, path::Path, sync::Arc};

use restante_blobs::FilesConfig;
use restante_core::{ManualClock, Timestamp, nonzero};
use restante_directory::{
    Actor, Directory, DirectoryConfig, DirectoryMetrics, EmailAddress, NewPassword, Operation, Role,
};
use restante_mail::{
    Mail, MailConfig, MailMetrics,
    queue::{LIST_MAX, ListFilter, Queue, QueuedRecipient},
    sending::{SendingLimits, SendingMetrics},
};
use restante_operate::Door;
use restante_power_cut::{Child, child, cuts, record};
use restante_records::Schema;
use restante_smtp::{
    ForwardSender, Forwards, LmtpConfig, MailDelivery, Parts, QueueOutbox, SmtpConfig, SmtpDoor, SmtpMetrics,
    SubmissionConfig, SubmissionParts,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    task::JoinHandle,
};

const TEST: &str = "sm13_what_was_acknowledged_is_in_the_queue_after_power_cuts";
const CLIENTS: u32 = 4;
const MAILS_OF_CLIENT: u32 = 10;
const NOW: i64 = 1_800_000_000;

/// Leaves the senders of forwards unchanged.
struct Same;

impl ForwardSender for Same {
    fn rewrite(&self, sender: &str, _: &EmailAddress) -> String {
        sender.to_owned()
    }

    fn original(&self, _: &str) -> Option<String> {
        None
    }
}

struct Server {
    door: SmtpDoor,
    directory: Directory,
    queue: Queue,
    records: restante_records::Opened,
    blobs: restante_blobs::Opened,
    follower: JoinHandle<()>,
}

impl Server {
    /// Small logs and packs, so that they are rotated many times.
    async fn open(folder: &Path) -> Self {
        let clock = Arc::new(ManualClock::new(Timestamp::from_seconds(NOW)));
        let mut kinds = restante_mail::kinds();
        kinds.extend(restante_directory::kinds());
        let url = restante_records::EngineUrl::Lmdb(folder.join("records"));
        let mut records = restante_records::Config::new(url, Schema::new(kinds).unwrap());
        records.lmdb.log_bytes = 32 << 10;
        records.clock = clock.clone();
        let records = restante_records::open(records).await.unwrap();
        let url = restante_blobs::EngineUrl::Files(folder.join("blobs"));
        let mut blobs = restante_blobs::Config::new(url);
        blobs.files = FilesConfig { packed_bytes_max: 1_000, pack_bytes: nonzero!(8_000) };
        blobs.clock = clock.clone();
        let blobs = restante_blobs::open(blobs).await.unwrap();
        let settings = DirectoryConfig { rounds: nonzero!(4_096), ..DirectoryConfig::default() };
        let (directory, follower) =
            Directory::open(&records, settings, clock.clone(), DirectoryMetrics::default()).await.unwrap();
        let follower = tokio::spawn(follower.run());
        let (config, metrics) = (MailConfig::default(), MailMetrics::default());
        let mail = Mail::new(records.records.clone(), blobs.blobs.clone(), clock.clone(), config, metrics);
        let queue = Queue::new(records.records.clone(), clock.clone());
        let outbox = Arc::new(QueueOutbox::new(blobs.blobs.clone(), queue.clone()));
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let smtp = SmtpConfig {
            listen: vec![any],
            hostname: "mail.example.org".to_owned(),
            greeting_delay_ms: 0,
            ..SmtpConfig::default()
        };
        let config = SubmissionConfig {
            listen: vec![any],
            allow_plaintext_loopback: true,
            ..SubmissionConfig::default()
        };
        let limits = SendingLimits::new(
            records.records.clone(),
            clock.clone(),
            config.rates(),
            SendingMetrics::default(),
        );
        let parts = Parts {
            recipients: Arc::new(directory.clone()),
            delivery: Arc::new(MailDelivery::new(mail, &smtp)),
            journal: None,
            certificates: None,
            clock,
            submission: Some(SubmissionParts {
                config,
                directory: directory.clone(),
                outbox: outbox.clone(),
                limits,
            }),
            forwards: Some(Forwards { outbox, sender: Arc::new(Same) }),
            checks: None,
            quarantine: None,
            metrics: SmtpMetrics::default(),
            net: Default::default(),
        };
        let door = SmtpDoor::start(parts, smtp, LmtpConfig::default()).await.unwrap();
        Self { door, directory, queue, records, blobs, follower }
    }

    /// anna, and an alias that leads outside.
    async fn fill(&self) {
        let operate = async |operation| {
            self.directory.operate(&Actor("a test".to_owned()), operation).await.unwrap();
        };
        let domain = "example.org".parse().unwrap();
        operate(Operation::AddDomain { domain, separator: None, catch_all: None }).await;
        let (address, password) =
            ("anna@example.org".parse().unwrap(), NewPassword::Given("secret".to_owned()));
        let password = Some(password);
        operate(Operation::AddAccount { address, password, role: Role::User, quota_bytes: None }).await;
        let targets = vec!["away@example.net".parse().unwrap()];
        operate(Operation::AddAlias { address: "away@example.org".parse().unwrap(), targets }).await;
    }

    async fn close(self) {
        self.door.close().await;
        self.follower.abort(); // it keeps the records open
        let _ = self.follower.await;
        self.records.upkeep.close().await.unwrap();
        self.blobs.upkeep.close().await.unwrap();
    }

    /// A client: a user for even numbers, another server for odd ones.
    async fn client(&self, is_user: bool) -> Client {
        let address = match is_user {
            true => self.door.submission_addresses()[0],
            false => self.door.smtp_addresses()[0],
        };
        let mut client = Client(BufReader::new(TcpStream::connect(address).await.unwrap()));
        client.expect("220").await;
        client.say("EHLO client.example.net", "250").await;
        if is_user {
            let message = base64_simd::STANDARD.encode_to_string("\0anna@example.org\0secret");
            client.say(&format!("AUTH PLAIN {message}"), "235").await;
        }
        client
    }

    /// The recipients in the queue of each mail, by its number.
    async fn queued(&self) -> BTreeMap<u32, Vec<QueuedRecipient>> {
        let (mut queued, mut after): (BTreeMap<u32, Vec<QueuedRecipient>>, _) = (BTreeMap::new(), None);
        loop {
            let page = self.queue.list(&ListFilter::default(), after.as_ref(), LIST_MAX).await.unwrap();
            for recipient in page.recipients {
                queued.entry(self.mail_of(&recipient).await).or_default().push(recipient);
            }
            after = page.next;
            if after.is_none() {
                return queued;
            }
        }
    }

    /// The mail of a queued recipient, by the bytes of its blob.
    async fn mail_of(&self, queued: &QueuedRecipient) -> u32 {
        let blob = queued.message.blob;
        let mut source = self.blobs.blobs.read(blob, 0..u64::MAX).await.expect("the blob is there");
        let mut raw = Vec::new();
        while let Some(chunk) = source.next().await.unwrap() {
            raw.extend_from_slice(&chunk);
        }
        let raw = String::from_utf8(raw).unwrap();
        let number = raw.split_once("\r\nSubject: ").unwrap().1.split_once('\r').unwrap().0.parse().unwrap();
        assert!(raw.ends_with(&text(number)), "mail {number} is another one: {raw}");
        number
    }
}

fn text(mail: u32) -> String {
    let words = "words of a mail\r\n".repeat(if mail % 8 == 5 { 100 } else { 1 + mail as usize % 30 });
    format!("From: anna@example.org\r\nDate: d\r\nMessage-ID: <{mail}@x>\r\nSubject: {mail}\r\n\r\n{words}")
}

fn is_of_user(mail: u32) -> bool {
    mail.is_multiple_of(2)
}

struct Client(BufReader<TcpStream>);

impl Client {
    async fn expect(&mut self, code: &str) {
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).await.unwrap();
            assert!(line.starts_with(code), "expected {code}: {line:?}");
            if line.as_bytes()[3] == b' ' {
                return;
            }
        }
    }

    async fn say(&mut self, line: &str, code: &str) {
        self.0.write_all(format!("{line}\r\n").as_bytes()).await.unwrap();
        self.expect(code).await;
    }

    async fn send(&mut self, mail: u32) {
        if is_of_user(mail) {
            self.say("MAIL FROM:<anna@example.org>", "250").await;
            for recipient in ["x@example.net", "y@example.com"] {
                self.say(&format!("RCPT TO:<{recipient}>"), "250").await;
            }
        } else {
            self.say("MAIL FROM:<s@example.com>", "250").await;
            self.say("RCPT TO:<away@example.org>", "250").await;
        }
        self.say("DATA", "354").await;
        self.0.write_all(format!("{}.\r\n", text(mail)).as_bytes()).await.unwrap();
        self.expect("250").await;
    }
}

/// Users and other servers send at the same time; the latter send everything twice.
async fn run(child: Arc<Child>) {
    let server = Arc::new(Server::open(child.folder()).await);
    server.fill().await;
    child.acknowledge("filled").unwrap();
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..CLIENTS {
        let (server, child) = (server.clone(), child.clone());
        clients.spawn(async move {
            let mut connection = server.client(is_of_user(client)).await;
            for mail in (0..MAILS_OF_CLIENT).map(|n| n * CLIENTS + client) {
                child.acknowledge(&format!("sending {mail}")).unwrap();
                connection.send(mail).await;
                child.acknowledge(&format!("sent {mail}")).unwrap();
                if !is_of_user(mail) {
                    connection.send(mail).await;
                }
            }
        });
    }
    clients.join_all().await;
    Arc::into_inner(server).expect("all clients have ended").close().await;
}

/// What a cut can interrupt.
const STAGES: [&str; 4] = ["acknowledging", "forwarding", "preparing", "submission"];

/// Which work a cut has interrupted, by the event before it. Other work runs at the same time.
fn stage(acknowledged: &[&str]) -> &'static str {
    let Some((what, mail)) = acknowledged.last().and_then(|event| event.split_once(' ')) else {
        return "preparing";
    };
    match what {
        "sending" if is_of_user(mail.parse().unwrap()) => "submission",
        "sending" => "forwarding",
        _ => "acknowledging",
    }
}

async fn verify(folder: &Path, acknowledged: &[&str]) {
    let server = Server::open(folder).await;
    let numbers = |what: &str| -> Vec<u32> {
        let lines = acknowledged.iter().filter_map(|line| line.strip_prefix(what));
        lines.map(|number| number.parse().unwrap()).collect()
    };
    let (sending, sent) = (numbers("sending "), numbers("sent "));
    let queued = server.queued().await;
    for (mail, recipients) in &queued {
        assert!(sending.contains(mail), "mail {mail} of nobody");
        assert_eq!(recipients.len(), if is_of_user(*mail) { 2 } else { 1 }, "mail {mail}");
    }
    for mail in &sent {
        assert!(queued.contains_key(mail), "mail {mail} was acknowledged");
    }
    if acknowledged.contains(&"filled") {
        // The peers repeat everything.
        let mut peer = server.client(false).await;
        for mail in sending.iter().filter(|mail| !is_of_user(**mail)) {
            peer.send(*mail).await;
        }
        let queued = server.queued().await;
        for mail in sending.iter().filter(|mail| !is_of_user(**mail)) {
            assert_eq!(queued.get(mail).map(Vec::len), Some(1), "mail {mail} is forwarded once");
        }
        drop(peer);
    }
    assert_eq!(server.blobs.upkeep.check(&|_, _| ()).await.unwrap().findings, []);
    server.close().await;
}

#[test]
fn sm13_what_was_acknowledged_is_in_the_queue_after_power_cuts() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    if let Some(child) = child().unwrap() {
        return runtime.block_on(run(Arc::new(child)));
    }
    let cuts = cuts(40);
    let stages = record(TEST).unwrap().replay_stages(cuts, 10, stage, |cut| {
        runtime.block_on(verify(cut.folder(), cut.acknowledged()));
    });
    let stages = stages.unwrap();
    println!("cuts by stage: {stages:?}");
    assert_eq!(stages.keys().copied().collect::<Vec<_>>(), STAGES);
    assert!(stages.values().all(|count| *count >= cuts / 20), "{stages:?}");
}
