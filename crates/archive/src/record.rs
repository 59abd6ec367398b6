//! The layout of a message in memory and on disk: the same for the log, for mapped segments and for pages of any engine.
//!
//! ```text
//!  0  length     u32  bytes of the record after the checksum: 44 + body
//!  4  checksum   u32  CRC-32C over bytes 0..4 and 8..8+length, starting with the seed of the buffer
//!  8  topic      u32  number of the topic in the part; bit 31 marks a topic definition instead of a message
//! 12  timestamp  i64  nanoseconds since the epoch
//! 20  hash       32 bytes
//! 52  body
//! ```
//!
//! The seed is secret: a body that looks like a record does not have its checksum.
//!
//! All numbers are little endian. A topic definition assigns a name to the topic of that number; from byte 12 on, it has the
//! channel's length as u16, the channel and the topic.

use restante_core::{Key, MessageHash, Timestamp};

/// Bytes before a record's body.
pub const HEADER_BYTES: usize = 52;
/// Bytes of length and checksum.
pub(crate) const FRAME_BYTES: usize = 8;
/// Set in the topic field of a topic definition.
pub(crate) const DEFINITION: u32 = 1 << 31;

/// Appends a message record to `out`. In a buffer that is never searched for records the seed does not matter.
pub fn encode_message(seed: u32, topic: u32, key: Key, body: &[u8], out: &mut Vec<u8>) {
    let start = begin(out, topic);
    out.extend_from_slice(&key.timestamp.0.to_le_bytes());
    out.extend_from_slice(&key.message_hash.0);
    out.extend_from_slice(body);
    finish(seed, out, start);
}

/// The same without a checksum, for the buffers of a page, whose records are never verified.
#[cfg(feature = "postgres")]
pub(crate) fn encode_unchecked(topic: u32, key: Key, body: &[u8], out: &mut Vec<u8>) {
    let length = HEADER_BYTES - FRAME_BYTES + body.len();
    let length = u32::try_from(length).expect("a body is at most BODY_BYTES_MAX long");
    out.reserve(HEADER_BYTES + body.len());
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&topic.to_le_bytes());
    out.extend_from_slice(&key.timestamp.0.to_le_bytes());
    out.extend_from_slice(&key.message_hash.0);
    out.extend_from_slice(body);
}

/// Appends a topic definition to `out`.
pub(crate) fn encode_definition(seed: u32, number: u32, channel: &str, topic: &str, out: &mut Vec<u8>) {
    let start = begin(out, DEFINITION | number);
    let channel_len = u16::try_from(channel.len()).expect("a channel is at most CHANNEL_BYTES_MAX long");
    out.extend_from_slice(&channel_len.to_le_bytes());
    out.extend_from_slice(channel.as_bytes());
    out.extend_from_slice(topic.as_bytes());
    finish(seed, out, start);
}

fn begin(out: &mut Vec<u8>, topic: u32) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0; FRAME_BYTES]);
    out.extend_from_slice(&topic.to_le_bytes());
    start
}

fn finish(seed: u32, out: &mut [u8], start: usize) {
    let Some((frame, content)) =
        out.get_mut(start..).and_then(|record| record.split_at_mut_checked(FRAME_BYTES))
    else {
        return; // begin() wrote the frame, so there is one
    };
    let length = u32::try_from(content.len()).expect("a body is at most BODY_BYTES_MAX long").to_le_bytes();
    let checksum = checksum(seed, length, content).to_le_bytes();
    let (length_field, checksum_field) = frame.split_at_mut(4);
    length_field.copy_from_slice(&length);
    checksum_field.copy_from_slice(&checksum);
}

fn checksum(seed: u32, length: [u8; 4], content: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(seed, &length), content)
}

/// A record in a buffer. Reading one checks that it fits; [`Record::is_sound`] checks that it is undamaged.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    length: [u8; 4],
    checksum: [u8; 4],
    content: &'a [u8],
}

impl<'a> Record<'a> {
    /// The record that begins at `offset`, if it fits into the buffer and is long enough to be one.
    pub fn read(buffer: &'a [u8], offset: usize) -> Option<Self> {
        let (length, rest) = buffer.get(offset..)?.split_first_chunk::<4>()?;
        let (checksum, rest) = rest.split_first_chunk::<4>()?;
        let content = rest.get(..u32::from_le_bytes(*length) as usize)?;
        (content.len() >= 4).then_some(Self { length: *length, checksum: *checksum, content })
    }

    /// Whether the checksum is right for a buffer with this seed.
    pub fn is_sound(&self, seed: u32) -> bool {
        checksum(seed, self.length, self.content) == u32::from_le_bytes(self.checksum)
    }

