//! Subscriptions: which messages are stored for REST clients, and which pubsub topics the node relays for them.

use std::sync::Arc;

use axum::{body::Body, response::Response};
use bytes::Bytes;
use tokio::time::{Instant, timeout_at};

use super::{
    App, body,
    cache::{FEEDS_MAX, FETCHED_JSON_BYTES_MAX, Feed, MessageCache, TooMany, Topics},
    json, reply,
    reply::Refusal,
};
use crate::{
    large,
    live::Event,
    validate::{autoshard, check_pubsub_topic},
};
use restante_waku_wire::CONTENT_TOPIC_BYTES_MAX;

/// The most topics in one request, as in nwaku's filter service.
pub(crate) const TOPICS_MAX: usize = 100;
/// The longest request about topics: it fits the most topics at several times the usual length.
const TOPICS_BYTES_MAX: usize = 64 << 10;
/// How often a subscription may change while the node applies it; after that the next change is left to apply it.
const SETTLE_ROUNDS_MAX: usize = 8;

/// The body of a request about topics.
pub(crate) async fn read_body(body: Body, deadline: Instant) -> Result<Bytes, Refusal> {
    body::read(body, TOPICS_BYTES_MAX, deadline).await
}

/// The topics of a request that consists of a JSON array of them.
pub(crate) async fn read_list(body: Body, deadline: Instant) -> Result<Vec<String>, Refusal> {
    let json = read_body(body, deadline).await?;
    let topics: Vec<String> = serde_json::from_slice(&json).map_err(|error| Refusal::json(&error))?;
    if topics.len() > TOPICS_MAX {
        return Err(Refusal::invalid(too_many_topics(topics.len())));
    }
    Ok(topics)
}

pub(crate) fn too_many_topics(count: usize) -> String {
    format!("{count} topics are too many: a request has at most {TOPICS_MAX}")
}

/// The feed of all messages of a pubsub topic.
pub(crate) fn relay_feed(app: &App, pubsub_topic: &str) -> Result<Feed, Refusal> {
    check_pubsub_topic(pubsub_topic, app.rules())?;
    Ok(Feed::Relay(pubsub_topic.into()))
}

/// A content topic on the named pubsub topic or, when none is named, on that of its shard.
pub(crate) fn topics_of(
    app: &App,
    pubsub_topic: Option<&str>,
    content_topic: &str,
) -> Result<Topics, Refusal> {
    let len = content_topic.len();
    if len == 0 || len > CONTENT_TOPIC_BYTES_MAX {
        let problem = format!("{len} bytes are not 1 to {CONTENT_TOPIC_BYTES_MAX}");
        return Err(Refusal::field("contentTopic", &problem));
    }
    let pubsub_topic = match pubsub_topic {
        Some(topic) => topic.to_owned(),
        None => autoshard(content_topic, app.rules())?,
    };
    check_pubsub_topic(&pubsub_topic, app.rules())?;
    Ok(Topics { pubsub_topic: pubsub_topic.into(), content_topic: content_topic.into() })
}

/// Begins to store messages for these feeds, and makes the node relay their pubsub topics.
pub(crate) async fn subscribe(app: &App, feeds: &[Feed], deadline: Instant) -> Result<(), Refusal> {
    app.rest.cache.subscribe(feeds).map_err(|TooMany| {
        let text = format!("too many subscriptions: at most {FEEDS_MAX} at once; end some of them first");
        Refusal::new(axum::http::StatusCode::SERVICE_UNAVAILABLE, text)
    })?;
    settle(app, feeds, deadline).await
}

/// Stops storing messages for these feeds, and returns how many of them existed. The node stops relaying pubsub topics that no
/// feed needs any more, except those that it is configured to relay: the archive must not miss messages because a client left.
pub(crate) async fn unsubscribe(app: &App, feeds: &[Feed], deadline: Instant) -> Result<usize, Refusal> {
    let ended = app.rest.cache.unsubscribe(feeds);
    settle(app, feeds, deadline).await?;
    Ok(ended)
}

/// Makes the node relay exactly the wanted ones among the feeds' pubsub topics. Also done for existing subscriptions, so that
/// repeating a request completes what a broken connection left half done.
async fn settle(app: &App, feeds: &[Feed], deadline: Instant) -> Result<(), Refusal> {
    let mut topics: Vec<&str> = feeds.iter().map(|feed| &**feed.pubsub_topic()).collect();
    topics.sort_unstable();
    topics.dedup();
    let settled = async {
        for topic in topics {
            settle_topic(app, topic).await;
        }
    };
    timeout_at(deadline, settled)
        .await
        .map_err(|_| Refusal::unavailable("the node did not follow in time: try again later"))
}

async fn settle_topic(app: &App, topic: &str) {
    let Some(node) = &app.rest.waku.node else { return };
    for _ in 0..SETTLE_ROUNDS_MAX {
        let is_wanted = app.wants(topic);
        if is_wanted {
            node.subscribe(topic).await;
        } else {
            node.unsubscribe(topic).await;
        }
        // Another request may have changed the subscriptions while this one waited for the node.
        if app.wants(topic) == is_wanted {
            return;
        }
    }
}

/// The messages that wait in the cache, in the format of nwaku's REST interface. Memory for them is reserved before they are
/// taken, so that none is lost for lack of it.
pub(crate) async fn fetch(
    app: &App,
    fetch: impl FnOnce(&MessageCache) -> Option<Vec<Arc<Event>>>,
    not_subscribed: Refusal,
) -> Result<Response, Refusal> {
    let memory = app.memory.acquire(FETCHED_JSON_BYTES_MAX, app.deadline()).await?;
    let _permit = app.permits.acquire()?;
    let events = fetch(&app.rest.cache).ok_or(not_subscribed)?;
    let size = json::estimate_messages_size(&events);
    let written = large::work(size, move || memory.hold(json::write_messages(&events))).await;
    written.map(reply::json).map_err(|_| Refusal::internal())
}
