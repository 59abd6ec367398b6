//! JMAP over WebSockets, with an independent client library.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::{SinkExt, StreamExt};
use restante_directory::{Access, Operation, State};
use restante_http::ServerLimits;
use restante_net::{Limits, Listener, NetMetrics};
use restante_records::{
    Commit, Error as RecordsError, Records,
    testing::{Hook, Hooked},
};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::oneshot,
    time::timeout,
};
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{
        Error, Message,
        client::IntoClientRequest,
        http::HeaderValue,
        protocol::frame::{
            Frame,
            coding::{Data, OpCode},
        },
    },
};

use super::push::change;
use crate::testing::TestServer;

type Client = WebSocketStream<TcpStream>;

const PATIENCE: Duration = Duration::from_secs(60);
const LONG: Duration = Duration::from_secs(3_600);

/// A server on a port.
struct Served {
    server: TestServer,
    address: SocketAddr,
}

impl Served {
    async fn new() -> Self {
        Self::of(TestServer::new().await).await
    }

    async fn of(server: TestServer) -> Self {
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let metrics = NetMetrics::default().listener("test");
        let listener = Listener::new(socket, Limits::default(), metrics).unwrap();
        let address = listener.local_addr();
        let limits = ServerLimits {
            header_timeout: LONG,
            stall_timeout: LONG,
            requests_max: 50,
            requests_per_address_max: 50,
        };
        tokio::spawn(restante_http::serve(listener, server.router.clone(), limits, std::future::pending()));
        Self { server, address }
    }

    async fn connect(&self, protocol: Option<&str>) -> Result<(Client, Option<String>), Error> {
        let mut request = format!("ws://{}/jmap/ws", self.address).into_client_request().unwrap();
        let bearer = format!("Bearer {}", self.server.alice.token);
        request.headers_mut().insert("authorization", HeaderValue::from_str(&bearer).unwrap());
        if let Some(protocol) = protocol {
            request.headers_mut().insert("sec-websocket-protocol", HeaderValue::from_str(protocol).unwrap());
        }
        // A small buffer, so that the server has to wait for a client that does not read.
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(64 << 10).unwrap();
        let stream = socket.connect(self.address).await.unwrap();
        let (client, response) = client_async(request, stream).await?;
        let echoed = response.headers().get("sec-websocket-protocol");
        Ok((client, echoed.map(|value| value.to_str().unwrap().to_owned())))
    }

    async fn client(&self) -> Client {
        self.connect(Some("jmap")).await.unwrap().0
    }
}

async fn send(client: &mut Client, message: Value) {
    client.send(Message::Text(message.to_string().into())).await.unwrap();
}

async fn next(client: &mut Client) -> Value {
    match timeout(PATIENCE, client.next()).await.unwrap().unwrap().unwrap() {
        Message::Text(text) => serde_json::from_str(&text).unwrap(),
        other => panic!("{other:?}"),
    }
}

async fn close_code(client: &mut Client) -> u16 {
    loop {
        match timeout(PATIENCE, client.next()).await.unwrap().unwrap().unwrap() {
            Message::Close(Some(frame)) => return frame.code.into(),
            Message::Close(None) => return 0,
            _ => {}
        }
    }
}

fn echo(id: &str) -> Value {
    json!({"@type": "Request", "id": id, "using": ["urn:ietf:params:jmap:core"], "methodCalls": [["Core/echo", {"a": 1}, "c"]]})
}

#[tokio::test]
async fn p3_the_sub_protocol_is_offered_and_echoed() {
    let served = Served::new().await;
    assert_eq!(served.connect(Some("jmap")).await.unwrap().1.as_deref(), Some("jmap"));
    assert_eq!(served.connect(Some("other, jmap")).await.unwrap().1.as_deref(), Some("jmap"));
    for wrong in [None, Some("other")] {
        let Err(Error::Http(response)) = served.connect(wrong).await else { panic!("{wrong:?}") };
        assert_eq!(response.status(), 400);
    }
}

