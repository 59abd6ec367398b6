//! Messages outside an archive: in files, in pipes, in responses over REST.

pub(crate) mod json;
mod ndjson;
mod protobuf;
mod read;
mod write;

use bytes::Bytes;
use restante_archive::{BODY_BYTES_MAX, CHANNEL_BYTES_MAX, Message, TOPIC_BYTES_MAX};
use restante_core::{MessageHash, Timestamp};
use restante_waku_wire::{WakuMessageView, message_hash};

pub(crate) use read::Reader;
use restante_import::Refusal;
pub(crate) use write::Writer;

/// The format of messages in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum FileFormat {
    /// One JSON object a line, as the REST export gives.
    Ndjson,
    /// Protobuf `WakuMessageKeyValue`, each after its length.
    Protobuf,
}

impl FileFormat {
    /// The format that a file's name indicates: protobuf for `.pb`, `.binpb` and `.bin`, else NDJSON.
    pub(crate) fn of_name(path: &std::path::Path) -> Self {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("pb" | "binpb" | "bin") => Self::Protobuf,
            _ => Self::Ndjson,
        }
    }
}

/// The message for an archive, if its parts belong together: the hash is computed again, so that a damaged or forged record is not
/// accepted under another message's hash.
fn verified(stated: MessageHash, pubsub_topic: &str, wire: Bytes) -> Result<Message, Refusal> {
    let refusal = |what: String| Err(Refusal(what));
    if pubsub_topic.is_empty() {
        return refusal("the pubsub topic is empty".into());
    }
    let view = WakuMessageView::parse(&wire).map_err(|error| Refusal(format!("message: {error}")))?;
    view.check().map_err(|error| Refusal(format!("message: {error}")))?;
    // 13/WAKU2-STORE: ephemeral messages are not stored.
    if view.ephemeral == Some(true) {
        return refusal("message: it is ephemeral".into());
    }
    // 14/WAKU2-MESSAGE: implementations disagree on the hash of a message without a timestamp, so its hash is ambiguous.
    let Some(timestamp) = view.timestamp else { return refusal("message: timestamp is missing".into()) };
    let computed = message_hash(
        pubsub_topic,
        view.payload,
        view.content_topic,
        view.meta.unwrap_or_default(),
        timestamp,
    );
    if computed != stated {
        return refusal(format!("the hash is {stated}, and that of its content {computed}"));
    }
    for (what, len, max) in [
        ("message", wire.len(), BODY_BYTES_MAX),
        ("pubsub topic", pubsub_topic.len(), CHANNEL_BYTES_MAX),
        ("content topic", view.content_topic.len(), TOPIC_BYTES_MAX),
    ] {
        if len > max {
            return refusal(format!("{what} of {len} bytes is too long: the limit is {max}"));
        }
    }
    let topic = view.content_topic.into();
    Ok(Message {
        message_hash: computed,
        channel: pubsub_topic.into(),
        topic,
        timestamp: Timestamp(timestamp),
        body: wire,
    })
}

#[cfg(test)]
mod tests;
