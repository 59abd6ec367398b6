//! `12/WAKU2-FILTER`: peers subscribe to content topics, and the node pushes messages to them as they arrive.
//!
//! A subscriber is a session with a subscription in the live hub, which puts matching messages into a bounded queue. A task per
//! subscriber pushes the messages of its queue in order, so that a slow subscriber does not delay others. A message is encoded
//! once for all subscribers. Messages that don't fit into a queue are dropped and counted: they are in the archive.
//!
//! The criteria of all subscribers take at most [`FilterConfig::criteria_bytes_max`], and their queues are bounded by the hub.

mod client;
mod metrics;
mod peer_locks;
mod push_streams;
mod pusher;
mod subscriber;
mod subscriptions;
mod table;

use std::{
    fmt,
    num::NonZero,
    sync::{Arc, Weak},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use libp2p::PeerId;
use parking_lot::RwLock;
use prost::Message;
use restante_core::{nonzero, settings};
use restante_sessions::{Ended, Live, hub::Interest};
use restante_waku_wire::{
    CONTENT_TOPIC_BYTES_MAX,
    rpc::{
        self,
        filter::{self, SubscribeRequest, SubscribeResponse, SubscribeType},
    },
};
use serde::{Deserialize, Serialize};
use tokio::{
    runtime::Handle,
    sync::broadcast::{self, error::RecvError},
    task::yield_now,
    time::{Instant, MissedTickBehavior, interval},
};
use tracing::debug;

pub use client::{FilterClient, FilterError, FilterPushReceiver, PushedMessage};
pub use metrics::FilterMetrics;
pub use subscriptions::{Criterion, Subscription};

use crate::{
    node::{Node, NodeEvent},
    service::{Answer, Service},
    validate::{Rules, check_pubsub_topic},
};
use metrics::{Pushed, Removed};
use peer_locks::{PeerLock, PeerLocks};
use push_streams::{Opener, PushStreams};
use pusher::Pusher;
use subscriber::Subscriber;
use subscriptions::{Added, Full, Subscriptions, criteria_of};
use table::Table;

/// The settings of the filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FilterConfig {
    /// The most subscribers. A new one replaces one that is not connected, or is refused.
    pub subscribers_max: NonZero<usize>,
    /// The most criteria (pairs of pubsub and content topic) of one subscriber.
    pub criteria_per_peer_max: NonZero<usize>,
    /// The most content topics in one request.
    pub content_topics_per_request_max: NonZero<usize>,
    /// The most bytes of the criteria of all subscribers; one subscriber may use a 64th part.
    pub criteria_bytes_max: NonZero<usize>,
    /// How long a subscription lasts after the last request or ping of its subscriber.
    pub ttl_seconds: NonZero<u64>,
    /// The most messages in the queue of one subscriber.
    pub queue_messages_max: NonZero<usize>,
    /// The most bytes in the queue of one subscriber.
    pub queue_bytes_max: NonZero<usize>,
    /// How long a push may take: a few messages, or one large one.
    #[serde(rename = "push_timeout_ms", with = "settings::milliseconds")]
    pub push_timeout: Duration,
    /// A subscriber is removed after this many failed pushes in a row.
    pub failures_max: NonZero<u32>,
}

impl Default for FilterConfig {
    /// nwaku's values, where it has such settings: 1,000 subscribers with 1,000 criteria each, 100 content topics in a request
    /// and five minutes.
    fn default() -> Self {
        Self {
            subscribers_max: nonzero!(1_000),
            criteria_per_peer_max: nonzero!(1_000),
            content_topics_per_request_max: nonzero!(100),
            criteria_bytes_max: nonzero!(64 << 20),
            ttl_seconds: nonzero!(300),
            queue_messages_max: nonzero!(1_024),
            queue_bytes_max: nonzero!(4 << 20),
            push_timeout: Duration::from_secs(10),
            failures_max: nonzero!(3),
        }
    }
}

