//! Publishing: JSON to wire bytes, validated, archived, answered when durable.

use std::{borrow::Cow, fmt, sync::Arc};

use axum::{extract::State, http::Request, response::Response};
use bytes::Bytes;
use percent_encoding::percent_decode_str;
use restante_archive::Message;
use restante_core::Timestamp;
use restante_waku_wire::{ContentTopic, PubsubTopic, WakuMessage};
use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use super::{App, body, reply, reply::Refusal};
use crate::validate::{Invalid, Problem, Rules, validate};

/// The path of [`publish`] up to the topic.
pub(crate) const RELAY_PATH: &str = "/relay/v1/messages/";
/// What nwaku takes when a message names no content topic.
pub(crate) const DEFAULT_CONTENT_TOPIC: &str = "/waku/2/default-content/proto";
/// The cluster of the public network, in which autosharding works without a configured one (`64/WAKU2-NETWORK`).
const AUTO_CLUSTER_ID: u16 = 1;

/// `POST /relay/v1/messages/{pubsubTopic}`
pub(crate) async fn publish(
    State(app): State<Arc<App>>,
    request: Request<axum::body::Body>,
) -> Result<Response, Refusal> {
    let deadline = app.deadline();
    let (head, body) = request.into_parts();
    let pubsub_topic = pubsub_topic_of(head.uri.path())?;
    let json = body::read(body, app.publish_bytes_max(), deadline).await?;
    let now = app.rest.clock.now();
    let message = read_message(&json, Some(DEFAULT_CONTENT_TOPIC), now)?;
    archive(&app, &pubsub_topic, &message, now, deadline).await
}

/// `POST /relay/v1/auto/messages`
pub(crate) async fn publish_auto(
    State(app): State<Arc<App>>,
    request: Request<axum::body::Body>,
) -> Result<Response, Refusal> {
    let deadline = app.deadline();
    let json = body::read(request.into_body(), app.publish_bytes_max(), deadline).await?;
    let now = app.rest.clock.now();
    let message = read_message(&json, None, now)?;
    let pubsub_topic = autoshard(&message.content_topic, &app.rules)?;
    archive(&app, &pubsub_topic, &message, now, deadline).await
}

async fn archive(
    app: &App,
    pubsub_topic: &str,
    message: &WakuMessage,
    now: Timestamp,
    deadline: tokio::time::Instant,
) -> Result<Response, Refusal> {
    let valid = validate(pubsub_topic, message.to_wire(), now, &app.rules)?;
    let is_ephemeral = message.ephemeral == Some(true); // 14/WAKU2-MESSAGE: not to be archived
    if !is_ephemeral {
        append(app, valid, deadline).await?;
    }
    Ok(reply::text("OK"))
}

async fn append(app: &App, message: Message, deadline: tokio::time::Instant) -> Result<(), Refusal> {
    let _turn = app.take_turn()?;
    let appended = tokio::time::timeout_at(deadline, app.rest.archive.append(vec![message])).await;
    let Ok(appended) = appended else {
        app.note_append(false);
        return Err(Refusal::unavailable(
            "the archive did not confirm the message in time, it may have kept it: publish it again",
        ));
    };
    let is_archive_well = appended.as_ref().map_or_else(|error| !is_archives_fault(error), |_| true);
    app.note_append(is_archive_well);
    appended.map_err(|error| Refusal::of_kind(error.kind()))?;
    Ok(())
}

fn is_archives_fault(error: &restante_archive::Error) -> bool {
    !matches!(error.kind(), restante_core::ErrorKind::Invalid)
}

/// The topic in the path, in which its slashes are escaped.
fn pubsub_topic_of(path: &str) -> Result<Cow<'_, str>, Refusal> {
    let escaped = path.strip_prefix(RELAY_PATH).unwrap_or_default();
    percent_decode_str(escaped).decode_utf8().map_err(|_| Refusal::field("pubsubTopic", "is not UTF-8"))
}

