//! The live hub: which sessions subscribe to which topics.
//!
//! A new event is looked up in an index by channel and topic (exact topics and prefixes of topics), and put into the bounded
//! queue of each session that subscribed to it. Publishing never waits. When a session reads too slowly it is ended with a
//! reason ([`Overflow::End`]), or loses the events that do not fit into its queue ([`Overflow::Drop`]).

mod budget;
mod event;
mod index;
mod metrics;
mod prefixes;
mod recent;
mod registry;
mod subscriber;
mod subscription;

use std::{
    fmt,
    num::NonZero,
    sync::{Arc, OnceLock, Weak},
};

use parking_lot::{Mutex, RwLock};
use prometheus_client::metrics::counter::Counter;
use restante_core::nonzero;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

pub use event::{Event, Form};
pub use metrics::HubMetrics;
pub use subscription::Subscription;

use crate::{Ended, Nodes, Owner, SessionId};
use budget::MemoryBudget;
use index::{Groups, Index};
use metrics::Source;
use recent::{Noted, Recent};
use registry::Registry;
use subscriber::{Offered, Subscriber};

/// The memory of an interest besides its texts: an entry in its session's list and one in the index.
pub const INTEREST_BYTES: usize = 320;

/// A channel and topics that a session subscribes to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Interest {
    /// Events of this channel; `None` for all channels.
    pub channel: Option<Arc<str>>,
    /// Events of these topics.
    pub topics: TopicMatch,
}

impl Interest {
    /// The bytes that it counts for in [`HubConfig::interest_bytes_max`].
    pub fn bytes(&self) -> usize {
        let channel = self.channel.as_ref().map_or(0, |channel| channel.len());
        let topics = match &self.topics {
            TopicMatch::All => 0,
            TopicMatch::Exact(topic) => topic.len(),
            TopicMatch::Prefix(prefix) => 2 * prefix.len(), // the index has its own copy
        };
        INTEREST_BYTES + channel + topics
    }
}

/// Which topics match.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TopicMatch {
    /// All.
    All,
    /// This one.
    Exact(Arc<str>),
    /// All topics that begin with this.
    Prefix(Arc<str>),
}

/// The bounds of the hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HubConfig {
    /// Subscribed sessions at once.
    pub subscriptions_max: NonZero<usize>,
    /// Bytes of events that wait for all sessions, each event counted once. A quarter of it is reserved for sessions whose queue is
    /// empty. Forms that readers make of events count as well and may exceed it: then new events are refused until they are
    /// freed.
    pub queued_bytes_max: NonZero<usize>,
    /// Bytes of all interests of all sessions; one session may have a 64th part.
    pub interest_bytes_max: NonZero<usize>,
}

impl Default for HubConfig {
    fn default() -> Self {
        Self {
            subscriptions_max: nonzero!(20_000),
            queued_bytes_max: nonzero!(64 << 20),
            interest_bytes_max: nonzero!(64 << 20),
        }
    }
}

/// The bounds of one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubscriptionConfig {
    /// Events that may wait for it.
    pub events_max: usize,
    /// Bytes of events that may wait for it.
    pub bytes_max: usize,
    /// Interests that it may have.
    pub interests_max: usize,
    /// What happens when the queue is full.
    pub overflow: Overflow,
}

/// What happens when an event does not fit into a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overflow {
    /// The session ends, so that a reader never misses an event unknowingly.
    End,
    /// The event is dropped and counted.
    Drop,
}

/// Counts the events that sessions did not get, for doors that show it.
#[derive(Clone, Debug, Default)]
pub struct Losses {
    /// Events that did not fit.
    pub dropped: Counter,
    /// Events that arrived while the client was away.
    pub away: Counter,
}

/// Why a session can't join the hub or add interests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HubFull {
    /// The hub has as many sessions as allowed.
    #[error("no more than {0} sessions are served: try another node")]
    Subscriptions(usize),
    /// The session has as many interests as allowed.
    #[error("a session may have no more than {0} interests")]
    Interests(usize),
    /// The session's interests take as many bytes as allowed.
    #[error("the topics of a session may take no more than {0} bytes")]
    SubscriptionBytes(usize),
    /// All interests together take as many bytes as allowed.
    #[error("the topics of all sessions take too much memory: try another node")]
    Bytes,
}

/// What a subscription returns to its reader.
#[derive(Debug)]
pub enum Next {
    /// Events in the order of their arrival, at least one. They count as waiting until they are released or the reader asks for
    /// the next ones.
    Events(Vec<Arc<Event>>),
    /// The session has ended.
    Ended(Ended),
}

