//! Streams over WebSockets, with a third-party client.

use std::time::Duration;

use bytes::BytesMut;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
    net::TcpStream,
};
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{
        Error, Message,
        client::IntoClientRequest,
        http::HeaderValue,
        protocol::{CloseFrame, Role, frame::coding::CloseCode},
    },
};

use restante_http::websocket::{SocketLimits, WebSocket};
use restante_sessions::{Owner, hub::Event};

use super::{
    super::socket::{self, LIMITS},
    sse::{Listener, payload_of},
    *,
};
use crate::rest::tests::{door, door_with, until};

type Client = WebSocketStream<TcpStream>;

async fn connect(server: &Server, path: &str, origin: Option<&str>) -> Result<Client, Error> {
    let mut request = format!("ws://{}{path}", server.address).into_client_request().unwrap();
    if let Some(origin) = origin {
        request.headers_mut().insert("origin", HeaderValue::from_str(origin).unwrap());
    }
    let stream = TcpStream::connect(server.address).await.unwrap();
    client_async(request, stream).await.map(|(client, _)| client)
}

async fn text(client: &mut Client) -> Value {
    loop {
        match client.next().await.unwrap().unwrap() {
            Message::Text(text) => return serde_json::from_str(&text).unwrap(),
            Message::Ping(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

async fn close_code(client: &mut Client) -> u16 {
    let Message::Close(Some(frame)) = client.next().await.unwrap().unwrap() else { panic!("no close") };
    frame.code.into()
}

#[tokio::test]
async fn a_stream_over_a_socket_gives_the_same() {
    let door = door().await;
    let server = Server::start(&door, RestConfig::default()).await;
    door.publish("one", 0).await;
    let mut client = connect(&server, "/live?start=0", None).await.unwrap();
    let one = text(&mut client).await;
    assert_eq!((&one["type"], payload_of(&one["message"])), (&json!("message"), "one".to_owned()));
    assert_eq!(one["message"]["pubsubTopic"], PUBSUB);
    assert!(one["cursor"].is_string());
    let live = text(&mut client).await;
    assert_eq!(live["type"], "live");
    let long = "x".repeat(100_000);
    for payload in ["two", &long, "three"] {
        door.publish(payload, 1).await;
        assert_eq!(payload_of(&text(&mut client).await["message"]), payload);
    }
    client.send(Message::Ping("who".into())).await.unwrap();
    assert_eq!(client.next().await.unwrap().unwrap(), Message::Pong("who".into()));
    client.send(Message::Text("nobody reads this".into())).await.unwrap();
    assert!(door.metrics_text().contains("restante_rest_live_streams{transport=\"websocket\"} 1\n"));
    assert!(door.metrics_text().contains("restante_net_connections{listener=\"rest\"} 1\n"));
    door.waku.live.hub.stop();
    let end = text(&mut client).await;
    assert_eq!((&end["type"], &end["reason"]), (&json!("end"), &json!("stopping")));
    assert_eq!(close_code(&mut client).await, u16::from(CloseCode::Away));
    drop(client);
    server.stop().await;
    assert!(door.metrics_text().contains("restante_rest_live_streams{transport=\"websocket\"} 0\n"));
}

#[tokio::test]
async fn a_client_that_closes_is_answered_and_its_session_closed() {
    let door = door().await;
    let server = Server::start(&door, RestConfig::default()).await;
    let mut client = connect(&server, "/live", None).await.unwrap();
    assert_eq!(text(&mut client).await["type"], "live");
    client.close(Some(CloseFrame { code: CloseCode::Normal, reason: "".into() })).await.unwrap();
    assert_eq!(close_code(&mut client).await, u16::from(CloseCode::Normal));
    until("the session is closed", async || sessions(&door).await == 0).await;
    assert!(door.metrics_text().contains("restante_rest_live_ended_total{reason=\"left\"} 1\n"));
    server.stop().await;
}

#[tokio::test]
async fn an_operator_s_close_is_a_policy_violation() {
    let door = door().await;
    let server = Server::start(&door, RestConfig::default()).await;
    let mut client = connect(&server, "/live", None).await.unwrap();
    assert_eq!(text(&mut client).await["type"], "live");
    let user = client.get_ref().local_addr().unwrap().to_string();
    let found = door.waku.live.sessions.by_user(&user).await.unwrap();
    let id = found.iter().next().expect("a session of this client").id;
    door.waku.live.sessions.close(id, restante_sessions::Ended::Operator).await.unwrap();
    assert_eq!(text(&mut client).await["reason"], "operator");
    assert_eq!(close_code(&mut client).await, u16::from(CloseCode::Policy));
    server.stop().await;
}

/// Browsers let any page open a WebSocket to any host.
#[tokio::test]
async fn pages_of_other_hosts_open_no_sockets_unless_the_settings_name_them() {
    let config =
        RestConfig { live_origins: vec!["https://chat.example".parse().unwrap()], ..RestConfig::default() };
    let door = door_with(config.clone()).await;
    let server = Server::start(&door, config).await;
    for origin in ["http://evil.example", "https://chat.example.evil", "null", "http://chat.example"] {
        match connect(&server, "/live", Some(origin)).await {
            Err(Error::Http(answer)) => assert_eq!(answer.status().as_u16(), 403, "{origin}"),
            other => panic!("{origin}: {other:?}"),
        }
    }
    let own = format!("http://{}", server.address);
    for origin in ["https://chat.example", &own] {
        let mut client = connect(&server, "/live", Some(origin)).await.unwrap();
        assert_eq!(text(&mut client).await["type"], "live", "{origin}");
    }
    server.stop().await;
}

#[tokio::test]
async fn handshakes_that_are_wrong_are_refused_and_others_are_no_sockets() {
    let door = door().await;
    let server = Server::start(&door, RestConfig::default()).await;
    let refused = [
        "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 8\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
        "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: short\r\n",
    ];
    for headers in refused {
        let listener = Listener::ask(&server, "/live", headers).await;
        assert!(listener.head.starts_with("HTTP/1.1 400 "), "{}", listener.head);
    }
    let mut events = Listener::ask(&server, "/live", "connection: upgrade\r\nupgrade: h2c\r\n").await;
    events.expect("live").await;
    // The example of RFC 6455 §1.3.
    let headers = "connection: keep-alive, Upgrade\r\nupgrade: WebSocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let listener = Listener::ask(&server, "/live", headers).await;
    assert!(listener.head.starts_with("HTTP/1.1 101 "), "{}", listener.head);
    assert!(
        listener.head.contains("sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"),
        "{}",
        listener.head
    );
    assert!(!listener.head.contains("content-length"), "{}", listener.head); // RFC 9110 §8.6
    door.waku.live.hub.stop();
    drop((events, listener));
    server.stop().await;
}

#[tokio::test]
async fn frames_that_come_with_the_handshake_are_read() {
    let door = door().await;
    let server = Server::start(&door, RestConfig::default()).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let head = format!(
        "GET /live HTTP/1.1\r\nhost: {}\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        server.address
    );
    let ping = [0x89, 0x82, 0, 0, 0, 0, b'h', b'i'];
    stream.write_all(&[head.as_bytes(), &ping].concat()).await.unwrap();
    let mut read = Vec::new();
    while !read.windows(4).any(|bytes| bytes == [0x8a, 2, b'h', b'i']) {
        assert!(stream.read_buf(&mut read).await.unwrap() > 0, "{}", String::from_utf8_lossy(&read));
    }
    drop(stream);
    server.stop().await;
}

/// A socket without a door: the client's end, and the task that serves it.
async fn paired(door: &Door, beat: Duration) -> (DuplexStream, tokio::task::JoinHandle<()>) {
    let feed = open_feed(&app_of(door), "", 7_001).await.ok().unwrap();
    let (here, there) = duplex(4_096);
    let limits = SocketLimits { ping_interval: beat, ..LIMITS };
    let task = tokio::spawn(async move {
        let mut socket = WebSocket::new(here, BytesMut::new(), limits).await;
        socket::run(&mut socket, feed).await;
    });
    (there, task)
}

#[tokio::test(start_paused = true)]
async fn a_client_that_answers_no_ping_is_gone() {
    let door = door().await;
    let (mut silent, task) = paired(&door, Duration::from_secs(15)).await;
    task.await.unwrap();
    let mut read = Vec::new();
    silent.read_to_end(&mut read).await.unwrap();
    let end = [&[0x89, 0, 0x89, 0, 0x88, 9][..], &1008_u16.to_be_bytes(), b"expired"].concat();
    assert!(read.ends_with(&end), "two pings and no more: {read:x?}");
    until("its session is closed", async || sessions(&door).await == 0).await;
}

/// Beats that a slow client had delayed were all sent at once, and the client was cut off before it could answer.
#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_for_a_while_is_not_taken_for_gone() {
    let door = door().await;
    let (mut client, task) = paired(&door, Duration::from_secs(15)).await;
    let text = |payload: &str, seconds| {
        let (wire, hash) = message(TOPIC, payload, NOW.plus_seconds(seconds));
        Event::new(PUBSUB.into(), TOPIC.into(), hash, NOW, wire)
    };
    let live = door.waku.live.clone();
    live.hub.received(text(&"x".repeat(20_000), 1)); // more than fits into the pipe
    tokio::time::sleep(Duration::from_secs(600)).await;
    let mut read = Vec::new();
    // It reads again, and no message arrives for a while: pings arrive on time.
    while !read.ends_with(b"}}") {
        assert!(client.read_buf(&mut read).await.unwrap() > 0);
    }
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(!task.is_finished());
    client.write_all(&[0x8a, 0x80, 0, 0, 0, 0]).await.unwrap();
    tokio::time::sleep(Duration::from_secs(20)).await;
    live.hub.received(text("here", 2));
    let before = read.len();
    while !read[before..].windows(4).any(|bytes| bytes == b"aGVy") {
        assert!(client.read_buf(&mut read).await.unwrap() > 0, "cut");
    }
    drop(client);
    task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_client_that_answers_pings_stays() {
    let door = door().await;
    let (client, task) = paired(&door, Duration::from_secs(15)).await;
    let mut client = WebSocketStream::from_raw_socket(client, Role::Client, None).await;
    let mut pings = 0;
    while pings < 10 {
        let message = client.next().await.unwrap().unwrap();
        pings += u32::from(message.is_ping());
        client.flush().await.unwrap(); // the answer that was queued
    }
    assert!(!task.is_finished());
    drop(client);
    task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn silent_streams_of_events_say_that_they_are_there() {
    use http_body_util::BodyExt;
    let door = door().await;
    let feed = open_feed(&app_of(&door), "", 7_001).await.ok().unwrap();
    let mut body = super::super::sse::answer_with(feed, Duration::from_secs(15)).into_body();
    let mut frames = Vec::new();
    for seconds in [0, 1_000, 0] {
        door.clock.set(NOW.plus_seconds(seconds));
        let frame = body.frame().await.unwrap().unwrap().into_data().unwrap();
        frames.push(String::from_utf8(frame.to_vec()).unwrap());
    }
    let at = |seconds: i64| NOW.plus_seconds(seconds - 30).nanos(); // the window, and ten seconds to be announced
    assert_eq!(
        frames,
        [
            format!("event: live\nid: {}\ndata: {{}}\n\n", at(0)),
            format!(":\nid: {}\n\n", at(1_000)),
            format!(":\nid: {}\n\n", at(1_000)), // never back
        ]
    );
}
