//! Streams as Server-Sent Events, over sockets.

use std::collections::BTreeSet;

use restante_sessions::Ended;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::*;
use crate::rest::tests::{door, door_with, until};

/// What a client of Server-Sent Events has received.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Heard {
    pub(super) event: String,
    pub(super) id: Option<String>,
    pub(super) data: String,
}

/// A client of Server-Sent Events.
pub(super) struct Listener {
    stream: TcpStream,
    /// The answer as far as it was read, without the framing of its chunks.
    waiting: Vec<u8>,
    pub(super) head: String,
}

impl Listener {
    pub(super) async fn ask(server: &Server, path: &str, headers: &str) -> Self {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: {}\r\n{headers}\r\n", server.address);
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        Self { stream, waiting: Vec::new(), head: String::from_utf8(head).unwrap() }
    }

    /// One chunk of the answer; false at its end.
    async fn read_chunk(&mut self) -> bool {
        let mut size = Vec::new();
        while !size.ends_with(b"\r\n") {
            size.push(self.stream.read_u8().await.unwrap());
        }
        let size = usize::from_str_radix(std::str::from_utf8(&size).unwrap().trim(), 16).unwrap();
        let mut chunk = vec![0; size + 2];
        self.stream.read_exact(&mut chunk).await.unwrap();
        self.waiting.extend_from_slice(&chunk[..size]);
        size > 0
    }

    /// The next block, comments among them; `None` at the end.
    async fn block(&mut self) -> Option<String> {
        loop {
            let text = std::str::from_utf8(&self.waiting).unwrap();
            if let Some(end) = text.find("\n\n") {
                let block = text[..end].to_owned();
                self.waiting.drain(..end + 2);
                return Some(block);
            }
            if !self.read_chunk().await {
                return None;
            }
        }
    }

    pub(super) async fn next(&mut self) -> Option<Heard> {
        let block = self.block().await?;
        let mut heard = Heard::default();
        for line in block.lines() {
            match line.split_once(": ") {
                Some(("event", event)) => heard.event = event.to_owned(),
                Some(("id", id)) => heard.id = Some(id.to_owned()),
                Some(("data", data)) => heard.data = data.to_owned(),
                _ => heard.event = "comment".to_owned(),
            }
        }
        Some(heard)
    }

    /// The next message's payload.
    pub(super) async fn payload(&mut self) -> String {
        let heard = self.next().await.unwrap();
        assert_eq!(heard.event, "message", "{heard:?}");
        payload_of(&serde_json::from_str(&heard.data).unwrap())
    }

    pub(super) async fn expect(&mut self, event: &str) -> Heard {
        let heard = self.next().await.unwrap();
        assert_eq!(heard.event, event, "{heard:?}");
        heard
    }

    /// The reason of the end, after which nothing follows.
    pub(super) async fn end(&mut self) -> String {
        let heard = self.expect("end").await;
        let end: Value = serde_json::from_str(&heard.data).unwrap();
        assert!(!end["text"].as_str().unwrap().is_empty());
        assert_eq!(self.next().await, None);
        end["reason"].as_str().unwrap().to_owned()
    }
}

pub(super) fn payload_of(message: &Value) -> String {
    let payload = message["payload"].as_str().unwrap();
    String::from_utf8(base64_simd::STANDARD.decode_to_vec(payload).unwrap()).unwrap()
}

#[tokio::test]
async fn a_stream_gives_the_archive_and_then_what_arrives() {
    let door = door().await;
    let server = Server::start(&door, RestConfig::default()).await;
    door.publish("one", -10).await;
    door.publish("two", -9).await;
    let path = format!(
        "/relay/v1/messages/{}/live?start={}",
        "%2Fwaku%2F2%2Frs%2F16%2F32",
        NOW.plus_seconds(-9).nanos()
    );
    let mut listener = Listener::ask(&server, &path, "").await;
    assert!(listener.head.starts_with("HTTP/1.1 200 OK\r\n"), "{}", listener.head);
    assert!(listener.head.contains("content-type: text/event-stream\r\n"), "{}", listener.head);
    let first = listener.expect("message").await;
    let message: Value = serde_json::from_str(&first.data).unwrap();
    let hash = message["messageHash"].as_str().unwrap();
    assert_eq!(payload_of(&message), "two");
    assert_eq!((&message["pubsubTopic"], &message["contentTopic"]), (&PUBSUB.into(), &TOPIC.into()));
    assert_eq!(message["timestamp"], NOW.plus_seconds(-9).nanos());
    let stored = door.get(&format!("/store/v3/messages?hashes={hash}")).await.json();
    assert_eq!(stored["messages"].as_array().unwrap().len(), 1);
    let live = listener.expect("live").await;
    assert_eq!(live.data, "{}");
    door.publish("three", 3).await;
    assert_eq!(listener.payload().await, "three");
    door.publish_on("/waku/2/rs/16/33", TOPIC, "elsewhere").await;
    door.publish("four", -20).await; // late, and sent as it arrives
    assert_eq!(listener.payload().await, "four");
    door.waku.live.hub.stop();
    assert_eq!(listener.end().await, "stopping");
    server.stop().await;
}

