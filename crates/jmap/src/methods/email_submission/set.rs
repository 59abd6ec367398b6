//! EmailSubmission/set (RFC 8621 §7.5).

use std::collections::{BTreeMap, HashMap};

use futures_util::future::BoxFuture;
use restante_mail::{MailError, NewSubmission, Submission, Transition, submission};
use restante_records::{RecordId, Revision};
use serde_json::{Map, Value, json};

use super::{
    create::{Accepted, Create},
    properties::{envelope, object, utc_date},
};
use crate::{
    core::{
        Args, Context, Creations, Exchange, Id, IdType, MethodError, Patch, SetAnswer, SetArgs, SetError,
        State,
    },
    methods::{
        email_edit::set_emails,
        mail_errors::{of_edit, of_step},
        set_states::{self, Transitions},
    },
};

/// EmailSubmission/set, and the Email/set that `onSuccessUpdateEmail` and `onSuccessDestroyEmail` imply.
pub(super) async fn set(
    context: &Context,
    exchange: &mut Exchange,
    mut args: Args,
) -> Result<(), MethodError> {
    let set = args.set(context).await?;
    let on_success = OnSuccess::take(&mut args)?;
    args.done()?;
    let account = set.account;
    let expected = set_states::expected(set.if_in_state.as_deref())?;
    let state = set_states::present(context, account, submission::KIND, expected).await?;
    let mut call = Call {
        context,
        creations: &mut exchange.creations,
        answer: SetAnswer::new(account, State::from(state)),
        transitions: Transitions::default(),
        expected,
        emails: HashMap::new(),
    };
    for (key, value) in set.create {
        call.create(key, value).await?;
    }
    for (id, value) in set.update {
        let is_destroyed = |destroyed: &Id| call.record(destroyed.as_str()) == call.record(&id);
        let will_destroy = call.record(&id).is_some() && set.destroy.iter().any(is_destroyed);
        call.update(id, value, will_destroy).await?;
    }
    for id in call.creations.distinct(set.destroy) {
        call.destroy(id).await?;
    }
    let Call { mut answer, transitions, emails, .. } = call;
    transitions.put(&mut answer);
    answer.write(&mut exchange.answers);
    let (update, destroy) = on_success.of(&emails, &exchange.creations);
    if update.is_empty() && destroy.is_empty() {
        return Ok(());
    }
    let set = SetArgs { account, if_in_state: None, create: Map::new(), update, destroy };
    imply_email_set(context, exchange, set).await;
    Ok(())
}

/// SU6: a second response with the same call id. The submissions were made, so an error here does not undo them.
async fn imply_email_set(context: &Context, exchange: &mut Exchange, set: SetArgs) {
    match set_emails(context, &mut exchange.creations, set).await {
        Ok(answer) => answer.write_members(&mut exchange.answers.begin_as("Email/set")),
        Err(error) => error.write(&mut exchange.answers.begin_as("error")),
    }
}

/// What happens to emails whose submissions were created, changed or destroyed.
struct OnSuccess {
    /// Patches by the ids of submissions.
    update: Vec<(String, Map<String, Value>)>,
    destroy: Vec<Id>,
}

impl OnSuccess {
    fn take(args: &mut Args) -> Result<Self, MethodError> {
        let patches: Map<String, Value> = args.nullable("onSuccessUpdateEmail")?.unwrap_or_default();
        let destroy: Vec<Id> = args.nullable("onSuccessDestroyEmail")?.unwrap_or_default();
        let wrong = |problem| MethodError::argument("onSuccessUpdateEmail", problem);
        let mut update = Vec::with_capacity(patches.len());
        for (id, patch) in patches {
            if Id::read(id.clone()).is_none() {
                return Err(wrong("expected an object with ids as keys"));
            }
            let Value::Object(patch) = patch else { return Err(wrong("expected patches")) };
            update.push((id, patch));
        }
        Ok(Self { update, destroy })
    }

    /// The arguments of the Email/set, only for the submissions that succeeded.
    fn of(
        self,
        emails: &HashMap<RecordId, RecordId>,
        creations: &Creations,
    ) -> (Map<String, Value>, Vec<Id>) {
        let email = |id: &str| {
            let submission = IdType::EmailSubmission.record(creations.resolve(id)?)?;
            emails.get(&submission).map(|email| IdType::Email.id(*email))
        };
        // Several submissions may be of one email, which gets the patches of all. Of equal paths the last one wins; Email/set refuses
        // paths that overlap.
        let mut patches: BTreeMap<String, Map<String, Value>> = BTreeMap::new();
        for (id, patch) in self.update {
            if let Some(email) = email(&id) {
                patches.entry(email).or_default().extend(patch);
            }
        }
        let update = patches.into_iter().map(|(email, patch)| (email, patch.into())).collect();
        let mut destroy: Vec<Id> = Vec::new();
        for id in self.destroy {
            match email(id.as_str()).and_then(Id::read) {
                Some(email) if !destroy.contains(&email) => destroy.push(email),
                _ => {}
            }
        }
        (update, destroy)
    }
}

/// A call of EmailSubmission/set.
struct Call<'c> {
    context: &'c Context,
    creations: &'c mut Creations,
    answer: SetAnswer,
    transitions: Transitions,
    expected: Option<Revision>,
    /// The emails of the submissions that were created, changed or destroyed.
    emails: HashMap<RecordId, RecordId>,
}

