//! Sync between nodes on loopback, with honest and malicious peers.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use async_trait::async_trait;
use bytes::Bytes;
use libp2p::identity::Keypair;
use prost::Message as _;
use restante_archive::{Appended, Config, Error, Message, Page, Query, open};
use restante_core::{ManualClock, nonzero};
use restante_waku_wire::{
    WakuMessage, message_hash,
    rpc::{
        frame,
        store::{self, KeyValue, StoreQueryRequest, StoreQueryResponse},
    },
};

use super::*;
use crate::{
    Services, Waku, WakuConfig, WakuMetrics,
    intake::HandoverConfig,
    node::{NodeConfig, NodeError},
    rates::Limiter,
    service::{Answer, Service},
    store::{StoreClientError, StoreService},
    sync::window::Window,
    validate::Rules,
};

const PUBSUB: &str = "/waku/2/rs/42/0";
const NOW: Timestamp = Timestamp::from_seconds(1_700_000_000);
/// How long a test waits for a condition before it fails.
const PATIENCE: Duration = Duration::from_secs(60);

fn node_config() -> NodeConfig {
    NodeConfig {
        listen: vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()],
        ..NodeConfig::new(Keypair::generate_secp256k1())
    }
}

async fn memory() -> Arc<dyn Archive> {
    open(Config::new("memory:".parse().unwrap())).await.unwrap().archive
}

/// A message with a timestamp `seconds_ago`.
fn message(seconds_ago: i64, payload: &str) -> Message {
    message_in(PUBSUB, seconds_ago, payload)
}

fn message_in(pubsub_topic: &str, seconds_ago: i64, payload: &str) -> Message {
    let timestamp = NOW.plus_seconds(-seconds_ago);
    let content_topic = "/toy/1/chat/proto";
    let wire = WakuMessage {
        payload: payload.to_owned().into(),
        content_topic: content_topic.to_owned(),
        timestamp: Some(timestamp.nanos()),
        ..WakuMessage::default()
    };
    Message {
        message_hash: message_hash(pubsub_topic, payload.as_bytes(), content_topic, b"", timestamp.nanos()),
        channel: pubsub_topic.into(),
        topic: content_topic.into(),
        timestamp,
        body: wire.to_wire(),
    }
}

/// `count` messages, one per second, the newest a minute ago.
fn history(count: i64) -> Vec<Message> {
    (0..count).map(|index| message(60 + index, &format!("message {index}"))).collect()
}

async fn stored(archive: &dyn Archive) -> BTreeMap<MessageHash, Vec<u8>> {
    let page = archive.query(&Query { limit: 10_000, ..Query::default() }).await.unwrap();
    assert_eq!(page.next, None);
    page.rows().map(|row| (row.message_hash, row.body.to_vec())).collect()
}

fn bodies(messages: &[Message]) -> BTreeMap<MessageHash, Vec<u8>> {
    messages.iter().map(|message| (message.message_hash, message.body.to_vec())).collect()
}

async fn until(what: &str, condition: impl AsyncFn() -> bool) {
    let waited = timeout(PATIENCE, async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("it did not happen: {what}"));
}

/// A node that answers store queries by a service.
struct Peer {
    node: Node,
    _intake: Intake,
}

impl Peer {
    async fn start(service: Arc<dyn Service>) -> Self {
        Self::start_with(node_config(), service).await
    }

    async fn start_with(config: NodeConfig, service: Arc<dyn Service>) -> Self {
        let metrics = WakuMetrics::default();
        let clock = Arc::new(ManualClock::new(NOW));
        let intake = Intake::new(
            memory().await,
            clock,
            Rules::default(),
            HandoverConfig::default(),
            metrics.intake.clone(),
        );
        let (node, unstarted) = Node::new(config, metrics.node.clone());
        intake.connect(Vec::new(), None);
        unstarted.start(vec![service], Limiter::default(), intake.clone()).await.unwrap();
        Self { node, _intake: intake }
    }

    async fn with_messages(messages: &[Message]) -> Self {
        let archive = memory().await;
        archive.append(messages.to_vec()).await.unwrap();
        Self::start(Arc::new(StoreService::new(archive))).await
    }

    fn address(&self) -> Multiaddr {
        self.node.addresses()[0].clone()
    }
}

/// A node that syncs.
struct Asker {
    sync: StoreSync,
    archive: Arc<dyn Archive>,
    clock: Arc<ManualClock>,
    metrics: SyncMetrics,
    node: Node,
}

impl Asker {
    async fn of(peer: &Peer) -> Self {
        Self::with(config_of(&[peer]), Rules::default(), memory().await).await
    }

    async fn with(config: SyncConfig, rules: Rules, archive: Arc<dyn Archive>) -> Self {
        let metrics = WakuMetrics::default();
        let clock = Arc::new(ManualClock::new(NOW));
        let intake = Intake::new(
            archive.clone(),
            clock.clone(),
            rules,
            HandoverConfig::default(),
            metrics.intake.clone(),
        );
        let (node, unstarted) = Node::new(node_config(), metrics.node.clone());
        intake.connect(Vec::new(), Some(node.clone()));
        unstarted.start(Vec::new(), Limiter::default(), intake.clone()).await.unwrap();
        let metrics = metrics.sync;
        let (our_node, archived, time) = (node.clone(), archive.clone(), clock.clone());
        let sync = StoreSync::new(config, our_node, intake, archived, time, metrics.clone());
        Self { sync, archive, clock, metrics, node }
    }

