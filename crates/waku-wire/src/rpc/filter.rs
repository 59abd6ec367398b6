//! `12/WAKU2-FILTER`: a light node subscribes to content topics, and a service node pushes messages to it.

use bytes::Bytes;
use prost::Message;

/// The protocol of requests to a service node.
pub const SUBSCRIBE_ID: &str = "/vac/waku/filter-subscribe/2.0.0-beta1";
/// The protocol of pushes to a subscriber.
pub const PUSH_ID: &str = "/vac/waku/filter-push/2.0.0-beta1";

/// The type of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum SubscribeType {
    /// Check and renew the subscription.
    Ping = 0,
    /// Push messages of these topics as well.
    Subscribe = 1,
    /// Push no more messages of these topics.
    Unsubscribe = 2,
    /// Push no more messages at all.
    UnsubscribeAll = 3,
}

/// `FilterSubscribeRequest`.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct SubscribeRequest {
    /// Repeated in the answer.
    #[prost(string, tag = "1")]
    pub request_id: String,
    /// The [`SubscribeType`].
    #[prost(enumeration = "SubscribeType", tag = "2")]
    pub subscribe_type: i32,
    /// The pubsub topic of the subscription.
    #[prost(string, optional, tag = "10")]
    pub pubsub_topic: Option<String>,
    /// The content topics of the subscription.
    #[prost(string, repeated, tag = "11")]
    pub content_topics: Vec<String>,
}

/// `FilterSubscribeResponse`.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct SubscribeResponse {
    /// The id of the request.
    #[prost(string, tag = "1")]
    pub request_id: String,
    /// The status, as in HTTP: 200, 400, 404, 429, 503.
    #[prost(uint32, tag = "10")]
    pub status_code: u32,
    /// The status text.
    #[prost(string, optional, tag = "11")]
    pub status_desc: Option<String>,
}

/// `MessagePush`.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct MessagePush {
    /// The message as on the wire.
    #[prost(bytes = "bytes", optional, tag = "1")]
    pub waku_message: Option<Bytes>,
    /// The pubsub topic of the message.
    #[prost(string, optional, tag = "2")]
    pub pubsub_topic: Option<String>,
}
