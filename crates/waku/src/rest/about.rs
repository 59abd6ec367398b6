//! What the node reports about itself.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use serde_json::json;

use super::{App, reply};
use crate::node::Node;

/// The OpenAPI description of every route of the listener.
pub(crate) const OPENAPI: &str = include_str!("openapi.json");

/// `GET /info`: the node's addresses with its peer id, as nwaku lists them, followed by those of this door.
pub(crate) async fn info(State(app): State<Arc<App>>) -> Response {
    let node = app.rest.waku.node.as_ref();
    let mut addresses: Vec<String> = Vec::new();
    for address in node.map(Node::addresses).unwrap_or_default() {
        addresses.push(address.to_string());
    }
    addresses.extend(app.rest.listen_addresses.iter().cloned());
    let enr = node.and_then(Node::enr).unwrap_or_default();
    reply::json(json!({"listenAddresses": addresses, "enrUri": enr}).to_string())
}

/// `GET /version`
pub(crate) async fn version(State(app): State<Arc<App>>) -> Response {
    reply::text(app.rest.version)
}

/// `GET /openapi.json`
pub(crate) async fn openapi() -> Response {
    reply::json(OPENAPI)
}
