use std::net::SocketAddr;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::JoinHandle,
};

use super::*;

/// Long enough for the busiest machine: what does not happen in this time never will.
const PATIENCE: Duration = Duration::from_secs(60);

/// A door that listens.
struct Server {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

async fn start(door: &Door, config: RestConfig) -> Server {
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let listener = restante_net::Listener::new(socket, config.limits(), door.net.listener("rest")).unwrap();
    let address = listener.local_addr();
    let (stop, stopped) = oneshot::channel();
    let router = door.router.clone();
    let task = tokio::spawn(async move {
        let shutdown = async { stopped.await.unwrap_or(()) };
        restante_http::serve(listener, router, config.server_limits(), shutdown).await;
    });
    Server { address, stop, task }
}

impl Server {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.task.await.unwrap();
    }
}

async fn send(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).await.unwrap();
}

/// Reads until the text ends with `end`.
async fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut bytes = Vec::new();
    while !bytes.ends_with(end.as_bytes()) {
        let byte = tokio::time::timeout(PATIENCE, stream.read_u8()).await;
        let byte = byte.unwrap_or_else(|_| panic!("no more than {:?}", String::from_utf8_lossy(&bytes)));
        bytes.push(byte.unwrap_or_else(|_| panic!("ended with {:?}", String::from_utf8_lossy(&bytes))));
    }
    String::from_utf8(bytes).unwrap()
}

/// Everything until the other side ends the connection.
async fn read_rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    bytes
}

const VERSION: &str = "GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n";

#[tokio::test]
async fn a_connection_serves_many_requests_and_is_counted() {
    let door = door().await;
    let server = start(&door, RestConfig::default()).await;
    let mut stream = server.connect().await;
    for _ in 0..3 {
        send(&mut stream, VERSION).await;
        let answer = read_until(&mut stream, "9.9.9").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    }
    assert!(door.metrics_text().contains("restante_net_connections{listener=\"rest\"} 1\n"));
    drop(stream);
    server.stop().await;
    assert!(door.metrics_text().contains("restante_net_connections{listener=\"rest\"} 0\n"));
}

/// Nothing in these tests waits for the header timeout.
const NEVER_MS: u64 = 86_400_000;

/// A request whose body the server waits for, and the rest that is to be sent.
async fn begin_publishing(server: &Server) -> (TcpStream, &'static str) {
    let mut stream = server.connect().await;
    let json = r#"{"payload": "AQID", "contentTopic": "/a/1/b/proto"}"#;
    let head = format!(
        "POST {PUBLISH} HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: {}",
        json.len()
    );
    send(&mut stream, &format!("{head}\r\n\r\n")).await;
    read_until(&mut stream, "HTTP/1.1 100 Continue\r\n\r\n").await; // the handler reads the body now
    (stream, json)
}

/// Clients that had connected and sent nothing, or nothing more, blocked all others until the header timeout.
#[tokio::test]
async fn idle_connections_give_way_to_new_ones() {
    let config = RestConfig {
        connections_max: nonzero!(8),
        header_timeout_ms: nonzero!(NEVER_MS),
        ..RestConfig::default()
    };
    let door = door().await;
    let server = start(&door, config).await;
    let (mut in_use, body) = begin_publishing(&server).await;
    let mut idle = Vec::new();
    for number in 0..41 {
        let mut stream = server.connect().await;
        if number % 2 == 0 {
            send(&mut stream, VERSION).await;
            read_until(&mut stream, "9.9.9").await;
        } else if number % 3 == 0 {
            send(&mut stream, "GET /version HTT").await;
        }
        idle.push(stream);
    }
    assert!(
        door.metrics_text().contains("restante_net_connections{listener=\"rest\"} 8\n"),
        "{}",
        door.metrics_text()
    );
    assert_eq!(read_rest(&mut idle[0]).await, b"", "the one that has waited longest is closed");
    send(idle.last_mut().unwrap(), VERSION).await;
    read_until(idle.last_mut().unwrap(), "9.9.9").await;
    send(&mut in_use, body).await;
    read_until(&mut in_use, "\r\n\r\nOK").await; // a request in progress is finished
    drop((idle, in_use));
    server.stop().await;
}

