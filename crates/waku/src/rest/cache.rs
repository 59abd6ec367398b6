//! Messages that wait until REST clients fetch them.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use restante_core::MessageHash;

use super::{
    RestConfig, RestMetrics,
    metrics::{CacheMetrics, DropReason},
};
use crate::live::{Event, Listener, Stage};

/// Subscriptions at once, of all REST clients together: what nwaku lets one filter client have.
pub(crate) const FEEDS_MAX: usize = 1_000;
/// What all messages that wait may take. Beyond it the oldest message of all subscriptions is dropped.
pub(crate) const CACHE_BYTES_MAX: usize = 64 << 20;
/// What a message that waits takes beside its bytes and topics: itself, and its places in the queue and in the order.
const HELD_BYTES: usize = 512;
/// What is fetched at once may take this much, but for a message that is longer alone: the rest waits on.
const FETCH_BYTES_MAX: usize = 4_000_000;
/// The longest that these are as JSON: their base64 is a third longer, and the rest no longer than what holds them.
pub(crate) const FETCHED_JSON_BYTES_MAX: usize = FETCH_BYTES_MAX / 3 * 4;

/// Messages that are remembered, so that a second copy is recognised: minutes of what a busy network sends, some 8 MiB. Relay
/// remembers those of two minutes, but it does not see what is published here a second time.
pub(crate) const SEEN_MAX: usize = 1 << 16;

/// What a REST client has subscribed to, and what it fetches messages by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Feed {
    /// All messages of a pubsub topic.
    Relay(Arc<str>),
    /// Those of a content topic on the pubsub topic into which it falls.
    Auto(Topics),
    /// Those of a content topic on a pubsub topic, as a filter client asks for them.
    Filter(Topics),
}

/// A content topic on a pubsub topic.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Topics {
    pub(crate) pubsub_topic: Arc<str>,
    pub(crate) content_topic: Arc<str>,
}

impl Feed {
    pub(crate) fn pubsub_topic(&self) -> &Arc<str> {
        match self {
            Self::Relay(pubsub_topic) => pubsub_topic,
            Self::Auto(topics) | Self::Filter(topics) => &topics.pubsub_topic,
        }
    }

    fn is_filter(&self) -> bool {
        matches!(self, Self::Filter(_))
    }

    /// The feeds to which a message belongs.
    fn all_of(event: &Event) -> [Self; 3] {
        let topics = Topics { pubsub_topic: event.channel.clone(), content_topic: event.topic.clone() };
        [Self::Relay(topics.pubsub_topic.clone()), Self::Auto(topics.clone()), Self::Filter(topics)]
    }
}

/// There are as many subscriptions as there may be.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooMany;

/// Messages that wait until REST clients fetch them, a bounded queue for each subscription.
///
/// REST has no sessions, so the subscriptions are those of all clients together, as in nwaku: who fetches first gets the
/// messages.
#[derive(Debug)]
pub struct MessageCache {
    messages_max: usize,
    bytes_max: usize,
    /// How many subscriptions there are, so that messages cost no lock while there are none.
    subscriptions: AtomicUsize,
    held: Mutex<Held>,
    metrics: CacheMetrics,
}

#[derive(Debug, Default)]
struct Held {
    feeds: HashMap<Feed, Queue>,
    /// Which feed holds the message with a number. Numbers ascend in the order in which messages came.
    order: BTreeMap<u64, Feed>,
    bytes: usize,
    next: u64,
    seen: Seen,
}

/// The last [`SEEN_MAX`] messages, each with the number of its last copy.
#[derive(Debug, Default)]
struct Seen {
    numbers: HashMap<MessageHash, u64>,
    order: VecDeque<(u64, MessageHash)>,
}

impl Seen {
    /// Remembers a message, and returns the number of its last copy.
    fn replace(&mut self, hash: MessageHash, number: u64) -> Option<u64> {
        let before = self.numbers.insert(hash, number);
        self.order.push_back((number, hash));
        if self.order.len() > SEEN_MAX
            && let Some((number, hash)) = self.order.pop_front()
            && self.numbers.get(&hash) == Some(&number)
        {
            self.numbers.remove(&hash);
        }
        before
    }
}

#[derive(Debug, Default)]
struct Queue {
    /// Messages from this number on are kept.
    since: u64,
    waiting: VecDeque<Waiting>,
    /// Whether a client has asked for it, and not the settings alone.
    is_asked: bool,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    event: Arc<Event>,
}

