//! Records the delivery status of the recipients of a submission.

use restante_core::Error;
use restante_records::{AccountId, RecordId};

use super::{RecipientState, body::SubmissionBody, edit::SubmissionEdit};
use crate::{Mail, MailError};

/// The bytes of all replies that a submission keeps: a record must have room for them.
pub(super) const REPLIES_BYTES: usize = 96 << 10;
/// The longest reply that is kept of a recipient.
const REPLY_BYTES_MAX: usize = 512;
/// The part of a reply that is kept in any case: its codes.
const REPLY_BYTES_MIN: usize = 24;
/// The most reports that a submission refers to.
const REPORTS_MAX: usize = 64;

impl Mail {
    /// Records the state of a recipient. Recording the same again changes nothing, and it is no error if the submission or the
    /// recipient does not exist. A recipient that is no longer queued does not become queued again.
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

    /// Records an email of the account that reports on a submission: its blob is one of `dsnBlobIds`. Recording it again changes
    /// nothing, and it is no error if the submission is gone.
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

    /// Changes the body of a submission, if it exists; `change` returns whether it has changed something.
    async fn change_submission_body(
        &self,
        account: AccountId,
        id: RecordId,
        change: impl Fn(&mut SubmissionBody) -> bool + Send + Sync,
    ) -> Result<(), Error> {
        match self.edit_submission(account, None, &SubmissionEdit::Body(id, &change)).await {
            Ok(_) | Err(MailError::NotFound) => Ok(()),
            Err(error) => Err(error.into_store()),
        }
    }
}

/// The beginning of a text, cut at a character boundary.
fn cut(text: &str, bytes_max: usize) -> &str {
    text.get(..text.floor_char_boundary(bytes_max)).unwrap_or(text)
}
