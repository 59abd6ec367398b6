//! Clients that wait for changes, over event streams and WebSockets.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use futures_util::future::try_join_all;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::{load::Load, reading::Reader};
use crate::{machine::processor_time, server::Server};

/// The most bytes to read before the expected text.
const WAITED_BYTES_MAX: usize = 64 << 10;
/// Clients that connect at once.
const BATCH: usize = 50;

/// How a client waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiting {
    EventStream,
    WebSocket,
}

impl Waiting {
    /// The names of its rows: pushes, and memory of a client.
    pub(super) fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::EventStream => ("push_events", "memory_event_stream"),
            Self::WebSocket => ("push_sockets", "memory_socket"),
        }
    }
}

/// A client that waits.
pub(super) struct Listener {
    stream: TcpStream,
    received: Vec<u8>,
}

impl Listener {
    /// Connects; what changes from now on is pushed.
    async fn open(address: SocketAddr, token: &str, waiting: Waiting) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await;
        let stream = stream.with_context(|| format!("can't connect to {address}"))?;
        stream.set_nodelay(true)?;
        let mut listener = Self { stream, received: Vec::new() };
        let head = match waiting {
            Waiting::EventStream => "GET /jmap/events?types=*&closeafter=no&ping=0 HTTP/1.1\r\n",
            Waiting::WebSocket => {
                "GET /jmap/ws HTTP/1.1\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-version: 13\r\n\
                 sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-protocol: jmap\r\n"
            }
        };
        let head = format!("{head}host: {address}\r\nauthorization: Bearer {token}\r\n\r\n");
        listener.stream.write_all(head.as_bytes()).await?;
        match waiting {
            Waiting::EventStream => listener.until("HTTP/1.1 200 OK\r\n").await?,
            Waiting::WebSocket => {
                listener.until("HTTP/1.1 101 Switching Protocols\r\n").await?;
                // An invalid state: the newest one is pushed at once, so pushes are on when it has arrived.
                let enable = br#"{"@type":"WebSocketPushEnable","dataTypes":null,"pushState":"-"}"#;
                listener.stream.write_all(&text_frame(enable)).await?;
                listener.until("\"pushState\"").await?
            }
        };
        Ok(listener)
    }

    /// Reads until a text has arrived; returns when that was.
    async fn until(&mut self, text: &str) -> anyhow::Result<Instant> {
        loop {
            let has_come = self.received.windows(text.len()).any(|window| window == text.as_bytes());
            if has_come {
                self.received.clear();
                return Ok(Instant::now());
            }
            ensure!(self.received.len() < WAITED_BYTES_MAX, "the server sends something else than '{text}'");
            let bytes = self.stream.read_buf(&mut self.received).await?;
            ensure!(bytes > 0, "the server closed a connection that waits for '{text}'");
        }
    }
}

/// A short text as a frame of a client (RFC 6455 section 5.2), masked with zeros.
fn text_frame(text: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x81, 0x80 | text.len() as u8, 0, 0, 0, 0];
    frame.extend_from_slice(text);
    frame
}

/// This many clients that wait.
pub(super) async fn listeners(
    address: SocketAddr,
    token: &str,
    waiting: Waiting,
    count: u64,
) -> anyhow::Result<Vec<Listener>> {
    let mut listeners = Vec::new();
    while (listeners.len() as u64) < count {
        let batch = BATCH.min(count as usize - listeners.len());
        let opened = (0..batch).map(|_| Listener::open(address, token, waiting));
        listeners.extend(try_join_all(opened).await?);
    }
    Ok(listeners)
}

/// Changes an email repeatedly, each time when all clients have received the change before. A time is from the request to the
/// push.
pub(super) async fn push(
    server: &Server,
    writer: &mut Reader,
    listeners: &mut [Listener],
    length: Duration,
) -> anyhow::Result<Load> {
    let mut load = Load { connections: listeners.len() as u64, ..Load::default() };
    let before = (server.worked(), processor_time("self"));
    let begun = Instant::now();
    while load.times.len() == 0 || begun.elapsed() < length {
        let asked = Instant::now();
        let expected = format!("\"Email\":\"{}\"", writer.change_to_state().await?);
        let arrivals = listeners.iter_mut().map(|listener| listener.until(&expected));
        for arrival in try_join_all(arrivals).await? {
            load.times.record(arrival.saturating_duration_since(asked));
        }
    }
    load.duration = begun.elapsed();
    let since = |now: Option<Duration>, before: Option<Duration>| Some(now?.saturating_sub(before?));
    load.server_cpu = since(server.worked(), before.0);
    load.client_cpu = since(processor_time("self"), before.1);
    Ok(load)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_text_is_found_across_reads_and_only_once() {
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(server.local_addr().unwrap()).await.unwrap();
        let (mut peer, _) = server.accept().await.unwrap();
        let mut listener = Listener { stream, received: Vec::new() };
        peer.write_all(b"HTTP/1.1 200").await.unwrap();
        tokio::join!(async { listener.until("200 OK").await.unwrap() }, async {
            tokio::task::yield_now().await;
            peer.write_all(b" OK\r\n").await.unwrap();
        });
        drop(peer);
        assert!(listener.until("200 OK").await.is_err(), "it has come once");
    }

    #[test]
    fn a_frame_of_a_client_is_masked() {
        assert_eq!(text_frame(b"hi"), [0x81, 0x82, 0, 0, 0, 0, b'h', b'i']);
    }
}
