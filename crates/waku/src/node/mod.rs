//! A node of the Waku network: its connections, its relay, and its request streams.
//!
//! One task, the swarm's, drives relay and manages connections; each connection has a task that answers its requests.
//! [`Node`] is the handle for the rest of the program.

mod address;
mod behaviour;
mod close_timeout;
mod events;
mod executor;
mod half_open;
mod key;
mod liveness;
mod metrics;
mod peers;
mod relay;
mod secure_websocket;
mod static_peers;
mod streams;
mod swarm;
mod transport;

use std::{
    fmt,
    num::NonZero,
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use libp2p::{Multiaddr, PeerId, Stream, identity::Keypair};
use parking_lot::RwLock;
use restante_core::{nonzero, settings};
use restante_net::tls::Certificates;
use serde::{Deserialize, Serialize};
use tokio::sync::{broadcast, mpsc, oneshot};

pub use address::PeerAddress;
pub(crate) use address::is_public;
pub use events::NodeEvent;
pub use key::{KeyError, load_or_create as load_key, parse as parse_key};
pub use metrics::NodeMetrics;
pub use peers::{Direction, PeerInfo};
pub use streams::OpenError;
pub use swarm::Unstarted;

use crate::validate::MESSAGE_BYTES_MAX;
use peers::Peers;
use streams::Streams;

/// The most commands that wait for the swarm's task; further callers wait.
const COMMANDS_MAX: usize = 1_024;
/// The most events that wait for a slow listener; it misses older ones.
const EVENTS_MAX: usize = 1_024;

/// The settings of a node.
#[derive(Clone)]
pub struct NodeConfig {
    /// The node's key.
    pub key: Keypair,
    /// The addresses to listen on: `/ip4/127.0.0.1/tcp/60000`, `/ip4/127.0.0.1/tcp/8000/ws`, `/ip4/0.0.0.0/tcp/8443/tls/ws`.
    pub listen: Vec<Multiaddr>,
    /// The certificate of secure WebSockets.
    pub certificates: Option<Arc<Certificates>>,
    /// The addresses at which peers reach this node from outside.
    pub external_addresses: Vec<Multiaddr>,
    /// Peers to which the node always keeps a connection.
    pub static_peers: Vec<PeerAddress>,
    /// Peers whose connections are exempt from limits and never closed for others, besides the static ones.
    pub reserved_peers: Vec<PeerId>,
    /// Relay on these pubsub topics; `None` is a node without relay.
    pub relay: Option<Vec<String>>,
    /// The longest message, as on the wire.
    pub max_message_bytes: usize,
    /// Limits of one peer and of all peers.
    pub limits: NodeLimits,
    /// The agent version that the node announces.
    pub agent: String,
}

impl fmt::Debug for NodeConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeConfig").field("listen", &self.listen).finish_non_exhaustive()
    }
}

impl NodeConfig {
    /// A node with this key that does not listen, has no static peers and does not relay.
    pub fn new(key: Keypair) -> Self {
        Self {
            key,
            listen: Vec::new(),
            certificates: None,
            external_addresses: Vec::new(),
            static_peers: Vec::new(),
            reserved_peers: Vec::new(),
            relay: None,
            max_message_bytes: MESSAGE_BYTES_MAX,
            limits: NodeLimits::default(),
            agent: "restante".to_owned(),
        }
    }
}

