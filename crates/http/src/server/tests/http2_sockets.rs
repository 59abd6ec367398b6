//! WebSockets over streams of HTTP/2 (RFC 8441).

use axum::http::{Method, StatusCode};
use futures_util::{SinkExt, StreamExt};
use hyper::{
    client::conn::http2::{SendRequest, handshake},
    ext::Protocol,
    upgrade::{self, Upgraded},
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Message,
        protocol::{Role, frame::coding::CloseCode},
    },
};

use super::*;

pub(super) type Client = SendRequest<Body>;
pub(super) type Socket = WebSocketStream<TokioIo<Upgraded>>;

pub(super) async fn connect(server: &Server) -> Client {
    let stream = TokioIo::new(server.connect().await);
    let (client, connection) = handshake(TokioExecutor::new(), stream).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn ask(client: &mut Client, request: Request<Body>) -> Response<Incoming> {
    client.ready().await.unwrap();
    client.send_request(request).await.unwrap()
}

/// An extended CONNECT.
fn handshake_of(protocol: &'static str, path: &str) -> Request<Body> {
    let request = Request::builder().method(Method::CONNECT).uri(format!("http://localhost{path}"));
    let request = request.header("sec-websocket-version", "13").extension(Protocol::from_static(protocol));
    request.body(Body::empty()).unwrap()
}

pub(super) async fn open(client: &mut Client) -> Socket {
    open_at(client, "/echo").await
}

async fn open_at(client: &mut Client, path: &str) -> Socket {
    let answer = ask(client, handshake_of("websocket", path)).await;
    assert_eq!(answer.status(), StatusCode::OK);
    assert!(!answer.headers().contains_key("content-length"));
    let stream = TokioIo::new(upgrade::on(answer).await.unwrap());
    WebSocketStream::from_raw_socket(stream, Role::Client, None).await
}

async fn exchange(socket: &mut Socket, message: Message) {
    socket.send(message.clone()).await.unwrap();
    assert_eq!(socket.next().await.unwrap().unwrap(), message);
}

async fn close_code(socket: &mut Socket) -> CloseCode {
    loop {
        if let Message::Close(frame) = socket.next().await.unwrap().unwrap() {
            return frame.unwrap().code;
        }
    }
}

/// [`OPEN`] counts the sockets of all tests, so these tests run one at a time.
static ONE_AT_A_TIME: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

#[tokio::test]
async fn sockets_share_a_connection_with_each_other_and_with_requests() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let server = Server::start(LIMITS, 100).await;
    let mut client = connect(&server).await;
    let answer = ask(&mut client, Request::get("http://localhost/").body(Body::empty()).unwrap()).await;
    assert_eq!(answer.status(), StatusCode::OK, "and the settings of the server have come");
    let mut sockets = [open(&mut client).await, open(&mut client).await];
    for socket in &mut sockets {
        exchange(socket, Message::Text("one".into())).await;
        exchange(socket, Message::Binary(vec![0xff; 60_000].into())).await;
    }
    let [mut first, mut second] = sockets;
    first.close(None).await.unwrap();
    while first.next().await.is_some() {}
    exchange(&mut second, Message::Text("two".into())).await;
    let answer = ask(&mut client, Request::get("http://localhost/").body(Body::empty()).unwrap()).await;
    assert_eq!(answer.status(), StatusCode::OK);
    drop((second, client));
    server.stop().await;
}

#[tokio::test]
async fn a_handshake_that_is_wrong_is_refused_and_the_connection_goes_on() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let server = Server::start(LIMITS, 100).await;
    let mut client = connect(&server).await;
    let mut without_version = handshake_of("websocket", "/echo");
    without_version.headers_mut().clear();
    for (request, status) in [
        (without_version, 400),
        (handshake_of("webtransport", "/echo"), 501),
        (handshake_of("websocket", "/nowhere"), 404),
        (handshake_of("websocket", "/"), 400), // this route has no sockets
    ] {
        let asked = format!("{request:?}");
        assert_eq!(ask(&mut client, request).await.status().as_u16(), status, "{asked}");
    }
    // Without a protocol it requests a tunnel, which no route offers.
    let plain = Request::builder().method(Method::CONNECT).uri("localhost:1").body(Body::empty()).unwrap();
    assert!(!ask(&mut client, plain).await.status().is_success());
    exchange(&mut open(&mut client).await, Message::Text("one".into())).await;
    drop(client);
    server.stop().await;
}

