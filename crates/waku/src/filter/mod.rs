//! `12/WAKU2-FILTER`: subscribers say which content topics they want, and have messages pushed to them as they arrive.
//!
//! A subscriber is a session with a seat in the live hub, which puts what it wants into a bounded queue. A task per subscriber
//! pushes what is in its queue, in order, so that one who reads slowly or not at all holds up nobody else. A message is encoded
//! once for all. What a queue has no room for is dropped and counted: it is in the archive.
//!
//! All subscribers together take at most [`FilterConfig::criteria_bytes_max`] for what they want, some KiB each, and what the hub
//! has room for to wait.

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
    sync::{Arc, Weak},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use libp2p::PeerId;
use parking_lot::RwLock;
use prost::Message;
use restante_sessions::{Ended, Live, hub::Interest};
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
    node::{Node, NodeEvent},
    service::{Answer, Service},
    validate::{Rules, check_pubsub_topic},
};
use metrics::{Pushed, Removed};
use peer_locks::{PeerLock, PeerLocks};
use push_streams::{Opener, PushStreams};
use pusher::Pusher;
use subscriber::Subscriber;
use subscriptions::{Entered, Full, Subscriptions, criteria_of};
use table::Table;

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

/// What a peer asks for: checked, and each criterion once.
enum Wish {
    Ping,
    Subscribe(Vec<Interest>),
    Unsubscribe(Vec<Interest>),
    UnsubscribeAll,
}

/// Who asks, and when.
#[derive(Clone, Copy)]
struct Asker {
    peer: PeerId,
    /// Whether it was known to be connected when its request came.
    was_there: bool,
    /// When it had its turn.
    now: Instant,
}

impl From<Full> for Refusal {
    fn from(full: Full) -> Self {
        Self::Full(full.to_string())
    }
}

impl FilterService {
    /// A filter that pushes by `node` what the hub of `live` is told. Its tasks run on the present runtime until it is dropped.
    pub fn start(
        config: FilterConfig,
        rules: Rules,
        node: Node,
        live: &Live,
        metrics: FilterMetrics,
    ) -> Arc<Self> {
        let events = node.events();
        Self::start_over(config, rules, (Arc::new(node), events), live, metrics)
    }