/// Limits of peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeLimits {
    /// The most open connections. A new one beyond the limit replaces the one that has been idle for longest.
    pub connections_max: NonZero<u32>,
    /// The most connections of one peer.
    pub connections_per_peer_max: NonZero<u32>,
    /// The most incoming connections of one address (IPv6: of one /64 network). A new one beyond the limit replaces the one among
    /// them that has been idle for longest.
    pub connections_per_address_max: NonZero<u32>,
    /// The most connections whose handshake is not complete, incoming and outgoing each. A new incoming one beyond the limit
    /// replaces an old one.
    pub handshakes_max: NonZero<u32>,
    /// The same for incoming connections of one address.
    pub handshakes_per_address_max: NonZero<u32>,
    /// The most open streams of one connection.
    pub streams_per_connection_max: NonZero<usize>,
    /// The most bytes that were received on one connection and not read yet. At this limit nothing more is received, and the
    /// connection is closed when nothing is read for five seconds.
    pub unread_bytes_per_connection_max: NonZero<usize>,
    /// The same over all connections. At this limit the connection with the most unread bytes is closed.
    pub unread_bytes_max: NonZero<usize>,
    /// The most requests that are answered at the same time over all connections.
    pub requests_max: NonZero<usize>,
    /// How long a handshake may take.
    #[serde(rename = "handshake_timeout_ms", with = "settings::milliseconds")]
    pub handshake_timeout: Duration,
    /// How long a request may take from its first byte to its last, and how long a peer may take for each 16 KiB of an answer,
    /// and for each MiB of it.
    #[serde(rename = "request_timeout_ms", with = "settings::milliseconds")]
    pub request_timeout: Duration,
    /// How long a connection, or a stream that was opened in advance, may be idle.
    #[serde(rename = "idle_timeout_seconds", with = "settings::seconds")]
    pub idle_timeout: Duration,
}

impl Default for NodeLimits {
    fn default() -> Self {
        Self {
            connections_max: nonzero!(1_000),
            connections_per_peer_max: nonzero!(8),
            connections_per_address_max: nonzero!(256),
            handshakes_max: nonzero!(256),
            handshakes_per_address_max: nonzero!(64),
            streams_per_connection_max: nonzero!(64),
            unread_bytes_per_connection_max: nonzero!(1 << 20),
            unread_bytes_max: nonzero!(256 << 20),
            requests_max: nonzero!(512),
            handshake_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(20),
            idle_timeout: Duration::from_secs(600),
        }
    }
}

/// Why a node could not be created or started.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// A setting can't be used.
    #[error("{0}")]
    Config(String),
    /// An address can't be listened on.
    #[error("can't listen on {address}: {reason}")]
    Listen {
        /// The address.
        address: Multiaddr,
        /// The system's error.
        reason: String,
    },
}

/// Why a message was not relayed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// No connected peer follows the topic.
    #[error("no peer follows the pubsub topic")]
    NoPeers,
    /// The same message was published before.
    #[error("the same message was relayed before")]
    Duplicate,
    /// The queues to all peers are full.
    #[error("the queues to all peers are full: try again later")]
    Busy,
    /// It is larger than the network accepts.
    #[error("the message is too large to be relayed")]
    TooLarge,
    /// This node does not relay.
    #[error("this node does not relay")]
    NoRelay,
    /// The node has been closed.
    #[error("the node is closed")]
    Closed,
}

/// Why a peer could not be reached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The address names no peer or can't be dialled.
    #[error("not an address of a peer: {0}")]
    Address(String),
    /// Nobody answered, or another peer did.
    #[error("can't connect to the peer: {0}")]
    Failed(String),
    /// The node has been closed.
    #[error("the node is closed")]
    Closed,
}

/// Why a peer did not answer a request.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// No stream could be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The stream broke.
    #[error("the stream to the peer broke: {0}")]
    Io(#[from] std::io::Error),
    /// The peer did not answer in time.
    #[error("the peer did not answer in time")]
    TimedOut,
    /// The answer is too long.
    #[error("the answer is longer than {0} bytes")]
    TooLong(usize),
}

/// A command to the swarm's task.
enum Command {
    Publish { topic: String, wire: Bytes, reply: oneshot::Sender<Result<usize, PublishError>> },
    Subscribe { topic: String, reply: oneshot::Sender<bool> },
    Unsubscribe { topic: String, reply: oneshot::Sender<bool> },
    Connect { address: Multiaddr, reply: oneshot::Sender<Result<PeerId, ConnectError>> },
    Disconnect { peer: PeerId },
    Close { reply: oneshot::Sender<()> },
}

