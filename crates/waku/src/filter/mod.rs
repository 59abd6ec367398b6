//! `12/WAKU2-FILTER`: subscribers say which content topics they want, and have messages pushed to them as they arrive.
//!
//! A message that arrives is looked up in an index by its topics, encoded once, and put into the bounded queue of each
//! subscriber that wants it. A task per subscriber pushes what is in its queue, in order, so that one who reads slowly or
//! not at all holds up nobody else. What a queue has no room for is dropped and counted: it is in the archive.
//!
//! All subscribers together take at most [`FilterConfig::criteria_bytes_max`] for what they want and
//! [`FilterConfig::queued_bytes_max`] for what waits to be pushed, and some KiB each.

mod client;
mod metrics;
mod outbox;
mod pusher;
mod recent;
mod subscriptions;
mod way;

use std::{
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use libp2p::PeerId;
use parking_lot::{Mutex, RwLock};
use prost::Message;
use restante_waku_wire::{
    CONTENT_TOPIC_BYTES_MAX,
    rpc::{
        self,
        filter::{self, SubscribeRequest, SubscribeResponse, SubscribeType},
    },
};
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
    live::{Arrival, Listener},
    node::{Node, NodeEvent},
    service::{Answer, Service},
    validate::{Rules, check_pubsub_topic},
};
use metrics::{Pushed, Removed};
use outbox::{Offered, Outbox, Room};
use pusher::Pusher;
use recent::Recent;
use subscriptions::Subscriptions;
use way::{Opener, Way};

/// The settings of the filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterConfig {
    /// Subscribers at once. One more takes the place of one that is not connected, or is refused.
    pub subscribers_max: usize,
    /// Pairs of pubsub and content topic that one subscriber may want.
    pub criteria_per_peer_max: usize,
    /// Content topics that one request may name.
    pub content_topics_per_request_max: usize,
    /// Bytes that what all subscribers want may take; one of them may take a 64th part.
    pub criteria_bytes_max: usize,
    /// How long a subscription lasts from the last request or ping of its subscriber.
    pub ttl_seconds: u64,
    /// Messages that wait for one subscriber.
    pub queue_messages_max: usize,
    /// Bytes of messages that wait for one subscriber.
    pub queue_bytes_max: usize,
    /// Bytes of messages that wait for all subscribers, each message counted once.
    pub queued_bytes_max: usize,
    /// How long a push may take: a few messages, or one large one.
    pub push_timeout: Duration,
    /// After so many failed pushes in a row, with no message that arrived between them, a subscriber is removed.
    pub failures_max: u32,
}

impl Default for FilterConfig {
    /// As nwaku's, where it has such settings: 1,000 subscribers with 1,000 criteria each, 100 content topics in a request
    /// and five minutes.
    fn default() -> Self {
        Self {
            subscribers_max: 1_000,
            criteria_per_peer_max: 1_000,
            content_topics_per_request_max: 100,
            criteria_bytes_max: 64 << 20,
            ttl_seconds: 300,
            queue_messages_max: 1_024,
            queue_bytes_max: 4 << 20,
            queued_bytes_max: 64 << 20,
            push_timeout: Duration::from_secs(10),
            failures_max: 3,
        }
    }
}

/// The longest request: 100 content topics of more than a thousand bytes each.
const REQUEST_BYTES_MAX: usize = 128 << 10;
/// How often expired subscriptions are looked for: ten times in their life, within these.
const SWEEP_PERIOD_MIN: Duration = Duration::from_secs(1);
const SWEEP_PERIOD_MAX: Duration = Duration::from_secs(10);
/// What stands for a request's id when the request can't be read, as in nwaku's answers.
const NO_REQUEST_ID: &str = "N/A";

/// The filter of a service node.
pub struct FilterService {
    shared: Arc<Shared>,
}

struct Shared {
    table: RwLock<Subscriptions>,
    recent: Mutex<Recent>,
    room: Arc<Room>,
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

impl FilterService {
    /// A filter that pushes by `node`. Its tasks run on the present runtime until it is dropped.
    pub fn start(config: FilterConfig, rules: Rules, node: Node, metrics: FilterMetrics) -> Arc<Self> {
        let events = node.events();
        Self::start_over(config, rules, Arc::new(node), events, metrics)
    }

    fn start_over(
        config: FilterConfig,
        rules: Rules,
        opener: Arc<dyn Opener>,
        events: broadcast::Receiver<NodeEvent>,
        metrics: FilterMetrics,
    ) -> Arc<Self> {
        let room = Room::new(config.queued_bytes_max, metrics.queued_bytes.clone());
        let shared = Arc::new(Shared {
            table: RwLock::new(Subscriptions::new(config, room.clone())),
            recent: Mutex::new(Recent::new(Instant::now())),
            room,
            config,
            rules,
            metrics,
            opener,
            runtime: Handle::current(),
        });
        tokio::spawn(watch(Arc::downgrade(&shared), config, events));
        Arc::new(Self { shared })
    }

