//! A message on its way out of the queue.

use bytes::Bytes;
use restante_mail_wire::header::{Header, as_message_ids};
use restante_records::{AccountId, RecordId};

use super::{Notify, Reply, Return, SourceKind, Transmission};

/// A message as it is transmitted to a server or placed in an account.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// Its bytes: lines end in CRLF, there is no other CR or LF and no NUL, the last line is ended. Not dot-stuffed.
    pub bytes: Bytes,
    /// The envelope sender; empty for `<>`.
    pub sender: String,
    /// `ENVID`.
    pub envelope_id: Option<String>,
    /// `RET`.
    pub returned: Option<Return>,
    /// How its bytes may be transmitted.
    pub transmission: Transmission,
    /// What queued it.
    pub source: SourceKind,
    /// The account that sends it.
    pub account: Option<AccountId>,
    /// The record that it belongs to, 0 for none.
    pub record: RecordId,
    /// Identifies the message.
    pub key: [u8; 32],
}

impl Outgoing {
    /// Its Message-ID, without brackets.
    pub fn message_id(&self) -> Option<String> {
        message_id(&self.bytes)
    }
}

/// The Message-ID of a message or of its beginning, without brackets.
pub fn message_id(message: &[u8]) -> Option<String> {
    let field = Header::parse(message).last("Message-ID")?;
    as_message_ids(field.value)?.into_iter().next()
}

/// A recipient as it is transmitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipient {
    /// The address.
    pub address: String,
    /// `NOTIFY`.
    pub notify: Notify,
    /// `ORCPT`.
    pub original: Option<String>,
}

/// The outcome for a recipient in an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempted {
    /// The reply: 2yz delivered, 4yz to be tried again, 5yz failed for good.
    pub reply: Reply,
    /// Whether the server that accepted it sends further reports itself (it has `DSN`), so that this server does not report the success.
    pub is_reported_further: bool,
    /// Whether an alias of this server leads to other servers: the copies for them are in the queue.
    pub is_forwarded: bool,
}
