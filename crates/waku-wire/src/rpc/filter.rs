//! `12/WAKU2-FILTER`: a light node says which content topics it wants, and has messages pushed to it.

use bytes::Bytes;
use prost::Message;

/// The protocol by which a subscriber asks.
pub const SUBSCRIBE_ID: &str = "/vac/waku/filter-subscribe/2.0.0-beta1";
/// The protocol by which a service node pushes.
pub const PUSH_ID: &str = "/vac/waku/filter-push/2.0.0-beta1";

/// What a subscriber asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum SubscribeType {
    /// Whether the subscription is still there; keeps it there.
    Ping = 0,
    /// Push messages of these topics too.
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
    /// What is asked for.
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
    /// The request's.
    #[prost(string, tag = "1")]
    pub request_id: String,
    /// As in HTTP: 200, 400, 404, 429, 503.
    #[prost(uint32, tag = "10")]
    pub status_code: u32,
    /// The same for people.
    #[prost(string, optional, tag = "11")]
    pub status_desc: Option<String>,
}

/// `MessagePush`.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct MessagePush {
    /// The message as on the wire.
    #[prost(bytes = "bytes", optional, tag = "1")]
    pub waku_message: Option<Bytes>,
    /// Where it was sent.
    #[prost(string, optional, tag = "2")]
    pub pubsub_topic: Option<String>,
}
