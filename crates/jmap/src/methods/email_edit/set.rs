//! Email/set (RFC 8621 §4.6).

use std::collections::{BTreeSet, HashSet};

use futures_util::future::join_all;
use restante_mail::{EmailUpdate, Mail, MailError, Transition, email as email_kind};
use restante_records::{RecordId, Revision};
use serde_json::{Map, Value};

use super::{
    create::{Create, created_json},
    draft::Invalid,
    new_emails::NewEmails,
    update::Update,
};
use crate::{
    core::{
        Args, Context, Creations, Exchange, Id, IdType, MethodError, Patch, SetAnswer, SetArgs, SetError,
        State,
    },
    methods::{
        email::{
            self,
            properties::{PROPERTIES_MAX, Wanted},
        },
        mail_errors::{of_edit, of_step},
        set_states::{self, Transitions},
    },
};

/// The most edits that wait for their commits at once: those of one account share commits.
const EDITS_AT_ONCE: usize = 256;

/// Email/set.
pub(super) async fn set(
    context: &Context,
    exchange: &mut Exchange,
    mut args: Args,
) -> Result<(), MethodError> {
    let set = args.set(context).await?;
    args.done()?;
    let answer = set_emails(context, &mut exchange.creations, set).await?;
    answer.write(&mut exchange.answers);
    Ok(())
}

/// Makes, changes and destroys emails: for Email/set itself, and where other methods imply one.
pub(crate) async fn set_emails(
    context: &Context,
    creations: &mut Creations,
    set: SetArgs,
) -> Result<SetAnswer, MethodError> {
    let expected = set_states::expected(set.if_in_state.as_deref())?;
    let state = set_states::present(context, set.account, email_kind::KIND, expected).await?;
    let mut call = Call {
        context,
        mail: context.mail().for_call(),
        creations,
        expected,
        answer: SetAnswer::new(set.account, State::from(state)),
        transitions: Transitions::default(),
    };
    call.create(set.create).await?;
    let destroys = call.named(set.destroy);
    let mut edits = call.read_updates(set.update, &destroys).await?;
    edits.extend(destroys.into_iter().map(Edit::Destroy));
    call.edit(edits).await?;
    call.transitions.put(&mut call.answer);
    Ok(call.answer)
}

/// A call of Email/set.
struct Call<'c> {
    context: &'c Context,
    /// The handle of this call.
    mail: Mail,
    creations: &'c mut Creations,
    expected: Option<Revision>,
    answer: SetAnswer,
    transitions: Transitions,
}

/// A change of an existing email.
enum Edit {
    /// With the id as the client named it.
    Update(RecordId, String, EmailUpdate),
    Destroy(RecordId),
}

