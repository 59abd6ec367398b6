//! Who has subscribed to what, and until when. Who wants a message is the hub's business.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use libp2p::PeerId;
use restante_sessions::{
    SessionId,
    hub::{Hub, HubFull, INTEREST_BYTES, Interest, Losses, Overflow, SeatConfig, TopicMatch},
};
use tokio::time::Instant;

use super::{FilterConfig, subscriber::Subscriber};

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
            HubFull::Seats(max) => Self::Subscribers(max),
            HubFull::Interests(max) => Self::Criteria(max),
            HubFull::SeatBytes(max) => Self::SubscriberBytes(max),
            HubFull::Bytes => Self::Bytes,
        }
    }
}

/// The table.
pub(super) struct Subscriptions {
    rows: HashMap<PeerId, Row>,
    criteria: usize,
    bytes: usize,
    /// Nobody enters any more.
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

/// A subscriber that is new in the table.
pub(super) struct Entered {
    pub(super) subscriber: Arc<Subscriber>,
    /// Who had to go to make room.
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

    /// Lets nobody in from now on: whoever takes leave of those who are there takes leave of all.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(self.config.ttl_seconds)
    }

    /// Adds to what a subscriber wants, all of it or nothing, and keeps its subscription alive. Returns `None` when the peer
    /// is no subscriber yet.
    pub(super) fn add(
        &mut self,
        peer: PeerId,
        wanted: &[Interest],
        now: Instant,
    ) -> Result<Option<Arc<Subscriber>>, Full> {
        let Some(row) = self.rows.get(&peer) else { return Ok(None) };
        let seat = &row.subscriber.seat;
        let fresh: Vec<Interest> = wanted.iter().filter(|one| !seat.wants(one)).cloned().collect();
        let bytes = self.check_limits(seat.interest_count(), row.bytes, &fresh)?;
        seat.want(&fresh)?;
        let expires = now + self.ttl();
        self.criteria += fresh.len();
        self.bytes += bytes;
        let row = self.rows.get_mut(&peer);
        Ok(row.map(|row| {
            row.bytes += bytes;
            row.expires = expires;
            row.subscriber.clone()
        }))
    }

    /// Whether a peer could subscribe to this that has not subscribed to anything.
    pub(super) fn check_newcomer(&self, wanted: &[Interest]) -> Result<(), Full> {
        if self.is_closed {
            return Err(Full::Stopping);
        }
        self.check_limits(0, 0, wanted)?;
        let is_full = self.rows.len() >= self.config.subscribers_max;
        if is_full && self.longest_away().is_none() {
            return Err(Full::Subscribers(self.config.subscribers_max));
        }
        Ok(())
    }

    /// The bytes of criteria that are added, if there is room for them.
    fn check_limits(&self, had: usize, had_bytes: usize, fresh: &[Interest]) -> Result<usize, Full> {
        let bytes: usize = fresh.iter().map(Interest::bytes).sum();
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
        Ok(bytes)
    }

    /// Enters a peer that is not in the table yet. Its session was opened; from now on what it wants is queued for it.
    pub(super) fn enter(
        &mut self,
        id: SessionId,
        peer: PeerId,
        wanted: &[Interest],
        now: Instant,
    ) -> Result<Entered, Full> {
        self.check_newcomer(wanted)?;
        let seat = self.hub.join_counting(id, self.seat_config(), self.losses.clone())?;
        seat.want(wanted)?;
        let replaced = self.make_room();
        let subscriber = Arc::new(Subscriber::new(peer, seat));
        let bytes: usize = wanted.iter().map(Interest::bytes).sum();
        let row = Row { subscriber: subscriber.clone(), bytes, expires: now + self.ttl() };
        self.rows.insert(peer, row);
        self.criteria += wanted.len();
        self.bytes += bytes;
        Ok(Entered { subscriber, replaced })
    }

