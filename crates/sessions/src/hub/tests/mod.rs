//! The hub against a naive model, by several threads at once, and its bounds.

mod bounds;
mod model;
mod threads;

use bytes::Bytes;
use futures_util::FutureExt;
use restante_core::{MessageHash, Timestamp};

use super::{metrics::DropReason, *};
use crate::NodeId;

fn id(number: u64) -> SessionId {
    SessionId { opened_us: number, node: NodeId(1), user_hash: 0 }
}

fn config(overflow: Overflow) -> SubscriptionConfig {
    SubscriptionConfig { events_max: 1_000, bytes_max: 1 << 20, interests_max: 1_000, overflow }
}

fn hub() -> (Hub, HubMetrics) {
    hub_with(HubConfig::default())
}

fn hub_with(config: HubConfig) -> (Hub, HubMetrics) {
    let metrics = HubMetrics::default();
    (Hub::new(config, metrics.clone()), metrics)
}

fn hash(number: u64) -> MessageHash {
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&number.to_be_bytes());
    MessageHash(hash)
}

/// An event whose timestamp is its number.
fn event_of(channel: &str, topic: &str, number: u64, bytes: usize) -> Arc<Event> {
    let body = Bytes::from(vec![0; bytes]);
    Arc::new(Event::new(channel.into(), topic.into(), hash(number), Timestamp(number as i64), body))
}

fn event(number: u64) -> Arc<Event> {
    event_of("c", "t", number, 10)
}

fn interest(channel: Option<&str>, topics: TopicMatch) -> Interest {
    Interest { channel: channel.map(Arc::from), topics }
}

fn exact(topic: &str) -> Interest {
    interest(Some("c"), TopicMatch::Exact(topic.into()))
}

fn subscribe(hub: &Hub, number: u64, overflow: Overflow, topics: &[&str]) -> Subscription {
    let subscription = hub.join(id(number), config(overflow)).unwrap();
    let interests: Vec<Interest> = topics.iter().map(|topic| exact(topic)).collect();
    subscription.subscribe(&interests).unwrap();
    subscription
}

/// Everything that a subscription has now.
fn read(subscription: &Subscription) -> Vec<u64> {
    let mut read = Vec::new();
    while let Some(next) = subscription.next().now_or_never() {
        match next {
            Next::Events(events) => read.extend(events.iter().map(|event| event.timestamp.0 as u64)),
            Next::Ended(why) => panic!("the subscription ended: {why:?}"),
        }
    }
    read
}

fn end_of(subscription: &Subscription) -> Ended {
    match subscription.next().now_or_never() {
        Some(Next::Ended(why)) => why,
        other => panic!("the subscription should have ended: {other:?}"),
    }
}
