//! PushSubscription/set (RFC 8620 §7.2.2).

use restante_directory::random_secret;
use restante_records::RecordId;
use serde_json::{Map, Value, json};

use super::{is_visible, visible, write_expires};
use crate::{
    core::{
        Args, Argument, Context, Creations, Exchange, Id, IdType, Members, MethodError, Object, Patch,
        SetError,
        args::UtcDate,
        ids::is_id,
        set::{write_errors, write_map},
    },
    push::subscriptions::{Endpoint, Found, Keys, Stored, are_usable, change, create, destroy, list},
};

/// The longest `deviceClientId`.
const DEVICE_BYTES_MAX: usize = 1_024;
/// The most names of types, and the longest name.
const TYPES_MAX: usize = 100;
const TYPE_BYTES_MAX: usize = 100;
/// The properties that a client can't set, or only at creation.
const IMMUTABLE: [&str; 4] = ["id", "deviceClientId", "url", "keys"];

/// PushSubscription/set.
pub(super) async fn set(
    context: &Context,
    exchange: &mut Exchange,
    mut args: Args,
) -> Result<(), MethodError> {
    let creates: Map<String, Value> = args.nullable("create")?.unwrap_or_default();
    let updates: Map<String, Value> = args.nullable("update")?.unwrap_or_default();
    let destroys: Vec<Id> = args.nullable("destroy")?.unwrap_or_default();
    args.done()?;
    if !creates.keys().all(|key| is_id(key)) {
        return Err(MethodError::argument("create", "expected an object with ids as keys"));
    }
    if !updates.keys().all(|key| Id::read(key.clone()).is_some()) {
        return Err(MethodError::argument("update", "expected an object with ids as keys"));
    }
    context.check_objects_in_set(creates.len() + updates.len() + destroys.len())?;
    // If the records fail, this fails before anything is changed.
    let known = visible(context).await?;
    let mut call = Call { context, creations: &mut exchange.creations, answer: Answer::default() };
    for (key, value) in creates {
        call.create(key, value).await;
    }
    for (id, value) in updates {
        // A subscription that is destroyed by the same call is not updated (RFC 8620 §5.3).
        let is_known = |record| id.starts_with('#') || known.iter().any(|found| found.id == record);
        let is_destroyed = |record| destroys.iter().any(|id| call.record(id.as_str()) == Some(record));
        let will_destroy = call.record(&id).is_some_and(|record| is_known(record) && is_destroyed(record));
        call.update(id, value, will_destroy).await;
    }
    for id in call.creations.distinct(destroys) {
        call.destroy(id).await;
    }
    let Call { answer, .. } = call;
    answer.write(&mut exchange.answers.begin());
    Ok(())
}

/// The response: like that of other /set methods, but without an account and states.
#[derive(Default)]
struct Answer {
    created: Vec<(String, String)>,
    updated: Vec<(String, Option<String>)>,
    destroyed: Vec<String>,
    not_created: Vec<(String, SetError)>,
    not_updated: Vec<(String, SetError)>,
    not_destroyed: Vec<(String, SetError)>,
}

impl Answer {
    fn write(&self, out: &mut impl Members) {
        write_map(out, "created", &self.created, |json, out| out.extend_from_slice(json.as_bytes()));
        write_map(out, "updated", &self.updated, |json, out| {
            out.extend_from_slice(json.as_deref().unwrap_or("null").as_bytes());
        });
        match self.destroyed.as_slice() {
            [] => out.raw("destroyed", "null"),
            destroyed => out.field("destroyed", destroyed),
        }
        write_errors(out, "notCreated", &self.not_created);
        write_errors(out, "notUpdated", &self.not_updated);
        write_errors(out, "notDestroyed", &self.not_destroyed);
    }
}

struct Call<'c> {
    context: &'c Context,
    creations: &'c mut Creations,
    answer: Answer,
}

