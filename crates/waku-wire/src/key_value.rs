use bytes::BufMut;
use prost::encoding;
use restante_core::MessageHash;

use crate::{
    message::put_bytes,
    walk::{Walk, WireError},
};

/// Appends a `WakuMessageKeyValue` of `13/WAKU2-STORE` with its length prefix to `out`. `message` is the encoded message and is
/// copied unchanged.
pub fn encode_key_value(hash: &MessageHash, message: &[u8], pubsub_topic: &str, out: &mut impl BufMut) {
    let len = field_len(hash.as_bytes()) + field_len(message) + field_len(pubsub_topic.as_bytes());
    encoding::encode_varint(len as u64, out);
    put_bytes(1, hash.as_bytes(), out);
    put_bytes(2, message, out);
    put_bytes(3, pubsub_topic.as_bytes(), out);
}

/// The encoded length of a field with a number below 16.
fn field_len(bytes: &[u8]) -> usize {
    1 + encoding::encoded_len_varint(bytes.len() as u64) + bytes.len()
}

/// A `WakuMessageKeyValue` that borrows its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyValueView<'a> {
    /// The message's hash.
    pub message_hash: MessageHash,
    /// The encoded message.
    pub message: &'a [u8],
    /// The pubsub topic on which it was sent.
    pub pubsub_topic: &'a str,
}

impl<'a> KeyValueView<'a> {
    /// Decodes one with its length prefix from the front of `wire` and advances `wire`; `None` when `wire` is empty.
    ///
    /// # Errors
    /// `Truncated` when more bytes are needed; another error when the bytes are not a complete `WakuMessageKeyValue`. On an
    /// error, `wire` is unchanged.
    pub fn take(wire: &mut &'a [u8]) -> Result<Option<Self>, WireError> {
        if wire.is_empty() {
            return Ok(None);
        }
        let mut walk = Walk(wire);
        let view = Self::parse(walk.length_delimited()?)?;
        *wire = walk.0;
        Ok(Some(view))
    }

    fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        let (mut hash, mut message, mut pubsub_topic) = (None, None, None);
        let mut walk = Walk(bytes);
        while let Some((number, value)) = walk.next()? {
            match number {
                1 => hash = Some(value.bytes("message_hash")?),
                2 => message = Some(value.bytes("message")?),
                3 => pubsub_topic = Some(value.text("pubsub_topic")?),
                _ => {}
            }
        }
        let hash = hash.ok_or(WireError::Missing("message_hash"))?;
        let hash = hash.try_into().map_err(|_| WireError::WrongType("message_hash"))?;
        Ok(Self {
            message_hash: MessageHash(hash),
            message: message.ok_or(WireError::Missing("message"))?,
            pubsub_topic: pubsub_topic.ok_or(WireError::Missing("pubsub_topic"))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_encoded_and_decoded_one_by_one() {
        let hashes = [MessageHash([7; 32]), MessageHash([8; 32])];
        let body = vec![5; 300];
        let mut wire = Vec::new();
        encode_key_value(&hashes[0], &body, "/waku/2/rs/1/0", &mut wire);
        encode_key_value(&hashes[1], b"", "", &mut wire);

        let mut rest = &wire[..];
        let first = KeyValueView::take(&mut rest).unwrap().unwrap();
        let second = KeyValueView::take(&mut rest).unwrap().unwrap();
        assert_eq!(
            (first.message_hash, first.message, first.pubsub_topic),
            (hashes[0], &body[..], "/waku/2/rs/1/0")
        );
        assert_eq!((second.message_hash, second.message, second.pubsub_topic), (hashes[1], &b""[..], ""));
        assert_eq!(KeyValueView::take(&mut rest), Ok(None));

        for cut in 1..wire.len() {
            let mut rest = &wire[..cut];
            while let Ok(Some(_)) = KeyValueView::take(&mut rest) {}
            let is_whole = rest.is_empty();
            assert!(is_whole || KeyValueView::take(&mut rest) == Err(WireError::Truncated), "{cut}");
        }
    }

    #[test]
    fn incomplete_pairs_are_refused() {
        assert_eq!(KeyValueView::take(&mut &b"\x00"[..]), Err(WireError::Missing("message_hash")));
        assert_eq!(KeyValueView::take(&mut &b"\x03\x0a\x01x"[..]), Err(WireError::WrongType("message_hash")));
    }
}
