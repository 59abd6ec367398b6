//! Power cuts while mail is queued, sent, placed and reported, with other servers that keep what they took: nothing that was accepted is lost, only a
//! mail whose outcome was not noted is sent twice, and accounts of this server have everything once.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use restante_blobs::{Blobs, FilesConfig};
use restante_core::{Clock, Error, ManualClock, Timestamp, nonzero};
use restante_delivery::{
    Attempted, BlobPreparing, Connection, DeliveryConfig, Local, NoticeAbout, Notices, Outgoing, Recipient,
    Remote, ReportNotices, Sender, SenderMetrics, SenderParts, Submissions,
};
use restante_mail::{
    Delivery, Mail, MailConfig, MailMetrics, StoredMessage, email,
    queue::{NewMessage, NewRecipient, Notify, Queue, Reply, Source, SourceKind, Transmission},
};
use restante_power_cut::{Child, child, cuts, record};
use restante_records::{AccountId, ChangesSince, Get, RecordId, Revision, Schema};
use ring::digest::{SHA256, digest};
use tokio::{sync::oneshot, task::JoinHandle, time::sleep};

const TEST: &str = "qu1_what_was_queued_is_sent_placed_and_reported_after_power_cuts";
const NOW: i64 = 1_800_000_000;
const MAILS: u8 = 24;
/// The account that sends, and gets the reports.
const ANNA: AccountId = AccountId(2_000);
const BERT: AccountId = AccountId(2_001);

/// What happens, in the order in which it happened, and between the writes of the disk.
struct Events {
    child: Option<Arc<Child>>,
    list: Mutex<Vec<String>>,
}

impl Events {
    fn note(&self, event: String) {
        let mut list = self.list.lock();
        if let Some(child) = &self.child {
            child.acknowledge(&event).unwrap();
        }
        list.push(event);
    }
}

struct Server {
    records: restante_records::Opened,
    blobs: restante_blobs::Opened,
    mail: Mail,
    queue: Queue,
    events: Arc<Events>,
}

/// The number of a mail or of the mail that a report is about.
fn number_of(bytes: &[u8]) -> u8 {
    let text = String::from_utf8_lossy(bytes);
    text.split_once("\nSubject: mail").unwrap().1.split_once('\r').unwrap().0.parse().unwrap()
}

fn text(number: u8) -> String {
    let words = "words of a mail\r\n".repeat(1 + usize::from(number) % 30);
    format!("From: anna@here.example\r\nSubject: mail{number}\r\n\r\n{words}")
}

impl Server {
    /// Small logs and packs, so that they are switched many times.
    async fn open(folder: &Path, now: i64, child: Option<Arc<Child>>) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(Timestamp::from_seconds(now)));
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
        let queue = Queue::new(records.records.clone(), clock);
        let events = Arc::new(Events { child, list: Mutex::default() });
        Self { records, blobs, mail, queue, events }
    }

    /// Queues a mail to another server that takes it, to one that refuses it, and to an account.
    async fn queue(&self, number: u8) {
        self.events.note(format!("queueing {number}"));
        let bytes = Bytes::from(text(number));
        let size = bytes.len() as u64;
        let blob = self.blobs.blobs.put(&mut bytes.clone()).await.unwrap().id;
        let recipient = |address: &str| NewRecipient {
            address: address.to_owned(),
            notify: Notify::default(),
            original: None,
        };
        let source =
            Source { kind: SourceKind::Smtp, account: Some(ANNA), record: RecordId(0), key: [number; 32] };
        let message = NewMessage {
            source,
            blob,
            size,
            sender: "anna@here.example".to_owned(),
            envelope_id: None,
            returned: None,
            transmission: Transmission::default(),
            due: NOW as u64,
            recipients: ["a@takes.example", "b@refuses.example", "bert@here.example"].map(recipient).into(),
        };
        self.queue.add(message).await.unwrap();
        self.events.note(format!("queued {number}"));
    }

    fn send(&self) -> Sending {
        let double = Arc::new(Outside {
            mail: self.mail.clone(),
            blobs: self.blobs.blobs.clone(),
            events: self.events.clone(),
        });
        let parts = SenderParts {
            queue: self.queue.clone(),
            blobs: self.blobs.blobs.clone(),
            remote: double.clone(),
            local: double.clone(),
            submissions: double.clone(),
            preparing: Arc::new(BlobPreparing::new(self.blobs.blobs.clone())),
            notices: double,
            work: None,
            outcomes: None,
            metrics: SenderMetrics::default(),
        };
        // One after the other, so that the last event says what was interrupted.
        let config = DeliveryConfig {
            connections_max: nonzero!(1),
            slow_connections_max: nonzero!(1),
            connections_per_domain_max: nonzero!(1),
            local_at_once_max: nonzero!(1),
            recipients_per_transaction_max: nonzero!(1),
            ..DeliveryConfig::default()
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let sender = Sender::new(parts, config);
        Sending { stop, task: tokio::spawn(sender.run(async { drop(stopped.await) })) }
    }

    async fn until_sent(&self) {
        while self.queue.totals().await.unwrap().waiting > 0 {
            sleep(Duration::from_millis(2)).await;
        }
        assert_eq!(self.queue.totals().await.unwrap().held, 0);
    }

    /// The emails of an account: the numbers of mails, and of mails that reports are about.
    async fn emails(&self, account: AccountId) -> (Vec<u8>, Vec<u8>) {
        let records = &self.records.records;
        let since = ChangesSince { kind: Some(email::KIND), since: Revision(0), limit: 4_096 };
        let changes = records.changes(account, &since).await.unwrap();
        let ids: Vec<RecordId> = changes.created.iter().map(|change| change.id).collect();
        let (mut mails, mut reports) = (Vec::new(), Vec::new());
        for record in records.get(account, &Get::whole(email::KIND, ids)).await.unwrap().into_iter().flatten()
        {
            let mut source = self.blobs.blobs.read(record.body.blobs[0], 0..u64::MAX).await.unwrap();
            let mut bytes = Vec::new();
            while let Some(chunk) = source.next().await.unwrap() {
                bytes.extend_from_slice(&chunk);
            }
            let is_report = bytes.windows(16).any(|part| part == b"multipart/report");
            if is_report { &mut reports } else { &mut mails }.push(number_of(&bytes));
        }
        (mails, reports)
    }

    async fn close(self) {
        self.records.upkeep.close().await.unwrap();
        self.blobs.upkeep.close().await.unwrap();
    }
}

