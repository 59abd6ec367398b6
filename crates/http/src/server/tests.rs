//! Honest and hostile clients of a server on a socket.

use std::sync::atomic::{AtomicUsize, Ordering};

use axum::{
    body::Body,
    routing::{get, post},
};
use restante_net::{Limits, NetMetrics};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::JoinHandle,
    time::Instant,
};

use super::*;
use crate::{
    body,
    websocket::{Message, SocketLimits, Upgrade},
};

mod ended_access;
mod http2_sockets;

/// Long enough for the busiest machine; what does not happen within it never will.
const PATIENCE: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(200);
const LONG: Duration = Duration::from_secs(3_600);

const LIMITS: ServerLimits = ServerLimits {
    header_timeout: LONG,
    stall_timeout: LONG,
    requests_max: 50,
    requests_per_address_max: 50,
};

/// Requests whose handlers are running.
static OPEN: AtomicUsize = AtomicUsize::new(0);

struct OpenGuard;

impl OpenGuard {
    fn new() -> Self {
        OPEN.fetch_add(1, Ordering::SeqCst);
        Self
    }
}

impl Drop for OpenGuard {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::SeqCst);
    }
}

async fn wait() {
    let _open = OpenGuard::new();
    std::future::pending::<()>().await;
}

async fn read_body(request: axum::extract::Request) -> Result<String, crate::Refusal> {
    let body = body::read(request.into_body(), 1 << 20, Instant::now() + SHORT).await?;
    Ok(body.len().to_string())
}

const SOCKET_LIMITS: SocketLimits =
    SocketLimits { message_bytes_max: 64 << 10, ping_interval: LONG, message_timeout: LONG };

/// Sends back what it receives over a WebSocket.
async fn echo(request: axum::extract::Request) -> Result<axum::response::Response, crate::Refusal> {
    let upgrade = Upgrade::read(&request)?.ok_or(crate::Refusal::bad_request("no WebSocket"))?;
    Ok(upgrade.answer(SOCKET_LIMITS, |socket| {
        Box::pin(async {
            let _open = OpenGuard::new();
            while let Ok(message) = socket.receive().await {
                if socket.send([message]).await.is_err() {
                    return;
                }
            }
        })
    }))
}

/// Sends one long message over a WebSocket, and reads until the client ends it.
async fn send_long(request: axum::extract::Request) -> Result<axum::response::Response, crate::Refusal> {
    let upgrade = Upgrade::read(&request)?.ok_or(crate::Refusal::bad_request("no WebSocket"))?;
    Ok(upgrade.answer(SOCKET_LIMITS, |socket| {
        Box::pin(async {
            let _open = OpenGuard::new();
            let _ = socket.send([Message::Binary(vec![b'x'; 1 << 20].into())]).await;
            while socket.receive().await.is_ok() {}
        })
    }))
}

fn router() -> Router {
    Router::new()
        .route("/echo", get(echo))
        .route("/long-message", get(send_long))
        .route("/", get(async || "hello"))
        .route("/wait", get(wait))
        .route("/long", get(async || Body::from(vec![b'x'; 10 << 20])))
        .route("/body", post(read_body))
}

struct Server {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Server {
    async fn start(limits: ServerLimits, connections_max: usize) -> Self {
        Self::start_with(limits, connections_max, router()).await
    }

    async fn start_with(limits: ServerLimits, connections_max: usize, router: Router) -> Self {
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connections = Limits { connections_max, stop_timeout: SHORT, ..Limits::default() };
        let listener = Listener::new(socket, connections, NetMetrics::default().listener("test")).unwrap();
        let address = listener.local_addr();
        let (stop, stopped) = oneshot::channel();
        let shutdown = async { stopped.await.unwrap_or(()) };
        let task = tokio::spawn(serve(listener, router, limits, shutdown));
        Self { address, stop, task }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// The answer to a well-behaved client.
    async fn ask_politely(&self) {
        let mut stream = self.connect().await;
        stream.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await.unwrap();
        let answer = String::from_utf8(rest(&mut stream).await).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("hello"), "{answer}");
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        tokio::time::timeout(PATIENCE, self.task).await.unwrap().unwrap();
    }
}

/// Everything until the server closes; it may reset the connection of a client that is still sending.
async fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut bytes)).await;
    let _ = read.expect("the server closes the connection");
    bytes
}

