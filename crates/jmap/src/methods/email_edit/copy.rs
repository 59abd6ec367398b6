//! Email/copy (RFC 8621 §4.7).

use std::collections::HashMap;

use restante_directory::Access;
use restante_mail::{EmailState, NewEmail, StoredMessage, email};
use restante_records::{AccountId, Get, Record, RecordId, Revision, Value as RecordValue};
use serde_json::{Map, Value};

use super::{
    create::created_json,
    draft::Invalid,
    new_emails::{MadeEmails, NewEmails},
    placement::Placement,
    set::set_emails,
};
use crate::{
    core::{
        Args, Context, Creations, Exchange, Id, IdType, Members, MethodError, SetArgs, SetError, State,
        ids::{account_id, is_id},
        set::{write_errors, write_map},
    },
    methods::set_states::{self, Transitions},
};

/// Email/copy, and the Email/set that `onSuccessDestroyOriginal` implies.
pub(super) async fn copy(
    context: &Context,
    exchange: &mut Exchange,
    mut args: Args,
) -> Result<(), MethodError> {
    let from = args.from_account(context).await?;
    let account = args.account(context, Access::Write).await?;
    let if_from_in_state = args.nullable::<String>("ifFromInState")?;
    let if_in_state = args.nullable::<String>("ifInState")?;
    let create: Map<String, Value> = args.required("create")?;
    let destroys_original = args.optional("onSuccessDestroyOriginal")?.unwrap_or(false);
    let destroy_if_in_state = args.nullable::<String>("destroyFromIfInState")?;
    args.done()?;
    if from == account {
        return Err(MethodError::argument("fromAccountId", "expected another account than accountId"));
    }
    if !create.keys().all(|key| is_id(key)) {
        return Err(MethodError::argument("create", "expected an object with ids as keys"));
    }
    context.check_objects_in_set(create.len())?;
    let expected_from = set_states::expected(if_from_in_state.as_deref())?;
    set_states::present(context, from, email::KIND, expected_from).await?;
    let expected = set_states::expected(if_in_state.as_deref())?;
    let state = set_states::present(context, account, email::KIND, expected).await?;
    let quota = context.quota_bytes(account).await?;
    let copies = Copies { context, from, account, quota };
    let (copied, transitions) = copies.all(create, expected, &mut exchange.creations).await?;
    let mut answer = exchange.answers.begin();
    answer.field("fromAccountId", &account_id(from));
    answer.field("accountId", &account_id(account));
    let (old, new) = transitions.states(State::from(state));
    answer.field("oldState", &old);
    answer.field("newState", &new);
    write_map(&mut answer, "created", &copied.created, |json, out| out.extend_from_slice(json.as_bytes()));
    write_errors(&mut answer, "notCreated", &copied.not_created);
    drop(answer);
    if destroys_original && !copied.originals.is_empty() {
        destroy_originals(context, exchange, from, copied.originals, destroy_if_in_state).await;
    }
    Ok(())
}

/// T7: a second response with the same call id. The copies were made, so an error here does not undo them.
async fn destroy_originals(
    context: &Context,
    exchange: &mut Exchange,
    from: AccountId,
    originals: Vec<Id>,
    if_in_state: Option<String>,
) {
    let set =
        SetArgs { account: from, if_in_state, create: Map::new(), update: Map::new(), destroy: originals };
    let done = match context.access(from) {
        Some(Access::Write) => set_emails(context, &mut exchange.creations, set).await,
        _ => Err(MethodError::AccountReadOnly),
    };
    match done {
        Ok(answer) => answer.write_members(&mut exchange.answers.begin_as("Email/set")),
        Err(error) => error.write(&mut exchange.answers.begin_as("error")),
    }
}

/// The outcome of the copies.
#[derive(Default)]
struct Copied {
    created: Vec<(String, String)>,
    not_created: Vec<(String, SetError)>,
    /// The ids of the emails that were copied.
    originals: Vec<Id>,
}

/// The copies of one call.
struct Copies<'c> {
    context: &'c Context,
    from: AccountId,
    account: AccountId,
    quota: Option<u64>,
}

