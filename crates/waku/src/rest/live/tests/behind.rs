//! Streams that begin while announced messages are not archived yet, or while their clients do not read.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use restante_archive::{Error, Health, Message, Pruned, Report, Retention, Stats, Upkeep};
use restante_core::ErrorKind;
use restante_sessions::{Answer, Live, NodeId, NodeState, Nodes, Owner, hub::Event};

use super::*;
use crate::{
    WakuConfig,
    rest::tests::{Failing, archived, door_over, door_with, memory, start_door, start_door_with, until},
};

/// The upkeep of an archive that has messages in its spool.
struct Spooling {
    inner: Arc<dyn Upkeep>,
    messages: Arc<AtomicU64>,
}

#[async_trait]
impl Upkeep for Spooling {
    async fn stats(&self) -> Result<Stats, Error> {
        self.inner.stats().await
    }

    fn health(&self) -> Health {
        Health { spooled_messages: self.messages.load(Ordering::SeqCst), ..self.inner.health() }
    }

    async fn prune(&self, policy: &Retention, now: Timestamp) -> Result<Pruned, Error> {
        self.inner.prune(policy, now).await
    }

    async fn check(&self, progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<Report, Error> {
        self.inner.check(progress).await
    }

    async fn rebuild(&self, progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<Report, Error> {
        self.inner.rebuild(progress).await
    }

    async fn backup(&self, folder: &std::path::Path) -> Result<(), Error> {
        self.inner.backup(folder).await
    }

    async fn close(&self) -> Result<(), Error> {
        self.inner.close().await
    }
}

async fn door_with_spool(messages: &Arc<AtomicU64>) -> Door {
    let opened = memory().await;
    let upkeep = Arc::new(Spooling { inner: opened.upkeep, messages: messages.clone() });
    start_door(opened.archive, upkeep, RestConfig::default(), WakuConfig::default()).await
}

#[tokio::test(start_paused = true)]
async fn while_messages_wait_in_the_spool_only_streams_from_now_on_begin() {
    let messages = Arc::new(AtomicU64::new(1));
    let door = door_with_spool(&messages).await;
    let app = app_of(&door);
    let refusal = open_feed(&app, "start=0", 7_001).await.err().unwrap();
    assert_eq!(refusal.text, "messages still wait to be archived: try again later");
    assert_eq!(refusal.status.as_u16(), 503);
    assert!(open_feed(&app, "", 7_002).await.is_ok());
    let emptied = messages.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(10)).await;
        emptied.store(0, Ordering::SeqCst);
    });
    assert!(open_feed(&app, "start=0", 7_003).await.is_ok(), "the spool is emptied in time");
}

/// Two nodes on one table; only this one is real.
struct Shared {
    inner: Arc<dyn Nodes>,
}

impl Nodes for Shared {
    fn here(&self) -> NodeId {
        self.inner.here()
    }

    fn heartbeat(&self) -> Answer<'_, Result<(), restante_sessions::Error>> {
        self.inner.heartbeat()
    }

    fn sweep(&self) -> Answer<'_, Result<u64, restante_sessions::Error>> {
        self.inner.sweep()
    }

    fn nodes(&self) -> Answer<'_, Result<Vec<NodeState>, restante_sessions::Error>> {
        let node = |id| NodeState { id: NodeId(id), name: String::new(), lease_ms: Some(1), sessions: 0 };
        Answer::ready(Ok(vec![node(1), node(2)]))
    }

    fn broadcast(&self, event: &Event) {
        self.inner.broadcast(event);
    }

    fn health(&self) -> Result<(), restante_sessions::Error> {
        self.inner.health()
    }

    fn close(&self) -> Answer<'_, Result<(), restante_sessions::Error>> {
        self.inner.close()
    }
}

async fn shared_door() -> Door {
    let live = crate::live::standalone().await.unwrap();
    let live = Live { nodes: Arc::new(Shared { inner: live.nodes.clone() }), ..live };
    let opened = memory().await;
    start_door_with(live, opened.archive, opened.upkeep, RestConfig::default(), WakuConfig::default()).await
}