    async fn run(&self) -> SyncReport {
        self.sync.run_now().await
    }

    fn peer(&self) -> &Mutex<PeerState> {
        &self.sync.shared.peers[0].state
    }

    fn synced_until(&self) -> Option<Timestamp> {
        self.peer().lock().synced_until
    }
}

fn config_of(peers: &[&Peer]) -> SyncConfig {
    SyncConfig {
        peers: peers.iter().map(|peer| peer.address().try_into().unwrap()).collect(),
        ..SyncConfig::default()
    }
}

/// A store service with made-up answers, which records its requests.
struct FakeService<F> {
    answer: F,
    asked: Mutex<Vec<StoreQueryRequest>>,
}

impl<F: Fn(&StoreQueryRequest) -> StoreQueryResponse + Send + Sync + 'static> FakeService<F> {
    fn new(answer: F) -> Arc<Self> {
        Arc::new(Self { answer, asked: Mutex::default() })
    }
}

impl<F> FakeService<F> {
    fn asked(&self) -> Vec<StoreQueryRequest> {
        self.asked.lock().clone()
    }
}

#[async_trait]
impl<F: Fn(&StoreQueryRequest) -> StoreQueryResponse + Send + Sync + 'static> Service for FakeService<F> {
    fn id(&self) -> &'static str {
        store::ID
    }

    fn name(&self) -> &'static str {
        "store"
    }

    fn request_bytes_max(&self) -> usize {
        1 << 20
    }

    async fn answer(&self, _peer: PeerId, request: Bytes) -> Answer {
        let request = StoreQueryRequest::decode(request).unwrap();
        let response = (self.answer)(&request);
        self.asked.lock().push(request);
        Answer::new(200, frame(&response))
    }

    fn answer_too_often(&self, _request: Bytes) -> Answer {
        Answer::none(429)
    }
}

fn ok(request: &StoreQueryRequest, messages: Vec<KeyValue>, cursor: Option<Bytes>) -> StoreQueryResponse {
    StoreQueryResponse {
        request_id: request.request_id.clone(),
        status_code: Some(200),
        status_desc: Some("OK".into()),
        messages,
        pagination_cursor: cursor,
    }
}

fn hash_entry(hash: MessageHash) -> KeyValue {
    KeyValue { message_hash: Some(Bytes::copy_from_slice(hash.as_bytes())), ..KeyValue::default() }
}

fn message_entry(message: &Message) -> KeyValue {
    let (body, pubsub_topic) = (message.body.clone(), message.channel.to_string());
    KeyValue { message: Some(body), pubsub_topic: Some(pubsub_topic), ..hash_entry(message.message_hash) }
}

/// The n-th made-up hash.
fn fake_hash(number: u64) -> MessageHash {
    let mut hash = [0xaa; 32];
    hash[..8].copy_from_slice(&number.to_be_bytes());
    MessageHash(hash)
}

#[tokio::test]
async fn a_client_reads_the_pages_of_a_peer() {
    let all = history(250);
    let peer = Peer::with_messages(&all).await;
    let asker = Asker::of(&peer).await;
    let client = StoreClient::new(asker.node.clone());
    let mut request =
        StoreQueryRequest { include_data: true, pagination_limit: Some(100), ..StoreQueryRequest::default() };
    let unconnected = client.query(peer.node.peer_id(), &request).await;
    assert!(matches!(unconnected, Err(StoreClientError::Ask(_))), "{unconnected:?}");
    asker.node.connect(peer.address()).await.unwrap();
    let mut seen = BTreeMap::new();
    loop {
        let page = client.query(peer.node.peer_id(), &request).await.unwrap();
        for entry in page.messages {
            let hash = crate::store::hash_of(&entry.message_hash.unwrap()).unwrap();
            assert!(seen.insert(hash, entry.message.unwrap().to_vec()).is_none(), "a message came twice");
        }
        request.pagination_cursor = page.pagination_cursor;
        if request.pagination_cursor.is_none() {
            break;
        }
    }
    assert_eq!(seen, bodies(&all));
    request.pagination_cursor = Some(vec![1; 32].into());
    let unknown = client.query(peer.node.peer_id(), &request).await;
    assert!(matches!(unknown, Err(StoreClientError::Refused { status: 300, .. })), "{unknown:?}");
}

#[tokio::test]
async fn missed_messages_are_fetched() {
    let all = history(1_500);
    let peer = Peer::with_messages(&all).await;
    let asker = Asker::of(&peer).await;
    let half: Vec<Message> = all.iter().step_by(2).cloned().collect();
    asker.archive.append(half).await.unwrap();
    let report = asker.run().await;
    assert_eq!(report, SyncReport { hashes: 1_500, messages: 750, peers: 1, failed_peers: 0 });
    assert_eq!(stored(&*asker.archive).await, bodies(&all));
    let again = asker.run().await;
    assert_eq!(again, SyncReport { hashes: 1_500, messages: 0, peers: 1, failed_peers: 0 });
    assert_eq!(asker.metrics.last_success.get(), NOW.seconds());
    assert_eq!(asker.metrics.messages.get(), 750);
}

