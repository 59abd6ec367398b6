//! Mailbox/set (RFC 8621 §2.5).

use std::collections::{HashMap, HashSet};

use restante_directory::Access;
use restante_mail::{Mailbox, MailboxSet, MailboxSetOutcome, MailboxUpdate, NewMailbox, Parent, Role};
use restante_records::{RecordId, Revision};
use serde_json::{Map, Value};

use super::{MailboxProperty, Writer, find};
use crate::{
    core::{
        Args, Context, Creations, Exchange, Id, IdType, MethodError, Object, Patch, SetAnswer, SetError,
        State,
    },
    methods::{
        mail_errors::of_object,
        set_states::{self, Transitions},
    },
};

/// The largest `sortOrder` (MB1).
const SORT_ORDER_MAX: u64 = (1 << 31) - 1;

/// Mailbox/set.
pub(super) async fn set(
    context: &Context,
    exchange: &mut Exchange,
    mut args: Args,
) -> Result<(), MethodError> {
    let set = args.set(context).await?;
    let remove_emails = args.optional("onDestroyRemoveEmails")?.unwrap_or(false);
    args.done()?;
    let if_in_state = set_states::expected(set.if_in_state.as_deref())?;
    let (_, state) = context.mail().mailboxes(set.account).await?;
    let mut call = Call {
        context,
        creations: &mut exchange.creations,
        answer: SetAnswer::new(set.account, State::from(state)),
        transitions: Transitions::default(),
        remove_emails,
    };
    // A mailbox that the same call creates can be changed and destroyed once it has an id.
    let is_new = |id: &str| id.strip_prefix('#').is_some_and(|key| set.create.contains_key(key));
    let (late_update, update): (Map<_, _>, Map<_, _>) =
        set.update.into_iter().partition(|(id, _)| is_new(id));
    let (late_destroy, destroy): (Vec<_>, Vec<_>) =
        set.destroy.into_iter().partition(|id| is_new(id.as_str()));
    call.run(Work { create: set.create, update, destroy }, if_in_state).await?;
    if !late_update.is_empty() || !late_destroy.is_empty() {
        call.run_late(late_update, late_destroy).await;
    }
    let Call { mut answer, transitions, .. } = call;
    transitions.put(&mut answer);
    answer.write(&mut exchange.answers);
    Ok(())
}

/// A call of Mailbox/set.
struct Call<'c> {
    context: &'c Context,
    creations: &'c mut Creations,
    answer: SetAnswer,
    transitions: Transitions,
    remove_emails: bool,
}

/// Changes that are applied together.
struct Work {
    create: Map<String, Value>,
    update: Map<String, Value>,
    destroy: Vec<Id>,
}

