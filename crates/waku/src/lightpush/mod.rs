//! `19/WAKU2-LIGHTPUSH`, versions 3 and 2: light nodes publish messages.
//!
//! Both versions pass the message to the [`Intake`], as REST does. Success means that the message is archived, and was
//! delivered to filter subscribers and to `relay_peer_count` relay peers. So a server without relay peers accepts messages
//! too: other clients get them by filter and store. nwaku refuses them; [`LightPushConfig::relay_peers_min`] does the same.
//! An ephemeral message without a recipient is always refused, because it would be lost.

mod client;
mod legacy;

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use libp2p::PeerId;
use prost::Message;
use restante_core::ErrorKind;
use restante_waku_wire::{
    WakuMessageView,
    rpc::{
        self,
        light_push::{ID, LightPushRequest, LightPushResponse},
    },
};
use serde::{Deserialize, Serialize};

pub use client::{LightPushClient, LightPushError, PushedTo};

use crate::{
    intake::{Intake, IntakeError},
    node::Node,
    service::{Answer, Service},
    validate::{Invalid, Problem, autoshard, check_pubsub_topic},
};
use legacy::LegacyLightPush;

/// The settings of lightpush.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LightPushConfig {
    /// Accept messages only while this many peers follow their pubsub topic by relay. With 0 no peer is needed; nwaku refuses
    /// messages when it has none.
    pub relay_peers_min: usize,
}

/// The most bytes of a request besides its message.
const REQUEST_EXTRA_BYTES: usize = 8 << 10;
/// The request id in the answer to a request that can't be decoded, as in nwaku.
const NO_REQUEST_ID: &str = "N/A";

/// Handles pushed messages of both versions.
#[derive(Clone)]
pub struct LightPush {
    shared: Arc<Shared>,
}

struct Shared {
    config: LightPushConfig,
    intake: Intake,
    node: Option<Node>,
}

impl fmt::Debug for LightPush {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LightPush").field("config", &self.shared.config).finish_non_exhaustive()
    }
}

/// The result of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Outcome {
    status: u32,
    text: String,
    relay_peers: Option<usize>,
}

impl Outcome {
    fn refused(status: u32, text: impl Into<String>) -> Self {
        Self { status, text: text.into(), relay_peers: None }
    }
}

/// The status of an invalid message.
impl From<Invalid> for Outcome {
    fn from(invalid: Invalid) -> Self {
        let status = match invalid.problem {
            Problem::TooLarge { .. } => 413,
            Problem::NotServed(_) => 421,
            _ => 400,
        };
        Self::refused(status, invalid.to_string())
    }
}

/// The status and the public text of an error.
impl From<IntakeError> for Outcome {
    fn from(error: IntakeError) -> Self {
        let kind = error.kind();
        match error {
            IntakeError::Invalid(invalid) => invalid.into(),
            IntakeError::Archive(error) if kind == ErrorKind::Invalid => {
                Self::refused(400, error.to_string())
            }
            IntakeError::Archive(_) if kind.is_transient() => {
                Self::refused(503, "the archive accepts no messages now: try again later")
            }
            IntakeError::Archive(error) => {
                tracing::error!(%error, "the archive refused a pushed message");
                Self::refused(500, "the archive failed")
            }
        }
    }
}

impl LightPush {
    /// Publishes to `intake`. The node counts the followers of a topic.
    pub fn new(config: LightPushConfig, intake: Intake, node: Option<Node>) -> Self {
        Self { shared: Arc::new(Shared { config, intake, node }) }
    }

    /// Both versions.
    pub fn services(&self) -> [Arc<dyn Service>; 2] {
        [Arc::new(self.clone()), Arc::new(LegacyLightPush(self.clone()))]
    }

    /// Messages somewhat above the limit are read, so that they can be answered with 413.
    fn request_bytes_max(&self) -> usize {
        let max_message_bytes = self.shared.intake.rules().max_message_bytes.get();
        max_message_bytes.saturating_mul(2).saturating_add(REQUEST_EXTRA_BYTES)
    }

