use bytes::Bytes;
use restante_core::{MessageHash, Timestamp};

use super::*;
use crate::{
    live::{Event, Stage},
    rest::cache::{CACHE_BYTES_MAX, FEEDS_MAX, Feed, SEEN_MAX, TooMany, Topics},
};

const OTHER: &str = "/waku/2/rs/16/33";

fn cache_of(relay_cache_messages: usize) -> (MessageCache, RestMetrics) {
    let metrics = RestMetrics::default();
    let relay_cache_messages = relay_cache_messages.try_into().unwrap();
    let config = RestConfig { relay_cache_messages, ..RestConfig::default() };
    (MessageCache::new(&config, &metrics), metrics)
}

/// A message with a unique hash.
fn event(pubsub_topic: &str, content_topic: &str, wire: impl Into<Bytes>) -> Arc<Event> {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&number.to_be_bytes());
    let (hash, time) = (MessageHash(hash), Timestamp(0));
    Arc::new(Event::new(pubsub_topic.into(), content_topic.into(), hash, time, wire.into()))
}

fn relay(pubsub_topic: &str) -> Feed {
    Feed::Relay(pubsub_topic.into())
}

fn filter(pubsub_topic: &str, content_topic: &str) -> Feed {
    Feed::Filter(Topics { pubsub_topic: pubsub_topic.into(), content_topic: content_topic.into() })
}

fn wires(drained: Option<Vec<Arc<Event>>>) -> Vec<Bytes> {
    drained.unwrap().into_iter().map(|event| event.body.clone()).collect()
}

