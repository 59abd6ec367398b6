//! Messages as other servers store them, and the expected results.
#![allow(dead_code, reason = "each test program uses a part of it")]

use restante_archive::Message;
use restante_core::{MessageHash, Timestamp};
use restante_import::{Batch, Source};
use restante_waku_wire::{WakuMessage, message_hash};
use sha3::Digest;

pub(crate) const PUBSUB_TOPIC: &str = "/waku/2/rs/1/0";
pub(crate) const CONTENT_TOPIC: &str = "/toy/1/chat/proto";

/// A message's fields.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) payload: Vec<u8>,
    pub(crate) meta: Option<Vec<u8>>,
    pub(crate) version: u32,
    pub(crate) timestamp: i64,
}

/// Messages in the order of their timestamps, with and without meta and version.
pub(crate) fn samples(count: u32) -> Vec<Sample> {
    let sample = |number: u32| Sample {
        payload: format!("payload {number}").into_bytes(),
        meta: (!number.is_multiple_of(3)).then(|| format!("meta {number}").into_bytes()),
        version: number % 2,
        timestamp: 1_700_000_000_000_000_000 + i64::from(number) * 1_000_003,
    };
    (0..count).map(sample).collect()
}

impl Sample {
    pub(crate) fn without_meta(&self) -> Self {
        Self { meta: None, ..self.clone() }
    }

    pub(crate) fn hash(&self) -> MessageHash {
        let meta = self.meta.as_deref().unwrap_or_default();
        message_hash(PUBSUB_TOPIC, &self.payload, CONTENT_TOPIC, meta, self.timestamp)
    }

    /// The message as sent over the wire.
    pub(crate) fn message(&self) -> Message {
        let wire = WakuMessage {
            payload: self.payload.clone().into(),
            content_topic: CONTENT_TOPIC.into(),
            version: Some(self.version).filter(|version| *version > 0),
            timestamp: Some(self.timestamp),
            meta: self.meta.clone().map(Into::into),
            ..WakuMessage::default()
        };
        Message {
            message_hash: self.hash(),
            channel: PUBSUB_TOPIC.into(),
            topic: CONTENT_TOPIC.into(),
            timestamp: Timestamp(self.timestamp),
            body: wire.to_wire(),
        }
    }
}

/// All batches as one.
pub(crate) async fn read_all(mut source: Source) -> Batch {
    let mut all = Batch::default();
    while let Some(batch) = source.next().await.expect("the source can be read") {
        all.messages.extend(batch.messages);
        all.refused.extend(batch.refused);
        all.renamed.extend(batch.renamed);
        all.after = batch.after.or(all.after);
        assert!(batch.done >= all.done, "progress goes forward");
        all.done = batch.done;
    }
    all
}

/// An envelope as the Status mailserver stores it, `[expiry, ttl, topic, data, nonce]`, sent at a time.
pub(crate) fn envelope(sent: u32, topic: [u8; 4], data: &[u8]) -> Vec<u8> {
    let mut content = Vec::new();
    content.push(0x84);
    content.extend_from_slice(&(sent + 50).to_be_bytes());
    content.push(50);
    content.push(0x84);
    content.extend_from_slice(&topic);
    put_length(&mut content, 0x80, data.len());
    content.extend_from_slice(data);
    content.push(77);
    let mut out = Vec::new();
    put_length(&mut out, 0xc0, content.len());
    out.extend_from_slice(&content);
    out
}

fn put_length(out: &mut Vec<u8>, short: u8, len: usize) {
    match u8::try_from(len) {
        Ok(len) if len <= 55 => out.push(short + len),
        Ok(len) => out.extend_from_slice(&[short + 56, len]),
        Err(_) => {
            out.push(short + 57);
            out.extend_from_slice(&u16::try_from(len).expect("test data is short").to_be_bytes());
        }
    }
}

/// The key of an envelope in a mailserver's store.
pub(crate) fn key(sent: u32, topic: [u8; 4], envelope: &[u8]) -> Vec<u8> {
    let hash: [u8; 32] = sha3::Keccak256::digest(envelope).into();
    [&sent.to_be_bytes(), &hash[..], &topic].concat()
}

/// The message of an envelope.
pub(crate) fn topic_message(sent: u32, topic: [u8; 4], data: &[u8]) -> Message {
    let timestamp = i64::from(sent) * 1_000_000_000;
    let content_topic = format!("/waku/1/0x{:08x}/rfc26", u32::from_be_bytes(topic));
    let wire = WakuMessage {
        payload: data.to_vec().into(),
        content_topic: content_topic.clone(),
        version: Some(1),
        timestamp: Some(timestamp),
        ..WakuMessage::default()
    };
    let channel = restante_import::DEFAULT_PUBSUB_TOPIC;
    Message {
        message_hash: message_hash(channel, data, &content_topic, b"", timestamp),
        channel: channel.into(),
        topic: content_topic.into(),
        timestamp: Timestamp(timestamp),
        body: wire.to_wire(),
    }
}