/// The pubsub topic into which a content topic falls.
fn autoshard(content_topic: &str, rules: &Rules) -> Result<String, Invalid> {
    let topic: Result<ContentTopic, _> = content_topic.parse();
    let malformed = |error: &dyn ToString| Invalid {
        field: "contentTopic",
        problem: Problem::Malformed(error.to_string()),
    };
    let topic = topic.map_err(|error| malformed(&error))?;
    let cluster = rules.cluster_id.unwrap_or(AUTO_CLUSTER_ID);
    Ok(PubsubTopic::Shard { cluster, shard: topic.shard(rules.shards_in_network) }.to_string())
}

/// Reads a message as nwaku's REST interface writes it: only the payload is required.
fn read_message(
    json: &[u8],
    default_content_topic: Option<&str>,
    now: Timestamp,
) -> Result<WakuMessage, Refusal> {
    let fields: Fields = serde_json::from_slice(json).map_err(|error| Refusal::invalid(error.to_string()))?;
    let payload = fields.payload.ok_or(Invalid::new("payload", Problem::Missing))?;
    let content_topic = fields.content_topic.as_deref().or(default_content_topic);
    let content_topic = content_topic.ok_or(Invalid::new("contentTopic", Problem::Missing))?;
    let meta = fields.meta.map(|meta| decode_base64("meta", &meta)).transpose()?;
    let proof = fields.proof.and_then(|proof| decode_base64("proof", &proof).ok());
    Ok(WakuMessage {
        payload: decode_base64("payload", &payload)?,
        content_topic: content_topic.to_owned(),
        version: fields.version,
        timestamp: Some(fields.timestamp.unwrap_or(now.nanos())),
        meta: meta.filter(|meta| !meta.is_empty()),
        rate_limit_proof: proof.filter(|proof| !proof.is_empty()),
        ephemeral: fields.ephemeral,
    })
}

fn decode_base64(field: &'static str, text: &str) -> Result<Bytes, Invalid> {
    let decoded = base64_simd::STANDARD.decode_to_vec(text);
    let expected = "expected base64 (RFC 4648 section 4, with padding)";
    decoded.map(Bytes::from).map_err(|_| Invalid::new(field, Problem::Malformed(expected.to_owned())))
}

/// The fields of a published message, borrowed from the request where it holds them unescaped.
#[derive(Debug, Default)]
struct Fields<'a> {
    payload: Option<Cow<'a, str>>,
    content_topic: Option<Cow<'a, str>>,
    version: Option<u32>,
    timestamp: Option<i64>,
    meta: Option<Cow<'a, str>>,
    ephemeral: Option<bool>,
    proof: Option<Cow<'a, str>>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(FieldsVisitor)
    }
}

/// Reads the fields one by one, so that an error can name the field: a derived reader does not.
struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = Fields<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a message as a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
        let mut fields = Fields::default();
        while let Some(Text(name)) = map.next_key()? {
            match &*name {
                "payload" => fields.payload = text(&mut map, "payload")?,
                "contentTopic" => fields.content_topic = text(&mut map, "contentTopic")?,
                "version" => fields.version = value(&mut map, "version")?,
                "timestamp" => fields.timestamp = value(&mut map, "timestamp")?,
                "meta" => fields.meta = text(&mut map, "meta")?,
                "ephemeral" => fields.ephemeral = value(&mut map, "ephemeral")?,
                "proof" => fields.proof = text(&mut map, "proof")?,
                _ => _ = map.next_value::<IgnoredAny>()?,
            }
        }
        Ok(fields)
    }
}

fn text<'de, A: MapAccess<'de>>(map: &mut A, field: &'static str) -> Result<Option<Cow<'de, str>>, A::Error> {
    let text: Option<Text<'de>> = value(map, field)?;
    Ok(text.map(|Text(text)| text))
}

/// The next value, or `None` for null; an error names the field.
fn value<'de, A, T>(map: &mut A, field: &'static str) -> Result<Option<T>, A::Error>
where
    A: MapAccess<'de>,
    T: Deserialize<'de>,
{
    map.next_value().map_err(|error| A::Error::custom(format_args!("{field}: {error}")))
}

/// A text that is borrowed when it has no escapes.
struct Text<'a>(Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TextVisitor).map(Text)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text))
    }
}
