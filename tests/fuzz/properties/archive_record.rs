//! What must hold for any bytes that are read as records of an archive: see `docs/formats/log.md`.

use std::ops::Range;

use restante_archive::{
    Page, Part, RowAt, TopicName,
    record::{HEADER_BYTES, Record, encode_message},
};
use restante_core::{Key, MessageHash, Timestamp};

/// Offsets at the start of a buffer at which records are read.
const OFFSETS: usize = 64;
/// The topics of the part that is made of the bytes.
const TOPICS: u32 = 4;
/// The seed with which a checksum is the plain CRC-32C.
const SEED: u32 = 0;
/// Marks a topic definition.
const DEFINITION: u32 = 1 << 31;

/// Reading never panics, a record is sound if and only if its checksum is right, and a sound message, written again, has
/// the same bytes.
///
/// # Panics
/// When that does not hold.
pub fn archive_record(buffer: &[u8]) {
    let beyond = [buffer.len(), buffer.len() + 1, usize::MAX];
    for offset in (0..buffer.len().min(OFFSETS)).chain(beyond) {
        let Some(record) = Record::read(buffer, offset) else { continue };
        let place = place(buffer, offset);
        assert_eq!(record.is_sound(SEED), checksum_of(&buffer[place.clone()]) == u32_at(buffer, offset + 4));
        // A fuzzer can't guess a checksum, so it is corrected: the content is what is tested then.
        let mut mended = buffer.to_vec();
        let checksum = checksum_of(&buffer[place.clone()]);
        mended[offset + 4..offset + 8].copy_from_slice(&checksum.to_le_bytes());
        assert!(Record::read(&mended, offset).is_some_and(|record| record.is_sound(SEED)));
        check_message(mended, place);
    }
}

/// A sound message shows its fields on a page, and is written again as the same bytes.
fn check_message(buffer: Vec<u8>, place: Range<usize>) {
    let record = &buffer[place.clone()];
    let topic = u32_at(record, 8);
    if topic & DEFINITION != 0 || record.len() < HEADER_BYTES {
        return;
    }
    let (timestamp, hash) = (record[12..20].try_into().unwrap(), record[20..52].try_into().unwrap());
    let key = Key { timestamp: Timestamp(i64::from_le_bytes(timestamp)), message_hash: MessageHash(hash) };
    let body = &record[HEADER_BYTES..];
    let mut again = Vec::new();
    encode_message(SEED, topic, key, body, &mut again);
    assert_eq!(again, record);

    let page = page(buffer.clone(), place.start);
    assert!(page.bodies().eq([body]));
    if topic < TOPICS {
        let row = page.rows().next().unwrap();
        assert_eq!((row.key(), row.topic, row.body), (key, &*topic.to_string(), body));
    }
}

/// A page of one row.
fn page(buffer: Vec<u8>, offset: usize) -> Page {
    let name = |number: u32| TopicName { channel: "channel".into(), topic: number.to_string().into() };
    let part = Part { bytes: buffer.into(), topics: (0..TOPICS).map(name).collect() };
    let row = RowAt { part: 0, offset: u32::try_from(offset).unwrap() };
    Page { parts: vec![part], rows: vec![row], next: None, bodies: true }
}

/// The range of the record at an offset.
fn place(buffer: &[u8], offset: usize) -> Range<usize> {
    offset..offset + 8 + u32_at(buffer, offset) as usize
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// The checksum that a record should have: CRC-32C over all of it except the checksum's own field, bit by bit, as a
/// second opinion on the archive's.
fn checksum_of(record: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in record[..4].iter().chain(&record[8..]) {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    !crc
}
