//! Who wants what: a table of subscribers, and an index from topics to those who want them.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use libp2p::PeerId;
use tokio::time::Instant;

use super::{
    FilterConfig,
    outbox::{Outbox, Room},
};

/// What a criterion takes beside its topics: an entry in its subscriber's set and one in the index.
const CRITERION_BYTES: usize = 320;
/// One subscriber's criteria take at most this part of the bytes for all.
const SUBSCRIBER_SHARE: usize = 64;

/// What a subscriber wants: messages of one content topic on one pubsub topic.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Criterion {
    /// The pubsub topic.
    pub pubsub_topic: Arc<str>,
    /// The content topic.
    pub content_topic: Arc<str>,
}

/// A subscriber and what it wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// Who.
    pub peer: PeerId,
    /// What, in the order of topics.
    pub criteria: Vec<Criterion>,
}

/// Why somebody can't subscribe, or not to more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Full {
    #[error("no more than {0} subscribers are served: try another node")]
    Subscribers(usize),
    #[error("a subscriber may have no more than {0} pairs of pubsub and content topic")]
    Criteria(usize),
    #[error(
        "a subscriber's topics may take no more than {0} bytes, with {CRITERION_BYTES} bytes for each of them"
    )]
    SubscriberBytes(usize),
    #[error("the topics of all subscribers take too much memory: try another node")]
    Bytes,
}

/// By pubsub topic and content topic: who wants such messages. Subscribers are told apart by the numbers of their outboxes,
/// because a peer id as a key would take ten times the room.
type Index = HashMap<Arc<str>, HashMap<Arc<str>, HashMap<u64, Arc<Outbox>>>>;

/// The table.
pub(crate) struct Subscriptions {
    subscribers: HashMap<PeerId, Subscriber>,
    index: Index,
    criteria: usize,
    bytes: usize,
    /// Subscribers up to now.
    numbers: u64,
    config: FilterConfig,
    room: Arc<Room>,
}

struct Subscriber {
    outbox: Arc<Outbox>,
    criteria: HashSet<Criterion>,
    bytes: usize,
    expires: Instant,
}

/// What subscribing has changed.
pub(crate) struct Subscribed {
    /// The subscriber, if it is a new one.
    pub(crate) new: Option<Arc<Outbox>>,
    /// Who had to go to make room.
    pub(crate) replaced: Option<Arc<Outbox>>,
}

impl Subscriptions {
    pub(crate) fn new(config: FilterConfig, room: Arc<Room>) -> Self {
        let (subscribers, index) = (HashMap::new(), HashMap::new());
        Self { subscribers, index, criteria: 0, bytes: 0, numbers: 0, config, room }
    }

    pub(crate) fn subscribers(&self) -> usize {
        self.subscribers.len()
    }

    pub(crate) fn criteria(&self) -> usize {
        self.criteria
    }

    /// Those who want messages of a content topic on a pubsub topic.
    pub(crate) fn wanting(
        &self,
        pubsub_topic: &str,
        content_topic: &str,
    ) -> Option<&HashMap<u64, Arc<Outbox>>> {
        self.index.get(pubsub_topic)?.get(content_topic)
    }

    /// A subscriber's queue.
    pub(crate) fn outbox(&self, peer: PeerId) -> Option<&Arc<Outbox>> {
        self.subscribers.get(&peer).map(|subscriber| &subscriber.outbox)
    }

    pub(crate) fn outboxes(&self) -> impl Iterator<Item = &Arc<Outbox>> {
        self.subscribers.values().map(|subscriber| &subscriber.outbox)
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(self.config.ttl_seconds)
    }