impl Call<'_> {
    /// The record that an id names, or `#` and a creation id.
    fn record(&self, id: &str) -> Option<RecordId> {
        self.creations.resolve(id).and_then(|id| IdType::PushSubscription.record(id))
    }

    async fn create(&mut self, key: String, value: Value) {
        match self.try_create(value).await {
            Ok((id, json)) => {
                self.creations.insert(&key, id);
                self.answer.created.push((key, json));
            }
            Err(error) => self.answer.not_created.push((key, error)),
        }
    }

    /// Creates a subscription; returns its id, and what the server has set as JSON.
    async fn try_create(&self, value: Value) -> Result<(String, String), SetError> {
        let (context, account) = (self.context, self.context.login.account);
        let New { device_client_id, url, keys, expires: asked, types } = New::read(value, context)?;
        let (expires, ends) = bound(asked, context);
        if !context.push.may_create(account) {
            let text = "this user has created too many push subscriptions: try again in an hour";
            return Err(SetError::new("rateLimit").describe(text));
        }
        let code = random_secret().map_err(|error| failed(error.into()))?;
        let stored = Stored {
            credential: context.login.credential(),
            device_client_id,
            url,
            keys,
            code,
            is_code_sent: false,
            is_verified: false,
            expires,
            types,
            failing_since: None,
        };
        let max = context.config.push.subscriptions_per_user_max.get();
        let created = create(context.mail(), account, (ends, stored), max).await;
        let record = created.map_err(|error| failed(error.into()))?.ok_or_else(|| {
            SetError::new("overQuota")
                .describe(format!("a user has at most {max} push subscriptions: destroy one"))
        })?;
        context.push.begin(account, record);
        let id = IdType::PushSubscription.id(record);
        let mut json = Vec::new();
        let mut object = Object::open(&mut json);
        object.field("id", &id);
        if expires != asked {
            write_expires(expires, &mut object);
        }
        drop(object);
        Ok((id, String::from_utf8(json).unwrap_or_default()))
    }

    async fn update(&mut self, id: String, value: Value, will_destroy: bool) {
        let updated = match (self.record(&id), will_destroy) {
            (None, _) => Err(SetError::not_found()),
            (_, true) => Err(SetError::new("willDestroy")),
            (Some(record), false) => self.try_update(record, value).await,
        };
        let name = self.creations.resolve(&id).unwrap_or(&id).to_owned();
        match updated {
            Ok(changed) => self.answer.updated.push((name, changed)),
            Err(error) => self.answer.not_updated.push((name, error)),
        }
    }

    /// Updates a subscription; returns as JSON what the server has set to other values than requested.
    async fn try_update(&self, record: RecordId, value: Value) -> Result<Option<String>, SetError> {
        let (context, account) = (self.context, self.context.login.account);
        let Value::Object(patch) = value else {
            return Err(SetError::invalid_patch("expected an object"));
        };
        let patch = Patch::read(patch)?;
        let edit = |found: &mut Found| {
            if !is_visible(context, found) {
                return Err(SetError::not_found());
            }
            apply(&patch, found, context)
        };
        let changed = change(context.mail(), account, record, edit).await;
        let changed = changed.map_err(|error| failed(error.into()))?.ok_or_else(SetError::not_found)??;
        context.push.begin(account, record);
        Ok(changed)
    }

    async fn destroy(&mut self, name: String) {
        match self.try_destroy(&name).await {
            Ok(()) => self.answer.destroyed.push(name),
            Err(error) => self.answer.not_destroyed.push((name, error)),
        }
    }

    async fn try_destroy(&self, id: &str) -> Result<(), SetError> {
        let (context, account) = (self.context, self.context.login.account);
        let record = IdType::PushSubscription.record(id).ok_or_else(SetError::not_found)?;
        let listed = list(context.mail(), account).await.map_err(|error| failed(error.into()))?;
        let is_it = |found: &Found| found.id == record && is_visible(context, found);
        if !listed.subscriptions.iter().any(is_it) {
            return Err(SetError::not_found());
        }
        context.push.end(account, record);
        match destroy(context.mail(), account, record).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(SetError::not_found()),
            Err(error) => {
                context.push.begin(account, record);
                Err(failed(error.into()))
            }
        }
    }
}

