use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;
use libp2p::PeerId;
use prost::Message;
use restante_waku_wire::rpc::{
    self,
    light_push::{ID, LEGACY_ID, LightPushRequest, LightPushResponse, PushRequest, PushRpc},
};

use crate::node::{AskError, Node};

/// The longest answer: an id and a text.
const RESPONSE_BYTES_MAX: usize = 64 << 10;

/// Why a message was not published.
#[derive(Debug, thiserror::Error)]
pub enum LightPushError {
    /// The service node did not answer.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// The answer can't be decoded, or belongs to another request.
    #[error("the answer is invalid: {0}")]
    InvalidAnswer(String),
    /// It refused the message.
    #[error("refused with status {status}: {text}")]
    Refused {
        /// The status, as in HTTP; 0 in version 2, which has none.
        status: u32,
        /// The status text.
        text: String,
    },
}

/// A service node's answer to a published message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PushedTo {
    /// The number of peers to which it was relayed, if the node returns it.
    pub relay_peers: Option<u32>,
}

/// Publishes messages by service nodes. Clones are handles of the same client.
#[derive(Clone, Debug)]
pub struct LightPushClient {
    node: Node,
    requests: Arc<AtomicU64>,
}

impl LightPushClient {
    /// Creates a client that sends its requests by `node`.
    pub fn new(node: Node) -> Self {
        Self { node, requests: Arc::default() }
    }

    fn next_id(&self) -> String {
        self.requests.fetch_add(1, Ordering::Relaxed).to_string()
    }

    /// Publishes a message on a pubsub topic, or on the shard of its content topic.
    ///
    /// # Errors
    /// See [`LightPushError`].
    pub async fn push(
        &self,
        peer: PeerId,
        pubsub_topic: Option<&str>,
        wire: Bytes,
    ) -> Result<PushedTo, LightPushError> {
        let request_id = self.next_id();
        let request = LightPushRequest {
            request_id: request_id.clone(),
            pubsub_topic: pubsub_topic.map(str::to_owned),
            message: Some(wire),
        };
        let answer = self.node.ask(peer, ID, &rpc::frame(&request), RESPONSE_BYTES_MAX).await?;
        let response = LightPushResponse::decode(answer);
        let response = response.map_err(|error| LightPushError::InvalidAnswer(error.to_string()))?;
        if response.status_code != 200 {
            let text = response.status_desc.unwrap_or_default();
            return Err(LightPushError::Refused { status: response.status_code, text });
        }
        check_id(&response.request_id, &request_id)?;
        Ok(PushedTo { relay_peers: response.relay_peer_count })
    }

    /// The same with version 2 of the protocol.
    ///
    /// # Errors
    /// See [`LightPushError`].
    pub async fn push_legacy(
        &self,
        peer: PeerId,
        pubsub_topic: &str,
        wire: Bytes,
    ) -> Result<PushedTo, LightPushError> {
        let request_id = self.next_id();
        let request = PushRequest { pubsub_topic: pubsub_topic.to_owned(), message: Some(wire) };
        let rpc = PushRpc { request_id: request_id.clone(), request: Some(request), response: None };
        let answer = self.node.ask(peer, LEGACY_ID, &rpc::frame(&rpc), RESPONSE_BYTES_MAX).await?;
        let rpc =
            PushRpc::decode(answer).map_err(|error| LightPushError::InvalidAnswer(error.to_string()))?;
        let response = rpc.response.ok_or_else(|| LightPushError::InvalidAnswer("it is empty".to_owned()))?;
        if !response.is_success {
            return Err(LightPushError::Refused { status: 0, text: response.info.unwrap_or_default() });
        }
        check_id(&rpc.request_id, &request_id)?;
        Ok(PushedTo { relay_peers: None })
    }
}

fn check_id(answered: &str, asked: &str) -> Result<(), LightPushError> {
    if answered == asked {
        return Ok(());
    }
    Err(LightPushError::InvalidAnswer("it belongs to another request".to_owned()))
}
