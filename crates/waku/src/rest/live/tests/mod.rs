//! Live streams: what they send, without and with sockets.

mod behind;
mod hand_over;
mod runs;
mod sockets;
mod sse;

use std::net::SocketAddr;

use bytes::Bytes;
use restante_core::{Timestamp, nonzero};
use restante_waku_wire::{WakuMessage, message_hash};
use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle};

use super::{
    feed::{End, Item, Piece},
    metrics::Transport,
    *,
};
use crate::rest::tests::{Door, NOW, PUBSUB};

pub(super) const TOPIC: &str = "/toychat/2/huilong/proto";

/// A message as on the wire, and its hash.
pub(super) fn message(topic: &str, payload: &str, timestamp: Timestamp) -> (Bytes, MessageHash) {
    message_with(topic, payload, timestamp, false)
}

pub(super) fn message_with(
    topic: &str,
    payload: &str,
    timestamp: Timestamp,
    is_ephemeral: bool,
) -> (Bytes, MessageHash) {
    let nanos = timestamp.nanos();
    let message = WakuMessage {
        payload: payload.as_bytes().to_vec().into(),
        content_topic: topic.to_owned(),
        timestamp: Some(nanos),
        ephemeral: is_ephemeral.then_some(true),
        ..WakuMessage::default()
    };
    (message.to_wire(), message_hash(PUBSUB, payload.as_bytes(), topic, b"", nanos))
}

