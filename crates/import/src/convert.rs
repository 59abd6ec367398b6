//! Builds the message as sent over the wire from the fields that other servers store.

use std::fmt;

use restante_archive::{BODY_BYTES_MAX, CHANNEL_BYTES_MAX, Message, TOPIC_BYTES_MAX};
use restante_core::{MessageHash, Timestamp};
use restante_waku_wire::{META_BYTES_MAX, WakuMessage, message_hash};

/// Why a row can't be imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(pub String);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The fields of a message that other servers store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields {
    pub(crate) pubsub_topic: String,
    pub(crate) content_topic: String,
    pub(crate) payload: Vec<u8>,
    pub(crate) version: u32,
    /// 0 if there was none, as nwaku and go-waku write it.
    pub(crate) timestamp: i64,
    pub(crate) meta: Vec<u8>,
}

/// An imported message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Converted {
    /// The stored hash is that of the content, or there is none.
    SameHash(Message),
    /// The stored hash is another one; the text says which.
    Rehashed(Message, String),
}

impl Fields {
    /// Builds the message. Its hash is computed, so that a damaged row is not imported under the hash of an undamaged one; a row
    /// with another stored hash is imported only with `rehash`.
    pub(crate) fn into_message(
        self,
        stated: Option<MessageHash>,
        rehash: bool,
    ) -> Result<Converted, Refusal> {
        self.check()?;
        let computed =
            message_hash(&self.pubsub_topic, &self.payload, &self.content_topic, &self.meta, self.timestamp);
        let why = stated
            .filter(|stated| *stated != computed)
            .map(|stated| format!("the stored hash is {stated}, and that of the content {computed}"));
        if let (Some(why), false) = (&why, rehash) {
            return Err(Refusal(why.clone()));
        }
        let message = self.into_body(computed)?;
        Ok(match why {
            None => Converted::SameHash(message),
            Some(why) => Converted::Rehashed(message, why),
        })
    }

    fn check(&self) -> Result<(), Refusal> {
        if self.pubsub_topic.is_empty() {
            return Err(Refusal("the pubsub topic is empty".into()));
        }
        // 14/WAKU2-MESSAGE: implementations disagree on the hash of a message without a timestamp.
        if self.timestamp == 0 {
            return Err(Refusal("the timestamp is missing".into()));
        }
        for (what, len, max) in [
            ("pubsub topic", self.pubsub_topic.len(), CHANNEL_BYTES_MAX),
            ("content topic", self.content_topic.len(), TOPIC_BYTES_MAX),
            ("meta", self.meta.len(), META_BYTES_MAX),
        ] {
            if len > max {
                return Err(Refusal(format!("{what} of {len} bytes is too long: the limit is {max}")));
            }
        }
        Ok(())
    }

    /// Encodes the message as the other server would send it: without a version of 0 or an empty meta. Servers store
    /// neither rate-limit proofs nor ephemeral messages.
    fn into_body(self, message_hash: MessageHash) -> Result<Message, Refusal> {
        let channel = self.pubsub_topic.as_str().into();
        let topic = self.content_topic.as_str().into();
        let wire = WakuMessage {
            payload: self.payload.into(),
            content_topic: self.content_topic,
            version: Some(self.version).filter(|version| *version != 0),
            timestamp: Some(self.timestamp),
            meta: Some(self.meta).filter(|meta| !meta.is_empty()).map(Into::into),
            rate_limit_proof: None,
            ephemeral: None,
        };
        let body = wire.to_wire();
        if body.len() > BODY_BYTES_MAX {
            let len = body.len();
            return Err(Refusal(format!(
                "message of {len} bytes is too long: the limit is {BODY_BYTES_MAX}"
            )));
        }
        Ok(Message { message_hash, channel, topic, timestamp: Timestamp(self.timestamp), body })
    }
}

#[cfg(test)]
mod tests {
    use restante_waku_wire::WakuMessageView;

    use super::*;

    fn fields() -> Fields {
        Fields {
            pubsub_topic: "/waku/2/default-waku/proto".into(),
            content_topic: "/waku/2/default-content/proto".into(),
            payload: hex::decode("010203045445535405060708").unwrap(),
            version: 0,
            timestamp: 0x1757_89bf_a23f_8400,
            meta: b"super-secret".to_vec(),
        }
    }

    /// A test vector of `14/WAKU2-MESSAGE`.
    const HASH: &str = "64cce733fed134e83da02b02c6f689814872b1a0ac97ea56b76095c3c72bfe05";

    #[test]
    fn a_message_has_the_hash_and_the_bytes_of_the_network() {
        let Ok(Converted::SameHash(message)) = fields().into_message(Some(HASH.parse().unwrap()), false)
        else {
            panic!("the hash is right");
        };
        assert_eq!(message.message_hash, HASH.parse().unwrap());
        let view = WakuMessageView::parse(&message.body).unwrap();
        assert_eq!(view.check(), Ok(()));
        assert_eq!((view.payload, view.meta), (&fields().payload[..], Some(&b"super-secret"[..])));
        assert_eq!((view.timestamp, view.version, view.proof), (Some(fields().timestamp), None, None));
        assert_eq!((&*message.channel, &*message.topic), (&*fields().pubsub_topic, view.content_topic));
    }

    #[test]
    fn version_and_meta_are_written_when_there_is_something_to_write() {
        let fields = Fields { version: 1, meta: Vec::new(), ..fields() };
        let Ok(Converted::SameHash(message)) = fields.into_message(None, false) else {
            panic!("nothing is stated")
        };
        let view = WakuMessageView::parse(&message.body).unwrap();
        assert_eq!((view.version, view.meta), (Some(1), None));
    }

    #[test]
    fn another_hash_is_refused_or_reported() {
        let lost_meta = || Fields { meta: Vec::new(), ..fields() };
        let stated = Some(HASH.parse().unwrap());
        let refusal = lost_meta().into_message(stated, false).unwrap_err().to_string();
        assert!(refusal.contains(HASH), "{refusal}");
        let Ok(Converted::Rehashed(message, why)) = lost_meta().into_message(stated, true) else {
            panic!("it is not rehashed")
        };
        assert_eq!(why, refusal);
        assert_ne!(message.message_hash, HASH.parse().unwrap());
    }

    #[test]
    fn what_no_archive_takes_is_refused() {
        for (fields, why) in [
            (Fields { pubsub_topic: String::new(), ..fields() }, "pubsub topic is empty"),
            (Fields { timestamp: 0, ..fields() }, "timestamp is missing"),
            (Fields { meta: vec![0; 65], ..fields() }, "meta of 65 bytes"),
            (Fields { content_topic: "x".repeat(5_000), ..fields() }, "content topic of 5000 bytes"),
            (Fields { payload: vec![0; BODY_BYTES_MAX], ..fields() }, "is too long"),
        ] {
            let refusal = fields.into_message(None, true).unwrap_err().to_string();
            assert!(refusal.contains(why), "{refusal}");
        }
    }
}
