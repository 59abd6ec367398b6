use std::sync::Arc;

use bytes::Bytes;
use restante_core::{Key, MessageHash, Timestamp};

use crate::{APPEND_MESSAGES_MAX, Error};

/// The longest body in bytes: more than any door accepts, low enough that a segment can't overflow.
pub const BODY_BYTES_MAX: usize = 16 << 20;
/// The longest channel name in bytes.
pub const CHANNEL_BYTES_MAX: usize = 1024;
/// The longest topic in bytes.
pub const TOPIC_BYTES_MAX: usize = 4096;

/// A message as the archive stores it. The body is what arrived on the wire and is never decoded here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The identity of the message; it is expected to cover the timestamp.
    pub message_hash: MessageHash,
    /// Waku: the pubsub topic. Chat: the archive's owner.
    pub channel: Arc<str>,
    /// Waku: the content topic. Chat: the correspondent.
    pub topic: Arc<str>,
    /// When the sender says it was sent.
    pub timestamp: Timestamp,
    /// The bytes as on the wire.
    pub body: Bytes,
}

impl Message {
    /// The message's position in the total order, which is also its identity.
    pub fn key(&self) -> Key {
        Key { timestamp: self.timestamp, message_hash: self.message_hash }
    }

    /// Checks the limits of [`crate::Archive::append`].
    fn check_bounds(&self) -> Result<(), Error> {
        let parts = [
            ("body", self.body.len(), BODY_BYTES_MAX),
            ("channel", self.channel.len(), CHANNEL_BYTES_MAX),
            ("topic", self.topic.len(), TOPIC_BYTES_MAX),
        ];
        for (what, len, max) in parts {
            if len > max {
                return Err(Error::invalid(format!(
                    "{what} of {len} bytes is too long: the limit is {max} bytes"
                )));
            }
        }
        Ok(())
    }
}

/// Checks the limits of a batch and of its messages.
pub(crate) fn check_batch(messages: &[Message]) -> Result<(), Error> {
    if messages.len() > APPEND_MESSAGES_MAX {
        let len = messages.len();
        return Err(Error::invalid(format!("batch of {len} messages: the limit is {APPEND_MESSAGES_MAX}")));
    }
    messages.iter().try_for_each(Message::check_bounds)
}

/// The outcome for an appended message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Appended {
    /// It is stored now.
    Stored,
    /// It was already stored; nothing changed.
    Duplicate,
    /// The engine is unavailable. The message is durable in the spool, and will be stored once the engine is available again;
    /// until then no query sees it.
    Spooled,
}

/// A topic within its channel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TopicName {
    /// See [`Message::channel`].
    pub channel: Arc<str>,
    /// See [`Message::topic`].
    pub topic: Arc<str>,
}
