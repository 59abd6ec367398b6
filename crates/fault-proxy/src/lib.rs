//! A TCP proxy with the faults of networks, for tests of clients of servers.
//!
//! A test starts a [`Proxy`] in front of a server, gives its address to the client, and causes faults:
//!
//! | fault | call | what both sides see |
//! | --- | --- | --- |
//! | latency | [`Proxy::delay`] | bytes arrive later, in order |
//! | connections lost | [`Proxy::cut`] | both sides are closed; new connections work |
//! | a connection lost at a certain byte | [`Proxy::cut_after`] | this many bytes still arrive, then both sides are closed |
//! | silence, also one-way | [`Proxy::silence`], [`Proxy::silence_after`] | connections stay open and nothing arrives until [`Proxy::heal`] |
//! | half-open | [`Proxy::lose`] | one side is closed; the other keeps a connection without a peer |
//! | a server that is down | [`Proxy::refuse`] | new connections are refused until [`Proxy::accept`] |
//!
//! ```
//! # async fn example(server: std::net::SocketAddr) -> std::io::Result<()> {
//! use restante_fault_proxy::{Direction, Proxy};
//!
//! let proxy = Proxy::new(server.to_string()).await?;
//! let client = tokio::net::TcpStream::connect(proxy.address()).await?;
//! proxy.silence(Direction::ToClient); // requests arrive, answers don't
//! proxy.heal();
//! proxy.cut();
//! # drop(client);
//! # Ok(())
//! # }
//! ```
//!
//! Nothing is lost silently: bytes that are held back when a silence ends are delivered then, as TCP does.
//!
//! A [`Cluster`] causes faults of its nodes instead: it kills, pauses, replaces and repairs them.

mod cluster;
mod connection;
mod traffic;

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinHandle,
};

pub use cluster::Cluster;

use connection::join;
use traffic::{Interruption, Traffic};

/// The direction of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server: requests.
    ToServer,
    /// From the server to the client: answers.
    ToClient,
}

/// One of the two sides of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The one that has connected to the proxy.
    Client,
    /// The one behind the proxy.
    Server,
}

/// How bytes of one direction are forwarded.
#[derive(Clone, Copy, Debug, Default)]
struct Rules {
    delay: Duration,
    is_silent: bool,
}

/// What happens to all current connections.
#[derive(Clone, Copy, Debug)]
enum End {
    Cut,
    Lose(Side),
}

/// What connections share.
struct Shared {
    server: String,
    to_server: (watch::Sender<Rules>, Traffic),
    to_client: (watch::Sender<Rules>, Traffic),
    /// The last end that was requested, with its number.
    ends: watch::Sender<(u64, End)>,
    accepted: AtomicU64,
    open: AtomicUsize,
}

impl Shared {
    fn way(&self, direction: Direction) -> &(watch::Sender<Rules>, Traffic) {
        match direction {
            Direction::ToServer => &self.to_server,
            Direction::ToClient => &self.to_client,
        }
    }

    fn end(&self, end: End) {
        self.ends.send_modify(|(number, last)| {
            *number += 1;
            *last = end;
        });
    }
}

/// A proxy in front of one server. Dropping it closes its port and all connections.
pub struct Proxy {
    shared: Arc<Shared>,
    address: SocketAddr,
    accepting: Mutex<Option<JoinHandle<()>>>,
}

impl Proxy {
    /// A proxy on a free port of 127.0.0.1, in front of the server at `host:port`. It runs on the tokio runtime that this is called on.
    ///
    /// # Errors
    /// No port is free.
    pub async fn new(server: impl Into<String>) -> io::Result<Self> {
        Self::at((Ipv4Addr::LOCALHOST, 0).into(), server).await
    }

