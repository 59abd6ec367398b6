//! The table of connected peers.

use std::collections::{BTreeSet, HashMap};

use libp2p::{Multiaddr, PeerId};
use parking_lot::RwLock;

/// What is known about a connected peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// The peer id.
    pub peer: PeerId,
    /// The remote address of its first connection.
    pub address: Multiaddr,
    /// Who opened the connection.
    pub direction: Direction,
    /// The protocols that it announced.
    pub protocols: Vec<String>,
    /// Its agent version.
    pub agent: String,
    /// The cluster that it announced.
    pub cluster_id: Option<u32>,
    /// The shards that it announced.
    pub shards: Vec<u32>,
    /// The pubsub topics that it follows.
    pub topics: BTreeSet<String>,
    /// The pubsub topics for which it is in our mesh.
    pub mesh_topics: BTreeSet<String>,
    /// Whether it is a static peer.
    pub is_static: bool,
    /// The last round-trip time.
    pub latency_ms: Option<u64>,
}

/// Who opened a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The peer.
    Inbound,
    /// This node.
    Outbound,
}

/// The connected peers.
#[derive(Debug, Default)]
pub(crate) struct Peers {
    by_id: RwLock<HashMap<PeerId, PeerInfo>>,
}

impl Peers {
    pub(crate) fn all(&self) -> Vec<PeerInfo> {
        let mut all: Vec<PeerInfo> = self.by_id.read().values().cloned().collect();
        all.sort_by_key(|peer| peer.peer);
        all
    }

    pub(crate) fn get(&self, peer: PeerId) -> Option<PeerInfo> {
        self.by_id.read().get(&peer).cloned()
    }

    pub(crate) fn contains(&self, peer: PeerId) -> bool {
        self.by_id.read().contains_key(&peer)
    }

    pub(crate) fn insert(&self, peer: PeerId, address: Multiaddr, direction: Direction, is_static: bool) {
        let info = PeerInfo {
            peer,
            address,
            direction,
            protocols: Vec::new(),
            agent: String::new(),
            cluster_id: None,
            shards: Vec::new(),
            topics: BTreeSet::new(),
            mesh_topics: BTreeSet::new(),
            is_static,
            latency_ms: None,
        };
        self.by_id.write().insert(peer, info);
    }

    pub(crate) fn remove(&self, peer: PeerId) {
        self.by_id.write().remove(&peer);
    }

    /// Updates the entry of a peer, if it is still connected.
    pub(crate) fn change(&self, peer: PeerId, change: impl FnOnce(&mut PeerInfo)) {
        if let Some(info) = self.by_id.write().get_mut(&peer) {
            change(info);
        }
    }

    /// Whether a peer follows any pubsub topic.
    pub(crate) fn is_follower(&self, peer: PeerId) -> bool {
        self.by_id.read().get(&peer).is_some_and(|info| !info.topics.is_empty())
    }

    /// The number of peers that follow a pubsub topic.
    pub(crate) fn followers(&self, topic: &str) -> usize {
        self.by_id.read().values().filter(|info| info.topics.contains(topic)).count()
    }

    pub(crate) fn set_meshes(&self, mut meshes: HashMap<PeerId, BTreeSet<String>>) {
        for (peer, info) in self.by_id.write().iter_mut() {
            info.mesh_topics = meshes.remove(peer).unwrap_or_default();
        }
    }

    pub(crate) fn note_metadata(&self, peer: PeerId, cluster_id: Option<u32>, shards: Vec<u32>) {
        self.change(peer, |info| (info.cluster_id, info.shards) = (cluster_id, shards));
    }
}
