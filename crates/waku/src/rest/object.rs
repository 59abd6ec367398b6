//! JSON objects whose fields are read one by one, so that an error can name the field: a derived reader does not.

use std::fmt;

use serde::{
    Deserializer as _,
    de::{DeserializeOwned, MapAccess, Visitor},
};
use serde_json::{Deserializer, Map, Value};

use restante_http::{Refusal, describe_json_error};

/// The fields of an object that have not been read yet.
#[derive(Debug)]
pub(crate) struct Object {
    fields: Map<String, Value>,
    /// The prefix of field names in errors: the name of the field that contains this object.
    path: String,
}

impl Object {
    /// Parses an object; `what` names the object in the error when the JSON is something else.
    pub(crate) fn read(json: &[u8], what: &'static str) -> Result<Self, Refusal> {
        let mut deserializer = Deserializer::from_slice(json);
        let read = deserializer.deserialize_map(ObjectVisitor(what));
        let read = read.and_then(|fields| deserializer.end().map(|()| fields));
        let fields = read.map_err(|error| Refusal::json(&error))?;
        Ok(Self { fields, path: String::new() })
    }

    /// Removes and returns the value of a field; none when it is absent or null.
    pub(crate) fn take<T: DeserializeOwned>(&mut self, field: &str) -> Result<Option<T>, Refusal> {
        let value = self.fields.remove(field).unwrap_or_default();
        serde_json::from_value(value).map_err(|error| {
            Refusal::invalid(format!("{}{field}: {}", self.path, describe_json_error(&error.to_string())))
        })
    }

    /// Removes and returns the object in a field.
    pub(crate) fn take_object(&mut self, field: &str) -> Result<Option<Self>, Refusal> {
        let path = format!("{field}: ");
        Ok(self.take(field)?.map(|fields| Self { fields, path }))
    }
}

struct ObjectVisitor(&'static str);

impl<'de> Visitor<'de> for ObjectVisitor {
    type Value = Map<String, Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        let mut fields = Map::new();
        while let Some((name, value)) = entries.next_entry()? {
            fields.insert(name, value);
        }
        Ok(fields)
    }
}