    /// Adds content topics to what a peer wants, all of them or none, and keeps its subscription alive.
    pub(crate) fn subscribe(
        &mut self,
        peer: PeerId,
        pubsub_topic: &str,
        content_topics: &[String],
        now: Instant,
    ) -> Result<Subscribed, Full> {
        let wanted = self.criteria_of(pubsub_topic, content_topics);
        let (fresh, bytes) = self.check_limits(peer, wanted)?;
        let replaced = self.make_room_for(peer)?;
        let new = self.enter(peer, now);
        let expires = now + self.ttl();
        if let Some(subscriber) = self.subscribers.get_mut(&peer) {
            for criterion in fresh {
                add(&mut self.index, &criterion, &subscriber.outbox);
                subscriber.criteria.insert(criterion);
                self.criteria += 1;
            }
            subscriber.expires = expires;
            subscriber.bytes += bytes;
            self.bytes += bytes;
        }
        Ok(Subscribed { new, replaced })
    }

    /// The criteria of a request, each once. Topics that are known already are shared.
    fn criteria_of(&self, pubsub_topic: &str, content_topics: &[String]) -> HashSet<Criterion> {
        let known = self.index.get_key_value(pubsub_topic);
        let pubsub_topic = known.map_or_else(|| Arc::from(pubsub_topic), |(topic, _)| topic.clone());
        let shared = |topic: &str| known.and_then(|(_, by_content)| by_content.get_key_value(topic));
        let content_topics = content_topics
            .iter()
            .map(|topic| shared(topic).map_or_else(|| Arc::from(&**topic), |(topic, _)| topic.clone()));
        content_topics
            .map(|content_topic| Criterion { pubsub_topic: pubsub_topic.clone(), content_topic })
            .collect()
    }

    /// Those criteria that the peer does not have yet, and their bytes.
    fn check_limits(
        &self,
        peer: PeerId,
        wanted: HashSet<Criterion>,
    ) -> Result<(Vec<Criterion>, usize), Full> {
        let subscriber = self.subscribers.get(&peer);
        let has = |criterion: &Criterion| subscriber.is_some_and(|it| it.criteria.contains(criterion));
        let fresh: Vec<Criterion> = wanted.into_iter().filter(|criterion| !has(criterion)).collect();
        let bytes: usize = fresh.iter().map(bytes_of).sum();
        let (had, had_bytes) = subscriber.map_or((0, 0), |it| (it.criteria.len(), it.bytes));
        let bytes_max = self.config.criteria_bytes_max / SUBSCRIBER_SHARE;
        if had + fresh.len() > self.config.criteria_per_peer_max {
            return Err(Full::Criteria(self.config.criteria_per_peer_max));
        }
        if had_bytes + bytes > bytes_max {
            return Err(Full::SubscriberBytes(bytes_max));
        }
        if self.bytes + bytes > self.config.criteria_bytes_max {
            return Err(Full::Bytes);
        }
        Ok((fresh, bytes))
    }

    /// In a full table a newcomer takes the place of the one who is away and was heard of least lately.
    fn make_room_for(&mut self, peer: PeerId) -> Result<Option<Arc<Outbox>>, Full> {
        let is_full = self.subscribers.len() >= self.config.subscribers_max;
        if !is_full || self.subscribers.contains_key(&peer) {
            return Ok(None);
        }
        let away = self.subscribers.iter().filter(|(_, subscriber)| subscriber.outbox.is_away());
        let longest = away.min_by_key(|(_, subscriber)| subscriber.expires).map(|(peer, _)| *peer);
        let replaced = longest.and_then(|peer| self.remove(peer));
        replaced.map(Some).ok_or(Full::Subscribers(self.config.subscribers_max))
    }

    fn enter(&mut self, peer: PeerId, now: Instant) -> Option<Arc<Outbox>> {
        if self.subscribers.contains_key(&peer) {
            return None;
        }
        self.numbers += 1;
        let outbox = Outbox::new(peer, self.numbers, &self.config, self.room.clone());
        let subscriber = Subscriber {
            outbox: outbox.clone(),
            criteria: HashSet::new(),
            bytes: 0,
            expires: now + self.ttl(),
        };
        self.subscribers.insert(peer, subscriber);
        Some(outbox)
    }