impl MessageCache {
    /// An empty cache, to be given to [`crate::Waku::start`] as a listener and to [`super::Rest`].
    pub fn new(config: &RestConfig, metrics: &RestMetrics) -> Self {
        Self {
            messages_max: config.relay_cache_messages.get(),
            bytes_max: CACHE_BYTES_MAX,
            subscriptions: AtomicUsize::new(0),
            held: Mutex::default(),
            metrics: metrics.cache.clone(),
        }
    }

    #[cfg(test)]
    pub(crate) fn with_bytes_max(mut self, bytes_max: usize) -> Self {
        self.bytes_max = bytes_max;
        self
    }

    /// Begins to keep messages for these feeds: for all of them or, when they are too many, for none.
    pub(crate) fn subscribe(&self, feeds: &[Feed]) -> Result<(), TooMany> {
        let mut held = self.held.lock();
        let added = feeds.iter().filter(|feed| !held.feeds.contains_key(feed)).count();
        if held.feeds.len().saturating_add(added) > FEEDS_MAX {
            return Err(TooMany);
        }
        for feed in feeds {
            held.begin(feed.clone()).is_asked = true;
        }
        self.note(&held);
        Ok(())
    }

    /// Keeps messages of pubsub topics before a client asks for them. Returns for how many of the topics there was room.
    pub(crate) fn keep(&self, pubsub_topics: &[String]) -> usize {
        let mut held = self.held.lock();
        let room = FEEDS_MAX.saturating_sub(held.feeds.len());
        for topic in pubsub_topics.iter().take(room) {
            held.begin(Feed::Relay(topic.as_str().into()));
        }
        self.note(&held);
        room.min(pubsub_topics.len())
    }

    /// Ends to keep messages for these feeds, forgets those that wait, and returns how many feeds there were.
    pub(crate) fn unsubscribe(&self, feeds: &[Feed]) -> usize {
        let mut held = self.held.lock();
        let ended = feeds.iter().filter(|feed| held.end(feed)).count();
        self.note(&held);
        ended
    }

    /// All feeds of filter clients.
    pub(crate) fn filter_feeds(&self) -> Vec<Feed> {
        self.held.lock().feeds.keys().filter(|feed| feed.is_filter()).cloned().collect()
    }

    /// Whether somebody wants messages of a pubsub topic.
    pub(crate) fn wants(&self, pubsub_topic: &str) -> bool {
        self.held.lock().feeds.keys().any(|feed| &**feed.pubsub_topic() == pubsub_topic)
    }

    /// The messages that wait, from old to new, which wait no more; `None` without a subscription. What would make too long
    /// an answer is left for the next time.
    pub(crate) fn fetch(&self, feed: &Feed) -> Option<Vec<Arc<Event>>> {
        let mut held = self.held.lock();
        held.feeds.get_mut(feed)?.is_asked = true;
        let fetched = held.fetch(std::slice::from_ref(feed));
        self.note(&held);
        Some(fetched)
    }

    /// The same for what filter clients want of a content topic, on any pubsub topic.
    pub(crate) fn fetch_filter(&self, content_topic: &str) -> Option<Vec<Arc<Event>>> {
        let mut held = self.held.lock();
        let is_asked = |feed: &&Feed| matches!(feed, Feed::Filter(of) if &*of.content_topic == content_topic);
        let asked: Vec<Feed> = held.feeds.keys().filter(is_asked).cloned().collect();
        if asked.is_empty() {
            return None;
        }
        let fetched = held.fetch(&asked);
        self.note(&held);
        Some(fetched)
    }

    fn note(&self, held: &Held) {
        self.subscriptions.store(held.feeds.len(), Ordering::Relaxed);
        self.metrics.note(held.feeds.len(), held.order.len(), held.bytes);
    }
}

impl Listener for MessageCache {
    /// Messages are kept here when they are archived: those who fetch them ask every other second, and a message that the archive
    /// did not take the first time would be here twice.
    fn on_message(&self, event: &Arc<Event>, stage: Stage) {
        let is_kept = matches!(stage, Stage::Accepted | Stage::Relayed);
        if !is_kept || self.subscriptions.load(Ordering::Relaxed) == 0 {
            return;
        }
        let feeds = Feed::all_of(event);
        let mut held = self.held.lock();
        if !feeds.iter().any(|feed| held.feeds.contains_key(feed)) {
            return;
        }
        // A client may publish a message again, and relay may bring it before or after: it is kept once for each feed.
        let before = held.remember(event.message_hash);
        let kept = Arc::new(event.to_unmetered());
        for feed in feeds {
            held.push(feed, &kept, before, self.messages_max, &self.metrics);
        }
        held.shrink(self.bytes_max, &self.metrics);
        self.note(&held);
    }

