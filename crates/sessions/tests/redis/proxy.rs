//! A proxy to Redis, which can close the connections of one node or make Redis hang for it.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Open,
    /// Existing and new connections are closed.
    Closed,
    /// Connections stay open, but nothing is forwarded.
    Hanging,
}

pub(crate) struct Proxy {
    /// The URL of Redis behind the proxy.
    pub(crate) url: String,
    mode: watch::Sender<Mode>,
    connections: Arc<AtomicUsize>,
}

impl Proxy {
    /// A proxy before the Redis at a URL of the form `redis://host:port/database`.
    pub(crate) async fn new(url: &str) -> Self {
        let (scheme, rest) = url.split_once("://").unwrap();
        let (behind, database) = rest.split_once('/').unwrap_or((rest, "0"));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("{scheme}://{}/{database}", listener.local_addr().unwrap());
        let (mode, watching) = watch::channel(Mode::Open);
        let connections = Arc::new(AtomicUsize::new(0));
        tokio::spawn(accept(listener, behind.to_owned(), watching, connections.clone()));
        Self { url, mode, connections }
    }

    pub(crate) fn open(&self) {
        self.mode.send_replace(Mode::Open);
    }

    pub(crate) fn close(&self) {
        self.mode.send_replace(Mode::Closed);
    }

    pub(crate) fn hang(&self) {
        self.mode.send_replace(Mode::Hanging);
    }

    /// The number of open connections.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

/// Accepts connections until the proxy is dropped.
async fn accept(
    listener: TcpListener,
    behind: String,
    mut mode: watch::Receiver<Mode>,
    connections: Arc<AtomicUsize>,
) {
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = closed(&mut mode) => return,
        };
        let (client, _) = accepted.unwrap();
        if *mode.borrow() == Mode::Closed {
            continue;
        }
        let (behind, mode, connections) = (behind.clone(), mode.clone(), connections.clone());
        tokio::spawn(async move {
            connections.fetch_add(1, Ordering::SeqCst);
            let server = TcpStream::connect(behind).await.unwrap();
            join(client, server, mode).await;
            connections.fetch_sub(1, Ordering::SeqCst);
        });
    }
}

async fn join(mut client: TcpStream, mut server: TcpStream, mut mode: watch::Receiver<Mode>) {
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let (there, back) = (mode.clone(), mode.clone());
    tokio::select! {
        () = pump(&mut from_client, &mut to_server, there) => {}
        () = pump(&mut from_server, &mut to_client, back) => {}
        _ = mode.wait_for(|mode| *mode == Mode::Closed) => {}
    }
}

/// Forwards bytes while the proxy is open.
async fn pump(
    from: &mut (impl AsyncReadExt + Unpin),
    to: &mut (impl AsyncWriteExt + Unpin),
    mut mode: watch::Receiver<Mode>,
) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        let is_open = mode.wait_for(|mode| *mode == Mode::Open).await.is_ok();
        if !is_open || to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}

async fn closed(mode: &mut watch::Receiver<Mode>) {
    while mode.changed().await.is_ok() {}
}
