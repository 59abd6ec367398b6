//! Power cuts while other servers send mail that checks put into quarantine, and operators release and drop it: what was
//! acknowledged is not lost, what is released is delivered and forwarded once, and what was dropped does not reappear.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::Arc,
};

use async_trait::async_trait;
use bytes::Bytes;
use restante_blobs::FilesConfig;
use restante_checks::{ClientFacts, Envelope, Judgement, Peer, Refused, SenderChecks, Verdict};
use restante_core::{BlobId, Error, ManualClock, Timestamp, nonzero};
use restante_directory::{self as directory, EmailAddress, Resolution, State};
use restante_mail::{
    Mail, MailConfig, MailMetrics, email, quarantine,
    queue::{self, Queue},
};
use restante_operate::Door;
use restante_power_cut::{Child, child, cuts, record};
use restante_records::{AccountId, Get, Query, RecordId, Schema};
use restante_smtp::{
    ForwardSender, Forwards, LmtpConfig, LocalDelivery, MailDelivery, MailQuarantine, Parts, QueueOutbox,
    Recipients, SmtpConfig, SmtpDoor, SmtpMetrics,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};

const TEST: &str = "chk20_quarantined_mail_survives_power_cuts_and_is_released_once";
const PEERS: u32 = 4;
const MAILS_OF_PEER: u32 = 10;
const ANNA: AccountId = AccountId(100);
const OPERATOR: &str = "an operator";
/// The most messages of an account.
const ALL: usize = 1_000;

/// `anna@example.org`, and `team@example.org`, which is anna and an address elsewhere.
struct Users;

#[async_trait]
impl Recipients for Users {
    async fn resolve(&self, address: &EmailAddress) -> Result<Resolution, Error> {
        let anna = directory::Target::Account {
            account: ANNA,
            address: "anna@example.org".parse().unwrap(),
            state: State::Active,
            quota_bytes: None,
            detail: None,
        };
        Ok(match address.local() {
            "anna" => Resolution::Targets(vec![anna]),
            "team" => {
                let away = directory::Target::Foreign("away@example.net".parse().unwrap());
                Resolution::Targets(vec![anna, away])
            }
            _ => Resolution::Unknown,
        })
    }
}

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

/// All mail goes into quarantine.
struct Suspicious;

#[async_trait]
impl SenderChecks for Suspicious {
    fn is_exempt(&self, _: IpAddr) -> bool {
        false
    }

    async fn client(&self, _: IpAddr) -> ClientFacts {
        ClientFacts::UNKNOWN
    }

    async fn sender(&self, _: &Peer, _: &ClientFacts, _: &str) -> Result<(), Refused> {
        Ok(())
    }

    async fn recipient(&self, _: &Peer, _: &ClientFacts, _: &str, _: &str) -> Result<(), Refused> {
        Ok(())
    }

    async fn message(&self, _: Envelope<'_>, _: Bytes) -> Judgement {
        let verdict = Verdict::Quarantine("it is suspicious".into());
        Judgement { verdict, fields: String::new(), authentication: None, filter: None }
    }

    fn claims_to_be_ours(&self, _: &[u8]) -> bool {
        false
    }
}

struct Server {
    door: SmtpDoor,
    quarantine: MailQuarantine,
    mail: Mail,
    queue: Queue,
    records: restante_records::Opened,
    blobs: restante_blobs::Opened,
}