    fn has_subscriber(&self, event: &Event) -> bool {
        let held = self.held.lock();
        Feed::all_of(event).iter().any(|feed| held.feeds.get(feed).is_some_and(|queue| queue.is_asked))
    }
}

impl Held {
    /// The queue of a feed, which keeps messages from now on if it did not before.
    fn begin(&mut self, feed: Feed) -> &mut Queue {
        let since = self.next;
        self.feeds.entry(feed).or_insert_with(|| Queue { since, ..Queue::default() })
    }

    /// Remembers a message, and returns the number of its last copy.
    fn remember(&mut self, hash: MessageHash) -> Option<u64> {
        let number = self.next;
        self.next += 1; // a feed that begins after it has a greater one
        self.seen.replace(hash, number)
    }

    /// Keeps a message if somebody wants it, in the place of the oldest when there are as many as there may be. `before`: the
    /// number of its last copy, which the feed has had if it was there by then.
    fn push(
        &mut self,
        feed: Feed,
        event: &Arc<Event>,
        before: Option<u64>,
        messages_max: usize,
        metrics: &CacheMetrics,
    ) {
        let Some(Queue { since, waiting, .. }) = self.feeds.get_mut(&feed) else { return };
        if before.is_some_and(|number| number >= *since) {
            return;
        }
        if waiting.len() >= messages_max {
            metrics.dropped(DropReason::Full);
            let Some(oldest) = waiting.pop_front() else { return };
            self.order.remove(&oldest.number);
            self.bytes -= size_of_waiting(&oldest.event);
        }
        let number = self.next;
        self.next += 1;
        waiting.push_back(Waiting { number, event: event.clone() });
        self.order.insert(number, feed);
        self.bytes += size_of_waiting(event);
    }

    /// Drops the oldest messages of all until they take no more than so much.
    fn shrink(&mut self, bytes_max: usize, metrics: &CacheMetrics) {
        while self.bytes > bytes_max {
            let Some((_, feed)) = self.order.pop_first() else { return };
            // The oldest of all is the oldest of its queue.
            let Some(queue) = self.feeds.get_mut(&feed) else { return };
            let Some(oldest) = queue.waiting.pop_front() else { return };
            self.bytes -= size_of_waiting(&oldest.event);
            metrics.dropped(DropReason::Memory);
        }
    }

    /// Takes the oldest messages of some feeds, as many as are fetched at once.
    fn fetch(&mut self, feeds: &[Feed]) -> Vec<Arc<Event>> {
        let mut fetched = Vec::new();
        let mut bytes = 0;
        // The number of each feed's oldest message: the first of them is the oldest of all.
        let mut oldest: BTreeMap<u64, &Feed> = BTreeMap::new();
        for feed in feeds {
            oldest.extend(self.oldest_of(feed).map(|waiting| (waiting.number, feed)));
        }
        while let Some((_, feed)) = oldest.pop_first() {
            let Some(next) = self.oldest_of(feed) else { continue };
            bytes += size_of_waiting(&next.event);
            if bytes > FETCH_BYTES_MAX && !fetched.is_empty() {
                break;
            }
            fetched.extend(self.take_oldest(feed));
            oldest.extend(self.oldest_of(feed).map(|waiting| (waiting.number, feed)));
        }
        fetched
    }

    fn oldest_of(&self, feed: &Feed) -> Option<&Waiting> {
        self.feeds.get(feed)?.waiting.front()
    }

    fn take_oldest(&mut self, feed: &Feed) -> Option<Arc<Event>> {
        let Waiting { number, event } = self.feeds.get_mut(feed)?.waiting.pop_front()?;
        self.order.remove(&number);
        self.bytes -= size_of_waiting(&event);
        Some(event)
    }

    fn end(&mut self, feed: &Feed) -> bool {
        let Some(ended) = self.feeds.remove(feed) else { return false };
        for waiting in &ended.waiting {
            self.order.remove(&waiting.number);
            self.bytes -= size_of_waiting(&waiting.event);
        }
        true
    }
}

fn size_of_waiting(event: &Event) -> usize {
    event.body.len() + event.channel.len() + event.topic.len() + HELD_BYTES
}
