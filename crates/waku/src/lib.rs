//! The Waku door: a node of the network that receives messages and serves history, over the protocols of Waku's clients.
//!
//! - A message arrives by relay, lightpush or REST: [`validate`] accepts or refuses it, [`intake`] appends it to the
//!   archive, [`live`] delivers it to subscribers.
//! - It leaves by store queries, filter pushes and REST.
//! - [`node`] manages the connections; each request-response protocol is a [`service`].

mod discovery;
mod door;
pub mod filter;
pub mod intake;
mod large;
pub mod lightpush;
pub mod live;
mod metadata;
mod metrics;
pub mod node;
mod peer_connected;
pub mod peer_exchange;
pub mod rates;
pub mod rest;
pub mod service;
pub mod store;
pub mod sync;
pub mod validate;

pub use door::{Services, Waku, WakuConfig};
/// Addresses and keys of the node are types of this crate.
pub use libp2p;
pub use libp2p::{Multiaddr, PeerId, identity::Keypair};
pub use metadata::MetadataMetrics;
pub use metrics::WakuMetrics;
