//! A message as nwaku's REST writes it: `{"messageHash": "0x..", "message": {..}, "pubsubTopic": ".."}`.

use bytes::Bytes;
use restante_archive::Row;
use restante_core::MessageHash;
use restante_waku_wire::{WakuMessage, WakuMessageView};
use serde::{Deserialize, Serialize};

use super::Refusal;

/// One entry of a store response, and one line of an export.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct JsonEntry {
    pub(crate) message_hash: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<JsonMessage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pubsub_topic: Option<String>,
}

/// A message; bytes are written in base64.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct JsonMessage {
    pub(crate) payload: String,
    pub(crate) content_topic: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) version: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) timestamp: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) meta: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ephemeral: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) proof: Option<String>,
}

impl JsonEntry {
    /// The entry of an archived message, as the REST door writes it into an export: without a version if the message has none, so that
    /// an import produces the same message. A body that is not a message of the row's topic comes from another source; it is shown as a
    /// payload, so that everything in an archive is accessible.
    pub(crate) fn of_row(row: &Row<'_>) -> Self {
        let view = WakuMessageView::parse(row.body).ok().filter(|view| view.content_topic == row.topic);
        let message = match view {
            Some(view) => JsonMessage::of_view(&view),
            None => JsonMessage {
                payload: encode(row.body),
                content_topic: row.topic.to_owned(),
                timestamp: Some(row.timestamp.nanos()),
                ..JsonMessage::default()
            },
        };
        Self {
            message_hash: row.message_hash.to_string(),
            message: Some(message),
            pubsub_topic: Some(row.channel.to_owned()),
        }
    }

    /// The entry as in a store response: a message without a version has version 0.
    pub(crate) fn with_version(mut self) -> Self {
        if let Some(message) = &mut self.message {
            message.version.get_or_insert(0);
        }
        self
    }

    /// The parts that an archive needs.
    pub(super) fn into_parts(self) -> Result<(MessageHash, String, Bytes), Refusal> {
        let hash = self.message_hash.parse().map_err(|error| Refusal(format!("messageHash: {error}")))?;
        let message = self.message.ok_or_else(|| Refusal("message is missing".into()))?;
        let pubsub_topic = self.pubsub_topic.ok_or_else(|| Refusal("pubsubTopic is missing".into()))?;
        Ok((hash, pubsub_topic, message.into_wire()?))
    }
}

impl JsonMessage {
    fn of_view(view: &WakuMessageView<'_>) -> Self {
        Self {
            payload: encode(view.payload),
            content_topic: view.content_topic.to_owned(),
            version: view.version,
            timestamp: view.timestamp,
            meta: view.meta.filter(|meta| !meta.is_empty()).map(encode),
            ephemeral: view.ephemeral,
            proof: view.proof.filter(|proof| !proof.is_empty()).map(encode),
        }
    }

    fn into_wire(self) -> Result<Bytes, Refusal> {
        let optional = |name, text: Option<String>| text.map(|text| decode(name, &text)).transpose();
        let message = WakuMessage {
            payload: decode("payload", &self.payload)?,
            content_topic: self.content_topic,
            version: self.version,
            timestamp: self.timestamp,
            meta: optional("meta", self.meta)?,
            rate_limit_proof: optional("proof", self.proof)?,
            ephemeral: self.ephemeral,
        };
        Ok(message.to_wire())
    }

    /// The payload's bytes, if it is valid base64.
    pub(crate) fn payload_bytes(&self) -> Option<Bytes> {
        decode("payload", &self.payload).ok()
    }
}

/// Bytes in base64, RFC 4648 §4, with padding.
pub(crate) fn encode(bytes: &[u8]) -> String {
    base64_simd::STANDARD.encode_to_string(bytes)
}

/// Base64 in bytes, with or without padding.
fn decode(name: &str, text: &str) -> Result<Bytes, Refusal> {
    let digits = text.trim_end_matches('=');
    let bytes = base64_simd::STANDARD_NO_PAD.decode_to_vec(digits);
    bytes.map(Bytes::from).map_err(|_| Refusal(format!("{name} is not base64")))
}
