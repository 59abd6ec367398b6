use libp2p::{Multiaddr, PeerId};

/// What happens at a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeEvent {
    /// A peer is connected by its first connection.
    Connected {
        /// Who.
        peer: PeerId,
        /// From where, or where it was dialled.
        address: Multiaddr,
    },
    /// A peer has told which protocols it speaks.
    Identified {
        /// Who.
        peer: PeerId,
        /// Their ids.
        protocols: Vec<String>,
    },
    /// The last connection to a peer is closed.
    Gone {
        /// Who.
        peer: PeerId,
    },
}
