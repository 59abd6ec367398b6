//! Real network nodes in this process: publishers, subscribers and clients of history.
//!
//! Each has a key, connections and a task of its own, as if it ran on another machine. None of them stores messages.

pub(crate) mod bare;
pub(crate) mod history;
pub(crate) mod letters;
mod sink;
pub(crate) mod users;

use std::{
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use bytes::Bytes;
use prometheus_client::{encoding::text, registry::Registry};
use restante_core::SystemClock;
use restante_waku::{
    Keypair, Multiaddr, PeerId, Waku, WakuConfig, WakuMetrics,
    live::Listener,
    node::{Node, NodeConfig, PeerAddress, PublishError, peer_of},
    validate::Rules,
};

use crate::scrape::Scrape;
use sink::Sink;

/// Where messages are published: a static shard of an unused cluster.
pub(crate) const CLUSTER: u16 = 42;
pub(crate) const SHARD: u16 = 0;
pub(crate) const PUBSUB_TOPIC: &str = "/waku/2/rs/42/0";

/// The time limit of anything that must happen between nodes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(5);
/// How long a publisher waits when the queues are full: the first and the longest wait, doubling.
const BUSY_FIRST: Duration = Duration::from_millis(2);
const BUSY_LAST: Duration = Duration::from_millis(200);

/// The role of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// It queries, without relay.
    Light,
    /// It publishes by relay without subscribing.
    Publisher,
    /// It subscribes to relay and receives every message.
    Relay,
}

/// A node in this process.
pub(crate) struct Peer {
    waku: Waku,
    pub(crate) node: Node,
    registry: Registry,
}

/// The result of publishing one message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sent {
    /// How often the queues were full, or no peer was connected.
    pub(crate) retries: u64,
}

impl Peer {
    /// Starts a node that connects to each of the servers.
    pub(crate) async fn start(
        role: Role,
        servers: &[Multiaddr],
        listeners: Vec<Arc<dyn Listener>>,
    ) -> anyhow::Result<Self> {
        let metrics = WakuMetrics::default();
        let mut registry = Registry::default();
        metrics.register(&mut registry);
        let archive = Arc::new(Sink::open().await?);
        let clock = Arc::new(SystemClock);
        let waku = Waku::start(
            config(role, servers)?,
            archive,
            clock,
            restante_waku::live::standalone().await?,
            listeners,
            &metrics,
        )
        .await?;
        let node = waku.node.clone().context("the node was not started")?;
        Ok(Self { waku, node, registry })
    }

    /// Starts a node and waits until it is connected to all servers and, if it relays, until they know it.
    pub(crate) async fn start_connected(
        role: Role,
        servers: &[Multiaddr],
        listeners: Vec<Arc<dyn Listener>>,
    ) -> anyhow::Result<Self> {
        let peer = Self::start(role, servers, listeners).await?;
        peer.settle(role, servers).await?;
        Ok(peer)
    }

    async fn settle(&self, role: Role, servers: &[Multiaddr]) -> anyhow::Result<()> {
        for server in servers {
            let id = id_of(server)?;
            let is_ready = || self.knows(id, role);
            let waited = until(PATIENCE, async || is_ready()).await;
            ensure!(waited.is_some(), "a node did not find its server {server} within a minute");
        }
        Ok(())
    }

    /// Whether a server is connected and has sent what this role needs to know.
    fn knows(&self, server: PeerId, role: Role) -> bool {
        let Some(info) = self.node.peer(server) else { return false };
        match role {
            Role::Light => !info.protocols.is_empty(),
            Role::Publisher => info.topics.contains(PUBSUB_TOPIC),
            Role::Relay => info.mesh_topics.contains(PUBSUB_TOPIC) || info.topics.contains(PUBSUB_TOPIC),
        }
    }

    /// Whether a server is in this node's mesh, so that it pushes messages.
    pub(crate) fn is_in_mesh(&self, server: PeerId) -> bool {
        self.node.peer(server).is_some_and(|info| info.mesh_topics.contains(PUBSUB_TOPIC))
    }

