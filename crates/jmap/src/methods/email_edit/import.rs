//! Email/import (RFC 8621 §4.8).

use std::borrow::Cow;

use bytes::Bytes;
use restante_directory::Access;
use restante_mail::{NewEmail, email, message};
use restante_records::AccountId;
use serde_json::{Map, Value};

use super::{
    create::created_json,
    draft::Invalid,
    new_emails::{MadeEmails, NewEmails},
    placement::Placement,
    stored,
};
use crate::{
    core::{
        Args, BlobRef, Context, Creations, Exchange, IdType, Members, MethodError, SetError, State,
        content::{Content, on_a_core},
        ids::{account_id, is_id},
        set::{write_errors, write_map},
    },
    methods::set_states,
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
    let mail = context.mail().for_call();
    let mut new_emails = NewEmails::new(&mail, account, if_in_state);
    let import = Import { context, account, quota };
    for (key, email) in emails {
        let read = import.read(&email, &exchange.creations).await;
        new_emails.add(key, read).await?;
    }
    let MadeEmails { transitions, created, not_created } = new_emails.finish().await?;
    for (key, made, _) in &created {
        exchange.creations.insert(key, IdType::Email.id(made.id));
    }
    let created: Vec<_> =
        created.into_iter().map(|(key, made, size)| (key, created_json(&made, size))).collect();
    let mut answer = exchange.answers.begin();
    answer.field("accountId", &account_id(account));
    let (old, new) = transitions.states(State::from(state));
    answer.field("oldState", &old);
    answer.field("newState", &new);
    write_map(&mut answer, "created", &created, |json, out| out.extend_from_slice(json.as_bytes()));
    write_errors(&mut answer, "notCreated", &not_created);
    Ok(())
}

/// What all emails of an import share.
struct Import<'c> {
    context: &'c Context,
    account: AccountId,
    quota: Option<u64>,
}

impl Import<'_> {
    /// Reads an email, and stores its message; the inner error concerns this email only.
    async fn read(
        &self,
        email: &Value,
        creations: &Creations,
    ) -> Result<Result<NewEmail, SetError>, MethodError> {
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
        Ok(Ok(NewEmail {
            if_in_state: None,
            message: message.stored,
            mailboxes: placement.mailboxes,
            keywords: placement.keywords.unwrap_or_default(),
            received: received.unwrap_or_else(|| self.context.clock().now().seconds()),
            quota: self.quota,
        }))
    }

    /// The message in a blob: repaired, stored, and parsed. `None` when the blob is not a message.
    async fn message(&self, content: &Content) -> Result<Option<stored::ReadMessage>, MethodError> {
        let raw = self.context.bytes(content, 0..content.size()).await?;
        let (raw, is_repaired) = on_a_core(raw.len(), move || repaired(raw)).await?;
        if !message::is_message(&raw) {
            return Ok(None);
        }
        let blob = match content {
            // The bytes are stored already: they are only protected from being swept until the email refers to them.
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

/// A message as SMTP would carry it, and whether it had to be changed for that.
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