impl Copies<'_> {
    async fn all(
        &self,
        create: Map<String, Value>,
        expected: Option<Revision>,
        creations: &mut Creations,
    ) -> Result<(Copied, Transitions), MethodError> {
        let mail = self.context.mail().for_call();
        let mut new_emails = NewEmails::new(&mail, self.account, expected);
        let mut originals: HashMap<String, RecordId> = HashMap::with_capacity(create.len());
        for (key, email) in create {
            let read = self.read(&email, creations).await;
            let read = read.map(|read| {
                read.map(|(original, new)| {
                    originals.insert(key.clone(), original);
                    new
                })
            });
            new_emails.add(key, read).await?;
        }
        let MadeEmails { transitions, created, not_created } = new_emails.finish().await?;
        let mut copied = Copied { not_created, ..Copied::default() };
        for (key, made, size) in created {
            creations.insert(&key, IdType::Email.id(made.id));
            let original = originals.get(&key).and_then(|id| Id::read(IdType::Email.id(*id)));
            copied.originals.extend(original);
            copied.created.push((key, created_json(&made, size)));
        }
        Ok((copied, transitions))
    }

    /// Reads one copy: the id of the original, and the new email. The inner error concerns this email only.
    async fn read(
        &self,
        email: &Value,
        creations: &Creations,
    ) -> Result<Result<(RecordId, NewEmail), SetError>, MethodError> {
        let Some(object) = email.as_object() else {
            return Ok(Err(SetError::new("invalidProperties").describe("expected an object")));
        };
        let mut invalid = Invalid::default();
        let placement = Placement::read(object, creations, &mut invalid);
        for name in object.keys() {
            if !["id", "mailboxIds", "keywords", "receivedAt"].contains(&name.as_str()) {
                invalid.add(name, "can't be set by a copy");
            }
        }
        let Some(named) = object.get("id").and_then(Value::as_str) else {
            invalid.add("id", "must be the id of an email");
            return Ok(Err(invalid.into_error()));
        };
        if !invalid.is_empty() {
            return Ok(Err(invalid.into_error()));
        }
        let id = creations.resolve(named).and_then(|id| IdType::Email.record(id));
        let Some(original) = self.original(id).await? else { return Ok(Err(SetError::not_found())) };
        let new = NewEmail {
            if_in_state: None,
            message: original.message,
            mailboxes: placement.mailboxes,
            keywords: placement.keywords.unwrap_or(original.keywords),
            received: placement.received.unwrap_or(original.received),
            quota: self.quota,
        };
        Ok(Ok((original.id, new)))
    }

    /// The email to copy. Its blob is protected from being swept until the copy refers to it.
    async fn original(&self, id: Option<RecordId>) -> Result<Option<Original>, MethodError> {
        let Some(id) = id else { return Ok(None) };
        let found = self.context.records().get(self.from, &Get::whole(email::KIND, vec![id])).await?;
        let Some(record) = found.into_iter().next().flatten() else { return Ok(None) };
        let state = EmailState::of(&record)?;
        if state.mailboxes.is_empty() {
            return Ok(None);
        }
        let names = self.context.mail().keywords(self.from, &state.keywords).await?;
        let Some(message) = message_of(&record, &state) else { return Ok(None) };
        if !self.context.blobs().touch(&[message.blob]).await?.contains(&true) {
            return Ok(None);
        }
        Ok(Some(Original {
            id,
            message,
            keywords: names.of_email(&state).map(str::to_owned).collect(),
            received: i64::try_from(state.received).unwrap_or(i64::MAX),
        }))
    }
}

/// An email to copy.
struct Original {
    id: RecordId,
    message: StoredMessage,
    keywords: Vec<String>,
    received: i64,
}

/// What the record stores of the message.
fn message_of(record: &Record, state: &EmailState) -> Option<StoredMessage> {
    let key = |value: &RecordValue| match value {
        RecordValue::Text(key) => key.as_ref().try_into().ok(),
        _ => None,
    };
    Some(StoredMessage {
        row: record.body.bytes.clone(),
        size: state.size,
        thread_keys: record.properties.values(email::THREAD_KEY).filter_map(key).collect(),
        blob: record.body.blobs.first().copied()?,
    })
}
