//! Direct requests of tests to OpenSearch, not through the engine.

use std::{
    io::{Read, Write},
    net::TcpStream,
};

use serde_json::{Value, json};

use super::opensearch_url;

/// The status and the body of a response.
pub(crate) fn ask(method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
    let url = opensearch_url().unwrap();
    let address = url.strip_prefix("http://").unwrap();
    let body = body.map(Value::to_string).unwrap_or_default();
    let mut socket = TcpStream::connect(address).unwrap();
    write!(
        socket,
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or_default())
}

/// The same, but the request must succeed.
pub(crate) fn must(method: &str, path: &str, body: Option<&Value>) -> Value {
    let (status, answer) = ask(method, path, body);
    assert!((200..300).contains(&status), "{method} {path}: {status} {answer}");
    answer
}

/// The indexes whose names begin with a prefix, by name.
pub(crate) fn indexes(prefix: &str) -> Vec<String> {
    let found = must("GET", &format!("/{prefix}*?allow_no_indices=true"), None);
    let mut names: Vec<String> = found.as_object().unwrap().keys().cloned().collect();
    names.sort();
    names
}

/// The indexes that an alias leads to.
pub(crate) fn behind(alias: &str) -> Vec<String> {
    let (status, found) = ask("GET", &format!("/{alias}"), None);
    let names = found.as_object().map(|found| found.keys().cloned().collect());
    if status == 200 { names.unwrap() } else { Vec::new() }
}

/// Removes all indexes whose names begin with a prefix.
pub(crate) fn remove(prefix: &str) {
    for index in indexes(prefix) {
        ask("DELETE", &format!("/{index}"), None);
    }
}

/// Makes an alias lead to another index.
pub(crate) fn change_alias(action: &str, index: &str, alias: &str) {
    let action = json!({"actions": [{action: {"index": index, "alias": alias}}]});
    must("POST", "/_aliases", Some(&action));
}