impl Call<'_> {
    /// Applies all changes that can be applied; `answer` receives the outcome.
    async fn run(&mut self, work: Work, if_in_state: Option<Revision>) -> Result<(), MethodError> {
        let account = self.answer.account;
        let (mailboxes, _) = self.context.mail().mailboxes(account).await?;
        let mut plan = Plan::new(self.creations, &mailboxes, &mut self.answer);
        plan.read_creates(&work.create);
        plan.read_destroys(work.destroy);
        plan.read_updates(work.update);
        let Plan { creates, updates, destroys, .. } = plan;
        let set = MailboxSet {
            if_in_state,
            create: creates.iter().map(|create| create.mailbox.clone()).collect(),
            update: updates.iter().map(|update| (update.id, update.update.clone())).collect(),
            destroy: destroys.clone(),
            remove_emails: self.remove_emails,
        };
        let outcome = self.context.mail().set_mailboxes(account, set).await?;
        self.transitions.add(outcome.states);
        self.report(creates, &updates, &destroys, outcome);
        Ok(())
    }

    /// Changes and destroys mailboxes that the call has created. The call has changed something, so it must not fail any more.
    async fn run_late(&mut self, update: Map<String, Value>, destroy: Vec<Id>) {
        let named: Vec<String> = update.keys().cloned().collect();
        let destroyed = destroy.clone();
        let Err(error) = self.run(Work { create: Map::new(), update, destroy }, None).await else { return };
        let failed = |named: String| (named, SetError::new(error.name()));
        self.answer.not_updated.extend(named.into_iter().map(failed));
        let failed = |id: Id| (id.into_string(), SetError::new(error.name()));
        self.answer.not_destroyed.extend(destroyed.into_iter().map(failed));
    }

    fn report(
        &mut self,
        creates: Vec<Create>,
        updates: &[Update],
        destroys: &[RecordId],
        outcome: MailboxSetOutcome,
    ) {
        let writer = Writer::new(self.context.access(self.answer.account).unwrap_or(Access::Read));
        for (create, result) in creates.into_iter().zip(outcome.created) {
            match result {
                Ok(made) => {
                    let id = IdType::Mailbox.id(made.id);
                    self.creations.insert(&create.key, id);
                    let json = created_json(&create, made.id, made.normalized_name, &writer);
                    self.answer.created.push((create.key, json));
                }
                Err(error) => self.answer.not_created.push((create.key, of_object(error))),
            }
        }
        for (update, result) in updates.iter().zip(outcome.updated) {
            let id = IdType::Mailbox.id(update.id);
            match result {
                Ok(made) => {
                    let name =
                        made.normalized_name.map(|name| serde_json::json!({ "name": name }).to_string());
                    self.answer.updated.push((id, name));
                }
                Err(error) => self.answer.not_updated.push((id, of_object(error))),
            }
        }
        for (id, result) in destroys.iter().zip(outcome.destroyed) {
            let id = IdType::Mailbox.id(*id);
            match result {
                Ok(()) => self.answer.destroyed.push(id),
                Err(error) => self.answer.not_destroyed.push((id, of_object(error))),
            }
        }
    }
}

/// T5: the id, what the server has set, and the defaults of properties that were not given.
fn created_json(create: &Create, id: RecordId, name: Option<String>, writer: &Writer) -> String {
    let is_name_changed = name.is_some();
    let role = create.mailbox.role.as_deref();
    let mailbox = Mailbox {
        id,
        name: name.unwrap_or_else(|| create.mailbox.name.clone()),
        parent: None, // only written when none was given
        role: role.and_then(|role| Role::of(role.as_bytes())),
        sort_order: create.mailbox.sort_order,
        is_subscribed: create.mailbox.is_subscribed,
        total: 0,
        unread: 0,
        threads: 0,
        unread_threads: 0,
        bytes: 0,
        uid_next: 0,
        uid_validity: 0,
        modseq: Revision(0),
        expunged: Revision(0),
        shape: Revision(0),
    };
    let is_given = |property: MailboxProperty| {
        let is_given = create.given.iter().any(|given| given == property.name());
        is_given && !(property == MailboxProperty::Name && is_name_changed)
    };
    let mut json = Vec::new();
    let mut object = Object::open(&mut json);
    for property in MailboxProperty::ALL.into_iter().filter(|property| !is_given(*property)) {
        writer.write(property, &mailbox, &mut object);
    }
    drop(object);
    String::from_utf8(json).unwrap_or_default()
}

/// A mailbox to create.
struct Create {
    /// Its creation id.
    key: String,
    mailbox: NewMailbox,
    /// The names of the properties that were given.
    given: Vec<String>,
}

/// A mailbox to change.
struct Update {
    id: RecordId,
    update: MailboxUpdate,
}

/// The requested changes, as far as they are possible.
struct Plan<'p> {
    creations: &'p Creations,
    mailboxes: &'p [Mailbox],
    /// The number of each creation id of this call, `None` when that mailbox can't be created.
    numbers: HashMap<String, Option<usize>>,
    creates: Vec<Create>,
    updates: Vec<Update>,
    destroys: Vec<RecordId>,
    /// Receives the errors of changes that are impossible.
    answer: &'p mut SetAnswer,
}