/// The longest request: 100 content topics of more than a thousand bytes each.
const REQUEST_BYTES_MAX: usize = 128 << 10;
/// The bounds of the period in which expired subscriptions are removed: a tenth of their lifetime.
const SWEEP_PERIOD_MIN: Duration = Duration::from_secs(1);
const SWEEP_PERIOD_MAX: Duration = Duration::from_secs(10);
/// The request id in the answer to a request that can't be decoded, as in nwaku.
const NO_REQUEST_ID: &str = "N/A";

/// The filter of a service node.
pub struct FilterService {
    shared: Arc<Shared>,
}

struct Shared {
    subscriptions: RwLock<Subscriptions>,
    peer_locks: Arc<PeerLocks>,
    table: Table,
    config: FilterConfig,
    rules: Rules,
    metrics: FilterMetrics,
    opener: Arc<dyn Opener>,
    runtime: Handle,
}

impl fmt::Debug for FilterService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FilterService").field("config", &self.shared.config).finish_non_exhaustive()
    }
}

/// Why a request is refused.
enum Refusal {
    /// The request is wrong.
    Wrong(String),
    /// There is no such subscription.
    NotFound,
    /// A limit is reached.
    Full(String),
}

/// The action of a validated request, without duplicate criteria.
enum Action {
    Ping,
    Subscribe(Vec<Interest>),
    Unsubscribe(Vec<Interest>),
    UnsubscribeAll,
}

/// The peer of a request.
#[derive(Clone, Copy)]
struct Asker {
    peer: PeerId,
    /// Whether it was known to be connected when its request arrived.
    was_connected: bool,
    /// When it got its lock.
    now: Instant,
}

impl From<Full> for Refusal {
    fn from(full: Full) -> Self {
        Self::Full(full.to_string())
    }
}

impl FilterService {
    /// Starts a filter that pushes the messages of the hub of `live` by `node`. Its tasks run on the current runtime until it is
    /// dropped.
    pub fn start(
        config: FilterConfig,
        rules: Rules,
        node: Node,
        live: &Live,
        metrics: FilterMetrics,
    ) -> Arc<Self> {
        let events = node.events();
        Self::start_with(config, rules, (Arc::new(node), events), live, metrics)
    }

    fn start_with(
        config: FilterConfig,
        rules: Rules,
        (opener, events): (Arc<dyn Opener>, broadcast::Receiver<NodeEvent>),
        live: &Live,
        metrics: FilterMetrics,
    ) -> Arc<Self> {
        let losses = Arc::new(metrics.losses());
        let shared = Arc::new(Shared {
            subscriptions: RwLock::new(Subscriptions::new(config, live.hub.clone(), losses)),
            peer_locks: Arc::default(),
            table: Table::new(live),
            config,
            rules,
            metrics,
            opener,
            runtime: Handle::current(),
        });
        tokio::spawn(watch(Arc::downgrade(&shared), config, events));
        Arc::new(Self { shared })
    }

    /// All subscriptions, in the order of peer ids.
    pub fn subscriptions(&self) -> Vec<Subscription> {
        let mut all = self.shared.subscriptions.read().all();
        all.sort_unstable_by_key(|subscription| subscription.peer);
        all
    }
}

impl Drop for FilterService {
    /// Ends the pushers and their sessions. Subscribers whose sessions are still being opened are refused.
    fn drop(&mut self) {
        let mut subscriptions = self.shared.subscriptions.write();
        subscriptions.close();
        for subscriber in subscriptions.iter() {
            subscriber.subscription.leave();
            self.shared.table.close(subscriber, Ended::Left);
        }
    }
}