/// A request without a host passed the check for foreign hosts.
#[tokio::test]
async fn a_request_names_one_host() {
    let server = Server::start(LIMITS, 10).await;
    for (request, status) in [
        ("GET / HTTP/1.1\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: a b\r\n", 400),
        ("GET http://localhost/ HTTP/1.1\r\n", 400),
        ("GET / HTTP/1.1\r\nhost: localhost:8645\r\n", 200),
        ("GET / HTTP/1.1\r\nhost:\r\n", 200),
        ("GET / HTTP/1.0\r\n", 200),
    ] {
        let mut stream = server.connect().await;
        stream.write_all(format!("{request}connection: close\r\n\r\n").as_bytes()).await.unwrap();
        let answer = String::from_utf8(rest(&mut stream).await).unwrap();
        assert_eq!(answer.get(9..12), Some(&*status.to_string()), "{request}{answer}");
    }
    server.stop().await;
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const ENHANCE_YOUR_CALM: u8 = 11;

/// A frame of HTTP/2 (RFC 9113 section 4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    frame.extend_from_slice(&[kind, flags]);
    frame.extend_from_slice(&stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// A GET of a short path, in HPACK (RFC 7541): fields of the static table, and the path as a literal.
fn get_of(path: &str) -> Vec<u8> {
    let mut block = vec![0x82, 0x86, 0x04, u8::try_from(path.len()).unwrap()];
    block.extend_from_slice(path.as_bytes());
    block.extend_from_slice(&[0x01, 9]);
    block.extend_from_slice(b"localhost");
    block
}

fn request(stream: u32, path: &str) -> Vec<u8> {
    frame(HEADERS, END_STREAM | END_HEADERS, stream, &get_of(path))
}

/// An HTTP/2 connection whose streams have this window.
async fn http2(server: &Server, window: u32) -> TcpStream {
    let mut stream = server.connect().await;
    let mut setting = vec![0, 4];
    setting.extend_from_slice(&window.to_be_bytes());
    stream.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &setting)].concat()).await.unwrap();
    stream
}

/// The next frame: its kind, its stream and its payload. `None` when the connection is closed.
async fn next_frame(stream: &mut TcpStream) -> Option<(u8, u32, Vec<u8>)> {
    let mut head = [0; 9];
    tokio::time::timeout(PATIENCE, stream.read_exact(&mut head)).await.unwrap().ok()?;
    let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
    stream.read_exact(&mut payload).await.ok()?;
    Some((head[3], u32::from_be_bytes([head[5], head[6], head[7], head[8]]), payload))
}

/// The next frame of a kind on a stream.
async fn next_of(stream: &mut TcpStream, kind: u8, number: u32) -> Option<Vec<u8>> {
    loop {
        let (found, of, payload) = next_frame(stream).await?;
        if found == kind && of == number {
            return Some(payload);
        }
    }
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..6_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what}: not within a minute");
}

#[tokio::test]
async fn a_listener_speaks_both_versions() {
    let server = Server::start(LIMITS, 100).await;
    server.ask_politely().await;
    let mut client = http2(&server, 65_535).await;
    for number in [1, 3] {
        client.write_all(&request(number, "/")).await.unwrap();
        assert_eq!(next_of(&mut client, HEADERS, number).await.unwrap()[0], 0x88, "the status is 200");
        assert_eq!(next_of(&mut client, DATA, number).await.unwrap(), b"hello");
    }
    server.stop().await;
    assert!(next_of(&mut client, GOAWAY, 0).await.is_some(), "an idle connection gets a GOAWAY");
}

#[tokio::test]
async fn slow_heads_are_closed() {
    let server = Server::start(ServerLimits { header_timeout: SHORT, ..LIMITS }, 100).await;
    for begun in ["", "G", "GET / HTTP/1.1\r\nhost: loc", "PRI * HT"] {
        let mut slow = server.connect().await;
        slow.write_all(begun.as_bytes()).await.unwrap();
        assert_eq!(rest(&mut slow).await, b"", "{begun}");
    }
    server.ask_politely().await;
    server.stop().await;
}

#[tokio::test]
async fn slow_bodies_are_refused() {
    let server = Server::start(LIMITS, 100).await;
    let mut slow = server.connect().await;
    let head =
        b"POST /body HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: 100\r\n\r\nabc";
    slow.write_all(head).await.unwrap();
    let answer = String::from_utf8(rest(&mut slow).await).unwrap();
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    server.ask_politely().await;
    server.stop().await;
}

#[tokio::test]
async fn oversized_heads_are_refused() {
    let server = Server::start(LIMITS, 100).await;
    let mut client = server.connect().await;
    let head = format!("GET / HTTP/1.1\r\nhost: localhost\r\nx: {}\r\n\r\n", "y".repeat(100 << 10));
    let _ = client.write_all(head.as_bytes()).await;
    assert!(String::from_utf8_lossy(&rest(&mut client).await).starts_with("HTTP/1.1 431 "));

    // A field of 100 KiB over HTTP/2: its length in HPACK is 127 and the rest in groups of seven bits.
    let mut client = http2(&server, 65_535).await;
    let mut block = get_of("/");
    block.extend_from_slice(&[0x00, 1, b'x', 0x7f]);
    let mut left = (100 << 10) - 127;
    while left >= 128 {
        block.push(0x80 | (left % 128) as u8);
        left /= 128;
    }
    block.push(left as u8);
    block.resize(block.len() + (100 << 10), b'y');
    let mut bytes = Vec::new();
    for (index, part) in block.chunks(16 << 10).enumerate() {
        let is_last = (index + 1) * (16 << 10) >= block.len();
        let flags = if is_last { END_HEADERS } else { 0 };
        let (kind, flags) = if index == 0 { (HEADERS, flags | END_STREAM) } else { (CONTINUATION, flags) };
        bytes.extend(frame(kind, flags, 1, part));
    }
    let _ = client.write_all(&bytes).await;
    let answer = next_of(&mut client, HEADERS, 1).await;
    let is_served = answer.is_some_and(|block| block[0] == 0x88);
    assert!(!is_served, "refused, or the connection is closed");
    server.ask_politely().await;
    server.stop().await;
}

