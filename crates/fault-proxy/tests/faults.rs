//! Each fault, seen from both sides.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

use std::{io::ErrorKind, time::Duration};

use restante_fault_proxy::{Direction, Proxy, Side};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::{Instant, timeout},
};

/// How long an expected event may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long to wait for something that must not happen.
const WHILE: Duration = Duration::from_millis(100);

/// A proxy, and both ends of a connection through it.
struct Joined {
    proxy: Proxy,
    listener: TcpListener,
    client: TcpStream,
    server: TcpStream,
}

impl Joined {
    async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Proxy::new(listener.local_addr().unwrap().to_string()).await.unwrap();
        let (client, server) = connect(&proxy, &listener).await;
        Self { proxy, listener, client, server }
    }
}

async fn connect(proxy: &Proxy, listener: &TcpListener) -> (TcpStream, TcpStream) {
    let client = TcpStream::connect(proxy.address()).await.unwrap();
    let (server, _) = timeout(PATIENCE, listener.accept()).await.unwrap().unwrap();
    (client, server)
}

async fn receive(stream: &mut TcpStream, text: &str) {
    let mut bytes = vec![0; text.len()];
    timeout(PATIENCE, stream.read_exact(&mut bytes)).await.unwrap().unwrap();
    assert_eq!(String::from_utf8(bytes).unwrap(), text);
}

async fn receive_nothing(stream: &mut TcpStream) {
    let mut byte = [0];
    assert!(timeout(WHILE, stream.read(&mut byte)).await.is_err(), "something came");
}

/// What is received before the end of a connection.
async fn rest(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let _ = timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.unwrap(); // closed or reset
    String::from_utf8(bytes).unwrap()
}

async fn is_usable(client: &mut TcpStream, server: &mut TcpStream) {
    client.write_all(b"request").await.unwrap();
    receive(server, "request").await;
    server.write_all(b"answer").await.unwrap();
    receive(client, "answer").await;
}

#[tokio::test]
async fn bytes_pass_both_ways_and_ends_too() {
    let Joined { proxy, mut client, mut server, .. } = Joined::new().await;
    is_usable(&mut client, &mut server).await;
    assert_eq!((proxy.passed(Direction::ToServer), proxy.passed(Direction::ToClient)), (7, 6));
    let large = vec![7; 5 << 20];
    let (sent, received) = tokio::join!(
        async {
            client.write_all(&large).await.unwrap();
            client.shutdown().await.unwrap();
        },
        async {
            let mut bytes = Vec::new();
            server.read_to_end(&mut bytes).await.unwrap();
            bytes
        }
    );
    let () = sent;
    assert!(received == large);
    server.write_all(b"last words").await.unwrap();
    drop(server);
    assert_eq!(rest(&mut client).await, "last words");
}

#[tokio::test]
async fn a_cut_closes_both_sides_and_new_connections_work() {
    let Joined { proxy, listener, mut client, mut server } = Joined::new().await;
    is_usable(&mut client, &mut server).await;
    proxy.cut();
    assert_eq!((rest(&mut client).await, rest(&mut server).await), (String::new(), String::new()));
    let (mut client, mut server) = connect(&proxy, &listener).await;
    is_usable(&mut client, &mut server).await;
    assert_eq!(proxy.accepted(), 2);
}

#[tokio::test]
async fn a_connection_is_cut_after_so_many_bytes() {
    let Joined { proxy, listener, mut client, mut server } = Joined::new().await;
    let (mut other_client, mut other_server) = connect(&proxy, &listener).await;
    proxy.cut_after(Direction::ToServer, 10);
    is_usable(&mut client, &mut server).await;
    assert!(proxy.is_armed(Direction::ToServer));
    client.write_all(b"request").await.unwrap();
    assert_eq!(rest(&mut server).await, "req");
    assert_eq!(rest(&mut client).await, "");
    assert!(!proxy.is_armed(Direction::ToServer));
    is_usable(&mut other_client, &mut other_server).await;

    proxy.cut_after(Direction::ToClient, 6);
    is_usable(&mut other_client, &mut other_server).await;
    other_server.write_all(b"a").await.unwrap();
    assert_eq!(rest(&mut other_client).await, "");
}

