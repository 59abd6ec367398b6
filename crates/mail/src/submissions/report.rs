//! What became of the recipients of a submission.

use bytes::Bytes;
use restante_core::Error;
use restante_records::{AccountId, Body, Change, RecordId};

use super::{RecipientState, body::SubmissionBody, edit::Planned};
use crate::{Mail, MailError, schema::submission};

/// The bytes of all replies that a submission keeps: a record must have room for them.
pub(super) const REPLIES_BYTES: usize = 96 << 10;
/// The longest reply that is kept of a recipient.
const REPLY_BYTES_MAX: usize = 512;
/// What is kept of a reply in any case: its codes.
const REPLY_BYTES_MIN: usize = 24;
/// The most reports that a submission names.
const REPORTS_MAX: usize = 64;

impl Mail {
    /// Notes what became of a recipient. Noting the same again changes nothing, and a submission or a recipient that is not there is no error. A recipient
    /// that is not queued any more does not become so again.
    ///
    /// # Errors
    /// Those of the records.
    pub async fn report_submission(
        &self,
        account: AccountId,
        id: RecordId,
        address: &str,
        smtp_reply: &str,
        state: RecipientState,
    ) -> Result<(), Error> {
        self.change_submission_body(account, id, |body| {
            let count = body.rcpt_to.len().max(1);
            // Replies in JSON may be longer than in text, by escapes.
            let bytes_max = (REPLIES_BYTES / 2 / count).clamp(REPLY_BYTES_MIN, REPLY_BYTES_MAX);
            let smtp_reply = cut(smtp_reply, bytes_max);
            let Some(recipient) = body.rcpt_to.iter_mut().find(|it| it.address == address) else {
                return false;
            };
            let is_late = state == RecipientState::Queued && recipient.delivered != RecipientState::Queued;
            if is_late || (recipient.delivered == state && recipient.smtp_reply == smtp_reply) {
                return false;
            }
            recipient.delivered = state;
            smtp_reply.clone_into(&mut recipient.smtp_reply);
            true
        })
        .await
    }

    /// Notes an email of the account that reports on a submission: its blob is one of `dsnBlobIds`. Noting it again changes nothing, and a submission
    /// that is gone is no error.
    ///
    /// # Errors
    /// Those of the records.
    pub async fn add_submission_report(
        &self,
        account: AccountId,
        id: RecordId,
        email: RecordId,
    ) -> Result<(), Error> {
        self.change_submission_body(account, id, |body| {
            let is_new = !body.reports.contains(&email.0) && body.reports.len() < REPORTS_MAX;
            if is_new {
                body.reports.push(email.0);
            }
            is_new
        })
        .await
    }

    /// Changes the body of a submission, if there is one; `change` returns whether it has changed something.
    async fn change_submission_body(
        &self,
        account: AccountId,
        id: RecordId,
        change: impl Fn(&mut SubmissionBody) -> bool,
    ) -> Result<(), Error> {
        let changed = self
            .edit_submissions(account, None, async || {
                let (record, _) = self.submission_record(account, id).await?;
                let Some(record) = record else { return Ok(None) };
                let mut body = SubmissionBody::read(&record)?;
                if !change(&mut body) {
                    return Ok(None);
                }
                let body = Some(Body::new(Bytes::from(body.json()?)));
                let update = Change::Update { kind: submission::KIND, id, body, properties: None };
                Ok(Some(Planned::of(vec![update])))
            })
            .await;
        changed.map(|_| ()).map_err(MailError::into_store)
    }
}

/// The beginning of a text, without a part of a character.
fn cut(text: &str, bytes_max: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes_max)).unwrap_or(text)
}
