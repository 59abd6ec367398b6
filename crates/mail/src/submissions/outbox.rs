//! Messages to be queued: records of kind [`crate::outbox`].

use restante_core::{BlobId, Error, ErrorKind};
use restante_records::{
    AccountId, Body, Change, Commit, Get, Properties, Query, Record, RecordId, Revision, Value,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{OutboxMessage, body::seconds};
use crate::{
    Mail,
    mailboxes::number_of,
    queue::{NewMessage, NewRecipient, Notify, Return, Source, SourceKind, Transmission},
    schema::outbox,
};

/// The most records that are read for one submission: it has at most one.
const FEW: usize = 16;

/// The body of a record that is to be queued, as JSON.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct OutboxBody {
    sender: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    envelope_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    returned: Option<Return>,
    size: u64,
    transmission: Transmission,
    recipients: Vec<RecipientBody>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RecipientBody {
    address: String,
    notify: Notify,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    original: Option<String>,
}

/// A message of the outbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxEntry {
    /// Its record, for [`Mail::clear_outbox`].
    pub id: RecordId,
    /// What the queue gets.
    pub message: NewMessage,
}

/// The records of a submission in the outbox.
pub(super) struct OfSubmission {
    /// The records of messages to be queued.
    pub(super) unqueued: Vec<RecordId>,
    /// Whether the submission was canceled and then destroyed.
    pub(super) is_canceled: bool,
    /// The state of the kind before they were read.
    pub(super) state: Revision,
}

/// Makes the record of a submission that is the first create of the same commit.
pub(super) fn create(message: &OutboxMessage, send_at: i64) -> Result<Change, Error> {
    let recipient = |recipient: &NewRecipient| RecipientBody {
        address: recipient.address.clone(),
        notify: recipient.notify,
        original: recipient.original.clone(),
    };
    let body = OutboxBody {
        sender: message.sender.clone(),
        envelope_id: message.envelope_id.clone(),
        returned: message.returned,
        size: message.size,
        transmission: message.transmission,
        recipients: message.recipients.iter().map(recipient).collect(),
    };
    let json = serde_json::to_vec(&body)
        .map_err(|error| Error::internal(format!("a message can't be written as JSON: {error}")))?;
    let properties = Properties::default()
        .with(outbox::SUBMISSION, Value::Created(0))
        .with(outbox::STATE, outbox::UNQUEUED)
        .with(outbox::SEND_AT, seconds(send_at));
    let body = Body { bytes: json.into(), blobs: vec![message.blob] };
    Ok(Change::Create { kind: outbox::KIND, body, properties })
}

/// Notes that a submission was canceled, in the commit that destroys it.
pub(super) fn note_canceled(submission: RecordId, send_at: i64) -> Change {
    let properties = Properties::default()
        .with(outbox::SUBMISSION, submission)
        .with(outbox::STATE, outbox::CANCELED)
        .with(outbox::SEND_AT, seconds(send_at));
    Change::Create { kind: outbox::KIND, body: Body::default(), properties }
}

/// The key of a submission's message in the queue.
fn key(account: AccountId, submission: RecordId) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(b"submission");
    hash.update(account.0.to_be_bytes());
    hash.update(submission.0.to_be_bytes());
    hash.finalize().into()
}

impl OutboxEntry {
    fn of(account: AccountId, record: Record) -> Result<Self, Error> {
        let damaged = |what: &str| {
            Error::corrupt(format!("the record {} of the outbox is damaged: {what}", record.id.0))
        };
        let body: OutboxBody =
            serde_json::from_slice(&record.body.bytes).map_err(|error| damaged(&error.to_string()))?;
        let number = |property| number_of(&record.properties, property);
        let submission = number(outbox::SUBMISSION).ok_or_else(|| damaged("it has no submission"))?;
        let blob: Option<BlobId> = record.body.blobs.first().copied();
        let recipient =
            |RecipientBody { address, notify, original }| NewRecipient { address, notify, original };
        let submission = RecordId(submission);
        let message = NewMessage {
            source: Source {
                kind: SourceKind::Submission,
                account: Some(account),
                record: submission,
                key: key(account, submission),
            },
            blob: blob.ok_or_else(|| damaged("it has no message"))?,
            size: body.size,
            sender: body.sender,
            envelope_id: body.envelope_id,
            returned: body.returned,
            transmission: body.transmission,
            due: number(outbox::SEND_AT).unwrap_or_default(),
            recipients: body.recipients.into_iter().map(recipient).collect(),
        };
        Ok(Self { id: record.id, message })
    }
}

impl Mail {
    /// At most `limit` messages of an account that are not queued yet, in the order in which they are sent. Records that can't be
    /// read are left out and logged: one damaged record must not hold up the others.
    ///
    /// # Errors
    /// Those of the records; `Invalid` for a limit of 0.
    pub async fn outbox(&self, account: AccountId, limit: usize) -> Result<Vec<OutboxEntry>, Error> {
        let mut query = Query::new(outbox::KIND, outbox::BY_STATE).equals(outbox::UNQUEUED).limit(limit);
        let mut entries = Vec::new();
        loop {
            let page = self.records().query(account, &query).await?;
            let records = self.records().get(account, &Get::whole(outbox::KIND, page.ids)).await?;
            for record in records.into_iter().flatten() {
                match OutboxEntry::of(account, record) {
                    Ok(entry) => entries.push(entry),
                    Err(error) => {
                        tracing::error!(account = account.0, %error, "a submission can't be queued")
                    }
                }
            }
            match page.next {
                // A whole page of damaged records.
                Some(next) if entries.is_empty() => query.after = Some(next),
                _ => return Ok(entries),
            }
        }
    }

    /// Notes that a message of the outbox is in the queue. It is no error if the message is gone because it was canceled meanwhile.
    ///
    /// # Errors
    /// Those of a commit.
    pub async fn clear_outbox(&self, account: AccountId, id: RecordId) -> Result<(), Error> {
        let commit = Commit::of([Change::Destroy { kind: outbox::KIND, id }]);
        match self.records().commit(account, commit).await {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// The records of a submission in the outbox.
    pub(super) async fn outbox_of(
        &self,
        account: AccountId,
        submission: RecordId,
    ) -> Result<OfSubmission, Error> {
        let query = Query::new(outbox::KIND, outbox::BY_SUBMISSION).equals(submission).limit(FEW);
        let page = self.records().query(account, &query).await?;
        let records = self.records().get(account, &Get::small(outbox::KIND, page.ids)).await?;
        let mut found = OfSubmission { unqueued: Vec::new(), is_canceled: false, state: page.state };
        for record in records.into_iter().flatten() {
            match number_of(&record.properties, outbox::STATE) {
                Some(outbox::CANCELED) => found.is_canceled = true,
                _ => found.unqueued.push(record.id),
            }
        }
        Ok(found)
    }
}
