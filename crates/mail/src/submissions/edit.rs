//! Makes, cancels, releases and destroys submissions.

use std::time::Duration;

use restante_core::{Error, ErrorKind};
use restante_records::{
    AccountId, BODY_BYTES_MAX, Body, Change, Commit, Committed, Get, Query, Record, RecordId, Revision,
};

use super::{
    NewSubmission, RecipientState, SUBMISSIONS_MAX, Submission, SubmissionHead, UndoStatus,
    body::{SubmissionBody, seconds},
    outbox,
    report::REPLIES_BYTES,
};
use crate::{
    Mail, MailError, Transition,
    schema::{outbox as outbox_kind, submission},
};

/// How often an edit is planned again when other servers change submissions of the account at the same time.
const TRIES: u32 = 64;
/// After so many tries there is a wait before the next one.
const TRIES_AT_ONCE: u32 = 3;
const NEXT_TRY: Duration = Duration::from_millis(2);
/// Submissions that leave for a new one.
const EVICTED_MAX: usize = 2;
/// How long it is remembered that a submission was canceled that is gone, from the time when it was to be sent: until then the queue has
/// asked, unless it was held for so long.
const CANCELED_SECONDS: i64 = 30 * 24 * 3_600;
/// Such notes that leave for a new one.
const FORGOTTEN_MAX: usize = 16;

/// What an edit of a submission commits.
pub(super) struct Planned {
    pub(super) changes: Vec<Change>,
    /// The state that the outbox must be in, if the changes depend on it.
    pub(super) outbox_state: Option<Revision>,
}

impl Planned {
    pub(super) fn of(changes: Vec<Change>) -> Self {
        Self { changes, outbox_state: None }
    }
}

impl Mail {
    /// Makes a submission: when this returns, it is durable and will be sent.
    ///
    /// # Errors
    /// `StateMismatch`; `Invalid` for an envelope that is too long to be kept; `Store`.
    pub async fn create_submission(
        &self,
        account: AccountId,
        new: NewSubmission,
    ) -> Result<(RecordId, Transition), MailError> {
        let undo = if new.is_pending { UndoStatus::Pending } else { UndoStatus::Final };
        let head = SubmissionHead {
            id: RecordId(0), // given by the commit
            email: new.email,
            thread: new.thread,
            identity: new.identity,
            send_at: new.send_at,
            undo,
        };
        let json = SubmissionBody::new(&new).json()?;
        let outbox = outbox::create(&new.message, new.send_at)?;
        let outbox_bytes = match &outbox {
            Change::Create { body, .. } => body.bytes.len(),
            _ => 0,
        };
        if json.len() + REPLIES_BYTES > BODY_BYTES_MAX || outbox_bytes > BODY_BYTES_MAX {
            return Err(MailError::invalid("envelope", "the addresses of all recipients are too long"));
        }
        let create =
            Change::Create { kind: submission::KIND, body: Body::new(json), properties: head.properties() };
        let (committed, states) = self
            .edit_submissions(account, new.if_in_state, async || {
                let mut changes = vec![create.clone(), outbox.clone()];
                changes.extend(self.evicted_submissions(account).await?);
                Ok(Some(Planned::of(changes)))
            })
            .await?;
        let id = committed.and_then(|committed| committed.created.first().copied());
        let id = id.ok_or_else(|| Error::internal("a commit has created no submission"))?;
        Ok((id, states))
    }

    /// Cancels a submission: from here on nothing of it is sent. One that is canceled already stays so.
    ///
    /// # Errors
    /// `NotFound`, `StateMismatch`; `CannotUnsend` when it is final; `Store`.
    pub async fn cancel_submission(
        &self,
        account: AccountId,
        id: RecordId,
        if_in_state: Option<Revision>,
    ) -> Result<Transition, MailError> {
        let (_, states) = self
            .edit_submissions(account, if_in_state, async || {
                let (record, _) = self.submission_record(account, id).await?;
                let head = SubmissionHead::of(&record.ok_or(MailError::NotFound)?)?;
                match head.undo {
                    UndoStatus::Canceled => return Ok(None),
                    UndoStatus::Final => return Err(MailError::CannotUnsend),
                    UndoStatus::Pending => {}
                }
                let canceled = SubmissionHead { undo: UndoStatus::Canceled, ..head };
                let outbox = self.outbox_of(account, id).await?;
                let mut changes = vec![set_head(&canceled)];
                let unqueued = outbox.unqueued.into_iter();
                changes.extend(unqueued.map(|id| Change::Destroy { kind: outbox_kind::KIND, id }));
                Ok(Some(Planned { changes, outbox_state: Some(outbox.state) }))
            })
            .await?;
        Ok(states)
    }

    /// Destroys a submission. That stops nothing: what is not canceled is sent (RFC 8621 §7.5).
    ///
    /// # Errors
    /// `NotFound`, `StateMismatch`, `Store`.
    pub async fn destroy_submission(
        &self,
        account: AccountId,
        id: RecordId,
        if_in_state: Option<Revision>,
    ) -> Result<Transition, MailError> {
        let (_, states) = self
            .edit_submissions(account, if_in_state, async || {
                let (record, _) = self.submission_record(account, id).await?;
                let head = SubmissionHead::of(&record.ok_or(MailError::NotFound)?)?;
                let mut changes = vec![Change::Destroy { kind: submission::KIND, id }];
                if head.undo == UndoStatus::Canceled {
                    changes.push(outbox::note_canceled(id, head.send_at));
                    changes.extend(self.forgotten_cancels(account).await?);
                }
                Ok(Some(Planned::of(changes)))
            })
            .await?;
        Ok(states)
    }

