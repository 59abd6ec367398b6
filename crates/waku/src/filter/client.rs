//! The client side: subscribes at a service node and receives pushed messages.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use libp2p::PeerId;
use prost::Message;
use restante_waku_wire::{
    WakuMessageView,
    rpc::{
        self,
        filter::{MessagePush, PUSH_ID, SUBSCRIBE_ID, SubscribeRequest, SubscribeResponse, SubscribeType},
    },
};
use tokio::{sync::mpsc, time::timeout};

use crate::{
    node::{AskError, Node},
    service::{Answer, Service},
};

/// The longest answer: an id and a text.
const RESPONSE_BYTES_MAX: usize = 64 << 10;
/// The most bytes of a push beyond its message.
const PUSH_EXTRA_BYTES: usize = 8 << 10;
/// How long a push waits when the receiver is full. After a longer wait a service node may assume that the stream is reused.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(1);

/// Why a request to a service node failed.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    /// It did not answer.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// The answer can't be decoded, or belongs to another request.
    #[error("the answer is invalid: {0}")]
    InvalidAnswer(String),
    /// It refused.
    #[error("refused with status {status}: {text}")]
    Refused {
        /// The status, as in HTTP.
        status: u32,
        /// The status text.
        text: String,
    },
}

/// Subscribes at service nodes. Clones are handles of the same client.
#[derive(Clone, Debug)]
pub struct FilterClient {
    node: Node,
    requests: Arc<AtomicU64>,
}

impl FilterClient {
    /// Creates a client that sends its requests by `node`.
    pub fn new(node: Node) -> Self {
        Self { node, requests: Arc::default() }
    }

    /// Subscribes to further content topics.
    ///
    /// # Errors
    /// See [`FilterError`].
    pub async fn subscribe(
        &self,
        peer: PeerId,
        pubsub_topic: &str,
        content_topics: &[&str],
    ) -> Result<(), FilterError> {
        self.ask(peer, SubscribeType::Subscribe, Some(pubsub_topic), content_topics).await
    }

    /// Unsubscribes from content topics.
    ///
    /// # Errors
    /// See [`FilterError`].
    pub async fn unsubscribe(
        &self,
        peer: PeerId,
        pubsub_topic: &str,
        content_topics: &[&str],
    ) -> Result<(), FilterError> {
        self.ask(peer, SubscribeType::Unsubscribe, Some(pubsub_topic), content_topics).await
    }

    /// Unsubscribes from everything.
    ///
    /// # Errors
    /// See [`FilterError`].
    pub async fn unsubscribe_all(&self, peer: PeerId) -> Result<(), FilterError> {
        self.ask(peer, SubscribeType::UnsubscribeAll, None, &[]).await
    }

    /// Checks whether there is a subscription, and renews it.
    ///
    /// # Errors
    /// See [`FilterError`]; status 404 when there is none.
    pub async fn ping(&self, peer: PeerId) -> Result<(), FilterError> {
        self.ask(peer, SubscribeType::Ping, None, &[]).await
    }

    async fn ask(
        &self,
        peer: PeerId,
        kind: SubscribeType,
        pubsub_topic: Option<&str>,
        content_topics: &[&str],
    ) -> Result<(), FilterError> {
        let request_id = self.requests.fetch_add(1, Ordering::Relaxed).to_string();
        let request = SubscribeRequest {
            request_id: request_id.clone(),
            subscribe_type: kind.into(),
            pubsub_topic: pubsub_topic.map(str::to_owned),
            content_topics: content_topics.iter().map(|topic| (*topic).to_owned()).collect(),
        };
        let answer = self.node.ask(peer, SUBSCRIBE_ID, &rpc::frame(&request), RESPONSE_BYTES_MAX).await?;
        let response = SubscribeResponse::decode(answer);
        let response = response.map_err(|error| FilterError::InvalidAnswer(error.to_string()))?;
        let (status, text) = (response.status_code, response.status_desc.unwrap_or_default());
        match status {
            200..=299 if response.request_id == request_id => Ok(()),
            200..=299 => Err(FilterError::InvalidAnswer("it belongs to another request".to_owned())),
            _ => Err(FilterError::Refused { status, text }),
        }
    }
}

/// A pushed message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushedMessage {
    /// The service node.
    pub from: PeerId,
    /// The pubsub topic.
    pub pubsub_topic: Arc<str>,
    /// The content topic.
    pub content_topic: Arc<str>,
    /// The message as on the wire.
    pub wire: Bytes,
}

/// Receives pushes of service nodes, one message per stream. Only mounted on a node that subscribes.
#[derive(Debug)]
pub struct FilterPushReceiver {
    messages: mpsc::Sender<PushedMessage>,
    max_message_bytes: usize,
}

impl FilterPushReceiver {
    /// Creates a receiver and the channel of its messages. When `capacity` messages wait, a push waits for a second; after that
    /// its message is lost.
    pub fn new(capacity: usize, max_message_bytes: usize) -> (Arc<Self>, mpsc::Receiver<PushedMessage>) {
        let (messages, received) = mpsc::channel(capacity);
        (Arc::new(Self { messages, max_message_bytes }), received)
    }
}

#[async_trait]
impl Service for FilterPushReceiver {
    fn id(&self) -> &'static str {
        PUSH_ID
    }

    fn name(&self) -> &'static str {
        "filter_push"
    }

    fn request_bytes_max(&self) -> usize {
        self.max_message_bytes.saturating_add(PUSH_EXTRA_BYTES)
    }

    async fn answer(&self, peer: PeerId, request: Bytes) -> Answer {
        let Some(message) = read(peer, request) else { return Answer::none(400) };
        match timeout(QUEUE_TIMEOUT, self.messages.send(message)).await {
            Ok(Ok(())) => Answer::none(200),
            Ok(Err(_)) | Err(_) => Answer::none(503), // the channel is closed or full
        }
    }

    fn answer_too_often(&self, _request: Bytes) -> Answer {
        Answer::none(429)
    }
}

fn read(from: PeerId, request: Bytes) -> Option<PushedMessage> {
    let push = MessagePush::decode(request).ok()?;
    let wire = push.waku_message?;
    let content_topic = WakuMessageView::parse(&wire).ok()?.content_topic.into();
    Some(PushedMessage { from, pubsub_topic: push.pubsub_topic?.into(), content_topic, wire })
}