    /// The same at a chosen address.
    ///
    /// # Errors
    /// Something else listens there, or nothing may.
    pub async fn at(address: SocketAddr, server: impl Into<String>) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let way = || (watch::Sender::new(Rules::default()), Traffic::default());
        let shared = Arc::new(Shared {
            server: server.into(),
            to_server: way(),
            to_client: way(),
            ends: watch::Sender::new((0, End::Cut)),
            accepted: AtomicU64::new(0),
            open: AtomicUsize::new(0),
        });
        let accepting = Mutex::new(Some(tokio::spawn(accept(listener, shared.clone()))));
        Ok(Self { shared, address, accepting })
    }

    /// A proxy in front of each node of a cluster, on the address of the node. They have the same port: clients of Cassandra use
    /// that of the first node for all.
    ///
    /// # Errors
    /// A node is not `ip:port`, or something else listens on that port of its address.
    pub async fn of_nodes(nodes: &[String]) -> io::Result<Vec<Self>> {
        let mut proxies: Vec<Self> = Vec::new();
        for node in nodes {
            let node_address: SocketAddr = node.parse().map_err(io::Error::other)?;
            let port = proxies.first().map_or(0, |first| first.address().port());
            proxies.push(Self::at(SocketAddr::new(node_address.ip(), port), node.clone()).await?);
        }
        Ok(proxies)
    }

    /// The address that clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// From now on bytes arrive this much later. Those in flight arrive in order.
    pub fn delay(&self, direction: Direction, delay: Duration) {
        self.shared.way(direction).0.send_modify(|rules| rules.delay = delay);
    }

    /// Nothing arrives any more in this direction, on old connections and new ones.
    pub fn silence(&self, direction: Direction) {
        self.shared.way(direction).0.send_modify(|rules| rules.is_silent = true);
    }

    /// Silences this direction after this many further bytes, counted over all connections. It replaces a
    /// [`Proxy::cut_after`] that has not happened, and the other way around.
    pub fn silence_after(&self, direction: Direction, bytes: u64) {
        self.shared.way(direction).1.arm(bytes, Interruption::Silence);
    }

    /// Ends all delays and silences, and forgets faults that have not happened. What was held back is delivered.
    pub fn heal(&self) {
        for direction in [Direction::ToServer, Direction::ToClient] {
            let (rules, traffic) = self.shared.way(direction);
            rules.send_replace(Rules::default());
            traffic.disarm();
        }
    }

    /// Closes all connections now, on both sides. What is held back is lost.
    pub fn cut(&self) {
        self.shared.end(End::Cut);
    }

    /// Lets this many further bytes through in this direction, counted over all connections; the connection that carries the next
    /// byte is cut instead. Only one connection is cut. A second call replaces the first.
    pub fn cut_after(&self, direction: Direction, bytes: u64) {
        self.shared.way(direction).1.arm(bytes, Interruption::Cut);
    }

    /// Whether a fault of [`Proxy::cut_after`] or [`Proxy::silence_after`] is still to happen.
    pub fn is_armed(&self, direction: Direction) -> bool {
        self.shared.way(direction).1.is_armed()
    }

    /// Closes all current connections on one side only. The other side keeps its own, on which nothing arrives any more, until
    /// [`Proxy::cut`].
    pub fn lose(&self, side: Side) {
        self.shared.end(End::Lose(side));
    }

    /// Refuses new connections, as if the server were down. Open connections stay open.
    pub async fn refuse(&self) {
        let accepting = self.accepting.lock().take();
        if let Some(accepting) = accepting {
            accepting.abort();
            let _ = accepting.await; // the port is closed when the task has ended
        }
    }

    /// Accepts connections again.
    ///
    /// # Errors
    /// The port went to another process meanwhile.
    pub async fn accept(&self) -> io::Result<()> {
        if self.accepting.lock().is_some() {
            return Ok(());
        }
        let listener = TcpListener::bind(self.address).await?;
        *self.accepting.lock() = Some(tokio::spawn(accept(listener, self.shared.clone())));
        Ok(())
    }

    /// How many connections are open now, half-open ones included.
    pub fn connections(&self) -> usize {
        self.shared.open.load(Ordering::SeqCst)
    }

    /// How many connections were ever accepted.
    pub fn accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// How many bytes have arrived in this direction.
    pub fn passed(&self, direction: Direction) -> u64 {
        self.shared.way(direction).1.passed()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(accepting) = self.accepting.get_mut().take() {
            accepting.abort();
        }
        self.cut();
    }
}

/// Accepts connections until the task is aborted.
async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let Ok((client, _)) = listener.accept().await else {
            // No file descriptor is free, for example.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let ends = shared.ends.subscribe();
        shared.accepted.fetch_add(1, Ordering::SeqCst);
        shared.open.fetch_add(1, Ordering::SeqCst);
        let shared = shared.clone();
        tokio::spawn(async move {
            // A server that can't be reached shows as a connection that is closed at once.
            if let Ok(server) = TcpStream::connect(&shared.server).await {
                join(client, server, &shared, ends).await;
            }
            shared.open.fetch_sub(1, Ordering::SeqCst);
        });
    }
}