/// One user could take all connections of the server.
#[tokio::test]
async fn p3_sockets_and_streams_of_one_user_have_a_bound() {
    let config = crate::JmapConfig {
        connections_per_user_max: restante_core::nonzero!(2),
        ..crate::JmapConfig::default()
    };
    let served = Served::of(TestServer::with(config).await).await;
    let server = &served.server;
    let stream = "/jmap/events?types=*&closeafter=no&ping=0";
    let (mut first, _second) = (served.client().await, served.client().await);
    let Err(Error::Http(refused)) = served.connect(Some("jmap")).await else { panic!("a third socket") };
    assert_eq!(refused.status(), 429);
    assert_eq!(server.get(&server.alice, stream).await.status(), 429);
    let others = server.get(&server.bob, stream).await;
    assert_eq!(others.status(), 200, "another user has connections of its own");
    first.close(None).await.unwrap();
    let is_closed = async {
        while let Some(Ok(_)) = first.next().await {}
        while server.get(&server.alice, stream).await.status() != 200 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, is_closed).await.expect("a socket that is closed does not count");
}

#[tokio::test]
async fn p3_requests_are_answered_with_their_id() {
    let served = Served::new().await;
    let mut client = served.client().await;
    send(&mut client, echo("R1")).await;
    let answer = next(&mut client).await;
    assert_eq!((&answer["@type"], &answer["requestId"]), (&json!("Response"), &json!("R1")));
    assert_eq!(answer["methodResponses"], json!([["Core/echo", {"a": 1}, "c"]]));
    assert!(answer["sessionState"].is_string());
    let mut unnamed = echo("x");
    unnamed.as_object_mut().unwrap().remove("id");
    send(&mut client, unnamed).await;
    assert_eq!(next(&mut client).await.get("requestId"), None);
}

#[tokio::test]
async fn p3_errors_of_requests_leave_the_socket_open() {
    let served = Served::new().await;
    let mut client = served.client().await;
    client.send(Message::Text("{\"@type\":".into())).await.unwrap();
    let error = next(&mut client).await;
    let expected = json!({"@type": "RequestError", "requestId": null, "type": "urn:ietf:params:jmap:error:notJSON", "status": 400,
        "detail": error["detail"]});
    assert_eq!(error, expected);
    for (message, id, kind) in [
        (json!({"@type": "Request", "id": "R2", "using": []}), json!("R2"), "notRequest"),
        (
            json!({"@type": "Request", "id": "R3", "using": ["x"], "methodCalls": []}),
            json!("R3"),
            "unknownCapability",
        ),
        (json!({"@type": "Request", "id": 1, "using": [], "methodCalls": []}), Value::Null, "notRequest"),
        (json!({"@type": "Other", "id": "R4"}), json!("R4"), "notRequest"),
        (json!([]), Value::Null, "notRequest"),
        (json!({"@type": "WebSocketPushEnable", "dataTypes": "Email"}), Value::Null, "notRequest"),
    ] {
        send(&mut client, message.clone()).await;
        let error = next(&mut client).await;
        assert_eq!((&error["@type"], &error["requestId"]), (&json!("RequestError"), &id), "{message}");
        assert_eq!(error["type"], format!("urn:ietf:params:jmap:error:{kind}"), "{message}");
    }
    send(&mut client, echo("R5")).await;
    assert_eq!(next(&mut client).await["requestId"], "R5");
}

#[tokio::test]
async fn p3_binary_data_closes_with_1003_and_too_long_messages_with_1009() {
    let config = crate::JmapConfig {
        request_bytes_max: restante_core::nonzero!(1_000),
        ..crate::JmapConfig::default()
    };
    let served = Served::of(TestServer::with(config).await).await;
    let mut client = served.client().await;
    client.send(Message::Binary(vec![1].into())).await.unwrap();
    assert_eq!(close_code(&mut client).await, 1003);
    let mut client = served.client().await;
    client.send(Message::Text("x".repeat(1_001).into())).await.unwrap();
    assert_eq!(close_code(&mut client).await, 1009);
}

#[tokio::test]
async fn p3_a_message_that_is_not_complete_in_time_closes_with_1008() {
    let config =
        crate::JmapConfig { body_timeout_ms: restante_core::nonzero!(1), ..crate::JmapConfig::default() };
    let served = Served::of(TestServer::with(config).await).await;
    let mut client = served.client().await;
    let first = Frame::message("{", OpCode::Data(Data::Text), false);
    client.send(Message::Frame(first)).await.unwrap();
    assert_eq!(close_code(&mut client).await, 1008);
}

