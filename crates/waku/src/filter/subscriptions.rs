//! The subscriptions of peers and when they expire. The hub matches messages.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use libp2p::PeerId;
use restante_sessions::{
    SessionId,
    hub::{Hub, HubFull, INTEREST_BYTES, Interest, Losses, Overflow, SubscriptionConfig, TopicMatch},
};
use tokio::time::Instant;

use super::{FilterConfig, subscriber::Subscriber};

/// One subscriber's criteria take at most this fraction of the bytes for all.
const SUBSCRIBER_SHARE: usize = 64;

/// Selects the messages of one content topic on one pubsub topic.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Criterion {
    /// The pubsub topic.
    pub pubsub_topic: Arc<str>,
    /// The content topic.
    pub content_topic: Arc<str>,
}

/// A subscriber and its criteria.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    /// The peer id of the subscriber.
    pub peer: PeerId,
    /// The criteria, in the order of topics.
    pub criteria: Vec<Criterion>,
}

/// A limit that a subscription reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Full {
    #[error("no more than {0} subscribers are served: try another node")]
    Subscribers(usize),
    #[error("a subscriber may have no more than {0} pairs of pubsub and content topic")]
    Criteria(usize),
    #[error(
        "a subscriber's topics may take no more than {0} bytes, with {INTEREST_BYTES} bytes for each of them"
    )]
    SubscriberBytes(usize),
    #[error("the topics of all subscribers take too much memory: try another node")]
    Bytes,
    #[error("the server stops: try another node")]
    Stopping,
}

impl From<HubFull> for Full {
    /// Live streams share the hub with the filter, so its own bounds may be reached first.
    fn from(full: HubFull) -> Self {
        match full {
            HubFull::Subscriptions(max) => Self::Subscribers(max),
            HubFull::Interests(max) => Self::Criteria(max),
            HubFull::SubscriptionBytes(max) => Self::SubscriberBytes(max),
            HubFull::Bytes => Self::Bytes,
        }
    }
}

/// The table.
pub(super) struct Subscriptions {
    rows: HashMap<PeerId, Row>,
    criteria: usize,
    bytes: usize,
    /// New subscribers are refused.
    is_closed: bool,
    config: FilterConfig,
    hub: Hub,
    losses: Arc<Losses>,
}

struct Row {
    subscriber: Arc<Subscriber>,
    bytes: usize,
    expires: Instant,
}

/// A subscriber that was added to the table.
pub(super) struct Added {
    pub(super) subscriber: Arc<Subscriber>,
    /// The subscriber that was removed for it.
    pub(super) replaced: Option<Arc<Subscriber>>,
}

/// The criteria of a request, each once, in order.
pub(super) fn criteria_of(pubsub_topic: &str, content_topics: &[String]) -> Vec<Interest> {
    let channel: Arc<str> = pubsub_topic.into();
    let distinct: BTreeSet<&str> = content_topics.iter().map(String::as_str).collect();
    let interest =
        |topic: &str| Interest { channel: Some(channel.clone()), topics: TopicMatch::Exact(topic.into()) };
    distinct.into_iter().map(interest).collect()
}

impl Subscriptions {
    pub(super) fn new(config: FilterConfig, hub: Hub, losses: Arc<Losses>) -> Self {
        Self { rows: HashMap::new(), criteria: 0, bytes: 0, is_closed: false, config, hub, losses }
    }

    pub(super) fn subscribers(&self) -> usize {
        self.rows.len()
    }

    pub(super) fn criteria(&self) -> usize {
        self.criteria
    }

    pub(super) fn get(&self, peer: PeerId) -> Option<&Arc<Subscriber>> {
        self.rows.get(&peer).map(|row| &row.subscriber)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Subscriber>> {
        self.rows.values().map(|row| &row.subscriber)
    }

    /// Refuses new subscribers from now on, so that the caller can close all that are in the table.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(self.config.ttl_seconds.get())
    }

    /// Adds criteria of a subscriber, all or none, and renews its subscription. Returns `None` when the peer is not a subscriber.
    pub(super) fn add(
        &mut self,
        peer: PeerId,
        criteria: &[Interest],
        now: Instant,
    ) -> Result<Option<Arc<Subscriber>>, Full> {
        let Some(row) = self.rows.get(&peer) else { return Ok(None) };
        let subscription = &row.subscriber.subscription;
        let added: Vec<Interest> =
            criteria.iter().filter(|one| !subscription.has_interest(one)).cloned().collect();
        let bytes = self.check_limits(subscription.interest_count(), row.bytes, &added)?;
        subscription.subscribe(&added)?;
        let expires = now + self.ttl();
        self.criteria += added.len();
        self.bytes += bytes;
        let row = self.rows.get_mut(&peer);
        Ok(row.map(|row| {
            row.bytes += bytes;
            row.expires = expires;
            row.subscriber.clone()
        }))
    }

    /// Checks whether a new subscriber with these criteria fits into the limits.
    pub(super) fn check_new_subscriber(&self, criteria: &[Interest]) -> Result<(), Full> {
        if self.is_closed {
            return Err(Full::Stopping);
        }
        self.check_limits(0, 0, criteria)?;
        let is_full = self.rows.len() >= self.config.subscribers_max.get();
        if is_full && self.oldest_disconnected().is_none() {
            return Err(Full::Subscribers(self.config.subscribers_max.get()));
        }
        Ok(())
    }

