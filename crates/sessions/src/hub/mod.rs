//! The live hub: who wants which topic now.
//!
//! An event that arrives is looked up in an index by channel and topic (exact topics and prefixes of topics), and put into
//! the bounded queue of each session that wants it. Publishing never waits. A session that reads too slowly is ended with a
//! reason ([`Overflow::End`]) or loses what its queue has no room for ([`Overflow::Drop`]).

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
    sync::{Arc, OnceLock, Weak},
};

use parking_lot::{Mutex, RwLock};
use prometheus_client::metrics::counter::Counter;
use tokio::time::Instant;

pub use event::{Event, Form};
pub use metrics::HubMetrics;
pub use subscription::Seat;

use crate::{Ended, Nodes, Owner, SessionId};
use budget::MemoryBudget;
use index::{Groups, Index};
use metrics::Source;
use recent::{Noted, Recent};
use registry::Registry;
use subscriber::{Offered, Subscriber};

/// What an interest takes beside its texts: an entry in its session's list and one in the index.
pub const INTEREST_BYTES: usize = 320;

/// What a session wants.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Interest {
    /// Events of this channel; `None` for those of all channels.
    pub channel: Option<Arc<str>>,
    /// Of these topics.
    pub topics: TopicMatch,
}

impl Interest {
    /// What it counts as; see [`HubConfig::interest_bytes_max`].
    pub fn bytes(&self) -> usize {
        let channel = self.channel.as_ref().map_or(0, |channel| channel.len());
        let topics = match &self.topics {
            TopicMatch::All => 0,
            TopicMatch::Exact(topic) => topic.len(),
            TopicMatch::Prefix(prefix) => 2 * prefix.len(), // the index keeps bytes of its own
        };
        INTEREST_BYTES + channel + topics
    }
}

/// Which topics are wanted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TopicMatch {
    /// All.
    All,
    /// This one.
    Exact(Arc<str>),
    /// All that begin so.
    Prefix(Arc<str>),
}

/// The bounds of the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubConfig {
    /// Sessions at once.
    pub seats_max: usize,
    /// Bytes of events that wait for all sessions, each event counted once; a quarter of it is for sessions that have read all
    /// they had. Forms that readers make of events count as well, and may go beyond it: then nothing new finds room until they
    /// are gone.
    pub queued_bytes_max: usize,
    /// Bytes that what all sessions want may take; one of them may take a 64th part.
    pub interest_bytes_max: usize,
}

impl Default for HubConfig {
    fn default() -> Self {
        Self { seats_max: 20_000, queued_bytes_max: 64 << 20, interest_bytes_max: 64 << 20 }
    }
}

/// The bounds of one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeatConfig {
    /// Events that wait for it.
    pub events_max: usize,
    /// Bytes of events that wait for it.
    pub bytes_max: usize,
    /// Interests that it may have.
    pub interests_max: usize,
    /// What happens when there is no room.
    pub overflow: Overflow,
}

/// What happens when a queue has no room for an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overflow {
    /// The session ends: what it has is without holes.
    End,
    /// The event is dropped and counted.
    Drop,
}

/// Counts what sessions do not get, for doors that show it.
#[derive(Clone, Debug, Default)]
pub struct Losses {
    /// Events for which there was no room.
    pub dropped: Counter,
    /// Events that came while the client was away.
    pub away: Counter,
}

/// Why a session can't join, or can't want more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HubFull {
    /// There are as many sessions as there may be.
    #[error("no more than {0} sessions are served: try another node")]
    Seats(usize),
    /// It wants as much as one may want.
    #[error("a session may have no more than {0} interests")]
    Interests(usize),
    /// What it wants takes as many bytes as one may take.
    #[error("the topics of a session may take no more than {0} bytes")]
    SeatBytes(usize),
    /// What all want takes as many bytes as it may take.
    #[error("the topics of all sessions take too much memory: try another node")]
    Bytes,
}

/// What a seat has for its reader.
#[derive(Debug)]
pub enum Next {
    /// Events in the order of their arrival, at least one. They count as waiting until they are released, or the next are
    /// asked for.
    Events(Vec<Arc<Event>>),
    /// The session has ended.
    Ended(Ended),
}

