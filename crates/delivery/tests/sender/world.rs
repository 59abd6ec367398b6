//! A world for the sender: other servers, accounts and submissions that do what a test says, in paused time.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use restante_blobs::{Blobs, Put, Source as BlobSource};
use restante_core::{BlobId, Clock, Error, Timestamp};
use restante_delivery::{
    Attempted, Connection, DeliveryConfig, Local, NotedOutcome, NoticeAbout, Notices, OutcomeLog, Outgoing,
    PrepareError, Preparing, Recipient, RecipientOutcome, Remote, Sender, SenderHealth, SenderMetrics,
    SenderParts, Submissions, SubmittedMessage,
};
use restante_mail::queue::{
    NewMessage, NewRecipient, Notify, Queue, QueuedId, QueuedMessage, Reply, Source, SourceKind, Transmission,
};
use restante_queue::Work;
use restante_records::{AccountId, Config, EngineUrl, Opened, RecordId, Schema, open};
use tokio::{
    sync::oneshot,
    task::JoinHandle,
    time::{Instant, sleep},
};

pub(crate) const START: u64 = 1_700_000_000;
pub(crate) const ANNA: AccountId = AccountId(2_000);

/// Seconds since 1970 that pass as the time of tokio does.
struct TokioClock(Instant);

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_seconds((START + self.0.elapsed().as_secs()) as i64)
    }
}

/// What the servers of a domain do.
#[derive(Clone, Debug)]
pub(crate) struct Behavior {
    pub(crate) connecting: Duration,
    pub(crate) sending: Duration,
    /// What stands for all recipients, instead of a connection.
    pub(crate) down: Option<Reply>,
    /// To each recipient.
    pub(crate) reply: Reply,
    pub(crate) is_reported_further: bool,
    /// After how many messages the connection is closed by the other side.
    pub(crate) messages_max: usize,
}

impl Default for Behavior {
    fn default() -> Self {
        Self {
            connecting: Duration::from_millis(10),
            sending: Duration::from_millis(10),
            down: None,
            reply: ok(),
            is_reported_further: false,
            messages_max: usize::MAX,
        }
    }
}

/// Something that reached another server, or an account.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) key: u8,
    pub(crate) domain: String,
    pub(crate) connection: usize,
    pub(crate) recipients: Vec<String>,
    /// Seconds since the beginning.
    pub(crate) at: u64,
}

#[derive(Default)]
pub(crate) struct Log {
    pub(crate) behaviors: Mutex<BTreeMap<String, Behavior>>,
    pub(crate) connects: Mutex<Vec<(String, u64)>>,
    pub(crate) sent: Mutex<Vec<Sent>>,
    pub(crate) local: Mutex<Vec<Sent>>,
    pub(crate) notices: Mutex<Vec<NoticeAbout>>,
    /// What operators read: the recipient, and what became of it.
    pub(crate) noted: Mutex<Vec<String>>,
    pub(crate) canceled: Mutex<BTreeSet<u64>>,
    pub(crate) released: Mutex<Vec<u64>>,
    pub(crate) reports: Mutex<Vec<(u64, String, u16, bool)>>,
    /// Keys whose preparing fails, and those where it panics.
    pub(crate) broken: Mutex<BTreeSet<u8>>,
    /// Whether messages can't be read now, and when one was to be prepared, in seconds since the beginning.
    pub(crate) is_unreadable: AtomicBool,
    pub(crate) prepared: Mutex<Vec<u64>>,
    /// How often noting a delivery status fails from now on.
    pub(crate) report_failures: AtomicUsize,
    pub(crate) panicking: Mutex<BTreeSet<u8>>,
    open_now: Mutex<BTreeMap<String, usize>>,
    /// The most connections of each domain that were open at once.
    pub(crate) open_max: Mutex<BTreeMap<String, usize>>,
    /// The connections that were made.
    pub(crate) connections: AtomicUsize,
    sending_now: AtomicUsize,
    /// The most messages that were sent at once.
    pub(crate) sending_max: AtomicUsize,
    open_at_once: AtomicUsize,
    /// The most connections that were open at once.
    pub(crate) open_at_once_max: AtomicUsize,
    pub(crate) is_blob_store_full: AtomicBool,
    /// Whether `here.example` is no longer of this server.
    pub(crate) has_moved_away: AtomicBool,
}

