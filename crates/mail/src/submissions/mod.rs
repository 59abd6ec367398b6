//! Submissions: emails that were submitted for sending (RFC 8621 §7).
//!
//! A submission is created in one commit with a record of kind [`crate::outbox`], by which a follower finds what to queue.
//! Conditional commits decide whether it can still be canceled: [`Mail::cancel_submission`] and [`Mail::release_submission`] can't
//! both succeed.

mod body;
mod edit;
mod outbox;
mod read;
mod report;

use std::collections::BTreeMap;

use restante_core::BlobId;
use restante_records::{RecordId, Revision};
use serde::{Deserialize, Serialize};

pub use outbox::OutboxEntry;

use crate::queue::{NewRecipient, Return, Transmission};

/// The most submissions that an account keeps: beyond that, those that were sent first are removed if they are done.
pub const SUBMISSIONS_MAX: u64 = 10_000;

/// A submission, RFC 8621 §7.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submission {
    /// The properties that queries use.
    pub head: SubmissionHead,
    /// The return path.
    pub mail_from: EnvelopeAddress,
    /// The recipients, each with its delivery status.
    pub rcpt_to: Vec<SubmissionRecipient>,
    /// The emails of the account that report on it (RFC 3464), in the order in which they came.
    pub reports: Vec<RecordId>,
}

/// The properties of a submission that queries use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubmissionHead {
    /// Its id.
    pub id: RecordId,
    /// The email, which may be gone.
    pub email: RecordId,
    /// The thread of the email.
    pub thread: RecordId,
    /// The identity.
    pub identity: RecordId,
    /// When it is released, in seconds since 1970.
    pub send_at: i64,
    /// Whether it can be canceled.
    pub undo: UndoStatus,
}

/// Whether a submission can be canceled (RFC 8621 §7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UndoStatus {
    /// It can.
    Pending,
    /// It is being sent, or was sent.
    Final,
    /// It was canceled, and nothing of it is sent.
    Canceled,
}

impl UndoStatus {
    /// As JMAP names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Final => "final",
            Self::Canceled => "canceled",
        }
    }
}

/// An address of an envelope, as the client gave it (RFC 8621 §7).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnvelopeAddress {
    /// The address.
    pub email: String,
    /// The parameters of SMTP, by name; `None` for those without a value.
    pub parameters: Option<BTreeMap<String, Option<String>>>,
}

/// A recipient of a submission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubmissionRecipient {
    /// As the client gave it.
    pub given: EnvelopeAddress,
    /// The address in the form that the queue uses.
    pub address: String,
    /// The last reply of a server, lines joined by LF.
    pub smtp_reply: String,
    /// Its state.
    pub state: RecipientState,
}

/// The state of a recipient: `delivered` of RFC 8621 §7.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RecipientState {
    /// It is in the queue.
    #[default]
    Queued,
    /// It was delivered to a mailbox of this server.
    Yes,
    /// It was not delivered, and will not be.
    No,
    /// Another server has accepted it.
    Unknown,
}

impl RecipientState {
    /// As JMAP names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Yes => "yes",
            Self::No => "no",
            Self::Unknown => "unknown",
        }
    }
}

/// An email to submit.
#[derive(Clone, Debug)]
pub struct NewSubmission {
    /// The state that submissions must be in, if any (RFC 8620 §5.3).
    pub if_in_state: Option<Revision>,
    /// The email.
    pub email: RecordId,
    /// Its thread.
    pub thread: RecordId,
    /// The identity.
    pub identity: RecordId,
    /// When it is released, in seconds since 1970.
    pub send_at: i64,
    /// Whether it can be canceled until then.
    pub is_pending: bool,
    /// The return path as the client gave it.
    pub mail_from: EnvelopeAddress,
    /// The recipients as the client gave them, in the order of those of `message`.
    pub rcpt_to: Vec<EnvelopeAddress>,
    /// The message for the queue.
    pub message: OutboxMessage,
}

/// A message for the queue: [`crate::queue::NewMessage`] without its source, which is the submission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxMessage {
    /// Its bytes, which were put or touched before, see [`restante_blobs::Blobs::touch`].
    pub blob: BlobId,
    /// Their number.
    pub size: u64,
    /// The envelope sender.
    pub sender: String,
    /// `ENVID` (RFC 3461 §4.4).
    pub envelope_id: Option<String>,
    /// `RET`.
    pub returned: Option<Return>,
    /// How its bytes may be transmitted.
    pub transmission: Transmission,
    /// Its recipients, one at least, each once.
    pub recipients: Vec<NewRecipient>,
}
