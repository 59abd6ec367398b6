//! Publishing: JSON to wire bytes, validated, archived, relayed, answered when durable.

use std::sync::Arc;

use axum::{extract::State, http::Request, response::Response};
use bytes::Bytes;
use restante_core::{ErrorKind, Timestamp};
use restante_waku_wire::WakuMessage;
use tokio::time::{Instant, timeout_at};

use super::{App, body, object::Object, path, refusals, reply, reply::Refusal};
use crate::{
    intake::{IntakeError, Published, RELAY_TIMEOUT},
    validate::{Invalid, Problem, autoshard},
};

/// `POST /relay/v1/messages/{pubsubTopic}`
///
/// nwaku accepts messages only for topics that the node relays. Here a topic that is well-formed and served is enough: the
/// message is archived whether or not there are relay peers.
pub(crate) async fn publish(
    State(app): State<Arc<App>>,
    request: Request<axum::body::Body>,
) -> Result<Response, Refusal> {
    let deadline = app.deadline();
    let (head, body) = request.into_parts();
    let pubsub_topic = path::last(&head.uri, "pubsubTopic")?;
    let json = body::read(body, app.publish_bytes_max(), deadline).await?;
    let message = message_of(read(&json)?, app.rest.clock.now())?;
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
    let message = message_of(read(&json)?, app.rest.clock.now())?;
    let pubsub_topic = autoshard(&message.content_topic, app.rules())?;
    take(&app, &pubsub_topic, &message, deadline).await?;
    Ok(reply::text("OK"))
}

/// Archives a message, relays it and delivers it to subscribers. When this returns it is durable.
pub(crate) async fn take(
    app: &App,
    pubsub_topic: &str,
    message: &WakuMessage,
    deadline: Instant,
) -> Result<Published, Refusal> {
    let _permit = app.permits.acquire()?;
    let is_archived = message.ephemeral != Some(true); // 14/WAKU2-MESSAGE: ephemeral ones are not
    let taken = app.rest.waku.intake.publish(pubsub_topic, message.to_wire());
    // A message that was archived in time may still be on its way into the node's queues: that is not a failure of the archive.
    let Ok(taken) = timeout_at(deadline + RELAY_TIMEOUT, taken).await else {
        if is_archived {
            app.rest.health.note_append(false);
        }
        return Err(Refusal::unavailable(
            "the archive did not confirm the message in time, it may have kept it: publish it again",
        ));
    };
    match taken {
        Ok(published) => {
            if is_archived {
                app.rest.health.note_append(true);
            }
            Ok(published)
        }
        Err(IntakeError::Invalid(invalid)) => Err(invalid.into()),
        Err(IntakeError::Archive(error)) => {
            app.rest.health.note_append(!is_archives_fault(&error));
            Err(refusals::of_kind(error.kind()))
        }
    }
}

fn is_archives_fault(error: &restante_archive::Error) -> bool {
    !matches!(error.kind(), ErrorKind::Invalid)
}

fn read(json: &[u8]) -> Result<Object, Refusal> {
    Object::read(json, "a message as a JSON object")
}

/// Converts a message of nwaku's REST interface. The payload and the content topic are required.
pub(crate) fn message_of(mut fields: Object, now: Timestamp) -> Result<WakuMessage, Refusal> {
    let payload: Option<String> = fields.take("payload")?;
    let content_topic: Option<String> = fields.take("contentTopic")?;
    let version = fields.take("version")?;
    let timestamp = fields.take("timestamp")?;
    let meta: Option<String> = fields.take("meta")?;
    let ephemeral = fields.take("ephemeral")?;
    let proof: Option<String> = fields.take("proof")?;

    let payload = payload.ok_or(Invalid::new("payload", Problem::Missing))?;
    let content_topic = content_topic.filter(|topic| !topic.is_empty());
    let content_topic = content_topic.ok_or(Invalid::new("contentTopic", Problem::Missing))?;
    let meta = meta.map(|meta| decode_base64("meta", &meta)).transpose()?;
    let proof = proof.and_then(|proof| decode_base64("proof", &proof).ok());
    Ok(WakuMessage {
        payload: decode_base64("payload", &payload)?,
        content_topic,
        version,
        timestamp: Some(timestamp.unwrap_or(now.nanos())),
        meta: meta.filter(|meta| !meta.is_empty()),
        rate_limit_proof: proof.filter(|proof| !proof.is_empty()),
        ephemeral,
    })
}

fn decode_base64(field: &'static str, text: &str) -> Result<Bytes, Invalid> {
    let decoded = base64_simd::STANDARD.decode_to_vec(text);
    let expected = "expected base64 (RFC 4648 section 4, with padding)";
    decoded.map(Bytes::from).map_err(|_| Invalid::new(field, Problem::Malformed(expected.to_owned())))
}
