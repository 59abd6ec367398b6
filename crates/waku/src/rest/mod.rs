//! The REST door: nwaku's paths and JSON, and beyond them bloom queries, queries as JSON bodies and exports.
//!
//! A message travels JSON -> wire bytes -> [`Intake::publish`](crate::intake::Intake::publish), and is answered when it is
//! durable. A page travels from the archive's buffers into one JSON buffer. What clients have subscribed to waits in the
//! [`MessageCache`] until they fetch it. Every route is described in `openapi.json`.

mod about;
mod admin;
mod cache;
mod console;
mod export;
mod filter;
mod json;
mod light_push;
mod live;
mod metrics;
mod object;
mod publish;
mod refusals;
mod relay;
mod remote;
mod sessions;
mod store;
mod topics;

use std::{fmt, sync::Arc, time::Duration};

use axum::Router;
use parking_lot::RwLock;
use restante_archive::{Archive, Upkeep};
use restante_core::Clock;
use restante_http::{
    Audience, Front, HttpMetrics, MemoryBudget, OperatorGuard, Permits, Refusal, RefusalFormat, Route,
    ServerLimits, Sites, body, path, reply,
};
use restante_net::Limits;
use tokio::{sync::Semaphore, time::Instant};
use tracing::warn;

pub use cache::MessageCache;
pub use console::RetentionState;
pub use metrics::RestMetrics;

use crate::{
    Waku,
    node::{Node, PeerInfo},
    validate::Rules,
};
use console::Desk;

/// What a published message's JSON may have beside its payload: topic, meta, proof, names and fields that are ignored.
const PUBLISH_EXTRA_BYTES: usize = 32 << 10;
/// Exports at once: each holds pages and chunks for as long as its client reads.
const EXPORTS_MAX: usize = 16;
/// Long JSON queries at once: each takes many times its body's 4 MiB while it is worked on.
const LONG_QUERIES_MAX: usize = 16;
/// Queries at once that other nodes answer: what a peer answers is held twice while it is written as JSON.
const REMOTE_QUERIES_MAX: usize = 16;
/// How long an append that failed counts. An archive that is well again may have nothing to prove it by: relay's messages go
/// another way.
const APPEND_FAILURE_COUNTS: Duration = Duration::from_secs(60);

/// The settings of the REST door. Which messages are taken is not among them: that is the same for every way in, see
/// [`Intake::rules`](crate::intake::Intake::rules).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestConfig {
    /// Whether there are routes for operators, and whether the node dials addresses that REST clients name. Whoever may
    /// connect to the door is then trusted with both; nwaku's `--rest-admin`. With a token the routes are there without this, for
    /// those who know it.
    pub admin: bool,
    /// Whether there is a console page, where none but operators can come: see [`Access`].
    pub console: bool,
    /// Messages of one subscription that wait to be fetched, beyond which the oldest is dropped; nwaku's
    /// `--rest-relay-cache-capacity`.
    pub relay_cache_messages: usize,
    /// Connections at once. One more closes the one that has waited longest for a request, or waits while all are in use.
    pub connections_max: usize,
    /// Connections of one address at once, an IPv6 network of 64 bits counting as one; those of loopback are not counted. One more
    /// closes the address' own that has waited longest for a request, or is closed while all are in use.
    pub connections_per_address_max: usize,
    /// How long a client may take to send a request's head, and how long a connection may stay idle before it.
    pub header_timeout_ms: u64,
    /// How long requests that were begun may take after the server began to stop; then their connections are cut.
    pub stop_timeout_ms: u64,
    /// How long a request may take, from its head to the head of its answer (relaying a published message not counted, which has
    /// two seconds of its own), and how long a client may take for every 64 KiB of an answer. A running export is not cut.
    pub request_timeout_ms: u64,
    /// Requests worked on at once; further ones are answered 503.
    pub requests_max: usize,
    /// Live streams at once; further ones are answered 503. Each takes a connection, too.
    pub live_streams_max: usize,
    /// Messages that wait for one live stream: a client that reads more slowly is told to go on from its cursor.
    pub live_queue_messages: usize,
    /// Bytes of messages that wait for one live stream.
    pub live_queue_bytes: usize,
    /// Whose pages may read live streams, beside those of `origins`: origins as `https://chat.example`, or `*`.
    pub live_origins: Vec<String>,
    /// The hosts that requests may name on loopback without a token, beside loopback's own: names or addresses without a port, or `*`.
    pub hosts: Vec<String>,
    /// Whose pages may use the door from a browser, beside its own: origins as `https://chat.example`, or `*`.
    pub origins: Vec<String>,
}