#[tokio::test]
async fn p3_changes_are_pushed_while_enabled() {
    let served = Served::new().await;
    let (server, id) = (&served.server, &served.server.alice.id);
    let mut client = served.client().await;
    send(&mut client, json!({"@type": "WebSocketPushEnable", "dataTypes": null})).await;
    send(&mut client, echo("R1")).await;
    assert_eq!(next(&mut client).await["requestId"], "R1", "push is enabled when this is answered");
    let revision = change(server, server.alice.account).await;
    let pushed = next(&mut client).await;
    assert_eq!(pushed["changed"], json!({id: {"Mailbox": revision.to_string()}}));
    let state = pushed["pushState"].clone();
    send(&mut client, json!({"@type": "WebSocketPushDisable"})).await;
    send(&mut client, echo("R2")).await;
    assert_eq!(next(&mut client).await["requestId"], "R2");
    let missed = change(server, server.alice.account).await;
    send(&mut client, echo("R3")).await;
    assert_eq!(next(&mut client).await["requestId"], "R3", "nothing is pushed");
    // With the state that the client has seen, missed changes are pushed at once.
    send(&mut client, json!({"@type": "WebSocketPushEnable", "dataTypes": ["Mailbox"], "pushState": state}))
        .await;
    let pushed = next(&mut client).await;
    assert_eq!(
        (&pushed["@type"], &pushed["changed"]),
        (&json!("StateChange"), &json!({id: {"Mailbox": missed.to_string()}}))
    );
}

/// A server whose users have one slot for requests, with no room for waiting requests.
async fn served_with_one_slot() -> Served {
    let config = crate::JmapConfig {
        requests_per_user_max: restante_core::nonzero!(1),
        request_wait_ms: 0,
        ..crate::JmapConfig::default()
    };
    Served::of(TestServer::with(config).await).await
}

