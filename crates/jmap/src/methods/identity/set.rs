//! Identity/set (RFC 8621 §6.3).

use restante_directory::EmailAddress;
use restante_mail::{Identity, IdentityUpdate, MailError, NamedAddress, NewIdentity};
use restante_records::{RecordId, Revision};
use serde_json::{Map, Value, json};

use super::{IdentityProperty, addresses};
use crate::{
    core::{
        Args, Context, Creations, Exchange, Id, IdType, MethodError, Object, Patch, SetAnswer, SetError,
        State,
    },
    methods::{
        email_edit::Invalid,
        mail_errors::{of_edit, of_step},
        set_states::{self, Transitions},
    },
};

/// The longest name.
const NAME_BYTES_MAX: usize = 1_024;
/// The most addresses of `replyTo` or `bcc`.
const ADDRESSES_MAX: usize = 100;

/// Identity/set.
pub(super) async fn set(
    context: &Context,
    exchange: &mut Exchange,
    mut args: Args,
) -> Result<(), MethodError> {
    let set = args.set(context).await?;
    args.done()?;
    let expected = set_states::expected(set.if_in_state.as_deref())?;
    let addresses = addresses(context, set.account).await?;
    let (known, state) = context.mail().identities(set.account, &addresses).await?;
    if expected.is_some_and(|expected| expected != state) {
        return Err(MethodError::StateMismatch);
    }
    let mut call = Call {
        context,
        creations: &mut exchange.creations,
        answer: SetAnswer::new(set.account, State::from(state)),
        transitions: Transitions::default(),
        expected,
        addresses,
    };
    for (key, value) in set.create {
        call.create(key, value).await?;
    }
    for (id, value) in set.update {
        let is_destroyed = |destroyed: &Id| call.record(destroyed.as_str()) == call.record(&id);
        let will_destroy = call.record(&id).is_some() && set.destroy.iter().any(is_destroyed);
        call.update(id, value, will_destroy, &known).await?;
    }
    for id in call.creations.distinct(set.destroy) {
        call.destroy(id).await?;
    }
    let Call { mut answer, transitions, .. } = call;
    transitions.put(&mut answer);
    answer.write(&mut exchange.answers);
    Ok(())
}

/// A call of Identity/set.
struct Call<'c> {
    context: &'c Context,
    creations: &'c mut Creations,
    answer: SetAnswer,
    transitions: Transitions,
    expected: Option<Revision>,
    /// The addresses of the account.
    addresses: Vec<String>,
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
        self.creations.resolve(id).and_then(|id| IdType::Identity.record(id))
    }

    async fn create(&mut self, key: String, value: Value) -> Result<(), MethodError> {
        let read = of_step(self.read_new(value).await, self.has_changed())?;
        let new = match read {
            Ok(new) => new,
            Err(error) => {
                self.answer.not_created.push((key, error));
                return Ok(());
            }
        };
        let (account, expected) = (self.answer.account, self.expected());
        match self.context.mail().create_identity(account, &new, expected).await {
            Ok((id, states)) => {
                self.transitions.add(states);
                self.creations.insert(&key, IdType::Identity.id(id));
                self.answer.created.push((key, created_json(id, &new.update)));
            }
            Err(error) => {
                let error = of_edit(error, self.has_changed())?;
                self.answer.not_created.push((key, error));
            }
        }
        Ok(())
    }

    /// Reads an identity to create. The inner error concerns this identity only.
    async fn read_new(&self, value: Value) -> Result<Result<NewIdentity, SetError>, MethodError> {
        let Value::Object(mut object) = value else {
            return Ok(Err(SetError::new("invalidProperties").describe("expected an object")));
        };
        let mut invalid = Invalid::default();
        let email = object.remove("email");
        let email = email.as_ref().and_then(Value::as_str);
        let address = email.and_then(|email| email.parse::<EmailAddress>().ok());
        let update = read_update(object, &mut invalid);
        let (Some(email), Some(address)) = (email, address) else {
            // RFC 8621 §6.3: an address with a wildcard, such as *@example.org, is not allowed here.
            if email.is_some_and(|email| email.starts_with("*@")) && invalid.is_empty() {
                return Ok(Err(forbidden()));
            }
            invalid.add("email", "must be an address");
            return Ok(Err(invalid.into_error()));
        };
        if !invalid.is_empty() {
            return Ok(Err(invalid.into_error()));
        }
        if !self.context.directory().is_address_of(self.answer.account, &address).await? {
            return Ok(Err(forbidden()));
        }
        Ok(Ok(NewIdentity { email: email.to_owned(), update }))
    }

    async fn update(
        &mut self,
        id: String,
        value: Value,
        will_destroy: bool,
        known: &[Identity],
    ) -> Result<(), MethodError> {
        let record = self.record(&id);
        let edited = match record {
            None => Err(SetError::not_found()),
            Some(_) if will_destroy => Err(SetError::new("willDestroy")),
            Some(record) => {
                let edited = self.try_update(record, value, known).await;
                of_step(edited, self.has_changed())?
            }
        };
        let name = self.creations.resolve(&id).unwrap_or(&id).to_owned();
        match edited {
            Ok(()) => self.answer.updated.push((name, None)),
            Err(error) => self.answer.not_updated.push((name, error)),
        }
        Ok(())
    }

    async fn try_update(
        &mut self,
        record: RecordId,
        value: Value,
        known: &[Identity],
    ) -> Result<Result<(), SetError>, MethodError> {
        let Value::Object(patch) = value else {
            return Ok(Err(SetError::invalid_patch("expected an object")));
        };
        let account = self.answer.account;
        let before = match known.iter().find(|identity| identity.id == record) {
            Some(known) => known.clone(),
            // An identity that this call has created.
            None => match self.context.mail().identity(account, record).await? {
                Some(made) => made,
                None => return Ok(Err(SetError::not_found())),
            },
        };
        let update = match patched(&before, patch) {
            Ok(update) => update,
            Err(error) => return Ok(Err(error)),
        };
        let edited = self.context.mail().update_identity(account, record, &update, self.expected()).await;
        self.done(edited)
    }

    async fn destroy(&mut self, name: String) -> Result<(), MethodError> {
        let destroyed = match self.record(&name) {
            None => Err(SetError::not_found()),
            Some(record) => {
                let (account, expected) = (self.answer.account, self.expected());
                let mail = self.context.mail();
                let destroyed = mail.destroy_identity(account, record, &self.addresses, expected).await;
                self.done(destroyed)?
            }
        };
        match destroyed {
            Ok(()) => self.answer.destroyed.push(name),
            Err(error) => self.answer.not_destroyed.push((name, error)),
        }
        Ok(())
    }

    fn done(
        &mut self,
        edited: Result<restante_mail::Transition, MailError>,
    ) -> Result<Result<(), SetError>, MethodError> {
        match edited {
            Ok(states) => {
                self.transitions.add(states);
                Ok(Ok(()))
            }
            Err(error) => of_edit(error, self.has_changed()).map(Err),
        }
    }
}

