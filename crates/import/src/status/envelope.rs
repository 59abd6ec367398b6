//! An envelope as a message of Waku 2, mapped as in `15/WAKU-BRIDGE`.

use alloy_rlp::{Decodable, Header};
use restante_core::{MessageHash, NANOS_PER_SECOND};
use sha3::{Digest, Keccak256};

use crate::{
    Options,
    convert::{Converted, Fields, Refusal},
};

/// Bytes of a key's timestamp, and of timestamp and hash.
const HASH_AT: usize = 4;
const TOPIC_AT: usize = 36;

/// The version of payloads encrypted by `26/WAKU2-PAYLOAD`, as those of envelopes are.
const VERSION: u32 = 1;

/// An envelope: `[expiry, ttl, topic, data, nonce]`. The nonce is proof of work, which readers ignore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Envelope<'a> {
    expiry: u32,
    ttl: u32,
    topic: [u8; 4],
    data: &'a [u8],
}

impl<'a> Envelope<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Self, Refusal> {
        let no_envelope = |error: alloy_rlp::Error| Refusal(format!("not an envelope: {error}"));
        let mut rest = bytes;
        let mut fields = Header::decode_bytes(&mut rest, true).map_err(no_envelope)?;
        let expiry = u64::decode(&mut fields).map_err(no_envelope)?;
        let ttl = u64::decode(&mut fields).map_err(no_envelope)?;
        let topic = Header::decode_bytes(&mut fields, false).map_err(no_envelope)?;
        let data = Header::decode_bytes(&mut fields, false).map_err(no_envelope)?;
        u64::decode(&mut fields).map_err(no_envelope)?;
        if !fields.is_empty() || !rest.is_empty() {
            return Err(Refusal("not an envelope: bytes follow its five fields".into()));
        }
        let seconds = |what: &str, number: u64| {
            u32::try_from(number).map_err(|_| Refusal(format!("not an envelope: its {what} is too large")))
        };
        let topic = topic
            .try_into()
            .map_err(|_| Refusal("not an envelope: its topic does not have four bytes".into()))?;
        Ok(Self { expiry: seconds("expiry", expiry)?, ttl: seconds("ttl", ttl)?, topic, data })
    }

    /// The time of sending, in seconds.
    fn sent(&self) -> Result<u32, Refusal> {
        let sent = self.expiry.checked_sub(self.ttl);
        sent.ok_or_else(|| {
            Refusal(format!("it expires at {} and lives for {} seconds", self.expiry, self.ttl))
        })
    }
}

/// The message of a stored envelope. Its key is timestamp, hash and, since 2019, topic. The hash is Keccak-256 over all
/// bytes, so a matching envelope is as it was sent.
pub(crate) fn message_of(key: &[u8], bytes: &[u8], options: &Options) -> Result<Converted, Refusal> {
    let stated = key.get(HASH_AT..TOPIC_AT).and_then(|hash| hash.first_chunk::<32>());
    let is_key = key.len() == TOPIC_AT || key.len() == TOPIC_AT + 4;
    let Some(stated) = stated.filter(|_| is_key) else {
        return Err(Refusal(format!("a key of {} bytes, expected 36 or 40", key.len())));
    };
    let envelope = Envelope::parse(bytes)?;
    let computed: [u8; 32] = Keccak256::digest(bytes).into();
    let is_genuine = *stated == computed;
    let why = || {
        let (stated, computed) = (MessageHash(*stated), MessageHash(computed));
        format!("the stored hash is {stated}, and that of the envelope {computed}")
    };
    if !is_genuine && !options.rehash {
        return Err(Refusal(why()));
    }
    match fields_of(&envelope, options)?.into_message(None, options.rehash)? {
        Converted::SameHash(message) if !is_genuine => Ok(Converted::Rehashed(message, why())),
        converted => Ok(converted),
    }
}