impl<'p> Plan<'p> {
    fn new(creations: &'p Creations, mailboxes: &'p [Mailbox], answer: &'p mut SetAnswer) -> Self {
        Self {
            creations,
            mailboxes,
            numbers: HashMap::new(),
            creates: Vec::new(),
            updates: Vec::new(),
            destroys: Vec::new(),
            answer,
        }
    }

    fn read_creates(&mut self, create: &Map<String, Value>) {
        self.numbers = create.keys().enumerate().map(|(number, key)| (key.clone(), Some(number))).collect();
        let mut impossible: Vec<&str> = Vec::new();
        for (key, value) in create {
            if let Err(error) = self.read_create(value) {
                self.numbers.insert(key.clone(), None);
                self.answer.not_created.push((key.clone(), error));
                impossible.push(key);
            }
        }
        self.refuse_children(create, impossible);
        let possible: Vec<&String> =
            create.keys().filter(|key| self.numbers.get(*key) != Some(&None)).collect();
        for (number, key) in possible.iter().enumerate() {
            self.numbers.insert((*key).clone(), Some(number));
        }
        for key in possible {
            let Some(value) = create.get(key) else { continue };
            if let Ok((mailbox, given)) = self.read_create(value) {
                self.creates.push(Create { key: key.clone(), mailbox, given });
            }
        }
    }

