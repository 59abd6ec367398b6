//! Hands messages to those who are here, as they arrive.

use std::sync::Arc;

use bytes::Bytes;

/// A message that has just arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Where it was sent.
    pub pubsub_topic: Arc<str>,
    /// What it is about.
    pub content_topic: Arc<str>,
    /// The message as on the wire.
    pub wire: Bytes,
}

/// Somebody who wants messages as they arrive.
pub trait Listener: Send + Sync + 'static {
    /// Takes a message, or leaves it. It is called on the relay's way: it looks up who wants the message, puts it into
    /// bounded queues, and never waits.
    fn hear(&self, arrival: &Arrival);

    /// Whether somebody would get the message who has asked for it. Who only watches says no.
    fn is_wanted(&self, _arrival: &Arrival) -> bool {
        false
    }
}
