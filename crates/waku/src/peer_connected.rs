//! Notifies of newly connected peers that support a protocol.

use std::collections::{HashSet, VecDeque};

use libp2p::PeerId;
use tokio::sync::broadcast::{Receiver, error::RecvError};

use crate::node::{Node, NodeEvent};

/// Returns each peer that supports a protocol, once after it connected.
#[derive(Debug)]
pub(crate) struct PeerConnected {
    node: Node,
    protocol: &'static str,
    events: Receiver<NodeEvent>,
    /// Peers that were returned and are still connected.
    returned: HashSet<PeerId>,
    missed: VecDeque<PeerId>,
}

impl PeerConnected {
    /// Returns the peers that connect from now on.
    pub(crate) fn new(node: Node, protocol: &'static str) -> Self {
        let events = node.events();
        Self { node, protocol, events, returned: HashSet::new(), missed: VecDeque::new() }
    }

    /// The next peer; `None` when the node has ended. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<PeerId> {
        loop {
            if let Some(peer) = self.missed.pop_front() {
                return Some(peer);
            }
            match self.events.recv().await {
                Ok(NodeEvent::Identified { peer, protocols }) => {
                    let is_supported = protocols.iter().any(|protocol| protocol == self.protocol);
                    if is_supported && self.returned.insert(peer) {
                        return Some(peer);
                    }
                }
                Ok(NodeEvent::Gone { peer }) => {
                    self.returned.remove(&peer);
                }
                Ok(NodeEvent::Connected { .. }) => {}
                Err(RecvError::Lagged(_)) => self.start_over(),
                Err(RecvError::Closed) => return None,
            }
        }
    }

    /// Returns all connected peers again: events were missed, and it is better to query a peer twice than never.
    fn start_over(&mut self) {
        let peers = supporting_peers(&self.node, self.protocol);
        self.returned = peers.iter().copied().collect();
        self.missed = peers.into();
    }
}

/// The connected peers that support a protocol.
pub(crate) fn supporting_peers(node: &Node, protocol: &str) -> Vec<PeerId> {
    let supports = |protocols: &[String]| protocols.iter().any(|known| known == protocol);
    node.peers().into_iter().filter(|peer| supports(&peer.protocols)).map(|peer| peer.peer).collect()
}
