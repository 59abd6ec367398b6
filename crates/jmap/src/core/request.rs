//! The Request object (RFC 8620 §3.3).

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::{
    Using,
    errors::{RequestError, RequestErrorKind},
    ids::is_id,
    json::{self, JsonError},
};
use crate::JmapConfig;

/// A well-formed request.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) using: Using,
    pub(crate) calls: Vec<Call>,
    pub(crate) created_ids: Option<HashMap<String, String>>,
}

/// One call.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) name: String,
    pub(crate) arguments: Map<String, Value>,
    pub(crate) id: String,
}

impl Request {
    /// Reads the bytes of a request.
    pub(crate) fn read(bytes: &[u8], config: &JmapConfig) -> Result<Self, RequestError> {
        Self::of(parse(bytes)?, config)
    }

    /// Reads a request that is already JSON.
    pub(crate) fn of(value: Value, config: &JmapConfig) -> Result<Self, RequestError> {
        // Members that the specification does not name are ignored (RFC 8620 §3.3).
        let Value::Object(mut members) = value else { return Err(not_request("expected an object")) };
        let Some(Value::Array(uris)) = members.remove("using") else {
            return Err(not_request("using: expected an array of strings"));
        };
        let Some(Value::Array(invocations)) = members.remove("methodCalls") else {
            return Err(not_request("methodCalls: expected an array of calls"));
        };
        let created_ids = match members.remove("createdIds") {
            None | Some(Value::Null) => None,
            Some(ids) => Some(created_ids(ids)?),
        };
        let uris: Option<Vec<&str>> = uris.iter().map(Value::as_str).collect();
        let uris = uris.ok_or_else(|| not_request("using: expected an array of strings"))?;
        let calls: Vec<Call> = invocations.into_iter().map(call).collect::<Result<_, _>>()?;
        let mut using = Using::default();
        for uri in uris {
            if !using.add(uri) {
                let uri = restante_http::reply::cut(uri, URI_CHARS_MAX);
                let detail = format!("this server does not know the capability {uri}");
                return Err(RequestError::new(RequestErrorKind::UnknownCapability, detail));
            }
        }
        let max = config.calls_max.get();
        if calls.len() > max {
            let detail = format!("a request has at most {max} calls: send several requests");
            return Err(RequestError::limit("maxCallsInRequest", detail));
        }
        Ok(Self { using, calls, created_ids })
    }
}

/// The longest part of a client's URI that an error repeats.
const URI_CHARS_MAX: usize = 100;

/// Reads bytes as strict JSON.
pub(crate) fn parse(bytes: &[u8]) -> Result<Value, RequestError> {
    json::parse(bytes).map_err(|error| match error {
        JsonError::Wrong(error) => {
            let detail = restante_http::describe_json_error(&error.to_string());
            RequestError::new(RequestErrorKind::NotJson, detail)
        }
        JsonError::TooMany => RequestError::limit("maxSizeRequest", "the request has too many values"),
    })
}

fn not_request(detail: &'static str) -> RequestError {
    RequestError::new(RequestErrorKind::NotRequest, detail)
}

fn call(invocation: Value) -> Result<Call, RequestError> {
    let wrong = || not_request("methodCalls: expected arrays of a name, an object of arguments and an id");
    let Value::Array(parts) = invocation else { return Err(wrong()) };
    let parts: [Value; 3] = parts.try_into().map_err(|_| wrong())?;
    match parts {
        [Value::String(name), Value::Object(arguments), Value::String(id)] => {
            Ok(Call { name, arguments, id })
        }
        _ => Err(wrong()),
    }
}

fn created_ids(ids: Value) -> Result<HashMap<String, String>, RequestError> {
    let wrong = || not_request("createdIds: expected an object of ids");
    let Value::Object(ids) = ids else { return Err(wrong()) };
    let entry = |(key, id): (String, Value)| match id {
        Value::String(id) if is_id(&key) && is_id(&id) => Ok((key, id)),
        _ => Err(wrong()),
    };
    ids.into_iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::core::Capability;

    fn error(request: Value) -> String {
        let bytes = request.to_string();
        Request::read(bytes.as_bytes(), &JmapConfig::default())
            .map_or_else(|error| error.name().to_owned(), |_| "none".into())
    }

    #[test]
    fn q2_json_that_is_no_request() {
        let using = || json!(["urn:ietf:params:jmap:core"]);
        for wrong in [
            json!([]),
            json!("x"),
            json!({}),
            json!({"using": using()}),
            json!({"methodCalls": []}),
            json!({"using": "urn:ietf:params:jmap:core", "methodCalls": []}),
            json!({"using": [1], "methodCalls": []}),
            json!({"using": null, "methodCalls": []}),
            json!({"using": using(), "methodCalls": {}}),
            json!({"using": using(), "methodCalls": [[]]}),
            json!({"using": using(), "methodCalls": [["Core/echo", {}]]}),
            json!({"using": using(), "methodCalls": [["Core/echo", {}, "c", 1]]}),
            json!({"using": using(), "methodCalls": [["Core/echo", [], "c"]]}),
            json!({"using": using(), "methodCalls": [["Core/echo", {}, 1]]}),
            json!({"using": using(), "methodCalls": [[1, {}, "c"]]}),
            json!({"using": using(), "methodCalls": [], "createdIds": []}),
            json!({"using": using(), "methodCalls": [], "createdIds": {"k": 1}}),
            json!({"using": using(), "methodCalls": [], "createdIds": {"k": ""}}),
        ] {
            assert_eq!(error(wrong.clone()), "notRequest", "{wrong}");
        }
    }

    #[test]
    fn q2_unknown_members_are_ignored() {
        let request = json!({"using": ["urn:ietf:params:jmap:core"], "methodCalls": [["Core/echo", {}, ""]], "more": 1,
            "createdIds": {"k": "m1"}});
        let read = Request::read(request.to_string().as_bytes(), &JmapConfig::default()).unwrap();
        assert!(read.using.has(Capability::Core) && !read.using.has(Capability::Mail));
        assert_eq!((read.calls.len(), read.created_ids.unwrap().len()), (1, 1));
    }

    #[test]
    fn q3_an_unregistered_uri_is_an_unknown_capability() {
        let using = |uri: &str| json!({"using": ["urn:ietf:params:jmap:core", uri], "methodCalls": []});
        assert_eq!(error(using("https://example.org/x")), "unknownCapability");
        assert_eq!(error(using("urn:ietf:params:jmap:contacts")), "none");
    }

    #[test]
    fn q5_too_many_calls_are_refused() {
        let request = |count: usize| {
            let calls: Vec<Value> = (0..count).map(|at| json!(["Core/echo", {}, at.to_string()])).collect();
            json!({"using": [], "methodCalls": calls})
        };
        assert_eq!(error(request(64)), "none");
        assert_eq!(error(request(65)), "limit");
    }
}
