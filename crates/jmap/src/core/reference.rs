//! Result references: arguments that are taken out of an earlier response (RFC 8620 §3.7).

use std::{borrow::Cow, fmt};

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::{
    Answers, MethodError,
    json::{Left, Strict},
};

/// The most tokens of a path.
const TOKENS_MAX: usize = 64;
/// The most bytes of strings that the references of one call produce; by default a request itself has no more. Without a bound, each
/// Core/echo with two references to the previous one would double them.
const STRING_BYTES_MAX: usize = 10_000_000;
/// The most bytes of responses that the references of one request read. Each reference reads its response from the beginning.
const READ_BYTES_MAX: usize = 256 << 20;

/// How many bytes of responses the references of a request may still read.
#[derive(Debug)]
pub(crate) struct Readable(usize);

impl Default for Readable {
    fn default() -> Self {
        Self(READ_BYTES_MAX)
    }
}

/// Replaces the arguments whose names begin with `#` by what they refer to.
pub(crate) fn resolve(
    arguments: Map<String, Value>,
    answers: &Answers,
    readable: &mut Readable,
) -> Result<Map<String, Value>, MethodError> {
    if !arguments.keys().any(|name| name.starts_with('#')) {
        return Ok(arguments);
    }
    let left = Left::new(STRING_BYTES_MAX);
    let mut resolved = Map::new();
    for (name, value) in arguments {
        let (name, value) = match name.strip_prefix('#') {
            Some(plain) => {
                (plain.to_owned(), Reference::read(plain, &value)?.resolve(answers, readable, &left)?)
            }
            None => (name, value),
        };
        if resolved.contains_key(&name) {
            let problem = format!("#{name}: {name} is given, too");
            return Err(MethodError::InvalidArguments(problem));
        }
        resolved.insert(name, value);
    }
    Ok(resolved)
}

/// A `ResultReference`.
struct Reference<'v> {
    result_of: &'v str,
    name: &'v str,
    path: &'v str,
}

impl<'v> Reference<'v> {
    fn read(argument: &str, value: &'v Value) -> Result<Self, MethodError> {
        let text = |member: &str| value.get(member).and_then(Value::as_str);
        match (text("resultOf"), text("name"), text("path")) {
            (Some(result_of), Some(name), Some(path)) => Ok(Self { result_of, name, path }),
            _ => {
                let problem = "expected an object with the strings resultOf, name and path";
                Err(MethodError::argument(&format!("#{argument}"), problem))
            }
        }
    }

    fn resolve(&self, answers: &Answers, readable: &mut Readable, left: &Left) -> Result<Value, MethodError> {
        let wrong = |problem: &str| MethodError::InvalidResultReference(problem.to_owned());
        let (name, response) =
            answers.first(self.result_of).ok_or_else(|| wrong("no earlier call has this id"))?;
        if name == "error" {
            return Err(wrong("the call failed"));
        }
        if name != self.name {
            return Err(wrong("the first response of the call has another name"));
        }
        let path = tokens(self.path).ok_or_else(|| wrong("the path is no JSON pointer"))?;
        let readable_after = readable.0.checked_sub(response.len());
        readable.0 = readable_after.ok_or_else(|| wrong("the references of the request read too much"))?;
        let mut deserializer = serde_json::Deserializer::from_slice(response);
        let found = Walk { path: &path, left }.deserialize(&mut deserializer);
        found.ok().flatten().ok_or_else(|| wrong("the path leads to nothing in the response"))
    }
}

/// The tokens of a JSON pointer (RFC 6901); `None` when the text is not one.
fn tokens(path: &str) -> Option<Vec<Cow<'_, str>>> {
    if path.is_empty() {
        return Some(Vec::new());
    }
    let tokens = path.strip_prefix('/')?.split('/');
    let tokens: Option<Vec<_>> = tokens.take(TOKENS_MAX + 1).map(unescape).collect();
    tokens.filter(|tokens| tokens.len() <= TOKENS_MAX)
}