#[tokio::test]
async fn a_message_over_the_limit_closes_its_socket_alone() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let server = Server::start(LIMITS, 100).await;
    let mut client = connect(&server).await;
    let mut sockets = [open(&mut client).await, open(&mut client).await];
    sockets[0].send(Message::Binary(vec![0; SOCKET_LIMITS.message_bytes_max + 1].into())).await.unwrap();
    assert_eq!(close_code(&mut sockets[0]).await, CloseCode::Size);
    exchange(&mut sockets[1], Message::Text("one".into())).await;
    drop((sockets, client));
    server.stop().await;
}

/// The limits on connections do not bound sockets of HTTP/2.
#[tokio::test]
async fn an_open_socket_is_an_open_request() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let server = Server::start(ServerLimits { requests_max: 2, ..LIMITS }, 100).await;
    let mut client = connect(&server).await;
    let mut sockets = vec![open(&mut client).await, open(&mut client).await];
    for socket in &mut sockets {
        exchange(socket, Message::Text("one".into())).await;
    }
    let refused = ask(&mut client, handshake_of("websocket", "/echo")).await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    drop(sockets.pop()); // without a close: the stream is reset
    let mut tries = 0;
    while ask(&mut client, handshake_of("websocket", "/echo")).await.status() != StatusCode::OK {
        tokio::time::sleep(Duration::from_millis(10)).await;
        tries += 1;
        assert!(tries < 6_000, "the permit came back");
    }
    drop((sockets, client));
    until("no socket is open", || OPEN.load(Ordering::SeqCst) == 0).await;
    server.stop().await;
}

/// A client with a window of 1 KiB for each stream, and its connection.
async fn connect_narrowly(server: &Server) -> (Client, tokio::task::JoinHandle<hyper::Result<()>>) {
    let stream = TokioIo::new(server.connect().await);
    let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(1_024);
    let (client, connection) = builder.handshake(stream).await.unwrap();
    (client, tokio::spawn(connection))
}

/// The client sends and never opens its window: what is sent back to it must not accumulate.
#[tokio::test]
async fn a_socket_that_is_not_read_closes_the_connection() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let server = Server::start(ServerLimits { stall_timeout: SHORT, ..LIMITS }, 100).await;
    let (mut client, connection) = connect_narrowly(&server).await;
    let mut socket = open(&mut client).await;
    let flooding = async { while socket.send(Message::Binary(vec![0; 32 << 10].into())).await.is_ok() {} };
    tokio::time::timeout(PATIENCE, flooding).await.expect("the server closes the connection");
    let _ = tokio::time::timeout(PATIENCE, connection).await.expect("it is closed");
    until("no socket is open", || OPEN.load(Ordering::SeqCst) == 0).await;
    server.ask_politely().await;
    server.stop().await;
}

/// The whole message was buffered at once, and the socket counted as one that has nothing to send.
#[tokio::test]
async fn a_socket_that_does_not_read_a_long_message_closes_the_connection() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let server = Server::start(ServerLimits { stall_timeout: SHORT, ..LIMITS }, 100).await;
    let (mut client, connection) = connect_narrowly(&server).await;
    let socket = open_at(&mut client, "/long-message").await;
    let _ = tokio::time::timeout(PATIENCE, connection).await.expect("the server closes the connection");
    drop((socket, client));
    until("no socket is open", || OPEN.load(Ordering::SeqCst) == 0).await;
    server.stop().await;
}

#[tokio::test]
async fn a_long_message_reaches_a_client_that_reads() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let server = Server::start(LIMITS, 100).await;
    let mut client = connect(&server).await;
    let mut socket = open_at(&mut client, "/long-message").await;
    let message = tokio::time::timeout(PATIENCE, socket.next()).await.unwrap().unwrap().unwrap();
    assert!(message == Message::Binary(vec![b'x'; 1 << 20].into()));
    drop((socket, client));
    server.stop().await;
}
