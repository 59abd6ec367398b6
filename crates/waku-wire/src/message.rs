use bytes::{BufMut, Bytes, BytesMut};
use prost::{Message, encoding};

use crate::{view::WakuMessageView, walk::WireError};

/// The longest meta field in bytes, from `14/WAKU2-MESSAGE`.
pub const META_BYTES_MAX: usize = 64;
/// The longest message in bytes that is decoded: far above the network's 150 KiB, and the limit of an archive.
pub const WIRE_BYTES_MAX: usize = 16 << 20;

/// The message of `14/WAKU2-MESSAGE`.
#[derive(Clone, PartialEq, Eq, Hash, Message)]
pub struct WakuMessage {
    /// The content, usually encrypted.
    #[prost(bytes = "bytes", tag = "1")]
    pub payload: Bytes,
    /// The content topic.
    #[prost(string, tag = "2")]
    pub content_topic: String,
    /// How the payload is encrypted; 0 when absent.
    #[prost(uint32, optional, tag = "3")]
    pub version: Option<u32>,
    /// The time of creation, in nanoseconds since the epoch.
    #[prost(sint64, optional, tag = "10")]
    pub timestamp: Option<i64>,
    /// At most [`META_BYTES_MAX`] bytes that the message hash covers.
    #[prost(bytes = "bytes", optional, tag = "11")]
    pub meta: Option<Bytes>,
    /// Proof of `17/WAKU2-RLN-RELAY`.
    #[prost(bytes = "bytes", optional, tag = "21")]
    pub rate_limit_proof: Option<Bytes>,
    /// Whether the message must not be archived.
    #[prost(bool, optional, tag = "31")]
    pub ephemeral: Option<bool>,
}

impl WakuMessage {
    /// Encodes the message. Payload and content topic are always written: [`Message::encode`] leaves empty fields out, and nwaku's
    /// decoder refuses such messages.
    pub fn to_wire(&self) -> Bytes {
        let others = Self {
            payload: Bytes::new(),
            content_topic: String::new(),
            version: self.version,
            timestamp: self.timestamp,
            meta: self.meta.clone(),
            rate_limit_proof: self.rate_limit_proof.clone(),
            ephemeral: self.ephemeral,
        };
        let length_bytes_max = 10;
        let capacity =
            self.payload.len() + self.content_topic.len() + others.encoded_len() + 2 * (1 + length_bytes_max);
        let mut wire = BytesMut::with_capacity(capacity);
        put_bytes(1, &self.payload, &mut wire);
        put_bytes(2, self.content_topic.as_bytes(), &mut wire);
        others.encode_raw(&mut wire);
        wire.freeze()
    }

    /// Decodes a message and checks that every node of the network accepts it. Takes no more memory than the wire bytes.
    ///
    /// # Errors
    /// When the bytes are longer than [`WIRE_BYTES_MAX`] or not protobuf, payload or content topic is missing (an archive serves
    /// messages unchanged, and nwaku could not decode a page with such a message), or the meta field is too long.
    pub fn from_wire(wire: &[u8]) -> Result<Self, WireError> {
        if wire.len() > WIRE_BYTES_MAX {
            return Err(WireError::TooLong { what: "message", len: wire.len(), max: WIRE_BYTES_MAX });
        }
        let view = WakuMessageView::parse(wire)?;
        view.check()?;
        Ok(view.to_message())
    }
}

/// Encodes a field of bytes, also when it is empty.
pub(crate) fn put_bytes(number: u32, bytes: &[u8], out: &mut impl BufMut) {
    encoding::encode_key(number, encoding::WireType::LengthDelimited, out);
    encoding::encode_varint(bytes.len() as u64, out);
    out.put_slice(bytes);
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn messages() -> impl Strategy<Value = WakuMessage> {
        let bytes = || prop::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from);
        let fields = (
            bytes(),
            any::<String>(),
            any::<Option<u32>>(),
            any::<Option<i64>>(),
            prop::option::of(bytes()),
            prop::option::of(bytes()),
            any::<Option<bool>>(),
        );
        fields.prop_map(|(payload, content_topic, version, timestamp, meta, rate_limit_proof, ephemeral)| {
            WakuMessage { payload, content_topic, version, timestamp, meta, rate_limit_proof, ephemeral }
        })
    }

    #[test]
    fn empty_payload_and_topic_are_written() {
        let wire = WakuMessage::default().to_wire();
        assert_eq!(wire, &b"\x0a\x00\x12\x00"[..]);
        assert_eq!(WakuMessage::from_wire(&wire), Ok(WakuMessage::default()));
    }

    /// Field numbers and zigzag timestamp, byte by byte.
    #[test]
    fn fields_are_encoded_as_specified() {
        let message = WakuMessage {
            payload: "p".into(),
            content_topic: "t".into(),
            version: Some(1),
            timestamp: Some(-2),
            meta: Some("m".into()),
            rate_limit_proof: Some("r".into()),
            ephemeral: Some(true),
        };
        let expected = b"\x0a\x01p\x12\x01t\x18\x01\x50\x03\x5a\x01m\xaa\x01\x01r\xf8\x01\x01";
        assert_eq!(message.to_wire(), &expected[..]);
    }

    #[test]
    fn messages_that_nodes_refuse_are_refused() {
        assert_eq!(WakuMessage::from_wire(b"\x12\x00"), Err(WireError::Missing("payload")));
        assert_eq!(WakuMessage::from_wire(b"\x0a\x00"), Err(WireError::Missing("content_topic")));
        let meta =
            |len: usize| WakuMessage { meta: Some(vec![0; len].into()), ..WakuMessage::default() }.to_wire();
        assert!(WakuMessage::from_wire(&meta(64)).is_ok());
        assert_eq!(
            WakuMessage::from_wire(&meta(65)),
            Err(WireError::TooLong { what: "meta", len: 65, max: 64 })
        );
        let long = vec![0; WIRE_BYTES_MAX + 1];
        assert!(matches!(WakuMessage::from_wire(&long), Err(WireError::TooLong { what: "message", .. })));
    }

    proptest! {
        #[test]
        fn messages_are_encoded_and_decoded(message in messages()) {
            prop_assert_eq!(WakuMessage::from_wire(&message.to_wire()), Ok(message.clone()));
            prop_assert_eq!(WakuMessage::decode(message.to_wire()).unwrap(), message);
        }
    }
}