#[async_trait]
impl Service for FilterService {
    fn id(&self) -> &'static str {
        filter::SUBSCRIBE_ID
    }

    fn name(&self) -> &'static str {
        "filter"
    }

    fn request_bytes_max(&self) -> usize {
        REQUEST_BYTES_MAX
    }

    async fn answer(&self, peer: PeerId, request: Bytes) -> Answer {
        let Ok(mut request) = SubscribeRequest::decode(request) else {
            return respond(NO_REQUEST_ID.to_owned(), 400, "the request can't be decoded".to_owned());
        };
        let request_id = std::mem::take(&mut request.request_id);
        let action = self.shared.action_of(&request);
        // A decoded request with many empty topics is many times larger than its bytes. It is dropped before anything waits, so
        // that there is only one per worker.
        drop(request);
        let served = match action {
            Ok(action) => self.shared.serve(peer, action).await,
            Err(refusal) => Err(refusal),
        };
        let (status, text) = match served {
            Ok(()) => (200, "OK".to_owned()),
            Err(Refusal::Wrong(text)) => (400, text),
            Err(Refusal::NotFound) => (404, "there is no such subscription".to_owned()),
            Err(Refusal::Full(text)) => (503, text),
        };
        respond(request_id, status, text)
    }

    fn answer_too_often(&self, request: Bytes) -> Answer {
        let request_id = SubscribeRequest::decode(request).map(|request| request.request_id);
        let request_id = request_id.unwrap_or_else(|_| NO_REQUEST_ID.to_owned());
        respond(request_id, 429, "too many requests: try again later".to_owned())
    }
}

fn respond(request_id: String, status: u32, text: String) -> Answer {
    let response = SubscribeResponse { request_id, status_code: status, status_desc: Some(text) };
    Answer::new(status, rpc::frame(&response))
}

impl Shared {
    fn action_of(&self, request: &SubscribeRequest) -> Result<Action, Refusal> {
        let kind = SubscribeType::try_from(request.subscribe_type);
        let kind = kind.map_err(|_| Refusal::Wrong("the type of the request is unknown".to_owned()))?;
        Ok(match kind {
            SubscribeType::Ping => Action::Ping,
            SubscribeType::UnsubscribeAll => Action::UnsubscribeAll,
            SubscribeType::Unsubscribe => Action::Unsubscribe(self.criteria_of(request)?),
            SubscribeType::Subscribe => {
                let criteria = self.criteria_of(request)?;
                // Messages of other topics never arrive, and the client would not learn why.
                let pubsub_topic = request.pubsub_topic.as_deref().unwrap_or_default();
                check_pubsub_topic(pubsub_topic, &self.rules)
                    .map_err(|invalid| Refusal::Wrong(invalid.to_string()))?;
                Action::Subscribe(criteria)
            }
        })
    }

    /// Checks what every request with topics must contain, and returns its criteria.
    fn criteria_of(&self, request: &SubscribeRequest) -> Result<Vec<Interest>, Refusal> {
        let wrong = |text: &str| Err(Refusal::Wrong(text.to_owned()));
        let Some(pubsub_topic) = request.pubsub_topic.as_deref().filter(|topic| !topic.is_empty()) else {
            return wrong("a pubsub topic is needed");
        };
        let content_topics = &request.content_topics;
        if content_topics.is_empty() {
            return wrong("at least one content topic is needed");
        }
        let max = self.config.content_topics_per_request_max.get();
        if content_topics.len() > max {
            return wrong(&format!("no more than {max} content topics may be named at once"));
        }
        let fits = |topic: &String| (1..=CONTENT_TOPIC_BYTES_MAX).contains(&topic.len());
        if !content_topics.iter().all(fits) {
            return wrong(&format!("a content topic has 1 to {CONTENT_TOPIC_BYTES_MAX} bytes"));
        }
        Ok(criteria_of(pubsub_topic, content_topics))
    }

    async fn serve(self: &Arc<Self>, peer: PeerId, action: Action) -> Result<(), Refusal> {
        let was_connected = self.opener.is_connected(peer);
        let lock = self.peer_locks.lock(peer).await;
        let now = Instant::now();
        self.drop_expired(peer, now);
        self.drop_closed(peer);
        match action {
            Action::Ping => self.ping(peer, now),
            Action::Subscribe(criteria) => {
                self.subscribe(lock, Asker { peer, was_connected, now }, criteria).await
            }
            Action::Unsubscribe(criteria) => self.unsubscribe(peer, &criteria, now).await,
            Action::UnsubscribeAll => self.unsubscribe_all(peer),
        }
    }

