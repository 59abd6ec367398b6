//! Protocols by which peers ask: one request on a stream, one answer, then the stream is closed.

use async_trait::async_trait;
use bytes::Bytes;
use libp2p::PeerId;

/// What the answers of most protocols stay below: a status and a few words.
const SHORT_ANSWER_BYTES: usize = 32 << 10;

/// A protocol that this node answers.
#[async_trait]
pub trait Service: Send + Sync + 'static {
    /// Its protocol id, as peers negotiate it.
    fn id(&self) -> &'static str;

    /// Its name in metrics and settings: `store`, `filter`, `lightpush`, `metadata`, `peer_exchange`.
    fn name(&self) -> &'static str;

    /// The longest request in bytes; a longer one resets the stream.
    fn request_bytes_max(&self) -> usize;

    /// The longest answer in bytes, as a rule: so much room is kept for it while it is made.
    fn answer_bytes_max(&self) -> usize {
        SHORT_ANSWER_BYTES
    }

    /// Answers a request. Whatever is wrong with the request is said in the answer.
    async fn answer(&self, peer: PeerId, request: Bytes) -> Answer;

    /// The answer to a peer that asks more often than it may: status 429 where the protocol knows one.
    fn answer_too_often(&self, request: Bytes) -> Answer;
}

/// What is written back on the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The response behind its length; `None` where the protocol has none.
    pub frame: Option<Vec<u8>>,
    /// How it went, as in HTTP, for the metrics.
    pub status: u32,
}

impl Answer {
    /// A response behind its length.
    pub fn new(status: u32, frame: Vec<u8>) -> Self {
        Self { frame: Some(frame), status }
    }

    /// No response.
    pub fn none(status: u32) -> Self {
        Self { frame: None, status }
    }
}
