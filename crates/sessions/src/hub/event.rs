use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use restante_core::{MessageHash, Timestamp};

use super::budget::{MemoryBudget, Permit};

/// What an event takes beside its bytes: itself, and its subscribers in queues.
const EVENT_BYTES: usize = 256;
/// Forms of an event that doors may make once for all their readers.
const FORMS: usize = 2;

/// A message that has just arrived.
pub struct Event {
    /// Where it was sent: a pubsub topic, or the owner of a chat archive.
    pub channel: Arc<str>,
    /// What it is about: a content topic, or the correspondent.
    pub topic: Arc<str>,
    /// The message's hash.
    pub message_hash: MessageHash,
    /// The message's own time.
    pub timestamp: Timestamp,
    /// The message as on the wire.
    pub body: Bytes,
    forms: [OnceLock<Bytes>; FORMS],
    is_kept: OnceLock<bool>,
    /// Its part of the hub's room, from when it is first put into a queue until nobody has it any more.
    permit: OnceLock<Permit>,
}

/// A form of an event that is made once, however many read it.
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
        let (forms, is_kept, permit) = Default::default();
        Self { channel, topic, message_hash, timestamp, body, forms, is_kept, permit }
    }

    /// The same message for those who keep it for long: it shares the bytes, and takes none of the hub's room.
    pub fn to_kept(&self) -> Self {
        let (channel, topic) = (self.channel.clone(), self.topic.clone());
        let kept = Self::new(channel, topic, self.message_hash, self.timestamp, self.body.clone());
        Self { is_kept: self.is_kept.clone(), ..kept }
    }

    /// Whether an archive keeps such messages, found out by the first who asks: the hub can't read bodies, and those who
    /// can should not read each of them once for every session.
    pub fn is_kept(&self, find_out: impl FnOnce(&Self) -> bool) -> bool {
        *self.is_kept.get_or_init(|| find_out(self))
    }

    /// The event in a form, made by the first who asks for it. It counts in the hub's room from then on.
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

    /// What it takes in a queue, whatever forms of it were made.
    pub(super) fn bytes(&self) -> usize {
        EVENT_BYTES + self.channel.len() + self.topic.len() + self.body.len()
    }

    /// Takes its part of the room, once; false when there is not so much left.
    pub(super) fn acquire(&self, budget: &Arc<MemoryBudget>) -> bool {
        if self.permit.get().is_some() {
            return true;
        }
        let forms: usize = self.forms.iter().filter_map(OnceLock::get).map(Bytes::len).sum();
        let Some(permit) = budget.take(self.bytes() + forms) else { return false };
        // Of two at the same time the later gives its part back at once.
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