struct Sending {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Sending {
    async fn stop(self) {
        let _ = self.stop.send(());
        self.task.await.unwrap();
    }
}

/// Other servers and accounts.
struct Outside {
    mail: Mail,
    blobs: Arc<dyn Blobs>,
    events: Arc<Events>,
}

struct Sink {
    domain: String,
    events: Arc<Events>,
}

#[async_trait]
impl Remote for Outside {
    async fn connect(&self, domain: &str) -> Result<Box<dyn Connection>, Reply> {
        self.events.note(format!("connected {domain}"));
        Ok(Box::new(Sink { domain: domain.to_owned(), events: self.events.clone() }))
    }
}

#[async_trait]
impl Connection for Sink {
    async fn send(&mut self, message: &Outgoing, recipients: &[Recipient]) -> Vec<Attempted> {
        let number = number_of(&message.bytes);
        self.events.note(format!("sending {number}"));
        // No matter what happens to the reply, the message has arrived.
        let is_taken = self.domain == "takes.example";
        self.events.note(format!("{} {number}", if is_taken { "taken" } else { "refused" }));
        let reply = match is_taken {
            true => Reply::own(250, "2.0.0", "taken"),
            false => Reply::own(550, "5.1.1", "nobody here"),
        };
        vec![Attempted { reply, is_reported_further: false, is_forwarded: false }; recipients.len()]
    }

    /// Each message has a connection of its own, so that each attempt begins with an event.
    fn is_open(&self) -> bool {
        false
    }

    async fn close(self: Box<Self>) {}
}

#[async_trait]
impl Local for Outside {
    async fn is_local(&self, domain: &str) -> Result<bool, Error> {
        Ok(domain == "here.example")
    }

    async fn deliver(&self, message: &Outgoing, recipient: &Recipient) -> Attempted {
        let (number, is_report) = (number_of(&message.bytes), message.source == SourceKind::Report);
        let what = if is_report { "report" } else { "mail" };
        self.events.note(format!("placing {what} {number}"));
        let put = self.blobs.put(&mut message.bytes.clone()).await.unwrap();
        let name = [&message.key[..], recipient.address.as_bytes()].concat();
        let mut key = [0; 32];
        key.copy_from_slice(digest(&SHA256, &name).as_ref());
        let delivery = Delivery {
            message: StoredMessage::new(&restante_mail::message::read(&message.bytes), put.id),
            key,
            to_junk: false,
            received: NOW,
            quota: None,
        };
        let account = if recipient.address.starts_with("anna") { ANNA } else { BERT };
        self.mail.deliver(account, delivery).await.unwrap();
        self.events.note(format!("placed {what} {number}"));
        Attempted {
            reply: Reply::own(250, "2.1.5", "delivered"),
            is_reported_further: false,
            is_forwarded: false,
        }
    }
}

#[async_trait]
impl Submissions for Outside {
    async fn release(&self, _: AccountId, _: RecordId) -> Result<bool, Error> {
        Ok(true)
    }

