//! Lightpush: a client has a message published without choosing how. This node itself is the service, as it is for its
//! peers.

use std::{borrow::Cow, fmt, sync::Arc};

use axum::{
    body::Body,
    extract::State,
    http::{Request, StatusCode},
    response::Response,
};
use restante_waku_wire::WakuMessage;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::json;

use super::{
    App, body,
    publish::{self, DEFAULT_CONTENT_TOPIC, Fields, Text},
    reply,
    reply::Refusal,
};
use crate::{
    intake::Published,
    validate::{Invalid, Problem, autoshard, check_pubsub_topic},
};

/// `POST /lightpush/v3/message`, answered in JSON also when the message is refused.
///
/// A message that nobody is there to relay to was archived all the same, so it is answered with 200 and a count of 0.
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
    publish::take(app, &pubsub_topic, &message, deadline).await
}

/// `19/WAKU2-LIGHTPUSH` has a status of its own, 421, for pubsub topics that the service does not serve.
fn refusal_of_topic(invalid: Invalid) -> Refusal {
    let is_not_served = matches!(invalid.problem, Problem::NotServed(_));
    let refusal = Refusal::from(invalid);
    if is_not_served { Refusal { status: StatusCode::MISDIRECTED_REQUEST, ..refusal } } else { refusal }
}

/// The message and where it goes: without a pubsub topic, to the shard of its content topic.
fn read(app: &App, json: &[u8]) -> Result<(String, WakuMessage), Refusal> {
    let push: Push = serde_json::from_slice(json).map_err(|error| Refusal::invalid(error.to_string()))?;
    let message = push.message.ok_or(Invalid::new("message", Problem::Missing))?;
    let now = app.rest.clock.now();
    match push.pubsub_topic.filter(|topic| !topic.is_empty()) {
        Some(topic) => Ok((topic.into_owned(), message.into_message(Some(DEFAULT_CONTENT_TOPIC), now)?)),
        None => {
            let message = message.into_message(None, now)?;
            Ok((autoshard(&message.content_topic, app.rules())?, message))
        }
    }
}

/// The request's fields, borrowed where it holds them unescaped.
#[derive(Debug, Default)]
struct Push<'a> {
    pubsub_topic: Option<Cow<'a, str>>,
    message: Option<Fields<'a>>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Push<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(PushVisitor)
    }
}

struct PushVisitor;

impl<'de> Visitor<'de> for PushVisitor {
    type Value = Push<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a push as a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Push<'de>, A::Error> {
        let mut push = Push::default();
        while let Some(Text(name)) = map.next_key()? {
            match &*name {
                "pubsubTopic" => push.pubsub_topic = publish::text(&mut map, "pubsubTopic")?,
                "message" => push.message = publish::value(&mut map, "message")?,
                _ => _ = map.next_value::<IgnoredAny>()?,
            }
        }
        Ok(push)
    }
}
