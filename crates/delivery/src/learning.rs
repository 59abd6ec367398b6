//! Teaches a content filter from the emails that users move into and out of Junk.

use std::{collections::BTreeSet, num::NonZeroU32, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use restante_checks::{Filter, Lesson};
use restante_core::{BlobId, Error, ErrorKind};
use restante_follow::{Handler, HandlerError};
use restante_mail::{EmailState, Mail, MailError, Role, email, learned};
use restante_net::{Buckets, Rate};
use restante_records::{
    AccountId, Body, Change, Changed, Changes, Commit, Get, Properties, Property, Query, Record, RecordId,
    Value,
};
use tokio::time::Instant;
use tracing::warn;

use crate::follower_metrics::{FollowerMetrics, LearningResult};

/// Emails that are read at once.
const PAGE: usize = 64;
/// The most records that one commit removes when an account is reset.
const REMOVED_MAX: usize = 1_000;
/// After so many failures of the filter on a message, the message is left out: it may be the cause.
const ATTEMPTS_MAX: u64 = 3;
const HOUR: Duration = Duration::from_secs(3_600);

/// Follows emails. An email that is moved into the mailbox with the role junk is learned as junk; one that is moved out of it, not
/// into the trash, as not junk. An email that was created there is not learned as junk: the server placed it there on the filter's
/// own verdict.
///
/// A record of kind [`learned`] is kept for each email in that mailbox. A lesson is stored in it before the filter is called, and
/// removed after the filter's answer: a crash in between repeats a lesson, which changes nothing. An email that was created and
/// moved before the follower saw it counts as created there.
///
/// The filter learns a bounded number of messages of an account in an hour, so that a client that moves mail back and forth costs
/// it little. Messages beyond that are left out, and their bytes are not even read.
pub struct LearningFollower {
    mail: Mail,
    filter: Arc<dyn Filter>,
    /// How many messages of each account the filter may still learn.
    permits: Mutex<Buckets<AccountId>>,
    metrics: FollowerMetrics,
}

/// The mailboxes of an account that matter.
#[derive(Clone, Copy)]
struct Mailboxes {
    junk: Option<RecordId>,
    trash: Option<RecordId>,
}

/// A record of kind [`learned`].
struct Known {
    id: RecordId,
    email: RecordId,
    mailbox: RecordId,
    lesson: Option<Lesson>,
    attempts: u64,
}

impl LearningFollower {
    /// The name of its checkpoint.
    pub const NAME: &'static str = "learning";

    /// A handler that teaches this filter from this mail, `per_hour_max` messages of an account in an hour at most.
    pub fn new(
        mail: Mail,
        filter: Arc<dyn Filter>,
        per_hour_max: NonZeroU32,
        metrics: FollowerMetrics,
    ) -> Self {
        let permits = Mutex::new(Buckets::new(Rate { requests: per_hour_max.get(), period: HOUR }));
        Self { mail, filter, permits, metrics }
    }

    async fn follow(&self, account: AccountId, changes: &Changes) -> Result<(), Error> {
        let mailboxes = self.mailboxes(account).await?;
        let created = emails(&changes.created);
        let updated = emails(&changes.updated);
        for ids in created.chunks(PAGE) {
            self.note(account, mailboxes, ids, true).await?;
        }
        for ids in updated.chunks(PAGE) {
            self.note(account, mailboxes, ids, false).await?;
        }
        for ids in emails(&changes.destroyed).chunks(PAGE) {
            self.forget(account, ids).await?;
        }
        self.teach_all(account).await
    }

    async fn mailboxes(&self, account: AccountId) -> Result<Mailboxes, Error> {
        let found = self.mail.mailboxes(account).await.map_err(MailError::into_store)?.0;
        let with = |role: Role| found.iter().find(|it| it.role == Some(role)).map(|it| it.id);
        Ok(Mailboxes { junk: with(Role::Junk), trash: with(Role::Trash) })
    }

    /// Records durably which of these emails are in Junk, and what is to be learned from those that were moved.
    async fn note(
        &self,
        account: AccountId,
        mailboxes: Mailboxes,
        ids: &[RecordId],
        is_created: bool,
    ) -> Result<(), Error> {
        let get = Get::small(email::KIND, ids.to_vec());
        let mut changes = Vec::new();
        for record in self.mail.records().get(account, &get).await?.into_iter().flatten() {
            let state = EmailState::of(&record)?;
            let junk = mailboxes.junk.filter(|junk| state.mailboxes.contains(junk));
            // Most mail is delivered elsewhere: that costs no look-up.
            if is_created && junk.is_none() && record.revision == record.created {
                continue;
            }
            let known = self.known(account, record.id).await?;
            changes.extend(next(mailboxes, &state, record.id, junk, known, is_created));
        }
        self.commit(account, changes).await
    }

    async fn forget(&self, account: AccountId, ids: &[RecordId]) -> Result<(), Error> {
        let mut changes = Vec::new();
        for id in ids {
            changes.extend(self.known(account, *id).await?.map(|known| known.destroy()));
        }
        self.commit(account, changes).await
    }

    async fn known(&self, account: AccountId, email: RecordId) -> Result<Option<Known>, Error> {
        let query = Query::new(learned::KIND, learned::BY_EMAIL).equals(email).limit(1);
        let found = self.mail.records().query(account, &query).await?.ids;
        if found.is_empty() {
            return Ok(None);
        }
        let found = self.mail.records().get(account, &Get::small(learned::KIND, found)).await?;
        Ok(found.into_iter().flatten().next().map(|record| Known::of(&record)))
    }

    async fn commit(&self, account: AccountId, changes: Vec<Change>) -> Result<(), Error> {
        if changes.is_empty() {
            return Ok(());
        }
        self.mail.records().commit(account, Commit::of(changes)).await.map(|_| ())
    }

    /// Teaches what was recorded. A message on which the filter fails does not hold up the others.
    async fn teach_all(&self, account: AccountId) -> Result<(), Error> {
        let mut failed = None;
        for lesson in [Lesson::Junk, Lesson::NotJunk] {
            let mut query =
                Query::new(learned::KIND, learned::BY_LESSON).equals(number_of(lesson)).limit(PAGE);
            loop {
                let page = self.mail.records().query(account, &query).await?;
                let get = Get::small(learned::KIND, page.ids);
                let mut left_out = Vec::new();
                for record in self.mail.records().get(account, &get).await?.into_iter().flatten() {
                    let known = Known::of(&record);
                    let is_admitted = self.permits.lock().has(&account, Instant::now());
                    if !is_admitted {
                        left_out.push(known.taught(lesson));
                        continue;
                    }
                    failed = self.teach(account, known, lesson).await?.or(failed);
                }
                let messages = left_out.len() as u64;
                self.commit(account, left_out).await?;
                self.metrics.count_learning(lesson, LearningResult::Limited, messages);
                let Some(next) = page.next else { break };
                query = query.after(next);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Teaches one message. Returns the error if it is to be tried again.
    ///
    /// # Errors
    /// When the filter or the stores are unavailable, so that the other messages need not be tried.
    async fn teach(&self, account: AccountId, known: Known, lesson: Lesson) -> Result<Option<Error>, Error> {
        let result = match self.try_to_teach(account, known.email, lesson).await {
            Ok(result) => result,
            Err(error) if matches!(error.kind(), ErrorKind::Internal | ErrorKind::Corrupt) => {
                if known.attempts + 1 < ATTEMPTS_MAX {
                    self.commit(account, vec![known.failed_once_more()]).await?;
                    return Ok(Some(error));
                }
                warn!(account = account.0, email = known.email.0, %error, "the filter can't learn a message: it is left out");
                LearningResult::Failed
            }
            Err(error) => return Err(error),
        };
        self.commit(account, vec![known.taught(lesson)]).await?;
        self.metrics.count_learning(lesson, result, 1);
        Ok(None)
    }

    async fn try_to_teach(
        &self,
        account: AccountId,
        email: RecordId,
        lesson: Lesson,
    ) -> Result<LearningResult, Error> {
        let get = Get::whole(email::KIND, vec![email]);
        let Some(record) = self.mail.records().get(account, &get).await?.into_iter().flatten().next() else {
            return Ok(LearningResult::Gone);
        };
        let size = EmailState::of(&record)?.size;
        if !self.filter.takes(size) {
            return Ok(LearningResult::TooLarge);
        }
        let Some(blob) = record.body.blobs.first().copied() else { return Ok(LearningResult::Gone) };
        let raw = match self.raw(blob, size).await {
            Ok(raw) => raw,
            // The email was destroyed meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(LearningResult::Gone),
            Err(error) => return Err(error),
        };
        let learned = self.filter.learn(lesson, raw).await;
        // An unavailable filter has done no work for the account.
        if !learned.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unavailable) {
            self.permits.lock().take(account, Instant::now());
        }
        match learned {
            Ok(()) => Ok(LearningResult::Learned),
            Err(error) if error.kind() == ErrorKind::Invalid => Ok(LearningResult::Refused),
            Err(error) => Err(error),
        }
    }

    async fn raw(&self, blob: BlobId, size: u64) -> Result<Bytes, Error> {
        let mut source = self.mail.blobs().read(blob, 0..size).await?;
        let mut raw = BytesMut::new();
        while let Some(chunk) = source.next().await? {
            raw.extend_from_slice(&chunk);
        }
        Ok(raw.freeze())
    }
}

#[async_trait]
impl Handler for LearningFollower {
    async fn handle(&mut self, account: AccountId, changes: &Changes) -> Result<(), HandlerError> {
        let mut all = changes.created.iter().chain(&changes.updated).chain(&changes.destroyed);
        if all.any(|changed| changed.kind == email::KIND) {
            self.follow(account, changes).await.map_err(HandlerError::new)?;
        }
        Ok(())
    }

    async fn reset(&mut self, account: AccountId) -> Result<(), HandlerError> {
        loop {
            let query = Query::new(learned::KIND, learned::BY_EMAIL).limit(REMOVED_MAX);
            let known = self.mail.records().query(account, &query).await.map_err(HandlerError::new)?.ids;
            if known.is_empty() {
                return Ok(());
            }
            let destroy = |id: RecordId| Change::Destroy { kind: learned::KIND, id };
            let changes = known.into_iter().map(destroy).collect();
            self.commit(account, changes).await.map_err(HandlerError::new)?;
        }
    }
}

/// The ids of emails among changed records, each once.
fn emails(changed: &[Changed]) -> Vec<RecordId> {
    let emails = changed.iter().filter(|changed| changed.kind == email::KIND);
    let ids: BTreeSet<RecordId> = emails.map(|changed| changed.id).collect();
    ids.into_iter().collect()
}

/// The change of the record of an email, if it changes. `junk` is the mailbox with that role if the email is in it.
fn next(
    mailboxes: Mailboxes,
    state: &EmailState,
    email: RecordId,
    junk: Option<RecordId>,
    known: Option<Known>,
    is_created: bool,
) -> Option<Change> {
    match (junk, known) {
        (None, None) => None,
        (Some(mailbox), None) => {
            let lesson = (!is_created).then_some(Lesson::Junk);
            let properties = properties(email, mailbox, lesson, 0);
            Some(Change::Create { kind: learned::KIND, body: Body::default(), properties })
        }
        // Moved back before the filter was taught that it is not junk.
        (Some(mailbox), Some(known)) if known.lesson == Some(Lesson::NotJunk) => {
            Some(known.update(properties(email, mailbox, Some(Lesson::Junk), 0)))
        }
        // The role has moved to another mailbox, and the email with it.
        (Some(mailbox), Some(known)) if known.mailbox != mailbox => {
            Some(known.update(properties(email, mailbox, known.lesson, known.attempts)))
        }
        (Some(_), Some(_)) => None,
        (None, Some(known)) => {
            // If the email is still in its mailbox, the user has not moved it: that mailbox has lost its role.
            let was_moved = !state.mailboxes.is_empty() && !state.mailboxes.contains(&known.mailbox);
            let is_in_trash = mailboxes.trash.is_some_and(|trash| state.mailboxes.contains(&trash));
            if !was_moved || is_in_trash {
                return Some(known.destroy());
            }
            let is_noted = known.lesson == Some(Lesson::NotJunk);
            (!is_noted).then(|| known.update(properties(email, known.mailbox, Some(Lesson::NotJunk), 0)))
        }
    }
}

impl Known {
    fn of(record: &Record) -> Self {
        let number = |property: Property| match record.properties.values(property).next() {
            Some(Value::Number(number)) => *number,
            _ => 0,
        };
        Self {
            id: record.id,
            email: RecordId(number(learned::EMAIL)),
            mailbox: RecordId(number(learned::MAILBOX)),
            lesson: [Lesson::Junk, Lesson::NotJunk]
                .into_iter()
                .find(|lesson| number_of(*lesson) == number(learned::LESSON)),
            attempts: number(learned::ATTEMPTS),
        }
    }

    fn update(&self, properties: Properties) -> Change {
        Change::Update { kind: learned::KIND, id: self.id, body: None, properties: Some(properties) }
    }

    fn destroy(&self) -> Change {
        Change::Destroy { kind: learned::KIND, id: self.id }
    }

    fn failed_once_more(&self) -> Change {
        self.update(properties(self.email, self.mailbox, self.lesson, self.attempts + 1))
    }

    /// After the lesson: an email that is in Junk stays noted.
    fn taught(&self, lesson: Lesson) -> Change {
        match lesson {
            Lesson::Junk => self.update(properties(self.email, self.mailbox, None, 0)),
            Lesson::NotJunk => self.destroy(),
        }
    }
}

fn properties(email: RecordId, mailbox: RecordId, lesson: Option<Lesson>, attempts: u64) -> Properties {
    let mut properties = Properties::default().with(learned::EMAIL, email).with(learned::MAILBOX, mailbox);
    if let Some(lesson) = lesson {
        properties.add(learned::LESSON, number_of(lesson).into());
    }
    if attempts > 0 {
        properties.add(learned::ATTEMPTS, attempts.into());
    }
    properties
}

/// The number of a lesson in records.
const fn number_of(lesson: Lesson) -> u64 {
    match lesson {
        Lesson::Junk => 1,
        Lesson::NotJunk => 2,
    }
}