/// The hub. Cloning gives another handle of the same.
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

/// What became of an event that came.
struct Delivery {
    /// It had not come before.
    is_new: bool,
    /// To how many it was queued.
    queued: usize,
}

impl Hub {
    /// An empty hub.
    pub fn new(config: HubConfig, metrics: HubMetrics) -> Self {
        let budget = MemoryBudget::new(config.queued_bytes_max, metrics.queued_bytes.clone());
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

    /// Tells by which nodes others hear of what is published here. Called once, if at all. The hub does not keep them alive.
    pub fn connect(&self, nodes: Arc<dyn Nodes>) {
        let is_first = self.shared.nodes.set(Arc::downgrade(&nodes)).is_ok();
        debug_assert!(is_first, "a hub is connected once");
    }

    /// Gives a session a subscriber. It joins right after it was opened: if it has ended meanwhile, its seat says so at once.
    ///
    /// # Errors
    /// When there are as many as there may be.
    pub fn join(&self, id: SessionId, config: SeatConfig) -> Result<Seat, HubFull> {
        self.shared
            .join(Subscriber::new(id, config, None))
            .map(|subscriber| Seat::new(subscriber, self.shared.clone()))
    }

    /// The same, with counters for what the session does not get.
    ///
    /// # Errors
    /// When there are as many as there may be.
    pub fn join_counting(
        &self,
        id: SessionId,
        config: SeatConfig,
        losses: Arc<Losses>,
    ) -> Result<Seat, HubFull> {
        let subscriber = Subscriber::new(id, config, Some(losses));
        self.shared.join(subscriber).map(|subscriber| Seat::new(subscriber, self.shared.clone()))
    }

    /// Hands an event to those who want it, here and on other nodes. What was queued to somebody here within the last minute
    /// or so, by its hash, channel and topic, is not queued out again; what came and found nobody, or no room, is when it comes
    /// again. Other nodes are told the first time alone. Answers to how many it was queued here. Never waits.
    pub fn publish(&self, event: &Arc<Event>) -> usize {
        let Delivery { is_new, queued } = self.shared.deliver(event, Source::Here);
        if is_new {
            self.tell_others(event);
        }
        queued
    }

    /// The same for those who are here alone: of other nodes whoever calls tells them by [`Hub::tell_others`].
    pub fn publish_here(&self, event: &Arc<Event>) -> usize {
        self.shared.deliver(event, Source::Here).queued
    }

    /// Takes back that an event came: the archive refused it. When it comes again it is queued to all who want it then, also to
    /// those who were given it: somebody may have come meanwhile who was not, and finds it nowhere else.
    pub fn forget(&self, event: &Event) {
        self.shared.recent.lock().forget(event);
    }

    /// Tells other nodes of an event, each time: they know what was queued out there. Never waits.
    pub fn tell_others(&self, event: &Event) {
        if let Some(nodes) = self.shared.nodes.get().and_then(Weak::upgrade) {
            nodes.tell_others(event);
        }
    }

    /// Whether somebody here wants such events, be it one whose client is away.
    pub fn is_wanted(&self, channel: &str, topic: &str) -> bool {
        !self.shared.index.read().find(channel, topic).is_empty()
    }

    /// Bytes of events that wait at this moment, each counted once.
    pub fn queued_bytes(&self) -> usize {
        self.shared.budget.used()
    }

    /// Ends all sessions with [`Ended::Stopping`], and those that join from now on at once.
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

    fn heard(&self, event: Event) {
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
        if registry.len() >= self.config.seats_max {
            return Err(HubFull::Seats(self.config.seats_max));
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

    /// Takes an event that has come, and puts it into the queues of those who want it, unless somebody has it already.
    fn deliver(&self, event: &Arc<Event>, source: Source) -> Delivery {
        // Until it is known whether somebody was given it, nobody begins to want it: whoever does so afterwards, and then has
        // it published again, finds that nobody was.
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

/// Visits everybody in groups that may overlap. Almost always there is one group, which has everybody once.
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
