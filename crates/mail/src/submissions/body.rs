//! How a submission is stored.

use restante_core::Error;
use restante_records::{Properties, Record, RecordId};
use serde::{Deserialize, Serialize};

use super::{
    EnvelopeAddress, NewSubmission, RecipientState, Submission, SubmissionHead, SubmissionRecipient,
    UndoStatus,
};
use crate::{mailboxes::number_of, schema::submission};

/// The body of its record, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SubmissionBody {
    pub(super) mail_from: EnvelopeAddress,
    pub(super) rcpt_to: Vec<RecipientBody>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) reports: Vec<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RecipientBody {
    #[serde(flatten)]
    pub(super) given: EnvelopeAddress,
    pub(super) address: String,
    pub(super) smtp_reply: String,
    pub(super) delivered: RecipientState,
}

impl SubmissionBody {
    pub(super) fn new(new: &NewSubmission) -> Self {
        let recipients = new.rcpt_to.iter().zip(&new.message.recipients);
        let recipient = |(given, queued): (&EnvelopeAddress, &crate::queue::NewRecipient)| RecipientBody {
            given: given.clone(),
            address: queued.address.clone(),
            smtp_reply: String::new(),
            delivered: RecipientState::Queued,
        };
        Self {
            mail_from: new.mail_from.clone(),
            rcpt_to: recipients.map(recipient).collect(),
            reports: Vec::new(),
        }
    }

    pub(super) fn read(record: &Record) -> Result<Self, Error> {
        serde_json::from_slice(&record.body.bytes).map_err(|error| {
            Error::corrupt(format!("the record of submission {} is damaged: {error}", record.id.0))
        })
    }

    pub(super) fn json(&self) -> Result<Vec<u8>, Error> {
        let json = serde_json::to_vec(self);
        json.map_err(|error| Error::internal(format!("a submission can't be written as JSON: {error}")))
    }
}

impl SubmissionHead {
    /// Reads the properties of a record.
    ///
    /// # Errors
    /// `Corrupt` for values that are never written.
    pub(super) fn of(record: &Record) -> Result<Self, Error> {
        let damaged = || Error::corrupt(format!("the record of submission {} lacks properties", record.id.0));
        let number = |property| number_of(&record.properties, property).ok_or_else(damaged);
        let undo = match number(submission::UNDO)? {
            submission::PENDING => UndoStatus::Pending,
            submission::FINAL => UndoStatus::Final,
            submission::CANCELED => UndoStatus::Canceled,
            _ => return Err(damaged()),
        };
        Ok(Self {
            id: record.id,
            email: RecordId(number(submission::EMAIL)?),
            thread: RecordId(number(submission::THREAD)?),
            identity: RecordId(number(submission::IDENTITY)?),
            send_at: i64::try_from(number(submission::SEND_AT)?).unwrap_or(i64::MAX),
            undo,
        })
    }

    pub(super) fn properties(&self) -> Properties {
        let undo = match self.undo {
            UndoStatus::Pending => submission::PENDING,
            UndoStatus::Final => submission::FINAL,
            UndoStatus::Canceled => submission::CANCELED,
        };
        Properties::default()
            .with(submission::EMAIL, self.email)
            .with(submission::THREAD, self.thread)
            .with(submission::IDENTITY, self.identity)
            .with(submission::SEND_AT, seconds(self.send_at))
            .with(submission::UNDO, undo)
    }
}

impl Submission {
    pub(super) fn of(record: &Record) -> Result<Self, Error> {
        let head = SubmissionHead::of(record)?;
        let SubmissionBody { mail_from, rcpt_to, reports } = SubmissionBody::read(record)?;
        let recipient = |RecipientBody { given, address, smtp_reply, delivered }| SubmissionRecipient {
            given,
            address,
            smtp_reply,
            state: delivered,
        };
        Ok(Self {
            head,
            mail_from,
            rcpt_to: rcpt_to.into_iter().map(recipient).collect(),
            reports: reports.into_iter().map(RecordId).collect(),
        })
    }
}

/// A time as it is stored in properties.
pub(super) fn seconds(time: i64) -> u64 {
    u64::try_from(time).unwrap_or_default()
}