/// The hub. Clones are handles of the same hub.
#[derive(Clone)]
pub struct Hub {
    shared: Arc<Shared>,
}

struct Shared {
    config: HubConfig,
    budget: Arc<MemoryBudget>,
    index: RwLock<Index>,
    registry: Mutex<Registry>,
    recent: Mutex<Recent>,
    /// Weak, because the table holds the hub as the owner of its sessions.
    nodes: OnceLock<Weak<dyn Nodes>>,
    metrics: HubMetrics,
}

/// The outcome of publishing an event.
struct Delivery {
    /// The event was not published before.
    is_new: bool,
    /// How many queues it was put into.
    queued: usize,
}

impl Hub {
    /// An empty hub.
    pub fn new(config: HubConfig, metrics: HubMetrics) -> Self {
        let budget = MemoryBudget::new(config.queued_bytes_max.get(), metrics.queued_bytes.clone());
        let shared = Shared {
            config,
            budget,
            index: RwLock::default(),
            registry: Mutex::default(),
            recent: Mutex::new(Recent::new(Instant::now())),
            nodes: OnceLock::new(),
            metrics,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Sets the nodes to which events are broadcast. Called at most once. The hub does not keep them alive.
    pub fn connect(&self, nodes: Arc<dyn Nodes>) {
        let is_first = self.shared.nodes.set(Arc::downgrade(&nodes)).is_ok();
        debug_assert!(is_first, "a hub is connected once");
    }

    /// Subscribes a session right after it was opened. If the session has ended meanwhile, its subscription reports that at once.
    ///
    /// # Errors
    /// When the hub has as many sessions as allowed.
    pub fn join(&self, id: SessionId, config: SubscriptionConfig) -> Result<Subscription, HubFull> {
        self.shared
            .join(Subscriber::new(id, config, None))
            .map(|subscriber| Subscription::new(subscriber, self.shared.clone()))
    }

    /// Like [`Hub::join`], with counters for the events that the session does not get.
    ///
    /// # Errors
    /// When the hub has as many sessions as allowed.
    pub fn join_with_losses(
        &self,
        id: SessionId,
        config: SubscriptionConfig,
        losses: Arc<Losses>,
    ) -> Result<Subscription, HubFull> {
        let subscriber = Subscriber::new(id, config, Some(losses));
        self.shared.join(subscriber).map(|subscriber| Subscription::new(subscriber, self.shared.clone()))
    }

    /// Publishes an event to its subscribers, here and on other nodes, and returns how many queues of this node it was put into.
    /// An event that was delivered here within about the last minute, by its hash, channel and topic, is not delivered again; one
    /// that had no subscriber, or fitted into no queue, is. Other nodes are sent only the first publication. Never waits.
    pub fn publish(&self, event: &Arc<Event>) -> usize {
        let Delivery { is_new, queued } = self.shared.deliver(event, Source::Here);
        if is_new {
            self.broadcast(event);
        }
        queued
    }

    /// Publishes to this node's sessions only: the caller sends the event to other nodes by [`Hub::broadcast`].
    pub fn publish_here(&self, event: &Arc<Event>) -> usize {
        self.shared.deliver(event, Source::Here).queued
    }

    /// Forgets an event that the archive refused. When it is published again it is delivered to all subscribers, including those
    /// that had it already: others may have subscribed meanwhile, and can't read it from the archive.
    pub fn forget(&self, event: &Event) {
        self.shared.recent.lock().forget(event);
    }

    /// Sends an event to the other nodes, each time it is called: they drop what was delivered there. Never waits.
    pub fn broadcast(&self, event: &Event) {
        if let Some(nodes) = self.shared.nodes.get().and_then(Weak::upgrade) {
            nodes.broadcast(event);
        }
    }

    /// Whether a session of this node subscribes to such events, even if its client is away.
    pub fn has_subscribers(&self, channel: &str, topic: &str) -> bool {
        !self.shared.index.read().find(channel, topic).is_empty()
    }

    /// Bytes of events that wait now, each event counted once.
    pub fn queued_bytes(&self) -> usize {
        self.shared.budget.used()
    }

    /// Ends all sessions with [`Ended::Stopping`], and from now on every session that joins.
    pub fn stop(&self) {
        let subscribers: Vec<Arc<Subscriber>> = {
            let mut registry = self.shared.registry.lock();
            registry.is_stopping = true;
            registry.all().cloned().collect()
        };
        for subscriber in subscribers {
            self.shared.end(&subscriber, Ended::Stopping);
        }
    }
}

impl Owner for Hub {
    fn ended(&self, id: SessionId, why: Ended) {
        let subscriber = {
            let mut registry = self.shared.registry.lock();
            let subscriber = registry.get(id).cloned();
            if subscriber.is_none() {
                registry.note_early(id, why);
            }
            subscriber
        };
        if let Some(subscriber) = subscriber {
            self.shared.end(&subscriber, why);
        }
    }

    fn received(&self, event: Event) {
        self.shared.deliver(&Arc::new(event), Source::Elsewhere);
    }
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").field("config", &self.shared.config).finish_non_exhaustive()
    }
}

impl Shared {
    fn join(&self, subscriber: Subscriber) -> Result<Arc<Subscriber>, HubFull> {
        let subscriber = Arc::new(subscriber);
        let mut registry = self.registry.lock();
        if registry.len() >= self.config.subscriptions_max.get() {
            return Err(HubFull::Subscriptions(self.config.subscriptions_max.get()));
        }
        let stopping = registry.is_stopping.then_some(Ended::Stopping);
        let ended = registry.take_early(subscriber.id).or(stopping);
        let former = registry.enter(&subscriber);
        self.metrics.subscriptions.set(registry.len() as i64);
        drop(registry);
        if let Some(former) = former {
            self.end(&former, Ended::Replaced);
        }
        if let Some(why) = ended {
            self.end(&subscriber, why);
        }
        Ok(subscriber)
    }