/// An error of the records, reported for this object only: the call may have changed others.
fn failed(error: MethodError) -> SetError {
    SetError::new(error.name())
}

/// What a client requests.
struct New {
    device_client_id: String,
    url: String,
    keys: Option<Keys>,
    expires: Option<i64>,
    types: Option<Vec<String>>,
}

impl New {
    fn read(value: Value, context: &Context) -> Result<Self, SetError> {
        let Value::Object(mut members) = value else {
            return Err(SetError::invalid(Vec::<String>::new(), "expected an object"));
        };
        let mut problems = Problems::default();
        let device = members.remove("deviceClientId").unwrap_or_default();
        let device_client_id = problems.take("deviceClientId", read_device(device));
        let url = problems.take("url", read_url(members.remove("url").unwrap_or_default(), context));
        let keys = problems.take("keys", read_keys(members.remove("keys").unwrap_or_default()));
        let expires = members.remove("expires").unwrap_or_default();
        let expires = problems.take("expires", read_expires(expires, context));
        let types = problems.take("types", read_types(members.remove("types").unwrap_or_default()));
        if members.remove("verificationCode").is_some_and(|code| !code.is_null()) {
            problems.add("verificationCode", "must be null: it comes with the first push");
        }
        for name in members.keys() {
            problems.add(name, "can't be set");
        }
        problems.done()?;
        // All of them are present when no problem was recorded.
        let (Some(device_client_id), Some(url), Some(keys), Some(expires), Some(types)) =
            (device_client_id, url, keys, expires, types)
        else {
            return Err(SetError::invalid(Vec::<String>::new(), "a property is wrong"));
        };
        Ok(Self { device_client_id, url, keys, expires, types })
    }
}

/// The properties that are invalid.
#[derive(Default)]
struct Problems {
    names: Vec<String>,
    texts: Vec<String>,
}

impl Problems {
    fn add(&mut self, name: &str, problem: &str) {
        self.names.push(name.to_owned());
        self.texts.push(format!("{name}: {problem}"));
    }

    fn take<T>(&mut self, name: &str, read: Result<T, &'static str>) -> Option<T> {
        read.inspect_err(|problem| self.add(name, problem)).ok()
    }

    fn done(self) -> Result<(), SetError> {
        if self.names.is_empty() { Ok(()) } else { Err(SetError::invalid(self.names, self.texts.join("; "))) }
    }
}

fn read_device(value: Value) -> Result<String, &'static str> {
    match value {
        Value::String(text) if !text.is_empty() && text.len() <= DEVICE_BYTES_MAX => Ok(text),
        _ => Err("expected a text of 1 to 1,024 bytes"),
    }
}

fn read_url(value: Value, context: &Context) -> Result<String, &'static str> {
    let Value::String(url) = value else { return Err("expected a URL") };
    Endpoint::read(&url, context.config.push.allow_private).map(|_| url)
}

fn read_keys(value: Value) -> Result<Option<Keys>, &'static str> {
    let wrong = "expected null, or p256dh and auth (RFC 8291) in URL-safe base64";
    let mut members = match value {
        Value::Null => return Ok(None),
        Value::Object(members) => members,
        _ => return Err(wrong),
    };
    let (Some(Value::String(p256dh)), Some(Value::String(auth))) =
        (members.remove("p256dh"), members.remove("auth"))
    else {
        return Err(wrong);
    };
    let keys = Keys { p256dh, auth };
    if are_usable(&keys) { Ok(Some(keys)) } else { Err(wrong) }
}

/// Reads a time in the future.
fn read_expires(value: Value, context: &Context) -> Result<Option<i64>, &'static str> {
    if value.is_null() {
        return Ok(None);
    }
    let date =
        <UtcDate as Argument>::read(value).ok_or("expected a time as 2014-10-30T06:12:00Z, or null")?;
    if date.0 <= context.clock().now().seconds() {
        return Err("is in the past");
    }
    Ok(Some(date.0))
}