impl Server {
    /// Small logs and packs, so that they are rotated many times.
    async fn open(folder: &Path) -> Self {
        let clock = Arc::new(ManualClock::new(Timestamp::from_seconds(1_800_000_000)));
        let url = restante_records::EngineUrl::Lmdb(folder.join("records"));
        let mut records = restante_records::Config::new(url, Schema::new(restante_mail::kinds()).unwrap());
        records.lmdb.log_bytes = 32 << 10;
        records.clock = clock.clone();
        let records = restante_records::open(records).await.unwrap();
        let url = restante_blobs::EngineUrl::Files(folder.join("blobs"));
        let mut blobs = restante_blobs::Config::new(url);
        blobs.files = FilesConfig { packed_bytes_max: 1_000, pack_bytes: nonzero!(8_000) };
        blobs.clock = clock.clone();
        let blobs = restante_blobs::open(blobs).await.unwrap();
        let (config, metrics) = (MailConfig::default(), MailMetrics::default());
        let mail = Mail::new(records.records.clone(), blobs.blobs.clone(), clock.clone(), config, metrics);
        let queue = Queue::new(records.records.clone(), clock.clone());
        let outbox = Arc::new(QueueOutbox::new(blobs.blobs.clone(), queue.clone()));
        let forwards = Forwards { outbox, sender: Arc::new(Same) };
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let smtp = SmtpConfig {
            listen: vec![any],
            hostname: "mail.example.org".to_owned(),
            greeting_delay_ms: 0,
            ..SmtpConfig::default()
        };
        let delivery = Arc::new(MailDelivery::new(mail.clone(), &smtp));
        let local = LocalDelivery {
            recipients: Arc::new(Users),
            delivery: delivery.clone(),
            forwards: Some(forwards.clone()),
            clock: clock.clone(),
            quota_is_permanent: true,
            hostname: smtp.hostname.clone(),
            journal: None,
        };
        let kept = quarantine::Quarantine::new(
            records.records.clone(),
            blobs.blobs.clone(),
            clock.clone(),
            quarantine::QuarantineConfig::default(),
            quarantine::QuarantineMetrics::default(),
        );
        let quarantine = MailQuarantine { kept, local };
        let parts = Parts {
            recipients: Arc::new(Users),
            delivery,
            journal: None,
            certificates: None,
            clock,
            submission: None,
            forwards: Some(forwards),
            checks: Some(Arc::new(Suspicious)),
            quarantine: Some(Arc::new(quarantine.clone())),
            metrics: SmtpMetrics::default(),
            net: Default::default(),
        };
        let door = SmtpDoor::start(parts, smtp, LmtpConfig::default()).await.unwrap();
        Self { door, quarantine, mail, queue, records, blobs }
    }

    async fn close(self) {
        self.door.close().await;
        self.records.upkeep.close().await.unwrap();
        self.blobs.upkeep.close().await.unwrap();
    }

    async fn peer(&self) -> Client {
        let address = self.door.smtp_addresses()[0];
        let mut client = Client(BufReader::new(TcpStream::connect(address).await.unwrap()));
        client.expect("220").await;
        client.say("EHLO mx.example.net", "250").await;
        client
    }

    /// The mail of a blob, whose bytes must be stored.
    async fn mail_of(&self, blob: BlobId) -> u32 {
        let raw = self.quarantine.kept.read(blob).await.expect("the blob is there");
        let raw = String::from_utf8(raw.to_vec()).unwrap();
        let number = raw.split_once("\r\nSubject: ").unwrap().1.split_once('\r').unwrap().0.parse().unwrap();
        assert!(raw.ends_with(&text(number)), "mail {number} is another one: {raw}");
        number
    }

    /// The records of each mail in quarantine.
    async fn quarantined(&self) -> BTreeMap<u32, Vec<RecordId>> {
        let (mut found, mut after): (BTreeMap<u32, Vec<RecordId>>, Option<String>) = (BTreeMap::new(), None);
        let filter = quarantine::ListFilter::default();
        loop {
            let page = self.quarantine.kept.list(&filter, after.as_deref(), ALL).await.unwrap();
            for item in page.items {
                found.entry(self.mail_of(item.blob).await).or_default().push(item.id);
            }
            after = page.next;
            if after.is_none() {
                return found;
            }
        }
    }

    /// The record of a mail in quarantine.
    async fn record_of(&self, mail: u32) -> RecordId {
        self.quarantined().await[&mail][0]
    }