    async fn push(&self, pubsub_topic: Option<&str>, message: Option<Bytes>) -> Outcome {
        match self.shared.publish(pubsub_topic, message).await {
            Ok(relay_peers) => Outcome { status: 200, text: "OK".to_owned(), relay_peers: Some(relay_peers) },
            Err(outcome) => outcome,
        }
    }
}

impl Shared {
    async fn publish(&self, pubsub_topic: Option<&str>, message: Option<Bytes>) -> Result<usize, Outcome> {
        let message = message.ok_or_else(|| Invalid::new("message", Problem::Missing))?;
        // A copy, so that the message does not keep the whole request in memory.
        let message = Bytes::copy_from_slice(&message);
        let view = WakuMessageView::parse(&message)
            .map_err(|error| Invalid::new("message", Problem::Malformed(error.to_string())))?;
        let pubsub_topic = match pubsub_topic {
            Some(topic) => topic.to_owned(),
            None => autoshard(view.content_topic, self.intake.rules())?,
        };
        self.check_relay_peers(&pubsub_topic)?;
        let published = self.intake.publish(&pubsub_topic, message).await?;
        if published.is_lost { Err(no_relay_peers()) } else { Ok(published.relay_peers) }
    }

    /// Checked before the message is published, so that a refused client can try another node.
    fn check_relay_peers(&self, pubsub_topic: &str) -> Result<(), Outcome> {
        check_pubsub_topic(pubsub_topic, self.intake.rules())?;
        if self.config.relay_peers_min == 0 {
            return Ok(());
        }
        let followers = self.node.as_ref().map_or(0, |node| node.followers(pubsub_topic));
        if followers < self.config.relay_peers_min { Err(no_relay_peers()) } else { Ok(()) }
    }
}

/// The specification says 503; nwaku and js-waku use 505, and 503 for an unavailable service.
pub(crate) const NO_RELAY_PEERS_STATUS: u16 = 505;
pub(crate) const NO_RELAY_PEERS: &str =
    "there are not enough peers to relay the message to: try another node";

fn no_relay_peers() -> Outcome {
    Outcome::refused(NO_RELAY_PEERS_STATUS.into(), NO_RELAY_PEERS)
}

#[async_trait]
impl Service for LightPush {
    fn id(&self) -> &'static str {
        ID
    }

    fn name(&self) -> &'static str {
        "lightpush"
    }

    fn request_bytes_max(&self) -> usize {
        Self::request_bytes_max(self)
    }

    async fn answer(&self, _peer: PeerId, request: Bytes) -> Answer {
        let Ok(request) = LightPushRequest::decode(request) else {
            return respond(NO_REQUEST_ID.to_owned(), Outcome::refused(400, "the request can't be decoded"));
        };
        let pubsub_topic = request.pubsub_topic.as_deref().filter(|topic| !topic.is_empty());
        let outcome = self.push(pubsub_topic, request.message).await;
        respond(request.request_id, outcome)
    }

    fn answer_too_often(&self, request: Bytes) -> Answer {
        let request_id = LightPushRequest::decode(request).map(|request| request.request_id);
        respond(request_id.unwrap_or_else(|_| NO_REQUEST_ID.to_owned()), too_often())
    }
}

fn too_often() -> Outcome {
    Outcome::refused(429, "too many requests: try again later")
}

fn respond(request_id: String, outcome: Outcome) -> Answer {
    let response = LightPushResponse {
        request_id,
        status_code: outcome.status,
        status_desc: Some(outcome.text),
        relay_peer_count: outcome.relay_peers.map(|peers| u32::try_from(peers).unwrap_or(u32::MAX)),
    };
    Answer::new(outcome.status, rpc::frame(&response))
}

#[cfg(test)]
mod tests;