/// The body of a request that holds its slot until the sender is used.
fn waiting_body() -> (oneshot::Sender<()>, axum::body::Body) {
    let (sender, receiver) = oneshot::channel();
    let body = futures_util::stream::once(async move {
        let _ = receiver.await;
        Ok::<_, std::io::Error>(r#"{"using":[],"methodCalls":[]}"#)
    });
    (sender, axum::body::Body::from_stream(body))
}

#[tokio::test]
async fn q5_requests_of_sockets_count_with_those_over_http() {
    let served = served_with_one_slot().await;
    let (sender, waiting) = waiting_body();
    let over_http = served.server.post(&served.server.alice, waiting);
    let over_socket = async {
        let mut client = served.client().await;
        send(&mut client, echo("R1")).await;
        let error = next(&mut client).await;
        assert_eq!((&error["requestId"], &error["limit"]), (&json!("R1"), &json!("maxConcurrentRequests")));
        sender.send(()).unwrap();
    };
    let (answered, ()) = tokio::join!(over_http, over_socket);
    assert_eq!(answered.0, 200);
}

/// Regression test: a parsed message takes many times the memory of its text, and a client made the server parse on all of its sockets
/// at once.
#[tokio::test]
async fn q5_a_message_takes_a_slot_before_it_is_parsed() {
    let served = served_with_one_slot().await;
    let (sender, waiting) = waiting_body();
    let over_http = served.server.post(&served.server.alice, waiting);
    let over_socket = async {
        let mut client = served.client().await;
        // None of these is a valid request, but only parsing would show that.
        for (text, id) in [("{\"@type\":", Value::Null), (r#"{"using": 1, "id": "R1"}"#, json!("R1"))] {
            client.send(Message::Text(text.into())).await.unwrap();
            let error = next(&mut client).await;
            assert_eq!((&error["requestId"], &error["limit"]), (&id, &json!("maxConcurrentRequests")));
        }
        sender.send(()).unwrap();
        client
    };
    let (answered, mut client) = tokio::join!(over_http, over_socket);
    assert_eq!(answered.0, 200);
    send(&mut client, echo("R2")).await;
    assert_eq!(next(&mut client).await["requestId"], "R2", "the slot is free again");
}

/// The next commit signals that it begins, and waits for another event.
#[derive(Default)]
struct NextCommit(Mutex<Option<(oneshot::Sender<()>, oneshot::Receiver<()>)>>);

#[async_trait]
impl Hook for NextCommit {
    async fn before_commit(&self, _: &Commit) -> Result<(), RecordsError> {
        let next = self.0.lock().unwrap().take();
        if let Some((begun, happened)) = next {
            begun.send(()).unwrap();
            happened.await.unwrap();
        }
        Ok(())
    }
}

/// Regression test: requests stalled, holding database connections and locks, until a slow client had received another response.
#[tokio::test]
async fn p3_requests_go_on_while_the_client_does_not_read_an_answer() {
    let mut interrupted = None;
    let wrap = |inner: Arc<dyn Records>| {
        let records = Arc::new(Hooked { inner, hook: NextCommit::default() });
        interrupted = Some(records.clone());
        records as Arc<dyn Records>
    };
    let served = Served::of(TestServer::with_records(crate::JmapConfig::default(), wrap).await).await;
    let server = &served.server;
    server.mail.prepare(server.alice.account).await.unwrap();
    let mut client = served.client().await;
    send(&mut client, echo("R0")).await;
    assert_eq!(next(&mut client).await["requestId"], "R0", "the first request makes the key of the session");
    let ((begun, begins), (happened, happens)) = (oneshot::channel(), oneshot::channel());
    *interrupted.unwrap().hook.0.lock().unwrap() = Some((begun, happens));
    // The commit of the first call is interrupted.
    let set = |name: &str| json!(["Mailbox/set", {"accountId": server.alice.id, "create": {name: {"name": name}}}, "c"]);
    let calls = [set("first"), set("later")];
    let using = ["urn:ietf:params:jmap:core", "urn:ietf:params:jmap:mail"];
    send(&mut client, json!({"@type": "Request", "id": "R1", "using": using, "methodCalls": calls})).await;
    begins.await.unwrap();
    // The response is longer than the socket buffers.
    let mut long = echo("R2");
    let reference = json!({"resultOf": "c", "name": "Core/echo", "path": "/a"});
    let twice = json!(["Core/echo", {"#a": reference}, "d"]);
    long["methodCalls"] = json!([["Core/echo", {"a": "x".repeat(9_000_000)}, "c"], twice]);
    send(&mut client, long).await;
    timeout(PATIENCE, client.get_ref().peek(&mut [0])).await.unwrap().unwrap();
    happened.send(()).unwrap();
    let created = async {
        loop {
            let (mailboxes, _) = server.mail.mailboxes(server.alice.account).await.unwrap();
            if mailboxes.iter().any(|mailbox| mailbox.name == "later") {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, created).await.expect("the other request goes on");
    let answer = next(&mut client).await;
    assert_eq!(answer["requestId"], "R2");
    assert_eq!(answer["methodResponses"][1][1]["a"].as_str().unwrap().len(), 9_000_000);
    assert_eq!(next(&mut client).await["requestId"], "R1");
}

#[tokio::test]
async fn p3_revoked_credentials_and_grants_close_with_1008() {
    let served = Served::new().await;
    let server = &served.server;
    server.grant(&server.bob, &server.alice, Access::Write).await;
    let mut with_grant = served.client().await;
    server.grant(&server.bob, &server.alice, Access::Read).await;
    assert_eq!(close_code(&mut with_grant).await, 1008);
    let mut client = served.client().await;
    let address = server.alice.address.clone();
    server.operate(Operation::SetState { address, state: State::Disabled }).await;
    assert_eq!(close_code(&mut client).await, 1008);
}

#[tokio::test]
async fn p3_sockets_are_closed_when_the_door_closes() {
    let served = Served::new().await;
    let mut client = served.client().await;
    send(&mut client, echo("R1")).await;
    assert_eq!(next(&mut client).await["requestId"], "R1");
    restante_operate::Door::close(&served.server.door).await;
    assert_eq!(close_code(&mut client).await, 1001);
}
