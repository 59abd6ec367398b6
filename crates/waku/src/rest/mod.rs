//! The REST door: nwaku's paths and JSON, and in addition bloom queries, queries as JSON bodies and exports.
//!
//! A message is converted from JSON to wire bytes, passed to [`Intake::publish`](crate::intake::Intake::publish), and answered
//! when it is durable. A page is written from the archive's buffers into one JSON buffer. The messages of clients' subscriptions
//! wait in the [`MessageCache`] until they are fetched. Every route is described in `openapi.json`.

mod about;
mod cache;
mod export;
mod filter;
mod json;
mod light_push;
mod live;
mod metrics;
mod object;
mod peers;
mod publish;
mod refusals;
mod relay;
mod remote;
mod report;
mod search;
mod store;
mod topics;

use std::{fmt, num::NonZero, sync::Arc, time::Duration};

use async_trait::async_trait;
use prometheus_client::registry::Registry;
use restante_archive::Archive;
use restante_core::{Clock, nonzero, settings};
use restante_http::{
    Audience, HostName, MemoryBudget, OperatorGuard, PageOrigin, Permits, Refusal, Route, ServerLimits,
    Sites, body, path, reply,
};
use restante_net::Limits;
use restante_operate::{ArchiveHealth, ComponentHealth, Door, Facts, Listener, Offer};
use serde::{Deserialize, Serialize};
use tokio::{sync::Semaphore, time::Instant};
use tracing::warn;

pub use cache::MessageCache;
pub use metrics::RestMetrics;

use crate::{
    Waku, WakuMetrics,
    node::{Node, PeerInfo},
    validate::Rules,
};

/// The most bytes of a published message's JSON besides its payload: topic, meta, proof, names and ignored fields.
const PUBLISH_EXTRA_BYTES: usize = 32 << 10;
/// The most concurrent exports: each holds pages and chunks for as long as its client reads.
const EXPORTS_MAX: usize = 16;
/// The most concurrent long JSON queries: each takes many times its body's 4 MiB while it is processed.
const LONG_QUERIES_MAX: usize = 16;
/// The most concurrent queries to other nodes: a peer's answer is in memory twice while it is written as JSON.
const REMOTE_QUERIES_MAX: usize = 16;

/// The settings of the REST door. Which messages are accepted is not among them: that is the same for all protocols, see
/// [`Intake::rules`](crate::intake::Intake::rules).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestConfig {
    /// Whether there are routes for operators, and whether the node dials addresses that REST clients name. Every client that can
    /// connect is then trusted with both; nwaku's `--rest-admin`. With a token the routes exist without this setting, for clients
    /// that know it.
    pub admin: bool,
    /// Whether there is a console page.
    pub console: ConsolePage,
    /// The most messages of one subscription that wait to be fetched, beyond which the oldest is dropped; nwaku's
    /// `--rest-relay-cache-capacity`.
    pub relay_cache_messages: NonZero<usize>,
    /// The most connections. One more closes the one that has waited longest for a request, or waits while all are in use.
    pub connections_max: NonZero<usize>,
    /// The most connections of one address, where an IPv6 network of 64 bits counts as one address and loopback is not limited.
    /// One more closes the address' own connection that has waited longest for a request, or is closed while all are in use.
    pub connections_per_address_max: NonZero<usize>,
    /// How long a client may take to send a request's head, and how long a connection may stay idle before it.
    pub header_timeout_ms: NonZero<u64>,
    /// How long requests in progress may take after the server began to stop; then their connections are cut off.
    #[serde(skip, default = "default_stop_timeout_ms")]
    pub stop_timeout_ms: u64,
    /// How long a request may take, from its head to the head of its answer (without relaying a published message, which may take
    /// two more seconds), and how long a client may take for every 64 KiB of an answer. A running export is not cut off.
    pub request_timeout_ms: NonZero<u64>,
    /// The most concurrent requests; further ones are answered 503.
    pub requests_max: NonZero<usize>,
    /// The most live streams; further ones are answered 503. Each takes a connection, too.
    pub live_streams_max: NonZero<usize>,
    /// The most messages that wait for one live stream. Beyond them the stream ends, and the client can resume from its cursor.
    pub live_queue_messages: NonZero<usize>,
    /// The most bytes of messages that wait for one live stream.
    pub live_queue_bytes: NonZero<usize>,
    /// The origins of pages that may read live streams, besides those of `origins`.
    #[serde(with = "settings::texts")]
    pub live_origins: Vec<PageOrigin>,
    /// The hosts that requests on loopback may name without a token, besides loopback's own.
    #[serde(with = "settings::texts")]
    pub hosts: Vec<HostName>,
    /// The origins of pages that may use the door from a browser, besides its own.
    #[serde(with = "settings::texts")]
    pub origins: Vec<PageOrigin>,
}