    /// Makes a submission final, before anything of it is sent; `false` when it was canceled. One that is gone was not canceled, unless that was
    /// noted when it was destroyed.
    ///
    /// # Errors
    /// Those of the records.
    pub async fn release_submission(&self, account: AccountId, id: RecordId) -> Result<bool, Error> {
        let mut is_released = true;
        let released = self
            .edit_submissions(account, None, async || {
                let (record, _) = self.submission_record(account, id).await?;
                let Some(record) = record else { return Err(MailError::NotFound) };
                let head = SubmissionHead::of(&record)?;
                is_released = head.undo != UndoStatus::Canceled;
                if head.undo != UndoStatus::Pending {
                    return Ok(None);
                }
                Ok(Some(Planned::of(vec![set_head(&SubmissionHead { undo: UndoStatus::Final, ..head })])))
            })
            .await;
        match released {
            Ok(_) => Ok(is_released),
            Err(MailError::NotFound) => Ok(!self.outbox_of(account, id).await?.is_canceled),
            Err(error) => Err(error.into_store()),
        }
    }

    /// Makes an edit that was planned on the present state; `plan` is asked again when another server changes submissions meanwhile. `None` of it
    /// commits nothing. Edits of one account by this server wait for each other.
    pub(super) async fn edit_submissions(
        &self,
        account: AccountId,
        if_in_state: Option<Revision>,
        mut plan: impl AsyncFnMut() -> Result<Option<Planned>, MailError>,
    ) -> Result<(Option<Committed>, Transition), MailError> {
        let _lock = self.lock_submissions(account).await;
        let mut tries = 0;
        loop {
            // Read before the plan reads, so that the commit fails when something changes meanwhile.
            let old = self.records().states(account).await?.of(submission::KIND);
            if if_in_state.is_some_and(|expected| expected != old) {
                return Err(MailError::StateMismatch);
            }
            let Some(Planned { changes, outbox_state }) = plan().await? else {
                return Ok((None, Transition { old, new: old, is_shared: false }));
            };
            let mut commit = Commit::of(changes).if_in_state(submission::KIND, old);
            if let Some(state) = outbox_state {
                commit = commit.if_in_state(outbox_kind::KIND, state);
            }
            match self.records().commit(account, commit).await {
                Ok(committed) => {
                    let states = Transition { old, new: committed.revision, is_shared: false };
                    return Ok((Some(committed), states));
                }
                // NotFound: another server has removed the same old record.
                Err(error) if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::NotFound) => {
                    tries += 1;
                    if tries >= TRIES {
                        let what = format!("submissions of account {} change all the time", account.0);
                        return Err(Error::unavailable(format!("{what}: try again")).into());
                    }
                    if tries > TRIES_AT_ONCE {
                        tokio::time::sleep(NEXT_TRY).await;
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Removes submissions beyond the most that an account keeps, if they are done.
    async fn evicted_submissions(&self, account: AccountId) -> Result<Vec<Change>, Error> {
        let beyond = Query::new(submission::KIND, submission::BY_SEND_AT).descending();
        let beyond = beyond.skip(SUBMISSIONS_MAX - 1).limit(EVICTED_MAX);
        let page = self.records().query(account, &beyond).await?;
        if page.ids.is_empty() {
            return Ok(Vec::new());
        }
        let records = self.records().get(account, &Get::whole(submission::KIND, page.ids)).await?;
        let done = records.into_iter().flatten().filter(is_done);
        Ok(done.map(|record| Change::Destroy { kind: submission::KIND, id: record.id }).collect())
    }

    /// Removes notes of canceled submissions that nobody asks for any more.
    async fn forgotten_cancels(&self, account: AccountId) -> Result<Vec<Change>, Error> {
        let before = seconds(self.clock().now().seconds().saturating_sub(CANCELED_SECONDS));
        let old = Query::new(outbox_kind::KIND, outbox_kind::BY_STATE)
            .equals(outbox_kind::CANCELED)
            .between(std::ops::Bound::Unbounded, std::ops::Bound::Excluded(before.into()))
            .limit(FORGOTTEN_MAX);
        let page = self.records().query(account, &old).await?;
        Ok(page.ids.into_iter().map(|id| Change::Destroy { kind: outbox_kind::KIND, id }).collect())
    }
}

/// Whether nothing will be reported of a submission any more. What can't be read is.
fn is_done(record: &Record) -> bool {
    Submission::of(record).map_or(true, |submission| {
        let is_queued = submission.rcpt_to.iter().any(|it| it.state == RecipientState::Queued);
        submission.head.undo == UndoStatus::Final && !is_queued
    })
}

/// Changes the properties of a submission, and leaves its body.
fn set_head(head: &SubmissionHead) -> Change {
    Change::Update { kind: submission::KIND, id: head.id, body: None, properties: Some(head.properties()) }
}
