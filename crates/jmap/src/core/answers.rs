//! Responses are written into one buffer: a listing copies slices of rows into it, and nothing is built as a tree first.

use std::ops::Range;

use serde::Serialize;
use serde_json::Value;

use super::errors::MethodError;

/// Writes the members of a JSON object. Each member is written once; the object ends when the writer is dropped.
pub(crate) trait Members {
    /// Writes a name and its colon, and returns where the value goes: the caller writes exactly one JSON value.
    fn member(&mut self, name: &str) -> &mut Vec<u8>;

    /// Writes a member with a value.
    fn field(&mut self, name: &str, value: &(impl Serialize + ?Sized)) {
        write_json(value, self.member(name));
    }

    /// Writes a member whose value is JSON already.
    fn raw(&mut self, name: &str, json: &str) {
        self.member(name).extend_from_slice(json.as_bytes());
    }

    /// Begins an object as the value of a member.
    fn object(&mut self, name: &str) -> Object<'_> {
        Object::open(self.member(name))
    }

    /// Begins an array as the value of a member.
    fn list(&mut self, name: &str) -> List<'_> {
        List::open(self.member(name))
    }
}

/// Writes a value as JSON.
pub(crate) fn write_json(value: &(impl Serialize + ?Sized), out: &mut Vec<u8>) {
    // Writing to a vector can't fail, and all our maps have strings as keys.
    let _ = serde_json::to_writer(out, value);
}

/// An object that is being written.
pub(crate) struct Object<'w> {
    out: &'w mut Vec<u8>,
    is_empty: bool,
}

impl<'w> Object<'w> {
    /// Begins an object.
    pub(crate) fn open(out: &'w mut Vec<u8>) -> Self {
        out.push(b'{');
        Self { out, is_empty: true }
    }
}

impl Members for Object<'_> {
    fn member(&mut self, name: &str) -> &mut Vec<u8> {
        write_name(name, &mut self.is_empty, self.out);
        self.out
    }
}

impl Drop for Object<'_> {
    fn drop(&mut self) {
        self.out.push(b'}');
    }
}

fn write_name(name: &str, is_empty: &mut bool, out: &mut Vec<u8>) {
    if !*is_empty {
        out.push(b',');
    }
    *is_empty = false;
    write_json(name, out);
    out.push(b':');
}

/// An array that is being written; it ends when this is dropped.
pub(crate) struct List<'w> {
    out: &'w mut Vec<u8>,
    is_empty: bool,
}

impl<'w> List<'w> {
    /// Begins an array.
    pub(crate) fn open(out: &'w mut Vec<u8>) -> Self {
        out.push(b'[');
        Self { out, is_empty: true }
    }

    /// Begins an item, and returns where it goes: the caller writes exactly one JSON value.
    pub(crate) fn item(&mut self) -> &mut Vec<u8> {
        if !self.is_empty {
            self.out.push(b',');
        }
        self.is_empty = false;
        self.out
    }

    /// Begins an object as the next item.
    pub(crate) fn object(&mut self) -> Object<'_> {
        Object::open(self.item())
    }
}

impl Drop for List<'_> {
    fn drop(&mut self) {
        self.out.push(b']');
    }
}

/// The responses of a request.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// `[name, arguments, call id]`, with commas between.
    bytes: Vec<u8>,
    /// The bytes of responses that were replaced by an error.
    replaced_bytes: usize,
    done: Vec<Done>,
    /// The call that is being answered.
    call: Call,
}

/// A response that was written.
#[derive(Debug)]
struct Done {
    name: &'static str,
    call_id: String,
    arguments: Range<usize>,
}

/// The responses before a call was run, so that those of the call can be removed.
#[derive(Debug, Default)]
struct Call {
    name: &'static str,
    id: String,
    bytes_before: usize,
    done_before: usize,
}

/// The name of the response of a call that failed.
const ERROR: &str = "error";

impl Answers {
    /// Responses that are appended to `bytes`.
    pub(crate) fn behind(bytes: Vec<u8>) -> Self {
        Self { bytes, ..Self::default() }
    }

    /// Starts the responses of the next call.
    pub(crate) fn begin_call(&mut self, name: &'static str, id: String) {
        self.call = Call { name, id, bytes_before: self.bytes.len(), done_before: self.done.len() };
    }

