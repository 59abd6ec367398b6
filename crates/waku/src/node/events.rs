use libp2p::{Multiaddr, PeerId};

/// An event of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeEvent {
    /// A peer is connected by its first connection.
    Connected {
        /// The peer.
        peer: PeerId,
        /// The remote address of the connection.
        address: Multiaddr,
    },
    /// A peer has announced its protocols.
    Identified {
        /// The peer.
        peer: PeerId,
        /// Their ids.
        protocols: Vec<String>,
    },
    /// The last connection to a peer is closed.
    Gone {
        /// The peer.
        peer: PeerId,
    },
}