/// A handle of a node. Clones are handles of the same node.
#[derive(Clone)]
pub struct Node {
    shared: Arc<Shared>,
    commands: mpsc::Sender<Command>,
}

struct Shared {
    peer_id: PeerId,
    key: Keypair,
    external: Vec<Multiaddr>,
    listening: RwLock<Vec<Multiaddr>>,
    topics: RwLock<Vec<String>>,
    peers: Peers,
    streams: Streams,
    events: broadcast::Sender<NodeEvent>,
    is_relay: bool,
    request_timeout: Duration,
    enr: OnceLock<String>,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("peer_id", &self.shared.peer_id).finish_non_exhaustive()
    }
}

impl Node {
    /// Creates a node that [`Unstarted::start`] starts. Services may get the handle before that.
    pub fn new(config: NodeConfig, metrics: NodeMetrics) -> (Self, Unstarted) {
        let (commands, received) = mpsc::channel(COMMANDS_MAX);
        let shared = Arc::new(Shared {
            peer_id: config.key.public().to_peer_id(),
            key: config.key.clone(),
            external: config.external_addresses.clone(),
            listening: RwLock::default(),
            topics: RwLock::default(),
            peers: Peers::default(),
            streams: Streams::new(config.limits, metrics.clone()),
            events: broadcast::channel(EVENTS_MAX).0,
            is_relay: config.relay.is_some(),
            request_timeout: config.limits.request_timeout,
            enr: OnceLock::new(),
        });
        let node = Self { shared, commands };
        let unstarted = Unstarted::new(node.clone(), config, metrics, received);
        (node, unstarted)
    }

    /// The node's peer id.
    pub fn peer_id(&self) -> PeerId {
        self.shared.peer_id
    }

    /// The node's key.
    pub fn key(&self) -> &Keypair {
        &self.shared.key
    }

    /// The addresses of the node: the external ones, then those that it listens on, each with the peer id.
    pub fn addresses(&self) -> Vec<Multiaddr> {
        let listening = self.shared.listening.read().clone();
        let all = self.shared.external.iter().cloned().chain(listening);
        all.map(|address| with_peer_id(address, self.shared.peer_id)).collect()
    }

    fn note_listening(&self, address: Multiaddr) {
        let mut listening = self.shared.listening.write();
        if !listening.contains(&address) {
            listening.push(address);
        }
    }

    fn forget_listening(&self, address: &Multiaddr) {
        self.shared.listening.write().retain(|known| known != address);
    }

    /// The node's own signed record as text (`enr:...`), once it is set.
    pub fn enr(&self) -> Option<&str> {
        self.shared.enr.get().map(String::as_str)
    }

    /// Sets the node's own signed record.
    pub(crate) fn set_enr(&self, enr: String) {
        let _ = self.shared.enr.set(enr);
    }

    /// Whether the node relays.
    pub fn is_relay(&self) -> bool {
        self.shared.is_relay
    }

    /// The pubsub topics that the node relays.
    pub fn topics(&self) -> Vec<String> {
        self.shared.topics.read().clone()
    }

    /// Sends a message to the followers of a pubsub topic, and returns the number of peers to which it was sent.
    ///
    /// # Errors
    /// See [`PublishError`].
    pub async fn publish(&self, topic: &str, wire: Bytes) -> Result<usize, PublishError> {
        if !self.is_relay() {
            return Err(PublishError::NoRelay);
        }
        let (reply, answer) = oneshot::channel();
        let command = Command::Publish { topic: topic.to_owned(), wire, reply };
        self.commands.send(command).await.map_err(|_| PublishError::Closed)?;
        answer.await.map_err(|_| PublishError::Closed)?
    }

    /// Starts relaying a pubsub topic; false when it was relayed already or the node does not relay.
    pub async fn subscribe(&self, topic: &str) -> bool {
        let (reply, answer) = oneshot::channel();
        let command = Command::Subscribe { topic: topic.to_owned(), reply };
        self.commands.send(command).await.is_ok() && answer.await.unwrap_or(false)
    }

