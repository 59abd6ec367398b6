//! Lightpush: a client publishes a message by a service node. This node itself is the service, as it is for its peers.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::State,
    http::{Request, StatusCode},
    response::Response,
};
use restante_waku_wire::WakuMessage;
use serde_json::json;

use super::{
    App, body,
    object::Object,
    publish::{self, message_of},
    reply,
    reply::Refusal,
};
use crate::{
    intake::Published,
    lightpush::{NO_RELAY_PEERS, NO_RELAY_PEERS_STATUS},
    validate::{Invalid, Problem, autoshard, check_pubsub_topic},
};

/// `POST /lightpush/v3/message`, answered in JSON also when the message is refused.
///
/// A message for which there are no relay peers was archived anyway, so it is answered with 200 and a count of 0. Only an
/// ephemeral message that nobody would receive is refused, as by libp2p.
pub(crate) async fn push(State(app): State<Arc<App>>, request: Request<Body>) -> Response {
    let (status, answer) = match take(&app, request).await {
        Ok(published) => {
            (StatusCode::OK, json!({"statusDesc": "OK", "relayPeerCount": published.relay_peers}))
        }
        Err(refusal) => (refusal.status, json!({"statusDesc": refusal.text})),
    };
    reply::json_with(status, answer.to_string())
}

/// `POST /lightpush/v1/message`, the form of the protocol's former version.
pub(crate) async fn push_v1(
    State(app): State<Arc<App>>,
    request: Request<Body>,
) -> Result<Response, Refusal> {
    take(&app, request).await?;
    Ok(reply::text("OK"))
}

async fn take(app: &App, request: Request<Body>) -> Result<Published, Refusal> {
    let deadline = app.deadline();
    let json = body::read(request.into_body(), app.publish_bytes_max(), deadline).await?;
    let (pubsub_topic, message) = read(app, &json)?;
    check_pubsub_topic(&pubsub_topic, app.rules()).map_err(refusal_of_topic)?;
    let published = publish::take(app, &pubsub_topic, &message, deadline).await?;
    if published.is_lost {
        let status = StatusCode::from_u16(NO_RELAY_PEERS_STATUS).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
        return Err(Refusal::new(status, NO_RELAY_PEERS));
    }
    Ok(published)
}

/// `19/WAKU2-LIGHTPUSH` has a separate status, 421, for pubsub topics that the service does not serve.
fn refusal_of_topic(invalid: Invalid) -> Refusal {
    let is_not_served = matches!(invalid.problem, Problem::NotServed(_));
    let refusal = Refusal::from(invalid);
    if is_not_served { Refusal { status: StatusCode::MISDIRECTED_REQUEST, ..refusal } } else { refusal }
}

/// The message and its pubsub topic: if none is named, the shard of its content topic.
fn read(app: &App, json: &[u8]) -> Result<(String, WakuMessage), Refusal> {
    let mut push = Object::read(json, "a push as a JSON object")?;
    let pubsub_topic: Option<String> = push.take("pubsubTopic")?;
    let message = push.take_object("message")?.ok_or(Invalid::new("message", Problem::Missing))?;
    let now = app.rest.clock.now();
    match pubsub_topic.filter(|topic| !topic.is_empty()) {
        Some(topic) => Ok((topic, message_of(message, now)?)),
        None => {
            let message = message_of(message, now)?;
            let pubsub_topic = autoshard(&message.content_topic, app.rules()).map_err(refusal_of_topic)?;
            Ok((pubsub_topic, message))
        }
    }
}