/// A token without its escapes: `~1` is `/`, `~0` is `~` (RFC 6901 §3). `None` for another escape.
pub(crate) fn unescape(token: &str) -> Option<Cow<'_, str>> {
    if !token.contains('~') {
        return Some(Cow::Borrowed(token));
    }
    let mut plain = String::with_capacity(token.len());
    let mut characters = token.chars();
    while let Some(character) = characters.next() {
        plain.push(match character {
            '~' => match characters.next()? {
                '0' => '~',
                '1' => '/',
                _ => return None,
            },
            other => other,
        });
    }
    Some(Cow::Owned(plain))
}

/// Follows a path through JSON; everything that is not on it is skipped. `None` when the path leads to nothing.
#[derive(Clone, Copy)]
struct Walk<'p> {
    path: &'p [Cow<'p, str>],
    left: &'p Left,
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = Option<Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Option<Value>, D::Error> {
        if self.path.is_empty() {
            return Strict(self.left).deserialize(deserializer).map(Some);
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = Option<Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Option<Value>, E> {
        Ok(None)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Option<Value>, E> {
        Ok(None)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Option<Value>, E> {
        Ok(None)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Option<Value>, E> {
        Ok(None)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Option<Value>, E> {
        Ok(None)
    }

    fn visit_str<E>(self, _: &str) -> Result<Option<Value>, E> {
        Ok(None)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Option<Value>, A::Error> {
        let Some((token, rest)) = self.path.split_first() else { return Ok(None) };
        let mut found = None;
        while let Some(name) = members.next_key::<Cow<'de, str>>()? {
            // Our responses have each name once, and Core/echo returns only names of strict JSON.
            if name == *token {
                found = members.next_value_seed(Walk { path: rest, ..self })?;
            } else {
                members.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Option<Value>, A::Error> {
        let Some((token, rest)) = self.path.split_first() else { return Ok(None) };
        let below = Walk { path: rest, ..self };
        if token == "*" {
            let mut all = Vec::new();
            while let Some(found) = items.next_element_seed(below)? {
                match found {
                    // RFC 8620 §3.7: the rest of the path must exist in each item, and nested lists are flattened.
                    None => return Err(A::Error::custom("the path leads to nothing in an item")),
                    Some(Value::Array(found)) => all.extend(found),
                    Some(found) => all.push(found),
                }
            }
            return Ok(Some(Value::Array(all)));
        }
        let is_index =
            token.bytes().all(|byte| byte.is_ascii_digit()) && (token == "0" || !token.starts_with('0'));
        let index = if is_index { token.parse().ok() } else { None };
        let (mut found, mut at) = (None, 0_usize);
        loop {
            if Some(at) == index {
                let Some(value) = items.next_element_seed(below)? else { break };
                found = value;
            } else if items.next_element::<IgnoredAny>()?.is_none() {
                break;
            }
            at += 1;
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::core::Members;

    fn answers(response: &Value) -> Answers {
        let mut answers = Answers::default();
        answers.begin_call("Foo/get", "c0".to_owned());
        answers.begin().extend(response.as_object().unwrap());
        answers
    }

    fn resolved(response: &Value, path: &str) -> Option<Value> {
        let Value::Object(arguments) = json!({"#x": {"resultOf": "c0", "name": "Foo/get", "path": path}})
        else {
            unreachable!()
        };
        match resolve(arguments, &answers(response), &mut Readable::default()) {
            Ok(mut arguments) => arguments.remove("x"),
            Err(MethodError::InvalidResultReference(_)) => None,
            Err(error) => panic!("{error:?}"),
        }
    }

    fn error_of(arguments: Value, answers: &Answers) -> &'static str {
        error_with(&mut Readable::default(), arguments, answers)
    }

    fn error_with(readable: &mut Readable, arguments: Value, answers: &Answers) -> &'static str {
        let Value::Object(arguments) = arguments else { unreachable!() };
        resolve(arguments, answers, readable).map(|_| "none").unwrap_or_else(|error| error.name())
    }

    #[test]
    fn r1_the_first_response_with_the_call_id_and_that_name_counts() {
        let mut answers = Answers::default();
        answers.begin_call("Email/copy", "c0".to_owned());
        answers.begin().field("a", &1);
        answers.begin_as("Email/set").field("a", &2);
        answers.begin_call("Email/set", "c0".to_owned());
        answers.begin().field("a", &3);
        answers.begin_call("Email/get", "c1".to_owned());
        answers.fail_call(&MethodError::AccountNotFound);
        let of =
            |result_of: &str, name: &str| json!({"#x": {"resultOf": result_of, "name": name, "path": "/a"}});
        assert_eq!(error_of(of("c0", "Email/copy"), &answers), "none");
        for (result_of, name) in [
            ("c0", "Email/set"), // the second response of the call, and a later call of the same id
            ("c1", "Email/get"), // failed
            ("c1", "error"),
            ("c2", "Email/get"), // not run yet
        ] {
            assert_eq!(
                error_of(of(result_of, name), &answers),
                "invalidResultReference",
                "{result_of} {name}"
            );
        }
    }

    #[test]
    fn r1_both_forms_of_an_argument_and_malformed_references_are_invalid_arguments() {
        let answers = answers(&json!({"a": 1}));
        let reference = || json!({"resultOf": "c0", "name": "Foo/get", "path": "/a"});
        assert_eq!(error_of(json!({"#x": reference(), "x": 1}), &answers), "invalidArguments");
        for wrong in [
            json!(1),
            json!(null),
            json!({}),
            json!({"resultOf": "c0", "name": "Foo/get"}),
            json!({"resultOf": "c0", "name": "Foo/get", "path": 1}),
        ] {
            assert_eq!(error_of(json!({"#x": wrong}), &answers), "invalidArguments", "{wrong}");
        }
    }

    #[test]
    fn r2_paths_are_json_pointers_with_stars() {
        let response = json!({"ids": ["e1", "e2"], "a/b": {"c~d": 1, "": 2, "*": 3}, "null": null,
            "list": [{"id": "e1", "to": ["t1", "t2"]}, {"id": "e2", "to": ["t3"]}], "empty": [], "deep": [[[1], [2]], [[3]]]});
        for (path, expected) in [
            ("", Some(response.clone())),
            ("/ids", Some(json!(["e1", "e2"]))),
            ("/ids/0", Some(json!("e1"))),
            ("/ids/2", None),
            ("/ids/00", None),
            ("/ids/-", None),
            ("/ids/+1", None),
            ("/a~1b/c~0d", Some(json!(1))),
            ("/a~1b/", Some(json!(2))),
            ("/a~1b/*", Some(json!(3))),
            ("/null", Some(json!(null))),
            ("/null/x", None),
            ("/list/*/id", Some(json!(["e1", "e2"]))),
            ("/list/*/to", Some(json!(["t1", "t2", "t3"]))),
            ("/list/*/to/*", Some(json!(["t1", "t2", "t3"]))),
            ("/list/*/absent", None),
            ("/list/*", Some(json!([{"id": "e1", "to": ["t1", "t2"]}, {"id": "e2", "to": ["t3"]}]))),
            ("/empty/*/id", Some(json!([]))),
            ("/deep/*", Some(json!([[1], [2], [3]]))),
            ("/deep/*/*", Some(json!([1, 2, 3]))),
            ("/absent", None),
            ("ids", None),
            ("/ids/0/x", None),
            ("/a~2b", None),
            ("/a~", None),
        ] {
            assert_eq!(resolved(&response, path), expected, "{path}");
        }
    }

    #[test]
    fn r2_references_give_a_bounded_number_of_bytes_and_values() {
        let wrong = "invalidResultReference";
        let twice = || {
            let reference = || json!({"resultOf": "c0", "name": "Foo/get", "path": "/x"});
            json!({"#a": reference(), "#b": reference()})
        };
        let of = |length: usize| answers(&json!({"x": "y".repeat(length)}));
        assert_eq!(error_of(twice(), &of(STRING_BYTES_MAX / 2)), "none");
        assert_eq!(error_of(twice(), &of(STRING_BYTES_MAX / 2 + 1)), wrong);
        let names = json!({"y".repeat(STRING_BYTES_MAX / 2 + 1): 1});
        assert_eq!(error_of(twice(), &answers(&json!({ "x": names }))), wrong);
        assert_eq!(error_of(twice(), &answers(&json!({"x": vec![0; 100_000]}))), "none");
        assert_eq!(error_of(twice(), &answers(&json!({"x": vec![0; 140_000]}))), wrong);
    }

    /// A request of 10 MB may have 100,000 references, each of which reads through a long response.
    #[test]
    fn r2_references_read_a_bounded_number_of_bytes() {
        let answers = answers(&json!({"ids": [], "long": "y".repeat(8 << 20)}));
        let reference = json!({"resultOf": "c0", "name": "Foo/get", "path": "/ids"});
        let twenty: Map<_, _> = (0..20).map(|n| (format!("#a{n}"), reference.clone())).collect();
        let mut readable = Readable::default();
        assert_eq!(error_with(&mut readable, Value::Object(twenty.clone()), &answers), "none");
        assert_eq!(error_with(&mut readable, Value::Object(twenty), &answers), "invalidResultReference");
    }

    #[test]
    fn r2_a_key_that_is_missing_in_one_item_fails_all() {
        let response = json!({"list": [{"id": "e1"}, {}, {"id": "e3"}]});
        assert_eq!(resolved(&response, "/list/*/id"), None);
    }

    #[test]
    fn r2_references_inside_of_arguments_are_left_alone() {
        let inner = json!({"#y": {"resultOf": "c0", "name": "Foo/get", "path": "/a"}});
        let Value::Object(arguments) = json!({"filter": inner}) else { unreachable!() };
        assert_eq!(resolve(arguments.clone(), &Answers::default(), &mut Readable::default()), Ok(arguments));
    }

    /// The same with a tree in memory, as the RFC describes it.
    fn by_tree(value: &Value, path: &[String]) -> Option<Value> {
        let Some((token, rest)) = path.split_first() else { return Some(value.clone()) };
        match value {
            Value::Object(map) => by_tree(map.get(token)?, rest),
            Value::Array(items) if token == "*" => {
                let mut all = Vec::new();
                for item in items {
                    match by_tree(item, rest)? {
                        Value::Array(found) => all.extend(found),
                        found => all.push(found),
                    }
                }
                Some(Value::Array(all))
            }
            Value::Array(items) => {
                let index: usize = token.parse().ok()?;
                by_tree(items.get(index).filter(|_| index.to_string() == *token)?, rest)
            }
            _ => None,
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(json!(null)),
            Just(json!(1)),
            Just(json!("x")),
            Just(json!(false)),
            Just(json!(1.5))
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            let map = prop::collection::btree_map("[ab*/~0]", inner.clone(), 0..4);
            prop_oneof![
                prop::collection::vec(inner, 0..4).prop_map(Value::Array),
                map.prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn r2_a_walk_through_bytes_finds_what_a_tree_has(
            value in any_json(),
            path in prop::collection::vec("[ab*/~0-2]{1,2}|\\*", 0..5),
        ) {
            let response = json!({"r": value});
            let escaped: String =
                path.iter().map(|token| format!("/{}", token.replace('~', "~0").replace('/', "~1"))).collect();
            prop_assert_eq!(resolved(&response, &format!("/r{escaped}")), by_tree(&response["r"], &path));
        }
    }
}