pub(crate) struct World {
    pub(crate) opened: Opened,
    pub(crate) queue: Queue,
    pub(crate) log: Arc<Log>,
    begun: Instant,
    config: DeliveryConfig,
    blobs: Arc<dyn Blobs>,
    pub(crate) clock: Arc<dyn Clock>,
}

/// A sender that runs.
pub(crate) struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
    pub(crate) health: SenderHealth,
}

impl Running {
    pub(crate) async fn stop(self) {
        let _ = self.stop.send(());
        self.task.await.unwrap();
    }
}

impl World {
    pub(crate) async fn new(config: DeliveryConfig) -> Self {
        let begun = Instant::now();
        let clock: Arc<dyn Clock> = Arc::new(TokioClock(begun));
        let mut records = Config::new(EngineUrl::Memory, Schema::new(restante_mail::kinds()).unwrap());
        records.clock = clock.clone();
        let opened = open(records).await.unwrap();
        let queue = Queue::new(opened.records.clone(), clock.clone());
        let blobs = restante_blobs::Config::new(restante_blobs::EngineUrl::Memory);
        let blobs = restante_blobs::open(blobs).await.unwrap().blobs;
        Self { opened, queue, log: Arc::default(), begun, config, blobs, clock }
    }

    /// Another handle on the queue, as another server has it.
    pub(crate) fn second(&self) -> Queue {
        Queue::new(self.opened.records.clone(), self.clock.clone())
    }

    pub(crate) fn run(&self) -> Running {
        self.run_on(self.queue.clone())
    }

    pub(crate) fn run_on(&self, queue: Queue) -> Running {
        self.run_with(queue, None)
    }

    /// A sender of a server that shares a queue with others.
    pub(crate) fn run_with(&self, queue: Queue, work: Option<Arc<dyn Work>>) -> Running {
        let double = || Arc::new(Double { log: self.log.clone(), begun: self.begun });
        let parts = SenderParts {
            queue,
            blobs: Arc::new(Flaky { blobs: self.blobs.clone(), log: self.log.clone() }),
            remote: double(),
            local: double(),
            submissions: double(),
            preparing: double(),
            notices: double(),
            work,
            outcomes: Some(double()),
            metrics: SenderMetrics::default(),
        };
        let sender = Sender::new(parts, self.config.clone());
        let health = sender.health();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(sender.run(async { drop(stopped.await) }));
        Running { stop, task, health }
    }

    pub(crate) fn behave(&self, domain: &str, behavior: Behavior) {
        self.log.behaviors.lock().insert(domain.to_owned(), behavior);
    }

    pub(crate) async fn add(&self, key: u8, recipients: &[&str]) -> Vec<QueuedId> {
        self.queue.add(message(key, recipients)).await.unwrap()
    }

    pub(crate) fn seconds(&self) -> u64 {
        self.begun.elapsed().as_secs()
    }

    pub(crate) fn sent(&self) -> Vec<Sent> {
        self.log.sent.lock().clone()
    }

    /// When each attempt was made for an address, in seconds since the beginning.
    pub(crate) fn attempts(&self, address: &str) -> Vec<u64> {
        let sent = self.sent();
        let of = sent.iter().filter(|sent| sent.recipients.iter().any(|recipient| recipient == address));
        of.map(|sent| sent.at).collect()
    }

    pub(crate) async fn queued(&self) -> u64 {
        let totals = self.queue.totals().await.unwrap();
        totals.waiting + totals.held
    }

    pub(crate) fn notices(&self) -> Vec<NoticeAbout> {
        self.log.notices.lock().clone()
    }
}

pub(crate) fn ok() -> Reply {
    Reply { code: 250, enhanced: "2.0.0".to_owned(), text: "taken".to_owned(), from: Some("mx".to_owned()) }
}

pub(crate) fn reply(code: u16, enhanced: &str) -> Reply {
    Reply { code, enhanced: enhanced.to_owned(), text: "no".to_owned(), from: Some("mx".to_owned()) }
}