    /// The length field and the checksum.
    pub(crate) fn frame(&self) -> ([u8; 4], u32) {
        (self.length, u32::from_le_bytes(self.checksum))
    }

    /// All bytes of the record, header included.
    pub(crate) fn len(&self) -> usize {
        FRAME_BYTES + self.content.len()
    }

    /// The topic field.
    pub(crate) fn topic_field(&self) -> u32 {
        self.content.first_chunk::<4>().map_or(0, |bytes| u32::from_le_bytes(*bytes))
    }

    /// The decoded record; `None` when it is too short for its kind, or its names are not UTF-8.
    pub(crate) fn entry(&self) -> Option<Entry<'a>> {
        let field = self.topic_field();
        if field & DEFINITION != 0 {
            let (channel_len, names) = self.content.get(4..)?.split_first_chunk::<2>()?;
            let (channel, topic) = names.split_at_checked(usize::from(u16::from_le_bytes(*channel_len)))?;
            let channel = std::str::from_utf8(channel).ok()?;
            let topic = std::str::from_utf8(topic).ok()?;
            return Some(Entry::Definition { number: field & !DEFINITION, channel, topic });
        }
        self.message().map(Entry::Message)
    }

    /// The record as a message; `None` when it is too short to be one.
    pub(crate) fn message(&self) -> Option<MessageRecord<'a>> {
        let (topic, rest) = self.content.split_first_chunk::<4>()?;
        let (timestamp, rest) = rest.split_first_chunk::<8>()?;
        let (hash, body) = rest.split_first_chunk::<32>()?;
        Some(MessageRecord {
            topic: u32::from_le_bytes(*topic),
            timestamp: Timestamp(i64::from_le_bytes(*timestamp)),
            hash,
            body,
        })
    }
}

/// The body of the message record that begins at `offset`: the same as [`Record::read`] and [`Record::message`] return, with as
/// few reads as possible.
#[inline]
pub(crate) fn body_at(buffer: &[u8], offset: usize) -> Option<&[u8]> {
    let record = buffer.get(offset..)?;
    let length = u32::from_le_bytes(*record.first_chunk::<4>()?) as usize;
    record.get(HEADER_BYTES..FRAME_BYTES + length)
}

/// A decoded record.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Entry<'a> {
    Definition { number: u32, channel: &'a str, topic: &'a str },
    Message(MessageRecord<'a>),
}

/// The fields of a message record, borrowed from its buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageRecord<'a> {
    pub(crate) topic: u32,
    pub(crate) timestamp: Timestamp,
    pub(crate) hash: &'a [u8; 32],
    pub(crate) body: &'a [u8],
}

impl MessageRecord<'_> {
    pub(crate) fn key(&self) -> Key {
        Key { timestamp: self.timestamp, message_hash: MessageHash(*self.hash) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: u32 = 77;

    #[test]
    fn records_read_back() {
        let key = Key { timestamp: Timestamp(-5), message_hash: MessageHash([9; 32]) };
        let mut log = Vec::new();
        encode_definition(SEED, 3, "chan", "topic", &mut log);
        let second = log.len();
        encode_message(SEED, 3, key, b"body", &mut log);

        let definition = Record::read(&log, 0).unwrap();
        assert!(definition.is_sound(SEED));
        assert_eq!(definition.len(), second);
        let Some(Entry::Definition { number: 3, channel: "chan", topic: "topic" }) = definition.entry()
        else {
            panic!("{definition:?}");
        };
        let message = Record::read(&log, second).unwrap();
        assert!(message.is_sound(SEED));
        assert_eq!(message.len(), HEADER_BYTES + 4);
        let message = message.message().unwrap();
        assert_eq!((message.topic, message.key(), message.body), (3, key, &b"body"[..]));
    }

    #[test]
    fn any_flipped_bit_is_noticed() {
        let key = Key { timestamp: Timestamp(1), message_hash: MessageHash([1; 32]) };
        let mut log = Vec::new();
        encode_message(SEED, 0, key, b"body", &mut log);
        for bit in 0..log.len() * 8 {
            let mut damaged = log.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(!Record::read(&damaged, 0).is_some_and(|record| record.is_sound(SEED)), "bit {bit}");
        }
    }

    #[test]
    fn a_record_is_sound_only_with_its_seed() {
        let key = Key { timestamp: Timestamp(1), message_hash: MessageHash([1; 32]) };
        let mut log = Vec::new();
        encode_message(SEED, 0, key, b"body", &mut log);
        for seed in (0..1_000).filter(|seed| *seed != SEED) {
            assert!(!Record::read(&log, 0).unwrap().is_sound(seed));
        }
    }
}
