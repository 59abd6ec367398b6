//! What the server says of itself.

use std::{borrow::Cow, sync::Arc};

use axum::{
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::Response,
};
use restante_archive::{Following, Health, Query};
use restante_core::Timestamp;
use serde_json::{Value, json};
use tokio::time::timeout_at;

use super::{
    App, console, reply,
    reply::{Refusal, cut},
};
use crate::node::Node;

/// The OpenAPI description of every route.
pub(crate) const OPENAPI: &str = include_str!("openapi.json");

/// What health says is cut here: it repeats texts of a database.
const DESC_CHARS_MAX: usize = 600;

const OPENMETRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");

/// `GET /`: the console for browsers, where there is one, and for others the routes.
pub(crate) async fn index(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    if app.has_console() && console::is_wanted(&headers) {
        return console::page(&headers);
    }
    let routes = restante_http::describe(&super::all_routes(&app));
    let mut response = reply::text(format!("restante {}\n\n{routes}", app.rest.version));
    response.headers_mut().insert(header::VARY, console::VARY);
    response
}

/// `GET /health`, with nwaku's words. The store is ready when the archive knows of no problem and answers, and when the
/// last message that was to be archived was archived. The node as a whole is as ready as its store.
///
/// While the archive's engine is away this says 503 although messages are taken, because nobody can be answered what they
/// are: a proxy shall send queries elsewhere. Whoever asks only whether the process lives asks `GET /version`. A relay
/// without peers is told, but it is no reason for 503: history is served without them, and a network's first node has none. Nor
/// is a table of sessions whose other nodes are out of reach: this node's sessions go on. Nor are records and blobs: no
/// query of history needs them.
pub(crate) async fn health(State(app): State<Arc<App>>) -> Response {
    let health = app.rest.upkeep.health();
    let problem = match &health.problem {
        Some(problem) => Some(Cow::Owned(told_since(problem, health.since))),
        None => probe(&app).await.map(Cow::Borrowed),
    };
    let status = if problem.is_none() { READY } else { NOT_READY };
    let desc = describe(problem.as_deref(), &health);
    let store = match desc.is_empty() {
        true => json!({"Store": status}),
        false => json!({"Store": status, "desc": desc}),
    };
    let protocols = std::iter::once(relay_health(&app))
        .chain([store])
        .chain(services_health(&app))
        .chain(kept_health(&app))
        .chain([sessions_health(&app)]);
    let told = json!({"nodeHealth": status, "protocolsHealth": protocols.collect::<Vec<Value>>()});
    let mut response = reply::json(told.to_string());
    if problem.is_some() {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    }
    response
}

const READY: &str = "Ready";
const NOT_READY: &str = "Not Ready";
const NOT_MOUNTED: &str = "Not Mounted";

/// Relay is ready when a message would reach somebody.
fn relay_health(app: &App) -> Value {
    let Some(node) = app.rest.waku.node.as_ref().filter(|node| node.is_relay()) else {
        return json!({"Relay": NOT_MOUNTED});
    };
    match node.topics().iter().any(|topic| node.followers(topic) > 0) {
        true => json!({"Relay": READY}),
        false => json!({"Relay": NOT_READY, "desc": "no peer follows a pubsub topic that this node relays"}),
    }
}

/// What peers are offered. A service without a node is offered to nobody.
fn services_health(app: &App) -> impl Iterator<Item = Value> {
    let services = app.rest.waku.services;
    let has_node = app.rest.waku.node.is_some();
    let offered = [
        ("Filter", services.filter),
        ("Lightpush", services.lightpush),
        ("Peer Exchange", services.peer_exchange),
        ("Metadata", true),
    ];
    offered.into_iter().map(move |(name, is_offered)| {
        let status = if has_node && is_offered { READY } else { NOT_MOUNTED };
        let mut told = serde_json::Map::new();
        told.insert(name.to_owned(), status.into());
        Value::Object(told)
    })
}

/// What is kept beside the archive.
fn kept_health(app: &App) -> impl Iterator<Item = Value> {
    app.rest.kept.iter().map(|kept| {
        let problem = (kept.problem)();
        let status = if problem.is_none() { READY } else { NOT_READY };
        let mut told = serde_json::Map::new();
        told.insert(kept.name.to_owned(), status.into());
        if let Some(problem) = problem {
            told.insert("desc".to_owned(), cut(&problem, DESC_CHARS_MAX).into());
        }
        Value::Object(told)
    })
}

/// Whether other nodes see this one's sessions, and this one theirs.
fn sessions_health(app: &App) -> Value {
    match app.rest.waku.live.nodes.health() {
        Ok(()) => json!({"Sessions": READY}),
        Err(error) => json!({"Sessions": NOT_READY, "desc": cut(&error.to_string(), DESC_CHARS_MAX)}),
    }
}

/// What the archive does not know of itself: whether it answers.
async fn probe(app: &App) -> Option<&'static str> {
    let query = Query { limit: 1, bodies: false, ..Query::default() };
    let answered = timeout_at(app.deadline(), app.archive.query(&query)).await;
    match (answered, app.takes_messages()) {
        (Ok(Ok(_)), true) => None,
        (Ok(Ok(_)), false) => Some("the last message could not be archived"),
        _ => Some("the archive does not answer"),
    }
}

/// Everything that operators want to know, in a sentence or two.
fn describe(problem: Option<&str>, health: &Health) -> String {
    let mut parts: Vec<String> = problem.map(str::to_owned).into_iter().collect();
    parts.extend(health.damage.clone());
    if health.spooled_messages > 0 {
        let waiting = amount(health.spooled_messages, health.spooled_bytes);
        parts.push(format!("waiting in the spool: {waiting}"));
    }
    if let Some(following) = &health.following {
        parts.extend(describe_following(following));
    }
    cut(&parts.join("; "), DESC_CHARS_MAX)
}

/// How the second archive of a tandem is behind, if it is. It changes nothing for those who publish and query.
fn describe_following(following: &Following) -> Option<String> {
    let Following { engine, problem, since, messages, bytes, .. } = following;
    let amount = amount(*messages, *bytes);
    let behind = format!("the tandem's second archive ({engine}) is behind by {amount}");
    match problem {
        Some(problem) => Some(format!("{behind}: {}", told_since(problem, *since))),
        None => (*messages > 0).then_some(behind),
    }
}

fn amount(messages: u64, bytes: u64) -> String {
    let plural = if messages == 1 { "" } else { "s" };
    format!("{messages} message{plural} ({bytes} bytes)")
}

fn told_since(problem: &str, since: Option<Timestamp>) -> String {
    since.map_or_else(|| problem.to_owned(), |since| format!("{problem}, since {since}"))
}

/// `GET /info`: the node's addresses with its peer id, as nwaku lists them, and behind them those of this door.
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

/// `GET /metrics`
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    let text = (app.rest.metrics_text)().into_bytes();
    let memory = app.memory.acquire(text.capacity(), app.deadline()).await?;
    Ok(reply::with_type(OPENMETRICS, memory.hold(text)))
}

/// `GET /openapi.json`
pub(crate) async fn openapi() -> Response {
    reply::json(OPENAPI)
}