pub(crate) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) fn message(key: u8, recipients: &[&str]) -> NewMessage {
    let recipients = recipients.iter().map(|address| NewRecipient {
        address: (*address).to_owned(),
        notify: Notify::default(),
        original: None,
    });
    NewMessage {
        source: Source { kind: SourceKind::Smtp, account: Some(ANNA), record: RecordId(0), key: [key; 32] },
        blob: BlobId([key; 32]),
        size: 100,
        sender: "anna@here.example".to_owned(),
        envelope_id: None,
        returned: None,
        transmission: Transmission::default(),
        due: START,
        recipients: recipients.collect(),
    }
}

/// All that the sender works with.
struct Double {
    log: Arc<Log>,
    begun: Instant,
}

struct DoubleConnection {
    log: Arc<Log>,
    begun: Instant,
    domain: String,
    number: usize,
    behavior: Behavior,
    messages: usize,
}

impl Drop for DoubleConnection {
    fn drop(&mut self) {
        *self.log.open_now.lock().get_mut(&self.domain).unwrap() -= 1;
        self.log.open_at_once.fetch_sub(1, SeqCst);
    }
}

#[async_trait]
impl Remote for Double {
    async fn connect(&self, domain: &str) -> Result<Box<dyn Connection>, Reply> {
        self.log.connects.lock().push((domain.to_owned(), self.begun.elapsed().as_secs()));
        let behavior = self.log.behaviors.lock().get(domain).cloned().unwrap_or_default();
        sleep(behavior.connecting).await;
        if let Some(reply) = behavior.down {
            return Err(reply);
        }
        {
            let mut open = self.log.open_now.lock();
            let now = open.entry(domain.to_owned()).or_default();
            *now += 1;
            let mut most = self.log.open_max.lock();
            let most = most.entry(domain.to_owned()).or_default();
            *most = (*most).max(*now);
        }
        let number = self.log.connections.fetch_add(1, SeqCst);
        let open = self.log.open_at_once.fetch_add(1, SeqCst) + 1;
        self.log.open_at_once_max.fetch_max(open, SeqCst);
        let (log, begun, domain) = (self.log.clone(), self.begun, domain.to_owned());
        Ok(Box::new(DoubleConnection { log, begun, domain, number, behavior, messages: 0 }))
    }
}

#[async_trait]
impl Connection for DoubleConnection {
    async fn send(&mut self, message: &Outgoing, recipients: &[Recipient]) -> Vec<Attempted> {
        let at = self.begun.elapsed().as_secs();
        let sending = self.log.sending_now.fetch_add(1, SeqCst) + 1;
        self.log.sending_max.fetch_max(sending, SeqCst);
        sleep(self.behavior.sending).await;
        self.log.sending_now.fetch_sub(1, SeqCst);
        self.messages += 1;
        let addresses = recipients.iter().map(|recipient| recipient.address.clone()).collect();
        let sent = Sent {
            key: message.key[0],
            domain: self.domain.clone(),
            connection: self.number,
            recipients: addresses,
            at,
        };
        self.log.sent.lock().push(sent);
        let is_reported_further = self.behavior.is_reported_further;
        let reply = self.behavior.reply.clone();
        let attempted = Attempted { reply, is_reported_further, is_forwarded: false };
        vec![attempted; recipients.len()]
    }

    fn is_open(&self) -> bool {
        self.messages < self.behavior.messages_max
    }

    async fn close(self: Box<Self>) {}
}

#[async_trait]
impl Local for Double {
    async fn is_local(&self, domain: &str) -> Result<bool, Error> {
        Ok(domain == "here.example" && !self.log.has_moved_away.load(SeqCst))
    }

    async fn deliver(&self, message: &Outgoing, recipient: &Recipient) -> Attempted {
        self.log.local.lock().push(Sent {
            key: message.key[0],
            domain: "here.example".to_owned(),
            connection: 0,
            recipients: vec![recipient.address.clone()],
            at: self.begun.elapsed().as_secs(),
        });
        let is_forwarded = recipient.address.starts_with("alias@");
        Attempted { reply: ok(), is_reported_further: false, is_forwarded }
    }
}