impl Default for RestConfig {
    fn default() -> Self {
        Self {
            admin: false,
            console: ConsolePage::Auto,
            relay_cache_messages: nonzero!(50),
            connections_max: nonzero!(1024),
            connections_per_address_max: nonzero!(512),
            header_timeout_ms: nonzero!(10_000),
            stop_timeout_ms: default_stop_timeout_ms(),
            request_timeout_ms: nonzero!(30_000),
            requests_max: nonzero!(256),
            live_streams_max: nonzero!(512),
            live_queue_messages: nonzero!(1_000),
            live_queue_bytes: nonzero!(4 << 20),
            live_origins: Vec::new(),
            hosts: Vec::new(),
            origins: Vec::new(),
        }
    }
}

/// Whether there is a console page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ConsolePage {
    /// Where only operators have access: see [`OperatorGuard::is_safe`].
    Auto,
    /// Nowhere.
    Off,
}

fn default_stop_timeout_ms() -> u64 {
    5_000
}

impl RestConfig {
    /// The limits of the door's listener.
    pub fn limits(&self) -> Limits {
        Limits {
            connections_max: self.connections_max.get(),
            connections_per_address_max: self.connections_per_address_max.get(),
            stall_timeout: Duration::from_millis(self.request_timeout_ms.get()),
            handshake_timeout: Duration::from_millis(self.header_timeout_ms.get()),
            stop_timeout: Duration::from_millis(self.stop_timeout_ms),
        }
    }

    /// Which pages may use the listener.
    pub fn sites(&self) -> Sites {
        Sites {
            hosts: self.hosts.iter().map(ToString::to_string).collect(),
            origins: self.origins.iter().map(ToString::to_string).collect(),
            stream_origins: self.live_origins.iter().map(ToString::to_string).collect(),
            is_public: false,
        }
    }

    /// The limits of the HTTP server on the listener.
    pub fn server_limits(&self) -> ServerLimits {
        ServerLimits {
            header_timeout: Duration::from_millis(self.header_timeout_ms.get()),
            stall_timeout: Duration::from_millis(self.request_timeout_ms.get()),
            requests_max: self.connections_max.get(),
            requests_per_address_max: self.connections_per_address_max.get(),
        }
    }
}

/// What the REST interface uses.
#[derive(Clone)]
pub struct Rest {
    /// The intake, the node, and its services.
    pub waku: Waku,
    /// Messages that wait for clients; one of the listeners of `waku`.
    pub cache: Arc<MessageCache>,
    /// The archive that is queried.
    pub archive: Arc<dyn Archive>,
    /// Whether the archive works.
    pub health: Arc<ArchiveHealth>,
    /// The source of the time.
    pub clock: Arc<dyn Clock>,
    /// The settings.
    pub config: RestConfig,
    /// Clients for which the node dials.
    pub operators: Arc<OperatorGuard>,
    /// The metrics of the REST interface.
    pub metrics: RestMetrics,
    /// The metrics of the node and its services.
    pub waku_metrics: WakuMetrics,
    /// Memory for answers.
    pub memory: Arc<MemoryBudget>,
    /// Permits for requests that query the archive. Acquired once the body has arrived, so that slow senders hold none.
    pub permits: Permits,
    /// The server's version.
    pub version: &'static str,
    /// The listener's own addresses in `GET /info`, after those of the node.
    pub listen_addresses: Vec<String>,
}

impl Rest {
    /// What the listener offers to operators.
    pub fn offer(&self) -> Offer {
        let RestConfig { admin, console, .. } = self.config;
        let console = console == ConsolePage::Auto && self.operators.is_safe();
        Offer { admin: admin || self.operators.has_token(), console }
    }
}

impl fmt::Debug for Rest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rest").field("config", &self.config).finish_non_exhaustive()
    }
}

