//! Which messages are accepted: one pure function, used by all protocols.

use std::{num::NonZero, sync::Arc};

use bytes::Bytes;
use restante_archive::Message;
use restante_core::{NANOS_PER_SECOND, Timestamp, nonzero, settings};
use restante_waku_wire::{
    CONTENT_TOPIC_BYTES_MAX, ContentTopic, PubsubTopic, WakuMessageView, WireError, message_hash,
};
use serde::{Deserialize, Serialize};

/// What a server accepts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// Only pubsub topics of this cluster; `None` accepts any.
    #[serde(with = "settings::number_or_any")]
    pub cluster_id: Option<u16>,
    /// Only pubsub topics of these shards; empty accepts all.
    pub shards: Vec<u16>,
    /// The number of shards over which autosharding distributes content topics.
    pub shards_in_network: u16,
    /// The longest message, as on the wire.
    pub max_message_bytes: NonZero<usize>,
    /// How far a timestamp may be from the clock; 0 accepts any.
    pub timestamp_window_seconds: u64,
}

/// Whether the channel of an event is a pubsub topic. The doors share a hub, and no Waku client may see another door's events.
/// Every pubsub topic that is accepted begins with a slash (`23/WAKU2-TOPICS`); the bare address that is the channel of a chat
/// message contains none (RFC 7622, sections 3.2 and 3.3).
pub(crate) fn is_pubsub_topic(channel: &str) -> bool {
    channel.starts_with('/')
}

/// The network's limit on a message, from `64/WAKU2-NETWORK`.
pub const MESSAGE_BYTES_MAX: usize = 150 << 10;
/// How far nwaku allows a timestamp to be from the clock.
pub const TIMESTAMP_WINDOW_SECONDS: u64 = 20;
/// The shards of the public network, from `64/WAKU2-NETWORK`.
pub const SHARDS_IN_NETWORK: u16 = 8;
/// The cluster of the public network, used by autosharding when none is configured (`64/WAKU2-NETWORK`).
const AUTO_CLUSTER_ID: u16 = 1;

impl Default for Rules {
    fn default() -> Self {
        Self {
            cluster_id: None,
            shards: Vec::new(),
            shards_in_network: SHARDS_IN_NETWORK,
            max_message_bytes: nonzero!(MESSAGE_BYTES_MAX),
            timestamp_window_seconds: TIMESTAMP_WINDOW_SECONDS,
        }
    }
}

