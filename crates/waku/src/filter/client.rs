//! The other side: asking a service node for messages, and taking what it pushes.

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
/// What a push may have beside its message.
const PUSH_EXTRA_BYTES: usize = 8 << 10;
/// How long a push waits for room among those that nobody has taken yet. A service node that waits for longer may take
/// the stream for one that is read on.
const ROOM_TIMEOUT: Duration = Duration::from_secs(1);

/// Why a service node did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    /// It did not answer.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// Its answer can't be read, or is one to another request.
    #[error("the answer makes no sense: {0}")]
    Nonsense(String),
    /// It refused.
    #[error("refused with status {status}: {text}")]
    Refused {
        /// As in HTTP.
        status: u32,
        /// The same for people.
        text: String,
    },
}

/// Asks service nodes for messages. Cloning gives another handle of the same.
#[derive(Clone, Debug)]
pub struct FilterClient {
    node: Node,
    requests: Arc<AtomicU64>,
}

impl FilterClient {
    /// A client that asks by `node`.
    pub fn new(node: Node) -> Self {
        Self { node, requests: Arc::default() }
    }

    /// Asks for the messages of content topics, beside those that were asked for before.
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

    /// Asks for the messages of content topics no more.
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

    /// Asks for no messages any more.
    ///
    /// # Errors
    /// See [`FilterError`].
    pub async fn unsubscribe_all(&self, peer: PeerId) -> Result<(), FilterError> {
        self.ask(peer, SubscribeType::UnsubscribeAll, None, &[]).await
    }

    /// Asks whether the subscription is still there, and keeps it there.
    ///
    /// # Errors
    /// See [`FilterError`]; status 404 when it is not.
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
        let response = response.map_err(|error| FilterError::Nonsense(error.to_string()))?;
        let (status, text) = (response.status_code, response.status_desc.unwrap_or_default());
        match status {
            200..=299 if response.request_id == request_id => Ok(()),
            200..=299 => Err(FilterError::Nonsense("it is one to another request".to_owned())),
            _ => Err(FilterError::Refused { status, text }),
        }
    }
}

/// A message that a service node has pushed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushedMessage {
    /// By whom.
    pub from: PeerId,
    /// Where it was sent.
    pub pubsub_topic: Arc<str>,
    /// What it is about.
    pub content_topic: Arc<str>,
    /// The message as on the wire.
    pub wire: Bytes,
}

/// Takes what service nodes push, one message per stream. Only mounted on a node that subscribes.
#[derive(Debug)]
pub struct FilterPushReceiver {
    messages: mpsc::Sender<PushedMessage>,
    max_message_bytes: usize,
}

impl FilterPushReceiver {
    /// A receiver, and where its messages come out. When `capacity` messages wait there, the service nodes wait for a
    /// second; what has found no room by then is lost.
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
        match timeout(ROOM_TIMEOUT, self.messages.send(message)).await {
            Ok(Ok(())) => Answer::none(200),
            Ok(Err(_)) | Err(_) => Answer::none(503), // nobody takes them, or not fast enough
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