fn fields_of(envelope: &Envelope<'_>, options: &Options) -> Result<Fields, Refusal> {
    Ok(Fields {
        pubsub_topic: options.pubsub_topic.clone(),
        content_topic: format!("/waku/1/0x{}/rfc26", hex::encode(envelope.topic)),
        payload: envelope.data.to_vec(),
        version: VERSION,
        timestamp: i64::from(envelope.sent()?) * NANOS_PER_SECOND,
        meta: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use restante_waku_wire::{WakuMessageView, bloom::topic4, message_hash};

    use super::*;

    /// A list of fields that are encoded already.
    fn list(fields: &[Vec<u8>]) -> Vec<u8> {
        let mut list = Vec::new();
        Header { list: true, payload_length: fields.concat().len() }.encode(&mut list);
        [list, fields.concat()].concat()
    }

    fn encoded(expiry: u64, ttl: u64, topic: &[u8], data: &[u8]) -> Vec<u8> {
        let number = |number: u64| alloy_rlp::encode(number);
        list(&[number(expiry), number(ttl), alloy_rlp::encode(topic), alloy_rlp::encode(data), number(77)])
    }

    fn key(seconds: u32, bytes: &[u8], topic: &[u8]) -> Vec<u8> {
        let hash: [u8; 32] = Keccak256::digest(bytes).into();
        [&seconds.to_be_bytes(), &hash[..], topic].concat()
    }

    const TOPIC: [u8; 4] = [0x5c, 0x6c, 0x9b, 0x56];

    #[test]
    fn an_envelope_becomes_the_bridges_message() {
        let bytes = encoded(1_554_076_850, 50, &TOPIC, b"secret");
        for topic in [&[][..], &TOPIC] {
            let converted = message_of(&key(1_554_076_800, &bytes, topic), &bytes, &Options::default());
            let Ok(Converted::SameHash(message)) = converted else { panic!("{converted:?}") };
            assert_eq!(&*message.channel, "/waku/2/default-waku/proto");
            assert_eq!(&*message.topic, "/waku/1/0x5c6c9b56/rfc26");
            assert_eq!(topic4(&message.topic), TOPIC);
            assert_eq!(message.timestamp.nanos(), 1_554_076_800_000_000_000);
            let view = WakuMessageView::parse(&message.body).unwrap();
            assert_eq!((view.payload, view.version, view.meta), (&b"secret"[..], Some(1), None));
            assert_eq!(view.content_topic, &*message.topic);
            let hash =
                message_hash(&message.channel, b"secret", &message.topic, b"", message.timestamp.nanos());
            assert_eq!(message.message_hash, hash);
        }
    }

    /// Encoded and hashed with the packages that the mailserver used (go-ethereum 1.9.5), from a type with its fields.
    #[test]
    fn the_bytes_are_those_of_the_mailserver() {
        let bytes = hex::decode("d3845ca154b232845c6c9b56867365637265744d").unwrap();
        assert_eq!(bytes, encoded(1_554_076_850, 50, &TOPIC, b"secret"));
        let hash = hex::decode("c77fb0231d3e8bf13c84cf1775d2a1ca9ac3118e30b2ff8f4a195c20f52a236c").unwrap();
        let key = [&1_554_076_800_u32.to_be_bytes(), &hash[..], &TOPIC].concat();
        assert!(matches!(message_of(&key, &bytes, &Options::default()), Ok(Converted::SameHash(_))));
    }

    #[test]
    fn another_pubsub_topic_can_be_named() {
        let bytes = encoded(1_554_076_850, 50, &TOPIC, b"");
        let options = Options { pubsub_topic: "/waku/2/rs/16/32".into(), ..Options::default() };
        let converted = message_of(&key(0, &bytes, &TOPIC), &bytes, &options);
        let Ok(Converted::SameHash(message)) = converted else { panic!("{converted:?}") };
        assert_eq!(&*message.channel, "/waku/2/rs/16/32");
    }

    #[test]
    fn an_envelope_under_another_hash_is_refused_or_reported() {
        let bytes = encoded(1_554_076_850, 50, &TOPIC, b"secret");
        let other = key(1_554_076_800, b"other", &TOPIC);
        let refusal = message_of(&other, &bytes, &Options::default()).unwrap_err().to_string();
        assert!(refusal.starts_with("the stored hash is 0x"), "{refusal}");
        let rehash = Options { rehash: true, ..Options::default() };
        let Ok(Converted::Rehashed(_, why)) = message_of(&other, &bytes, &rehash) else {
            panic!("it is not rehashed")
        };
        assert_eq!(why, refusal);
    }

    #[test]
    fn errors_name_what_is_wrong_with_an_envelope() {
        let field = |bytes: &[u8]| alloy_rlp::encode(bytes);
        let six = list(&[field(&[1]), field(&[1]), field(&TOPIC), field(b""), field(&[1]), field(b"")]);
        let four = list(&[field(&[1]), field(&[1]), field(&TOPIC), field(b"")]);
        for (bytes, why) in [
            (six, "bytes follow"),
            (four, "input too short"),
            (encoded(1 << 32, 1, &TOPIC, b""), "expiry is too large"),
            (encoded(100, 1, b"abc", b""), "four bytes"),
            (encoded(100, 101, &TOPIC, b""), "lives for 101 seconds"),
            (encoded(100, 100, &TOPIC, b""), "timestamp is missing"),
            (b"plain text".to_vec(), "unexpected string"),
        ] {
            let refusal = message_of(&key(1, &bytes, &TOPIC), &bytes, &Options::default()).unwrap_err();
            assert!(refusal.to_string().contains(why), "{refusal}");
        }
        let bytes = encoded(100, 1, &TOPIC, b"");
        for len in [0, 4, 35, 37, 39, 41] {
            let refusal = message_of(&vec![0; len], &bytes, &Options::default()).unwrap_err();
            assert!(refusal.to_string().starts_with(&format!("a key of {len} bytes")), "{refusal}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_converted_or_refused(
            mut bytes in prop::collection::vec(any::<u8>(), 0..100),
            at: prop::sample::Index,
            byte: u8,
            rehash: bool,
        ) {
            let options = Options { rehash, ..Options::default() };
            let _ = message_of(&key(1, &bytes, &TOPIC), &bytes, &options);
            bytes = encoded(1_554_076_850, 50, &TOPIC, &bytes);
            let key = key(1_554_076_800, &bytes, &TOPIC);
            prop_assert!(message_of(&key, &bytes, &options).is_ok());
            let at = at.index(bytes.len());
            bytes[at] ^= byte;
            let is_converted = matches!(message_of(&key, &bytes, &options), Ok(Converted::SameHash(_)));
            prop_assert_eq!(is_converted, byte == 0);
        }
    }
}