#[tokio::test]
async fn when_nothing_is_missing_no_message_is_requested() {
    let all = history(350);
    let archive = memory().await;
    archive.append(all.clone()).await.unwrap();
    let service = Arc::new(RecordingService::new(StoreService::new(archive)));
    let peer = Peer::start(service.clone()).await;
    let asker = Asker::of(&peer).await;
    asker.archive.append(all).await.unwrap();
    asker.run().await;
    service.asked.lock().clear();
    asker.run().await;
    let asked = service.asked.lock().clone();
    assert!(asked.iter().all(|request| !request.include_data), "only hashes are requested");
    assert_eq!(asked.len(), 7, "an hour in four slices, one of them with four pages");
}

/// A real service that records its requests, and optionally includes the end of a range as nwaku does.
struct RecordingService {
    inner: StoreService,
    asked: Mutex<Vec<StoreQueryRequest>>,
    includes_end: bool,
}

impl RecordingService {
    fn new(inner: StoreService) -> Self {
        Self { inner, asked: Mutex::default(), includes_end: false }
    }
}

#[async_trait]
impl Service for RecordingService {
    fn id(&self) -> &'static str {
        self.inner.id()
    }

    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn request_bytes_max(&self) -> usize {
        self.inner.request_bytes_max()
    }

    async fn answer(&self, peer: PeerId, request: Bytes) -> Answer {
        let mut request = StoreQueryRequest::decode(request).unwrap();
        self.asked.lock().push(request.clone());
        if self.includes_end {
            request.time_end = request.time_end.map(|end| end + 1);
        }
        self.inner.answer(peer, request.encode_to_vec().into()).await
    }

    fn answer_too_often(&self, request: Bytes) -> Answer {
        self.inner.answer_too_often(request)
    }
}

/// nwaku includes the end of a range: a message between two slices is returned twice.
#[tokio::test]
async fn peers_that_include_the_end_of_a_range_work() {
    let all = history(3_000);
    let archive = memory().await;
    archive.append(all.clone()).await.unwrap();
    let service =
        RecordingService { includes_end: true, ..RecordingService::new(StoreService::new(archive)) };
    let peer = Peer::start(Arc::new(service)).await;
    let asker = Asker::of(&peer).await;
    let report = asker.run().await;
    assert_eq!((report.messages, report.failed_peers), (3_000, 0));
    assert!(report.hashes > 3_000, "{report:?}");
    assert_eq!(stored(&*asker.archive).await, bodies(&all));
}

#[tokio::test]
async fn a_run_reads_only_its_window() {
    let (fresh, old, far) = (message(10, "fresh"), message(7_000, "old"), message(30_000, "far"));
    let peer = Peer::with_messages(&[fresh.clone(), old.clone(), far]).await;
    let asker = Asker::of(&peer).await;
    assert_eq!(asker.run().await.messages, 1);
    assert_eq!(stored(&*asker.archive).await, bodies(std::slice::from_ref(&old)));
    asker.clock.set(NOW.plus_seconds(11));
    assert_eq!(asker.run().await.messages, 1, "it is old enough now");
    assert_eq!(stored(&*asker.archive).await, bodies(&[fresh, old]));
}

#[tokio::test]
async fn a_message_that_reached_the_peer_late_is_found_by_a_later_run() {
    let archive = memory().await;
    let peer = Peer::start(Arc::new(StoreService::new(archive.clone()))).await;
    let asker = Asker::of(&peer).await;
    assert_eq!(asker.run().await.messages, 0);
    archive.append(vec![message(3_000, "late")]).await.unwrap();
    asker.clock.set(NOW.plus_seconds(300));
    assert_eq!(asker.run().await.messages, 1);
}

#[tokio::test]
async fn long_messages_are_split_over_several_answers() {
    let payload = "x".repeat(140_000);
    let all: Vec<Message> = (0..70).map(|index| message(60 + index, &format!("{index} {payload}"))).collect();
    let peer = Peer::with_messages(&all).await;
    let asker = Asker::of(&peer).await;
    let report = asker.run().await;
    assert_eq!((report.messages, report.failed_peers), (70, 0));
    assert_eq!(stored(&*asker.archive).await, bodies(&all));
    assert_eq!(asker.metrics.wrong.get(), 0, "messages that did not fit into an answer were requested again");
}

#[tokio::test]
async fn a_start_continues_where_the_last_one_ended() {
    let folder = tempfile::tempdir().unwrap();
    let service = FakeService::new(|request| ok(request, Vec::new(), None));
    let peer = Peer::start(service.clone()).await;
    let file = folder.path().join("waku.online");
    let config = SyncConfig { online_file: Some(file), range_seconds: nonzero!(600), ..config_of(&[&peer]) };
    let seconds_back = |request: &StoreQueryRequest, now: Timestamp| {
        (now.nanos() - request.time_start.unwrap()) / 1_000_000_000
    };

    let first = Asker::with(config.clone(), Rules::default(), memory().await).await;
    first.run().await;
    let asked = service.asked();
    assert_eq!(seconds_back(&asked[0], NOW), 6 * 3_600, "there is no progress");

    let later = NOW.plus_seconds(7_200);
    let second = Asker::with(config, Rules::default(), memory().await).await;
    second.clock.set(later);
    second.run().await;
    let request = &service.asked()[asked.len()];
    assert_eq!(seconds_back(request, later), 7_200 + 20 + 60, "two hours offline, the lag, and an overlap");
}