    /// Replaces what the call has written by an error.
    pub(crate) fn fail_call(&mut self, error: &MethodError) {
        self.replaced_bytes += self.bytes.len().saturating_sub(self.call.bytes_before);
        self.bytes.truncate(self.call.bytes_before);
        self.done.truncate(self.call.done_before);
        error.write(&mut self.begin_as(ERROR));
    }

    /// Begins the response of the call, by the call's own name.
    pub(crate) fn begin(&mut self) -> Answer<'_> {
        self.begin_as(self.call.name)
    }

    /// Begins a response with another name, for example for the implicit Email/set after a copy (RFC 8620 §5.4).
    pub(crate) fn begin_as(&mut self, name: &'static str) -> Answer<'_> {
        if !self.done.is_empty() {
            self.bytes.push(b',');
        }
        self.bytes.push(b'[');
        write_json(name, &mut self.bytes);
        self.bytes.push(b',');
        let from = self.bytes.len();
        self.bytes.push(b'{');
        Answer { answers: self, name, from, is_empty: true }
    }

    /// The bytes of all responses so far: methods with large responses compare this with `response_bytes_max`.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes that were written, including those that an error has replaced: the cost of a request.
    pub(crate) fn written_bytes(&self) -> usize {
        self.bytes.len().saturating_add(self.replaced_bytes)
    }

    /// The name and the arguments of the first response with a call id.
    pub(crate) fn first(&self, call_id: &str) -> Option<(&'static str, &[u8])> {
        let done = self.done.iter().find(|done| done.call_id == call_id)?;
        Some((done.name, self.bytes.get(done.arguments.clone())?))
    }

    /// What was written.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// The arguments of a response that is being written; the response ends when this is dropped.
pub(crate) struct Answer<'w> {
    answers: &'w mut Answers,
    name: &'static str,
    from: usize,
    is_empty: bool,
}

impl Answer<'_> {
    /// Writes all members of an object: Core/echo.
    pub(crate) fn extend(&mut self, members: &serde_json::Map<String, Value>) {
        for (name, value) in members {
            self.field(name, value);
        }
    }
}

impl Members for Answer<'_> {
    fn member(&mut self, name: &str) -> &mut Vec<u8> {
        let out = &mut self.answers.bytes;
        write_name(name, &mut self.is_empty, out);
        out
    }
}

impl Drop for Answer<'_> {
    fn drop(&mut self) {
        let Answers { bytes, done, call, .. } = &mut *self.answers;
        bytes.push(b'}');
        let arguments = self.from..bytes.len();
        bytes.push(b',');
        write_json(&call.id, bytes);
        bytes.push(b']');
        done.push(Done { name: self.name, call_id: call.id.clone(), arguments });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_written_one_behind_the_other() {
        let mut answers = Answers::default();
        answers.begin_call("Core/echo", "c\"0".to_owned());
        let mut answer = answers.begin();
        answer.field("a", &1);
        answer.raw("b", "[true]");
        answer.object("c").field("ä\n", "x");
        let mut list = answer.list("d");
        write_json("y", list.item());
        list.object().field("z", &Value::Null);
        drop(list);
        drop(answer);
        answers.begin_call("Email/copy", "c1".to_owned());
        drop(answers.begin());
        drop(answers.begin_as("Email/set"));
        let text = format!("[{}]", String::from_utf8(answers.into_bytes()).unwrap());
        let expected = serde_json::json!([
            ["Core/echo", {"a": 1, "b": [true], "c": {"ä\n": "x"}, "d": ["y", {"z": null}]}, "c\"0"],
            ["Email/copy", {}, "c1"],
            ["Email/set", {}, "c1"],
        ]);
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected);
    }

    #[test]
    fn m1_a_failed_call_has_one_response_whatever_it_had_written() {
        let mut answers = Answers::default();
        answers.begin_call("Core/echo", "c0".to_owned());
        drop(answers.begin());
        answers.begin_call("Email/copy", "c1".to_owned());
        answers.begin().field("a", &1);
        drop(answers.begin_as("Email/set"));
        answers.fail_call(&MethodError::argument("ids", "expected an array"));
        let text = String::from_utf8(answers.into_bytes()).unwrap();
        let expected = r#"["Core/echo",{},"c0"],["error",{"type":"invalidArguments","description":"ids: expected an array"},"c1"]"#;
        assert_eq!(text, expected);
    }
}