/// What handlers share: what they use, and what bounds their work.
pub(crate) struct App {
    pub(crate) rest: Arc<Rest>,
    pub(crate) archive: Arc<dyn Archive>,
    pub(crate) permits: Permits,
    pub(crate) long_queries: Permits,
    pub(crate) remote_queries: Permits,
    /// Permits for exports, each held for as long as the export runs.
    pub(crate) exports: Permits,
    /// Held by the one report to an operator that is being written.
    pub(crate) reports: Arc<Semaphore>,
    pub(crate) memory: Arc<MemoryBudget>,
    /// The pubsub topics that the node relayed before the first request.
    configured_topics: Vec<String>,
    live: live::Bounds,
}

impl App {
    fn new(rest: Arc<Rest>) -> Self {
        let config = &rest.config;
        let configured_topics = rest.waku.node.as_ref().map(Node::topics).unwrap_or_default();
        keep_messages_of(&configured_topics, &rest.cache);
        Self {
            archive: rest.archive.clone(),
            configured_topics,
            permits: rest.permits.clone(),
            long_queries: Permits::new(LONG_QUERIES_MAX),
            remote_queries: Permits::new(REMOTE_QUERIES_MAX),
            exports: Permits::new(EXPORTS_MAX),
            reports: Arc::new(Semaphore::new(1)),
            memory: rest.memory.clone(),
            live: live::Bounds::of(config),
            rest,
        }
    }

    /// Which messages are accepted.
    pub(crate) fn rules(&self) -> &Rules {
        self.rest.waku.intake.rules()
    }

    /// The node, or a refusal if there is none.
    pub(crate) fn node(&self) -> Result<&Node, Refusal> {
        self.rest.waku.node.as_ref().ok_or(Refusal::unavailable("this server has no node"))
    }

    /// The connected peers.
    pub(crate) fn peers(&self) -> Vec<PeerInfo> {
        self.rest.waku.node.as_ref().map(Node::peers).unwrap_or_default()
    }

    /// Whether the node should relay a pubsub topic: it is configured to, or a client has subscribed.
    pub(crate) fn wants(&self, topic: &str) -> bool {
        self.configured_topics.iter().any(|configured| configured == topic) || self.rest.cache.wants(topic)
    }

    /// The deadline of a request that begins now.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + Duration::from_millis(self.rest.config.request_timeout_ms.get())
    }

    /// The longest JSON of a message: its base64 is a third longer, and some writers escape every slash in it.
    pub(crate) fn publish_bytes_max(&self) -> usize {
        self.rules().max_message_bytes.get().saturating_mul(2).saturating_add(PUBLISH_EXTRA_BYTES)
    }
}

/// Begins to store messages of the topics that the node relays from the start: nwaku's clients fetch them without subscribing.
fn keep_messages_of(topics: &[String], cache: &MessageCache) {
    let kept = cache.keep(topics);
    if kept < topics.len() {
        warn!(topics = topics.len(), kept, "messages of further topics are kept when a client subscribes");
    }
}

/// The Waku door, for the server.
pub struct WakuDoor(Arc<App>);

impl fmt::Debug for WakuDoor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WakuDoor").field(&self.0.rest).finish()
    }
}

impl WakuDoor {
    /// The door with its REST interface.
    pub fn new(rest: Arc<Rest>) -> Self {
        Self(Arc::new(App::new(rest)))
    }
}

#[async_trait]
impl Door for WakuDoor {
    fn name(&self) -> &'static str {
        "Waku"
    }

    async fn health(&self) -> Vec<ComponentHealth> {
        report::health(&self.0).await
    }

    fn facts(&self, metrics: &str) -> Facts {
        report::facts(&self.0, metrics)
    }

    fn register(&self, registry: &mut Registry) {
        self.0.rest.waku_metrics.register(registry);
        self.0.rest.metrics.register(registry);
    }

    fn routes(&self, listener: Listener, offer: Offer) -> Vec<Route> {
        let routes = match listener {
            Listener::Rest => routes(offer),
            Listener::Operate => operator_routes(offer),
            Listener::Public => Vec::new(),
        };
        routes.into_iter().map(|route| route.with_state(self.0.clone())).collect()
    }

    async fn close(&self) {
        self.0.rest.waku.close().await;
    }
}

fn routes(offer: Offer) -> Vec<Route<Arc<App>>> {
    let mut all = relay_routes();
    all.extend(filter_routes());
    all.extend(other_routes());
    all.extend(operator_routes(offer));
    all
}