#[tokio::test]
async fn after_a_failure_a_run_continues_from_the_last_slice() {
    let answers = AtomicU64::new(0);
    let service = FakeService::new(move |request: &StoreQueryRequest| {
        if answers.fetch_add(1, Ordering::SeqCst) == 3 {
            StoreQueryResponse { status_code: Some(503), ..ok(request, Vec::new(), None) }
        } else {
            ok(request, Vec::new(), None)
        }
    });
    let peer = Peer::start(service.clone()).await;
    let asker = Asker::of(&peer).await;
    assert_eq!(asker.run().await.failed_peers, 1);
    let third = service.asked()[2].time_end.unwrap();
    assert_eq!(asker.synced_until(), Some(Timestamp(third)));
    assert_eq!(asker.run().await.peers, 1);
    assert_eq!(Timestamp(service.asked()[4].time_start.unwrap()), Timestamp(third).plus_seconds(-60));
}

/// The same slice was read for ever when it took longer than the limit of a run.
#[tokio::test]
async fn after_a_time_out_a_run_continues_within_the_slice() {
    let all = history(800);
    let archive = memory().await;
    archive.append(all.clone()).await.unwrap();
    let service = Arc::new(RecordingService::new(StoreService::new(archive)));
    let peer = Peer::start(service.clone()).await;
    let asker = Asker::of(&peer).await;
    let (shared, store_peer) = (&asker.sync.shared, &asker.sync.shared.peers[0]);

    let pages = || {
        let asked = service.asked.lock();
        asked.iter().filter(|request| !request.include_data).cloned().collect::<Vec<_>>()
    };
    let has_cursor = |request: &StoreQueryRequest| request.pagination_cursor.is_some();
    let mut run = Run::new(shared, store_peer);
    tokio::select! {
        biased;
        () = until("some pages of a slice are read", async || pages().iter().filter(|page| has_cursor(page)).count() > 3) => {}
        outcome = run.execute() => panic!("{outcome:?}"),
    }
    let (walked, position) = (pages().len(), run.position.clone());
    assert!(position.pages > 2);
    shared.conclude(store_peer, run, Err(SyncError::TimedOut));
    assert_eq!(asker.peer().lock().failures, 0, "a run that needs more time has not failed");

    assert_eq!(asker.run().await.peers, 1);
    let first = &pages()[walked];
    assert_eq!(first.pagination_cursor, position.cursor);
    assert_eq!(first.time_start, Some(position.rest.start.nanos()));
    assert_eq!(stored(&*asker.archive).await, bodies(&all));
    assert_eq!(asker.synced_until(), Some(NOW.plus_seconds(-20)));
    assert_eq!(asker.peer().lock().position.rest, Window::default(), "the next run has a new window");
}

/// After a wrong clock, nothing was fetched until that time had come.
#[tokio::test]
async fn progress_in_the_future_is_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let service = FakeService::new(|request| ok(request, Vec::new(), None));
    let peer = Peer::start(service.clone()).await;
    let file = folder.path().join("waku.online");
    let config = SyncConfig { online_file: Some(file.clone()), ..config_of(&[&peer]) };
    std::fs::write(&file, format!("{} {}\n", peer.node.peer_id(), NOW.plus_seconds(86_400).nanos())).unwrap();
    let asker = Asker::with(config, Rules::default(), memory().await).await;
    asker.run().await;
    assert_eq!(service.asked()[0].time_start, Some(NOW.plus_seconds(-6 * 3_600).nanos()));
    assert_eq!(asker.synced_until(), Some(NOW.plus_seconds(-20)));
    let saved = ProgressFile::new(file).load();
    assert_eq!(saved[&peer.node.peer_id()], NOW.plus_seconds(-20));
}

/// Messages that retention had removed were fetched again in each run.
#[tokio::test]
async fn messages_too_old_for_retention_are_not_fetched() {
    let all = history(1_500);
    let peer = Peer::with_messages(&all).await;
    let retention = "time:600".parse().unwrap();
    let config = SyncConfig { retention, ..config_of(&[&peer]) };
    let asker = Asker::with(config, Rules::default(), memory().await).await;
    let report = asker.run().await;
    assert_eq!((report.messages, report.peers), (541, 1), "those of 60 to 600 seconds ago");
}

