//! Publishing: JSON to wire bytes, validated, archived, relayed, answered when durable.

use std::{borrow::Cow, fmt, sync::Arc};

use axum::{extract::State, http::Request, response::Response};
use bytes::Bytes;
use restante_core::{ErrorKind, Timestamp};
use restante_waku_wire::WakuMessage;
use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use tokio::time::{Instant, timeout_at};

use super::{App, body, path, reply, reply::Refusal};
use crate::{
    intake::{IntakeError, Published},
    validate::{Invalid, Problem, autoshard},
};

/// What nwaku takes when a message names no content topic.
pub(crate) const DEFAULT_CONTENT_TOPIC: &str = "/waku/2/default-content/proto";

/// `POST /relay/v1/messages/{pubsubTopic}`
///
/// nwaku takes messages only for topics that the node relays. Here a topic that is well-formed and served is enough: the
/// message is archived whether or not anybody is there to relay it to.
pub(crate) async fn publish(
    State(app): State<Arc<App>>,
    request: Request<axum::body::Body>,
) -> Result<Response, Refusal> {
    let deadline = app.deadline();
    let (head, body) = request.into_parts();
    let pubsub_topic = path::last(&head.uri, "pubsubTopic")?;
    let json = body::read(body, app.publish_bytes_max(), deadline).await?;
    let fields = Fields::read(&json)?;
    let message = fields.into_message(Some(DEFAULT_CONTENT_TOPIC), app.rest.clock.now())?;
    take(&app, &pubsub_topic, &message, deadline).await?;
    Ok(reply::text("OK"))
}

/// `POST /relay/v1/auto/messages`
pub(crate) async fn publish_auto(
    State(app): State<Arc<App>>,
    request: Request<axum::body::Body>,
) -> Result<Response, Refusal> {
    let deadline = app.deadline();
    let json = body::read(request.into_body(), app.publish_bytes_max(), deadline).await?;
    let message = Fields::read(&json)?.into_message(None, app.rest.clock.now())?;
    let pubsub_topic = autoshard(&message.content_topic, app.rules())?;
    take(&app, &pubsub_topic, &message, deadline).await?;
    Ok(reply::text("OK"))
}

/// Has a message archived, relayed and handed to those who are here. When this returns it is durable.
pub(crate) async fn take(
    app: &App,
    pubsub_topic: &str,
    message: &WakuMessage,
    deadline: Instant,
) -> Result<Published, Refusal> {
    let _turn = app.take_turn()?;
    let taken = app.rest.waku.intake.publish(pubsub_topic, message.to_wire());
    let Ok(taken) = timeout_at(deadline, taken).await else {
        app.note_append(false);
        return Err(Refusal::unavailable(
            "the archive did not confirm the message in time, it may have kept it: publish it again",
        ));
    };
    let is_archived = message.ephemeral != Some(true); // 14/WAKU2-MESSAGE: ephemeral ones are not
    match taken {
        Ok(published) => {
            if is_archived {
                app.note_append(true);
            }
            Ok(published)
        }
        Err(IntakeError::Invalid(invalid)) => Err(invalid.into()),
        Err(IntakeError::Archive(error)) => {
            app.note_append(!is_archives_fault(&error));
            Err(Refusal::of_kind(error.kind()))
        }
    }
}

fn is_archives_fault(error: &restante_archive::Error) -> bool {
    !matches!(error.kind(), ErrorKind::Invalid)
}

impl Fields<'_> {
    fn read(json: &[u8]) -> Result<Fields<'_>, Refusal> {
        serde_json::from_slice(json).map_err(|error| Refusal::invalid(error.to_string()))
    }

    /// The message as nwaku's REST interface means it: only the payload is required.
    pub(crate) fn into_message(
        self,
        default_content_topic: Option<&str>,
        now: Timestamp,
    ) -> Result<WakuMessage, Invalid> {
        let payload = self.payload.ok_or(Invalid::new("payload", Problem::Missing))?;
        let content_topic = self.content_topic.as_deref().or(default_content_topic);
        let content_topic = content_topic.ok_or(Invalid::new("contentTopic", Problem::Missing))?;
        let meta = self.meta.map(|meta| decode_base64("meta", &meta)).transpose()?;
        let proof = self.proof.and_then(|proof| decode_base64("proof", &proof).ok());
        Ok(WakuMessage {
            payload: decode_base64("payload", &payload)?,
            content_topic: content_topic.to_owned(),
            version: self.version,
            timestamp: Some(self.timestamp.unwrap_or(now.nanos())),
            meta: meta.filter(|meta| !meta.is_empty()),
            rate_limit_proof: proof.filter(|proof| !proof.is_empty()),
            ephemeral: self.ephemeral,
        })
    }
}

fn decode_base64(field: &'static str, text: &str) -> Result<Bytes, Invalid> {
    let decoded = base64_simd::STANDARD.decode_to_vec(text);
    let expected = "expected base64 (RFC 4648 section 4, with padding)";
    decoded.map(Bytes::from).map_err(|_| Invalid::new(field, Problem::Malformed(expected.to_owned())))
}

/// The fields of a published message, borrowed from the request where it holds them unescaped.
#[derive(Debug, Default)]
pub(crate) struct Fields<'a> {
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

pub(crate) fn text<'de, A: MapAccess<'de>>(
    map: &mut A,
    field: &'static str,
) -> Result<Option<Cow<'de, str>>, A::Error> {
    let text: Option<Text<'de>> = value(map, field)?;
    Ok(text.map(|Text(text)| text))
}

/// The next value, or `None` for null; an error names the field.
pub(crate) fn value<'de, A, T>(map: &mut A, field: &'static str) -> Result<Option<T>, A::Error>
where
    A: MapAccess<'de>,
    T: Deserialize<'de>,
{
    map.next_value().map_err(|error| A::Error::custom(format_args!("{field}: {error}")))
}

/// A text that is borrowed when it has no escapes.
pub(crate) struct Text<'a>(pub(crate) Cow<'a, str>);

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
