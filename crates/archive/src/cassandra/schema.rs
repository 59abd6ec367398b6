//! The tables: the contents of each partition, and the encoding of values.
//!
//! `docs/formats/archive-cassandra.md` describes them.

use sha2::{Digest, Sha256};

/// The version of the layout.
pub(super) const VERSION: u8 = 1;
/// The one partition of the table `state`.
pub(super) const STATE: i32 = 0;
/// The postings of this many windows share a partition.
pub(super) const SPAN_WINDOWS: i64 = 24;
/// A longer body is stored in separate chunks, so that a slice of rows has a bounded size.
pub(super) const INLINE_BYTES_MAX: usize = 32 << 10;
/// Bytes of a chunk: well below what a node accepts in one write (half a segment of its commit log, 16 MiB by default).
pub(super) const CHUNK_BYTES: usize = 512 << 10;
/// How long a head is kept after the server last registered something.
pub(super) const HEAD_SECONDS: u32 = 86_400;

/// The tables that every archive has; each epoch has one more.
pub(super) const TABLES: [(&str, &str); 3] = [
    (
        "state",
        "(id int, epoch int, server blob, n bigint, epochs blob static, PRIMARY KEY (id, epoch, server)) \
         WITH gc_grace_seconds = 86400",
    ),
    (
        "catalog",
        "(epoch int, server blob, n bigint, window_n bigint, channel text, topic text, \
         PRIMARY KEY (epoch, server, n))",
    ),
    (
        "windows",
        "(epoch int, window bigint, server blob, mark bigint, count blob, PRIMARY KEY (epoch, window, server))",
    ),
];

/// The table of an epoch.
pub(super) const EPOCH_COLUMNS: &str = "(part blob, timestamp bigint, hash blob, value blob, size int, \
                                        PRIMARY KEY (part, timestamp, hash))";

/// The number of an epoch. Numbers are never used again.
pub(super) type EpochId = i32;
/// The identity of a topic in its channel, the same on all servers.
pub(super) type TopicKey = [u8; 16];
/// The SHA-256 of a long body, by which its chunks are found.
pub(super) type BodyHash = [u8; 32];
/// The identity of a server while it has the archive open.
pub(super) type ServerId = [u8; 16];

/// The name of an epoch's table.
pub(super) fn table(epoch: EpochId) -> String {
    format!("messages_{epoch}")
}

/// Timestamp and hash of a row.
pub(super) type KeyRow = (i64, Vec<u8>);
/// The same, bound as values.
pub(super) type BoundKey<'a> = (i64, &'a [u8]);
/// Timestamp, hash and value of a row.
pub(super) type ValueRow = (i64, Vec<u8>, Option<Vec<u8>>);
/// Timestamp, hash, value and size of a row.
pub(super) type WholeRow = (i64, Vec<u8>, Option<Vec<u8>>, Option<i32>);

/// A statement, prepared for the table of an epoch or for one of [`TABLES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Statement {
    ReadState,
    SetEpochs,
    SetFirstEpochs,
    PutHead,
    DeleteHeads,
    PutWindow,
    PutTopic,
    ReadCatalog,
    ReadCatalogSince,
    DeleteCatalog,
    PutMark,
    PutCount,
    ReadWindows,
    DeleteWindows,
    Forward(EpochId),
    Backward(EpochId),
    KeysForward(EpochId),
    KeysBackward(EpochId),
    Sizes(EpochId),
    Whole(EpochId),
    Rows(EpochId),
    Keys(EpochId),
    KeysOfParts(EpochId),
    PutMessage(EpochId),
    PutSize(EpochId),
    PutKey(EpochId),
    PutChunk(EpochId),
    ReadChunks(EpochId),
}

impl Statement {
    /// The epoch whose table it reads or writes.
    pub(super) fn epoch(self) -> Option<EpochId> {
        match self {
            Self::Forward(epoch)
            | Self::Backward(epoch)
            | Self::KeysForward(epoch)
            | Self::KeysBackward(epoch)
            | Self::Sizes(epoch)
            | Self::Whole(epoch)
            | Self::PutSize(epoch)
            | Self::Rows(epoch)
            | Self::Keys(epoch)
            | Self::KeysOfParts(epoch)
            | Self::PutMessage(epoch)
            | Self::PutKey(epoch)
            | Self::PutChunk(epoch)
            | Self::ReadChunks(epoch) => Some(epoch),
            _ => None,
        }
    }

    /// Whether it is conditional: its outcome may be unknown, and it must not be executed twice.
    pub(super) fn is_conditional(self) -> bool {
        matches!(self, Self::SetEpochs | Self::SetFirstEpochs)
    }

