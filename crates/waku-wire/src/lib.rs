//! Waku's wire formats: messages and their hashes, topics and topic filters, the requests of the protocols around them, and
//! signed node records. No I/O and no async runtime.
//!
//! ```
//! use restante_waku_wire::{ContentTopic, WakuMessage, WakuMessageView, message_hash};
//!
//! let topic: ContentTopic = "/toychat/2/huilong/proto".parse().unwrap();
//! let message = WakuMessage {
//!     payload: "hello".into(),
//!     content_topic: topic.as_str().to_owned(),
//!     timestamp: Some(1_700_000_000_000_000_000),
//!     ..WakuMessage::default()
//! };
//! let wire = message.to_wire();
//! let view = WakuMessageView::parse(&wire).unwrap();
//! assert_eq!((view.payload, view.content_topic), (&b"hello"[..], "/toychat/2/huilong/proto"));
//! let hash = message_hash("/waku/2/rs/1/3", view.payload, view.content_topic, b"", 1_700_000_000_000_000_000);
//! assert!(hash.to_string().starts_with("0x"));
//! ```

pub mod bloom;
mod content_topic;
pub mod enr;
mod hash;
mod key_value;
mod message;
mod pubsub_topic;
pub mod rpc;
mod view;
mod walk;

#[doc(hidden)]
pub mod properties;

pub use content_topic::{CONTENT_TOPIC_BYTES_MAX, ContentTopic, ParseContentTopicError};
pub use hash::message_hash;
pub use key_value::{KeyValueView, encode_key_value};
pub use message::{META_BYTES_MAX, WIRE_BYTES_MAX, WakuMessage};
pub use pubsub_topic::{PUBSUB_TOPIC_BYTES_MAX, ParsePubsubTopicError, PubsubTopic, SHARD_MAX};
pub use view::WakuMessageView;
pub use walk::WireError;
