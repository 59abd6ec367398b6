//! Peers that are to be asked something once they are connected.

use std::collections::{HashSet, VecDeque};

use libp2p::PeerId;
use tokio::sync::broadcast::{Receiver, error::RecvError};

use crate::node::{Node, NodeEvent};

/// Names each connected peer that speaks a protocol, once per connection.
#[derive(Debug)]
pub(crate) struct PeerConnected {
    node: Node,
    protocol: &'static str,
    events: Receiver<NodeEvent>,
    /// As many as are connected: a peer that goes is taken out.
    named: HashSet<PeerId>,
    missed: VecDeque<PeerId>,
}

impl PeerConnected {
    /// Names the peers that connect from now on.
    pub(crate) fn new(node: Node, protocol: &'static str) -> Self {
        let events = node.events();
        Self { node, protocol, events, named: HashSet::new(), missed: VecDeque::new() }
    }

    /// The next one; none is lost when the wait is broken off. `None` when the node is gone.
    pub(crate) async fn next(&mut self) -> Option<PeerId> {
        loop {
            if let Some(peer) = self.missed.pop_front() {
                return Some(peer);
            }
            match self.events.recv().await {
                Ok(NodeEvent::Identified { peer, protocols }) => {
                    let is_speaker = protocols.iter().any(|protocol| protocol == self.protocol);
                    if is_speaker && self.named.insert(peer) {
                        return Some(peer);
                    }
                }
                Ok(NodeEvent::Gone { peer }) => {
                    self.named.remove(&peer);
                }
                Ok(NodeEvent::Connected { .. }) => {}
                Err(RecvError::Lagged(_)) => self.name_all_again(),
                Err(RecvError::Closed) => return None,
            }
        }
    }

    /// Who came and went has been missed: rather ask everybody again than leave one out.
    fn name_all_again(&mut self) {
        let speakers = speakers(&self.node, self.protocol);
        self.named = speakers.iter().copied().collect();
        self.missed = speakers.into();
    }
}

/// The connected peers that speak a protocol.
pub(crate) fn speakers(node: &Node, protocol: &str) -> Vec<PeerId> {
    let speaks = |protocols: &[String]| protocols.iter().any(|known| known == protocol);
    node.peers().into_iter().filter(|peer| speaks(&peer.protocols)).map(|peer| peer.peer).collect()
}