    /// Publishes a message, with retries while the queues are full or no peer is connected.
    pub(crate) async fn publish(&self, wire: &Bytes) -> Result<Sent, PublishError> {
        let begun = Instant::now();
        let mut pause = BUSY_FIRST;
        let mut sent = Sent::default();
        loop {
            let error = match self.node.publish(PUBSUB_TOPIC, wire.clone()).await {
                Ok(_) => return Ok(sent),
                Err(error) => error,
            };
            let may_pass = matches!(error, PublishError::Busy | PublishError::NoPeers);
            if !may_pass || begun.elapsed() > PATIENCE {
                return Err(error);
            }
            sent.retries += 1;
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(BUSY_LAST);
        }
    }

    /// The metrics of this node.
    pub(crate) fn counts(&self) -> Scrape {
        let mut text_format = String::new();
        text::encode(&mut text_format, &self.registry).expect("writing into a string can't fail");
        Scrape::parse(&text_format)
    }

    /// Closes the node.
    pub(crate) async fn close(self) {
        // A node that does not close in time is dropped: the process ends with the bench.
        let _ = tokio::time::timeout(PATIENCE, self.waku.close()).await;
    }
}

/// Starts nodes by [`Peer::start_connected`], a few at a time.
pub(crate) async fn start_many(
    count: u64,
    role: Role,
    servers: &[Multiaddr],
) -> anyhow::Result<Vec<Arc<Peer>>> {
    /// Handshakes cost both sides; more at once would only wait for each other.
    const AT_ONCE: usize = 8;
    let permits = Arc::new(tokio::sync::Semaphore::new(AT_ONCE));
    let mut starting = tokio::task::JoinSet::new();
    for _ in 0..count {
        let (permits, servers) = (permits.clone(), servers.to_vec());
        starting.spawn(async move {
            let _permit = permits.acquire_owned().await?;
            Peer::start_connected(role, &servers, Vec::new()).await
        });
    }
    let mut peers = Vec::new();
    while let Some(started) = starting.join_next().await {
        peers.push(Arc::new(started??));
    }
    Ok(peers)
}

/// Closes all of them; one with other owners closes when the last drops it.
pub(crate) async fn close_many(peers: Vec<Arc<Peer>>) {
    let mut closing = tokio::task::JoinSet::new();
    for peer in peers {
        if let Some(peer) = Arc::into_inner(peer) {
            closing.spawn(peer.close());
        }
    }
    closing.join_all().await;
}

/// The peer id in a server's address.
pub(crate) fn id_of(address: &Multiaddr) -> anyhow::Result<PeerId> {
    peer_of(address).with_context(|| format!("{address} names no peer"))
}

/// Waits until a condition holds and returns the time that took; `None` on a timeout.
pub(crate) async fn until<F: Future<Output = bool>>(
    limit: Duration,
    mut holds: impl FnMut() -> F,
) -> Option<Duration> {
    let begun = Instant::now();
    loop {
        if holds().await {
            return Some(begun.elapsed());
        }
        if begun.elapsed() > limit {
            return None;
        }
        tokio::time::sleep(POLL).await;
    }
}

/// The settings of a node that connects to these servers, each with its peer id.
pub(crate) fn node_config(role: Role, servers: &[Multiaddr]) -> anyhow::Result<NodeConfig> {
    let relay = match role {
        Role::Light => None,
        Role::Publisher => Some(Vec::new()),
        Role::Relay => Some(vec![PUBSUB_TOPIC.to_owned()]),
    };
    let static_peers: Result<_, String> = servers.iter().cloned().map(PeerAddress::try_from).collect();
    let static_peers = static_peers.map_err(anyhow::Error::msg)?;
    Ok(NodeConfig { static_peers, relay, ..NodeConfig::new(Keypair::generate_secp256k1()) })
}

fn config(role: Role, servers: &[Multiaddr]) -> anyhow::Result<WakuConfig> {
    // A message that waits in a queue under load must not be refused for its age.
    let rules = Rules {
        cluster_id: Some(CLUSTER),
        shards: vec![SHARD],
        timestamp_window_seconds: 0,
        ..Rules::default()
    };
    Ok(WakuConfig { rules, node: Some(node_config(role, servers)?), ..WakuConfig::default() })
}

#[cfg(test)]
pub(crate) mod tests;
