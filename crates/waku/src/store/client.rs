use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;
use libp2p::PeerId;
use prost::{
    Message as _,
    encoding::{DecodeContext, decode_key, skip_field},
};
use restante_waku_wire::{
    PUBSUB_TOPIC_BYTES_MAX,
    rpc::{
        self,
        store::{self, StoreQueryRequest, StoreQueryResponse},
    },
};

use super::{NO_REQUEST_ID, OK, PAGE_ROWS_MAX, hash_of};
use crate::{
    node::{AskError, Node},
    validate::MESSAGE_BYTES_MAX,
};

/// The most bytes of an answer besides its messages: request id, status, text and cursor.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// The most bytes of a row besides its message: its hash and its pubsub topic, with their keys and lengths.
const ROW_BYTES_MAX: usize = 64 + PUBSUB_TOPIC_BYTES_MAX;
/// A peer's error text is cut here.
const TEXT_CHARS_MAX: usize = 200;
/// The field of an answer that holds its messages.
const MESSAGES_FIELD: u32 = 20;

/// Queries peers. Clones are handles of the same client.
#[derive(Clone, Debug)]
pub struct StoreClient {
    node: Node,
    max_message_bytes: usize,
    asked: Arc<AtomicU64>,
}

/// Why a query failed.
#[derive(Debug, thiserror::Error)]
pub enum StoreClientError {
    /// The peer did not answer.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// The peer's answer is not an answer to the request.
    #[error("the peer's answer can't be used: {0}")]
    Malformed(&'static str),
    /// The peer refused.
    #[error("the peer answered with status {status}: {text:?}")]
    Refused {
        /// The status, as in HTTP.
        status: u32,
        /// The peer's text.
        text: String,
    },
}

impl StoreClient {
    /// Creates a client that queries the peers of a node, and accepts messages up to the network's usual limit.
    pub fn new(node: Node) -> Self {
        Self { node, max_message_bytes: MESSAGE_BYTES_MAX, asked: Arc::default() }
    }

    /// The same with another limit on messages.
    #[must_use]
    pub fn with_max_message_bytes(self, max_message_bytes: usize) -> Self {
        Self { max_message_bytes, ..self }
    }

    /// Queries one page from a connected peer. The request gets an id unless it has one.
    ///
    /// The result has status 200 and no more messages than requested, each with a hash of 32 bytes. The hashes are not verified.
    ///
    /// # Errors
    /// See [`StoreClientError`].
    pub async fn query(
        &self,
        peer: PeerId,
        request: &StoreQueryRequest,
    ) -> Result<StoreQueryResponse, StoreClientError> {
        let mut request = request.clone();
        if request.request_id.is_empty() {
            request.request_id = self.next_id();
        }
        let rows_max = rows_max(&request);
        let bytes_max = self.answer_bytes_max(&request, rows_max);
        let answer = self.node.ask(peer, store::ID, &rpc::frame(&request), bytes_max).await?;
        read_answer(answer, &request.request_id, rows_max)
    }

    /// An id that is unique on this node. A number is enough: a stream carries one request, so guessing an id gains nothing.
    fn next_id(&self) -> String {
        let number = self.asked.fetch_add(1, Ordering::Relaxed);
        format!("{}-{number}", self.node.peer_id())
    }

    fn answer_bytes_max(&self, request: &StoreQueryRequest, rows_max: usize) -> usize {
        let message = if request.include_data { self.max_message_bytes } else { 0 };
        HEAD_BYTES_MAX + rows_max * (ROW_BYTES_MAX + message)
    }
}

/// The most messages in the answer: the page size of the request, or else the largest page.
fn rows_max(request: &StoreQueryRequest) -> usize {
    let limit = request.pagination_limit.filter(|limit| *limit > 0).unwrap_or(PAGE_ROWS_MAX);
    limit.min(PAGE_ROWS_MAX) as usize
}

fn read_answer(
    answer: Bytes,
    request_id: &str,
    rows_max: usize,
) -> Result<StoreQueryResponse, StoreClientError> {
    if count_messages(answer.clone()).is_none_or(|count| count > rows_max) {
        return Err(StoreClientError::Malformed("not a store answer, or more messages than requested"));
    }
    let response = StoreQueryResponse::decode(answer);
    let mut response = response.map_err(|_| StoreClientError::Malformed("not a store answer"))?;
    // Some servers write an empty cursor at the end.
    response.pagination_cursor = response.pagination_cursor.filter(|cursor| !cursor.is_empty());
    // Servers that could not decode the request answer without an id, or with NO_REQUEST_ID.
    if !["", NO_REQUEST_ID, request_id].contains(&&*response.request_id) {
        return Err(StoreClientError::Malformed("the answer to another request"));
    }
    check_status(&response)?;
    check_hashes(&response)?;
    Ok(response)
}

/// Counts the messages of an answer before it is decoded: decoded, an empty message is thirty times larger than on the wire.
/// `None` when the bytes are not protobuf.
fn count_messages(mut answer: Bytes) -> Option<usize> {
    let mut count = 0;
    while !answer.is_empty() {
        let (field, wire_type) = decode_key(&mut answer).ok()?;
        skip_field(wire_type, field, &mut answer, DecodeContext::default()).ok()?;
        count += usize::from(field == MESSAGES_FIELD);
    }
    Some(count)
}

fn check_status(response: &StoreQueryResponse) -> Result<(), StoreClientError> {
    let status = response.status_code.ok_or(StoreClientError::Malformed("an answer without a status"))?;
    if status == OK {
        return Ok(());
    }
    let text = response.status_desc.as_deref().unwrap_or_default();
    Err(StoreClientError::Refused { status, text: text.chars().take(TEXT_CHARS_MAX).collect() })
}

fn check_hashes(response: &StoreQueryResponse) -> Result<(), StoreClientError> {
    for message in &response.messages {
        if message.message_hash.as_ref().and_then(hash_of).is_none() {
            return Err(StoreClientError::Malformed("a message without a hash of 32 bytes"));
        }
    }
    if response.pagination_cursor.as_ref().is_some_and(|cursor| hash_of(cursor).is_none()) {
        return Err(StoreClientError::Malformed("a cursor that is not a hash of 32 bytes"));
    }
    Ok(())
}

/// Checks that accepted answers are bounded.
pub(super) fn fuzz_answer(bytes: &[u8]) {
    if let Ok(response) = read_answer(Bytes::copy_from_slice(bytes), "r", PAGE_ROWS_MAX as usize) {
        assert_eq!(response.status_code, Some(OK));
        assert!(response.messages.len() <= PAGE_ROWS_MAX as usize, "a page is bounded");
    }
}

#[cfg(test)]
mod tests;