/// Messages that retention had removed were fetched again in each run.
#[tokio::test]
async fn messages_removed_by_capacity_are_not_fetched_again() {
    let all = history(1_500);
    let service = memory().await;
    service.append(all.clone()).await.unwrap();
    let peer = Peer::start(Arc::new(StoreService::new(service.clone()))).await;
    let retention: Retention = "capacity:100".parse().unwrap();
    let opened = open(Config::new("memory:".parse().unwrap())).await.unwrap();
    opened.archive.append(all[..100].to_vec()).await.unwrap();
    let config = SyncConfig { retention, ..config_of(&[&peer]) };
    let asker = Asker::with(config, Rules::default(), opened.archive.clone()).await;

    assert_eq!(asker.run().await.messages, 1_400, "an archive with few messages may be a new one");
    opened.upkeep.prune(&retention, NOW).await.unwrap();
    let again = asker.run().await;
    assert_eq!((again.messages, again.peers), (0, 1), "capacity has removed them");

    // Later, new messages arrive, older ones are removed, and missed ones among the newest are found.
    asker.clock.set(NOW.plus_seconds(50));
    let new: Vec<Message> = (0..50).map(|index| message(59 - index, &format!("new {index}"))).collect();
    service.append(new.clone()).await.unwrap();
    opened.archive.append(new[10..].to_vec()).await.unwrap();
    opened.upkeep.prune(&retention, NOW).await.unwrap();
    let last = asker.run().await;
    assert_eq!((last.messages, last.peers), (10, 1), "{last:?}");
}

#[tokio::test]
async fn only_served_topics_are_queried_and_accepted() {
    let served = message(100, "served");
    let other = message_in("/waku/2/rs/42/1", 100, "other");
    let foreign = message_in("/waku/2/rs/7/0", 100, "foreign");
    let archive = memory().await;
    archive.append(vec![served.clone(), other, foreign]).await.unwrap();
    let service = Arc::new(RecordingService::new(StoreService::new(archive)));
    let peer = Peer::start(service.clone()).await;
    let one_shard = Rules { cluster_id: Some(42), shards: vec![0], ..Rules::default() };
    let asker = Asker::with(config_of(&[&peer]), one_shard, memory().await).await;
    let report = asker.run().await;
    assert_eq!((report.hashes, report.messages), (1, 1));
    assert_eq!(stored(&*asker.archive).await, bodies(&[served]));
    let asked = service.asked.lock().clone();
    let is_hashes = |request: &&StoreQueryRequest| request.message_hashes.is_empty();
    assert!(asked.iter().filter(is_hashes).all(|request| request.pubsub_topic.as_deref() == Some(PUBSUB)));
}

/// One message that is too long for this node must not prevent fetching the others.
#[tokio::test]
async fn a_declined_message_is_not_requested_again() {
    let mut all = history(40);
    let too_long = message(80, &"x".repeat(2_000_000));
    all.push(too_long.clone());
    let archive = memory().await;
    archive.append(all.clone()).await.unwrap();
    let service = Arc::new(RecordingService::new(StoreService::new(archive)));
    let peer = Peer::start(service.clone()).await;
    let rules = Rules { max_message_bytes: nonzero!(10_000), ..Rules::default() };
    let asker = Asker::with(config_of(&[&peer]), rules, memory().await).await;
    let first = asker.run().await;
    assert_eq!(first, SyncReport { hashes: 41, messages: 40, peers: 1, failed_peers: 0 });
    all.retain(|message| *message != too_long);
    assert_eq!(stored(&*asker.archive).await, bodies(&all));
    service.asked.lock().clear();
    let second = asker.run().await;
    assert_eq!(second, SyncReport { hashes: 41, messages: 0, peers: 1, failed_peers: 0 });
    assert!(service.asked.lock().iter().all(|request| !request.include_data));
    assert_eq!(asker.metrics.declined.get(), 1);
}

/// After one message that is too long all others were requested one by one.
#[tokio::test]
async fn a_long_message_slows_only_itself_down() {
    let mut all = history(300);
    all.push(message(80, &"x".repeat(2_000_000)));
    let archive = memory().await;
    archive.append(all).await.unwrap();
    let service = Arc::new(RecordingService::new(StoreService::new(archive)));
    let peer = Peer::start(service.clone()).await;
    let rules = Rules { max_message_bytes: nonzero!(10_000), ..Rules::default() };
    let asker = Asker::with(config_of(&[&peer]), rules, memory().await).await;
    assert_eq!(asker.run().await.messages, 300);
    let fetches = service.asked.lock().iter().filter(|request| request.include_data).count();
    assert!(fetches < 60, "{fetches}");
}

#[tokio::test]
async fn an_ephemeral_message_is_not_archived() {
    let mut ephemeral = message(100, "ephemeral");
    ephemeral.body = [&ephemeral.body[..], b"\xf8\x01\x01"].concat().into();
    let peer = Peer::with_messages(&[ephemeral]).await;
    let asker = Asker::of(&peer).await;
    for _ in 0..2 {
        assert_eq!(asker.run().await, SyncReport { hashes: 1, messages: 0, peers: 1, failed_peers: 0 });
    }
    assert!(stored(&*asker.archive).await.is_empty());
    assert_eq!(asker.metrics.declined.get(), 1);
}

/// Runs with a made-up peer, which fails, and returns the number of its requests. Nothing is archived.
async fn requests_until_failure(
    answer: impl Fn(&StoreQueryRequest) -> StoreQueryResponse + Send + Sync + 'static,
) -> usize {
    let service = FakeService::new(answer);
    let peer = Peer::start(service.clone()).await;
    let asker = Asker::of(&peer).await;
    let report = asker.run().await;
    assert_eq!((report.peers, report.failed_peers), (0, 1));
    assert_eq!(asker.synced_until(), None, "the same window is read again");
    assert!(stored(&*asker.archive).await.is_empty());
    service.asked().len()
}

