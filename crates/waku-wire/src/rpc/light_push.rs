//! `19/WAKU2-LIGHTPUSH`, versions 3 and 2: a service node publishes the messages of light nodes.

use bytes::Bytes;
use prost::Message;

/// The current version of the protocol.
pub const ID: &str = "/vac/waku/lightpush/3.0.0";
/// The former version of the protocol.
pub const LEGACY_ID: &str = "/vac/waku/lightpush/2.0.0-beta1";

/// `LightPushRequest`.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct LightPushRequest {
    /// Repeated in the answer.
    #[prost(string, tag = "1")]
    pub request_id: String,
    /// The pubsub topic; absent: the shard of the content topic.
    #[prost(string, optional, tag = "20")]
    pub pubsub_topic: Option<String>,
    /// The message as on the wire.
    #[prost(bytes = "bytes", optional, tag = "21")]
    pub message: Option<Bytes>,
}

/// `LightPushResponse`.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct LightPushResponse {
    /// The id of the request.
    #[prost(string, tag = "1")]
    pub request_id: String,
    /// 200, 400, 413 (too large), 421 (pubsub topic not served), 429, 500, 503 (unavailable) or 505 (no peers).
    #[prost(uint32, tag = "10")]
    pub status_code: u32,
    /// The status text.
    #[prost(string, optional, tag = "11")]
    pub status_desc: Option<String>,
    /// The number of peers to which the message was relayed.
    #[prost(uint32, optional, tag = "12")]
    pub relay_peer_count: Option<u32>,
}

/// `PushRPC` of version 2.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct PushRpc {
    /// Repeated in the answer.
    #[prost(string, tag = "1")]
    pub request_id: String,
    /// Set in a request.
    #[prost(message, optional, tag = "2")]
    pub request: Option<PushRequest>,
    /// Set in a response.
    #[prost(message, optional, tag = "3")]
    pub response: Option<PushResponse>,
}

/// `PushRequest` of version 2.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct PushRequest {
    /// The pubsub topic.
    #[prost(string, tag = "1")]
    pub pubsub_topic: String,
    /// The message as on the wire.
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub message: Option<Bytes>,
}

/// `PushResponse` of version 2.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct PushResponse {
    /// Whether the message was published.
    #[prost(bool, tag = "1")]
    pub is_success: bool,
    /// A text.
    #[prost(string, optional, tag = "2")]
    pub info: Option<String>,
}