    /// Takes content topics from what a peer wants, and keeps the rest of its subscription alive. Returns `None` when it
    /// wanted none of them, else the subscriber if nothing is left that it wants.
    pub(crate) fn unsubscribe(
        &mut self,
        peer: PeerId,
        pubsub_topic: &str,
        content_topics: &[String],
        now: Instant,
    ) -> Option<Option<Arc<Outbox>>> {
        let unwanted = self.criteria_of(pubsub_topic, content_topics);
        let expires = now + self.ttl();
        let subscriber = self.subscribers.get_mut(&peer)?;
        let before = subscriber.criteria.len();
        for criterion in unwanted {
            if subscriber.criteria.remove(&criterion) {
                cut(&mut self.index, &criterion, subscriber.outbox.number);
                subscriber.bytes -= bytes_of(&criterion);
                self.bytes -= bytes_of(&criterion);
                self.criteria -= 1;
            }
        }
        let (after, is_refreshed) = (subscriber.criteria.len(), subscriber.criteria.len() < before);
        if !is_refreshed {
            return None;
        }
        subscriber.expires = expires;
        if after > 0 {
            return Some(None);
        }
        Some(self.remove(peer))
    }

    /// Keeps a peer's subscription alive; false when there is none.
    pub(crate) fn refresh(&mut self, peer: PeerId, now: Instant) -> bool {
        let expires = now + self.ttl();
        let Some(subscriber) = self.subscribers.get_mut(&peer) else { return false };
        subscriber.expires = expires;
        true
    }

    /// Removes a subscriber.
    pub(crate) fn remove(&mut self, peer: PeerId) -> Option<Arc<Outbox>> {
        let subscriber = self.subscribers.remove(&peer)?;
        for criterion in &subscriber.criteria {
            cut(&mut self.index, criterion, subscriber.outbox.number);
        }
        self.criteria -= subscriber.criteria.len();
        self.bytes -= subscriber.bytes;
        Some(subscriber.outbox)
    }

    /// Those who were not heard of for too long.
    pub(crate) fn expired(&self, now: Instant) -> Vec<PeerId> {
        let expired = self.subscribers.iter().filter(|(_, subscriber)| subscriber.expires <= now);
        expired.map(|(peer, _)| *peer).collect()
    }

    /// Removes a subscriber if it was not heard of for too long.
    pub(crate) fn expire(&mut self, peer: PeerId, now: Instant) -> Option<Arc<Outbox>> {
        let is_expired = self.subscribers.get(&peer).is_some_and(|subscriber| subscriber.expires <= now);
        if is_expired { self.remove(peer) } else { None }
    }

    /// All subscribers, in no order: sorting many would hold up those who wait for the table.
    pub(crate) fn all(&self) -> Vec<Subscription> {
        let all = self.subscribers.iter().map(|(peer, subscriber)| Subscription {
            peer: *peer,
            criteria: subscriber.criteria.iter().cloned().collect(),
        });
        all.collect()
    }
}

fn bytes_of(criterion: &Criterion) -> usize {
    criterion.pubsub_topic.len() + criterion.content_topic.len() + CRITERION_BYTES
}

fn add(index: &mut Index, criterion: &Criterion, outbox: &Arc<Outbox>) {
    let by_content = index.entry(criterion.pubsub_topic.clone()).or_default();
    by_content.entry(criterion.content_topic.clone()).or_default().insert(outbox.number, outbox.clone());
}

/// Leaves nothing empty behind.
fn cut(index: &mut Index, criterion: &Criterion, number: u64) {
    let Some(by_content) = index.get_mut(&criterion.pubsub_topic) else { return };
    if let Some(outboxes) = by_content.get_mut(&criterion.content_topic) {
        outboxes.remove(&number);
        if outboxes.is_empty() {
            by_content.remove(&criterion.content_topic);
        }
    }
    if by_content.is_empty() {
        index.remove(&criterion.pubsub_topic);
    }
}

#[cfg(test)]
mod tests;
