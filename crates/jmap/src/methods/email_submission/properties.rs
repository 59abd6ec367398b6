//! The properties of a submission (RFC 8621 §7).

use restante_mail::{EnvelopeAddress, RecipientState, Submission};
use serde_json::{Map, Value, json};

use crate::core::{BlobRef, IdType, args::write_utc_date};

/// The reply that is shown until a server was contacted (RFC 8621 §7: the recipient was accepted here).
const QUEUED_REPLY: &str = "250 2.1.5 Queued";

/// A property of a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SubmissionProperty {
    Id,
    IdentityId,
    EmailId,
    ThreadId,
    Envelope,
    SendAt,
    UndoStatus,
    DeliveryStatus,
    DsnBlobIds,
    MdnBlobIds,
}

impl SubmissionProperty {
    pub(super) const ALL: [Self; 10] = [
        Self::Id,
        Self::IdentityId,
        Self::EmailId,
        Self::ThreadId,
        Self::Envelope,
        Self::SendAt,
        Self::UndoStatus,
        Self::DeliveryStatus,
        Self::DsnBlobIds,
        Self::MdnBlobIds,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Id => "id",
            Self::IdentityId => "identityId",
            Self::EmailId => "emailId",
            Self::ThreadId => "threadId",
            Self::Envelope => "envelope",
            Self::SendAt => "sendAt",
            Self::UndoStatus => "undoStatus",
            Self::DeliveryStatus => "deliveryStatus",
            Self::DsnBlobIds => "dsnBlobIds",
            Self::MdnBlobIds => "mdnBlobIds",
        }
    }

    pub(super) fn value(self, submission: &Submission) -> Value {
        let head = &submission.head;
        match self {
            Self::Id => IdType::EmailSubmission.id(head.id).into(),
            Self::IdentityId => IdType::Identity.id(head.identity).into(),
            Self::EmailId => IdType::Email.id(head.email).into(),
            Self::ThreadId => IdType::Thread.id(head.thread).into(),
            Self::Envelope => {
                let recipients = submission.rcpt_to.iter().map(|recipient| &recipient.given);
                envelope(&submission.mail_from, recipients)
            }
            Self::SendAt => utc_date(head.send_at),
            Self::UndoStatus => head.undo.name().into(),
            Self::DeliveryStatus => delivery_status(submission),
            Self::DsnBlobIds => {
                let blobs = submission.reports.iter().map(|email| BlobRef::email(*email).to_string());
                blobs.collect::<Vec<String>>().into()
            }
            Self::MdnBlobIds => json!([]),
        }
    }
}

/// The whole object.
pub(super) fn object(submission: &Submission) -> Map<String, Value> {
    let all = SubmissionProperty::ALL.into_iter();
    all.map(|property| (property.name().to_owned(), property.value(submission))).collect()
}

/// An envelope as JMAP has it.
pub(super) fn envelope<'a>(
    mail_from: &EnvelopeAddress,
    rcpt_to: impl Iterator<Item = &'a EnvelopeAddress>,
) -> Value {
    json!({ "mailFrom": mail_from, "rcptTo": rcpt_to.collect::<Vec<_>>() })
}

/// A `UTCDate`.
pub(super) fn utc_date(seconds: i64) -> Value {
    let mut json = Vec::new();
    write_utc_date(seconds, &mut json);
    serde_json::from_slice(&json).unwrap_or_default() // it was written as a string
}

/// SU5: the delivery status of each recipient.
fn delivery_status(submission: &Submission) -> Value {
    let mut status = Map::new();
    for recipient in &submission.rcpt_to {
        let is_unasked = recipient.state == RecipientState::Queued && recipient.smtp_reply.is_empty();
        let smtp_reply = if is_unasked { QUEUED_REPLY } else { &recipient.smtp_reply };
        let of_recipient =
            json!({ "smtpReply": smtp_reply, "delivered": recipient.state.name(), "displayed": "unknown" });
        status.insert(recipient.given.email.clone(), of_recipient);
    }
    status.into()
}