    /// Who wants what, in the order of peer ids.
    pub fn subscriptions(&self) -> Vec<Subscription> {
        let mut all = self.shared.table.read().all();
        all.sort_unstable_by_key(|subscription| subscription.peer);
        for subscription in &mut all {
            subscription.criteria.sort_unstable();
        }
        all
    }
}

impl Drop for FilterService {
    /// Ends the pushers.
    fn drop(&mut self) {
        for outbox in self.shared.table.read().outboxes() {
            outbox.close();
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
        // Many empty topics take many times their bytes while they are decoded, but nothing waits here, so that no more
        // than one request per worker is decoded at a time.
        let Ok(request) = SubscribeRequest::decode(request) else {
            return respond(NO_REQUEST_ID.to_owned(), 400, "the request can't be read".to_owned());
        };
        let served = self.shared.serve(peer, &request, Instant::now());
        let (status, text) = match served {
            Ok(()) => (200, "OK".to_owned()),
            Err(Refusal::Wrong(text)) => (400, text),
            Err(Refusal::NotFound) => (404, "there is no such subscription".to_owned()),
            Err(Refusal::Full(text)) => (503, text),
        };
        respond(request.request_id, status, text)
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

impl Listener for FilterService {
    fn hear(&self, arrival: &Arrival) {
        self.shared.deliver(arrival, Instant::now());
    }

    fn is_wanted(&self, arrival: &Arrival) -> bool {
        self.shared.table.read().wanting(&arrival.pubsub_topic, &arrival.content_topic).is_some()
    }
}

impl Shared {
    fn serve(
        self: &Arc<Self>,
        peer: PeerId,
        request: &SubscribeRequest,
        now: Instant,
    ) -> Result<(), Refusal> {
        let kind = SubscribeType::try_from(request.subscribe_type);
        let kind = kind.map_err(|_| Refusal::Wrong("the type of the request is not known".to_owned()))?;
        self.drop_expired(peer, now);
        match kind {
            SubscribeType::Ping => self.ping(peer, now),
            SubscribeType::Subscribe => self.subscribe(peer, request, now),
            SubscribeType::Unsubscribe => self.unsubscribe(peer, request, now),
            SubscribeType::UnsubscribeAll => self.unsubscribe_all(peer),
        }
    }

    /// Whoever asks is there, even if the news of it has not come yet.
    fn ping(&self, peer: PeerId, now: Instant) -> Result<(), Refusal> {
        let mut table = self.table.write();
        if !table.refresh(peer, now) {
            return Err(Refusal::NotFound);
        }
        if let Some(outbox) = table.outbox(peer) {
            outbox.peer_came();
        }
        Ok(())
    }

    fn subscribe(
        self: &Arc<Self>,
        peer: PeerId,
        request: &SubscribeRequest,
        now: Instant,
    ) -> Result<(), Refusal> {
        let pubsub_topic = self.check_topics(request)?;
        // Of other topics nothing would ever come, and the client would not learn why.
        check_pubsub_topic(pubsub_topic, &self.rules)
            .map_err(|invalid| Refusal::Wrong(invalid.to_string()))?;
        let mut table = self.table.write();
        let subscribed = table.subscribe(peer, pubsub_topic, &request.content_topics, now);
        let subscribed = subscribed.map_err(|full| Refusal::Full(full.to_string()))?;
        if let Some(outbox) = table.outbox(peer) {
            outbox.peer_came();
        }
        self.show(&table);
        drop(table);
        if let Some(replaced) = subscribed.replaced {
            self.dismiss(&replaced, Removed::Replaced);
        }
        if let Some(outbox) = subscribed.new {
            let way = Way::new(peer, self.opener.clone(), self.config.push_timeout);
            self.runtime.spawn(Pusher::new(self, outbox, way).run());
        }
        Ok(())
    }

    fn unsubscribe(&self, peer: PeerId, request: &SubscribeRequest, now: Instant) -> Result<(), Refusal> {
        let pubsub_topic = self.check_topics(request)?;
        let mut table = self.table.write();
        let unsubscribed = table.unsubscribe(peer, pubsub_topic, &request.content_topics, now);
        self.show(&table);
        drop(table);
        if let Some(outbox) = unsubscribed.ok_or(Refusal::NotFound)? {
            self.dismiss(&outbox, Removed::Unsubscribed);
        }
        Ok(())
    }

    fn unsubscribe_all(&self, peer: PeerId) -> Result<(), Refusal> {
        let removed = self.table.write().remove(peer);
        let outbox = removed.ok_or(Refusal::NotFound)?;
        self.dismiss(&outbox, Removed::Unsubscribed);
        Ok(())
    }

    /// Checks what every request with topics must have, and returns its pubsub topic.
    fn check_topics<'a>(&self, request: &'a SubscribeRequest) -> Result<&'a str, Refusal> {
        let wrong = |text: &str| Err(Refusal::Wrong(text.to_owned()));
        let Some(pubsub_topic) = request.pubsub_topic.as_deref().filter(|topic| !topic.is_empty()) else {
            return wrong("a pubsub topic is needed");
        };
        let content_topics = &request.content_topics;
        if content_topics.is_empty() {
            return wrong("at least one content topic is needed");
        }
        let max = self.config.content_topics_per_request_max;
        if content_topics.len() > max {
            return wrong(&format!("no more than {max} content topics may be named at once"));
        }
        let fits = |topic: &String| (1..=CONTENT_TOPIC_BYTES_MAX).contains(&topic.len());
        if !content_topics.iter().all(fits) {
            return wrong(&format!("a content topic has 1 to {CONTENT_TOPIC_BYTES_MAX} bytes"));
        }
        Ok(pubsub_topic)
    }

    /// Queues a message for those who want it.
    fn deliver(&self, arrival: &Arrival, now: Instant) {
        let table = self.table.read();
        let Some(outboxes) = table.wanting(&arrival.pubsub_topic, &arrival.content_topic) else { return };
        // nwaku's rule: a message that comes by relay and by lightpush, or twice by one of them, is pushed once.
        if !self.recent.lock().note(arrival, now) {
            return;
        }
        let Some(frame) = self.room.frame(arrival) else {
            return self.metrics.pushed(Pushed::Dropped, outboxes.len());
        };
        for outbox in outboxes.values() {
            match outbox.offer(&frame) {
                Offered::Queued => {}
                Offered::NoRoom => self.metrics.pushed(Pushed::Dropped, 1),
                Offered::Away => self.metrics.pushed(Pushed::Away, 1),
            }
        }
    }

    /// Removes subscriptions that have expired, one by one: relay waits for the table, and to take all topics of many
    /// subscribers out of it takes long.
    async fn sweep(&self, now: Instant) {
        let expired = self.table.read().expired(now);
        for peer in expired {
            self.drop_expired(peer, now);
            yield_now().await;
        }
    }

    /// The sweeper may be late: a subscription that has expired is not found any more.
    fn drop_expired(&self, peer: PeerId, now: Instant) {
        let expired = self.table.write().expire(peer, now);
        if let Some(outbox) = expired {
            self.dismiss(&outbox, Removed::Expired);
        }
    }

    /// Removes a subscriber to whom nothing can be pushed, unless it has subscribed anew meanwhile.
    fn give_up(&self, outbox: &Arc<Outbox>) {
        let mut table = self.table.write();
        if table.outbox(outbox.peer).is_some_and(|present| present.number == outbox.number) {
            table.remove(outbox.peer);
            drop(table);
            self.dismiss(outbox, Removed::Failed);
        }
    }

    /// Takes leave of a subscriber that was taken out of the table.
    fn dismiss(&self, outbox: &Outbox, reason: Removed) {
        debug!(peer = %outbox.peer, ?reason, "a filter subscriber was removed");
        self.metrics.pushed(Pushed::Dropped, outbox.close());
        self.metrics.removed(reason);
        self.show(&self.table.read());
    }

    fn show(&self, table: &Subscriptions) {
        self.metrics.subscribers.set(table.subscribers() as i64);
        self.metrics.criteria.set(table.criteria() as i64);
    }

    /// A subscriber that goes away keeps its subscription until it expires, so that it finds it when it comes back soon.
    fn note_event(&self, event: &NodeEvent) {
        match event {
            NodeEvent::Connected { peer, .. } => {
                if let Some(outbox) = self.table.read().outbox(*peer) {
                    outbox.peer_came();
                }
            }
            NodeEvent::Gone { peer } => {
                if let Some(outbox) = self.table.read().outbox(*peer) {
                    self.metrics.pushed(Pushed::Away, outbox.peer_left());
                }
            }
            NodeEvent::Identified { .. } => {}
        }
    }

    /// Events were missed: looks at every subscriber.
    fn look_at_all(&self) {
        let table = self.table.read();
        for outbox in table.outboxes() {
            match (self.opener.reaches(outbox.peer), outbox.is_away()) {
                (true, true) => outbox.peer_came(),
                (false, false) => self.metrics.pushed(Pushed::Away, outbox.peer_left()),
                _ => {}
            }
        }
    }
}

/// Looks for expired subscriptions from time to time, and hears who comes and goes.
async fn watch(shared: Weak<Shared>, config: FilterConfig, mut events: broadcast::Receiver<NodeEvent>) {
    let period = Duration::from_secs(config.ttl_seconds / 10).clamp(SWEEP_PERIOD_MIN, SWEEP_PERIOD_MAX);
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
            Some(Err(RecvError::Lagged(_))) => shared.look_at_all(),
            Some(Err(RecvError::Closed)) => return, // the node is gone, and with it all who subscribed
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
