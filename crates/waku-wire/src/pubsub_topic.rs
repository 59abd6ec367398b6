use std::{fmt, str::FromStr};

/// The longest pubsub topic in bytes: the limit of an archive's channel.
pub const PUBSUB_TOPIC_BYTES_MAX: usize = 1024;
/// The highest shard of a cluster, from `51/WAKU2-RELAY-SHARDING`.
pub const SHARD_MAX: u16 = 1023;

/// A pubsub topic of `23/WAKU2-TOPICS`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PubsubTopic {
    /// A shard of a cluster, `/waku/2/rs/<cluster>/<shard>`, from `51/WAKU2-RELAY-SHARDING`.
    Shard {
        /// Which network; 0 to 15 are reserved.
        cluster: u16,
        /// At most [`SHARD_MAX`].
        shard: u16,
    },
    /// Any other name `/waku/2/...`.
    Named(String),
}

/// Why a text is not a pubsub topic.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParsePubsubTopicError {
    /// It does not begin with `/waku/2/`, has an empty name, or contains a control character.
    #[error("not a pubsub topic: expected /waku/2/rs/<cluster>/<shard> or /waku/2/<name>")]
    Shape,
    /// It has the prefix of a shard, but invalid numbers.
    #[error(
        "not a shard: expected /waku/2/rs/<cluster 0 to 65535>/<shard 0 to {SHARD_MAX}>, without leading zeros"
    )]
    Shard,
    /// It is longer than [`PUBSUB_TOPIC_BYTES_MAX`].
    #[error("pubsub topic of {0} bytes is too long: the limit is {PUBSUB_TOPIC_BYTES_MAX} bytes")]
    TooLong(usize),
}

impl FromStr for PubsubTopic {
    type Err = ParsePubsubTopicError;

    fn from_str(text: &str) -> Result<Self, ParsePubsubTopicError> {
        if text.len() > PUBSUB_TOPIC_BYTES_MAX {
            return Err(ParsePubsubTopicError::TooLong(text.len()));
        }
        let name = text.strip_prefix("/waku/2/").ok_or(ParsePubsubTopicError::Shape)?;
        if name.is_empty() || name.contains(char::is_control) {
            return Err(ParsePubsubTopicError::Shape);
        }
        match name.strip_prefix("rs/") {
            Some(numbers) => parse_shard(numbers).ok_or(ParsePubsubTopicError::Shard),
            None => Ok(Self::Named(text.to_owned())),
        }
    }
}

fn parse_shard(numbers: &str) -> Option<PubsubTopic> {
    let (cluster, shard) = numbers.split_once('/')?;
    let topic = PubsubTopic::Shard { cluster: parse_number(cluster)?, shard: parse_number(shard)? };
    matches!(topic, PubsubTopic::Shard { shard, .. } if shard <= SHARD_MAX).then_some(topic)
}

/// Parses a number in canonical form: topics are compared as text, so `01` would be another topic than `1`.
fn parse_number(text: &str) -> Option<u16> {
    let number: u16 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

impl fmt::Display for PubsubTopic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shard { cluster, shard } => write!(f, "/waku/2/rs/{cluster}/{shard}"),
            Self::Named(name) => f.write_str(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_are_parsed_and_printed() {
        let cases = [
            ("/waku/2/rs/1/0", PubsubTopic::Shard { cluster: 1, shard: 0 }),
            ("/waku/2/rs/65535/1023", PubsubTopic::Shard { cluster: 65_535, shard: 1023 }),
            ("/waku/2/default-waku/proto", PubsubTopic::Named("/waku/2/default-waku/proto".into())),
            ("/waku/2/x", PubsubTopic::Named("/waku/2/x".into())),
        ];
        for (text, topic) in cases {
            assert_eq!(text.parse(), Ok(topic.clone()));
            assert_eq!(topic.to_string(), text);
        }
    }

    #[test]
    fn other_texts_are_refused() {
        use ParsePubsubTopicError::{Shape, Shard, TooLong};
        for text in ["", "/waku/2/", "/waku/1/x", "waku/2/x", "/waku/2/a\nb"] {
            assert_eq!(text.parse::<PubsubTopic>(), Err(Shape), "{text}");
        }
        let shards = [
            "", "1", "1/", "/1", "1/1024", "65536/0", "01/0", "1/00", "+1/0", "-1/0", "1/0/0", "1/0 ", "a/b",
        ];
        for shard in shards {
            assert_eq!(format!("/waku/2/rs/{shard}").parse::<PubsubTopic>(), Err(Shard), "{shard}");
        }
        assert_eq!(format!("/waku/2/{}", "x".repeat(2000)).parse::<PubsubTopic>(), Err(TooLong(2008)));
    }
}
