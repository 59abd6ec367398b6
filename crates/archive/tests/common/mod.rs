//! Shared by the archive's tests: messages that are easy to distinguish, and plain rows to compare.
#![allow(dead_code, unreachable_pub, reason = "each test target uses a part of it")]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

pub mod cassandra;
pub mod engines;

use restante_archive::{Archive, Message, Page, Query, Walk};
use restante_core::{Bloom, Key, MessageHash, Timestamp, TopicBits};

/// A message at `timestamp` whose hash begins with `hash`; its body identifies the message.
pub fn message(timestamp: i64, hash: u8, topic: &str) -> Message {
    message_in("chan", timestamp, hash, topic)
}

pub fn message_in(channel: &str, timestamp: i64, hash: u8, topic: &str) -> Message {
    let mut bytes = [0; 32];
    bytes[0] = hash;
    bytes[1..9].copy_from_slice(&timestamp.to_be_bytes());
    Message {
        message_hash: MessageHash(bytes),
        channel: channel.into(),
        topic: topic.into(),
        timestamp: Timestamp(timestamp),
        body: format!("{channel} {topic} {timestamp} {hash}").into_bytes().into(),
    }
}

/// An owned row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedRow {
    pub key: Key,
    pub channel: String,
    pub topic: String,
    pub body: Vec<u8>,
}

impl From<&Message> for OwnedRow {
    fn from(message: &Message) -> Self {
        Self {
            key: message.key(),
            channel: message.channel.to_string(),
            topic: message.topic.to_string(),
            body: message.body.to_vec(),
        }
    }
}

pub fn rows(page: &Page) -> Vec<OwnedRow> {
    let row = |row: restante_archive::Row<'_>| OwnedRow {
        key: row.key(),
        channel: row.channel.to_owned(),
        topic: row.topic.to_owned(),
        body: row.body.to_vec(),
    };
    page.rows().map(row).collect()
}

/// All rows of a walk, page after page.
pub async fn walk(archive: &dyn Archive, query: Query) -> Vec<Vec<OwnedRow>> {
    let mut walk = Walk::new(query);
    let mut pages = Vec::new();
    while let Some(page) = walk.next(archive).await.unwrap() {
        pages.push(rows(&page));
    }
    pages
}

/// The messages as rows, in the archive's order.
pub fn sorted(messages: &[Message]) -> Vec<OwnedRow> {
    let mut rows: Vec<OwnedRow> = messages.iter().map(OwnedRow::from).collect();
    rows.sort_by_key(|row| row.key);
    rows
}

/// A stand-in for a protocol's bloom bits: the topic's first three bytes.
pub fn topic_bits(topic: &str) -> TopicBits {
    let byte = |at: usize| u16::from(topic.as_bytes().get(at).copied().unwrap_or(0)) + 100 * at as u16;
    TopicBits::new([byte(0), byte(1), byte(2)])
}

pub fn filter_of(topics: &[&str]) -> Box<Bloom> {
    let mut filter = Bloom::EMPTY;
    for topic in topics {
        filter.insert(topic_bits(topic));
    }
    Box::new(filter)
}
