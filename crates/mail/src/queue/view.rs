//! The queue as readers see it.

use std::sync::Arc;

use restante_core::BlobId;

use super::{NewRecipient, QueuedId, Reply, Return, Source, Transmission};

/// A message in the queue, without its recipients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedMessage {
    /// Where it comes from.
    pub source: Source,
    /// Its bytes.
    pub blob: BlobId,
    /// Their number.
    pub size: u64,
    /// The envelope sender; empty for `<>`.
    pub sender: String,
    /// `ENVID` (RFC 3461 §4.4).
    pub envelope_id: Option<String>,
    /// `RET`.
    pub returned: Option<Return>,
    /// How its bytes may be transmitted.
    pub transmission: Transmission,
    /// When it was queued, in seconds since 1970.
    pub queued: u64,
}

/// Whether a recipient is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum QueuedState {
    /// It is tried when it is due.
    Due,
    /// It is not tried until it is released.
    Held,
}

/// The last attempt for a recipient.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastAttempt {
    /// When it ended, in seconds since 1970.
    pub at: u64,
    /// What the server replied.
    pub reply: Reply,
}

/// A recipient in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedRecipient {
    /// Its identity.
    pub id: QueuedId,
    /// The message. Recipients that were read together share it.
    pub message: Arc<QueuedMessage>,
    /// The recipient.
    pub recipient: NewRecipient,
    /// Its domain, in lowercase.
    pub domain: String,
    /// Whether it is tried.
    pub state: QueuedState,
    /// When it is tried next, in seconds since 1970. While it is being tried: the end of the lease.
    pub due: u64,
    /// When it first became due, moved by the time in which nothing was tried: its expiry counts from here.
    pub first_due: u64,
    /// The attempts that were begun and that count.
    pub attempts: u32,
    /// Whether it is being tried: until `due`.
    pub is_leased: bool,
    /// Whether its sender got a report of the delay.
    pub is_delay_reported: bool,
    /// How often it could not be prepared for an attempt.
    pub faults: u32,
    /// How many times in a row it was returned for later without an attempt.
    pub returns: u32,
    /// The last attempt.
    pub last: Option<LastAttempt>,
    /// Why it is held.
    pub reason: Option<String>,
}

impl QueuedRecipient {
    /// Whether the first attempt is still to come, at a later time that its author has asked for (RFC 4865); `now` in seconds since 1970.
    pub fn is_scheduled(&self, now: u64) -> bool {
        self.first_due > now && self.attempts == 0
    }
}