impl Default for RestConfig {
    fn default() -> Self {
        Self {
            admin: false,
            console: true,
            relay_cache_messages: 50,
            connections_max: 1024,
            connections_per_address_max: 512,
            header_timeout_ms: 10_000,
            stop_timeout_ms: 5_000,
            request_timeout_ms: 30_000,
            requests_max: 256,
            live_streams_max: 512,
            live_queue_messages: 1_000,
            live_queue_bytes: 4 << 20,
            live_origins: Vec::new(),
            hosts: Vec::new(),
            origins: Vec::new(),
        }
    }
}

impl RestConfig {
    /// The bounds of the door's listener.
    pub fn limits(&self) -> Limits {
        Limits {
            connections_max: self.connections_max,
            connections_per_address_max: self.connections_per_address_max,
            stall_timeout: Duration::from_millis(self.request_timeout_ms),
            stop_timeout: Duration::from_millis(self.stop_timeout_ms),
        }
    }
}

impl RestConfig {
    /// The bounds of the server on the listener.
    pub fn server_limits(&self) -> ServerLimits {
        ServerLimits {
            header_timeout: Duration::from_millis(self.header_timeout_ms),
            stall_timeout: Duration::from_millis(self.request_timeout_ms),
            requests_max: self.connections_max,
            requests_per_address_max: self.connections_per_address_max,
        }
    }
}

/// Sets the log level, by a name as `debug` or `WARN`; says what is wrong with one that it does not know.
pub type SetLogLevel = Arc<dyn Fn(&str) -> Result<(), String> + Send + Sync>;

/// Something that the server keeps beside the archive: a line of `GET /health`.
#[derive(Clone)]
pub struct KeptHealth {
    /// Its name there.
    pub name: &'static str,
    /// What is wrong with it, if something is; answered from memory.
    pub problem: Arc<dyn Fn() -> Option<String> + Send + Sync>,
}

/// What the REST door works with.
pub struct Rest {
    /// The way in, the node, and which services it offers.
    pub waku: Waku,
    /// Where messages wait for clients; one of the listeners of `waku`.
    pub cache: Arc<MessageCache>,
    /// Where history comes from.
    pub archive: Arc<dyn Archive>,
    /// The archive's other half.
    pub upkeep: Arc<dyn Upkeep>,
    /// Where the time comes from.
    pub clock: Arc<dyn Clock>,
    /// The settings.
    pub config: RestConfig,
    /// Who is an operator.
    pub operators: Arc<OperatorGuard>,
    /// Routes for operators that the server adds.
    pub operator_routes: Vec<Route>,
    /// What the server keeps beside the archive.
    pub kept: Vec<KeptHealth>,
    /// What retention keeps and did, for the console.
    pub retention: RetentionState,
    /// What is counted.
    pub metrics: RestMetrics,
    /// What is counted of requests.
    pub http_metrics: HttpMetrics,
    /// The text of `GET /metrics`.
    pub metrics_text: Arc<dyn Fn() -> String + Send + Sync>,
    /// The server's version.
    pub version: &'static str,
    /// The door's own addresses in `GET /info`, behind those of the node.
    pub listen_addresses: Vec<String>,
    /// Sets the log level while the server runs, if that can be done.
    pub set_log_level: Option<SetLogLevel>,
}

