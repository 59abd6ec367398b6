//! The REST door against memory archives, without and with a socket.

mod about;
mod cache;
mod console;
mod cross_site;
mod export;
mod filter;
mod json;
mod light_push;
mod memory;
mod openapi;
mod peers;
mod publish;
mod relay;
mod remote;
mod serve;
mod sessions;
mod store;
mod wrong;

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::atomic::Ordering,
};

use async_trait::async_trait;
use axum::{
    Router,
    body::Body,
    http::{Request, header},
    response::Response,
};
use futures_util::FutureExt;
use http_body_util::BodyExt;
use libp2p::{Multiaddr, identity::Keypair};
use prometheus_client::registry::Registry;
use restante_archive::{Appended, Config, Error, Message, Opened, Page, Upkeep, open};
use restante_core::{ErrorKind, ManualClock, Timestamp, nonzero};
use restante_http::{Front, HttpMetrics, RefusalFormat, Token};
use restante_net::NetMetrics;
use restante_operate::{Operate, Parts, RoleCheck};
use restante_sessions::Live;
use restante_waku_wire::bloom::content_topic_bits;
use serde_json::Value;
use tower::ServiceExt;

use super::*;
use crate::{WakuConfig, WakuMetrics, live::Listener, node::NodeConfig};

pub(super) const NOW: Timestamp = Timestamp::from_seconds(1_700_000_000);
/// The address of the door, which does not listen in most tests.
pub(super) const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8645);
pub(super) const PUBSUB: &str = "/waku/2/rs/16/32";
pub(super) const PUBLISH: &str = "/relay/v1/messages/%2Fwaku%2F2%2Frs%2F16%2F32";
pub(super) const CHAT: &str = "/toychat/2/huilong/proto";

/// A door with its own archive.
pub(super) struct Door {
    pub(super) archive: Arc<dyn Archive>,
    pub(super) clock: Arc<ManualClock>,
    pub(super) router: Router,
    pub(super) metrics: RestMetrics,
    pub(super) net: NetMetrics,
    pub(super) waku: Waku,
    pub(super) cache: Arc<MessageCache>,
    pub(super) rest: Arc<Rest>,
    pub(super) http: HttpMetrics,
    pub(super) parts: Parts,
}

pub(super) async fn memory() -> Opened {
    let config = Config { topic_bits: content_topic_bits, ..Config::new("memory:".parse().unwrap()) };
    open(config).await.unwrap()
}

pub(super) async fn door() -> Door {
    door_with(RestConfig::default()).await
}

pub(super) async fn door_with(config: RestConfig) -> Door {
    let opened = memory().await;
    door_over(opened.archive.clone(), opened, config)
}

/// A door that accepts only what the rules allow.
pub(super) async fn door_with_rules(rules: Rules) -> Door {
    let opened = memory().await;
    let waku = WakuConfig { rules, ..WakuConfig::default() };
    start_door(opened.archive.clone(), opened.upkeep, RestConfig::default(), waku).await
}

/// A door with a node that listens on loopback and relays some topics.
pub(super) async fn door_with_node(config: RestConfig, topics: &[&str]) -> Door {
    let opened = memory().await;
    start_door(opened.archive.clone(), opened.upkeep, config, waku_with_node(topics)).await
}

pub(super) fn waku_with_node(topics: &[&str]) -> WakuConfig {
    let node = NodeConfig {
        listen: vec!["/ip4/127.0.0.1/tcp/0".parse().unwrap()],
        relay: Some(topics.iter().map(ToString::to_string).collect()),
        agent: "restante/9.9.9".to_owned(),
        ..NodeConfig::new(Keypair::generate_secp256k1())
    };
    WakuConfig { node: Some(node), ..WakuConfig::default() }
}

pub(super) fn door_over(archive: Arc<dyn Archive>, opened: Opened, config: RestConfig) -> Door {
    let started = start_door(archive, opened.upkeep, config, WakuConfig::default());
    started.now_or_never().expect("without a node there is nothing to wait for")
}

pub(super) async fn start_door(
    archive: Arc<dyn Archive>,
    upkeep: Arc<dyn Upkeep>,
    config: RestConfig,
    waku: WakuConfig,
) -> Door {
    start_door_with(crate::live::standalone().await.unwrap(), archive, upkeep, config, waku).await
}