    /// Stops relaying a pubsub topic; false when it was not relayed.
    pub async fn unsubscribe(&self, topic: &str) -> bool {
        let (reply, answer) = oneshot::channel();
        let command = Command::Unsubscribe { topic: topic.to_owned(), reply };
        self.commands.send(command).await.is_ok() && answer.await.unwrap_or(false)
    }

    /// Connects to a peer, unless it is connected already. The address ends with `/p2p/<peer id>`.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn connect(&self, address: Multiaddr) -> Result<PeerId, ConnectError> {
        let (reply, answer) = oneshot::channel();
        let command = Command::Connect { address, reply };
        self.commands.send(command).await.map_err(|_| ConnectError::Closed)?;
        answer.await.map_err(|_| ConnectError::Closed)?
    }

    /// Closes the connections to a peer.
    pub async fn disconnect(&self, peer: PeerId) {
        let _ = self.commands.send(Command::Disconnect { peer }).await;
    }

    /// The connected peers.
    pub fn peers(&self) -> Vec<PeerInfo> {
        self.shared.peers.all()
    }

    /// The entry of a connected peer.
    pub fn peer(&self, peer: PeerId) -> Option<PeerInfo> {
        self.shared.peers.get(peer)
    }

    /// Whether a peer is connected.
    pub fn is_connected(&self, peer: PeerId) -> bool {
        self.shared.peers.contains(peer)
    }

    /// The number of connected peers that follow a pubsub topic.
    pub fn followers(&self, topic: &str) -> usize {
        self.shared.peers.followers(topic)
    }

    /// Stores the metadata of a connected peer.
    pub(crate) fn note_metadata(&self, peer: PeerId, cluster_id: Option<u32>, shards: Vec<u32>) {
        self.shared.peers.note_metadata(peer, cluster_id, shards);
    }

    /// The events from now on.
    pub fn events(&self) -> broadcast::Receiver<NodeEvent> {
        self.shared.events.subscribe()
    }

    /// Opens a stream to a connected peer.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub async fn open(&self, peer: PeerId, protocol: &'static str) -> Result<Stream, OpenError> {
        self.shared.streams.open(peer, protocol).await
    }

    /// Sends a request to a connected peer: writes `frame` (the request with its length prefix), and returns the answer without
    /// the prefix.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn ask(
        &self,
        peer: PeerId,
        protocol: &'static str,
        frame: &[u8],
        answer_bytes_max: usize,
    ) -> Result<Bytes, AskError> {
        let asked = streams::ask(self, peer, protocol, frame, answer_bytes_max);
        tokio::time::timeout(self.shared.request_timeout, asked).await.map_err(|_| AskError::TimedOut)?
    }

    /// Sends a connected peer a message that is not answered: writes `frame` and closes the stream.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn send(&self, peer: PeerId, protocol: &'static str, frame: &[u8]) -> Result<(), AskError> {
        let sent = streams::send(self, peer, protocol, frame);
        tokio::time::timeout(self.shared.request_timeout, sent).await.map_err(|_| AskError::TimedOut)?
    }

    /// Closes all connections and ends the swarm's task.
    pub async fn close(&self) {
        let (reply, answer) = oneshot::channel();
        if self.commands.send(Command::Close { reply }).await.is_ok() {
            let _ = answer.await;
        }
    }
}

/// The address with the peer id at its end.
pub(crate) fn with_peer_id(address: Multiaddr, peer: PeerId) -> Multiaddr {
    address.clone().with_p2p(peer).unwrap_or(address)
}

/// The peer id in an address.
pub fn peer_of(address: &Multiaddr) -> Option<PeerId> {
    address.iter().find_map(|part| match part {
        libp2p::multiaddr::Protocol::P2p(peer) => Some(peer),
        _ => None,
    })
}

#[cfg(test)]
mod tests;
