use std::{fmt, str::FromStr};

use sha2::{Digest, Sha256};

/// The longest content topic in bytes: the limit of an archive's topic.
pub const CONTENT_TOPIC_BYTES_MAX: usize = 4096;

/// A content topic of `23/WAKU2-TOPICS`: `/application/version/name/encoding`, optionally with a sharding generation in front,
/// `/0/application/version/name/encoding`. Only generation 0 exists.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContentTopic {
    text: String,
    has_generation: bool,
}

/// Why a text is not a content topic.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseContentTopicError {
    /// It does not have the format.
    #[error("not a content topic: expected /application/version/name/encoding")]
    Shape,
    /// A part is empty.
    #[error("not a content topic: the {0} is empty")]
    EmptyPart(&'static str),
    /// Its sharding generation does not exist.
    #[error("not a content topic: sharding generation '{0}' does not exist, only 0 does")]
    Generation(String),
    /// It is longer than [`CONTENT_TOPIC_BYTES_MAX`].
    #[error("content topic of {0} bytes is too long: the limit is {CONTENT_TOPIC_BYTES_MAX} bytes")]
    TooLong(usize),
}

impl FromStr for ContentTopic {
    type Err = ParseContentTopicError;

    fn from_str(text: &str) -> Result<Self, ParseContentTopicError> {
        if text.len() > CONTENT_TOPIC_BYTES_MAX {
            return Err(ParseContentTopicError::TooLong(text.len()));
        }
        let parts = text.strip_prefix('/').ok_or(ParseContentTopicError::Shape)?;
        let has_generation = match parts.split('/').count() {
            4 => false,
            5 => true,
            _ => return Err(ParseContentTopicError::Shape),
        };
        let generation = parts.split('/').next().unwrap_or_default();
        if has_generation && generation != "0" {
            // Cut, because the text is returned to the sender.
            return Err(ParseContentTopicError::Generation(generation.chars().take(20).collect()));
        }
        let topic = Self { text: text.to_owned(), has_generation };
        for (index, name) in ["application", "version", "name", "encoding"].into_iter().enumerate() {
            if topic.part(index).is_empty() {
                return Err(ParseContentTopicError::EmptyPart(name));
            }
        }
        Ok(topic)
    }
}

impl ContentTopic {
    /// The whole topic.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The application's name.
    pub fn application(&self) -> &str {
        self.part(0)
    }

    /// The application's version.
    pub fn version(&self) -> &str {
        self.part(1)
    }

    /// The topic's own name.
    pub fn name(&self) -> &str {
        self.part(2)
    }

    /// The encoding of payloads.
    pub fn encoding(&self) -> &str {
        self.part(3)
    }

    fn part(&self, index: usize) -> &str {
        let before = 1 + usize::from(self.has_generation); // the empty one before the first slash, and the generation
        self.text.split('/').nth(before + index).unwrap_or_default()
    }

    /// The topic's shard among `count` of them (0 counts as 1), by the autosharding of `51/WAKU2-RELAY-SHARDING`: the
    /// last eight bytes of SHA-256 over application and version, as a big-endian number, modulo the count.
    pub fn shard(&self, count: u16) -> u16 {
        let digest = Sha256::new().chain_update(self.application()).chain_update(self.version()).finalize();
        let digest: [u8; 32] = digest.into();
        let low = digest.last_chunk::<8>().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        (low % u64::from(count.max(1))) as u16 // the remainder is below a u16
    }
}

impl fmt::Display for ContentTopic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::properties;

    fn topic(text: &str) -> ContentTopic {
        text.parse().unwrap()
    }

    #[test]
    fn parts_are_parsed() {
        for text in ["/toychat/2/huilong/proto", "/0/toychat/2/huilong/proto"] {
            let topic = topic(text);
            let parts = (topic.application(), topic.version(), topic.name(), topic.encoding());
            assert_eq!(parts, ("toychat", "2", "huilong", "proto"));
            assert_eq!(topic.to_string(), text);
        }
    }

    #[test]
    fn other_texts_are_refused() {
        use ParseContentTopicError::{EmptyPart, Generation, Shape, TooLong};
        let cases = [
            ("", Shape),
            ("toychat/2/huilong/proto", Shape),
            ("/toychat/2/huilong", Shape),
            ("/0/a/b/c/d/e", Shape),
            ("/1/toychat/2/huilong/proto", Generation("1".into())),
            ("/00/toychat/2/huilong/proto", Generation("00".into())),
            ("//toychat/2/huilong/proto", Generation(String::new())),
            ("/toychat//huilong/proto", EmptyPart("version")),
            ("/toychat/2/huilong/", EmptyPart("encoding")),
            ("/0//2/huilong/proto", EmptyPart("application")),
        ];
        for (text, error) in cases {
            assert_eq!(text.parse::<ContentTopic>(), Err(error), "{text}");
        }
        assert_eq!("/".repeat(5000).parse::<ContentTopic>(), Err(TooLong(5000)));
    }

    /// The first vector is that of `51/WAKU2-RELAY-SHARDING`; the others were computed independently.
    #[test]
    fn shards_follow_the_specification() {
        let vectors = [
            ("/myapp/1/mytopic/cbor", 8, 0),
            ("/0/myapp/1/mytopic/cbor", 8, 0),
            ("/toychat/2/huilong/proto", 8, 3),
            ("/toychat/2/huilong/proto", 2, 1),
            ("/restante/1/x/proto", 8, 6),
            ("/restante/1/x/proto", 2, 0),
            ("/waku/1/x/rfc26", 8, 4),
            ("/status/1/x/proto", 8, 5),
            ("/status/1/x/proto", 2, 1),
        ];
        for (text, count, shard) in vectors {
            assert_eq!(topic(text).shard(count), shard, "{text} of {count}");
        }
        assert_eq!(topic("/myapp/1/mytopic/cbor").shard(0), 0);
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in "(/0|/1)?(/[a-z0-9é]{0,3}){3,5}|\\PC{0,40}") {
            properties::content_topic(&text);
        }
    }
}