    /// A mailbox that can't be created makes those below it impossible, too.
    fn refuse_children<'k>(&mut self, create: &'k Map<String, Value>, mut impossible: Vec<&'k str>) {
        let mut children: HashMap<&str, Vec<&'k str>> = HashMap::new();
        for (key, value) in create {
            let parent = value.get("parentId").and_then(Value::as_str).and_then(|id| id.strip_prefix('#'));
            if let Some(parent) = parent {
                children.entry(parent).or_default().push(key);
            }
        }
        while let Some(parent) = impossible.pop() {
            for key in children.remove(parent).unwrap_or_default() {
                if self.numbers.insert(key.to_owned(), None) != Some(None) {
                    let error = SetError::invalid(["parentId"], "the mailbox above it could not be made");
                    self.answer.not_created.push((key.to_owned(), error));
                    impossible.push(key);
                }
            }
        }
    }

    fn read_create(&self, value: &Value) -> Result<(NewMailbox, Vec<String>), SetError> {
        let object = value.as_object().ok_or_else(not_an_object)?;
        let mut read = MailboxUpdate::default();
        let mut bad: Vec<&str> = Vec::new();
        for (name, value) in object {
            if !self.read_property(name, value, &mut read) {
                bad.push(name);
            }
        }
        if read.name.is_none() && !bad.contains(&"name") {
            bad.push("name");
        }
        if !bad.is_empty() {
            return Err(SetError::invalid(
                bad,
                "missing, server-set, unknown, or of a value that is not possible",
            ));
        }
        let given = object.iter().filter(|(_, value)| !value.is_null()).map(|(name, _)| name.clone());
        let mailbox = NewMailbox {
            name: read.name.unwrap_or_default(),
            parent: read.parent.unwrap_or(Parent::Top),
            role: read.role.flatten(),
            sort_order: read.sort_order.unwrap_or(0),
            is_subscribed: read.is_subscribed.unwrap_or(true),
        };
        Ok((mailbox, given.collect()))
    }

    /// Reads a property that clients can set; null is its default. False for another property or value.
    fn read_property(&self, name: &str, value: &Value, into: &mut MailboxUpdate) -> bool {
        match (name, value) {
            ("name", Value::String(name)) => into.name = Some(name.clone()),
            ("parentId", Value::Null) => into.parent = Some(Parent::Top),
            ("parentId", Value::String(id)) => match self.parent(id) {
                Some(parent) => into.parent = Some(parent),
                None => return false,
            },
            ("role", Value::Null) => into.role = Some(None),
            ("role", Value::String(role)) => into.role = Some(Some(role.clone())),
            ("sortOrder", Value::Null) => into.sort_order = Some(0),
            ("sortOrder", Value::Number(number)) => {
                let order = number.as_u64().filter(|order| *order <= SORT_ORDER_MAX);
                match order.and_then(|order| u32::try_from(order).ok()) {
                    Some(order) => into.sort_order = Some(order),
                    None => return false,
                }
            }
            ("isSubscribed", Value::Null) => into.is_subscribed = Some(true),
            ("isSubscribed", Value::Bool(is_subscribed)) => into.is_subscribed = Some(*is_subscribed),
            _ => return false,
        }
        true
    }

    /// The mailbox that an id names, or `#` and the creation id of one that this call or an earlier one creates (R3).
    fn parent(&self, id: &str) -> Option<Parent> {
        if let Some(number) = id.strip_prefix('#').and_then(|key| self.numbers.get(key)) {
            return number.map(Parent::Created);
        }
        IdType::Mailbox.record(self.creations.resolve(id)?).map(Parent::Mailbox)
    }

    fn read_destroys(&mut self, destroy: Vec<Id>) {
        for id in self.creations.distinct(destroy) {
            match find(self.mailboxes, &id) {
                Some(mailbox) => self.destroys.push(mailbox.id),
                None => self.answer.not_destroyed.push((id, SetError::not_found())),
            }
        }
    }

    /// Reads updates, after it is known which mailboxes are destroyed.
    fn read_updates(&mut self, update: Map<String, Value>) {
        for (named, patch) in update {
            let found = self.creations.resolve(&named).and_then(|id| find(self.mailboxes, id));
            let read = match found {
                None => Err(SetError::not_found()),
                Some(mailbox) if self.destroys.contains(&mailbox.id) => Err(SetError::new("willDestroy")),
                Some(mailbox) => {
                    self.read_update(mailbox, patch).map(|update| Update { id: mailbox.id, update })
                }
            };
            match read {
                Ok(update) => self.updates.push(update),
                Err(error) => self.answer.not_updated.push((named, error)),
            }
        }
    }

    /// T6: applies a patch to the current mailbox; properties that clients can't set must keep their values.
    fn read_update(&self, mailbox: &Mailbox, patch: Value) -> Result<MailboxUpdate, SetError> {
        let Value::Object(patch) = patch else { return Err(not_an_object()) };
        let patch = Patch::read(patch)?;
        let names: HashSet<String> = patch.entries().filter_map(|(path, _)| path.first().cloned()).collect();
        let present = present(mailbox);
        let mut patched = present.clone();
        patch.apply(&mut patched)?;
        let mut update = MailboxUpdate::default();
        let mut bad: Vec<String> = Vec::new();
        for name in names {
            let value = patched.get(&name).unwrap_or(&Value::Null);
            let is_unchanged = present.get(&name) == Some(value);
            if !is_unchanged && !self.read_property(&name, value, &mut update) {
                bad.push(name);
            }
        }
        if bad.is_empty() {
            return Ok(update);
        }
        bad.sort_unstable();
        Err(SetError::invalid(bad, "server-set, unknown, or of a value that is not possible"))
    }
}

/// A mailbox as clients see it. A user who changes it has write access.
fn present(mailbox: &Mailbox) -> Map<String, Value> {
    let mut json = Vec::new();
    let mut object = Object::open(&mut json);
    let writer = Writer::new(Access::Write);
    for property in MailboxProperty::ALL {
        writer.write(property, mailbox, &mut object);
    }
    drop(object);
    serde_json::from_slice(&json).unwrap_or_default()
}

fn not_an_object() -> SetError {
    SetError::new("invalidProperties").describe("expected an object")
}