/// The same with a session table and a hub.
pub(super) async fn start_door_with(
    live: Live,
    archive: Arc<dyn Archive>,
    upkeep: Arc<dyn Upkeep>,
    config: RestConfig,
    waku: WakuConfig,
) -> Door {
    let clock = Arc::new(ManualClock::new(NOW));
    let metrics = RestMetrics::default();
    let cache = Arc::new(MessageCache::new(&config, &metrics));
    let listeners: Vec<Arc<dyn Listener>> = vec![cache.clone()];
    let waku_metrics = WakuMetrics::default();
    let waku =
        Waku::start(waku, archive.clone(), clock.clone(), live, listeners, &waku_metrics).await.unwrap();
    let timeout = Duration::from_millis(config.request_timeout_ms.get());
    let health = Arc::new(ArchiveHealth::new(archive.clone(), upkeep, timeout));
    let (memory, permits) = (Arc::<MemoryBudget>::default(), Permits::new(config.requests_max.get()));
    let rest = Rest {
        waku: waku.clone(),
        cache: cache.clone(),
        archive: archive.clone(),
        health: health.clone(),
        clock: clock.clone(),
        config,
        operators: Arc::new(OperatorGuard::new(None, LOOPBACK)),
        metrics: metrics.clone(),
        waku_metrics,
        memory: memory.clone(),
        permits: permits.clone(),
        version: "9.9.9",
        listen_addresses: vec!["/ip4/127.0.0.1/tcp/8645/http".to_owned()],
    };
    let parts = Parts {
        doors: Vec::new(),
        roles: Vec::new(),
        archive: Some(health),
        live: waku.live.clone(),
        addresses: vec![(restante_operate::Listener::Rest, "/ip4/127.0.0.1/tcp/8645/http".to_owned())],
        routes: Vec::new(),
        facts: Vec::new(),
        metrics_text: Arc::new(|| "restante_up 1\n# EOF\n".to_owned()),
        set_log_level: Some(Arc::new(|level| match level {
            "debug" => Ok(()),
            _ => Err("is no level of this test".to_owned()),
        })),
        version: "9.9.9",
        clock: clock.clone(),
        memory,
        permits,
        request_timeout: timeout,
    };
    let (rest, http) = (Arc::new(rest), HttpMetrics::default());
    let router = router_of(&rest, &parts, &http);
    Door { archive, clock, router, metrics, net: NetMetrics::default(), waku, cache, rest, http, parts }
}

/// All routes of the REST listener.
fn router_of(rest: &Arc<Rest>, parts: &Parts, http: &HttpMetrics) -> Router {
    let front = Front {
        metrics: http.of("rest"),
        memory: rest.memory.clone(),
        operators: rest.operators.clone(),
        accounts: None,
        sites: rest.config.sites(),
        format: RefusalFormat::Text,
    };
    front.router(routes_of(rest, parts))
}

pub(super) fn routes_of(rest: &Arc<Rest>, parts: &Parts) -> Vec<Route> {
    let door = Arc::new(WakuDoor::new(rest.clone()));
    let operate = Operate::new(Parts { doors: vec![door], ..parts.clone() });
    operate.routes(restante_operate::Listener::Rest, rest.offer())
}

/// A topic, escaped for a path.
pub(super) fn escaped(topic: &str) -> String {
    topic.replace('/', "%2F")
}

/// Waits until a condition holds, for as long as a busy machine may need.
pub(super) async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    for _ in 0..3_000 {
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what}: not within half a minute");
}

/// A completely read answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) content_type: String,
    pub(super) head: axum::http::HeaderMap,
    pub(super) body: Vec<u8>,
}

impl Answer {
    pub(super) async fn of(response: Response) -> Self {
        let (head, body) = response.into_parts();
        let content_type =
            head.headers.get(header::CONTENT_TYPE).map(|value| value.to_str().unwrap().to_owned());
        Self {
            status: head.status.as_u16(),
            content_type: content_type.unwrap_or_default(),
            head: head.headers,
            body: body.collect().await.unwrap().to_bytes().to_vec(),
        }
    }

    pub(super) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(super) fn json(&self) -> Value {
        assert_eq!((self.status, &*self.content_type), (200, "application/json"), "{}", self.text());
        serde_json::from_slice(&self.body).unwrap()
    }

    /// The status and the text, which must have the content type of a text.
    pub(super) fn refusal(&self) -> (u16, &str) {
        assert_eq!(self.content_type, "text/plain; charset=utf-8");
        (self.status, self.text())
    }
}

impl Door {
    /// The same door with changes.
    fn with(self, change: impl FnOnce(&mut Rest, &mut Parts)) -> Self {
        let (mut rest, mut parts) = ((*self.rest).clone(), self.parts.clone());
        change(&mut rest, &mut parts);
        let rest = Arc::new(rest);
        Self { router: router_of(&rest, &parts, &self.http), rest, parts, ..self }
    }

    /// The same door with other operators.
    pub(super) fn with_operators(self, operators: OperatorGuard) -> Self {
        self.with(|rest, _| rest.operators = Arc::new(operators))
    }

    /// The same door of a server with further roles.
    pub(super) fn with_roles(self, roles: Vec<RoleCheck>) -> Self {
        self.with(|_, parts| parts.roles = roles)
    }

    /// The same door of a server with further routes for operators.
    pub(super) fn with_operator_routes(self, routes: Vec<Route>) -> Self {
        self.with(|_, parts| parts.routes = routes)
    }

    /// The same door with other memory for answers.
    pub(super) fn with_memory(self, memory: &Arc<MemoryBudget>) -> Self {
        self.with(|rest, parts| {
            rest.memory = memory.clone();
            parts.memory = memory.clone();
        })
    }

    pub(super) async fn send(&self, method: &str, path: &str, body: impl Into<Body>) -> Answer {
        let request = Request::builder().method(method).uri(path).body(body.into()).unwrap();
        Answer::of(self.router.clone().oneshot(request).await.unwrap()).await
    }