fn read_types(value: Value) -> Result<Option<Vec<String>>, &'static str> {
    if value.is_null() {
        return Ok(None);
    }
    let names =
        <Vec<String> as Argument>::read(value).ok_or("expected an array of names of types, or null")?;
    if names.len() > TYPES_MAX || names.iter().any(|name| name.len() > TYPE_BYTES_MAX) {
        return Err("too many or too long names");
    }
    Ok(Some(names))
}

/// When a subscription that requests a time expires: as shown to the client, and in fact.
///
/// If its token expires, the requested time is shown unchanged, but the subscription ends with the token; otherwise the time is bounded
/// (RFC 8620 §7.2).
fn bound(asked: Option<i64>, context: &Context) -> (Option<i64>, i64) {
    if let Some(token) = context.login.expires {
        return (asked, asked.map_or(token, |asked| asked.min(token)));
    }
    let max = i64::try_from(context.config.push.expires_seconds_max.get()).unwrap_or(i64::MAX);
    let latest = context.clock().now().seconds().saturating_add(max);
    let expires = asked.map_or(latest, |asked| asked.min(latest));
    (Some(expires), expires)
}

/// Applies a patch in place; returns as JSON what the server has set to other values than requested.
fn apply(patch: &Patch, found: &mut Found, context: &Context) -> Result<Option<String>, SetError> {
    let mut problems = Problems::default();
    let mut changed = None;
    for (path, value) in patch.entries() {
        let (name, is_whole) = match path {
            [name] => (name.as_str(), true),
            [name, ..] => (name.as_str(), false),
            [] => continue,
        };
        if !is_whole && (name != "keys" || found.stored.keys.is_none()) {
            return Err(SetError::invalid_patch(format!("{} leads through no object", path.join("/"))));
        }
        match name {
            "verificationCode" => {
                if let Err(problem) = verify(&mut found.stored, value) {
                    problems.add(name, problem);
                }
            }
            "expires" => {
                let Some(asked) = problems.take(name, read_expires(value.clone(), context)) else { continue };
                let (expires, ends) = bound(asked, context);
                if expires != asked {
                    let mut json = Vec::new();
                    write_expires(expires, &mut Object::open(&mut json));
                    changed = String::from_utf8(json).ok();
                }
                (found.stored.expires, found.ends) = (expires, ends);
            }
            "types" => {
                let Some(types) = problems.take(name, read_types(value.clone())) else { continue };
                found.stored.types = types;
            }
            _ if IMMUTABLE.contains(&name) => {
                if !is_same(found, path, value) {
                    problems.add(name, "can't be changed: destroy the subscription and create another one");
                }
            }
            _ => problems.add(name, "is not a property of a push subscription"),
        }
    }
    problems.done()?;
    Ok(changed)
}

/// Compares a code with the one that was sent.
fn verify(stored: &mut Stored, value: &Value) -> Result<(), &'static str> {
    match value {
        Value::Null if !stored.is_verified => Ok(()),
        Value::String(code) if *code == stored.code => {
            stored.is_verified = true;
            Ok(())
        }
        _ => Err("is not the code that was sent to the URL"),
    }
}

/// Whether a value is the current one: clients may send whole objects back (RFC 8620 §5.3).
fn is_same(found: &Found, path: &[String], value: &Value) -> bool {
    let stored = &found.stored;
    let keys = stored.keys.as_ref().map(|keys| json!({"p256dh": keys.p256dh, "auth": keys.auth}));
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    let present = match path.as_slice() {
        ["id"] => json!(IdType::PushSubscription.id(found.id)),
        ["deviceClientId"] => json!(stored.device_client_id),
        ["url"] => json!(stored.url),
        ["keys"] => json!(keys),
        ["keys", member] => keys.and_then(|keys| keys.get(member).cloned()).unwrap_or_default(),
        _ => return false,
    };
    present == *value
}
