//! Puts submissions of JMAP into the queue.

use std::sync::Arc;

use async_trait::async_trait;
use restante_core::{Error, ErrorKind};
use restante_follow::{Handler, HandlerError};
use restante_mail::{
    Mail, OutboxEntry, RecipientState, Submission, UndoStatus, outbox,
    queue::{LIST_MAX, ListFilter, NewMessage, Queue, QueuedId, QueuedRecipient, Reply, SourceKind},
    submission,
};
use restante_records::{AccountId, Changes, RecordId};
use tracing::{error, warn};

use crate::{
    OutcomeLog, SubmittedMessage, follower_metrics::FollowerMetrics, note_dropped, prepare,
    submissions::smtp_reply,
};

/// Who drops messages that are canceled, for the operators.
const BY_AUTHOR: &str = "its author";

/// Messages that are read from the outbox at once.
const PAGE: usize = 64;

/// Follows the outbox of each account: every message in it is put into the queue, and then removed from the outbox. Messages that
/// are canceled later are removed from the queue.
///
/// The outbox alone determines what is not queued yet, so neither a restart nor [`restante_follow::Follower::rebuild`] sends a
/// message again. If the process ends after a message was queued and before it was removed from the outbox, the message is queued
/// again under the same key, which adds nothing.
pub struct SubmissionFollower {
    mail: Mail,
    queue: Queue,
    outcomes: Option<Arc<dyn OutcomeLog>>,
    metrics: FollowerMetrics,
}

impl SubmissionFollower {
    /// The name of its checkpoint.
    pub const NAME: &'static str = "submissions";

    /// A handler that puts submissions of this mail into this queue, and records them for operators.
    pub fn new(
        mail: Mail,
        queue: Queue,
        outcomes: Option<Arc<dyn OutcomeLog>>,
        metrics: FollowerMetrics,
    ) -> Self {
        Self { mail, queue, outcomes, metrics }
    }

    async fn queue_all(&self, account: AccountId) -> Result<(), Error> {
        loop {
            let entries = self.mail.outbox(account, PAGE).await?;
            if entries.is_empty() {
                return Ok(());
            }
            for entry in entries {
                self.queue_one(account, entry).await?;
            }
        }
    }

    async fn queue_one(&self, account: AccountId, entry: OutboxEntry) -> Result<(), Error> {
        let OutboxEntry { id, message } = entry;
        let submission = message.source.record;
        // This keeps the blob until the queue refers to it.
        if !self.mail.blobs().touch(&[message.blob]).await?.contains(&true) {
            error!(account = account.0, submission = submission.0, "the message of a submission is gone");
        }
        match self.queue.add(message.clone()).await {
            Ok(_) => {
                self.note(&message, None).await;
                self.metrics.count_queued();
            }
            // It can never be queued, and must not hold up the others.
            Err(error) if error.kind() == ErrorKind::Invalid => {
                warn!(account = account.0, submission = submission.0, %error, "a submission is refused");
                let reply = Reply::own(554, "5.3.0", "the message can't be queued");
                for recipient in &message.recipients {
                    let (address, reply) = (&recipient.address, smtp_reply(&reply));
                    let no = RecipientState::No;
                    self.mail.report_submission(account, submission, address, &reply, no).await?;
                }
                self.note(&message, Some(&reply)).await;
                self.metrics.count_refused();
            }
            Err(error) => return Err(error),
        }
        self.mail.clear_outbox(account, id).await
    }

    /// Removes canceled messages from the queue, where they would wait for their time only to be skipped.
    async fn drop_canceled(&self, account: AccountId, updated: &[RecordId]) -> Result<(), Error> {
        let submissions = self.mail.submissions(account, updated).await?;
        let is_canceled = |submission: &Submission| submission.head.undo == UndoStatus::Canceled;
        let canceled: Vec<RecordId> = submissions
            .into_iter()
            .flatten()
            .filter(is_canceled)
            .map(|submission| submission.head.id)
            .collect();
        if canceled.is_empty() {
            return Ok(());
        }
        let filter = ListFilter { account: Some(account), ..ListFilter::default() };
        let mut after = None;
        loop {
            let mut page = self.queue.list(&filter, after.as_ref(), LIST_MAX).await?;
            page.recipients.retain(|recipient| {
                let source = &recipient.message.source;
                source.kind == SourceKind::Submission && canceled.contains(&source.record)
            });
            self.drop_recipients(&page.recipients).await?;
            after = page.next;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    async fn drop_recipients(&self, recipients: &[QueuedRecipient]) -> Result<(), Error> {
        let ids: Vec<QueuedId> = recipients.iter().map(|recipient| recipient.id).collect();
        let dropped = self.queue.drop_ids(&ids).await?;
        let Some(outcomes) = &self.outcomes else { return Ok(()) };
        for recipient in recipients.iter().filter(|recipient| dropped.contains(&recipient.id)) {
            note_dropped(&**outcomes, self.mail.blobs().as_ref(), recipient, BY_AUTHOR).await;
        }
        Ok(())
    }

    async fn note(&self, message: &NewMessage, refused: Option<&Reply>) {
        let Some(outcomes) = &self.outcomes else { return };
        let blobs = self.mail.blobs().as_ref();
        let message_id = prepare::message_id(blobs, &message.source, message.blob, &message.sender).await;
        outcomes.submitted(SubmittedMessage { message, message_id: message_id.as_deref(), refused });
    }
}

#[async_trait]
impl Handler for SubmissionFollower {
    async fn handle(&mut self, account: AccountId, changes: &Changes) -> Result<(), HandlerError> {
        if changes.created.iter().any(|created| created.kind == outbox::KIND) {
            self.queue_all(account).await.map_err(HandlerError::new)?;
        }
        let updated = changes.updated.iter().filter(|updated| updated.kind == submission::KIND);
        let updated: Vec<RecordId> = updated.map(|updated| updated.id).collect();
        if !updated.is_empty() {
            self.drop_canceled(account, &updated).await.map_err(HandlerError::new)?;
        }
        Ok(())
    }

    async fn reset(&mut self, _account: AccountId) -> Result<(), HandlerError> {
        Ok(()) // nothing is derived: queued messages stay queued
    }
}