    pub(super) async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, Body::empty()).await
    }

    pub(super) async fn post(&self, path: &str, json: impl ToString) -> Answer {
        self.send("POST", path, json.to_string()).await
    }

    pub(super) async fn delete(&self, path: &str, json: impl ToString) -> Answer {
        self.send("DELETE", path, json.to_string()).await
    }

    /// Publishes a payload as a message of a content topic on a pubsub topic.
    pub(super) async fn publish_on(&self, pubsub_topic: &str, content_topic: &str, payload: &str) {
        let message = serde_json::json!({
            "payload": base64_simd::STANDARD.encode_to_string(payload), "contentTopic": content_topic,
        });
        let answer = self.post(&format!("/relay/v1/messages/{}", escaped(pubsub_topic)), message).await;
        assert_eq!(answer.refusal(), (200, "OK"));
    }

    /// Publishes a payload as a message of the chat topic, some seconds after now.
    pub(super) async fn publish(&self, payload: &str, seconds: i64) {
        let message = serde_json::json!({
            "payload": base64_simd::STANDARD.encode_to_string(payload),
            "contentTopic": CHAT,
            "timestamp": NOW.plus_seconds(seconds).nanos(),
        });
        let answer = self.post(PUBLISH, message).await;
        assert_eq!(answer.refusal(), (200, "OK"));
    }

    /// Connects the door's node to another's.
    pub(super) async fn connect_to(&self, other: &Self) {
        let node = self.waku.node.as_ref().unwrap();
        node.connect(other.address()).await.unwrap();
    }

    /// An address of the door's node.
    pub(super) fn address(&self) -> Multiaddr {
        self.waku.node.as_ref().unwrap().addresses().remove(0)
    }

    pub(super) fn metrics_text(&self) -> String {
        let mut registry = Registry::default();
        self.metrics.register(&mut registry);
        self.http.register(&mut registry);
        self.net.register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        text
    }
}

/// The payloads of an array of messages, as texts.
pub(super) fn fetched(answer: &Answer) -> Vec<String> {
    let json = answer.json();
    let payload = |message: &Value| message["payload"].as_str().unwrap().to_owned();
    let decode =
        |text: String| String::from_utf8(base64_simd::STANDARD.decode_to_vec(text).unwrap()).unwrap();
    json.as_array().unwrap().iter().map(payload).map(decode).collect()
}

/// The payloads of a store answer, as texts.
pub(super) fn payloads(answer: &Value) -> Vec<String> {
    let messages = answer["messages"].as_array().unwrap();
    let payload = |message: &Value| message["message"]["payload"].as_str().unwrap().to_owned();
    let decode =
        |text: String| String::from_utf8(base64_simd::STANDARD.decode_to_vec(text).unwrap()).unwrap();
    messages.iter().map(payload).map(decode).collect()
}

/// An archive that fails in a given way.
pub(super) struct Failing {
    pub(super) inner: Arc<dyn Archive>,
    /// Queries that succeed before the first that fails.
    pub(super) queries: std::sync::atomic::AtomicUsize,
    pub(super) kind: ErrorKind,
}

impl Failing {
    pub(super) fn new(inner: Arc<dyn Archive>, queries: usize, kind: ErrorKind) -> Self {
        Self { inner, queries: queries.into(), kind }
    }

    fn error(&self) -> Error {
        Error::new(self.kind, "can't read /secret/00017.log")
    }
}

#[async_trait]
impl Archive for Failing {
    async fn append(&self, _messages: Vec<Message>) -> Result<Vec<Appended>, Error> {
        Err(self.error())
    }

    async fn query(&self, query: &restante_archive::Query) -> Result<Page, Error> {
        let left = self.queries.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if left.is_ok() { self.inner.query(query).await } else { Err(self.error()) }
    }
}

/// An archive that answers this many queries and then none, and never an append.
pub(super) struct SilentAfter {
    pub(super) inner: Arc<dyn Archive>,
    pub(super) queries: std::sync::atomic::AtomicUsize,
}

#[async_trait]
impl Archive for SilentAfter {
    async fn append(&self, _messages: Vec<Message>) -> Result<Vec<Appended>, Error> {
        std::future::pending().await
    }

    async fn query(&self, query: &restante_archive::Query) -> Result<Page, Error> {
        let left = self.queries.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if left.is_ok() { self.inner.query(query).await } else { std::future::pending().await }
    }
}

/// A door over an archive that never answers.
pub(super) async fn silent_door(config: RestConfig) -> Door {
    let opened = memory().await;
    let silent = SilentAfter { inner: opened.archive.clone(), queries: 0.into() };
    door_over(Arc::new(silent), opened, config)
}

/// A message of the chat topic, valid or not, for archives that are filled without the door.
pub(super) fn archived(number: u64, body: impl Into<bytes::Bytes>) -> Message {
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&number.to_be_bytes());
    Message {
        message_hash: restante_core::MessageHash(hash),
        channel: PUBSUB.into(),
        topic: CHAT.into(),
        timestamp: NOW.plus_seconds(number as i64),
        body: body.into(),
    }
}