    /// The bytes of the criteria to add, if they fit into the limits.
    fn check_limits(&self, had: usize, had_bytes: usize, added: &[Interest]) -> Result<usize, Full> {
        let bytes: usize = added.iter().map(Interest::bytes).sum();
        let bytes_max = self.config.criteria_bytes_max.get() / SUBSCRIBER_SHARE;
        if had + added.len() > self.config.criteria_per_peer_max.get() {
            return Err(Full::Criteria(self.config.criteria_per_peer_max.get()));
        }
        if had_bytes + bytes > bytes_max {
            return Err(Full::SubscriberBytes(bytes_max));
        }
        if self.bytes + bytes > self.config.criteria_bytes_max.get() {
            return Err(Full::Bytes);
        }
        Ok(bytes)
    }

    /// Adds a peer that is not in the table. Its session is open; from now on matching messages are queued.
    pub(super) fn insert(
        &mut self,
        id: SessionId,
        peer: PeerId,
        criteria: &[Interest],
        now: Instant,
    ) -> Result<Added, Full> {
        self.check_new_subscriber(criteria)?;
        let subscription = self.hub.join_with_losses(id, self.subscription_config(), self.losses.clone())?;
        subscription.subscribe(criteria)?;
        let replaced = self.evict_if_full();
        let subscriber = Arc::new(Subscriber::new(peer, subscription));
        let bytes: usize = criteria.iter().map(Interest::bytes).sum();
        let row = Row { subscriber: subscriber.clone(), bytes, expires: now + self.ttl() };
        self.rows.insert(peer, row);
        self.criteria += criteria.len();
        self.bytes += bytes;
        Ok(Added { subscriber, replaced })
    }

    fn subscription_config(&self) -> SubscriptionConfig {
        SubscriptionConfig {
            events_max: self.config.queue_messages_max.get(),
            bytes_max: self.config.queue_bytes_max.get(),
            interests_max: self.config.criteria_per_peer_max.get(),
            overflow: Overflow::Drop,
        }
    }

    /// When the table is full, removes the subscriber that is not connected and expires first.
    fn evict_if_full(&mut self) -> Option<Arc<Subscriber>> {
        if self.rows.len() < self.config.subscribers_max.get() {
            return None;
        }
        self.oldest_disconnected().and_then(|peer| self.remove(peer))
    }

    fn oldest_disconnected(&self) -> Option<PeerId> {
        let away = self.rows.iter().filter(|(_, row)| row.subscriber.is_away());
        away.min_by_key(|(_, row)| row.expires).map(|(peer, _)| *peer)
    }

    /// Removes criteria of a peer and renews its subscription. Returns `None` when it had none of them, else the subscriber, and
    /// whether it was removed because it has no criteria left.
    pub(super) fn remove_criteria(
        &mut self,
        peer: PeerId,
        criteria: &[Interest],
        now: Instant,
    ) -> Option<(Arc<Subscriber>, bool)> {
        let expires = now + self.ttl();
        let row = self.rows.get_mut(&peer)?;
        let subscriber = row.subscriber.clone();
        let removed: Vec<Interest> =
            criteria.iter().filter(|one| subscriber.subscription.has_interest(one)).cloned().collect();
        if removed.is_empty() {
            return None;
        }
        subscriber.subscription.unsubscribe(&removed);
        let bytes: usize = removed.iter().map(Interest::bytes).sum();
        row.bytes -= bytes;
        row.expires = expires;
        self.bytes -= bytes;
        self.criteria -= removed.len();
        let is_over = subscriber.subscription.interest_count() == 0;
        if is_over {
            self.remove(peer);
        }
        Some((subscriber, is_over))
    }

    /// Renews a peer's subscription.
    pub(super) fn refresh(&mut self, peer: PeerId, now: Instant) -> Option<Arc<Subscriber>> {
        let expires = now + self.ttl();
        let row = self.rows.get_mut(&peer)?;
        row.expires = expires;
        Some(row.subscriber.clone())
    }

    /// Removes a subscriber. The caller must close it.
    pub(super) fn remove(&mut self, peer: PeerId) -> Option<Arc<Subscriber>> {
        let Row { subscriber, bytes, .. } = self.rows.remove(&peer)?;
        self.criteria -= subscriber.subscription.interest_count();
        self.bytes -= bytes;
        Some(subscriber)
    }

    /// The subscribers whose subscriptions have expired.
    pub(super) fn expired(&self, now: Instant) -> Vec<PeerId> {
        let expired = self.rows.iter().filter(|(_, row)| row.expires <= now);
        expired.map(|(peer, _)| *peer).collect()
    }

    /// Removes a subscriber if its subscription has expired.
    pub(super) fn expire(&mut self, peer: PeerId, now: Instant) -> Option<Arc<Subscriber>> {
        let is_expired = self.rows.get(&peer).is_some_and(|row| row.expires <= now);
        if is_expired { self.remove(peer) } else { None }
    }

    /// All subscriptions, unsorted: sorting many would block other users of the table.
    pub(super) fn all(&self) -> Vec<Subscription> {
        self.iter().map(|subscriber| subscription_of(subscriber)).collect()
    }
}

fn subscription_of(subscriber: &Subscriber) -> Subscription {
    let criterion = |interest: Interest| match (interest.channel, interest.topics) {
        (Some(pubsub_topic), TopicMatch::Exact(content_topic)) => {
            Some(Criterion { pubsub_topic, content_topic })
        }
        _ => None, // the filter has no other interests
    };
    let criteria = subscriber.subscription.interests().into_iter().filter_map(criterion).collect();
    Subscription { peer: subscriber.peer, criteria }
}

#[cfg(test)]
mod tests;
