use bytes::Bytes;

use crate::{
    WakuMessage,
    walk::{Walk, WireError},
};

/// A `WakuMessage` that borrows its fields from the wire bytes: nothing is copied, unknown fields are skipped, and the last value
/// of a repeated field counts, as in other protobuf decoders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WakuMessageView<'a> {
    /// See [`WakuMessage::payload`]; empty when it is absent.
    pub payload: &'a [u8],
    /// See [`WakuMessage::content_topic`]; empty when it is absent.
    pub content_topic: &'a str,
    /// See [`WakuMessage::version`].
    pub version: Option<u32>,
    /// See [`WakuMessage::timestamp`].
    pub timestamp: Option<i64>,
    /// See [`WakuMessage::meta`].
    pub meta: Option<&'a [u8]>,
    /// See [`WakuMessage::rate_limit_proof`].
    pub proof: Option<&'a [u8]>,
    /// See [`WakuMessage::ephemeral`].
    pub ephemeral: Option<bool>,
    has_payload: bool,
    has_content_topic: bool,
}

impl<'a> WakuMessageView<'a> {
    /// Decodes a message.
    ///
    /// # Errors
    /// When the bytes are not protobuf, or a known field has the wrong type. A missing field is not an error here: see
    /// [`WakuMessageView::check`].
    pub fn parse(wire: &'a [u8]) -> Result<Self, WireError> {
        let mut view = Self::default();
        let mut walk = Walk(wire);
        while let Some((number, value)) = walk.next()? {
            match number {
                1 => {
                    view.payload = value.bytes("payload")?;
                    view.has_payload = true;
                }
                2 => {
                    view.content_topic = value.text("content_topic")?;
                    view.has_content_topic = true;
                }
                3 => view.version = Some(value.varint("version")? as u32), // as in protobuf, the upper half is dropped
                10 => view.timestamp = Some(unzigzag(value.varint("timestamp")?)),
                11 => view.meta = Some(value.bytes("meta")?),
                21 => view.proof = Some(value.bytes("rate_limit_proof")?),
                31 => view.ephemeral = Some(value.varint("ephemeral")? != 0),
                _ => {}
            }
        }
        Ok(view)
    }

    /// Checks that every decoder of the network accepts this message: nwaku refuses a message in which payload or content topic
    /// is not encoded (even if empty), and `14/WAKU2-MESSAGE` one whose meta is longer than 64 bytes.
    ///
    /// # Errors
    /// Names the field that is missing or too long.
    pub fn check(&self) -> Result<(), WireError> {
        if !self.has_payload {
            return Err(WireError::Missing("payload"));
        }
        if !self.has_content_topic {
            return Err(WireError::Missing("content_topic"));
        }
        let meta_len = self.meta.map_or(0, <[u8]>::len);
        if meta_len > crate::META_BYTES_MAX {
            return Err(WireError::TooLong { what: "meta", len: meta_len, max: crate::META_BYTES_MAX });
        }
        Ok(())
    }

    /// Converts to an owned message; copies the fields.
    pub fn to_message(&self) -> WakuMessage {
        WakuMessage {
            payload: Bytes::copy_from_slice(self.payload),
            content_topic: self.content_topic.to_owned(),
            version: self.version,
            timestamp: self.timestamp,
            meta: self.meta.map(Bytes::copy_from_slice),
            rate_limit_proof: self.proof.map(Bytes::copy_from_slice),
            ephemeral: self.ephemeral,
        }
    }
}

/// Decodes protobuf's `sint64`: 0, -1, 1, -2, ... are encoded as 0, 1, 2, 3, ...
fn unzigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{message::tests::messages, properties};

    #[test]
    fn the_last_value_of_a_repeated_field_counts() {
        let mut wire = WakuMessage { payload: "one".into(), ..WakuMessage::default() }.to_wire().to_vec();
        let two = WakuMessage { payload: "two".into(), content_topic: "/t".into(), ..WakuMessage::default() };
        wire.extend_from_slice(&two.to_wire());
        assert_eq!(WakuMessageView::parse(&wire).unwrap().to_message(), two);
    }

    #[test]
    fn damaged_bytes_are_refused_with_the_reason() {
        let cases: [(&[u8], WireError); 9] = [
            (b"\x0a", WireError::Truncated),
            (b"\x0a\x05abcd", WireError::Truncated),
            (b"\x08\x01", WireError::WrongType("payload")),
            (b"\x12\x01\xff", WireError::NotUtf8("content_topic")),
            (b"\x00", WireError::InvalidKey),
            (b"\x0f", WireError::InvalidKey),
            (b"\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", WireError::NumberTooLong),
            (b"\x7c", WireError::InvalidGroup),
            (b"\x7b\x84\x01", WireError::InvalidGroup),
        ];
        for (wire, error) in cases {
            assert_eq!(WakuMessageView::parse(wire), Err(error), "{wire:x?}");
        }
    }

    #[test]
    fn groups_are_skipped_up_to_a_depth() {
        let nested = |depth: usize| [vec![0x7b; depth], vec![0x7c; depth]].concat();
        assert!(WakuMessageView::parse(&nested(100)).is_ok());
        assert_eq!(WakuMessageView::parse(&nested(101)), Err(WireError::InvalidGroup));
        for depth in [1, 99, 100, 101, 102] {
            properties::waku_message(&nested(depth));
        }
    }

    proptest! {
        #[test]
        fn view_agrees_with_prost_on_valid_messages(message in messages()) {
            prop_assert_eq!(WakuMessageView::parse(&message.to_wire()).unwrap().to_message(), message.clone());
            properties::waku_message(&message.to_wire());
        }

        #[test]
        fn view_agrees_with_prost_on_mutated_messages(
            message in messages(),
            edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
            cut in prop::option::of(any::<prop::sample::Index>()),
        ) {
            let mut wire = message.to_wire().to_vec();
            for (index, byte) in edits {
                let index = index.index(wire.len());
                wire[index] = byte;
            }
            if let Some(cut) = cut {
                wire.truncate(cut.index(wire.len()));
            }
            properties::waku_message(&wire);
        }

        #[test]
        fn view_agrees_with_prost_on_any_bytes(wire in prop::collection::vec(any::<u8>(), 0..200)) {
            properties::waku_message(&wire);
        }
    }
}