/// The routes of the console, and those on which operators inspect and control the node.
fn operator_routes(offer: Offer) -> Vec<Route<Arc<App>>> {
    let mut all = history_routes();
    if offer.console {
        let search = Route::get("/console/v1/search", "messages by a prefix of their topic", search::search);
        all.push(search.with_audience(Audience::Operators));
    }
    if offer.admin {
        all.extend(peer_routes());
    }
    all
}

fn relay_routes() -> Vec<Route<Arc<App>>> {
    let (subscriptions, auto_subscriptions) = ("/relay/v1/subscriptions", "/relay/v1/auto/subscriptions");
    let (messages, auto_messages) = ("/relay/v1/messages/{pubsubTopic}", "/relay/v1/auto/messages");
    let auto_messages_of = "/relay/v1/auto/messages/{contentTopic}";
    vec![
        Route::post(messages, "publish a message", publish::publish),
        Route::get(messages, "messages since the last request", relay::messages),
        Route::post(subscriptions, "keep messages of pubsub topics", relay::subscribe),
        Route::delete(subscriptions, "stop keeping them", relay::unsubscribe),
        Route::post(auto_messages, "publish, sharded by content topic", publish::publish_auto),
        Route::get(auto_messages_of, "messages since the last request", relay::messages_auto),
        Route::post(auto_subscriptions, "keep messages of content topics", relay::subscribe_auto),
        Route::delete(auto_subscriptions, "stop keeping them", relay::unsubscribe_auto),
        Route::post("/lightpush/v3/message", "publish, answered in JSON", light_push::push),
        Route::post("/lightpush/v1/message", "the same, answered as text", light_push::push_v1),
    ]
}

fn history_routes() -> Vec<Route<Arc<App>>> {
    let live_of = "/relay/v1/messages/{pubsubTopic}/live";
    vec![
        Route::get("/live", "messages as they arrive, after a cursor", live::live).as_stream(),
        Route::get(live_of, "the same on one pubsub topic", live::live_of).as_stream(),
        Route::get("/store/v3/messages", "a page of history", store::get),
        Route::post("/store/v3/messages", "the same, with a JSON body", store::post),
        Route::get("/archive/v1/export", "a whole range as NDJSON or protobuf", export::export),
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
        Route::delete(subscriptions, "stop keeping them", filter::unsubscribe),
        Route::delete("/filter/v2/subscriptions/all", "stop keeping all", filter::unsubscribe_all),
        Route::get(ping, "whether there is a subscription", filter::ping),
        Route::get(messages, "messages since the last request", filter::messages),
        Route::get(messages_on, "the same on one pubsub topic", filter::messages_on),
    ]
}

fn other_routes() -> Vec<Route<Arc<App>>> {
    vec![
        Route::get("/info", "the server's addresses", about::info),
        Route::get("/debug/v1/info", "the same", about::info),
        Route::get("/version", "the server's version", about::version),
        Route::get("/debug/v1/version", "the same", about::version),
        Route::get("/openapi.json", "this API in OpenAPI", about::openapi),
    ]
}

fn peer_routes() -> Vec<Route<Arc<App>>> {
    let connected_on = "/admin/v1/peers/connected/on/{shardId}";
    let routes = vec![
        Route::get("/admin/v1/peers", "the peers", peers::peers),
        Route::post("/admin/v1/peers", "connect to peers", peers::connect),
        Route::get("/admin/v1/peer/{peerId}", "one peer", peers::peer),
        Route::get("/admin/v1/peers/stats", "how many peers there are", peers::stats),
        Route::get("/admin/v1/peers/service", "peers that offer services", peers::service_peers),
        Route::get("/admin/v1/peers/connected", "connected peers", peers::peers),
        Route::get(connected_on, "those on a shard", peers::connected_on),
        Route::get("/admin/v1/peers/relay", "relay peers by shard", peers::relay_peers),
        Route::get("/admin/v1/peers/relay/on/{shardId}", "those of a shard", peers::relay_peers_on),
        Route::get("/admin/v1/peers/mesh", "mesh peers by shard", peers::mesh_peers),
        Route::get("/admin/v1/peers/mesh/on/{shardId}", "those of a shard", peers::mesh_peers_on),
        Route::get("/admin/v1/filter/subscriptions", "peers' filters", peers::filter_subscriptions),
    ];
    routes.into_iter().map(|route| route.with_audience(Audience::Operators)).collect()
}

/// Feeds bytes to both parsers of store queries and checks that accepted queries are bounded.
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
