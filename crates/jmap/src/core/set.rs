//! What all /set methods share: their arguments and their response (RFC 8620 §5.3).

use restante_directory::Access;
use restante_records::AccountId;
use serde_json::{Map, Value};

use super::{Answers, Args, Context, Id, Members, MethodError, SetError, ids::account_id};

/// The arguments that every /set has.
#[derive(Debug)]
pub(crate) struct SetArgs {
    pub(crate) account: AccountId,
    /// The state that the kind must have; any text that is not the current state is `stateMismatch`.
    pub(crate) if_in_state: Option<String>,
    /// By creation id. A value that is not an object is an error of that object.
    pub(crate) create: Map<String, Value>,
    /// By id, or `#` and a creation id.
    pub(crate) update: Map<String, Value>,
    pub(crate) destroy: Vec<Id>,
}

impl Args {
    /// Takes `accountId`, `ifInState`, `create`, `update` and `destroy`. Other arguments are left for the method to take.
    pub(crate) async fn set(&mut self, context: &Context) -> Result<SetArgs, MethodError> {
        let account = self.account(context, Access::Write).await?;
        let if_in_state = self.nullable("ifInState")?;
        let create: Map<String, Value> = self.nullable("create")?.unwrap_or_default();
        let update: Map<String, Value> = self.nullable("update")?.unwrap_or_default();
        let destroy: Vec<Id> = self.nullable("destroy")?.unwrap_or_default();
        if !create.keys().all(|key| super::ids::is_id(key)) {
            return Err(MethodError::argument("create", "expected an object with ids as keys"));
        }
        if !update.keys().all(|key| Id::read(key.clone()).is_some()) {
            return Err(MethodError::argument("update", "expected an object with ids as keys"));
        }
        context.check_objects_in_set(create.len() + update.len() + destroy.len())?;
        Ok(SetArgs { account, if_in_state, create, update, destroy })
    }
}

/// The response of a /set. Maps are written in the order of these lists, and as null when they are empty.
#[derive(Debug)]
pub(crate) struct SetAnswer {
    pub(crate) account: AccountId,
    /// `None` when other changes came between, so that the client has to fetch them (RFC 8620 §5.3).
    pub(crate) old_state: Option<String>,
    pub(crate) new_state: String,
    /// By creation id: the id and what the server has set, as a JSON object.
    pub(crate) created: Vec<(String, String)>,
    /// By id: what changed besides the requested changes, as a JSON object, or nothing.
    pub(crate) updated: Vec<(String, Option<String>)>,
    pub(crate) destroyed: Vec<String>,
    pub(crate) not_created: Vec<(String, SetError)>,
    pub(crate) not_updated: Vec<(String, SetError)>,
    pub(crate) not_destroyed: Vec<(String, SetError)>,
}

impl SetAnswer {
    /// A response without changes.
    pub(crate) fn new(account: AccountId, state: impl ToString) -> Self {
        let state = state.to_string();
        Self {
            account,
            old_state: Some(state.clone()),
            new_state: state,
            created: Vec::new(),
            updated: Vec::new(),
            destroyed: Vec::new(),
            not_created: Vec::new(),
            not_updated: Vec::new(),
            not_destroyed: Vec::new(),
        }
    }

    /// Writes the response of the call.
    pub(crate) fn write(&self, answers: &mut Answers) {
        self.write_members(&mut answers.begin());
    }

    /// Writes the members of the response: for an implicit /set, and for methods that add members of their own.
    pub(crate) fn write_members(&self, out: &mut impl Members) {
        out.field("accountId", &account_id(self.account));
        out.field("oldState", &self.old_state);
        out.field("newState", &self.new_state);
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

/// Writes a map of errors by id, null when there are none.
pub(crate) fn write_errors(out: &mut impl Members, name: &str, errors: &[(String, SetError)]) {
    write_map(out, name, errors, SetError::write);
}

/// Writes a map, null when it is empty.
pub(crate) fn write_map<T>(
    out: &mut impl Members,
    name: &str,
    entries: &[(String, T)],
    write: impl Fn(&T, &mut Vec<u8>),
) {
    if entries.is_empty() {
        return out.raw(name, "null");
    }
    let mut object = out.object(name);
    for (key, value) in entries {
        write(value, object.member(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t2_all_members_are_written_and_empty_ones_are_null() {
        let mut answers = Answers::default();
        answers.begin_call("Mailbox/set", "c0".to_owned());
        let mut answer = SetAnswer::new(AccountId(1024), 7);
        answer.write(&mut answers);
        answer.created.push(("k".to_owned(), r#"{"id":"m1"}"#.to_owned()));
        answer.updated.push(("m2".to_owned(), None));
        answer.destroyed.push("m3".to_owned());
        answer.not_created.push(("l".to_owned(), SetError::invalid(["name"], "is empty")));
        answer.not_updated.push(("m4".to_owned(), SetError::not_found()));
        let exists = SetError::new("alreadyExists").with("existingId", "m1");
        answer.not_destroyed.push(("m5".to_owned(), exists));
        answer.write(&mut answers);
        let text = format!("[{}]", String::from_utf8(answers.into_bytes()).unwrap());
        let expected = serde_json::json!([
            ["Mailbox/set", {
                "accountId": "a1024", "oldState": "7", "newState": "7", "created": null, "updated": null,
                "destroyed": null, "notCreated": null, "notUpdated": null, "notDestroyed": null,
            }, "c0"],
            ["Mailbox/set", {
                "accountId": "a1024", "oldState": "7", "newState": "7", "created": {"k": {"id": "m1"}},
                "updated": {"m2": null}, "destroyed": ["m3"],
                "notCreated": {"l": {"type": "invalidProperties", "description": "is empty", "properties": ["name"]}},
                "notUpdated": {"m4": {"type": "notFound"}},
                "notDestroyed": {"m5": {"type": "alreadyExists", "existingId": "m1"}},
            }, "c0"],
        ]);
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected);
    }
}
