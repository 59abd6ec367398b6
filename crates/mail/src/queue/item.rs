//! What the queue of outgoing mail holds.

use restante_core::BlobId;
use restante_records::{AccountId, RecordId};
use serde::{Deserialize, Serialize};

/// A recipient in the queue: the reserved account that holds its record, and the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueuedId {
    /// One of the reserved accounts of the queue.
    pub account: AccountId,
    /// Its record there.
    pub record: RecordId,
}

/// Where a queued message comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SourceKind {
    /// An EmailSubmission (RFC 8621 §7): `Source::record` is its id.
    Submission,
    /// Submission by SMTP (RFC 6409).
    Smtp,
    /// A message that an alias forwards to another server.
    Forward,
    /// A report about another message (RFC 3464).
    Report,
    /// A vacation reply (RFC 3834): `Source::record` is the email that it answers.
    Vacation,
    /// An aggregate report of DMARC (RFC 7489 §7.2).
    AggregateReport,
}

/// Where a queued message comes from, and what identifies it when it is queued again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// What queued it.
    pub kind: SourceKind,
    /// The account that sends it; none for forwards and for reports to other servers.
    pub account: Option<AccountId>,
    /// The record that it belongs to, 0 for none. A report about a submission has that submission.
    pub record: RecordId,
    /// Identifies the message: adding the same key and recipient again adds nothing.
    pub key: [u8; 32],
}

/// How a message body may be transmitted (RFC 6152, RFC 6531).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Transmission {
    /// Whether it has octets above 127.
    pub is_8bit: bool,
    /// Whether an address or a header field needs SMTPUTF8.
    pub is_utf8: bool,
}

/// How much of a message a report returns: `RET` (RFC 3461 §4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Return {
    /// All of it.
    Full,
    /// Its header.
    Headers,
}

/// Which outcomes for a recipient are reported: `NOTIFY` (RFC 3461 §4.1). `NEVER` is all false.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Notify {
    /// When it was delivered.
    pub on_success: bool,
    /// When it failed.
    pub on_failure: bool,
    /// When it is delayed.
    pub on_delay: bool,
}

impl Default for Notify {
    /// The default without `NOTIFY`: failures and delays are reported.
    fn default() -> Self {
        Self { on_success: false, on_failure: true, on_delay: true }
    }
}

/// A recipient of a message that is queued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewRecipient {
    /// The address as SMTP writes it, without brackets; the domain in lowercase.
    pub address: String,
    /// When the sender gets a report.
    pub notify: Notify,
    /// `ORCPT` (RFC 3461 §4.2) as it was given: `rfc822;bob@example.net`.
    pub original: Option<String>,
}

/// A message to queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewMessage {
    /// Where it comes from.
    pub source: Source,
    /// Its bytes, which are stored already.
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
    /// When the first attempt is made, in seconds since 1970: now, or the end of a delay that the sender asked for (RFC 4865).
    pub due: u64,
    /// Its recipients, one at least, each once.
    pub recipients: Vec<NewRecipient>,
}

/// A reply of a server, or one that this server made because no server could be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reply {
    /// The reply code (RFC 5321 §4.2), such as 250, 451 or 550.
    pub code: u16,
    /// The enhanced status code (RFC 3463), such as `5.1.1`.
    pub enhanced: String,
    /// Its text in one line.
    pub text: String,
    /// The server that replied; `None` for a reply that this server made.
    pub from: Option<String>,
}

impl Reply {
    /// A reply of this server about another one.
    pub fn own(code: u16, enhanced: &str, text: impl Into<String>) -> Self {
        Self { code, enhanced: enhanced.to_owned(), text: text.into(), from: None }
    }

    /// Whether trying again is useless.
    pub fn is_permanent(&self) -> bool {
        self.code >= 500
    }

    /// Whether the message was accepted.
    pub fn is_success(&self) -> bool {
        self.code < 300
    }
}
