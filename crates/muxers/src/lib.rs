//! The stream muxers of libp2p that peers may choose, yamux and mplex, with a bound for the unread bytes of a connection, and one for
//! all connections.
//!
//! The protocols don't bound them well enough: mplex has no flow control, and yamux gives each stream a window of 256 KiB. So
//! both count unread bytes against a [`Budget`]. Nothing is received on a connection at its limit until some bytes are read,
//! so TCP's flow control slows its peer down, and the connection is closed when that takes too long.

mod budget;
mod metrics;
mod mplex;
mod yamux;

pub use budget::{Budget, Limits};
pub use metrics::MuxerMetrics;
pub use mplex::Mplex;
pub use yamux::Yamux;

/// The bytes counted for an open stream besides its unread ones: its state, and the buffers of its negotiation.
const STREAM_BYTES: usize = 1 << 10;

#[cfg(test)]
mod tests;
