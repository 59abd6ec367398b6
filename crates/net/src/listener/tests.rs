use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::oneshot,
    task::JoinHandle,
};

use super::*;
use crate::NetMetrics;

/// Long enough for the busiest machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server that answers each byte with the same byte, and says `bye` when it is stopped.
struct Echo {
    address: SocketAddr,
    metrics: ListenerMetrics,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

async fn echo(mut connection: Connection) {
    loop {
        let read = tokio::select! {
            read = connection.stream.read_u8() => read,
            () = connection.stopping.begun() => break,
        };
        let Ok(byte) = read else { return };
        let request = connection.activity.begin();
        if byte == b'!' {
            connection.stream.read_u8().await.unwrap(); // a request of two bytes: wait for the second
        }
        connection.stream.write_all(&[byte]).await.unwrap();
        drop(request);
        connection.stream.flush().await.unwrap();
    }
    connection.stream.write_all(b"bye").await.unwrap();
    connection.stream.close(&mut connection.stopping).await;
}

async fn start(limits: Limits) -> Echo {
    start_with(limits, |listener| listener).await
}

async fn start_with(limits: Limits, change: impl FnOnce(Listener) -> Listener) -> Echo {
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let metrics = NetMetrics::default().listener("test");
    let listener = change(Listener::new(socket, limits, metrics.clone()).unwrap());
    let address = listener.local_addr();
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(listener.serve(echo, async { stopped.await.unwrap_or(()) }));
    Echo { address, metrics, stop, task }
}

impl Echo {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }
}

async fn exchange(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) {
    stream.write_all(b"x").await.unwrap();
    assert_eq!(timeout(PATIENCE, stream.read_u8()).await.unwrap().unwrap(), b'x');
}

async fn rest_of(stream: &mut (impl AsyncRead + Unpin)) -> Vec<u8> {
    let mut bytes = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.unwrap().unwrap();
    bytes
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let holding = async {
        while !holds() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, holding).await.unwrap_or_else(|_| panic!("never: {what}"));
}

mod over_tls;

#[tokio::test]
async fn a_new_connection_closes_the_one_that_was_idle_for_longest() {
    let server = start(Limits { connections_max: 2, ..Limits::default() }).await;
    let mut first = server.connect().await;
    exchange(&mut first).await;
    let mut second = server.connect().await;
    exchange(&mut second).await;
    exchange(&mut first).await; // now the second has been idle for longer
    let mut third = server.connect().await;
    exchange(&mut third).await;
    assert_eq!(rest_of(&mut second).await, b"");
    exchange(&mut first).await;
    assert_eq!((server.metrics.connections.get(), server.metrics.idle_closed.get()), (2, 1));
}

#[tokio::test]
async fn a_new_connection_waits_while_all_are_in_use() {
    let server = start(Limits { connections_max: 1, ..Limits::default() }).await;
    let mut first = server.connect().await;
    first.write_all(b"!").await.unwrap();
    until("the first is in use", || server.metrics.connections.get() == 1 && server.metrics.idle.get() == 0)
        .await;
    let mut second = server.connect().await;
    second.write_all(b"x").await.unwrap();
    assert_eq!(server.metrics.connections.get(), 1);
    first.write_all(b"!").await.unwrap();
    assert_eq!(rest_of(&mut first).await, b"!", "it is answered before it is closed");
    assert_eq!(timeout(PATIENCE, second.read_u8()).await.unwrap().unwrap(), b'x');
}

#[tokio::test]
async fn a_stopped_listener_lets_handlers_finish() {
    let server = start(Limits::default()).await;
    let mut idle = server.connect().await;
    exchange(&mut idle).await;
    let mut busy = server.connect().await;
    busy.write_all(b"!").await.unwrap();
    until("one is in use", || server.metrics.connections.get() == 2 && server.metrics.idle.get() == 1).await;
    server.stop.send(()).unwrap();
    assert_eq!(rest_of(&mut idle).await, b"bye");
    assert!(!server.task.is_finished());
    busy.write_all(b"!").await.unwrap();
    assert_eq!(rest_of(&mut busy).await, b"!bye");
    server.task.await.unwrap();
    assert_eq!((server.metrics.connections.get(), server.metrics.idle.get()), (0, 0));
    assert!(TcpStream::connect(server.address).await.is_err());
}

#[tokio::test]
async fn a_handler_that_does_not_finish_is_cut_after_the_stop_timeout() {
    let server = start(Limits { stop_timeout: Duration::from_millis(10), ..Limits::default() }).await;
    let mut busy = server.connect().await;
    busy.write_all(b"!").await.unwrap();
    until("it is in use", || server.metrics.connections.get() == 1 && server.metrics.idle.get() == 0).await;
    server.stop.send(()).unwrap();
    server.task.await.unwrap();
    assert_eq!(server.metrics.connections.get(), 0);
}