    /// Its text.
    pub(super) fn cql(self, keyspace: &str) -> String {
        let k = keyspace;
        let t = self.epoch().map(|epoch| format!("{k}.{}", table(epoch))).unwrap_or_default();
        let slice = "WHERE part = ? AND (timestamp, hash) > (?, ?) AND (timestamp, hash) < (?, ?)";
        let backward = "ORDER BY timestamp DESC, hash DESC LIMIT ?";
        let insert = format!("INSERT INTO {t} (part, timestamp, hash");
        match self {
            Self::ReadState => format!("SELECT epochs, epoch, server, n FROM {k}.state WHERE id = ?"),
            Self::SetEpochs => format!("UPDATE {k}.state SET epochs = ? WHERE id = ? IF epochs = ?"),
            Self::SetFirstEpochs => format!("UPDATE {k}.state SET epochs = ? WHERE id = ? IF epochs = null"),
            Self::PutHead => format!(
                "INSERT INTO {k}.state (id, epoch, server, n) VALUES (?, ?, ?, ?) USING TTL {HEAD_SECONDS} AND TIMESTAMP ?"
            ),
            Self::DeleteHeads => format!("DELETE FROM {k}.state WHERE id = ? AND epoch = ?"),
            Self::PutWindow => {
                format!("INSERT INTO {k}.catalog (epoch, server, n, window_n) VALUES (?, ?, ?, ?)")
            }
            Self::PutTopic => {
                format!("INSERT INTO {k}.catalog (epoch, server, n, channel, topic) VALUES (?, ?, ?, ?, ?)")
            }
            Self::ReadCatalog => {
                format!("SELECT server, n, window_n, channel, topic FROM {k}.catalog WHERE epoch = ?")
            }
            Self::ReadCatalogSince => format!(
                "SELECT server, n, window_n, channel, topic FROM {k}.catalog \
                 WHERE epoch = ? AND server = ? AND n > ?"
            ),
            Self::DeleteCatalog => format!("DELETE FROM {k}.catalog WHERE epoch = ?"),
            Self::PutMark => {
                format!(
                    "INSERT INTO {k}.windows (epoch, window, server, mark) VALUES (?, ?, ?, ?) USING TIMESTAMP ?"
                )
            }
            Self::PutCount => {
                format!("INSERT INTO {k}.windows (epoch, window, server, count) VALUES (?, ?, ?, ?)")
            }
            Self::ReadWindows => format!(
                "SELECT window, server, mark, count, WRITETIME(mark) FROM {k}.windows WHERE epoch = ?"
            ),
            Self::DeleteWindows => format!("DELETE FROM {k}.windows WHERE epoch = ?"),
            Self::Forward(_) => format!("SELECT timestamp, hash, value FROM {t} {slice} LIMIT ?"),
            Self::Backward(_) => format!("SELECT timestamp, hash, value FROM {t} {slice} {backward}"),
            Self::KeysForward(_) => format!("SELECT timestamp, hash FROM {t} {slice} LIMIT ?"),
            Self::KeysBackward(_) => format!("SELECT timestamp, hash FROM {t} {slice} {backward}"),
            Self::Sizes(_) => format!("SELECT timestamp, hash, size FROM {t} {slice} LIMIT ?"),
            Self::Whole(_) => format!("SELECT timestamp, hash, value, size FROM {t} {slice} LIMIT ?"),
            Self::Rows(_) => {
                format!("SELECT timestamp, hash, value FROM {t} WHERE part = ? AND (timestamp, hash) IN ?")
            }
            Self::Keys(_) => {
                format!("SELECT timestamp, hash FROM {t} WHERE part = ? AND (timestamp, hash) IN ?")
            }
            Self::KeysOfParts(_) => format!("SELECT timestamp, hash FROM {t} WHERE part IN ?"),
            Self::PutMessage(_) => format!("{insert}, value, size) VALUES (?, ?, ?, ?, ?) USING TIMESTAMP ?"),
            // Above the timestamps of messages, which are negative.
            Self::PutSize(_) => format!("{insert}, size) VALUES (?, ?, ?, ?) USING TIMESTAMP 0"),
            Self::PutKey(_) => format!("{insert}) VALUES (?, ?, ?) USING TIMESTAMP ?"),
            Self::PutChunk(_) => format!("{insert}, value) VALUES (?, ?, ?, ?) USING TIMESTAMP ?"),
            Self::ReadChunks(_) => {
                format!(
                    "SELECT timestamp, value FROM {t} WHERE part = ? AND timestamp >= ? AND timestamp < ?"
                )
            }
        }
    }
}

/// The identity of a topic: 16 bytes of SHA-256 over the channel's length, the channel and the topic.
pub(super) fn topic_key(channel: &str, topic: &str) -> TopicKey {
    let mut hasher = Sha256::new();
    hasher.update((channel.len() as u64).to_be_bytes());
    hasher.update(channel.as_bytes());
    hasher.update(topic.as_bytes());
    let digest: [u8; 32] = hasher.finalize().into();
    digest.first_chunk::<16>().copied().unwrap_or_default()
}

/// A number as bytes that sort like the numbers.
fn sortable(number: i64) -> [u8; 8] {
    (number ^ i64::MIN).to_be_bytes()
}

