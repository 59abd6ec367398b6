//! Numbered messages, so that published ones can be looked up.

use std::sync::Arc;

use bytes::Bytes;
use restante_archive::Message;
use restante_core::{MessageHash, Timestamp};
use restante_waku_wire::{WakuMessage, WakuMessageView, message_hash};

use super::PUBSUB_TOPIC;
use crate::random::Random;

/// Different payloads, apart from the numbers at their start: too many for a compressor to profit from.
const BODIES: u64 = 64;
/// Numbers at the beginning of a payload: the stream, the message's number, and a note.
const MARK_BYTES: usize = 24;

/// Messages of one content topic.
pub(crate) struct Letters {
    stream: u64,
    content_topic: String,
    bodies: Vec<Vec<u8>>,
}

/// A message, ready to be published.
#[derive(Clone, Debug)]
pub(crate) struct Letter {
    pub(crate) message_hash: MessageHash,
    pub(crate) timestamp: Timestamp,
    pub(crate) wire: Bytes,
}

impl Letters {
    /// Messages with payloads of this size. Streams with different numbers have no message in common.
    pub(crate) fn new(stream: u64, content_topic: &str, payload_bytes: usize) -> Self {
        let mut random = Random::new(stream, 21);
        let mut bodies = Vec::new();
        for _ in 0..BODIES {
            let mut body = vec![0; payload_bytes.saturating_sub(MARK_BYTES)];
            random.fill(&mut body);
            bodies.push(body);
        }
        Self { stream, content_topic: content_topic.to_owned(), bodies }
    }

    /// The message of this number. The receiver can read the note.
    pub(crate) fn write(&self, number: u64, timestamp: Timestamp, note: u64) -> Letter {
        let body = self.bodies.get((number % BODIES) as usize).map_or(&[][..], Vec::as_slice);
        let mut payload = Vec::with_capacity(MARK_BYTES + body.len());
        for part in [self.stream, number, note] {
            payload.extend_from_slice(&part.to_le_bytes());
        }
        payload.extend_from_slice(body);
        let waku = WakuMessage {
            payload: payload.into(),
            content_topic: self.content_topic.clone(),
            version: Some(0),
            timestamp: Some(timestamp.nanos()),
            ..WakuMessage::default()
        };
        let message_hash =
            message_hash(PUBSUB_TOPIC, &waku.payload, &self.content_topic, &[], timestamp.nanos());
        Letter { message_hash, timestamp, wire: waku.to_wire() }
    }

    /// The same message as the archive stores it.
    pub(crate) fn message(&self, number: u64, timestamp: Timestamp, names: &Names) -> Message {
        let letter = self.write(number, timestamp, 0);
        Message {
            message_hash: letter.message_hash,
            channel: names.pubsub_topic.clone(),
            topic: names.content_topic.clone(),
            timestamp,
            body: letter.wire,
        }
    }

    /// The names that all messages of an archive share.
    pub(crate) fn names(&self) -> Names {
        Names { pubsub_topic: PUBSUB_TOPIC.into(), content_topic: self.content_topic.as_str().into() }
    }
}

/// Topics, shared by messages.
pub(crate) struct Names {
    pubsub_topic: Arc<str>,
    content_topic: Arc<str>,
}

/// Stream and note of a received message; `None` for a message of others.
pub(crate) fn note_of(wire: &[u8]) -> Option<(u64, u64)> {
    let view = WakuMessageView::parse(wire).ok()?;
    let (words, _) = view.payload.as_chunks::<8>();
    let [stream, _, note, ..] = words else { return None };
    Some((u64::from_le_bytes(*stream), u64::from_le_bytes(*note)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_all_numbers_and_streams_differ_and_carry_their_note() {
        let now = Timestamp::from_seconds(1_700_000_000);
        let streams = [Letters::new(1, "/t/1/a/proto", 1_400), Letters::new(2, "/t/1/a/proto", 1_400)];
        let mut hashes = std::collections::HashSet::new();
        for letters in &streams {
            for number in 0..200 {
                let letter = letters.write(number, now, number + 5);
                assert_eq!(note_of(&letter.wire), Some((letters.stream, number + 5)));
                let view = WakuMessageView::parse(&letter.wire).unwrap();
                assert_eq!((view.payload.len(), view.timestamp), (1_400, Some(now.nanos())));
                hashes.insert(letter.message_hash);
            }
        }
        assert_eq!(hashes.len(), 400);
        assert_eq!(note_of(b"garbage"), None);
    }
}