#[tokio::test]
async fn pages_whose_cursors_form_a_loop_end_the_run() {
    let circle = FakeService::new(move |request: &StoreQueryRequest| {
        // Page after page the same messages, with three cursors that follow each other.
        let position = request.pagination_cursor.as_ref().map_or(0, |cursor| cursor[0]);
        let cursor = Bytes::from(vec![(position + 1) % 3; 32]);
        ok(request, vec![hash_entry(fake_hash(1))], Some(cursor))
    });
    let peer = Peer::start(circle.clone()).await;
    let asker = Asker::of(&peer).await;
    asker.peer().lock().declined.insert(fake_hash(1));
    asker.peer().lock().position = Position {
        pages: run::SLICE_PAGES_MAX - 10,
        ..Position::start_of(Window { start: NOW.plus_seconds(-3_600), end: NOW }, 0)
    };
    assert_eq!(asker.run().await.failed_peers, 1);
    assert_eq!(circle.asked().len(), 10, "the previous run had read the other pages");
    assert_eq!(asker.peer().lock().position, Position::default(), "the next run starts over");
    assert_eq!(asker.synced_until(), None);
}

#[tokio::test]
async fn pages_without_messages_end_the_run() {
    let number = AtomicU64::new(0);
    let empty = move |request: &StoreQueryRequest| {
        let cursor = fake_hash(number.fetch_add(1, Ordering::SeqCst));
        ok(request, Vec::new(), Some(Bytes::copy_from_slice(cursor.as_bytes())))
    };
    assert_eq!(requests_until_failure(empty).await, 1);
}

#[tokio::test]
async fn hashes_without_messages_end_the_run() {
    let number = AtomicU64::new(0);
    let endless = move |request: &StoreQueryRequest| {
        if request.include_data {
            return ok(request, Vec::new(), None);
        }
        let hashes: Vec<_> = (0..100).map(|_| fake_hash(number.fetch_add(1, Ordering::SeqCst))).collect();
        let cursor = Bytes::copy_from_slice(hashes[99].as_bytes());
        ok(request, hashes.into_iter().map(hash_entry).collect(), Some(cursor))
    };
    let requests = requests_until_failure(endless).await;
    assert!(requests <= 24, "{requests}: eleven pages and as many fetches");
}

/// They were requested in each run, and no run got past the first thousand of them.
#[tokio::test]
async fn hashes_without_messages_do_not_block_others() {
    const EMPTY: u64 = 2 * DECLINED_MAX as u64 + 500; // more than are stored
    let start = NOW.plus_seconds(-6 * 3_600).nanos();
    let real = message(100, "real");
    let service = FakeService::new({
        let real = real.clone();
        move |request: &StoreQueryRequest| {
            let real_hash = Bytes::copy_from_slice(real.message_hash.as_bytes());
            if request.include_data {
                let is_asked = request.message_hashes.contains(&real_hash);
                return ok(request, is_asked.then(|| message_entry(&real)).into_iter().collect(), None);
            }
            if request.time_start != Some(start) {
                let is_last = request.time_end == Some(NOW.plus_seconds(-20).nanos());
                return ok(
                    request,
                    is_last.then(|| hash_entry(real.message_hash)).into_iter().collect(),
                    None,
                );
            }
            let cursor = request.pagination_cursor.as_ref();
            let first = cursor.map_or(0, |cursor| u64::from_be_bytes(cursor[..8].try_into().unwrap()) + 1);
            let last = first + 99;
            let next = (last + 1 < EMPTY).then(|| Bytes::copy_from_slice(fake_hash(last).as_bytes()));
            ok(request, (first..=last).map(|number| hash_entry(fake_hash(number))).collect(), next)
        }
    });
    let peer = Peer::start(service.clone()).await;
    let asker = Asker::of(&peer).await;
    let mut failures = 0;
    while asker.run().await.failed_peers == 1 {
        failures += 1;
        assert!(failures <= EMPTY / 1_000, "no run is completed");
    }
    assert_eq!(stored(&*asker.archive).await, bodies(&[real]));
    assert!(asker.peer().lock().declined.len() <= DECLINED_MAX);
    assert_eq!(asker.metrics.wrong.get(), EMPTY, "each was requested once");
}

/// Messages that a server left out of its answer were not requested again.
#[tokio::test]
async fn messages_left_out_of_an_answer_are_requested_again() {
    let all = history(90);
    let messages = bodies(&all);
    let by_hash: BTreeMap<MessageHash, Message> =
        all.iter().map(|message| (message.message_hash, message.clone())).collect();
    let service = FakeService::new(move |request: &StoreQueryRequest| {
        if request.include_data {
            let some = request.message_hashes.iter().take(20).filter_map(crate::store::hash_of);
            return ok(request, some.map(|hash| message_entry(&by_hash[&hash])).collect(), None);
        }
        let is_last = request.time_end == Some(NOW.plus_seconds(-20).nanos());
        ok(request, by_hash.keys().filter(|_| is_last).copied().map(hash_entry).collect(), None)
    });
    let peer = Peer::start(service).await;
    let asker = Asker::of(&peer).await;
    let report = asker.run().await;
    assert_eq!((report.messages, report.peers), (90, 1));
    assert_eq!(stored(&*asker.archive).await, messages);
    assert_eq!(asker.metrics.wrong.get(), 0);
}

