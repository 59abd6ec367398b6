//! `13/WAKU2-STORE`, version 3: queries of history, page by page.

use bytes::{BufMut, Bytes};
use prost::{Message, encoding};
use restante_core::MessageHash;

use super::{FRAME_HEADER_BYTES_MAX, field_len};
use crate::message::put_bytes;

/// The protocol.
pub const ID: &str = "/vac/waku/store-query/3.0.0";

/// `StoreQueryRequest`.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct StoreQueryRequest {
    /// Repeated in the answer.
    #[prost(string, tag = "1")]
    pub request_id: String,
    /// Whether to return messages and not only their hashes.
    #[prost(bool, tag = "2")]
    pub include_data: bool,
    /// Only messages of this pubsub topic.
    #[prost(string, optional, tag = "10")]
    pub pubsub_topic: Option<String>,
    /// Only messages of these content topics; none means all.
    #[prost(string, repeated, tag = "11")]
    pub content_topics: Vec<String>,
    /// Only messages at or after this, in nanoseconds since the epoch.
    #[prost(sint64, optional, tag = "12")]
    pub time_start: Option<i64>,
    /// Only messages before this, in nanoseconds since the epoch.
    #[prost(sint64, optional, tag = "13")]
    pub time_end: Option<i64>,
    /// Only messages with these hashes; none means all.
    #[prost(bytes = "bytes", repeated, tag = "20")]
    pub message_hashes: Vec<Bytes>,
    /// The hash of the message after (forward) or before (backward) which the page begins.
    #[prost(bytes = "bytes", optional, tag = "51")]
    pub pagination_cursor: Option<Bytes>,
    /// From old to new; absent is backward.
    #[prost(bool, tag = "52")]
    pub pagination_forward: bool,
    /// The most messages of the page; absent and 0 leave it to the server.
    #[prost(uint64, optional, tag = "53")]
    pub pagination_limit: Option<u64>,
}

/// `StoreQueryResponse`, as decoded by a client.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct StoreQueryResponse {
    /// The id of the request.
    #[prost(string, tag = "1")]
    pub request_id: String,
    /// The status, as in HTTP.
    #[prost(uint32, optional, tag = "10")]
    pub status_code: Option<u32>,
    /// The status text.
    #[prost(string, optional, tag = "11")]
    pub status_desc: Option<String>,
    /// The messages in ascending order.
    #[prost(message, repeated, tag = "20")]
    pub messages: Vec<KeyValue>,
    /// Where the next page begins; absent at the end.
    #[prost(bytes = "bytes", optional, tag = "51")]
    pub pagination_cursor: Option<Bytes>,
}

/// `WakuMessageKeyValue`, as decoded by a client.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct KeyValue {
    /// The message's hash.
    #[prost(bytes = "bytes", optional, tag = "1")]
    pub message_hash: Option<Bytes>,
    /// The message as on the wire; absent when only hashes were requested.
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub message: Option<Bytes>,
    /// The pubsub topic; absent when only hashes were requested.
    #[prost(string, optional, tag = "3")]
    pub pubsub_topic: Option<String>,
}

/// The fields of a server's answer besides the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseHead<'a> {
    /// The id of the request.
    pub request_id: &'a str,
    /// The status, as in HTTP.
    pub status_code: u32,
    /// The status text. Always written: nwaku's client refuses an answer without it.
    pub status_desc: &'a str,
    /// Where the next page begins.
    pub cursor: Option<MessageHash>,
}

/// One message of an answer, borrowed from the archive's page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The message's hash.
    pub message_hash: &'a MessageHash,
    /// The message as on the wire and its pubsub topic, unless only hashes were requested.
    pub data: Option<(&'a [u8], &'a str)>,
}

impl Entry<'_> {
    fn len(&self) -> usize {
        let data =
            self.data.map_or(0, |(message, topic)| field_len(2, message) + field_len(3, topic.as_bytes()));
        field_len(1, self.message_hash.as_bytes()) + data
    }
}

/// Encodes a response with its length prefix. Each message is copied once, from the archive's page into the frame.
pub fn encode_response<'a>(
    head: ResponseHead<'_>,
    entries: impl Iterator<Item = Entry<'a>> + Clone,
) -> Vec<u8> {
    let entry_len = |entry: Entry<'_>| {
        let len = entry.len();
        encoding::key_len(20) + encoding::encoded_len_varint(len as u64) + len
    };
    let len = head_len(head) + entries.clone().map(entry_len).sum::<usize>() + cursor_len(head);
    let mut out = Vec::with_capacity(FRAME_HEADER_BYTES_MAX + len);
    encoding::encode_varint(len as u64, &mut out);
    put_bytes(1, head.request_id.as_bytes(), &mut out);
    encoding::uint32::encode(10, &head.status_code, &mut out);
    put_bytes(11, head.status_desc.as_bytes(), &mut out);
    for entry in entries {
        put_entry(entry, &mut out);
    }
    if let Some(cursor) = &head.cursor {
        put_bytes(51, cursor.as_bytes(), &mut out);
    }
    out
}

fn head_len(head: ResponseHead<'_>) -> usize {
    field_len(1, head.request_id.as_bytes())
        + encoding::uint32::encoded_len(10, &head.status_code)
        + field_len(11, head.status_desc.as_bytes())
}

fn cursor_len(head: ResponseHead<'_>) -> usize {
    head.cursor.map_or(0, |cursor| field_len(51, cursor.as_bytes()))
}

fn put_entry(entry: Entry<'_>, out: &mut impl BufMut) {
    encoding::encode_key(20, encoding::WireType::LengthDelimited, out);
    encoding::encode_varint(entry.len() as u64, out);
    put_bytes(1, entry.message_hash.as_bytes(), out);
    if let Some((message, topic)) = entry.data {
        put_bytes(2, message, out);
        put_bytes(3, topic.as_bytes(), out);
    }
}
