//! Strict JSON (I-JSON, RFC 7493): member names are unique, strings are Unicode without lone surrogates, and the size is bounded.

use std::{cell::Cell, fmt};

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// The most values of one request: small values take up to fifty times as much memory as their JSON.
const VALUES_MAX: u32 = 1 << 18;

/// Why bytes are rejected as JSON.
#[derive(Debug)]
pub(crate) enum JsonError {
    /// They are not strict JSON.
    Wrong(serde_json::Error),
    /// They have more values than a request may have.
    TooMany,
}

/// Reads bytes as one value; each string is decoded once. Nesting ends at the 128 levels of `serde_json`.
pub(crate) fn parse(bytes: &[u8]) -> Result<Value, JsonError> {
    // The length of the request bounds its strings.
    let left = Left::new(usize::MAX);
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let read = Strict(&left).deserialize(&mut deserializer);
    let read = read.and_then(|value| deserializer.end().map(|()| value));
    read.map_err(|error| if left.values.get() == 0 { JsonError::TooMany } else { JsonError::Wrong(error) })
}

/// How much more may be read.
pub(crate) struct Left {
    values: Cell<u32>,
    string_bytes: Cell<usize>,
}

impl Left {
    /// As many values as a request may have, with this many bytes of strings in total.
    pub(crate) fn new(string_bytes: usize) -> Self {
        Self { values: Cell::new(VALUES_MAX), string_bytes: Cell::new(string_bytes) }
    }

    fn take_value<E: Error>(&self) -> Result<(), E> {
        let left = self.values.get().checked_sub(1).filter(|left| *left > 0);
        self.values.set(left.unwrap_or_default());
        left.map(drop).ok_or_else(|| E::custom("there are too many values"))
    }

    fn take_string<E: Error>(&self, string: &str) -> Result<(), E> {
        let left = self.string_bytes.get().checked_sub(string.len());
        self.string_bytes.set(left.unwrap_or_default());
        left.map(drop).ok_or_else(|| E::custom("the strings are too long"))
    }
}

/// Reads a value within the limits.
#[derive(Clone, Copy)]
pub(crate) struct Strict<'c>(pub(crate) &'c Left);

impl<'de> DeserializeSeed<'de> for Strict<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.0.take_value()?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        self.0.take_string(value)?;
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        self.0.take_string(&value)?;
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = items.next_element_seed(self)? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(name) = members.next_key::<String>()? {
            self.0.take_string(&name)?;
            let value = members.next_value_seed(self)?;
            if map.contains_key(&name) {
                return Err(A::Error::custom("a member name is repeated"));
            }
            map.insert(name, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn is_wrong(bytes: &[u8]) -> bool {
        matches!(parse(bytes), Err(JsonError::Wrong(_)))
    }

    #[test]
    fn q1_strict_json_is_read() {
        let text = r#" {"a": [1, -2, 1.5, true, null, "\ud83d\ude00\u0000é"], "b": {"a": {}}, "c": 18446744073709551615} "#;
        let expected = json!({"a": [1, -2, 1.5, true, null, "😀\0é"], "b": {"a": {}}, "c": u64::MAX});
        assert_eq!(parse(text.as_bytes()).unwrap(), expected);
        // A name that serde_json uses internally is not treated specially.
        let private = json!({"$serde_json::private::RawValue": "[1"});
        assert_eq!(parse(private.to_string().as_bytes()).unwrap(), private);
    }

    #[test]
    fn q1_repeated_names_lone_surrogates_and_bad_utf8_are_wrong() {
        for text in [
            r#"{"a":1,"a":1}"#,
            r#"[{"b":{"a":1,"\u0061":2}}]"#,
            r#"["\ud800"]"#,
            r#"["\udc00"]"#,
            r#"["\ud800x"]"#,
            r#"{"\ud800":1}"#,
            r#"["\ud800\u0041"]"#,
            "",
            " ",
            "{",
            "[1,]",
            "[1] 2",
            "'a'",
            "[01]",
            "[1e999]",
            "nul",
            "\u{feff}[]",
            "[\"\n\"]",
            "{a:1}",
            "// x\n[]",
        ] {
            assert!(is_wrong(text.as_bytes()), "{text}");
        }
        for bytes in
            [&b"[\"\xff\"]"[..], b"[\"\xed\xa0\x80\"]", b"{\"\xc0\x80\":1}", b"\xff", b"[\"\xe2\x82\"]"]
        {
            assert!(is_wrong(bytes), "{bytes:?}");
        }
    }

    #[test]
    fn q1_nesting_and_the_number_of_values_are_bounded() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(parse(nested(127).as_bytes()).is_ok());
        assert!(is_wrong(nested(1_000_000).as_bytes()));
        let many = |count: usize| format!("[{}0]", "0,".repeat(count));
        assert!(parse(many(200_000).as_bytes()).is_ok());
        assert!(matches!(parse(many(300_000).as_bytes()), Err(JsonError::TooMany)));
    }
}