/// A client's address: each stream has its own.
pub(super) fn client(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// A stream without a socket.
pub(super) async fn open_feed(app: &Arc<App>, query: &str, port: u16) -> Result<Feed, Refusal> {
    let uri = format!("/live?{query}").parse().unwrap();
    let asked = Asked::read(&uri, &axum::http::HeaderMap::new(), app.rules(), false)?;
    feed(app, asked, client(port), Transport::Sse, app.deadline()).await
}

pub(super) fn app_of(door: &Door) -> Arc<App> {
    Arc::new(App::new(door.rest.clone()))
}

/// The hash in one item.
pub(super) fn hash_of(item: &super::feed::Item) -> MessageHash {
    let json: serde_json::Value = serde_json::from_slice(&item.json).unwrap();
    json["messageHash"].as_str().unwrap().parse().unwrap()
}

/// A door that listens.
pub(super) struct Server {
    pub(super) address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Server {
    pub(super) async fn start(door: &Door, config: RestConfig) -> Self {
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let listener =
            restante_net::Listener::new(socket, config.limits(), door.net.listener("rest")).unwrap();
        let address = listener.local_addr();
        let (stop, stopped) = oneshot::channel();
        let router = door.router.clone();
        let task = tokio::spawn(async move {
            let shutdown = async { stopped.await.unwrap_or(()) };
            restante_http::serve(listener, router, config.server_limits(), shutdown).await;
        });
        Self { address, stop, task }
    }

    pub(super) async fn stop(self) {
        self.stop.send(()).unwrap();
        self.task.await.unwrap();
    }
}

/// The next piece, waiting for as long as a busy machine may need.
pub(super) async fn next(feed: &mut Feed) -> Piece {
    let next = tokio::time::timeout(std::time::Duration::from_secs(60), feed.next()).await;
    next.expect("a piece within a minute").expect("a piece")
}

/// The number of sessions of the door.
pub(super) async fn sessions(door: &Door) -> u64 {
    door.waku.live.sessions.counts().await.unwrap().sessions
}

#[tokio::test]
async fn a_stream_is_a_session_and_leaves_with_its_client() {
    let door = crate::rest::tests::door().await;
    let app = app_of(&door);
    let stream = open_feed(&app, "contentTopics=/a/1/b/c,/a/2/b/c&contentTopicPrefix=/x/", 7_001).await;
    let found = door.waku.live.sessions.by_user("127.0.0.1:7001").await.unwrap();
    let session = found.iter().next().expect("the stream's session");
    use restante_sessions::InfoKey;
    assert_eq!(session.info.text(InfoKey::DOOR), Some("rest_live"));
    assert_eq!(session.info.text(InfoKey::READS), Some("/a/1/b/c, /a/2/b/c, /x/*"));
    assert_eq!(session.info.number(InfoKey::TOPICS), Some(3));
    assert!(
        session.info.get(InfoKey::ADDRESS).is_some_and(|address| address.to_string() == "127.0.0.1:7001")
    );
    drop(stream.ok().unwrap());
    crate::rest::tests::until("the session is closed", async || sessions(&door).await == 0).await;
}

#[tokio::test]
async fn streams_beyond_the_limit_are_refused() {
    let config = RestConfig { live_streams_max: nonzero!(1), ..RestConfig::default() };
    let door = crate::rest::tests::door_with(config).await;
    let app = app_of(&door);
    let first = open_feed(&app, "", 7_001).await.ok().unwrap();
    let refusal = open_feed(&app, "", 7_002).await.err().unwrap();
    assert_eq!(refusal, TOO_MANY);
    assert_eq!(sessions(&door).await, 1);
    drop(first);
    crate::rest::tests::until("another stream may open", async || open_feed(&app, "", 7_003).await.is_ok())
        .await;
}

#[tokio::test]
async fn a_cursor_that_is_not_archived_is_refused() {
    let door = crate::rest::tests::door().await;
    let refusal = open_feed(&app_of(&door), &format!("cursor=0x{}", "07".repeat(32)), 7_001).await;
    let refusal = refusal.err().unwrap();
    assert_eq!(
        (refusal.status.as_u16(), &*refusal.text),
        (400, "cursor: no message with this hash is archived")
    );
    assert_eq!(sessions(&door).await, 0);
}

#[tokio::test]
async fn a_newer_session_with_the_same_resource_replaces_a_stream() {
    let door = crate::rest::tests::door().await;
    let app = app_of(&door);
    let mut first = open_feed(&app, "", 7_001).await.ok().unwrap();
    assert!(matches!(next(&mut first).await, Piece::Live(_)));
    let _second = open_feed(&app, "", 7_001).await.ok().unwrap();
    let end = next(&mut first).await;
    assert!(matches!(end, Piece::End(End::Session(restante_sessions::Ended::Replaced))), "{end:?}");
    assert!(first.next().await.is_none());
    drop(first);
    tokio::task::yield_now().await;
    assert_eq!(sessions(&door).await, 1, "the end of the first does not close the second");
}

/// What waited for the client was lost with the session, and the cursor was past it.
#[tokio::test]
async fn a_cursor_does_not_pass_what_was_lost_with_the_session() {
    let door = crate::rest::tests::door().await;
    let mut stream = open_feed(&app_of(&door), "", 7_001).await.ok().unwrap();
    let Piece::Live(begin) = next(&mut stream).await else { panic!("it does not begin") };
    door.publish("never given", 0).await;
    door.waku.live.hub.stop();
    door.clock.set(NOW.plus_seconds(1_000));
    assert_eq!(stream.cursor(), Some(begin));
    assert!(matches!(next(&mut stream).await, Piece::End(_)));
}

#[tokio::test]
async fn an_archive_that_does_not_answer_is_503() {
    let config = RestConfig { request_timeout_ms: nonzero!(50), ..RestConfig::default() };
    let door = crate::rest::tests::silent_door(config).await;
    let app = app_of(&door);
    let refusal = open_feed(&app, &format!("cursor=0x{}", "07".repeat(32)), 7_001).await.err().unwrap();
    assert_eq!(refusal.status.as_u16(), 503);
    let mut behind = open_feed(&app, "start=1", 7_001).await.ok().unwrap();
    let end = next(&mut behind).await;
    assert!(matches!(end, Piece::End(End::Unavailable)), "{end:?}");
}

/// The cursors of a stream, each used to open a new stream, lead through all messages.
#[tokio::test]
async fn who_comes_back_with_a_cursor_of_the_walk_goes_on_behind_it() {
    let door = crate::rest::tests::door().await;
    let app = app_of(&door);
    let mut hashes = Vec::new();
    let mut messages = Vec::new();
    for number in 0..20 {
        let timestamp = NOW.plus_seconds(-1_000 + number / 3); // equal ones among them
        let (wire, hash) = message(TOPIC, &format!("{number}"), timestamp);
        messages.push(restante_archive::Message {
            message_hash: hash,
            channel: PUBSUB.into(),
            topic: TOPIC.into(),
            timestamp,
            body: wire,
        });
        hashes.push((timestamp, hash));
    }
    door.archive.append(messages).await.unwrap();
    hashes.sort_unstable();
    let (mut query, mut seen) = ("start=0".to_owned(), Vec::new());
    for port in 7_100..7_120 {
        let mut stream = open_feed(&app, &query, port).await.ok().unwrap();
        let Piece::Messages(items) = next(&mut stream).await else { panic!("no messages") };
        seen.push(hash_of(&items[0]));
        let mut cursor = Vec::new();
        ask::write_cursor(items[0].cursor.unwrap(), &mut cursor);
        query = format!("cursor={}", String::from_utf8(cursor).unwrap());
    }
    assert_eq!(seen, hashes.into_iter().map(|(_, hash)| hash).collect::<Vec<_>>());
}

/// The doors share a hub: what another door publishes reaches no stream, with and without a walk through the archive.
#[tokio::test]
async fn events_of_other_doors_are_left_out() {
    for query in ["", "contentTopicPrefix=/toychat/", "start=0", "start=0&contentTopicPrefix=/toychat/"] {
        let door = crate::rest::tests::door().await;
        let publish_elsewhere = |payload: &str| {
            let (body, message_hash) = message(TOPIC, payload, NOW);
            let channel = "juliet@example".into();
            let event = restante_sessions::hub::Event::new(channel, TOPIC.into(), message_hash, NOW, body);
            door.waku.live.hub.publish(&Arc::new(event))
        };
        let mut stream = open_feed(&app_of(&door), query, 7_001).await.ok().unwrap();
        assert_eq!(publish_elsewhere("while it begins"), 1, "{query}: the hub hands it out");
        assert!(matches!(next(&mut stream).await, Piece::Live(_)), "{query}: nothing comes before it");
        publish_elsewhere("live");
        door.publish("of this door", 0).await;
        let Piece::Messages(items) = next(&mut stream).await else { panic!("{query}: no messages") };
        let is_own = |item: &Item| String::from_utf8_lossy(&item.json).contains(PUBSUB);
        assert!(items.len() == 1 && items.iter().all(is_own), "{query}: {items:?}");
    }
}