    fn forget(&self, subscriber: &Arc<Subscriber>) {
        let mut registry = self.registry.lock();
        registry.leave(subscriber);
        self.metrics.subscriptions.set(registry.len() as i64);
    }

    fn end(&self, subscriber: &Subscriber, why: Ended) {
        if subscriber.end(why).is_some() {
            self.metrics.ended(why);
        }
    }

    /// Puts a new event into the queues of its subscribers, unless it was delivered before.
    fn deliver(&self, event: &Arc<Event>, source: Source) -> Delivery {
        // The index stays locked until the event is noted, so that nobody subscribes in between: a session that subscribes
        // afterwards and has the event published again finds that it was not delivered.
        let index = self.index.read();
        let groups = index.find(&event.channel, &event.topic);
        let noted = self.recent.lock().note(event, !groups.is_empty(), Instant::now());
        let is_new = noted == Noted::New;
        self.metrics.came(if is_new { source } else { Source::Again });
        if noted == Noted::Delivered || groups.is_empty() {
            return Delivery { is_new, queued: 0 };
        }
        let queued = self.enqueue(event, &groups);
        if queued == 0 {
            self.recent.lock().note_undelivered(event);
        }
        Delivery { is_new, queued }
    }

    fn enqueue(&self, event: &Arc<Event>, groups: &Groups<'_>) -> usize {
        let has_budget = event.acquire(&self.budget);
        let mut queued = 0;
        each_once(groups, |subscriber| {
            let offered =
                if has_budget { subscriber.offer(event, &self.budget) } else { subscriber.refuse() };
            queued += usize::from(offered == Offered::Queued);
            self.count(offered);
        });
        self.metrics.handed_out.inc_by(queued as u64);
        queued
    }

    fn count(&self, offered: Offered) {
        match offered {
            Offered::Queued | Offered::Absent => {}
            Offered::Dropped(reason) => self.metrics.dropped(reason),
            Offered::Ended(reason) => {
                self.metrics.dropped(reason);
                self.metrics.ended(reason.ended());
            }
        }
    }
}

/// Visits each subscriber of groups that may overlap once. Almost always there is one group, which has each once.
fn each_once(groups: &Groups<'_>, visit: impl FnMut(&Arc<Subscriber>)) {
    if let [group] = groups.as_slice() {
        return group.iter().for_each(visit);
    }
    let mut subscribers: Vec<&Arc<Subscriber>> =
        Vec::with_capacity(groups.iter().map(|group| group.len()).sum());
    for group in groups {
        subscribers.extend(group.iter());
    }
    subscribers.sort_unstable_by_key(|subscriber| Arc::as_ptr(subscriber));
    subscribers.dedup_by(|one, other| Arc::ptr_eq(one, other));
    subscribers.into_iter().for_each(visit);
}

#[cfg(test)]
mod tests;