/// The partition with the messages of a window.
pub(super) fn window_part(window: i64) -> Vec<u8> {
    [&[0], &sortable(window)[..]].concat()
}

/// The partition with the keys of a topic's messages in a span of windows.
pub(super) fn posting_part(topic: &TopicKey, span: i64) -> Vec<u8> {
    [&[1], &topic[..], &sortable(span)].concat()
}

/// The partition with the keys of the messages that have a hash.
pub(super) fn hash_part(hash: &[u8; 32]) -> Vec<u8> {
    [&[2], &hash[..]].concat()
}

/// The partition with the chunks of a long body. It is named after the body and not the message, so that the chunks of an
/// interrupted append and of a later one with another body are never mixed.
pub(super) fn chunk_part(body: &BodyHash) -> Vec<u8> {
    [&[3], &body[..]].concat()
}

/// The hash that chunks have in place of a message's.
pub(super) const CHUNK_HASH: &[u8] = &[];

/// A key after every row of a partition: hashes have 32 bytes.
pub(super) fn end_of_slice() -> (i64, Vec<u8>) {
    (i64::MAX, vec![0xff; 33])
}

/// The contents of a message's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Value<'a> {
    pub(super) topic: TopicKey,
    /// CRC-32C of the body.
    pub(super) checksum: u32,
    pub(super) body_bytes: u32,
    pub(super) body: Body<'a>,
}

/// Where a body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body<'a> {
    Inline(&'a [u8]),
    Chunks(BodyHash),
}

const INLINE: u8 = 0;
const CHUNKED: u8 = 1;

pub(super) fn body_hash(body: &[u8]) -> BodyHash {
    Sha256::digest(body).into()
}

/// Whether a body is stored in chunks.
pub(super) fn is_long(body: &[u8]) -> bool {
    body.len() > INLINE_BYTES_MAX
}

/// Writes a value: kind, topic, checksum, length, and the body, or its hash when it is long.
pub(super) fn encode_value(topic: &TopicKey, body: &[u8]) -> Vec<u8> {
    let mut value = Vec::with_capacity(25 + body.len().min(INLINE_BYTES_MAX));
    value.push(if is_long(body) { CHUNKED } else { INLINE });
    value.extend_from_slice(topic);
    value.extend_from_slice(&crc32c::crc32c(body).to_le_bytes());
    let len = u32::try_from(body.len()).expect("a body is at most BODY_BYTES_MAX long");
    value.extend_from_slice(&len.to_le_bytes());
    if is_long(body) {
        value.extend_from_slice(&body_hash(body));
    } else {
        value.extend_from_slice(body);
    }
    value
}

/// Decodes a value; `None` when it is damaged or unknown.
pub(super) fn decode_value(value: &[u8]) -> Option<Value<'_>> {
    let (kind, rest) = value.split_first()?;
    let (topic, rest) = rest.split_first_chunk::<16>()?;
    let (checksum, rest) = rest.split_first_chunk::<4>()?;
    let (body_bytes, rest) = rest.split_first_chunk::<4>()?;
    let body_bytes = u32::from_le_bytes(*body_bytes);
    let body = match *kind {
        INLINE if rest.len() == body_bytes as usize => Body::Inline(rest),
        CHUNKED => Body::Chunks(rest.try_into().ok()?),
        _ => return None,
    };
    Some(Value { topic: *topic, checksum: u32::from_le_bytes(*checksum), body_bytes, body })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_read_back() {
        for body in [vec![], vec![7; 5], vec![1; INLINE_BYTES_MAX], vec![1; INLINE_BYTES_MAX + 1]] {
            let encoded = encode_value(&[3; 16], &body);
            let value = decode_value(&encoded).unwrap();
            assert_eq!((value.topic, value.body_bytes as usize), ([3; 16], body.len()));
            assert_eq!(value.checksum, crc32c::crc32c(&body));
            let expected = if is_long(&body) { Body::Chunks(body_hash(&body)) } else { Body::Inline(&body) };
            assert_eq!(value.body, expected);
            for len in [24, encoded.len() + 1] {
                let mut wrong = encoded.clone();
                wrong.resize(len, 0);
                assert_eq!(decode_value(&wrong), None, "{len}");
            }
        }
    }

    #[test]
    fn partitions_are_different() {
        let parts = [
            window_part(-1),
            window_part(1),
            posting_part(&[0; 16], 0),
            hash_part(&[0; 32]),
            chunk_part(&[0; 32]),
        ];
        for (n, part) in parts.iter().enumerate() {
            assert!(!parts[..n].contains(part), "{part:?}");
        }
        assert!(window_part(-1) < window_part(1));
    }

    #[test]
    fn a_topic_is_one_in_its_channel() {
        assert_ne!(topic_key("ab", "c"), topic_key("a", "bc"));
        assert_eq!(topic_key("a", "b"), topic_key("a", "b"));
    }
}