#[tokio::test]
async fn connections_beyond_the_limit_wait_while_all_are_in_use() {
    let door = door().await;
    let config = RestConfig {
        connections_max: nonzero!(1),
        header_timeout_ms: nonzero!(NEVER_MS),
        ..RestConfig::default()
    };
    let server = start(&door, config).await;
    let (mut first, body) = begin_publishing(&server).await;
    let mut second = server.connect().await;
    send(&mut second, VERSION).await;
    assert!(door.metrics_text().contains("restante_net_connections{listener=\"rest\"} 1\n"));
    send(&mut first, body).await;
    read_until(&mut first, "\r\n\r\nOK").await;
    read_until(&mut second, "9.9.9").await;
    assert!(door.metrics_text().contains("restante_net_connections{listener=\"rest\"} 1\n"));
    assert_eq!(read_rest(&mut first).await, b"");
    drop(second);
    server.stop().await;
}

/// An answer that waits to be read is in use, however long it takes.
#[tokio::test]
async fn an_answer_that_is_being_read_is_not_cut_for_others() {
    let opened = memory().await;
    opened.archive.append(vec![archived(0, vec![b'x'; 16 << 20])]).await.unwrap();
    let door = door_over(opened.archive.clone(), opened, RestConfig::default());
    let config = RestConfig {
        connections_max: nonzero!(1),
        header_timeout_ms: nonzero!(NEVER_MS),
        ..RestConfig::default()
    };
    let server = start(&door, config).await;
    let mut first = server.connect().await;
    send(&mut first, "GET /store/v3/messages?includeData=true HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    let head = read_until(&mut first, "\r\n\r\n").await;
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let mut second = server.connect().await;
    send(&mut second, VERSION).await;
    let mut answer = vec![0; length.parse().unwrap()];
    first.read_exact(&mut answer).await.unwrap();
    read_until(&mut second, "9.9.9").await;
    drop((first, second));
    server.stop().await;
}

#[tokio::test]
async fn an_oversize_body_is_answered_before_it_is_sent() {
    let door = door().await;
    let server = start(&door, RestConfig::default()).await;
    let mut stream = server.connect().await;
    send(
        &mut stream,
        &format!("POST {PUBLISH} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000000\r\n\r\n{{"),
    )
    .await;
    let answer = read_rest(&mut stream).await;
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 413 Payload Too Large\r\n"), "{answer}");
    server.stop().await;
}

/// The system resets a connection that is closed with unread bytes in it, and the answer is lost with it.
#[tokio::test]
async fn a_client_that_sends_on_sees_the_refusal_all_the_same() {
    let door = door().await;
    let server = start(&door, RestConfig::default()).await;
    let mut stream = server.connect().await;
    send(
        &mut stream,
        &format!("POST {PUBLISH} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"),
    )
    .await;
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
    for _ in 0..40 {
        send(&mut stream, &chunk).await;
    }
    let answer = String::from_utf8(read_rest(&mut stream).await).unwrap();
    assert!(answer.starts_with("HTTP/1.1 413 Payload Too Large\r\n"), "{answer}");
    server.stop().await;
}

#[tokio::test]
async fn an_export_that_fails_in_the_middle_ends_without_its_final_chunk() {
    let opened = memory().await;
    opened.archive.append((0..5_000).map(|number| archived(number, "body")).collect()).await.unwrap();
    for (queries, is_whole) in [(1, false), (1_000, true)] {
        let failing = Failing::new(opened.archive.clone(), queries, ErrorKind::Unavailable);
        let door = door_over(Arc::new(failing), opened.clone(), RestConfig::default());
        let server = start(&door, RestConfig::default()).await;
        let mut stream = server.connect().await;
        send(&mut stream, "GET /archive/v1/export HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            .await;
        let answer = read_rest(&mut stream).await;
        assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n"));
        assert!(answer.len() > 100_000, "{} bytes", answer.len());
        assert_eq!(answer.ends_with(b"\r\n0\r\n\r\n"), is_whole);
        server.stop().await;
    }
}

#[tokio::test]
async fn a_slow_head_is_not_waited_for() {
    let door = door().await;
    let server = start(&door, RestConfig { header_timeout_ms: nonzero!(20), ..RestConfig::default() }).await;
    let mut stream = server.connect().await;
    send(&mut stream, "GET /version HTTP/1.1\r\nhost:").await;
    read_rest(&mut stream).await;
    server.stop().await;
}

#[tokio::test]
async fn an_idle_connection_is_closed_after_the_same_time() {
    let door = door().await;
    let server = start(&door, RestConfig { header_timeout_ms: nonzero!(20), ..RestConfig::default() }).await;
    let mut stream = server.connect().await;
    send(&mut stream, VERSION).await;
    read_until(&mut stream, "9.9.9").await;
    assert_eq!(read_rest(&mut stream).await, b"");
    server.stop().await;
}

#[tokio::test]
async fn a_slow_body_is_answered_408() {
    let config = RestConfig { request_timeout_ms: nonzero!(20), ..RestConfig::default() };
    let door = door_with(config.clone()).await;
    let server = start(&door, config).await;
    let mut stream = server.connect().await;
    send(&mut stream, &format!("POST {PUBLISH} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n{{"))
        .await;
    let answer = String::from_utf8(read_rest(&mut stream).await).unwrap();
    assert!(answer.starts_with("HTTP/1.1 408 Request Timeout\r\n"), "{answer}");
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_does_not_read_is_cut_off() {
    let opened = memory().await;
    let messages = (0..10).map(|number| archived(number, vec![b'x'; 2 << 20]));
    opened.archive.append(messages.collect()).await.unwrap();
    let door = door_over(opened.archive.clone(), opened, RestConfig::default());
    let server = start(&door, RestConfig { request_timeout_ms: nonzero!(50), ..RestConfig::default() }).await;
    let mut stream = server.connect().await;
    send(&mut stream, "GET /archive/v1/export HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    while !door.metrics_text().contains("restante_net_connections{listener=\"rest\"} 1\n") {
        tokio::task::yield_now().await;
    }
    while !door.metrics_text().contains("restante_net_connections{listener=\"rest\"} 0\n") {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    server.stop().await;
}

/// The bytes of an answer that wait in the connection's buffers count as well.
#[tokio::test]
async fn an_answer_holds_memory_until_it_is_sent() {
    let opened = memory().await;
    opened.archive.append(vec![archived(0, vec![b'x'; 16 << 20])]).await.unwrap();
    let memory = Arc::new(MemoryBudget::new(64 << 10));
    let door = door_over(opened.archive.clone(), opened, RestConfig::default()).with_memory(&memory);
    let server = start(&door, RestConfig::default()).await;
    let mut stream = server.connect().await;
    send(&mut stream, "GET /store/v3/messages?includeData=true HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    read_until(&mut stream, "\r\n\r\n").await;
    let has_all = async || memory.acquire(64 << 20, Instant::now()).await.is_ok();
    assert!(!has_all().await, "the answer is longer than what the system takes of it");
    drop(stream);
    until("the connection has ended", has_all).await;
    server.stop().await;
}

#[tokio::test]
async fn stopping_closes_idle_connections_and_finishes_running_requests() {
    let door = door().await;
    let server =
        start(&door, RestConfig { header_timeout_ms: nonzero!(86_400_000), ..RestConfig::default() }).await;
    let mut idle = server.connect().await;
    send(&mut idle, VERSION).await;
    read_until(&mut idle, "9.9.9").await;
    let mut fresh = server.connect().await;
    let mut running = server.connect().await;
    let json = r#"{"payload": "AQID", "contentTopic": "/a/1/b/proto"}"#;
    let head = format!(
        "POST {PUBLISH} HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ncontent-length: {}",
        json.len()
    );
    send(&mut running, &format!("{head}\r\n\r\n")).await;
    read_until(&mut running, "HTTP/1.1 100 Continue\r\n\r\n").await; // the handler reads the body now

    server.stop.send(()).unwrap();
    assert_eq!(read_rest(&mut idle).await, b"");
    assert_eq!(read_rest(&mut fresh).await, b"");
    assert!(!server.task.is_finished());
    send(&mut running, json).await;
    let answer = String::from_utf8(read_rest(&mut running).await).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("OK"), "{answer}");
    server.task.await.unwrap();
    assert!(TcpStream::connect(server.address).await.is_err());
    assert_eq!(door.archive.query(&restante_archive::Query::default()).await.unwrap().len(), 1);
}
