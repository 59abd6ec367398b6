//! What the server says of itself.

use std::sync::Arc;

use axum::{
    extract::State,
    http::{HeaderValue, StatusCode},
    response::Response,
};
use restante_archive::Query;
use serde_json::json;
use tokio::time::timeout_at;

use super::{App, reply};

/// The OpenAPI description of every route.
pub(crate) const OPENAPI: &str = include_str!("openapi.json");

const OPENMETRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// `GET /`
pub(crate) async fn index(State(app): State<Arc<App>>) -> Response {
    reply::text(format!("restante {}\n\n{}", app.rest.version, super::describe_routes()))
}

/// `GET /health`, with nwaku's words. The store is ready when the archive answers, and when the last message that was
/// to be archived was archived.
pub(crate) async fn health(State(app): State<Arc<App>>) -> Response {
    let query = Query { limit: 1, bodies: false, ..Query::default() };
    let answered = timeout_at(app.deadline(), app.rest.archive.query(&query)).await;
    let problem = match (answered, app.takes_messages()) {
        (Ok(Ok(_)), true) => None,
        (Ok(Ok(_)), false) => Some("the last message could not be archived"),
        _ => Some("the archive does not answer"),
    };
    let (node, store) = match problem {
        None => ("Ready", json!({"Store": "Ready"})),
        Some(problem) => ("Not Ready", json!({"Store": "Not Ready", "desc": problem})),
    };
    let health = json!({"nodeHealth": node, "protocolsHealth": [{"Relay": "Not Mounted"}, store]});
    let mut response = reply::json(health.to_string());
    if problem.is_some() {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    response
}

/// `GET /info`
pub(crate) async fn info(State(app): State<Arc<App>>) -> Response {
    let info = json!({"listenAddresses": app.rest.listen_addresses, "enrUri": ""});
    reply::json(info.to_string())
}

/// `GET /version`
pub(crate) async fn version(State(app): State<Arc<App>>) -> Response {
    reply::text(app.rest.version)
}

/// `GET /metrics`
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Response {
    reply::with_type(OPENMETRICS, (app.rest.metrics_text)())
}

/// `GET /openapi.json`
pub(crate) async fn openapi() -> Response {
    reply::json(OPENAPI)
}
