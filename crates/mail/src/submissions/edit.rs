//! Creates, cancels, releases and destroys submissions.

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
    Mail, MailError, Transition, Tries,
    schema::{outbox as outbox_kind, submission},
};

/// The most submissions that are removed when one is added.
const EVICTED_MAX: usize = 2;
/// How long the note is kept that a submission, which no longer exists, was canceled, counted from the time when it was to be sent.
/// By then the queue has asked for it, unless the queue was held for so long.
const CANCELED_SECONDS: i64 = 30 * 24 * 3_600;
/// The most such notes that are removed when a submission is added.
const FORGOTTEN_MAX: usize = 16;

/// An edit of a submission.
pub(super) enum SubmissionEdit<'e> {
    /// Its record, and that of the outbox.
    Create(Change, Change),
    Cancel(RecordId),
    Release(RecordId),
    Destroy(RecordId),
    /// Changes the body; returns whether something was changed.
    Body(RecordId, &'e (dyn Fn(&mut SubmissionBody) -> bool + Send + Sync)),
}

/// What an edit commits: nothing if there are no changes.
#[derive(Default)]
struct Planned {
    changes: Vec<Change>,
    /// The state that the outbox must be in, if the changes depend on it.
    outbox_state: Option<Revision>,
    is_canceled: bool,
}

/// An edit that was made.
pub(super) struct Edited {
    committed: Option<Committed>,
    states: Transition,
    /// Whether the submission was canceled before.
    is_canceled: bool,
}