impl fmt::Debug for Rest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rest").field("config", &self.config).finish_non_exhaustive()
    }
}

/// What handlers share: what they work with, and what bounds their work.
pub(crate) struct App {
    pub(crate) rest: Arc<Rest>,
    pub(crate) archive: Arc<dyn Archive>,
    /// For requests that ask the archive. Acquired once the body is there, so that slow senders hold none.
    pub(crate) permits: Permits,
    pub(crate) long_queries: Permits,
    pub(crate) remote_queries: Permits,
    /// For exports, each for as long as it runs.
    pub(crate) exports: Permits,
    /// Held by the one report to an operator that is being written.
    pub(crate) reports: Arc<Semaphore>,
    pub(crate) memory: Arc<MemoryBudget>,
    /// What the console keeps between requests.
    pub(crate) desk: Desk,
    /// The pubsub topics that the node relayed before the first request.
    configured_topics: Vec<String>,
    live: live::Bounds,
    append_failed_at: RwLock<Option<Instant>>,
}

impl App {
    fn new(rest: Arc<Rest>) -> Self {
        let config = &rest.config;
        let configured_topics = rest.waku.node.as_ref().map(Node::topics).unwrap_or_default();
        keep_messages_of(&configured_topics, &rest.cache);
        Self {
            archive: rest.archive.clone(),
            configured_topics,
            permits: Permits::new(config.requests_max),
            long_queries: Permits::new(LONG_QUERIES_MAX),
            remote_queries: Permits::new(REMOTE_QUERIES_MAX),
            exports: Permits::new(EXPORTS_MAX),
            reports: Arc::new(Semaphore::new(1)),
            memory: Arc::default(),
            desk: Desk::default(),
            live: live::Bounds::of(config),
            append_failed_at: RwLock::default(),
            rest,
        }
    }

    /// Which messages are taken.
    pub(crate) fn rules(&self) -> &Rules {
        self.rest.waku.intake.rules()
    }

    /// Whether there are routes for operators.
    pub(crate) fn has_admin(&self) -> bool {
        self.rest.config.admin || self.rest.operators.has_token()
    }

    /// Whether there is a console.
    pub(crate) fn has_console(&self) -> bool {
        self.rest.has_console()
    }

    /// What is there by the settings.
    pub(crate) fn offer(&self) -> Offer {
        Offer { admin: self.has_admin(), console: self.has_console() }
    }

    /// The node, for what can't be done without one.
    pub(crate) fn node(&self) -> Result<&Node, Refusal> {
        self.rest.waku.node.as_ref().ok_or(Refusal::unavailable("this server has no node"))
    }

    /// The connected peers.
    pub(crate) fn peers(&self) -> Vec<PeerInfo> {
        self.rest.waku.node.as_ref().map(Node::peers).unwrap_or_default()
    }

    /// Whether the node is to relay a pubsub topic: it is configured to, or a client has subscribed to it.
    pub(crate) fn wants(&self, topic: &str) -> bool {
        self.configured_topics.iter().any(|configured| configured == topic) || self.rest.cache.wants(topic)
    }

    /// When a request that begins now must be answered.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + Duration::from_millis(self.rest.config.request_timeout_ms)
    }

    /// The longest JSON of a message: its base64 is a third longer, and some writers escape every slash in it.
    pub(crate) fn publish_bytes_max(&self) -> usize {
        self.rules().max_message_bytes.saturating_mul(2).saturating_add(PUBLISH_EXTRA_BYTES)
    }

    /// Remembers whether the archive took the last message that was offered to it.
    pub(crate) fn note_append(&self, is_archive_well: bool) {
        if !is_archive_well {
            *self.append_failed_at.write() = Some(Instant::now());
        } else if self.append_failed_at.read().is_some() {
            *self.append_failed_at.write() = None;
        }
    }

    /// Whether the archive took the last message that was offered to it lately.
    pub(crate) fn takes_messages(&self) -> bool {
        self.append_failed_at.read().is_none_or(|at| at.elapsed() >= APPEND_FAILURE_COUNTS)
    }
}

