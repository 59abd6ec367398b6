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

/// The most subscriptions, over all REST clients: nwaku's limit for one filter client.
pub(crate) const FEEDS_MAX: usize = 1_000;
/// The most memory of all waiting messages. Beyond it the oldest message of all subscriptions is dropped.
pub(crate) const CACHE_BYTES_MAX: usize = 64 << 20;
/// The memory of a waiting message besides its bytes and topics: its struct, and its entries in the queue and in the order.
const HELD_BYTES: usize = 512;
/// The most bytes of one fetch, unless a single message is longer: the rest stays.
const FETCH_BYTES_MAX: usize = 4_000_000;
/// The longest JSON of these: their base64 is a third longer, and the rest no longer than its memory.
pub(crate) const FETCHED_JSON_BYTES_MAX: usize = FETCH_BYTES_MAX / 3 * 4;

/// Messages that are remembered to recognise a second copy: minutes of what a busy network sends, some 8 MiB. Relay remembers the
/// messages of two minutes, but does not see what is published here a second time.
pub(crate) const SEEN_MAX: usize = 1 << 16;

/// A subscription of REST clients, by which they fetch messages.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Feed {
    /// All messages of a pubsub topic.
    Relay(Arc<str>),
    /// Messages of a content topic on the pubsub topic of its shard.
    Auto(Topics),
    /// Messages of a content topic on a pubsub topic, as requested by filter clients.
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

/// The number of subscriptions is at its limit.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooMany;

/// Messages that wait until REST clients fetch them, a bounded queue for each subscription.
///
/// REST has no sessions, so the subscriptions belong to all clients together, as in nwaku: the client that fetches first gets the
/// messages.
#[derive(Debug)]
pub struct MessageCache {
    messages_max: usize,
    bytes_max: usize,
    /// The number of subscriptions, so that messages need no lock while there are none.
    subscriptions: AtomicUsize,
    held: Mutex<Held>,
    metrics: CacheMetrics,
}

#[derive(Debug, Default)]
struct Held {
    feeds: HashMap<Feed, Queue>,
    /// The feed that holds the message with a number. Numbers ascend in the order of arrival.
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
    /// Messages from this number on are stored.
    since: u64,
    waiting: VecDeque<Waiting>,
    /// Whether a client uses it: feeds of the settings alone are not counted as subscribers.
    is_asked: bool,
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    event: Arc<Event>,
}

impl MessageCache {
    /// Creates an empty cache, to be passed to [`crate::Waku::start`] as a listener and to [`super::Rest`].
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

    /// Begins to store messages for these feeds: for all of them or, when they are too many, for none.
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

    /// Begins to store messages of pubsub topics before a client subscribes. Returns the number of topics that fit.
    pub(crate) fn keep(&self, pubsub_topics: &[String]) -> usize {
        let mut held = self.held.lock();
        let room = FEEDS_MAX.saturating_sub(held.feeds.len());
        for topic in pubsub_topics.iter().take(room) {
            held.begin(Feed::Relay(topic.as_str().into()));
        }
        self.note(&held);
        room.min(pubsub_topics.len())
    }

    /// Stops storing messages for these feeds, drops the waiting ones, and returns how many of the feeds existed.
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

    /// Whether any feed is for messages of a pubsub topic.
    pub(crate) fn wants(&self, pubsub_topic: &str) -> bool {
        self.held.lock().feeds.keys().any(|feed| &**feed.pubsub_topic() == pubsub_topic)
    }

    /// Removes and returns the waiting messages, from old to new; `None` without a subscription. Messages that would make the
    /// answer too long stay for the next fetch.
    pub(crate) fn fetch(&self, feed: &Feed) -> Option<Vec<Arc<Event>>> {
        let mut held = self.held.lock();
        held.feeds.get_mut(feed)?.is_asked = true;
        let fetched = held.fetch(std::slice::from_ref(feed));
        self.note(&held);
        Some(fetched)
    }

    /// The same for the feeds of filter clients for a content topic, on any pubsub topic.
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
    /// Messages are stored here once they are archived: clients fetch them only every other second, and a message that the
    /// archive did not accept the first time would be stored twice.
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
        // A client may publish a message again, and relay may deliver it before or after: it is stored once for each feed.
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
    /// The queue of a feed, created if necessary; it stores messages from then on.
    fn begin(&mut self, feed: Feed) -> &mut Queue {
        let since = self.next;
        self.feeds.entry(feed).or_insert_with(|| Queue { since, ..Queue::default() })
    }

    /// Remembers a message, and returns the number of its last copy.
    fn remember(&mut self, hash: MessageHash) -> Option<u64> {
        let number = self.next;
        self.next += 1; // a feed that begins later has a greater one
        self.seen.replace(hash, number)
    }

    /// Stores a message if the feed exists; when the queue is full, it replaces the oldest one. `before`: the number of the
    /// message's last copy, which the feed already had if it existed by then.
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

    /// Drops the oldest messages over all feeds until they take at most `bytes_max`.
    fn shrink(&mut self, bytes_max: usize, metrics: &CacheMetrics) {
        while self.bytes > bytes_max {
            let Some((_, feed)) = self.order.pop_first() else { return };
            // The oldest message overall is the oldest one of its queue.
            let Some(queue) = self.feeds.get_mut(&feed) else { return };
            let Some(oldest) = queue.waiting.pop_front() else { return };
            self.bytes -= size_of_waiting(&oldest.event);
            metrics.dropped(DropReason::Memory);
        }
    }

    /// Removes the oldest messages of some feeds, up to the limit of one fetch.
    fn fetch(&mut self, feeds: &[Feed]) -> Vec<Arc<Event>> {
        let mut fetched = Vec::new();
        let mut bytes = 0;
        // The number of each feed's oldest message: the smallest one is the oldest message overall.
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