impl Call<'_> {
    fn has_changed(&self) -> bool {
        !self.transitions.is_empty()
    }

    /// The state that the next edit must find.
    fn expected(&self) -> Option<Revision> {
        self.expected.filter(|_| self.transitions.is_empty())
    }

    fn record(&self, id: &str) -> Option<RecordId> {
        self.creations.resolve(id).and_then(|id| IdType::EmailSubmission.record(id))
    }

    async fn create(&mut self, key: String, value: Value) -> Result<(), MethodError> {
        let reader = Create { context: self.context, account: self.answer.account };
        // Boxed: otherwise the compiler can't prove that the future of the whole call is `Send`, and it would be large.
        let read: BoxFuture<'_, _> = Box::pin(reader.read(&value, self.creations));
        let created = match of_step(read.await, self.has_changed())? {
            Err(error) => Err(error),
            Ok(Accepted { submission, is_envelope_made }) => {
                let json = created_json(&submission, is_envelope_made);
                let email = submission.email;
                let new = NewSubmission { if_in_state: self.expected(), ..submission };
                // Accepted means durable: this returns only then.
                match self.context.mail().create_submission(self.answer.account, new).await {
                    Ok((id, states)) => {
                        self.transitions.add(states);
                        Ok((id, email, json))
                    }
                    Err(error) => Err(of_edit(error, self.has_changed())?),
                }
            }
        };
        match created {
            Ok((id, email, mut json)) => {
                self.emails.insert(id, email);
                let id = IdType::EmailSubmission.id(id);
                json.insert("id".to_owned(), id.clone().into());
                self.creations.insert(&key, id);
                self.answer.created.push((key, Value::Object(json).to_string()));
            }
            Err(error) => self.answer.not_created.push((key, error)),
        }
        Ok(())
    }

    /// The submission that an id names.
    async fn find(&self, id: &str) -> Result<Result<Submission, SetError>, MethodError> {
        let Some(record) = self.record(id) else { return Ok(Err(SetError::not_found())) };
        let found = self.context.mail().submissions(self.answer.account, &[record]).await?;
        Ok(found.into_iter().flatten().next().ok_or_else(SetError::not_found))
    }

    async fn update(&mut self, id: String, value: Value, will_destroy: bool) -> Result<(), MethodError> {
        let found = of_step(self.find(&id).await, self.has_changed())?;
        let updated = match found {
            Err(error) => Err(error),
            Ok(_) if will_destroy => Err(SetError::new("willDestroy")),
            Ok(found) => match is_cancel(&found, value) {
                Err(error) => Err(error),
                Ok(false) => Ok(found.head),
                Ok(true) => {
                    let (account, expected) = (self.answer.account, self.expected());
                    let mail = self.context.mail();
                    let canceled = mail.cancel_submission(account, found.head.id, expected).await;
                    self.done(canceled)?.map(|()| found.head)
                }
            },
        };
        let name = self.creations.resolve(&id).unwrap_or(&id).to_owned();
        match updated {
            Ok(head) => {
                self.emails.insert(head.id, head.email);
                self.answer.updated.push((name, None));
            }
            Err(error) => self.answer.not_updated.push((name, error)),
        }
        Ok(())
    }

    async fn destroy(&mut self, name: String) -> Result<(), MethodError> {
        let found = of_step(self.find(&name).await, self.has_changed())?;
        let destroyed = match found {
            Err(error) => Err(error),
            Ok(Submission { head, .. }) => {
                let (account, expected) = (self.answer.account, self.expected());
                let destroyed = self.context.mail().destroy_submission(account, head.id, expected).await;
                self.done(destroyed)?.map(|()| head)
            }
        };
        match destroyed {
            Ok(head) => {
                self.emails.insert(head.id, head.email);
                self.answer.destroyed.push(name);
            }
            Err(error) => self.answer.not_destroyed.push((name, error)),
        }
        Ok(())
    }

    fn done(&mut self, edited: Result<Transition, MailError>) -> Result<Result<(), SetError>, MethodError> {
        match edited {
            Ok(states) => {
                self.transitions.add(states);
                Ok(Ok(()))
            }
            Err(error) => of_edit(error, self.has_changed()).map(Err),
        }
    }
}

/// Whether a patch cancels the submission, the only possible change (SU4). T6: other properties may be in it with the values that they
/// have.
fn is_cancel(submission: &Submission, patch: Value) -> Result<bool, SetError> {
    let Value::Object(patch) = patch else {
        return Err(SetError::invalid_patch("expected an object"));
    };
    let present = object(submission);
    let mut after = present.clone();
    Patch::read(patch)?.apply(&mut after)?;
    let names = present.keys().chain(after.keys().filter(|name| !present.contains_key(*name)));
    let changed: Vec<&str> =
        names.filter(|name| present.get(*name) != after.get(*name)).map(String::as_str).collect();
    match changed.as_slice() {
        [] => Ok(false),
        ["undoStatus"] if after.get("undoStatus") == Some(&json!("canceled")) => Ok(true),
        bad => Err(SetError::invalid(bad.iter().copied(), "can't be changed")),
    }
}

/// T5: the properties that the server has set, except the id.
fn created_json(new: &NewSubmission, is_envelope_made: bool) -> Map<String, Value> {
    let mut json = Map::new();
    let mut set = |name: &str, value: Value| json.insert(name.to_owned(), value);
    set("threadId", IdType::Thread.id(new.thread).into());
    set("sendAt", utc_date(new.send_at));
    set("undoStatus", if new.is_pending { "pending" } else { "final" }.into());
    if is_envelope_made {
        set("envelope", envelope(&new.mail_from, new.rcpt_to.iter()));
    }
    json
}