fn text_of(metrics: &RestMetrics) -> String {
    let mut registry = Registry::default();
    metrics.register(&mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    text
}

/// A fetch had no limit but that of the whole cache.
#[test]
fn what_would_make_too_long_an_answer_is_left_for_the_next_time() {
    let (cache, _) = cache_of(50);
    let feeds = [filter(PUBSUB, CHAT), filter(OTHER, CHAT), relay(PUBSUB)];
    cache.subscribe(&feeds).unwrap();
    for number in 0..30_u8 {
        let topic = if number % 2 == 0 { PUBSUB } else { OTHER };
        cache.on_message(&event(topic, CHAT, vec![number; 300_000]), Stage::Relayed);
    }
    let numbers = |bodies: Vec<Bytes>| bodies.iter().map(|wire| wire[0]).collect::<Vec<_>>();
    assert_eq!(numbers(wires(cache.fetch_filter(CHAT))), (0..13).collect::<Vec<_>>());
    assert_eq!(numbers(wires(cache.fetch_filter(CHAT))), (13..26).collect::<Vec<_>>());
    assert_eq!(numbers(wires(cache.fetch_filter(CHAT))), (26..30).collect::<Vec<_>>());
    assert!(wires(cache.fetch_filter(CHAT)).is_empty());
    assert_eq!(wires(cache.fetch(&relay(PUBSUB))).len(), 13, "feeds have nothing to do with each other");
    cache.on_message(&event(PUBSUB, CHAT, vec![0; 5_000_000]), Stage::Relayed);
    assert_eq!(wires(cache.fetch(&filter(PUBSUB, CHAT))).len(), 1, "a long message comes alone");
}

#[test]
fn kept_topics_are_bounded_like_subscriptions_and_nobodys_wish_until_somebody_asks() {
    let (cache, _) = cache_of(50);
    let topics: Vec<String> = (0..=FEEDS_MAX).map(|shard| format!("/waku/2/rs/16/{shard}")).collect();
    assert_eq!(cache.keep(&topics), FEEDS_MAX);
    assert_eq!(cache.keep(&topics), 0);
    let message = event(PUBSUB, CHAT, "x");
    cache.on_message(&message, Stage::Relayed);
    assert!(!cache.has_subscriber(&message));
    assert_eq!(wires(cache.fetch(&relay(PUBSUB))), ["x"]);
    assert!(cache.has_subscriber(&message), "somebody fetches them");
    cache.unsubscribe(&[relay(PUBSUB)]);
    assert!(!cache.has_subscriber(&message));
}

#[test]
fn each_feed_gets_its_own_messages_once() {
    let (cache, _) = cache_of(50);
    let auto = Feed::Auto(Topics { pubsub_topic: PUBSUB.into(), content_topic: CHAT.into() });
    let feeds = [relay(PUBSUB), auto.clone(), filter(PUBSUB, CHAT), relay(OTHER)];
    cache.on_message(&event(PUBSUB, CHAT, "too early"), Stage::Relayed);
    cache.subscribe(&feeds).unwrap();
    cache.on_message(&event(PUBSUB, CHAT, "chat"), Stage::Relayed);
    cache.on_message(&event(PUBSUB, "/x", "x"), Stage::Relayed);
    cache.on_message(&event(OTHER, CHAT, "elsewhere"), Stage::Relayed);
    assert_eq!(wires(cache.fetch(&relay(PUBSUB))), ["chat", "x"]);
    assert_eq!(wires(cache.fetch(&auto)), ["chat"]);
    assert_eq!(wires(cache.fetch(&filter(PUBSUB, CHAT))), ["chat"]);
    assert_eq!(wires(cache.fetch(&relay(OTHER))), ["elsewhere"]);
    for feed in &feeds {
        assert!(wires(cache.fetch(feed)).is_empty(), "{feed:?} is drained");
    }
    assert!(cache.fetch(&filter(OTHER, CHAT)).is_none(), "nobody has subscribed");
}

/// A message that was published twice, or published here after relay had delivered it, was returned twice.
#[test]
fn a_second_copy_of_a_message_is_not_kept_again() {
    let (cache, _) = cache_of(50);
    let message = event(PUBSUB, CHAT, "x");
    cache.subscribe(&[relay(PUBSUB)]).unwrap();
    cache.on_message(&message, Stage::Relayed);
    cache.on_message(&message, Stage::Accepted);
    assert_eq!(wires(cache.fetch(&relay(PUBSUB))), ["x"]);
    cache.on_message(&message, Stage::Accepted);
    assert!(wires(cache.fetch(&relay(PUBSUB))).is_empty(), "it was fetched before");

    cache.subscribe(&[filter(PUBSUB, CHAT)]).unwrap();
    cache.on_message(&message, Stage::Accepted);
    cache.on_message(&message, Stage::Accepted);
    assert_eq!(wires(cache.fetch(&filter(PUBSUB, CHAT))), ["x"], "it is new to this feed");
    assert!(wires(cache.fetch(&relay(PUBSUB))).is_empty());
}

/// The remembered messages are bounded.
#[test]
fn a_copy_is_recognised_among_the_last_messages() {
    let (cache, _) = cache_of(1);
    let message = event(PUBSUB, CHAT, "x");
    cache.subscribe(&[relay(PUBSUB)]).unwrap();
    cache.on_message(&message, Stage::Relayed);
    for _ in 1..SEEN_MAX {
        cache.on_message(&event(PUBSUB, CHAT, "y"), Stage::Relayed);
    }
    cache.on_message(&message, Stage::Relayed);
    assert_eq!(wires(cache.fetch(&relay(PUBSUB))), ["y"]);
    for _ in 0..SEEN_MAX {
        cache.on_message(&event(PUBSUB, CHAT, "z"), Stage::Relayed);
    }
    cache.on_message(&message, Stage::Relayed);
    assert_eq!(wires(cache.fetch(&relay(PUBSUB))), ["x"]);
}

#[test]
fn a_filter_is_drained_by_content_topic_in_the_order_of_arrival() {
    let (cache, _) = cache_of(50);
    cache
        .subscribe(&[filter(PUBSUB, CHAT), filter(OTHER, CHAT), filter(OTHER, "/x"), relay(PUBSUB)])
        .unwrap();
    for (topic, wire) in [(OTHER, "1"), (PUBSUB, "2"), (OTHER, "3")] {
        cache.on_message(&event(topic, CHAT, wire), Stage::Relayed);
    }
    cache.on_message(&event(OTHER, "/x", "x"), Stage::Relayed);
    assert_eq!(wires(cache.fetch_filter(CHAT)), ["1", "2", "3"]);
    assert_eq!(wires(cache.fetch_filter("/x")), ["x"]);
    assert!(cache.fetch_filter("/y").is_none());
}

#[test]
fn the_oldest_message_of_a_full_subscription_is_dropped() {
    let (cache, metrics) = cache_of(2);
    cache.subscribe(&[relay(PUBSUB), relay(OTHER)]).unwrap();
    cache.on_message(&event(OTHER, CHAT, "untouched"), Stage::Relayed);
    for wire in ["1", "2", "3", "4"] {
        cache.on_message(&event(PUBSUB, CHAT, wire), Stage::Relayed);
    }
    assert!(text_of(&metrics).contains("restante_rest_cache_dropped_total{reason=\"full\"} 2\n"));
    assert_eq!(wires(cache.fetch(&relay(PUBSUB))), ["3", "4"]);
    assert_eq!(wires(cache.fetch(&relay(OTHER))), ["untouched"]);
}

#[test]
fn the_oldest_messages_of_all_make_room_when_memory_is_short() {
    let (cache, metrics) = cache_of(50);
    let cache = cache.with_bytes_max(10_200);
    cache.subscribe(&[relay(PUBSUB), relay(OTHER)]).unwrap();
    cache.on_message(&event(PUBSUB, CHAT, vec![1; 3_000]), Stage::Relayed);
    cache.on_message(&event(OTHER, CHAT, vec![2; 3_000]), Stage::Relayed);
    cache.on_message(&event(PUBSUB, CHAT, vec![3; 6_000]), Stage::Relayed);
    assert_eq!(wires(cache.fetch(&relay(PUBSUB))), [vec![3; 6_000]]);
    assert_eq!(wires(cache.fetch(&relay(OTHER))), [vec![2; 3_000]]);
    cache.on_message(&event(PUBSUB, CHAT, vec![4; 11_000]), Stage::Relayed);
    assert!(wires(cache.fetch(&relay(PUBSUB))).is_empty(), "one message alone is too large");
    let text = text_of(&metrics);
    for line in [
        "restante_rest_cache_dropped_total{reason=\"memory\"} 2\n",
        "restante_rest_cached_messages 0\n",
        "restante_rest_cached_bytes 0\n",
        "restante_rest_subscriptions 2\n",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

/// Fills every subscription with messages of the largest size.
#[test]
fn memory_is_bounded_whatever_arrives() {
    let (cache, metrics) = cache_of(50);
    let topics: Vec<String> = (0..20).map(|shard| format!("/waku/2/rs/16/{shard}")).collect();
    let feeds: Vec<Feed> = topics.iter().map(|topic| relay(topic)).collect();
    cache.subscribe(&feeds).unwrap();
    let wire = Bytes::from(vec![0; 150 << 10]);
    for _ in 0..50 {
        topics.iter().for_each(|topic| cache.on_message(&event(topic, CHAT, wire.clone()), Stage::Relayed));
    }
    let left: Vec<Arc<Event>> = feeds.iter().filter_map(|feed| cache.fetch(feed)).flatten().collect();
    let bytes: usize = left.iter().map(|event| event.body.len()).sum();
    assert!((CACHE_BYTES_MAX - (1 << 20)..=CACHE_BYTES_MAX).contains(&bytes), "{bytes} bytes were kept");
    let text = text_of(&metrics);
    let dropped = format!("restante_rest_cache_dropped_total{{reason=\"memory\"}} {}\n", 1_000 - left.len());
    assert!(text.contains(&dropped), "{dropped} is not in\n{text}");
}

#[test]
fn subscriptions_are_bounded_and_too_many_change_nothing() {
    let (cache, _) = cache_of(50);
    let feeds: Vec<Feed> = (0..=FEEDS_MAX).map(|number| filter(PUBSUB, &number.to_string())).collect();
    assert_eq!(cache.subscribe(&feeds), Err(TooMany));
    assert!(!cache.wants(PUBSUB));
    cache.subscribe(&feeds[1..]).unwrap();
    cache.subscribe(&feeds[1..]).unwrap(); // existing ones need no space
    assert_eq!(cache.subscribe(&feeds[..1]), Err(TooMany));
    assert_eq!(cache.unsubscribe(&feeds[..2]), 1);
    cache.subscribe(&feeds[..1]).unwrap();
}

#[test]
fn ending_a_subscription_forgets_what_waits() {
    let (cache, metrics) = cache_of(50);
    cache.subscribe(&[relay(PUBSUB), filter(PUBSUB, CHAT)]).unwrap();
    cache.on_message(&event(PUBSUB, CHAT, "1"), Stage::Relayed);
    assert_eq!(cache.unsubscribe(&[relay(PUBSUB), relay(OTHER)]), 1);
    assert!(cache.fetch(&relay(PUBSUB)).is_none());
    assert!(cache.wants(PUBSUB), "the filter is still there");
    assert_eq!(cache.unsubscribe(&cache.filter_feeds()), 1);
    assert!(!cache.wants(PUBSUB));
    assert!(text_of(&metrics).contains("restante_rest_cached_bytes 0\n"));
    cache.subscribe(&[relay(PUBSUB)]).unwrap();
    assert!(wires(cache.fetch(&relay(PUBSUB))).is_empty());
}