#[tokio::test]
async fn who_comes_back_misses_nothing() {
    let door = door().await;
    let server = Server::start(&door, RestConfig::default()).await;
    let mut listener = Listener::ask(&server, &format!("/live?contentTopics={TOPIC}"), "").await;
    let live = listener.expect("live").await;
    door.publish("one", 5).await;
    let one = listener.expect("message").await;
    drop(listener);
    door.publish("two", -15).await; // before the first one in the archive
    for (id, expected) in [(live.id, ["two", "one"]), (one.id, ["two", "one"])] {
        let header = format!("last-event-id: {}\r\n", id.unwrap());
        let mut again = Listener::ask(&server, "/live?start=1&cursor=17", &header).await;
        for payload in expected {
            assert_eq!(again.payload().await, payload);
        }
        again.expect("live").await;
    }
    door.waku.live.hub.stop();
    server.stop().await;
}

#[tokio::test]
async fn ephemeral_messages_have_no_id() {
    let door = door().await;
    let server = Server::start(&door, RestConfig::default()).await;
    let mut listener = Listener::ask(&server, "/live?contentTopicPrefix=/toychat/", "").await;
    listener.expect("live").await;
    let (wire, _) = message_with(TOPIC, "for now", NOW, true);
    door.waku.intake.publish(PUBSUB, wire).await.unwrap();
    let heard = listener.expect("message").await;
    assert_eq!(heard.id, None);
    door.publish("for long", 0).await;
    assert!(listener.expect("message").await.id.is_some());
    door.waku.live.hub.stop();
    server.stop().await;
}

#[tokio::test]
async fn an_operator_ends_a_stream_and_the_client_is_notified() {
    let door = door().await;
    let server = Server::start(&door, RestConfig::default()).await;
    let mut listener = Listener::ask(&server, "/live", "").await;
    listener.expect("live").await;
    let user = listener.stream.local_addr().unwrap().to_string();
    let found = door.waku.live.sessions.by_user(&user).await.unwrap();
    let id = found.iter().next().expect("a session of this client").id;
    assert!(door.waku.live.sessions.close(id, Ended::Operator).await.unwrap());
    assert_eq!(listener.end().await, "operator");
    server.stop().await;
}

/// More is sent than fits into all buffers on the way, including the system's.
#[tokio::test]
async fn a_reader_that_is_too_slow_is_ended_and_goes_on_from_its_cursor() {
    let config = RestConfig { live_queue_messages: nonzero!(20), ..RestConfig::default() };
    let door = door_with(config.clone()).await;
    let server = Server::start(&door, config).await;
    let mut listener = Listener::ask(&server, "/live", "").await;
    let mut last = listener.expect("live").await.id;
    let mut sent = BTreeSet::new();
    let is_ended = || door.metrics_text().contains("restante_rest_live_ended_total{reason=\"slow\"} 1\n");
    for number in 0..300 {
        let payload = format!("{number:05}{}", "x".repeat(100_000));
        let (wire, _) = message(TOPIC, &payload, NOW.plus_seconds(number % 10));
        door.waku.intake.take_relayed(PUBSUB, wire);
        sent.insert(format!("{number:05}"));
        if number % 10 == 0 {
            door.waku.intake.settled().await;
        }
    }
    door.waku.intake.settled().await;
    let mut given = BTreeSet::new();
    loop {
        let heard = listener.next().await.unwrap();
        match &*heard.event {
            "message" => {
                given.insert(payload_of(&serde_json::from_str(&heard.data).unwrap())[..5].to_owned())
            }
            "end" => break assert!(heard.data.contains("\"slow\""), "{}", heard.data),
            other => panic!("{other}"),
        };
        last = heard.id.or(last);
    }
    until("the stream is counted", async || is_ended()).await;
    until("its session is closed", async || sessions(&door).await == 0).await;
    assert!(given.len() < sent.len(), "it was ended before it had all");
    let header = format!("last-event-id: {}\r\n", last.unwrap());
    let mut again = Listener::ask(&server, "/live", &header).await;
    loop {
        let heard = again.next().await.unwrap();
        if heard.event == "live" {
            break;
        }
        given.insert(payload_of(&serde_json::from_str(&heard.data).unwrap())[..5].to_owned());
    }
    assert_eq!(given, sent);
    door.waku.live.hub.stop();
    server.stop().await;
}

#[tokio::test]
async fn stopping_ends_streams_and_then_the_door() {
    let door = door().await;
    let server = Server::start(&door, RestConfig::default()).await;
    door.publish("one", 0).await;
    let mut listeners = Vec::new();
    for path in ["/live", "/live?start=0"] {
        listeners.push(Listener::ask(&server, path, "").await);
    }
    listeners[0].expect("live").await;
    door.waku.live.hub.stop();
    let stopped = tokio::spawn(server.stop());
    assert_eq!(listeners[0].end().await, "stopping");
    drop(listeners);
    stopped.await.unwrap();
}

#[tokio::test]
async fn what_is_wrong_is_refused_as_in_the_other_routes() {
    let door = door().await;
    assert_eq!(door.get("/live?cursor=x").await.refusal().0, 400);
    assert!(door.get("/live?start=x").await.refusal().1.starts_with("start: "));
    assert_eq!(door.get("/relay/v1/messages/x/live").await.refusal().0, 400);
    let unarchived = door.get(&format!("/live?cursor=0x{}", "00".repeat(32))).await;
    assert_eq!(unarchived.refusal(), (400, "cursor: no message with this hash is archived"));
}