/// Begins to keep messages of the topics that the node relays from the start: nwaku's clients fetch them without asking first.
fn keep_messages_of(topics: &[String], cache: &MessageCache) {
    let kept = cache.keep(topics);
    if kept < topics.len() {
        warn!(topics = topics.len(), kept, "messages of further topics are kept when a client subscribes");
    }
}

/// Routes that are there or not, as the settings say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    pub(crate) admin: bool,
    pub(crate) console: bool,
}

fn routes(offer: Offer) -> Vec<Route<Arc<App>>> {
    let mut all = relay_routes();
    all.extend(live_routes());
    all.extend(filter_routes());
    all.extend(other_routes());
    if offer.console {
        all.extend(console_routes());
    }
    if offer.admin {
        all.extend(admin_routes());
    }
    all
}

fn relay_routes() -> Vec<Route<Arc<App>>> {
    let (subscriptions, auto_subscriptions) = ("/relay/v1/subscriptions", "/relay/v1/auto/subscriptions");
    let (messages, auto_messages) = ("/relay/v1/messages/{pubsubTopic}", "/relay/v1/auto/messages");
    let auto_messages_of = "/relay/v1/auto/messages/{contentTopic}";
    vec![
        Route::post(messages, "publish a message", publish::publish),
        Route::get(messages, "what came since the last time", relay::messages),
        Route::post(subscriptions, "keep messages of pubsub topics", relay::subscribe),
        Route::delete(subscriptions, "keep them no more", relay::unsubscribe),
        Route::post(auto_messages, "publish, sharded by content topic", publish::publish_auto),
        Route::get(auto_messages_of, "what came since the last time", relay::messages_auto),
        Route::post(auto_subscriptions, "keep messages of content topics", relay::subscribe_auto),
        Route::delete(auto_subscriptions, "keep them no more", relay::unsubscribe_auto),
        Route::post("/lightpush/v3/message", "publish, answered in JSON", light_push::push),
        Route::post("/lightpush/v1/message", "the same, answered as text", light_push::push_v1),
    ]
}

fn live_routes() -> Vec<Route<Arc<App>>> {
    let live_of = "/relay/v1/messages/{pubsubTopic}/live";
    vec![
        Route::get("/live", "messages as they arrive, behind a cursor", live::live).as_stream(),
        Route::get(live_of, "the same on one pubsub topic", live::live_of).as_stream(),
    ]
}

fn filter_routes() -> Vec<Route<Arc<App>>> {
    let subscriptions = "/filter/v2/subscriptions";
    let messages = "/filter/v2/messages/{contentTopic}";
    let messages_on = "/filter/v2/messages/{pubsubTopic}/{contentTopic}";
    let ping = "/filter/v2/subscriptions/{requestId}";
    vec![
        Route::post(subscriptions, "keep messages of content topics", filter::subscribe),
        Route::put(subscriptions, "the same", filter::subscribe),
        Route::delete(subscriptions, "keep them no more", filter::unsubscribe),
        Route::delete("/filter/v2/subscriptions/all", "keep nothing", filter::unsubscribe_all),
        Route::get(ping, "whether there is a subscription", filter::ping),
        Route::get(messages, "what came since the last time", filter::messages),
        Route::get(messages_on, "the same on one pubsub topic", filter::messages_on),
    ]
}

fn other_routes() -> Vec<Route<Arc<App>>> {
    vec![
        Route::get("/", "this text", about::index).as_linked_page(),
        Route::get("/store/v3/messages", "a page of history", store::get),
        Route::post("/store/v3/messages", "the same, asked by a JSON body", store::post),
        Route::get("/archive/v1/export", "a whole range as NDJSON or protobuf", export::export),
        Route::get("/health", "whether the server is well", about::health),
        Route::get("/info", "the server's addresses", about::info),
        Route::get("/debug/v1/info", "the same", about::info),
        Route::get("/version", "the server's version", about::version),
        Route::get("/debug/v1/version", "the same", about::version),
        Route::get("/metrics", "metrics for Prometheus", about::metrics),
        Route::get("/openapi.json", "all of this for machines", about::openapi),
    ]
}