/// A message that another node announces.
fn message_elsewhere(payload: &str, seconds: i64) -> Message {
    let timestamp = NOW.plus_seconds(seconds);
    let (body, message_hash) = message(TOPIC, payload, timestamp);
    Message { message_hash, channel: PUBSUB.into(), topic: TOPIC.into(), timestamp, body }
}

fn hear(door: &Door, message: &Message) {
    let Message { message_hash, timestamp, body, .. } = message.clone();
    door.waku.live.hub.received(Event::new(PUBSUB.into(), TOPIC.into(), message_hash, timestamp, body));
}

/// Archives a message after this many milliseconds, as another node does.
fn archive_after(door: &Door, ms: u64, message: Message) {
    let archive = door.archive.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(ms)).await;
        archive.append(vec![message]).await.unwrap();
    });
}

/// What a stream sends until it becomes live, piece by piece.
async fn until_live(stream: &mut Feed) -> Vec<Vec<feed::Item>> {
    let mut pieces = Vec::new();
    loop {
        match next(stream).await {
            Piece::Messages(items) => pieces.push(items),
            Piece::Live(_) => return pieces,
            Piece::End(end) => panic!("ended: {end:?}"),
        }
    }
}

fn hashes_of(pieces: &[Vec<feed::Item>]) -> Vec<MessageHash> {
    pieces.iter().flatten().map(hash_of).collect()
}

fn app_with(door: &Door, pages: Pages) -> Arc<App> {
    let live = Bounds { pages, ..Bounds::of(&RestConfig::default()) };
    Arc::new(App { live, ..App::new(door.rest.clone()) })
}

/// The other node announces a message before the stream joins, and archives it afterwards with an earlier time than that of a
/// message that is already archived. The same message by relay is not sent again.
#[tokio::test(start_paused = true)]
async fn what_other_nodes_archive_a_little_later_is_not_missed() {
    let door = shared_door().await;
    let (announced, archived) = (message_elsewhere("announced", 0), message_elsewhere("archived", 5));
    door.archive.append(vec![archived.clone()]).await.unwrap();
    hear(&door, &announced);
    let mut stream = open_feed(&app_of(&door), "start=0", 7_001).await.ok().unwrap();
    archive_after(&door, 500, announced.clone());
    let given = until_live(&mut stream).await;
    assert_eq!(hashes_of(&given), [announced.message_hash, archived.message_hash]);
}

/// There was no space to hold it: the walk had waited for other nodes before, and did so only once.
#[tokio::test(start_paused = true)]
async fn what_was_dropped_is_waited_for_whenever_other_nodes_archive_it() {
    let door = shared_door().await;
    let history: Vec<Message> =
        (0..8).map(|number| message_elsewhere(&format!("{number}"), number - 100)).collect();
    door.archive.append(history.clone()).await.unwrap();
    let pages = Pages { chunk_bytes: 1, held_max: 1, ..Pages::default() };
    let mut stream = open_feed(&app_with(&door, pages), "start=0", 7_001).await.ok().unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await; // the walk waits for its client
    let mut expected = hashes_of(&[]);
    expected.extend(history.iter().map(|message| message.message_hash));
    for round in 0..3 {
        let (held, dropped) = (
            message_elsewhere(&format!("held {round}"), round),
            message_elsewhere(&format!("dropped {round}"), round),
        );
        for message in [&held, &dropped] {
            hear(&door, message);
            archive_after(&door, 100, message.clone());
            expected.push(message.message_hash);
        }
        tokio::task::yield_now().await;
    }
    let mut given = hashes_of(&until_live(&mut stream).await);
    given.sort_unstable();
    expected.sort_unstable();
    assert_eq!(given, expected);
}