    /// How often each mail is among Anna's emails. Counters are right.
    async fn delivered(&self) -> BTreeMap<u32, u32> {
        let mut counts = BTreeMap::new();
        let query = Query::new(email::KIND, email::BY_THREAD).limit(ALL);
        let ids = self.mail.records().query(ANNA, &query).await.unwrap().ids;
        if !ids.is_empty() {
            let records = self.mail.records().get(ANNA, &Get::whole(email::KIND, ids)).await.unwrap();
            for record in records.into_iter().flatten() {
                *counts.entry(self.mail_of(record.body.blobs[0]).await).or_default() += 1;
            }
        }
        assert_eq!(self.mail.check(ANNA).await.unwrap(), []);
        counts
    }

    /// How often each mail is in the queue.
    async fn forwarded(&self) -> BTreeMap<u32, u32> {
        let mut counts = BTreeMap::new();
        let page = self.queue.list(&queue::ListFilter::default(), None, queue::LIST_MAX).await.unwrap();
        assert!(page.next.is_none());
        for recipient in page.recipients {
            *counts.entry(self.mail_of(recipient.message.blob).await).or_default() += 1;
        }
        counts
    }

    /// Releases a mail as two operators do at the same time.
    async fn release(&self, id: RecordId) {
        let (one, other) =
            tokio::join!(self.quarantine.release(id, OPERATOR), self.quarantine.release(id, OPERATOR));
        for released in one.unwrap().into_iter().chain(other.unwrap()).flatten() {
            assert_eq!(released.problem, None, "record {}", id.0);
        }
    }
}

fn text(mail: u32) -> String {
    let words = "words of a mail\r\n".repeat(if mail % 8 == 5 { 100 } else { 1 + mail as usize % 30 });
    format!("From: s@example.net\r\nMessage-ID: <{mail}@example.net>\r\nSubject: {mail}\r\n\r\n{words}")
}

/// Whether a mail is also for the alias that leads outside.
fn is_for_team(mail: u32) -> bool {
    mail % 4 == 1
}

fn is_released(mail: u32) -> bool {
    mail % 3 == 1
}

fn is_dropped(mail: u32) -> bool {
    mail % 3 == 2
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
        self.say("MAIL FROM:<s@example.net>", "250").await;
        let recipient = if is_for_team(mail) { "team" } else { "anna" };
        self.say(&format!("RCPT TO:<{recipient}@example.org>"), "250").await;
        self.say("DATA", "354").await;
        self.0.write_all(format!("{}.\r\n", text(mail)).as_bytes()).await.unwrap();
        self.expect("250").await;
    }
}

/// Peers send at the same time, some mail twice, and operators release and drop some of it.
async fn run(child: Arc<Child>) {
    let server = Arc::new(Server::open(child.folder()).await);
    let mut peers = tokio::task::JoinSet::new();
    for peer in 0..PEERS {
        let (server, child) = (server.clone(), child.clone());
        peers.spawn(async move {
            let mut connection = server.peer().await;
            for mail in (0..MAILS_OF_PEER).map(|n| n * PEERS + peer) {
                child.acknowledge(&format!("sending {mail}")).unwrap();
                for _ in 0..=mail % 2 {
                    connection.send(mail).await;
                    child.acknowledge(&format!("sent {mail}")).unwrap();
                }
                if is_released(mail) {
                    let id = server.record_of(mail).await;
                    child.acknowledge(&format!("releasing {mail}")).unwrap();
                    server.release(id).await;
                    child.acknowledge(&format!("released {mail}")).unwrap();
                } else if is_dropped(mail) {
                    let id = server.record_of(mail).await;
                    child.acknowledge(&format!("dropping {mail}")).unwrap();
                    assert_eq!(server.quarantine.drop_messages(&[id], OPERATOR).await.unwrap(), 1);
                    child.acknowledge(&format!("dropped {mail}")).unwrap();
                }
            }
        });
    }
    peers.join_all().await;
    Arc::into_inner(server).expect("all peers have ended").close().await;
}

