//! What is noted of every delivery, for operators who look for a message.

use std::net::IpAddr;

use restante_core::Timestamp;
use restante_records::{AccountId, RecordId};

/// A recipient of a message, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryEntry {
    /// When.
    pub time: Timestamp,
    /// The client; `None` on a Unix socket.
    pub peer: Option<IpAddr>,
    /// The name that it gave itself.
    pub hello: String,
    /// The sender of the envelope; empty for `<>`.
    pub sender: String,
    /// The recipient of the envelope.
    pub recipient: String,
    /// The account, where one is known. A recipient that leads to several accounts has an entry for each.
    pub account: Option<AccountId>,
    /// The id in our `Received` field and in our reply.
    pub id: String,
    /// The Message-ID, without brackets, where the message was read.
    pub message_id: Option<String>,
    /// The length of the message as it was received; 0 when the recipient was refused before.
    pub bytes: u64,
    /// What became of it.
    pub outcome: Outcome,
}

/// What became of a recipient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is this email.
    Stored(RecordId),
    /// It was stored before.
    Repeated,
    /// Refused: the code and enhanced status of the reply. Codes below 500 ask the client to try again.
    Refused(u16, &'static str),
}

/// Takes entries. It must not block, and bounds what it keeps.
pub trait Journal: Send + Sync + 'static {
    /// Notes an entry.
    fn note(&self, entry: DeliveryEntry);
}