    fn start_over(
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

    /// Who wants what, in the order of peer ids.
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
            subscriber.seat.leave();
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
            return respond(NO_REQUEST_ID.to_owned(), 400, "the request can't be read".to_owned());
        };
        let request_id = std::mem::take(&mut request.request_id);
        let wish = self.shared.wish_of(&request);
        // Many empty topics take many times their bytes while they are decoded. They are gone before anything waits, so that
        // no more than one request per worker is decoded at a time.
        drop(request);
        let served = match wish {
            Ok(wish) => self.shared.serve(peer, wish).await,
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
    fn wish_of(&self, request: &SubscribeRequest) -> Result<Wish, Refusal> {
        let kind = SubscribeType::try_from(request.subscribe_type);
        let kind = kind.map_err(|_| Refusal::Wrong("the type of the request is not known".to_owned()))?;
        Ok(match kind {
            SubscribeType::Ping => Wish::Ping,
            SubscribeType::UnsubscribeAll => Wish::UnsubscribeAll,
            SubscribeType::Unsubscribe => Wish::Unsubscribe(self.criteria_of(request)?),
            SubscribeType::Subscribe => {
                let wanted = self.criteria_of(request)?;
                // Of other topics nothing would ever come, and the client would not learn why.
                let pubsub_topic = request.pubsub_topic.as_deref().unwrap_or_default();
                check_pubsub_topic(pubsub_topic, &self.rules)
                    .map_err(|invalid| Refusal::Wrong(invalid.to_string()))?;
                Wish::Subscribe(wanted)
            }
        })
    }

    /// Checks what every request with topics must have, and returns its criteria.
    fn criteria_of(&self, request: &SubscribeRequest) -> Result<Vec<Interest>, Refusal> {
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
        Ok(criteria_of(pubsub_topic, content_topics))
    }

    async fn serve(self: &Arc<Self>, peer: PeerId, wish: Wish) -> Result<(), Refusal> {
        let was_there = self.opener.reaches(peer);
        let turn = self.peer_locks.take(peer).await;
        let now = Instant::now();
        self.drop_expired(peer, now);
        self.drop_closed(peer);
        match wish {
            Wish::Ping => self.ping(peer, now),
            Wish::Subscribe(wanted) => self.subscribe(turn, Asker { peer, was_there, now }, wanted).await,
            Wish::Unsubscribe(unwanted) => self.unsubscribe(peer, &unwanted, now).await,
            Wish::UnsubscribeAll => self.unsubscribe_all(peer),
        }
    }

    /// Whoever asks is there, even if the news of it has not come yet.
    fn ping(&self, peer: PeerId, now: Instant) -> Result<(), Refusal> {
        let subscriber = self.subscriptions.write().refresh(peer, now);
        subscriber.ok_or(Refusal::NotFound)?.peer_came();
        Ok(())
    }

    async fn subscribe(
        self: &Arc<Self>,
        turn: PeerLock,
        asker: Asker,
        wanted: Vec<Interest>,
    ) -> Result<(), Refusal> {
        let known = self.subscriptions.write().add(asker.peer, &wanted, asker.now)?;
        if let Some(subscriber) = known {
            subscriber.peer_came();
            self.show();
            self.table.note_criteria(&subscriber).await;
            return Ok(());
        }
        // In a task of its own: a session that is being opened is entered or closed, also when the client gives up.
        let shared = self.clone();
        let entering = self.runtime.spawn(async move {
            let entered = shared.enter(asker, wanted).await;
            drop(turn);
            entered
        });
        entering.await.unwrap_or_else(|_| Err(Refusal::Full("the server was interrupted".to_owned())))
    }

    /// Opens the session of a new subscriber and enters it. It has its turn.
    async fn enter(self: &Arc<Self>, asker: Asker, wanted: Vec<Interest>) -> Result<(), Refusal> {
        let Asker { peer, was_there, now } = asker;
        // Before a session is opened for nothing; there may be less room afterwards.
        self.subscriptions.read().check_newcomer(&wanted)?;
        let id = self.table.open(peer, wanted.len(), &*self.opener).await;
        let entered = self.subscriptions.write().enter(id, peer, &wanted, now);
        let Entered { subscriber, replaced } = match entered {
            Ok(entered) => entered,
            Err(full) => {
                self.table.close_unused(id).await;
                return Err(full.into());
            }
        };
        self.show();
        if let Some(replaced) = replaced {
            self.dismiss(&replaced, Removed::Replaced);
        }
        // It may have been ended by others before it had its seat.
        if let Some(why) = subscriber.seat.ended() {
            self.give_up(&subscriber, Removed::Closed);
            return Err(Refusal::Full(why.text().to_owned()));
        }
        // The news that it went away meanwhile found no subscriber.
        if was_there && !self.opener.reaches(peer) {
            self.metrics.pushed(Pushed::Away, subscriber.peer_left());
        }
        let way = PushStreams::new(peer, self.opener.clone(), self.config.push_timeout);
        self.runtime.spawn(Pusher::new(self, subscriber, way).run());
        Ok(())
    }

    async fn unsubscribe(&self, peer: PeerId, unwanted: &[Interest], now: Instant) -> Result<(), Refusal> {
        let cut = self.subscriptions.write().cut(peer, unwanted, now);
        let (subscriber, is_over) = cut.ok_or(Refusal::NotFound)?;
        self.show();
        if is_over {
            self.dismiss(&subscriber, Removed::Unsubscribed);
        } else {
            self.table.note_criteria(&subscriber).await;
        }
        Ok(())
    }

    fn unsubscribe_all(&self, peer: PeerId) -> Result<(), Refusal> {
        let removed = self.subscriptions.write().remove(peer);
        self.dismiss(&removed.ok_or(Refusal::NotFound)?, Removed::Unsubscribed);
        Ok(())
    }

    /// Removes subscriptions that have expired, one by one: to take all topics of many subscribers out of the hub takes long.
    async fn sweep(&self, now: Instant) {
        let expired = self.subscriptions.read().expired(now);
        for peer in expired {
            self.drop_expired(peer, now);
            yield_now().await;
        }
    }

    /// The sweeper may be late: a subscription that has expired is not found any more.
    fn drop_expired(&self, peer: PeerId, now: Instant) {
        let expired = self.subscriptions.write().expire(peer, now);
        if let Some(subscriber) = expired {
            self.dismiss(&subscriber, Removed::Expired);
        }
    }

    /// The pusher may be late, too: a subscriber whose session was ended by others is none any more, and is not told that all
    /// is well.
    fn drop_closed(&self, peer: PeerId) {
        if let Some(subscriber) = self.subscriber(peer)
            && subscriber.seat.ended().is_some()
        {
            self.give_up(&subscriber, Removed::Closed);
        }
    }

    /// Removes a subscriber to whom nothing can be pushed, or whose session has ended, unless it was removed already.
    fn give_up(&self, subscriber: &Arc<Subscriber>, reason: Removed) {
        let mut subscriptions = self.subscriptions.write();
        let is_present =
            subscriptions.get(subscriber.peer).is_some_and(|present| Arc::ptr_eq(present, subscriber));
        if is_present {
            subscriptions.remove(subscriber.peer);
            drop(subscriptions);
            self.dismiss(subscriber, reason);
        }
    }

    /// Takes leave of a subscriber that was removed.
    fn dismiss(&self, subscriber: &Arc<Subscriber>, reason: Removed) {
        debug!(peer = %subscriber.peer, ?reason, "a filter subscriber was removed");
        self.metrics.pushed(Pushed::Dropped, subscriber.seat.leave());
        self.metrics.removed(reason);
        self.show();
        if let Some(why) = reason.ended() {
            self.table.close(subscriber, why);
        }
    }

    fn show(&self) {
        let subscriptions = self.subscriptions.read();
        self.metrics.subscribers.set(subscriptions.subscribers() as i64);
        self.metrics.criteria.set(subscriptions.criteria() as i64);
    }

    fn subscriber(&self, peer: PeerId) -> Option<Arc<Subscriber>> {
        self.subscriptions.read().get(peer).cloned()
    }

    /// A subscriber that goes away keeps its subscription until it expires, so that it finds it when it comes back soon.
    fn note_event(&self, event: &NodeEvent) {
        match event {
            NodeEvent::Connected { peer, .. } => {
                if let Some(subscriber) = self.subscriber(*peer) {
                    subscriber.peer_came();
                }
            }
            NodeEvent::Gone { peer } => {
                if let Some(subscriber) = self.subscriber(*peer) {
                    self.metrics.pushed(Pushed::Away, subscriber.peer_left());
                }
            }
            NodeEvent::Identified { .. } => {}
        }
    }

    /// Events were missed: looks at every subscriber.
    fn look_at_all(&self) {
        for subscriber in self.subscriptions.read().iter() {
            match (self.opener.reaches(subscriber.peer), subscriber.is_away()) {
                (true, true) => subscriber.peer_came(),
                (false, false) => self.metrics.pushed(Pushed::Away, subscriber.peer_left()),
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