#[tokio::test]
async fn silence_holds_back_one_direction_until_it_ends() {
    let Joined { proxy, listener, mut client, mut server } = Joined::new().await;
    proxy.silence(Direction::ToClient);
    let (mut new_client, mut new_server) = connect(&proxy, &listener).await;
    for (client, server) in [(&mut client, &mut server), (&mut new_client, &mut new_server)] {
        client.write_all(b"request").await.unwrap();
        receive(server, "request").await;
        server.write_all(b"answer").await.unwrap();
        receive_nothing(client).await;
    }
    proxy.heal();
    receive(&mut client, "answer").await;
    receive(&mut new_client, "answer").await;
    is_usable(&mut client, &mut server).await;

    proxy.silence(Direction::ToServer);
    server.write_all(b"news").await.unwrap();
    receive(&mut client, "news").await;
    client.write_all(b"request").await.unwrap();
    receive_nothing(&mut server).await;
    proxy.cut();
    assert_eq!(rest(&mut server).await, "", "what was held back is lost");
}

#[tokio::test]
async fn silence_begins_after_so_many_bytes() {
    let Joined { proxy, mut client, mut server, .. } = Joined::new().await;
    proxy.silence_after(Direction::ToClient, 8);
    is_usable(&mut client, &mut server).await;
    assert!(proxy.is_armed(Direction::ToClient));
    server.write_all(b"answer").await.unwrap();
    receive(&mut client, "an").await;
    receive_nothing(&mut client).await;
    assert!(!proxy.is_armed(Direction::ToClient));
    proxy.heal();
    receive(&mut client, "swer").await;
    is_usable(&mut client, &mut server).await;
}

#[tokio::test]
async fn a_silent_direction_holds_a_bounded_number_of_bytes() {
    let Joined { proxy, mut client, server, .. } = Joined::new().await;
    proxy.silence(Direction::ToServer);
    let large = vec![7; 256 << 20];
    assert!(timeout(Duration::from_secs(1), client.write_all(&large)).await.is_err(), "all was taken");
    drop(server);
}

#[tokio::test]
async fn delayed_bytes_come_in_order_and_not_earlier() {
    let Joined { proxy, mut client, mut server, .. } = Joined::new().await;
    let delay = Duration::from_millis(80);
    proxy.delay(Direction::ToServer, delay);
    let start = Instant::now();
    for n in 0..10 {
        client.write_all(&[b'0' + n]).await.unwrap();
        tokio::task::yield_now().await;
    }
    receive(&mut server, "0123456789").await;
    assert!(start.elapsed() >= delay);
    proxy.heal();
    is_usable(&mut client, &mut server).await;
}

#[tokio::test]
async fn a_side_that_is_lost_leaves_the_other_half_open() {
    for side in [Side::Client, Side::Server] {
        let Joined { proxy, listener, mut client, mut server } = Joined::new().await;
        is_usable(&mut client, &mut server).await;
        proxy.lose(side);
        let (lost, kept) = match side {
            Side::Client => (&mut client, &mut server),
            Side::Server => (&mut server, &mut client),
        };
        assert_eq!(rest(lost).await, "");
        kept.write_all(b"is anybody there?").await.unwrap();
        receive_nothing(kept).await;
        assert_eq!(proxy.connections(), 1);
        let (mut new_client, mut new_server) = connect(&proxy, &listener).await;
        is_usable(&mut new_client, &mut new_server).await;
        proxy.cut();
        assert_eq!(rest(kept).await, "");
    }
}

#[tokio::test]
async fn connections_are_refused_until_they_are_accepted_again() {
    let Joined { proxy, listener, mut client, mut server } = Joined::new().await;
    proxy.refuse().await;
    let refused = TcpStream::connect(proxy.address()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    is_usable(&mut client, &mut server).await;
    proxy.accept().await.unwrap();
    proxy.accept().await.unwrap();
    let (mut client, mut server) = connect(&proxy, &listener).await;
    is_usable(&mut client, &mut server).await;
}

#[tokio::test]
async fn a_server_that_is_away_shows_as_a_closed_connection() {
    let Joined { proxy, listener, .. } = Joined::new().await;
    drop(listener);
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(rest(&mut client).await, "");
}

#[tokio::test]
async fn a_proxy_that_is_dropped_closes_everything() {
    let Joined { proxy, mut client, mut server, .. } = Joined::new().await;
    is_usable(&mut client, &mut server).await;
    let address = proxy.address();
    drop(proxy);
    assert_eq!((rest(&mut client).await, rest(&mut server).await), (String::new(), String::new()));
    timeout(PATIENCE, async { while TcpStream::connect(address).await.is_ok() {} }).await.unwrap();
}