    fn seat_config(&self) -> SeatConfig {
        SeatConfig {
            events_max: self.config.queue_messages_max,
            bytes_max: self.config.queue_bytes_max,
            interests_max: self.config.criteria_per_peer_max,
            overflow: Overflow::Drop,
        }
    }

    /// In a full table a newcomer takes the place of the one who is away and was heard of least lately.
    fn make_room(&mut self) -> Option<Arc<Subscriber>> {
        if self.rows.len() < self.config.subscribers_max {
            return None;
        }
        self.longest_away().and_then(|peer| self.remove(peer))
    }

    fn longest_away(&self) -> Option<PeerId> {
        let away = self.rows.iter().filter(|(_, row)| row.subscriber.is_away());
        away.min_by_key(|(_, row)| row.expires).map(|(peer, _)| *peer)
    }

    /// Takes from what a peer wants, and keeps the rest of its subscription alive. Returns `None` when it wanted none of it,
    /// else the subscriber, and whether nothing is left that it wants: then it was removed.
    pub(super) fn cut(
        &mut self,
        peer: PeerId,
        unwanted: &[Interest],
        now: Instant,
    ) -> Option<(Arc<Subscriber>, bool)> {
        let expires = now + self.ttl();
        let row = self.rows.get_mut(&peer)?;
        let subscriber = row.subscriber.clone();
        let gone: Vec<Interest> = unwanted.iter().filter(|one| subscriber.seat.wants(one)).cloned().collect();
        if gone.is_empty() {
            return None;
        }
        subscriber.seat.unwant(&gone);
        let bytes: usize = gone.iter().map(Interest::bytes).sum();
        row.bytes -= bytes;
        row.expires = expires;
        self.bytes -= bytes;
        self.criteria -= gone.len();
        let is_over = subscriber.seat.interest_count() == 0;
        if is_over {
            self.remove(peer);
        }
        Some((subscriber, is_over))
    }

    /// Keeps a peer's subscription alive.
    pub(super) fn refresh(&mut self, peer: PeerId, now: Instant) -> Option<Arc<Subscriber>> {
        let expires = now + self.ttl();
        let row = self.rows.get_mut(&peer)?;
        row.expires = expires;
        Some(row.subscriber.clone())
    }

    /// Removes a subscriber. Whoever does so takes leave of it.
    pub(super) fn remove(&mut self, peer: PeerId) -> Option<Arc<Subscriber>> {
        let Row { subscriber, bytes, .. } = self.rows.remove(&peer)?;
        self.criteria -= subscriber.seat.interest_count();
        self.bytes -= bytes;
        Some(subscriber)
    }

    /// Those who were not heard of for too long.
    pub(super) fn expired(&self, now: Instant) -> Vec<PeerId> {
        let expired = self.rows.iter().filter(|(_, row)| row.expires <= now);
        expired.map(|(peer, _)| *peer).collect()
    }

    /// Removes a subscriber if it was not heard of for too long.
    pub(super) fn expire(&mut self, peer: PeerId, now: Instant) -> Option<Arc<Subscriber>> {
        let is_expired = self.rows.get(&peer).is_some_and(|row| row.expires <= now);
        if is_expired { self.remove(peer) } else { None }
    }

    /// All subscribers, in no order: sorting many would hold up those who wait for the table.
    pub(super) fn all(&self) -> Vec<Subscription> {
        self.iter().map(|subscriber| subscription_of(subscriber)).collect()
    }
}

fn subscription_of(subscriber: &Subscriber) -> Subscription {
    let criterion = |interest: Interest| match (interest.channel, interest.topics) {
        (Some(pubsub_topic), TopicMatch::Exact(content_topic)) => {
            Some(Criterion { pubsub_topic, content_topic })
        }
        _ => None, // the filter asks for nothing else
    };
    let criteria = subscriber.seat.interests().into_iter().filter_map(criterion).collect();
    Subscription { peer: subscriber.peer, criteria }
}

#[cfg(test)]
mod tests;