/// What the peers and the operators know before a power cut: the mails of each event.
struct Known<'a>(BTreeMap<&'a str, BTreeSet<u32>>);

impl<'a> Known<'a> {
    fn of(acknowledged: &[&'a str]) -> Self {
        let mut known: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
        for line in acknowledged {
            let (what, mail) = line.split_once(' ').unwrap();
            known.entry(what).or_default().insert(mail.parse().unwrap());
        }
        Self(known)
    }

    fn has(&self, what: &str, mail: u32) -> bool {
        self.0.get(what).is_some_and(|mails| mails.contains(&mail))
    }

    fn sending(&self) -> Vec<u32> {
        self.0.get("sending").into_iter().flatten().copied().collect()
    }
}

async fn verify(folder: &Path, known: &Known<'_>) {
    let server = Server::open(folder).await;
    let (kept, delivered, forwarded) =
        (server.quarantined().await, server.delivered().await, server.forwarded().await);
    for mail in kept.keys().chain(delivered.keys()).chain(forwarded.keys()) {
        assert!(known.has("sending", *mail), "mail {mail} of nobody");
    }
    for mail in known.sending() {
        let in_quarantine = kept.get(&mail).map_or(0, Vec::len);
        let count = |counts: &BTreeMap<u32, u32>| counts.get(&mail).copied().unwrap_or_default();
        let (emails, copies) = (count(&delivered), count(&forwarded));
        assert!(in_quarantine <= 1 && emails <= 1 && copies <= 1, "mail {mail} is there twice");
        let has_left = known.has("released", mail) || known.has("dropped", mail);
        let may_have_left = known.has("releasing", mail) || known.has("dropping", mail);
        if known.has("sent", mail) && !may_have_left {
            assert_eq!(in_quarantine, 1, "mail {mail} was acknowledged");
        }
        assert!(!has_left || in_quarantine == 0, "mail {mail} is back in quarantine");
        if !known.has("releasing", mail) {
            assert_eq!((emails, copies), (0, 0), "mail {mail} was not released");
        } else if in_quarantine == 0 {
            assert_eq!((emails, copies), (1, u32::from(is_for_team(mail))), "mail {mail} was released");
        }
    }
    // Operators release what is left, also what peers send again after it was released.
    let mut peer = server.peer().await;
    let mut expected = BTreeSet::new();
    for mail in known.sending().into_iter().filter(|mail| !is_dropped(*mail)) {
        peer.send(mail).await;
        expected.insert(mail);
    }
    let kept = server.quarantined().await;
    for mail in &expected {
        server.release(kept[mail][0]).await;
    }
    let dropped = kept.iter().filter(|(mail, _)| !expected.contains(mail));
    let ids: Vec<RecordId> = dropped.flat_map(|(_, ids)| ids).copied().collect();
    assert_eq!(server.quarantine.drop_messages(&ids, OPERATOR).await.unwrap(), ids.len() as u64);
    assert!(server.quarantined().await.is_empty());
    let (delivered, forwarded) = (server.delivered().await, server.forwarded().await);
    assert_eq!(delivered, expected.iter().map(|mail| (*mail, 1)).collect());
    let of_team = expected.iter().filter(|mail| is_for_team(**mail));
    assert_eq!(forwarded, of_team.map(|mail| (*mail, 1)).collect());
    assert_eq!(server.blobs.upkeep.check(&|_, _| ()).await.unwrap().findings, []);
    drop(peer);
    server.close().await;
}

#[test]
fn chk20_quarantined_mail_survives_power_cuts_and_is_released_once() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    if let Some(child) = child().unwrap() {
        return runtime.block_on(run(Arc::new(child)));
    }
    let log = record(TEST).unwrap();
    log.replay(cuts(40), 10, |cut| {
        runtime.block_on(verify(cut.folder(), &Known::of(cut.acknowledged())));
    })
    .unwrap();
}