impl Call<'_> {
    /// The state that the next edit must find: none once the call itself has changed emails.
    fn expected(&self) -> Option<Revision> {
        self.expected.filter(|_| self.transitions.is_empty())
    }

    fn has_changed(&self) -> bool {
        !self.transitions.is_empty()
    }

    /// Makes new emails, before all other edits of the call.
    async fn create(&mut self, create: Map<String, Value>) -> Result<(), MethodError> {
        if create.is_empty() {
            return Ok(());
        }
        let account = self.answer.account;
        let quota = self.context.quota_bytes(account).await?;
        let mut new_emails = NewEmails::new(&self.mail, account, self.expected);
        let reader = Create { context: self.context, account, quota };
        for (key, email) in create {
            let read = reader.read(&key, &email, self.creations).await;
            new_emails.add(key, read).await?;
        }
        let made = new_emails.finish().await?;
        self.transitions = made.transitions;
        for (key, made, size) in made.created {
            self.creations.insert(&key, IdType::Email.id(made.id));
            self.answer.created.push((key, created_json(&made, size)));
        }
        self.answer.not_created.extend(made.not_created);
        Ok(())
    }

    /// The emails that `destroy` names, each once.
    fn named(&mut self, destroy: Vec<Id>) -> Vec<RecordId> {
        let mut named = Vec::with_capacity(destroy.len());
        for id in self.creations.distinct(destroy) {
            match IdType::Email.record(&id) {
                Some(email) => named.push(email),
                None => self.answer.not_destroyed.push((id, SetError::not_found())),
            }
        }
        named
    }

    /// Reads patches; errors of those that can't be applied are added to the response.
    async fn read_updates(
        &mut self,
        update: Map<String, Value>,
        destroys: &[RecordId],
    ) -> Result<Vec<Edit>, MethodError> {
        let destroys: HashSet<&RecordId> = destroys.iter().collect();
        let mut edits = Vec::with_capacity(update.len());
        for (named, patch) in update {
            let id = self.creations.resolve(&named).and_then(|id| IdType::Email.record(id));
            let read = match id {
                None => Err(SetError::not_found()),
                Some(id) if destroys.contains(&id) => Err(SetError::new("willDestroy")),
                Some(id) => {
                    let read = self.read_update(id, patch).await;
                    of_step(read, self.has_changed())?.map(|update| (id, update))
                }
            };
            match read {
                Ok((id, update)) => edits.push(Edit::Update(id, named, update)),
                Err(error) => self.answer.not_updated.push((named, error)),
            }
        }
        Ok(edits)
    }

    async fn read_update(
        &self,
        id: RecordId,
        patch: Value,
    ) -> Result<Result<EmailUpdate, SetError>, MethodError> {
        let error = match self.read_patch(id, patch).await? {
            Ok(update) => return Ok(Ok(update)),
            Err(error) => error,
        };
        // For an email that does not exist no properties are checked.
        let is_there = email::get::render(self.context, self.answer.account, id, &[]).await?.is_some();
        Ok(Err(if is_there { error } else { SetError::not_found() }))
    }

    async fn read_patch(
        &self,
        id: RecordId,
        patch: Value,
    ) -> Result<Result<EmailUpdate, SetError>, MethodError> {
        let Value::Object(patch) = patch else {
            return Ok(Err(SetError::new("invalidProperties").describe("expected an object")));
        };
        let mut invalid = Invalid::default();
        let Update { mailboxes, keywords, others } = match Update::read(patch, self.creations, &mut invalid) {
            Ok(update) => update,
            Err(error) => return Ok(Err(error)),
        };
        if !others.is_empty()
            && let Err(error) = self.check_unchanged(id, others, &mut invalid).await?
        {
            return Ok(Err(error));
        }
        if !invalid.is_empty() {
            return Ok(Err(invalid.into_error()));
        }
        Ok(Ok(EmailUpdate { if_in_state: None, mailboxes, keywords }))
    }

    /// T6: properties that can't change may be in a patch with the values that they have. Those with other values are added to
    /// `invalid`, and all of them when they are too many to be read.
    async fn check_unchanged(
        &self,
        id: RecordId,
        others: Patch,
        invalid: &mut Invalid,
    ) -> Result<Result<(), SetError>, MethodError> {
        let names: BTreeSet<String> =
            others.entries().filter_map(|(path, _)| path.first().cloned()).collect();
        let (known, unknown): (Vec<String>, Vec<String>) =
            names.into_iter().partition(|name| Wanted::named(&[name]).is_ok());
        for name in &unknown {
            invalid.add(name, "is no property of an email");
        }
        if known.len() > PROPERTIES_MAX {
            for name in &known {
                invalid.add(name, format!("is one of more than {PROPERTIES_MAX} that can't be changed"));
            }
            return Ok(Ok(()));
        }
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        let present = email::get::render(self.context, self.answer.account, id, &known).await?;
        let Some(present) = present else { return Ok(Err(SetError::not_found())) };
        let present: Map<String, Value> = serde_json::from_slice(&present).unwrap_or_default();
        let mut patched = present.clone();
        if let Err(error) = others.apply(&mut patched) {
            return Ok(Err(error));
        }
        let is_changed = |name: &String, value: &Value| patched.get(name).unwrap_or(&Value::Null) != value;
        for (name, value) in &present {
            if is_changed(name, value) {
                invalid.add(name, "can't be changed");
            }
        }
        Ok(Ok(()))
    }

    /// Applies edits in their order.
    async fn edit(&mut self, edits: Vec<Edit>) -> Result<(), MethodError> {
        let mut edits = edits.into_iter();
        // The first one that succeeds has verified the expected state.
        while let Some(expected) = self.expected()
            && let Some(edit) = edits.next()
        {
            let done = self.make(&edit, Some(expected)).await;
            self.report(edit, done)?;
        }
        loop {
            let some: Vec<Edit> = edits.by_ref().take(EDITS_AT_ONCE).collect();
            if some.is_empty() {
                return Ok(());
            }
            let done = join_all(some.iter().map(|edit| self.make(edit, None))).await;
            self.report_all(some, done)?;
        }
    }

    async fn make(&self, edit: &Edit, expected: Option<Revision>) -> Result<Transition, MailError> {
        let account = self.answer.account;
        match edit {
            Edit::Update(id, _, update) => {
                let update = EmailUpdate { if_in_state: expected, ..update.clone() };
                self.mail.update_email(account, *id, update).await
            }
            Edit::Destroy(id) => self.mail.destroy_email(account, *id, expected).await,
        }
    }

    /// Reports edits that were applied together: the call fails only if none of them has changed anything.
    fn report_all(
        &mut self,
        edits: Vec<Edit>,
        done: Vec<Result<Transition, MailError>>,
    ) -> Result<(), MethodError> {
        let (made, failed): (Vec<_>, Vec<_>) =
            edits.into_iter().zip(done).partition(|(_, done)| done.is_ok());
        for (edit, done) in made.into_iter().chain(failed) {
            self.report(edit, done)?;
        }
        Ok(())
    }

    fn report(&mut self, edit: Edit, done: Result<Transition, MailError>) -> Result<(), MethodError> {
        match (done, edit) {
            (Ok(states), edit) => {
                self.transitions.add(states);
                match edit {
                    Edit::Update(id, ..) => self.answer.updated.push((IdType::Email.id(id), None)),
                    Edit::Destroy(id) => self.answer.destroyed.push(IdType::Email.id(id)),
                }
            }
            (Err(error), Edit::Update(_, named, _)) => {
                let error = of_edit(error, self.has_changed())?;
                self.answer.not_updated.push((named, error));
            }
            (Err(error), Edit::Destroy(id)) => {
                let error = of_edit(error, self.has_changed())?;
                self.answer.not_destroyed.push((IdType::Email.id(id), error));
            }
        }
        Ok(())
    }
}
