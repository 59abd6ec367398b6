//! Request-response protocols: one request on a stream, one answer, then the stream is closed.

use async_trait::async_trait;
use bytes::Bytes;
use libp2p::PeerId;

/// The longest answer of most protocols: a status and a short text.
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

    /// The usual longest answer in bytes: this much memory is reserved while the answer is made.
    fn answer_bytes_max(&self) -> usize {
        SHORT_ANSWER_BYTES
    }

    /// Answers a request. Errors in the request are reported in the answer.
    async fn answer(&self, peer: PeerId, request: Bytes) -> Answer;

    /// The answer to a peer that exceeds its rate limit: status 429 if the protocol has statuses.
    fn answer_too_often(&self, request: Bytes) -> Answer;
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The response with its length prefix; `None` if nothing is sent.
    pub frame: Option<Vec<u8>>,
    /// The result as an HTTP status, for the metrics.
    pub status: u32,
}

impl Answer {
    /// A response with its length prefix.
    pub fn new(status: u32, frame: Vec<u8>) -> Self {
        Self { frame: Some(frame), status }
    }

    /// No response.
    pub fn none(status: u32) -> Self {
        Self { frame: None, status }
    }
}
