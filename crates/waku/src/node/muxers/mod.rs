//! Both muxers that peers may choose, with one bound for the bytes that wait to be read on a connection, and one for all
//! connections.
//!
//! Neither protocol bounds them well enough by itself: mplex has no flow control, and yamux gives each stream a window of
//! 256 KiB. So both count what they hold against a [`Budget`]. A connection that has used up its part is not read from until
//! some of it is read, which slows its peer down by TCP's own flow control, and is closed when that takes too long.

mod budget;
mod mplex;
mod yamux;

pub(crate) use budget::Budget;
pub(crate) use mplex::Mplex;
pub(crate) use yamux::Yamux;

/// What an open stream counts, beside what waits on it: its state, and the buffers of its negotiation.
const STREAM_BYTES: usize = 1 << 10;

#[cfg(test)]
mod tests;
