//! Email/import (RFC 8621 §4.8).

use std::borrow::Cow;

use bytes::Bytes;
use restante_directory::Access;
use restante_mail::{CreatedEmail, NewEmail, email, message};
use restante_records::{AccountId, Revision};
use serde_json::{Map, Value};

use super::{draft::Invalid, placement::Placement, stored};
use crate::{
    core::{
        Args, BlobRef, Context, Creations, Exchange, IdType, Members, MethodError, SetError, State,
        content::{Content, on_a_core},
        ids::{account_id, is_id},
        set::{write_errors, write_map},
    },
    methods::{
        email_edit::create::created_json,
        mail_errors::{of_edit, of_step},
        set_states::{self, Transitions},
    },
};

/// Email/import.
pub(super) async fn import(
    context: &Context,
    exchange: &mut Exchange,
    mut args: Args,
) -> Result<(), MethodError> {
    let account = args.account(context, Access::Write).await?;
    let if_in_state = args.nullable::<String>("ifInState")?;
    let emails: Map<String, Value> = args.required("emails")?;
    args.done()?;
    if !emails.keys().all(|key| is_id(key)) {
        return Err(MethodError::argument("emails", "expected an object with ids as keys"));
    }
    context.check_objects_in_set(emails.len())?;
    let if_in_state = set_states::expected(if_in_state.as_deref())?;
    let state = set_states::present(context, account, email::KIND, if_in_state).await?;
    let quota = context.quota_bytes(account).await?;
    let mut transitions = Transitions::default();
    let mut created: Vec<(String, String)> = Vec::new();
    let mut not_created: Vec<(String, SetError)> = Vec::new();
    for (key, email) in emails {
        let has_changed = !transitions.is_empty();
        let expected = if_in_state.filter(|_| !has_changed);
        let import = Import { context, account, quota, expected, has_changed };
        match of_step(import.one(&email, &exchange.creations).await, has_changed)? {
            Ok((made, size)) => {
                transitions.add(made.states);
                exchange.creations.insert(&key, IdType::Email.id(made.id));
                created.push((key, created_json(&made, size)));
            }
            Err(error) => not_created.push((key, error)),
        }
    }
    let mut answer = exchange.answers.begin();
    answer.field("accountId", &account_id(account));
    let (old, new) = transitions.states(State::from(state));
    answer.field("oldState", &old);
    answer.field("newState", &new);
    write_map(&mut answer, "created", &created, |json, out| out.extend_from_slice(json.as_bytes()));
    write_errors(&mut answer, "notCreated", &not_created);
    Ok(())
}

/// One email of an import.
struct Import<'c> {
    context: &'c Context,
    account: AccountId,
    quota: Option<u64>,
    expected: Option<Revision>,
    has_changed: bool,
}

impl Import<'_> {
    /// Makes an email of a message; the inner error is that of this email.
    async fn one(
        &self,
        email: &Value,
        creations: &Creations,
    ) -> Result<Result<(CreatedEmail, u64), SetError>, MethodError> {
        let Some(object) = email.as_object() else {
            return Ok(Err(SetError::new("invalidProperties").describe("expected an object")));
        };
        let mut invalid = Invalid::default();
        let placement = Placement::read(object, creations, &mut invalid);
        for name in object.keys() {
            if !["blobId", "mailboxIds", "keywords", "receivedAt"].contains(&name.as_str()) {
                invalid.add(name, "is no property of an import");
            }
        }
        let named = object.get("blobId").and_then(Value::as_str);
        let blob = named.and_then(|id| creations.resolve(id)).and_then(|id| id.parse::<BlobRef>().ok());
        let content = match blob {
            Some(blob) => self.context.content(self.account, &blob).await?,
            None => None,
        };
        if content.is_none() {
            invalid.add("blobId", "names no blob");
        }
        let Some(content) = content.filter(|_| invalid.is_empty()) else {
            return Ok(Err(invalid.into_error()));
        };
        let Some(message) = self.message(&content).await? else {
            let why = "the blob is no message: it does not begin with a header field";
            return Ok(Err(SetError::new("invalidEmail").describe(why)));
        };
        let received = placement.received.or(message.newest_received);
        let size = message.stored.size;
        let new = NewEmail {
            if_in_state: self.expected,
            message: message.stored,
            mailboxes: placement.mailboxes,
            keywords: placement.keywords.unwrap_or_default(),
            received: received.unwrap_or_else(|| self.context.clock().now().seconds()),
            quota: self.quota,
        };
        match self.context.mail().create_email(self.account, new).await {
            Ok(made) => Ok(Ok((made, size))),
            Err(error) => of_edit(error, self.has_changed).map(Err),
        }
    }

    /// The message in a blob: repaired, in the store, and read. `None` when the blob is none.
    async fn message(&self, content: &Content) -> Result<Option<stored::ReadMessage>, MethodError> {
        let raw = self.context.bytes(content, 0..content.size()).await?;
        let (raw, is_repaired) = on_a_core(raw.len(), move || repaired(raw)).await?;
        if !message::is_message(&raw) {
            return Ok(None);
        }
        let blob = match content {
            // The bytes are there: they are only kept from being swept until the email refers to them.
            Content::Stored { blob, .. } if !is_repaired => {
                match *self.context.blobs().touch(&[*blob]).await? {
                    [true] => *blob,
                    _ => self.context.blobs().put(&mut raw.clone()).await?.id,
                }
            }
            _ => self.context.blobs().put(&mut raw.clone()).await?.id,
        };
        Ok(Some(stored::read(raw, blob).await?))
    }
}

/// A message as SMTP would carry it, and whether it was not so before.
fn repaired(raw: Bytes) -> (Bytes, bool) {
    let repaired = match message::repaired(&raw) {
        Cow::Borrowed(_) => None,
        Cow::Owned(repaired) => Some(repaired),
    };
    match repaired {
        Some(repaired) => (repaired.into(), true),
        None => (raw, false),
    }
}