#[tokio::test]
async fn other_messages_than_the_announced_ones_are_refused() {
    let number = AtomicU64::new(0);
    let liar = move |request: &StoreQueryRequest| {
        let lie = |hash: &Bytes| KeyValue {
            message_hash: Some(hash.clone()),
            ..message_entry(&message(100, "not the requested one"))
        };
        if request.include_data {
            return ok(request, request.message_hashes.iter().map(lie).collect(), None);
        }
        let hashes: Vec<_> = (0..100).map(|_| fake_hash(number.fetch_add(1, Ordering::SeqCst))).collect();
        let cursor = Bytes::copy_from_slice(hashes[99].as_bytes());
        ok(request, hashes.into_iter().map(hash_entry).collect(), Some(cursor))
    };
    let requests = requests_until_failure(liar).await;
    assert!(requests <= 24, "{requests}");
}

/// Runs with a peer that announces the hashes of `announced` and answers every request for messages with `gives`.
async fn run_with(announced: &[Message], gives: &[Message]) -> (SyncReport, BTreeMap<MessageHash, Vec<u8>>) {
    let (hashes, entries) = (announced.to_vec(), gives.to_vec());
    let service = FakeService::new(move |request: &StoreQueryRequest| {
        if request.include_data {
            return ok(request, entries.iter().map(message_entry).collect(), None);
        }
        ok(request, hashes.iter().map(|message| hash_entry(message.message_hash)).collect(), None)
    });
    let peer = Peer::start(service).await;
    let asker = Asker::of(&peer).await;
    let report = asker.run().await;
    (report, stored(&*asker.archive).await)
}

#[tokio::test]
async fn a_message_with_another_hash_than_announced_is_not_archived() {
    let (announced, other) = (message(100, "announced"), message(100, "other"));
    let forged = Message { message_hash: announced.message_hash, ..other };
    let (report, archived) = run_with(std::slice::from_ref(&announced), &[forged]).await;
    assert_eq!((report.peers, report.messages, archived.len()), (1, 0, 0));
}

#[tokio::test]
async fn messages_that_were_not_requested_are_refused() {
    let [one, other, unasked] = ["one", "other", "unasked"].map(|payload| message(100, payload));
    let announced = [one.clone(), other];
    let (report, archived) = run_with(&announced, &[unasked.clone(), one.clone()]).await;
    assert_eq!((report.messages, archived), (1, bodies(std::slice::from_ref(&one))));
    let (report, archived) = run_with(&announced, &[one.clone(), one.clone()]).await;
    assert_eq!((report.messages, archived), (1, bodies(std::slice::from_ref(&one))));
    // An answer with more messages than requested is refused.
    let (report, archived) = run_with(&announced, &[one.clone(), one, unasked]).await;
    assert_eq!((report.failed_peers, archived.len()), (1, 0));
}

#[tokio::test]
async fn requests_are_paused_after_status_429() {
    let requests = AtomicU64::new(0);
    let service = FakeService::new(move |request: &StoreQueryRequest| {
        let is_too_often = requests.fetch_add(1, Ordering::SeqCst) == 1;
        let status_code = Some(if is_too_often { 429 } else { 200 });
        StoreQueryResponse { status_code, ..ok(request, Vec::new(), None) }
    });
    let peer = Peer::start(service.clone()).await;
    let asker = Asker::of(&peer).await;
    assert_eq!(asker.run().await.peers, 1);
    let asked = service.asked();
    assert_eq!(asked[1].time_start, asked[2].time_start, "the request was repeated");
}

#[tokio::test]
async fn invalid_answers_end_the_run() {
    let status = |status: Option<u32>| {
        move |request: &StoreQueryRequest| StoreQueryResponse {
            status_code: status,
            ..ok(request, Vec::new(), None)
        }
    };
    assert_eq!(requests_until_failure(status(None)).await, 1);
    assert_eq!(requests_until_failure(status(Some(300))).await, 1);
    let other_id = |request: &StoreQueryRequest| StoreQueryResponse {
        request_id: "x".into(),
        ..ok(request, Vec::new(), None)
    };
    assert_eq!(requests_until_failure(other_id).await, 1);
    let too_many = |request: &StoreQueryRequest| {
        ok(request, (0..101).map(|number| hash_entry(fake_hash(number))).collect(), None)
    };
    assert_eq!(requests_until_failure(too_many).await, 1);
    let too_long = |request: &StoreQueryRequest| StoreQueryResponse {
        status_desc: Some("x".repeat(1 << 20)),
        ..ok(request, Vec::new(), None)
    };
    assert_eq!(requests_until_failure(too_long).await, 1);
}

/// An archive whose appends can be made to fail.
struct BreakableArchive {
    inner: Arc<dyn Archive>,
    is_broken: Arc<AtomicBool>,
}

#[async_trait]
impl Archive for BreakableArchive {
    async fn append(&self, messages: Vec<Message>) -> Result<Vec<Appended>, Error> {
        if self.is_broken.load(Ordering::SeqCst) {
            return Err(Error::unavailable("broken"));
        }
        self.inner.append(messages).await
    }

