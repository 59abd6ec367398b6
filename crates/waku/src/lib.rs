//! The Waku door: a node of the network that takes messages in and hands history out, in the protocols that Waku's clients
//! speak.
//!
//! - A message comes in by relay, lightpush or REST: [`validate`] says whether it is taken, [`intake`] hands it to the
//!   archive, [`live`] to those who are here.
//! - It goes out by store queries, filter pushes and REST.
//! - [`node`] holds the connections; each protocol that peers ask by is a [`service`].

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
pub use libp2p::{Multiaddr, PeerId, identity::Keypair};
pub use metadata::MetadataMetrics;
pub use metrics::WakuMetrics;