fn forbidden() -> SetError {
    SetError::new("forbiddenFrom").describe("mail for this address does not go to this account alone")
}

/// Reads the properties that a client may set; everything that is invalid is added to `invalid`.
fn read_update(object: Map<String, Value>, invalid: &mut Invalid) -> IdentityUpdate {
    let mut update = IdentityUpdate::default();
    for (name, value) in object {
        match name.as_str() {
            "name" => update.name = text(&name, &value, NAME_BYTES_MAX, invalid),
            "textSignature" => update.text_signature = text(&name, &value, usize::MAX, invalid),
            "htmlSignature" => update.html_signature = text(&name, &value, usize::MAX, invalid),
            "replyTo" => update.reply_to = addresses_of(&name, &value, invalid),
            "bcc" => update.bcc = addresses_of(&name, &value, invalid),
            "id" | "mayDelete" => invalid.add(&name, "is set by the server"),
            "email" => invalid.add(&name, "can't be changed"),
            _ => invalid.add(&name, "is no property of identities"),
        }
    }
    update
}

/// A text; null is the default, which is empty.
fn text(name: &str, value: &Value, bytes_max: usize, invalid: &mut Invalid) -> Option<String> {
    match value {
        Value::Null => Some(String::new()),
        Value::String(text) if text.len() <= bytes_max => Some(text.clone()),
        _ => {
            invalid.add(name, "must be a text that is not too long");
            None
        }
    }
}

fn addresses_of(name: &str, value: &Value, invalid: &mut Invalid) -> Option<Option<Vec<NamedAddress>>> {
    if value.is_null() {
        return Some(None);
    }
    let address = |value: &Value| -> Option<NamedAddress> {
        let object = value.as_object()?;
        if object.keys().any(|key| key != "name" && key != "email") {
            return None;
        }
        let name = match object.get("name") {
            None | Some(Value::Null) => None,
            Some(name) => Some(name.as_str()?.to_owned()),
        };
        Some(NamedAddress { name, email: object.get("email")?.as_str()?.to_owned() })
    };
    let list = value.as_array().filter(|list| list.len() <= ADDRESSES_MAX);
    let list: Option<Vec<NamedAddress>> = list.and_then(|list| list.iter().map(address).collect());
    if list.is_none() {
        invalid.add(name, "must be a list of addresses, each with name and email");
    }
    list.map(Some)
}

/// How a patch changes an identity. T6: properties that can't change may be in it with the values that they have.
fn patched(before: &Identity, patch: Map<String, Value>) -> Result<IdentityUpdate, SetError> {
    let present = object_of(before, &IdentityProperty::ALL);
    let mut after = present.clone();
    Patch::read(patch)?.apply(&mut after)?;
    let mut changed = Map::new();
    for (name, value) in &after {
        if present.get(name) != Some(value) {
            changed.insert(name.clone(), value.clone());
        }
    }
    for name in present.keys() {
        if !after.contains_key(name) && present.get(name) != Some(&Value::Null) {
            changed.insert(name.clone(), Value::Null);
        }
    }
    let mut invalid = Invalid::default();
    let update = read_update(changed, &mut invalid);
    if invalid.is_empty() { Ok(update) } else { Err(invalid.into_error()) }
}

fn object_of(identity: &Identity, properties: &[IdentityProperty]) -> Map<String, Value> {
    let mut json = Vec::new();
    let mut object = Object::open(&mut json);
    for property in properties {
        property.write(identity, &mut object);
    }
    drop(object);
    serde_json::from_slice(&json).unwrap_or_default() // it was written as an object
}

/// T5: the id, what the server has set, and the defaults of properties that were not given.
fn created_json(id: RecordId, given: &IdentityUpdate) -> String {
    let mut object = json!({ "id": IdType::Identity.id(id), "mayDelete": true });
    let defaults = [
        ("name", given.name.is_none(), json!("")),
        ("replyTo", given.reply_to.is_none(), Value::Null),
        ("bcc", given.bcc.is_none(), Value::Null),
        ("textSignature", given.text_signature.is_none(), json!("")),
        ("htmlSignature", given.html_signature.is_none(), json!("")),
    ];
    if let Some(object) = object.as_object_mut() {
        for (name, is_default, value) in defaults {
            if is_default {
                object.insert(name.to_owned(), value);
            }
        }
    }
    object.to_string()
}