    async fn report(&self, _: AccountId, _: RecordId, _: &str, _: &Reply, _: bool) -> Result<(), Error> {
        Ok(())
    }
}

impl Notices for Outside {
    fn compose(&self, about: &NoticeAbout) -> (Vec<u8>, Transmission) {
        self.events.note(format!("reporting {}", number_of(&about.original)));
        ReportNotices::new("here.example").compose(about)
    }
}

/// Half of the mails are queued before the sender starts, the others while it works.
async fn run(child: Arc<Child>) {
    let server = Server::open(child.folder(), NOW, Some(child.clone())).await;
    for number in 0..MAILS / 2 {
        server.queue(number).await;
    }
    let sending = server.send();
    for number in MAILS / 2..MAILS {
        server.queue(number).await;
    }
    server.until_sent().await;
    sending.stop().await;
    server.close().await;
}

/// What a cut can interrupt.
const STAGES: [&str; 7] =
    ["bouncing", "claiming", "noting what was sent", "placing", "placing a report", "queueing", "sending"];

/// Which work a cut has interrupted, by the event before it.
fn stage(acknowledged: &[&str]) -> &'static str {
    let event = acknowledged.last().copied().unwrap_or("queueing");
    match event.split(' ').next().unwrap() {
        "queueing" | "queued" => "queueing",
        "connected" => "claiming",
        "sending" => "sending",
        "taken" => "noting what was sent",
        "refused" | "reporting" => "bouncing",
        _ if event.contains("report") => "placing a report",
        _ => "placing",
    }
}

/// The numbers of the events of one kind.
fn numbers<T: AsRef<str>>(events: &[T], kind: &str) -> Vec<u8> {
    let of_kind = events.iter().filter_map(|event| event.as_ref().strip_prefix(kind));
    of_kind.map(|number| number.trim().parse().unwrap()).collect()
}

async fn verify(folder: &Path, acknowledged: &[&str]) {
    // Later than every lease.
    let server = Server::open(folder, NOW + 3_600, None).await;
    let sending = server.send();
    server.until_sent().await;
    sending.stop().await;
    let queued = numbers(acknowledged, "queued ");
    // A mail that was queued at the time of the cut may be there or not.
    let begun: BTreeSet<u8> = numbers(acknowledged, "queueing ").into_iter().collect();
    let events = std::mem::take(&mut *server.events.list.lock());
    let (before, after) = (numbers(acknowledged, "taken "), numbers(&events, "taken "));
    let mut taken: BTreeMap<u8, usize> = BTreeMap::new();
    for number in before.iter().chain(&after) {
        *taken.entry(*number).or_default() += 1;
    }
    // The sender notes what became of a mail before it sends the next one to the same domain.
    let unnoted = before.last();
    for (number, times) in &taken {
        assert!(
            *times == 1 || (*times == 2 && Some(number) == unnoted),
            "mail {number} was sent {times} times"
        );
    }
    let ((mails, strangers), (none, reports)) = (server.emails(BERT).await, server.emails(ANNA).await);
    assert_eq!((strangers, none), (Vec::new(), Vec::new()));
    for (what, found) in [("mail", &mails), ("report", &reports)] {
        let different: BTreeSet<u8> = found.iter().copied().collect();
        assert_eq!(different.len(), found.len(), "each {what} is there once: {found:?}");
        assert!(different.is_subset(&begun), "{what} of nobody: {found:?}");
    }
    for number in &queued {
        assert!(taken.contains_key(number), "mail {number} is lost");
        assert!(mails.contains(number), "mail {number} was not placed");
        assert!(reports.contains(number), "nobody got a report that mail {number} was refused");
    }
    assert_eq!(server.blobs.upkeep.check(&|_, _| ()).await.unwrap().findings, []);
    server.close().await;
}

#[test]
fn qu1_what_was_queued_is_sent_placed_and_reported_after_power_cuts() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    if let Some(child) = child().unwrap() {
        return runtime.block_on(run(Arc::new(child)));
    }
    let cuts = cuts(40);
    let stages = record(TEST).unwrap().replay_stages(cuts, 16, stage, |cut| {
        runtime.block_on(verify(cut.folder(), cut.acknowledged()));
    });
    let stages = stages.unwrap();
    println!("cuts by stage: {stages:?}");
    assert_eq!(stages.keys().copied().collect::<Vec<_>>(), STAGES);
    assert!(stages.values().all(|count| *count >= cuts / 20), "{stages:?}");
}