/// The system resets a connection that is closed with unread bytes in it, and the last answer is lost with it.
#[tokio::test]
async fn a_client_that_goes_on_sending_gets_the_last_answer() {
    async fn refuse(mut connection: Connection) {
        connection.stream.write_all(b"no").await.unwrap();
        connection.stream.close(&mut connection.stopping).await;
    }
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let listener = Listener::new(socket, Limits::default(), NetMetrics::default().listener("test")).unwrap();
    let address = listener.local_addr();
    let task = tokio::spawn(listener.serve(refuse, std::future::pending()));
    let mut stream = TcpStream::connect(address).await.unwrap();
    for _ in 0..40 {
        stream.write_all(&[0; 64 << 10]).await.unwrap();
    }
    stream.shutdown().await.unwrap();
    assert_eq!(rest_of(&mut stream).await, b"no");
    task.abort();
}

fn local() -> IpAddr {
    "127.0.0.1".parse().unwrap()
}

/// The header of a connection from `192.0.2.<host>`.
fn header(host: u8) -> Vec<u8> {
    let start = *b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c";
    [&start[..], &[192, 0, 2, host, 203, 0, 113, 9, 0x1f, 0x90, 0x01, 0xbb]].concat()
}

#[tokio::test]
async fn the_client_that_a_proxy_names_is_the_peer_and_is_limited() {
    async fn tell(mut connection: Connection) {
        let _in_use = connection.activity.begin();
        let peer = connection.peer.to_string();
        connection.stream.write_all(peer.as_bytes()).await.unwrap();
        let _ = connection.stream.read_u8().await;
    }
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let metrics = NetMetrics::default().listener("test");
    let limits = Limits { connections_per_address_max: 1, ..Limits::default() };
    let listener = Listener::new(socket, limits, metrics.clone()).unwrap().with_proxies([local()]);
    let address = listener.local_addr();
    let task = tokio::spawn(listener.serve(tell, std::future::pending()));
    let connect = async |host| {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(&header(host)).await.unwrap();
        stream
    };
    let (mut one, mut other) = (connect(1).await, connect(2).await);
    let mut peer = [0; 14];
    timeout(PATIENCE, one.read_exact(&mut peer)).await.unwrap().unwrap();
    assert_eq!(&peer, b"192.0.2.1:8080");
    timeout(PATIENCE, other.read_exact(&mut peer)).await.unwrap().unwrap();
    assert_eq!(&peer, b"192.0.2.2:8080");
    assert_eq!(rest_of(&mut connect(1).await).await, b"", "it has one already");
    assert_eq!(metrics.refused.get(), 1);
    task.abort();
}

#[tokio::test]
async fn a_proxy_that_names_no_client_is_the_peer_itself() {
    let server = start_with(Limits::default(), |listener| listener.with_proxies([local()])).await;
    let mut check = server.connect().await;
    check.write_all(b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0").await.unwrap();
    exchange(&mut check).await;
}

#[tokio::test]
async fn a_proxy_without_a_header_is_closed() {
    let limits = Limits { handshake_timeout: Duration::from_millis(50), ..Limits::default() };
    let server = start_with(limits, |listener| listener.with_proxies([local()])).await;
    for begin in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], b"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n", &header(1)[..20], b""]
    {
        let mut stream = server.connect().await;
        stream.write_all(begin).await.unwrap();
        let ended = timeout(PATIENCE, stream.read_to_end(&mut Vec::new())).await.unwrap();
        assert!(!matches!(ended, Ok(1..)), "{begin:?}"); // closed, or reset as bytes were left
    }
    assert_eq!(server.metrics.bad_headers.get(), 4);
}

#[tokio::test]
async fn a_header_of_somebody_else_is_not_looked_for() {
    let elsewhere: IpAddr = "192.0.2.7".parse().unwrap();
    let server = start_with(Limits::default(), |listener| listener.with_proxies([elsewhere])).await;
    let mut stream = server.connect().await;
    stream.write_all(&header(1)[..1]).await.unwrap();
    assert_eq!(
        timeout(PATIENCE, stream.read_u8()).await.unwrap().unwrap(),
        b'\r',
        "it is what the client sent"
    );
}

#[tokio::test]
async fn a_unix_socket_is_served_like_a_port() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let metrics = NetMetrics::default().listener("test");
    let limits = Limits { connections_per_address_max: 1, ..Limits::default() };
    let listener = Listener::unix(UnixListener::bind(&path).unwrap(), limits, metrics.clone());
    assert_eq!(listener.local_addr(), THIS_MACHINE);
    let (stop, stopped) = oneshot::channel();
    let task = tokio::spawn(listener.serve(echo, async { stopped.await.unwrap_or(()) }));
    let mut streams = Vec::new();
    for _ in 0..3 {
        let mut stream = tokio::net::UnixStream::connect(&path).await.unwrap();
        exchange(&mut stream).await; // the limit per address does not apply to this machine
        streams.push(stream);
    }
    assert_eq!(metrics.connections.get(), 3);
    stop.send(()).unwrap();
    for mut stream in streams {
        assert_eq!(rest_of(&mut stream).await, b"bye");
    }
    task.await.unwrap();
}