/// Why a message is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct Invalid {
    /// Which field is wrong, by its name in JSON.
    pub field: &'static str,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What is wrong with a field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// It is absent or empty.
    #[error("is missing")]
    Missing,
    /// It is too long.
    #[error("{len} bytes are too many: the limit is {max} bytes")]
    TooLong {
        /// Its length in bytes.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// The whole message is too large.
    #[error("{len} bytes on the wire are too many: the limit is {max} bytes")]
    TooLarge {
        /// Its size in bytes.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// It is further in the past than the window allows.
    #[error("is {seconds} s in the past: at most {window} s are taken")]
    TooOld {
        /// The difference from the clock, in whole seconds, rounded up: always more than the window.
        seconds: u64,
        /// The limit.
        window: u64,
    },
    /// It is further in the future than the window allows.
    #[error("is {seconds} s in the future: at most {window} s are taken")]
    InFuture {
        /// The difference from the clock, in whole seconds, rounded up: always more than the window.
        seconds: u64,
        /// The limit.
        window: u64,
    },
    /// It is a time in another unit.
    #[error("{number} looks like {unit} since 1970: nanoseconds are wanted")]
    OtherUnit {
        /// The number.
        number: i64,
        /// The unit that it looks like.
        unit: &'static str,
    },
    /// Its format is wrong.
    #[error("{0}")]
    Malformed(String),
    /// It is well-formed, but not served by this server.
    #[error("{0}")]
    NotServed(String),
}

impl Problem {
    /// Recognises a time in another unit: as nanoseconds it would be before the spring of 1973, and in that unit it is after.
    pub fn of_unit(time: Timestamp) -> Option<Self> {
        let number = time.nanos();
        let unit = match number.unsigned_abs() {
            100_000_000..100_000_000_000 => "seconds",
            100_000_000_000..100_000_000_000_000 => "milliseconds",
            100_000_000_000_000..100_000_000_000_000_000 => "microseconds",
            _ => return None,
        };
        Some(Self::OtherUnit { number, unit })
    }
}

impl Invalid {
    pub(crate) fn new(field: &'static str, problem: Problem) -> Self {
        Self { field, problem }
    }
}

/// Checks a message and converts it for the archive. The body is the unchanged wire bytes.
///
/// Ephemeral messages are valid: the caller must not archive them (`14/WAKU2-MESSAGE`).
///
/// # Errors
/// Names the wrong field and what is wrong with it.
pub fn validate(pubsub_topic: &str, wire: Bytes, now: Timestamp, rules: &Rules) -> Result<Message, Invalid> {
    check_pubsub_topic(pubsub_topic, rules)?;
    if wire.len() > rules.max_message_bytes.get() {
        let problem = Problem::TooLarge { len: wire.len(), max: rules.max_message_bytes.get() };
        return Err(Invalid::new("message", problem));
    }
    let view = WakuMessageView::parse(&wire).and_then(|view| view.check().map(|()| view));
    let view = view.map_err(wrong_on_the_wire)?;
    check_content_topic(view.content_topic)?;
    // 14/WAKU2-MESSAGE: implementations disagree about the hash of a message without a timestamp, so none is archived.
    let timestamp = view.timestamp.ok_or(Invalid::new("timestamp", Problem::Missing))?;
    check_timestamp(Timestamp(timestamp), now, rules.timestamp_window_seconds)?;
    let meta = view.meta.unwrap_or_default();
    Ok(Message {
        message_hash: message_hash(pubsub_topic, view.payload, view.content_topic, meta, timestamp),
        channel: Arc::from(pubsub_topic),
        topic: Arc::from(view.content_topic),
        timestamp: Timestamp(timestamp),
        body: wire,
    })
}

/// Checks that a pubsub topic is well-formed and served.
///
/// # Errors
/// Names the topics that are served.
pub fn check_pubsub_topic(text: &str, rules: &Rules) -> Result<(), Invalid> {
    let malformed = |error: &dyn ToString| Invalid::new("pubsubTopic", Problem::Malformed(error.to_string()));
    let topic: PubsubTopic = text.parse().map_err(|error| malformed(&error))?;
    let serves_all = rules.cluster_id.is_none() && rules.shards.is_empty();
    if serves_all {
        return Ok(());
    }
    let is_served = match topic {
        PubsubTopic::Named(_) => false,
        PubsubTopic::Shard { cluster, shard } => {
            let has_cluster = rules.cluster_id.is_none_or(|ours| ours == cluster);
            let has_shard = rules.shards.is_empty() || rules.shards.contains(&shard);
            has_cluster && has_shard
        }
    };
    if is_served {
        Ok(())
    } else {
        Err(Invalid::new("pubsubTopic", Problem::NotServed(served_topics(rules))))
    }
}

/// The pubsub topic of a content topic, by the autosharding of `51/WAKU2-RELAY-SHARDING`.
///
/// # Errors
/// When the content topic does not have the format from which a shard is computed, or its shard is not served.
pub fn autoshard(content_topic: &str, rules: &Rules) -> Result<String, Invalid> {
    let topic: Result<ContentTopic, _> = content_topic.parse();
    let topic = topic.map_err(|error| Invalid::new("contentTopic", Problem::Malformed(error.to_string())))?;
    let cluster = rules.cluster_id.unwrap_or(AUTO_CLUSTER_ID);
    let pubsub_topic =
        PubsubTopic::Shard { cluster, shard: topic.shard(rules.shards_in_network) }.to_string();
    check_pubsub_topic(&pubsub_topic, rules).map_err(|invalid| {
        let problem = Problem::NotServed(format!("falls on {pubsub_topic}, and {}", invalid.problem));
        Invalid::new("contentTopic", problem)
    })?;
    Ok(pubsub_topic)
}

fn served_topics(rules: &Rules) -> String {
    let cluster = rules.cluster_id.map_or_else(|| "<any cluster>".to_owned(), |cluster| cluster.to_string());
    if rules.shards.is_empty() {
        return format!("this server takes only /waku/2/rs/{cluster}/<any shard>");
    }
    let shards: Vec<String> = rules.shards.iter().map(u16::to_string).collect();
    format!("this server takes only /waku/2/rs/{cluster}/<shard> of the shards {}", shards.join(", "))
}

/// Relay only requires that there is a content topic; `23/WAKU2-TOPICS` only recommends the format.
fn check_content_topic(content_topic: &str) -> Result<(), Invalid> {
    if content_topic.is_empty() {
        return Err(Invalid::new("contentTopic", Problem::Missing));
    }
    if content_topic.len() > CONTENT_TOPIC_BYTES_MAX {
        let problem = Problem::TooLong { len: content_topic.len(), max: CONTENT_TOPIC_BYTES_MAX };
        return Err(Invalid::new("contentTopic", problem));
    }
    Ok(())
}

fn check_timestamp(timestamp: Timestamp, now: Timestamp, window: u64) -> Result<(), Invalid> {
    if window == 0 {
        return Ok(());
    }
    let ahead = i128::from(timestamp.nanos()) - i128::from(now.nanos());
    let is_inside = ahead.unsigned_abs() <= u128::from(window) * NANOS_PER_SECOND.unsigned_abs() as u128;
    if is_inside {
        return Ok(());
    }
    if let Some(problem) = Problem::of_unit(timestamp) {
        return Err(Invalid::new("timestamp", problem));
    }
    let seconds = ahead.unsigned_abs().div_ceil(NANOS_PER_SECOND.unsigned_abs() as u128) as u64; // below 2^35
    let problem =
        if ahead < 0 { Problem::TooOld { seconds, window } } else { Problem::InFuture { seconds, window } };
    Err(Invalid::new("timestamp", problem))
}

fn wrong_on_the_wire(error: WireError) -> Invalid {
    match error {
        WireError::Missing("payload") => Invalid::new("payload", Problem::Missing),
        WireError::Missing("content_topic") => Invalid::new("contentTopic", Problem::Missing),
        WireError::TooLong { what: "meta", len, max } => Invalid::new("meta", Problem::TooLong { len, max }),
        other => Invalid::new("message", Problem::Malformed(other.to_string())),
    }
}

#[cfg(test)]
mod tests;
