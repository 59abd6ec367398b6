//! Ten thousand connections that do nothing, and a thousand that send slowly: memory and connections stay within bounds, and
//! other clients are served meanwhile. This is its own process, so that only this test uses its memory.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::extract::Request;
use prometheus_client::{encoding::text, registry::Registry};
use restante_http::{
    Front, HttpMetrics, MemoryBudget, OperatorGuard, Refusal, RefusalFormat, Route, ServerLimits, Sites, body,
};
use restante_net::{Limits, Listener, NetMetrics};
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    time::{Instant, sleep, timeout},
};

const IDLE: usize = 10_000;
const SLOW: usize = 1_000;
const CONNECTIONS_MAX: usize = 4_000;
/// Open files that are not connections: those of the runtime and of the test.
const OTHER_FILES: usize = 100;
/// The most memory of the process for each open connection of the server, including that of its client: a connection has buffers
/// of a few KiB, a slow head up to 64 KiB.
const IDLE_BYTES_MAX: usize = 32 << 10;
const SLOW_BYTES_MAX: usize = 128 << 10;
/// What a slow client sends before it stops, and what a body announces.
const SENT_BYTES: usize = 32 << 10;
const BODY_BYTES: usize = 256 << 10;
/// Long enough for the busiest machine.
const PATIENCE: Duration = Duration::from_secs(120);
const LONG: Duration = Duration::from_secs(3_600);
/// Loopback has about 28,000 ports for each address of a client.
const CONNECTIONS_PER_ADDRESS: usize = 5_000;

/// How many of all connections one process may have on this system, counting both of their ends.
fn scaled(count: usize) -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    let wanted = IDLE + SLOW + CONNECTIONS_MAX + OTHER_FILES;
    let allowed = limit.maximum.map_or(wanted, |files| usize::try_from(files).unwrap());
    if allowed >= wanted {
        return count;
    }
    let scaled = count * (allowed - OTHER_FILES) / (wanted - OTHER_FILES);
    eprintln!(
        "SCALED DOWN: {scaled} in place of {count}, since one process may have {allowed} open files, not {wanted}"
    );
    scaled
}

/// The memory of this process that is in RAM.
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

struct Server {
    address: SocketAddr,
    registry: Registry,
    connections_max: usize,
}

async fn read_body(request: Request) -> Result<String, Refusal> {
    let body = body::read(request.into_body(), BODY_BYTES, Instant::now() + LONG).await?;
    Ok(body.len().to_string())
}

async fn start() -> Server {
    let (mut registry, metrics) = (Registry::default(), NetMetrics::default());
    metrics.register(&mut registry);
    let connections_max = scaled(CONNECTIONS_MAX);
    let limits =
        Limits { connections_max, stall_timeout: LONG, handshake_timeout: LONG, ..Limits::default() };
    let socket = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let listener = Listener::new(socket, limits, metrics.listener("test")).unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], listener.local_addr().port()));
    let front = Front {
        metrics: HttpMetrics::default().of("test"),
        memory: Arc::<MemoryBudget>::default(),
        operators: Arc::<OperatorGuard>::default(),
        accounts: None,
        sites: Sites::default(),
        format: RefusalFormat::Text,
    };
    let router = front
        .router(vec![Route::get("/", "a test", async || "hello"), Route::post("/body", "a test", read_body)]);
    // Timeouts are disabled: only the limits bound what clients can use.
    let limits = ServerLimits {
        header_timeout: LONG,
        stall_timeout: LONG,
        requests_max: connections_max,
        requests_per_address_max: connections_max,
    };
    tokio::spawn(restante_http::serve(listener, router, limits, std::future::pending()));
    Server { address, registry, connections_max }
}

impl Server {
    /// Connects from one of several addresses.
    async fn connect(&self, number: usize) -> TcpStream {
        let address = u8::try_from(2 + number / CONNECTIONS_PER_ADDRESS).unwrap();
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from(([127, 0, 0, address], 0))).unwrap();
        timeout(PATIENCE, socket.connect(self.address)).await.expect("it is accepted").unwrap()
    }

    async fn ask_politely(&self) {
        let mut stream = self.connect(0).await;
        stream.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        timeout(PATIENCE, stream.read_to_string(&mut answer)).await.expect("it is served").unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("hello"), "{answer}");
    }

    fn metric(&self, name: &str) -> usize {
        let mut shown = String::new();
        text::encode(&mut shown, &self.registry).unwrap();
        let start = format!("{name}{{listener=\"test\"}} ");
        shown.lines().find_map(|line| line.strip_prefix(&start)).unwrap().parse().unwrap()
    }

    fn connections(&self) -> usize {
        self.metric("restante_net_connections")
    }

    /// Connections with an open request.
    fn in_use(&self) -> usize {
        self.connections().saturating_sub(self.metric("restante_net_idle_connections"))
    }
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(timeout(PATIENCE, waiting).await.is_ok(), "not in time: {what}");
}

/// Connections that send nothing, a byte, or the beginning of HTTP/2, and then stop.
async fn idle(server: &Server) -> Vec<TcpStream> {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let mut idle = Vec::new();
    for number in 0..scaled(IDLE) {
        let mut stream = server.connect(number).await;
        let begun = [b"".as_slice(), b"G", PREFACE][number % 3];
        let _ = stream.write_all(begun).await; // it may already be closed in favour of a later one
        idle.push(stream);
        if number % 500 == 0 {
            server.ask_politely().await;
        }
        assert!(server.connections() <= server.connections_max);
    }
    idle
}

/// Connections whose heads and bodies begin, and never continue.
async fn slow(server: &Server, count: usize) -> Vec<TcpStream> {
    let part = "x".repeat(SENT_BYTES);
    let head = format!("GET / HTTP/1.1\r\nhost: localhost\r\nx: {part}");
    let body =
        format!("POST /body HTTP/1.1\r\nhost: localhost\r\ncontent-length: {BODY_BYTES}\r\n\r\n{part}");
    let mut slow = Vec::new();
    for number in 0..count {
        let mut stream = server.connect(number).await;
        let begun = if number % 2 == 0 { &head } else { &body };
        timeout(PATIENCE, stream.write_all(begun.as_bytes())).await.expect("it is read").unwrap();
        slow.push(stream);
        if number % 100 == 0 {
            server.ask_politely().await;
        }
    }
    slow
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_and_slow_clients_are_bounded_in_number_and_memory() {
    let server = start().await;
    server.ask_politely().await;
    let before = resident_bytes();

    let idle = idle(&server).await;
    let closed = || server.metric("restante_net_idle_connections_closed_total");
    until("further connections take the place of others", || closed() + server.connections_max >= idle.len())
        .await;
    let open = server.connections();
    let each = resident_bytes().saturating_sub(before) / open;
    eprintln!("{} idle connections tried, {open} open, {each} bytes for each open one", idle.len());
    assert!(each < IDLE_BYTES_MAX, "{each} bytes for each idle connection");

    let before = resident_bytes();
    let slow = slow(&server, scaled(SLOW)).await;
    until("the requests with slow bodies are open", || server.in_use() >= slow.len() / 2).await;
    let each = resident_bytes().saturating_sub(before) / slow.len();
    eprintln!("{} slow heads and bodies, {each} bytes for each", slow.len());
    assert!(each < SLOW_BYTES_MAX, "{each} bytes for each slow connection");
    assert!(server.connections() <= server.connections_max);
    server.ask_politely().await;
    drop((idle, slow));
}
