//! Topics of four bytes and the bits that they set in a 512-bit filter, exactly as the Status mailserver computed them.

use restante_core::{Bloom, TopicBits};
use sha3::{Digest, Keccak256};

/// The four-byte topic of a content topic: the hex digits of a bridged content topic `/waku/1/0x<8 hex>/rfc26`
/// (`23/WAKU2-TOPICS`), else the first four bytes of Keccak-256 over the content topic.
pub fn topic4(content_topic: &str) -> [u8; 4] {
    if let Some(topic) = bridged_topic4(content_topic) {
        return topic;
    }
    let digest: [u8; 32] = Keccak256::digest(content_topic).into();
    let [a, b, c, d, ..] = digest;
    [a, b, c, d]
}

fn bridged_topic4(content_topic: &str) -> Option<[u8; 4]> {
    let digits = content_topic.strip_prefix("/waku/1/0x")?.strip_suffix("/rfc26")?;
    let is_topic = digits.len() == 8 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let number = u32::from_str_radix(digits, 16).ok().filter(|_| is_topic)?;
    Some(number.to_be_bytes())
}

/// The bits of a four-byte topic.
///
/// Bit number `j` (0, 1, 2) is byte `j`, plus 256 when bit `j` of the last byte is set. The mailserver *assigned* each
/// byte of the filter instead of OR-ing it, so only the last of several bits in the same byte remains.
pub fn topic4_bits(topic: [u8; 4]) -> TopicBits {
    let [first, second, third, high] = topic;
    let bit = |low: u8, j: u32| u16::from(low) + if high >> j & 1 == 1 { 256 } else { 0 };
    let bits = [bit(first, 0), bit(second, 1), bit(third, 2)];
    let [first, second, third] = bits;
    let second = if shares_byte(second, third) { third } else { second };
    let is_replaced = shares_byte(first, bits[1]) || shares_byte(first, third);
    let first = if is_replaced { third } else { first };
    TopicBits::new([first, second, third])
}

fn shares_byte(one: u16, other: u16) -> bool {
    one / 8 == other / 8
}

/// The bits of a content topic. An archive of Waku messages is opened with this function.
pub fn content_topic_bits(content_topic: &str) -> TopicBits {
    topic4_bits(topic4(content_topic))
}

/// The filter that matches these content topics (and some others as false positives).
pub fn filter_of<'a>(content_topics: impl IntoIterator<Item = &'a str>) -> Bloom {
    let mut filter = Bloom::EMPTY;
    for content_topic in content_topics {
        filter.insert(content_topic_bits(content_topic));
    }
    filter
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bloom_of(topic: [u8; 4]) -> Bloom {
        let mut filter = Bloom::EMPTY;
        filter.insert(topic4_bits(topic));
        filter
    }

    /// The mailserver's computation as in its code: each byte is assigned.
    fn assigned(topic: [u8; 4]) -> Bloom {
        let mut bytes = [0; 64];
        for j in 0..3 {
            let index = usize::from(topic[j]) + if topic[3] & (1 << j) == 0 { 0 } else { 256 };
            bytes[index / 8] = 1 << (index % 8);
        }
        Bloom(bytes)
    }

    /// The bytes of the filter that are not zero, computed by the Status mailserver's own code.
    #[test]
    fn mailserver_vectors_hold() {
        let vectors: [(&str, &[(usize, u8)]); 9] = [
            ("5c6c9b56", &[(11, 0x10), (45, 0x10), (51, 0x08)]),
            ("f8946aac", &[(18, 0x10), (31, 0x01), (45, 0x04)]),
            ("98ac139b", &[(2, 0x08), (51, 0x01), (53, 0x10)]),
            ("13f4f374", &[(2, 0x08), (30, 0x10), (62, 0x08)]),
            ("00000000", &[(0, 0x01)]),
            ("00010200", &[(0, 0x04)]),
            ("ffffff00", &[(31, 0x80)]),
            ("ffffff07", &[(63, 0x80)]),
            ("00080000", &[(0, 0x01), (1, 0x01)]),
        ];
        for (digits, set) in vectors {
            let mut expected = [0; 64];
            for (byte, value) in set {
                expected[*byte] = *value;
            }
            let bridged = format!("/waku/1/0x{digits}/rfc26");
            assert_eq!(hex::encode(topic4(&bridged)), digits);
            assert_eq!(filter_of([&*bridged]), Bloom(expected), "{digits}");
        }
    }

    #[test]
    fn other_topics_are_hashed() {
        // Keccak-256 of the empty text begins c5d24601.
        assert_eq!(topic4(""), [0xc5, 0xd2, 0x46, 0x01]);
        let unusual = [
            "/waku/1/0x5c6c9b5/rfc26",
            "/waku/1/0x+c6c9b56/rfc26",
            "/waku/1/5c6c9b56/rfc26",
            "/waku/1/0x5c6c9b56/proto",
        ];
        for text in unusual {
            let digest: [u8; 32] = Keccak256::digest(text).into();
            assert_eq!(topic4(text), digest[..4], "{text}");
        }
        assert_eq!(topic4("/waku/1/0xABCDEF01/rfc26"), [0xab, 0xcd, 0xef, 0x01]);
    }

    #[test]
    fn a_filter_of_several_matches_each() {
        let topics = ["/waku/1/0x5c6c9b56/rfc26", "/toy/1/chat/proto", "/waku/1/0xf8946aac/rfc26"];
        let filter = filter_of(topics);
        assert!(topics.iter().all(|topic| filter.contains(content_topic_bits(topic))));
        assert_eq!(filter_of([]), Bloom::EMPTY);
    }

    proptest! {
        #[test]
        fn bits_are_those_that_remain_after_assigning(topic in any::<[u8; 4]>(), near in any::<[u8; 3]>()) {
            prop_assert_eq!(bloom_of(topic), assigned(topic));
            // The same with bits that mostly fall into one byte or two.
            let [a, b, c] = near.map(|byte| byte % 16);
            let topic = [a, b, c, topic[3]];
            prop_assert_eq!(bloom_of(topic), assigned(topic));
        }
    }
}