    /// A peer that sends a request is connected, even if its event has not arrived yet.
    fn ping(&self, peer: PeerId, now: Instant) -> Result<(), Refusal> {
        let subscriber = self.subscriptions.write().refresh(peer, now);
        subscriber.ok_or(Refusal::NotFound)?.peer_connected();
        Ok(())
    }

    async fn subscribe(
        self: &Arc<Self>,
        lock: PeerLock,
        asker: Asker,
        criteria: Vec<Interest>,
    ) -> Result<(), Refusal> {
        let known = self.subscriptions.write().add(asker.peer, &criteria, asker.now)?;
        if let Some(subscriber) = known {
            subscriber.peer_connected();
            self.update_metrics();
            self.table.note_criteria(&subscriber).await;
            return Ok(());
        }
        // A separate task: a session that is being opened must be inserted or closed, even when the request is cancelled.
        let shared = self.clone();
        let inserting = self.runtime.spawn(async move {
            let inserted = shared.insert(asker, criteria).await;
            drop(lock);
            inserted
        });
        inserting.await.unwrap_or_else(|_| Err(Refusal::Full("the server was interrupted".to_owned())))
    }

    /// Opens the session of a new subscriber and inserts it. The caller holds the peer's lock.
    async fn insert(self: &Arc<Self>, asker: Asker, criteria: Vec<Interest>) -> Result<(), Refusal> {
        let Asker { peer, was_connected, now } = asker;
        // Checked before a session is opened, and again when the subscriber is inserted.
        self.subscriptions.read().check_new_subscriber(&criteria)?;
        let id = self.table.open(peer, criteria.len(), &*self.opener).await;
        let inserted = self.subscriptions.write().insert(id, peer, &criteria, now);
        let Added { subscriber, replaced } = match inserted {
            Ok(added) => added,
            Err(full) => {
                self.table.close_unused(id).await;
                return Err(full.into());
            }
        };
        self.update_metrics();
        if let Some(replaced) = replaced {
            self.close_subscriber(&replaced, Removed::Replaced);
        }
        // The session may have been closed before it had its subscription.
        if let Some(why) = subscriber.subscription.ended() {
            self.remove_if_present(&subscriber, Removed::Closed);
            return Err(Refusal::Full(why.text().to_owned()));
        }
        // If the peer disconnected meanwhile, the event found no subscriber.
        if was_connected && !self.opener.is_connected(peer) {
            self.metrics.pushed(Pushed::Away, subscriber.peer_disconnected());
        }
        let streams = PushStreams::new(peer, self.opener.clone(), self.config.push_timeout);
        self.runtime.spawn(Pusher::new(self, subscriber, streams).run());
        Ok(())
    }

    async fn unsubscribe(&self, peer: PeerId, criteria: &[Interest], now: Instant) -> Result<(), Refusal> {
        let removed = self.subscriptions.write().remove_criteria(peer, criteria, now);
        let (subscriber, is_over) = removed.ok_or(Refusal::NotFound)?;
        self.update_metrics();
        if is_over {
            self.close_subscriber(&subscriber, Removed::Unsubscribed);
        } else {
            self.table.note_criteria(&subscriber).await;
        }
        Ok(())
    }

    fn unsubscribe_all(&self, peer: PeerId) -> Result<(), Refusal> {
        let removed = self.subscriptions.write().remove(peer);
        self.close_subscriber(&removed.ok_or(Refusal::NotFound)?, Removed::Unsubscribed);
        Ok(())
    }

    /// Removes expired subscriptions one by one: removing all topics of many subscribers from the hub takes long.
    async fn sweep(&self, now: Instant) {
        let expired = self.subscriptions.read().expired(now);
        for peer in expired {
            self.drop_expired(peer, now);
            yield_now().await;
        }
    }