/// Heads that never end: CVE-2024-27316 and related attacks.
#[tokio::test]
async fn a_flood_of_continuations_is_closed() {
    let server = Server::start(LIMITS, 100).await;
    let mut client = http2(&server, 65_535).await;
    client.write_all(&frame(HEADERS, END_STREAM, 1, &get_of("/"))).await.unwrap();
    let field = [&[0x00, 1, b'x', 0x7e][..], &[b'y'; 0x7e]].concat();
    let flood = frame(CONTINUATION, 0, 1, &field.repeat(100));
    let flooding = async { while client.write_all(&flood).await.is_ok() {} };
    tokio::time::timeout(PATIENCE, flooding).await.expect("the server closes the connection");
    server.ask_politely().await;
    server.stop().await;
}

/// CVE-2023-44487: each request is cancelled at once, so that no limit on streams is reached.
#[tokio::test]
async fn rapid_resets_close_the_connection_and_leave_no_request_open() {
    let server = Server::start(LIMITS, 100).await;
    let mut client = http2(&server, 65_535).await;
    let mut flood = Vec::new();
    for number in (1..20_000).step_by(2) {
        flood.extend(request(number, "/wait"));
        flood.extend(frame(RST_STREAM, 0, number, &[0, 0, 0, 8]));
    }
    let (mut reading, mut writing) = client.split();
    let write = async {
        let _ = writing.write_all(&flood).await;
    };
    let mut answer = Vec::new();
    let read = async {
        let _ = tokio::time::timeout(PATIENCE, reading.read_to_end(&mut answer)).await.expect("it is closed");
    };
    tokio::join!(write, read);
    drop(client);
    let goaway = frame(GOAWAY, 0, 0, &[]);
    let position = answer.windows(6).position(|bytes| bytes == &goaway[3..9]).expect("a GOAWAY says why");
    assert_eq!(answer[position + 13], ENHANCE_YOUR_CALM);
    until("no request is open", || OPEN.load(Ordering::SeqCst) == 0).await;
    server.ask_politely().await;
    server.stop().await;
}

/// The limits on connections do not bound requests of HTTP/2.
#[tokio::test]
async fn open_requests_are_bounded_over_all_connections() {
    let server = Server::start(ServerLimits { requests_max: 6, ..LIMITS }, 100).await;
    let mut clients = [http2(&server, 65_535).await, http2(&server, 65_535).await];
    for client in &mut clients {
        for number in [1, 3, 5] {
            client.write_all(&request(number, "/body")).await.unwrap(); // GET: 405 at once
            next_of(client, HEADERS, number).await.unwrap();
        }
    }
    let [first, second] = &mut clients;
    for number in [7, 9, 11, 13, 15, 17] {
        first.write_all(&request(number, "/long")).await.unwrap(); // longer than the window
        assert_eq!(next_of(first, HEADERS, number).await.unwrap()[0], 0x88);
    }
    second.write_all(&request(7, "/")).await.unwrap();
    assert_ne!(next_of(second, HEADERS, 7).await.unwrap()[0], 0x88, "503");
    second.write_all(&request(9, "/")).await.unwrap();
    assert!(next_of(second, DATA, 9).await.unwrap().starts_with(b"too many requests"));
    first.write_all(&frame(RST_STREAM, 0, 7, &[0, 0, 0, 8])).await.unwrap();
    let mut number = 11;
    loop {
        second.write_all(&request(number, "/")).await.unwrap();
        if next_of(second, HEADERS, number).await.unwrap()[0] == 0x88 {
            break;
        }
        number += 2;
        assert!(number < 10_000, "the permit came back");
    }
    server.stop().await;
}

/// A client that opens no window would hold answers for ever, although its connection is alive.
#[tokio::test]
async fn an_answer_that_is_not_read_closes_the_connection() {
    let server = Server::start(ServerLimits { stall_timeout: SHORT, ..LIMITS }, 100).await;
    let mut client = http2(&server, 16 << 10).await;
    client.write_all(&request(1, "/long")).await.unwrap();
    let mut data = 0;
    while let Some((kind, _, payload)) = next_frame(&mut client).await {
        data += if kind == DATA { payload.len() } else { 0 };
    }
    assert_eq!(data, 16 << 10, "its window, and no more");
    server.ask_politely().await;
    server.stop().await;
}

#[tokio::test]
async fn idle_connections_keep_nobody_out() {
    let server = Server::start(LIMITS, 50).await;
    let mut idle = Vec::new();
    for number in 0..200 {
        let stream = if number % 2 == 0 { server.connect().await } else { http2(&server, 65_535).await };
        idle.push(stream);
        if number % 50 == 0 {
            server.ask_politely().await;
        }
    }
    server.ask_politely().await;
    drop(idle);
    server.stop().await;
}
