use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use restante_core::{MessageHash, Timestamp};

use super::budget::{MemoryBudget, Permit};

/// The memory of an event besides its bytes: the struct and its entries in queues.
const EVENT_BYTES: usize = 256;
/// Encodings of an event that doors can make once for all readers.
const FORMS: usize = 2;

/// A message that has just arrived.
pub struct Event {
    /// A pubsub topic, or the owner of a chat archive.
    pub channel: Arc<str>,
    /// A content topic, or the correspondent.
    pub topic: Arc<str>,
    /// The message's hash.
    pub message_hash: MessageHash,
    /// The timestamp of the message.
    pub timestamp: Timestamp,
    /// The message in its wire format.
    pub body: Bytes,
    forms: [OnceLock<Bytes>; FORMS],
    is_archived: OnceLock<bool>,
    /// Its share of the hub's memory budget, from when it is first put into a queue until it is dropped.
    permit: OnceLock<Permit>,
}

/// An encoding of an event that is made once for all readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The frame that a filter pushes.
    Push,
    /// One line of JSON.
    Json,
}

impl Event {
    /// An event.
    pub fn new(
        channel: Arc<str>,
        topic: Arc<str>,
        message_hash: MessageHash,
        timestamp: Timestamp,
        body: Bytes,
    ) -> Self {
        let (forms, is_archived, permit) = Default::default();
        Self { channel, topic, message_hash, timestamp, body, forms, is_archived, permit }
    }

    /// A copy for long-term holders: it shares the bytes, and does not count in the hub's memory budget.
    pub fn to_unmetered(&self) -> Self {
        let (channel, topic) = (self.channel.clone(), self.topic.clone());
        let kept = Self::new(channel, topic, self.message_hash, self.timestamp, self.body.clone());
        Self { is_archived: self.is_archived.clone(), ..kept }
    }

    /// Whether an archive stores such messages, computed by the first caller: the hub can't decode bodies, and a door should not
    /// decode them once per session.
    pub fn is_archived(&self, find_out: impl FnOnce(&Self) -> bool) -> bool {
        *self.is_archived.get_or_init(|| find_out(self))
    }

    /// The event in an encoding, made by the first caller. It counts in the hub's memory budget from then on.
    pub fn form(&self, form: Form, make: impl FnOnce(&Self) -> Bytes) -> &Bytes {
        let [push, json] = &self.forms;
        let cell = match form {
            Form::Push => push,
            Form::Json => json,
        };
        cell.get_or_init(|| {
            let made = make(self);
            if let Some(permit) = self.permit.get() {
                permit.grow(made.len());
            }
            made
        })
    }

    /// The bytes that it takes in a queue, without its encodings.
    pub(super) fn bytes(&self) -> usize {
        EVENT_BYTES + self.channel.len() + self.topic.len() + self.body.len()
    }

    /// Takes its share of the budget, once; false when not enough is left.
    pub(super) fn acquire(&self, budget: &Arc<MemoryBudget>) -> bool {
        if self.permit.get().is_some() {
            return true;
        }
        let forms: usize = self.forms.iter().filter_map(OnceLock::get).map(Bytes::len).sum();
        let Some(permit) = budget.take(self.bytes() + forms) else { return false };
        // Of two concurrent calls the second drops its permit, which returns its share at once.
        let _ = self.permit.set(permit);
        true
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("channel", &self.channel)
            .field("topic", &self.topic)
            .finish_non_exhaustive()
    }
}