    /// Removes a peer's expired subscription: the sweeper may be late.
    fn drop_expired(&self, peer: PeerId, now: Instant) {
        let expired = self.subscriptions.write().expire(peer, now);
        if let Some(subscriber) = expired {
            self.close_subscriber(&subscriber, Removed::Expired);
        }
    }

    /// Removes a subscriber whose session was closed: the pusher may be late. Otherwise its requests would succeed.
    fn drop_closed(&self, peer: PeerId) {
        if let Some(subscriber) = self.subscriber(peer)
            && subscriber.subscription.ended().is_some()
        {
            self.remove_if_present(&subscriber, Removed::Closed);
        }
    }

    /// Removes a subscriber unless it was removed already.
    fn remove_if_present(&self, subscriber: &Arc<Subscriber>, reason: Removed) {
        let mut subscriptions = self.subscriptions.write();
        let is_present =
            subscriptions.get(subscriber.peer).is_some_and(|present| Arc::ptr_eq(present, subscriber));
        if is_present {
            subscriptions.remove(subscriber.peer);
            drop(subscriptions);
            self.close_subscriber(subscriber, reason);
        }
    }

    /// Closes the subscription and the session of a subscriber that was removed.
    fn close_subscriber(&self, subscriber: &Arc<Subscriber>, reason: Removed) {
        debug!(peer = %subscriber.peer, ?reason, "a filter subscriber was removed");
        self.metrics.pushed(Pushed::Dropped, subscriber.subscription.leave());
        self.metrics.removed(reason);
        self.update_metrics();
        if let Some(why) = reason.ended() {
            self.table.close(subscriber, why);
        }
    }

    fn update_metrics(&self) {
        let subscriptions = self.subscriptions.read();
        self.metrics.subscribers.set(subscriptions.subscribers() as i64);
        self.metrics.criteria.set(subscriptions.criteria() as i64);
    }

    fn subscriber(&self, peer: PeerId) -> Option<Arc<Subscriber>> {
        self.subscriptions.read().get(peer).cloned()
    }

    /// A subscriber that disconnects keeps its subscription until it expires, so that it can reconnect.
    fn note_event(&self, event: &NodeEvent) {
        match event {
            NodeEvent::Connected { peer, .. } => {
                if let Some(subscriber) = self.subscriber(*peer) {
                    subscriber.peer_connected();
                }
            }
            NodeEvent::Gone { peer } => {
                if let Some(subscriber) = self.subscriber(*peer) {
                    self.metrics.pushed(Pushed::Away, subscriber.peer_disconnected());
                }
            }
            NodeEvent::Identified { .. } => {}
        }
    }

    /// Checks whether each subscriber is connected, after events were missed.
    fn check_all(&self) {
        for subscriber in self.subscriptions.read().iter() {
            match (self.opener.is_connected(subscriber.peer), subscriber.is_away()) {
                (true, true) => subscriber.peer_connected(),
                (false, false) => self.metrics.pushed(Pushed::Away, subscriber.peer_disconnected()),
                _ => {}
            }
        }
    }
}

/// Removes expired subscriptions periodically, and handles the events of the node.
async fn watch(shared: Weak<Shared>, config: FilterConfig, mut events: broadcast::Receiver<NodeEvent>) {
    let period = Duration::from_secs(config.ttl_seconds.get() / 10).clamp(SWEEP_PERIOD_MIN, SWEEP_PERIOD_MAX);
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let event = tokio::select! {
            _ = ticks.tick() => None,
            event = events.recv() => Some(event),
        };
        let Some(shared) = shared.upgrade() else { return };
        match event {
            None => shared.sweep(Instant::now()).await,
            Some(Ok(event)) => shared.note_event(&event),
            Some(Err(RecvError::Lagged(_))) => shared.check_all(),
            Some(Err(RecvError::Closed)) => return, // the node has ended
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