    async fn query(&self, query: &Query) -> Result<Page, Error> {
        self.inner.query(query).await
    }
}

#[tokio::test]
async fn messages_that_could_not_be_archived_are_fetched_again() {
    let all = history(10);
    let peer = Peer::with_messages(&all).await;
    let is_broken = Arc::new(AtomicBool::new(true));
    let archive = Arc::new(BreakableArchive { inner: memory().await, is_broken: is_broken.clone() });
    let asker = Asker::with(config_of(&[&peer]), Rules::default(), archive).await;
    assert_eq!(asker.run().await.failed_peers, 1);
    is_broken.store(false, Ordering::SeqCst);
    assert_eq!(asker.run().await.messages, 10);
    assert_eq!(stored(&*asker.archive).await, bodies(&all));
}

#[tokio::test]
async fn an_unreachable_peer_is_tried_again_and_does_not_block_others() {
    let all = history(10);
    let config = node_config();
    let away =
        Peer::start_with(config.clone(), FakeService::new(|request| ok(request, Vec::new(), None))).await;
    let address = away.address();
    away.node.close().await;
    let other = Peer::with_messages(&all[..4]).await;
    let sync = SyncConfig {
        peers: [address.clone(), other.address()].map(|address| address.try_into().unwrap()).into(),
        ..SyncConfig::default()
    };
    let asker = Asker::with(sync, Rules::default(), memory().await).await;
    assert_eq!(asker.run().await, SyncReport { hashes: 4, messages: 4, peers: 1, failed_peers: 1 });
    assert_eq!(asker.sync.shared.peers[0].state.lock().failures, 1);

    let archive = memory().await;
    archive.append(all.clone()).await.unwrap();
    let listen = address.iter().filter(|part| !matches!(part, libp2p::multiaddr::Protocol::P2p(_))).collect();
    let config = NodeConfig { listen: vec![listen], ..config };
    let _back = Peer::start_with(config, Arc::new(StoreService::new(archive))).await;
    assert_eq!(asker.run().await, SyncReport { hashes: 14, messages: 6, peers: 2, failed_peers: 0 });
    assert_eq!(stored(&*asker.archive).await, bodies(&all));
    assert_eq!(asker.sync.shared.peers[0].state.lock().failures, 0);
}

#[tokio::test]
async fn a_failing_peer_is_tried_with_growing_delays() {
    let peer = Peer::with_messages(&[]).await;
    let asker = Asker::of(&peer).await;
    let shared = &asker.sync.shared;
    let pause = |result, failures| {
        shared.peers[0].state.lock().failures = failures;
        shared.pause_after(result, &shared.peers[0]).as_secs()
    };
    assert_eq!(pause(RunResult::Complete, 0), 300);
    assert_eq!(pause(RunResult::Unfinished, 1), 5);
    assert_eq!(
        [1, 2, 3, 7, 8, u32::MAX].map(|failures| pause(RunResult::Away, failures)),
        [5, 10, 20, 300, 300, 300]
    );
}

#[tokio::test]
async fn several_addresses_of_a_peer_are_one_peer() {
    let peer = Peer::with_messages(&history(3)).await;
    let nowhere = "/ip4/127.0.0.1/tcp/1".parse::<Multiaddr>().unwrap().with_p2p(peer.node.peer_id()).unwrap();
    let config = SyncConfig {
        peers: [nowhere, peer.address()].map(|address| address.try_into().unwrap()).into(),
        ..SyncConfig::default()
    };
    let asker = Asker::with(config, Rules::default(), memory().await).await;
    assert_eq!(asker.run().await, SyncReport { hashes: 3, messages: 3, peers: 1, failed_peers: 0 });
}

/// The whole door: it starts to sync by itself, and saves its progress.
#[tokio::test]
async fn the_door_syncs_at_start() {
    let all = history(120);
    let peer = Peer::with_messages(&all).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("waku.online");
    let sync = SyncConfig { online_file: Some(file.clone()), ..config_of(&[&peer]) };
    let services = Services { store: true, ..Services::default() };
    let config = WakuConfig { node: Some(node_config()), services, sync, ..WakuConfig::default() };
    let archive = memory().await;
    let clock = Arc::new(ManualClock::new(NOW));
    let waku = Waku::start(
        config,
        archive.clone(),
        clock,
        crate::live::standalone().await.unwrap(),
        Vec::new(),
        &WakuMetrics::default(),
    )
    .await
    .unwrap();
    until("all are archived", async || stored(&*archive).await == bodies(&all)).await;
    until("the progress is saved", async || file.exists()).await;
    assert_eq!(waku.sync_now().await, SyncReport { hashes: 120, messages: 0, peers: 1, failed_peers: 0 });
    waku.close().await;
}

#[tokio::test]
async fn sync_without_a_node_is_refused() {
    let peer = Peer::with_messages(&[]).await;
    let config = WakuConfig { sync: config_of(&[&peer]), ..WakuConfig::default() };
    let started = Waku::start(
        config,
        memory().await,
        Arc::new(ManualClock::new(NOW)),
        crate::live::standalone().await.unwrap(),
        Vec::new(),
        &WakuMetrics::default(),
    )
    .await;
    assert!(matches!(started, Err(NodeError::Config(_))));
}
