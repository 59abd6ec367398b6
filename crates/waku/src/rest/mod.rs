//! The REST door: nwaku's paths and JSON, and beyond them bloom queries, queries as JSON bodies and exports.
//!
//! A message travels JSON -> wire bytes -> [`validate`](crate::validate) -> archive, and is answered when it is durable. A
//! page travels from the archive's buffers into one JSON buffer. Every route is described in `openapi.json`.

mod about;
mod body;
mod export;
mod json;
mod metrics;
mod publish;
mod reply;
mod serve;
mod store;

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    http::StatusCode,
    middleware::from_fn_with_state,
    routing::{self, MethodRouter, get, post},
};
use restante_archive::{Archive, Upkeep};
use restante_core::Clock;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit},
    time::Instant,
};

pub use metrics::RestMetrics;
pub use serve::serve;

use crate::validate::Rules;
use reply::Refusal;

/// What a published message's JSON may have beside its payload: topic, meta, proof, names and fields that are ignored.
const PUBLISH_EXTRA_BYTES: usize = 32 << 10;
/// Exports at once: each holds pages and chunks for as long as its client reads.
const EXPORTS_MAX: usize = 16;
/// Long JSON queries at once: each takes many times its body's 4 MiB while it is worked on.
const LONG_QUERIES_MAX: usize = 16;

/// The settings of the REST door.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestConfig {
    /// Take messages of this cluster only; without it any well-formed pubsub topic.
    pub cluster_id: Option<u16>,
    /// Take messages of these shards only; empty takes all.
    pub shards: Vec<u16>,
    /// How many shards autosharding spreads content topics over.
    pub shards_in_network: u16,
    /// The longest message, as on the wire.
    pub max_message_bytes: usize,
    /// How far a message's timestamp may be from the clock; 0 takes any.
    pub timestamp_window_seconds: u64,
    /// Connections at once; further ones wait to be accepted.
    pub connections_max: usize,
    /// How long a client may take to send a request's head, and how long a connection may stay idle before it.
    pub header_timeout_ms: u64,
    /// How long a request may take, from its head to the head of its answer, and how long a client may not read at all
    /// of an answer. A running export is not cut.
    pub request_timeout_ms: u64,
    /// Requests worked on at once; further ones are answered 503.
    pub requests_max: usize,
}

impl Default for RestConfig {
    fn default() -> Self {
        let rules = Rules::default();
        Self {
            cluster_id: rules.cluster_id,
            shards: rules.shards,
            shards_in_network: rules.shards_in_network,
            max_message_bytes: rules.max_message_bytes,
            timestamp_window_seconds: rules.timestamp_window_seconds,
            connections_max: 1024,
            header_timeout_ms: 10_000,
            request_timeout_ms: 30_000,
            requests_max: 256,
        }
    }
}

impl RestConfig {
    /// Which messages are taken.
    pub fn rules(&self) -> Rules {
        Rules {
            cluster_id: self.cluster_id,
            shards: self.shards.clone(),
            shards_in_network: self.shards_in_network,
            max_message_bytes: self.max_message_bytes,
            timestamp_window_seconds: self.timestamp_window_seconds,
        }
    }
}

/// What the REST door works with.
pub struct Rest {
    /// Where messages go and come from.
    pub archive: Arc<dyn Archive>,
    /// The archive's other half.
    pub upkeep: Arc<dyn Upkeep>,
    /// Where the time comes from.
    pub clock: Arc<dyn Clock>,
    /// The settings.
    pub config: RestConfig,
    /// What is counted.
    pub metrics: RestMetrics,
    /// The text of `GET /metrics`.
    pub metrics_text: Arc<dyn Fn() -> String + Send + Sync>,
    /// The server's version.
    pub version: &'static str,
    /// The addresses of `GET /info`.
    pub listen_addresses: Vec<String>,
}

impl fmt::Debug for Rest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rest").field("config", &self.config).finish_non_exhaustive()
    }
}

/// What handlers share: what they work with, and what bounds their work.
pub(crate) struct App {
    pub(crate) rest: Arc<Rest>,
    pub(crate) rules: Rules,
    pub(crate) long_queries: Semaphore,
    turns: Semaphore,
    exports: Arc<Semaphore>,
    is_append_failing: AtomicBool,
}

impl App {
    fn new(rest: Arc<Rest>) -> Self {
        let config = &rest.config;
        Self {
            rules: config.rules(),
            long_queries: Semaphore::new(LONG_QUERIES_MAX),
            turns: Semaphore::new(config.requests_max.clamp(1, Semaphore::MAX_PERMITS)),
            exports: Arc::new(Semaphore::new(EXPORTS_MAX)),
            is_append_failing: AtomicBool::new(false),
            rest,
        }
    }