/// Late events, and those held until the walk passed them, used to be sent in one piece, of megabytes if there were that many.
#[tokio::test]
async fn what_waits_for_the_client_comes_in_pieces() {
    let door = crate::rest::tests::door().await;
    let history: Vec<Message> =
        (0..8).map(|number| message_elsewhere(&format!("{number}"), number - 10_000)).collect();
    door.archive.append(history.clone()).await.unwrap();
    let pages = Pages { rows_first: 1, rows_max: 4, chunk_bytes: 2_000, ..Pages::default() };
    let app = app_with(&door, pages);
    let mut stream = open_feed(&app, "start=0", 7_001).await.ok().unwrap();
    let mut expected: BTreeSet<MessageHash> = history.iter().map(|message| message.message_hash).collect();
    for number in 0..40 {
        let payload = format!("{number}{}", "x".repeat(500));
        let held = message_elsewhere(&payload, number % 7);
        let (body, message_hash) = message_with(TOPIC, &payload, NOW, true);
        let late = Message { message_hash, timestamp: NOW, body, ..held.clone() };
        for message in [&held, &late] {
            hear(&door, message);
            expected.insert(message.message_hash);
        }
        if number % 3 == 0 {
            door.archive.append(vec![held]).await.unwrap(); // announced first, and no longer held when the walk meets it
        }
    }
    let last = message_elsewhere("last", 10);
    expected.insert(last.message_hash);
    door.archive.append(vec![last]).await.unwrap();
    let (mut given, pieces) = (BTreeSet::new(), until_live(&mut stream).await);
    for piece in &pieces {
        let bytes: usize = piece.iter().rev().skip(1).map(|item| item.json.len()).sum();
        assert!(bytes < 2_000, "{bytes} bytes and one message more");
        assert!(piece.iter().all(|item| given.insert(hash_of(item))), "given twice");
    }
    assert_eq!(given, expected);
}

/// A walk that finds nothing for its client went on to the end of the archive after the client had gone.
#[tokio::test]
async fn a_walk_without_a_client_ends() {
    let opened = memory().await;
    let messages = (0..1_000).map(|number| archived(number, "body"));
    opened.archive.append(messages.collect()).await.unwrap();
    let archive = Arc::new(Failing::new(opened.archive.clone(), 1_000, ErrorKind::Unavailable));
    let door = door_over(archive.clone(), opened, RestConfig::default());
    let pages = Pages { rows_first: 1, rows_max: 1, ..Pages::default() };
    let app = app_with(&door, pages);
    let stream = open_feed(&app, "start=0&contentTopicPrefix=/none/", 7_001).await.ok().unwrap();
    drop(stream);
    until("the session is closed", async || sessions(&door).await == 0).await;
    let pages_left = archive.queries.load(Ordering::SeqCst);
    assert!(pages_left > 900, "{pages_left} of 1000 pages were not asked for");
}

/// Far more messages arrive than may wait for a stream, while its client has not read the archive's first pages yet.
#[tokio::test]
async fn a_walk_whose_client_reads_late_does_not_end_as_too_slow() {
    let config = RestConfig { live_queue_messages: nonzero!(50), ..RestConfig::default() };
    let door = door_with(config).await;
    let mut expected = BTreeSet::new();
    let mut send = async |number: usize| {
        let payload = format!("{number}{}", "x".repeat(1_000));
        let (wire, hash) = message(TOPIC, &payload, NOW.plus_seconds(number as i64 / 100));
        door.waku.intake.take_relayed(PUBSUB, wire);
        expected.insert(hash);
        if number.is_multiple_of(20) {
            door.waku.intake.settled().await;
        }
    };
    for number in 0..300 {
        send(number).await;
    }
    let mut stream = open_feed(&app_of(&door), "start=0", 7_001).await.ok().unwrap();
    for number in 300..1_500 {
        send(number).await;
    }
    let (mut given, mut is_live) = (BTreeSet::new(), false);
    while !is_live || given.len() < expected.len() {
        match next(&mut stream).await {
            Piece::Messages(items) => {
                for item in &items {
                    assert!(given.insert(hash_of(item)), "given twice");
                }
            }
            Piece::Live(_) => is_live = true,
            Piece::End(end) => panic!("ended: {end:?}"),
        }
    }
    assert_eq!(given, expected);
}