fn console_routes() -> Vec<Route<Arc<App>>> {
    vec![
        Route::get("/console/v1/state", "what the console shows", console::state)
            .with_audience(Audience::Operators),
        Route::get("/console/v1/search", "messages by the beginning of a topic", console::search)
            .with_audience(Audience::Operators),
        Route::get("/console", "leads to the console page", console::redirect).as_linked_page(),
        Route::get("/console/", "the same", console::redirect),
        Route::get("/console/{file}", "a file of the console page", console::file),
    ]
}

fn admin_routes() -> Vec<Route<Arc<App>>> {
    let log_level = "/admin/v1/log-level/{logLevel}";
    let connected_on = "/admin/v1/peers/connected/on/{shardId}";
    let (sessions, session) = ("/admin/v1/sessions", "/admin/v1/sessions/{sessionId}");
    let routes = vec![
        Route::get("/admin/v1/peers", "the peers", admin::peers),
        Route::post("/admin/v1/peers", "connect to peers", admin::connect),
        Route::get("/admin/v1/peer/{peerId}", "one peer", admin::peer),
        Route::get("/admin/v1/peers/stats", "how many peers there are", admin::stats),
        Route::get("/admin/v1/peers/service", "peers that offer services", admin::service_peers),
        Route::get("/admin/v1/peers/connected", "connected peers", admin::peers),
        Route::get(connected_on, "those on a shard", admin::connected_on),
        Route::get("/admin/v1/peers/relay", "relay peers by shard", admin::relay_peers),
        Route::get("/admin/v1/peers/relay/on/{shardId}", "those of a shard", admin::relay_peers_on),
        Route::get("/admin/v1/peers/mesh", "mesh peers by shard", admin::mesh_peers),
        Route::get("/admin/v1/peers/mesh/on/{shardId}", "those of a shard", admin::mesh_peers_on),
        Route::get("/admin/v1/filter/subscriptions", "peers' filters", admin::filter_subscriptions),
        Route::get(sessions, "who is connected", sessions::list),
        Route::delete(sessions, "close all sessions of a user", sessions::close_all),
        Route::get("/admin/v1/sessions/counts", "how many are connected", sessions::counts),
        Route::get(session, "one session", sessions::one),
        Route::delete(session, "close it", sessions::close),
        Route::post(log_level, "set the log level", admin::set_log_level),
    ];
    routes.into_iter().map(|route| route.with_audience(Audience::Operators)).collect()
}

/// The routes of the interface, and those of the server that are for operators.
fn all_routes(app: &Arc<App>) -> Vec<Route> {
    let mut all: Vec<Route> =
        routes(app.offer()).into_iter().map(|route| route.with_state(app.clone())).collect();
    if app.has_admin() {
        let added = app.rest.operator_routes.iter().cloned();
        all.extend(added.map(|route| route.with_audience(Audience::Operators)));
    }
    all
}

impl Rest {
    /// Whether there is a console.
    pub fn has_console(&self) -> bool {
        self.config.console && self.operators.is_safe()
    }
}

/// All routes of the REST interface.
pub fn router(rest: Arc<Rest>) -> Router {
    router_of(App::new(rest))
}

fn router_of(app: App) -> Router {
    let app = Arc::new(app);
    if app.has_console() {
        Desk::watch(&app);
    }
    let config = &app.rest.config;
    let front = Front {
        metrics: app.rest.http_metrics.clone(),
        memory: app.memory.clone(),
        operators: app.rest.operators.clone(),
        accounts: None,
        sites: Sites {
            hosts: config.hosts.clone(),
            origins: config.origins.clone(),
            stream_origins: config.live_origins.clone(),
        },
        format: RefusalFormat::Text,
    };
    front.router(all_routes(&app))
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