#[async_trait]
impl Submissions for Double {
    async fn release(&self, _account: AccountId, submission: RecordId) -> Result<bool, Error> {
        self.log.released.lock().push(submission.0);
        Ok(!self.log.canceled.lock().contains(&submission.0))
    }

    async fn report(
        &self,
        _account: AccountId,
        submission: RecordId,
        recipient: &str,
        reply: &Reply,
        is_local: bool,
    ) -> Result<(), Error> {
        let fail = |left: usize| left.checked_sub(1);
        if self.log.report_failures.fetch_update(SeqCst, SeqCst, fail).is_ok() {
            return Err(Error::unavailable("no commits now"));
        }
        self.log.reports.lock().push((submission.0, recipient.to_owned(), reply.code, is_local));
        Ok(())
    }
}

#[async_trait]
impl Preparing for Double {
    async fn prepare(&self, message: &QueuedMessage) -> Result<Outgoing, PrepareError> {
        let key = message.source.key[0];
        self.log.prepared.lock().push(self.begun.elapsed().as_secs());
        if self.log.is_unreadable.load(SeqCst) {
            return Err(PrepareError::Later(Error::unavailable("the blobs are away")));
        }
        if self.log.broken.lock().contains(&key) {
            return Err(PrepareError::Broken(Error::not_found("its blob is gone")));
        }
        assert!(!self.log.panicking.lock().contains(&key), "a test that panics");
        Ok(Outgoing {
            bytes: Bytes::from_static(b"Message-ID: <1@here.example>\r\nSubject: x\r\n\r\n"),
            sender: message.sender.clone(),
            envelope_id: None,
            returned: None,
            transmission: message.transmission,
            source: message.source.kind,
            account: message.source.account,
            record: message.source.record,
            key: message.source.key,
        })
    }

    async fn message_id(&self, message: &QueuedMessage) -> Option<String> {
        Some(format!("unprepared{}@here.example", message.source.key[0]))
    }
}

impl OutcomeLog for Double {
    fn submitted(&self, _submitted: SubmittedMessage<'_>) {} // by a follower, not by a sender

    fn note(&self, noted: NotedOutcome<'_>) {
        let (id, place) = (noted.message_id.unwrap_or("-"), if noted.is_local { "here" } else { "away" });
        let outcome = match noted.outcome {
            RecipientOutcome::Delivered(reply) => format!("delivered {}", reply.code),
            RecipientOutcome::Postponed(reply) => format!("postponed {} {}", reply.code, reply.text),
            RecipientOutcome::Failed(reply) => format!("failed {}", reply.code),
            RecipientOutcome::Reported { kind, .. } => format!("reported {kind:?}"),
            RecipientOutcome::Dropped { by } => format!("dropped by {by}"),
        };
        self.log.noted.lock().push(format!("{id} {} {place}: {outcome}", noted.recipient));
    }
}

impl Notices for Double {
    fn compose(&self, about: &NoticeAbout) -> (Vec<u8>, Transmission) {
        self.log.notices.lock().push(about.clone());
        (format!("{about:?}").into_bytes(), Transmission::default())
    }
}

/// Blobs that can be full.
struct Flaky {
    blobs: Arc<dyn Blobs>,
    log: Arc<Log>,
}

#[async_trait]
impl Blobs for Flaky {
    async fn put(&self, source: &mut dyn BlobSource) -> Result<Put, Error> {
        if self.log.is_blob_store_full.load(SeqCst) {
            return Err(Error::full("no room"));
        }
        self.blobs.put(source).await
    }

    async fn read(&self, id: BlobId, range: Range<u64>) -> Result<Box<dyn BlobSource>, Error> {
        self.blobs.read(id, range).await
    }

    async fn size(&self, id: BlobId) -> Result<Option<u64>, Error> {
        self.blobs.size(id).await
    }

    async fn touch(&self, ids: &[BlobId]) -> Result<Vec<bool>, Error> {
        self.blobs.touch(ids).await
    }
}
