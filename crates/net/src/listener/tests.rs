use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
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
            connection.stream.read_u8().await.unwrap(); // a request whose second byte is waited for
        }
        connection.stream.write_all(&[byte]).await.unwrap();
        drop(request);
        connection.stream.flush().await.unwrap();
    }
    connection.stream.write_all(b"bye").await.unwrap();
    connection.stream.close(&mut connection.stopping).await;
}

async fn start(limits: Limits) -> Echo {
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let metrics = NetMetrics::default().listener("test");
    let listener = Listener::new(socket, limits, metrics.clone()).unwrap();
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

async fn exchange(stream: &mut TcpStream) {
    stream.write_all(b"x").await.unwrap();
    assert_eq!(timeout(PATIENCE, stream.read_u8()).await.unwrap().unwrap(), b'x');
}

async fn rest_of(stream: &mut TcpStream) -> Vec<u8> {
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
