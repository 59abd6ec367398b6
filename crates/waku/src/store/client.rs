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

/// What an answer takes beside its messages: request id, status, text and cursor.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// What a message takes in an answer beside itself: its hash and its pubsub topic, with their keys and lengths.
const ROW_BYTES_MAX: usize = 64 + PUBSUB_TOPIC_BYTES_MAX;
/// A peer's own words are cut here.
const TEXT_CHARS_MAX: usize = 200;
/// The field of an answer that holds its messages.
const MESSAGES_FIELD: u32 = 20;

/// Asks peers for history. Cloning gives another handle of the same.
#[derive(Clone, Debug)]
pub struct StoreClient {
    node: Node,
    max_message_bytes: usize,
    asked: Arc<AtomicU64>,
}

/// Why a peer's history could not be had.
#[derive(Debug, thiserror::Error)]
pub enum StoreClientError {
    /// The peer did not answer.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// The peer answered something that is no answer to the request.
    #[error("the peer's answer can't be used: {0}")]
    Malformed(&'static str),
    /// The peer refused.
    #[error("the peer answered with status {status}: {text:?}")]
    Refused {
        /// As in HTTP.
        status: u32,
        /// The peer's own words.
        text: String,
    },
}

impl StoreClient {
    /// A client that asks the peers of a node, and takes messages of up to the network's usual limit.
    pub fn new(node: Node) -> Self {
        Self { node, max_message_bytes: MESSAGE_BYTES_MAX, asked: Arc::default() }
    }

    /// The same for a network with another limit on messages.
    #[must_use]
    pub fn with_max_message_bytes(self, max_message_bytes: usize) -> Self {
        Self { max_message_bytes, ..self }
    }

    /// Asks a connected peer for one page. The request gets an id unless it has one.
    ///
    /// What is returned answers this request with status 200, has no more messages than were asked for, each with a hash of
    /// 32 bytes; whether the hashes are those of the messages is not looked at.
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

    /// An id that this node has given to no other request. A stream carries one request, so that nobody can gain anything by
    /// guessing it: a number will do, and a run can be replayed.
    fn next_id(&self) -> String {
        let number = self.asked.fetch_add(1, Ordering::Relaxed);
        format!("{}-{number}", self.node.peer_id())
    }

    fn answer_bytes_max(&self, request: &StoreQueryRequest, rows_max: usize) -> usize {
        let message = if request.include_data { self.max_message_bytes } else { 0 };
        HEAD_BYTES_MAX + rows_max * (ROW_BYTES_MAX + message)
    }
}

/// How many messages may stand in the answer. When the page size is left to the server, up to the largest page there is.
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
        return Err(StoreClientError::Malformed(
            "not a store answer, or with more messages than were asked for",
        ));
    }
    let response = StoreQueryResponse::decode(answer);
    let mut response = response.map_err(|_| StoreClientError::Malformed("not a store answer"))?;
    // Some servers write an empty cursor at the end.
    response.pagination_cursor = response.pagination_cursor.filter(|cursor| !cursor.is_empty());
    // Servers that have not read the request answer with no id, or with one that says so.
    if !["", NO_REQUEST_ID, request_id].contains(&&*response.request_id) {
        return Err(StoreClientError::Malformed("the answer to another request"));
    }
    check_status(&response)?;
    check_hashes(&response)?;
    Ok(response)
}

/// Counts the messages of an answer before it is decoded: a decoded message takes thirty times the room of an empty one on
/// the wire. `None` when the bytes are no protobuf.
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
        return Err(StoreClientError::Malformed("a cursor that is no hash of 32 bytes"));
    }
    Ok(())
}

/// What is let through is an answer, and bounded.
pub(super) fn fuzz_answer(bytes: &[u8]) {
    if let Ok(response) = read_answer(Bytes::copy_from_slice(bytes), "r", PAGE_ROWS_MAX as usize) {
        assert_eq!(response.status_code, Some(OK));
        assert!(response.messages.len() <= PAGE_ROWS_MAX as usize, "a page is bounded");
    }
}

#[cfg(test)]
mod tests;