    /// When a request that begins now must be answered.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + Duration::from_millis(self.rest.config.request_timeout_ms)
    }

    /// The longest JSON of a message: its base64 is a third longer, and some writers escape every slash in it.
    pub(crate) fn publish_bytes_max(&self) -> usize {
        self.rules.max_message_bytes.saturating_mul(2).saturating_add(PUBLISH_EXTRA_BYTES)
    }

    /// A turn to ask the archive. Taken once the body is there, so that slow senders take nobody's turn.
    pub(crate) fn take_turn(&self) -> Result<SemaphorePermit<'_>, Refusal> {
        self.turns.try_acquire().map_err(|_| Refusal::busy())
    }

    /// A turn to export, for as long as the export runs.
    pub(crate) fn take_export_turn(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        self.exports.clone().try_acquire_owned().map_err(|_| Refusal::busy())
    }

    /// Remembers whether the archive took the last message that was offered to it.
    pub(crate) fn note_append(&self, is_archive_well: bool) {
        if self.is_append_failing.load(Ordering::Relaxed) == is_archive_well {
            self.is_append_failing.store(!is_archive_well, Ordering::Relaxed);
        }
    }

    /// Whether the archive took the last message that was offered to it.
    pub(crate) fn takes_messages(&self) -> bool {
        !self.is_append_failing.load(Ordering::Relaxed)
    }
}

/// One method of one path.
struct Route {
    method: &'static str,
    path: &'static str,
    what: &'static str,
    handler: MethodRouter<Arc<App>>,
}

fn routes() -> Vec<Route> {
    let get_route = |path, what, handler| Route { method: "get", path, what, handler };
    let post_route = |path, what, handler| Route { method: "post", path, what, handler };
    vec![
        get_route("/", "this text", get(about::index)),
        post_route("/relay/v1/messages/{pubsubTopic}", "publish a message", post(publish::publish)),
        post_route(
            "/relay/v1/auto/messages",
            "publish, sharded by content topic",
            post(publish::publish_auto),
        ),
        get_route("/store/v3/messages", "a page of history", get(store::get)),
        post_route("/store/v3/messages", "the same, asked by a JSON body", post(store::post)),
        get_route("/archive/v1/export", "a whole range as NDJSON or protobuf", get(export::export)),
        get_route("/health", "whether the server is well", get(about::health)),
        get_route("/info", "the server's addresses", get(about::info)),
        get_route("/debug/v1/info", "the same", get(about::info)),
        get_route("/version", "the server's version", get(about::version)),
        get_route("/debug/v1/version", "the same", get(about::version)),
        get_route("/metrics", "metrics for Prometheus", get(about::metrics)),
        get_route("/openapi.json", "all of this for machines", get(about::openapi)),
    ]
}

/// The routes as a text, one per line.
fn describe_routes() -> String {
    routes()
        .iter()
        .map(|route| format!("{:4} {:34} {}\n", route.method.to_uppercase(), route.path, route.what))
        .collect()
}

/// All routes of the REST door.
pub fn router(rest: Arc<Rest>) -> Router {
    let metrics = rest.metrics.clone();
    let observed = |path| from_fn_with_state(Arc::new(metrics.route(path)), metrics::observe);
    let mut by_path: BTreeMap<&'static str, MethodRouter<Arc<App>>> = BTreeMap::new();
    for route in routes() {
        let methods = by_path.remove(route.path).unwrap_or_default();
        by_path.insert(route.path, methods.merge(route.handler));
    }
    let mut router = Router::new();
    for (path, methods) in by_path {
        router = router.route(path, methods.fallback(wrong_method).layer(observed(path)));
    }
    let unknown = routing::any(unknown_path).layer(observed("other")).with_state(());
    router.fallback_service(unknown).with_state(Arc::new(App::new(rest)))
}

async fn wrong_method() -> Refusal {
    Refusal::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "this path does not take this method: GET / names those it takes",
    )
}

async fn unknown_path() -> Refusal {
    Refusal::new(StatusCode::NOT_FOUND, "no such path: GET / names all")
}

/// Feeds bytes to both parsers of store queries and checks that what they let through is bounded.
#[doc(hidden)]
pub fn fuzz_store_query(bytes: &[u8]) {
    let from_json = store::StoreQuery::from_json(bytes);
    let from_text = std::str::from_utf8(bytes).ok().map(store::StoreQuery::from_query_string);
    for asked in [Some(from_json), from_text].into_iter().flatten() {
        match asked {
            Ok(asked) => store::assert_bounded(&asked),
            Err(refusal) => assert!(refusal.text.len() < 2_000, "a refusal is short"),
        }
    }
}

#[cfg(test)]
mod tests;