impl Mail {
    /// Creates a submission: when this returns, it is durable and will be sent.
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
        let (kind, properties) = (submission::KIND, head.properties());
        let create = Change::Create { kind, body: Body::new(json), properties };
        let edit = SubmissionEdit::Create(create, outbox);
        let Edited { committed, states, .. } = self.edit_submission(account, new.if_in_state, &edit).await?;
        let id = committed.and_then(|committed| committed.created.first().copied());
        let id = id.ok_or_else(|| Error::internal("a commit has created no submission"))?;
        Ok((id, states))
    }

    /// Cancels a submission: from then on, nothing of it is sent. A submission that is canceled already stays so.
    ///
    /// # Errors
    /// `NotFound`, `StateMismatch`; `CannotUnsend` when it is final; `Store`.
    pub async fn cancel_submission(
        &self,
        account: AccountId,
        id: RecordId,
        if_in_state: Option<Revision>,
    ) -> Result<Transition, MailError> {
        Ok(self.edit_submission(account, if_in_state, &SubmissionEdit::Cancel(id)).await?.states)
    }

    /// Destroys a submission. That does not stop it from being sent, unless it was canceled before (RFC 8621 §7.5).
    ///
    /// # Errors
    /// `NotFound`, `StateMismatch`, `Store`.
    pub async fn destroy_submission(
        &self,
        account: AccountId,
        id: RecordId,
        if_in_state: Option<Revision>,
    ) -> Result<Transition, MailError> {
        Ok(self.edit_submission(account, if_in_state, &SubmissionEdit::Destroy(id)).await?.states)
    }

    /// Makes a submission final, before anything of it is sent; `false` when it was canceled. A submission that no longer exists
    /// counts as not canceled, unless a note about that was made when it was destroyed.
    ///
    /// # Errors
    /// Those of the records.
    pub async fn release_submission(&self, account: AccountId, id: RecordId) -> Result<bool, Error> {
        match self.edit_submission(account, None, &SubmissionEdit::Release(id)).await {
            Ok(released) => Ok(!released.is_canceled),
            Err(MailError::NotFound) => Ok(!self.outbox_of(account, id).await?.is_canceled),
            Err(error) => Err(error.into_store()),
        }
    }

    /// Makes an edit; it is planned again when another server has changed submissions meanwhile. Edits of one account by this
    /// server wait for each other.
    pub(super) async fn edit_submission(
        &self,
        account: AccountId,
        if_in_state: Option<Revision>,
        edit: &SubmissionEdit<'_>,
    ) -> Result<Edited, MailError> {
        let _lock = self.lock_edits(account, submission::KIND).await;
        let mut tries = Tries::default();
        loop {
            // Read before the plan reads, so that the commit fails when something changes meanwhile.
            let old = self.records().states(account).await?.of(submission::KIND);
            if if_in_state.is_some_and(|expected| expected != old) {
                return Err(MailError::StateMismatch);
            }
            let Planned { changes, outbox_state, is_canceled } = self.plan_submission(account, edit).await?;
            if changes.is_empty() {
                let states = Transition { old, new: old, is_shared: false };
                return Ok(Edited { committed: None, states, is_canceled });
            }
            let mut commit = Commit::of(changes).if_in_state(submission::KIND, old);
            if let Some(state) = outbox_state {
                commit = commit.if_in_state(outbox_kind::KIND, state);
            }
            match self.records().commit(account, commit).await {
                Ok(committed) => {
                    let states = Transition { old, new: committed.revision, is_shared: false };
                    return Ok(Edited { committed: Some(committed), states, is_canceled });
                }
                // NotFound: another server has removed the same old record.
                Err(error) if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::NotFound) => {
                    if !tries.next().await {
                        let what = format!("submissions of account {} change all the time", account.0);
                        return Err(Error::unavailable(format!("{what}: try again")).into());
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn plan_submission(
        &self,
        account: AccountId,
        edit: &SubmissionEdit<'_>,
    ) -> Result<Planned, MailError> {
        let (id, change) = match edit {
            SubmissionEdit::Create(submission, outbox) => {
                let mut changes = vec![submission.clone(), outbox.clone()];
                changes.extend(self.evicted_submissions(account).await?);
                return Ok(Planned { changes, ..Planned::default() });
            }
            SubmissionEdit::Cancel(id) | SubmissionEdit::Release(id) | SubmissionEdit::Destroy(id) => {
                (*id, None)
            }
            SubmissionEdit::Body(id, change) => (*id, Some(change)),
        };
        let get = Get::whole(submission::KIND, vec![id]);
        let found = self.records().get(account, &get).await?;
        let record = found.into_iter().flatten().next().ok_or(MailError::NotFound)?;
        let head = SubmissionHead::of(&record)?;
        let is_canceled = head.undo == UndoStatus::Canceled;
        let mut planned = Planned { is_canceled, ..Planned::default() };
        match edit {
            SubmissionEdit::Cancel(_) if head.undo == UndoStatus::Final => {
                return Err(MailError::CannotUnsend);
            }
            SubmissionEdit::Cancel(_) if head.undo == UndoStatus::Pending => {
                let outbox = self.outbox_of(account, id).await?;
                planned.changes.push(set_head(&SubmissionHead { undo: UndoStatus::Canceled, ..head }));
                let unqueued = outbox.unqueued.into_iter();
                planned.changes.extend(unqueued.map(|id| Change::Destroy { kind: outbox_kind::KIND, id }));
                planned.outbox_state = Some(outbox.state);
            }
            SubmissionEdit::Release(_) if head.undo == UndoStatus::Pending => {
                planned.changes.push(set_head(&SubmissionHead { undo: UndoStatus::Final, ..head }));
            }
            SubmissionEdit::Destroy(_) => {
                planned.changes.push(Change::Destroy { kind: submission::KIND, id });
                if is_canceled {
                    planned.changes.push(outbox::note_canceled(id, head.send_at));
                    planned.changes.extend(self.forgotten_cancels(account).await?);
                }
            }
            _ => {}
        }
        if let Some(change) = change {
            let mut body = SubmissionBody::read(&record)?;
            if change(&mut body) {
                let body = Some(Body::new(body.json()?));
                planned.changes.push(Change::Update { kind: submission::KIND, id, body, properties: None });
            }
        }
        Ok(planned)
    }

    /// The changes that remove submissions beyond the most that an account keeps, if they are done.
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

    /// The changes that remove notes of canceled submissions that the queue does not ask for any more.
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

/// Whether nothing more will be reported of a submission. This holds for one that can't be read.
fn is_done(record: &Record) -> bool {
    Submission::of(record).map_or(true, |submission| {
        let is_queued = submission.rcpt_to.iter().any(|it| it.state == RecipientState::Queued);
        submission.head.undo == UndoStatus::Final && !is_queued
    })
}

/// The change that sets the properties of a submission and leaves its body.
fn set_head(head: &SubmissionHead) -> Change {
    Change::Update { kind: submission::KIND, id: head.id, body: None, properties: Some(head.properties()) }
}
