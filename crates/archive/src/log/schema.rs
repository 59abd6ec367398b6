//! The files of the `log` engine, byte by byte: see `docs/formats/log.md`.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use restante_core::{Key, MessageHash, Timestamp};

use super::{segment::Span, segment_list::Entry};
use crate::{Error, TopicName};

#[cfg(target_endian = "big")]
compile_error!("the log engine maps little-endian columns; it needs a little-endian machine");

const LOG_MAGIC: [u8; 8] = *b"RSTNTLOG";
const INDEX_MAGIC: [u8; 8] = *b"RSTNTIDX";
const LIST_MAGIC: [u8; 8] = *b"RSTNTSEG";
const VERSION: u32 = 1;
const VERSION_AT: usize = 8;
/// Bytes before the first record of a log.
pub(crate) const LOG_HEADER_BYTES: u64 = 64;
const INDEX_HEADER_BYTES: usize = 128;

/// The identity of a segment and its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SegmentId {
    /// The window's first nanosecond.
    pub(super) window_start: i64,
    /// The window's length in nanoseconds.
    pub(super) window_len: i64,
    /// The number of the segment in the archive; greater than that of any segment that existed when it was created.
    pub(super) sequence: u64,
    /// A secret number. It keys the hash index, so that senders can't choose hashes that collide in it,
    /// and seeds the records' checksums, so that senders can't hide a record in a body.
    pub(super) salt: u64,
}

impl SegmentId {
    /// Whether the window is known: it is not when the header is damaged, and then the segment accepts no more messages.
    pub(super) fn has_window(&self) -> bool {
        self.window_len > 0
    }

    /// The window's last nanosecond.
    pub(super) fn window_last(&self) -> i64 {
        self.window_start.saturating_add(self.window_len - 1)
    }

    /// The seed of the records' checksums.
    pub(super) fn seed(&self) -> u32 {
        (self.salt >> 32) as u32
    }

    pub(super) fn log_name(&self) -> String {
        format!("{:08}{LOG_SUFFIX}", self.sequence)
    }

    pub(super) fn index_name(&self) -> String {
        format!("{:08}{INDEX_SUFFIX}", self.sequence)
    }
}

pub(super) const LOG_SUFFIX: &str = ".log";
pub(super) const INDEX_SUFFIX: &str = ".idx";
pub(super) const TEMPORARY_SUFFIX: &str = ".tmp";
/// The file that lists the segments.
pub(super) const LIST_NAME: &str = "SEGMENTS";
/// Bytes of the list's header and of each entry after it.
pub(super) const LIST_SLOT_BYTES: usize = 64;
/// The part of the name of a damaged file that was set aside, between its former name and a number.
pub(super) const DAMAGED_INFIX: &str = ".damaged-";

/// The sequence number in a file's name.
pub(super) fn sequence_of(name: &str) -> Option<u64> {
    let stem = name.strip_suffix(LOG_SUFFIX).or_else(|| name.strip_suffix(INDEX_SUFFIX))?;
    stem.parse().ok()
}

/// A reader of consecutive little-endian fields.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*field)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn i64(&mut self) -> Option<i64> {
        self.take().map(i64::from_le_bytes)
    }
}

/// Fills a header up to its checksum, which covers everything before it and is its last field.
fn close_header(mut header: Vec<u8>, len: usize) -> Vec<u8> {
    header.resize(len - 4, 0);
    let checksum = crc32c::crc32c(&header);
    header.extend_from_slice(&checksum.to_le_bytes());
    header
}

/// The fields of a header whose checksum is right and whose magic and version are known.
fn open_header<'a>(bytes: &'a [u8], len: usize, magic: [u8; 8]) -> Result<Fields<'a>, &'static str> {
    let header = bytes.get(..len).ok_or("header is cut off")?;
    let (content, checksum) = header.split_last_chunk::<4>().ok_or("header is cut off")?;
    let mut fields = Fields(content);
    if fields.take() != Some(magic) {
        return Err("header has another magic");
    }
    if crc32c::crc32c(content) != u32::from_le_bytes(*checksum) {
        return Err("header is damaged");
    }
    if fields.u32() != Some(VERSION) {
        return Err(OTHER_VERSION);
    }
    fields.u32().ok_or("header is cut off")?; // reserved
    Ok(fields)
}

/// Why [`open_header`] refuses a sound header of another version.
pub(super) const OTHER_VERSION: &str = "header has another format version";

/// The error for a file whose header is sound and has another version.
pub(super) fn other_version(name: &str, header: &[u8]) -> Error {
    let version = header.get(VERSION_AT..).and_then(|rest| rest.first_chunk());
    let version = version.map_or(0, |bytes| u32::from_le_bytes(*bytes));
    let known = format!("this program knows versions up to {VERSION}");
    let what = format!("{name} has format version {version}, and {known}: use the version that wrote it");
    Error::corrupt(what)
}

/// The header of the list of segments.
pub(super) fn encode_list_header() -> Vec<u8> {
    let mut header = Vec::from(LIST_MAGIC);
    header.extend_from_slice(&VERSION.to_le_bytes());
    close_header(header, LIST_SLOT_BYTES)
}

/// Whether the list's header is sound.
pub(super) fn check_list_header(bytes: &[u8]) -> Result<(), &'static str> {
    open_header(bytes, LIST_SLOT_BYTES, LIST_MAGIC).map(drop)
}

const LISTED_OPEN: u32 = 1;
const LISTED_SEALED: u32 = 2;

/// One entry of the list.
pub(super) fn encode_list_slot(entry: &Entry) -> Vec<u8> {
    let mut slot = Vec::with_capacity(LIST_SLOT_BYTES);
    for number in [entry.sequence, entry.salt, entry.rows, entry.log_len] {
        slot.extend_from_slice(&number.to_le_bytes());
    }
    for timestamp in [entry.span.oldest, entry.span.newest] {
        slot.extend_from_slice(&timestamp.0.to_le_bytes());
    }
    let state = if entry.is_sealed { LISTED_SEALED } else { LISTED_OPEN };
    slot.extend_from_slice(&state.to_le_bytes());
    close_header(slot, LIST_SLOT_BYTES)
}

/// The entry of a slot; `None` when the slot is free or damaged.
pub(super) fn decode_list_slot(slot: &[u8]) -> Option<Entry> {
    let (content, checksum) = slot.get(..LIST_SLOT_BYTES)?.split_last_chunk::<4>()?;
    if crc32c::crc32c(content) != u32::from_le_bytes(*checksum) {
        return None;
    }
    let mut fields = Fields(content);
    let (sequence, salt, rows, log_len) = (fields.u64()?, fields.u64()?, fields.u64()?, fields.u64()?);
    let span = Span { oldest: Timestamp(fields.i64()?), newest: Timestamp(fields.i64()?) };
    let is_sealed = match fields.u32()? {
        LISTED_OPEN => false,
        LISTED_SEALED => true,
        _ => return None,
    };
    Some(Entry { sequence, salt, rows, log_len, span, is_sealed })
}

pub(super) fn encode_log_header(id: &SegmentId) -> Vec<u8> {
    let mut header = Vec::from(LOG_MAGIC);
    header.extend_from_slice(&VERSION.to_le_bytes());
    header.extend_from_slice(&0_u32.to_le_bytes());
    header.extend_from_slice(&id.window_start.to_le_bytes());
    header.extend_from_slice(&id.window_len.to_le_bytes());
    header.extend_from_slice(&id.sequence.to_le_bytes());
    header.extend_from_slice(&id.salt.to_le_bytes());
    header.extend_from_slice(&id.salt.to_le_bytes()); // again, so that damage to the header hides no record
    close_header(header, LOG_HEADER_BYTES as usize)
}

pub(super) fn decode_log_header(bytes: &[u8]) -> Result<SegmentId, &'static str> {
    let mut fields = open_header(bytes, LOG_HEADER_BYTES as usize, LOG_MAGIC)?;
    let mut read = || -> Option<SegmentId> {
        Some(SegmentId {
            window_start: fields.i64()?,
            window_len: fields.i64()?,
            sequence: fields.u64()?,
            salt: fields.u64()?,
        })
    };
    read().ok_or("header is cut off")
}

/// The two copies of the salt, wherever else the header is damaged.
pub(super) fn salts_of_damaged_header(bytes: &[u8]) -> [u64; 2] {
    let at = |at: usize| {
        bytes.get(at..).and_then(|rest| rest.first_chunk::<8>()).map_or(0, |salt| u64::from_le_bytes(*salt))
    };
    [at(40), at(48)]
}

/// A row to be written to an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IndexRow {
    pub(super) key: Key,
    pub(super) offset: u32,
    pub(super) topic: u32,
}

/// The input of an index: rows in key order and the topics that they refer to by number.
pub(super) struct IndexInput<'a> {
    pub(super) rows: &'a [IndexRow],
    pub(super) topics: &'a [TopicName],
    pub(super) log_len: u64,
    pub(super) body_bytes: u64,
    pub(super) salt: u64,
}

/// The offsets of the columns of an index. Each begins at a multiple of eight.
#[derive(Clone, Debug)]
struct Sections {
    timestamps: Range<usize>,
    offsets: Range<usize>,
    topic_of: Range<usize>,
    postings: Range<usize>,
    slots: Range<usize>,
    posting_starts: Range<usize>,
    names: Range<usize>,
}

impl Sections {
    fn new(rows: usize, topics: usize, names_len: usize) -> Self {
        let mut at = INDEX_HEADER_BYTES;
        let mut section = |len: usize| {
            let range = at..at + len;
            at = range.end.next_multiple_of(8);
            range
        };
        Self {
            timestamps: section(rows * 8),
            offsets: section(rows * 4),
            topic_of: section(rows * topic_width(topics)),
            postings: section(rows * 4),
            slots: section(slot_count(rows) * 4),
            posting_starts: section((topics + 1) * 4),
            names: section(names_len),
        }
    }

    /// The columns that are read by queries; the rest is read, and verified, when the index is opened.
    fn columns(&self) -> Range<usize> {
        self.timestamps.start..self.slots.end
    }

    fn directory(&self) -> Range<usize> {
        self.posting_starts.start..self.names.end
    }
}

/// Bytes of a topic number in the column of topics.
fn topic_width(topics: usize) -> usize {
    if topics <= 1 << 16 { 2 } else { 4 }
}

/// Slots of the hash index: a load of 0.8.
fn slot_count(rows: usize) -> usize {
    rows + rows / 4 + 1
}

/// Bits of a slot for the number of a row; the others are a fingerprint of the hash.
fn row_bits(rows: usize) -> u32 {
    usize::BITS - rows.leading_zeros()
}

fn mix(hash: &MessageHash, salt: u64) -> u64 {
    let (first, _) = hash.0.split_first_chunk::<8>().unwrap_or((&[0; 8], &[]));
    let mixed = (u64::from_le_bytes(*first) ^ salt).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 32)
}

/// Where probing for a hash begins, and its fingerprint.
fn slot_of(hash: &MessageHash, salt: u64, slots: usize, row_bits: u32) -> (usize, u32) {
    let mixed = mix(hash, salt);
    let slot = ((u128::from(mixed) * slots as u128) >> 64) as usize;
    let fingerprint = (mixed as u32).checked_shl(row_bits).unwrap_or(0);
    (slot, fingerprint)
}

/// The bytes of an index file. The same input yields the same bytes.
pub(super) fn encode_index(input: &IndexInput<'_>) -> Vec<u8> {
    let rows = input.rows.len();
    let names = encode_names(input.topics);
    let sections = Sections::new(rows, input.topics.len(), names.len());
    let (postings, posting_starts) = postings(input);

    let mut file = vec![0; INDEX_HEADER_BYTES];
    let mut put = |range: &Range<usize>, bytes: &[u8]| {
        file.resize(range.start, 0);
        file.extend_from_slice(bytes);
    };
    let timestamps: Vec<i64> = input.rows.iter().map(|row| row.key.timestamp.0).collect();
    put(&sections.timestamps, bytemuck::cast_slice(&timestamps));
    let offsets: Vec<u32> = input.rows.iter().map(|row| row.offset).collect();
    put(&sections.offsets, bytemuck::cast_slice(&offsets));
    if topic_width(input.topics.len()) == 2 {
        let topics: Vec<u16> = input.rows.iter().map(|row| row.topic as u16).collect();
        put(&sections.topic_of, bytemuck::cast_slice(&topics));
    } else {
        let topics: Vec<u32> = input.rows.iter().map(|row| row.topic).collect();
        put(&sections.topic_of, bytemuck::cast_slice(&topics));
    }
    put(&sections.postings, bytemuck::cast_slice(&postings));
    put(&sections.slots, bytemuck::cast_slice(&slots(input)));
    put(&sections.posting_starts, bytemuck::cast_slice(&posting_starts));
    put(&sections.names, &names);

    let header = encode_index_header(input, &file, &sections);
    file.splice(..INDEX_HEADER_BYTES, header);
    file
}

fn encode_index_header(input: &IndexInput<'_>, file: &[u8], sections: &Sections) -> Vec<u8> {
    let checksum = |range: Range<usize>| crc32c::crc32c(file.get(range).unwrap_or_default()).to_le_bytes();
    let mut header = Vec::from(INDEX_MAGIC);
    header.extend_from_slice(&VERSION.to_le_bytes());
    header.extend_from_slice(&0_u32.to_le_bytes());
    header.extend_from_slice(&(input.rows.len() as u64).to_le_bytes());
    header.extend_from_slice(&(input.topics.len() as u64).to_le_bytes());
    header.extend_from_slice(&(sections.names.len() as u64).to_le_bytes());
    header.extend_from_slice(&input.log_len.to_le_bytes());
    header.extend_from_slice(&input.body_bytes.to_le_bytes());
    header.extend_from_slice(&input.salt.to_le_bytes());
    header.extend_from_slice(&checksum(sections.columns()));
    header.extend_from_slice(&checksum(sections.directory()));
    close_header(header, INDEX_HEADER_BYTES)
}

fn encode_names(topics: &[TopicName]) -> Vec<u8> {
    let mut names = Vec::new();
    for name in topics {
        for part in [&name.channel, &name.topic] {
            let len =
                u16::try_from(part.len()).expect("channels and topics are at most TOPIC_BYTES_MAX long");
            names.extend_from_slice(&len.to_le_bytes());
            names.extend_from_slice(part.as_bytes());
        }
    }
    names
}

fn decode_names(mut bytes: &[u8], topics: usize) -> Option<Arc<[TopicName]>> {
    let mut next = || -> Option<Arc<str>> {
        let (len, rest) = bytes.split_first_chunk::<2>()?;
        let (name, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*len)))?;
        bytes = rest;
        std::str::from_utf8(name).ok().map(Arc::from)
    };
    let mut names = Vec::with_capacity(topics);
    for _ in 0..topics {
        names.push(TopicName { channel: next()?, topic: next()? });
    }
    Some(names.into())
}

/// Row numbers grouped by topic, sorted within each group, and where each group begins.
fn postings(input: &IndexInput<'_>) -> (Vec<u32>, Vec<u32>) {
    let mut starts = vec![0_u32; input.topics.len() + 1];
    for row in input.rows {
        if let Some(count) = starts.get_mut(row.topic as usize + 1) {
            *count += 1;
        }
    }
    let mut sum = 0;
    for start in &mut starts {
        sum += *start;
        *start = sum;
    }
    let mut next = starts.clone();
    let mut postings = vec![0; input.rows.len()];
    for (number, row) in (0..).zip(input.rows) {
        let Some(at) = next.get_mut(row.topic as usize) else { continue };
        if let Some(posting) = postings.get_mut(*at as usize) {
            *posting = number;
        }
        *at += 1;
    }
    (postings, starts)
}

/// The hash index: open addressing with linear probing; a slot holds a row's number plus one and a fingerprint.
fn slots(input: &IndexInput<'_>) -> Vec<u32> {
    let bits = row_bits(input.rows.len());
    let mut slots = vec![0_u32; slot_count(input.rows.len())];
    for (number, row) in (1..).zip(input.rows) {
        let (mut at, fingerprint) = slot_of(&row.key.message_hash, input.salt, slots.len(), bits);
        while slots.get(at).is_some_and(|slot| *slot != 0) {
            at = (at + 1) % slots.len();
        }
        if let Some(slot) = slots.get_mut(at) {
            *slot = fingerprint | number;
        }
    }
    slots
}

/// The information about a segment in the header of its index.
pub(super) struct IndexSummary {
    pub(super) rows: u64,
    pub(super) log_len: u64,
    pub(super) salt: u64,
    /// From the column of timestamps, which is not verified.
    pub(super) span: Option<Span>,
}

impl IndexSummary {
    /// Reads an index whose header is sound; the rest may be damaged.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let mut fields = open_header(bytes, INDEX_HEADER_BYTES, INDEX_MAGIC).ok()?;
        let rows = fields.u64()?;
        let (_topics, _names_len) = (fields.u64()?, fields.u64()?);
        let log_len = fields.u64()?;
        let _body_bytes = fields.u64()?;
        let salt = fields.u64()?;
        let timestamp = |row: u64| {
            let at = usize::try_from(row.checked_mul(8)?).ok()?.checked_add(INDEX_HEADER_BYTES)?;
            Fields(bytes.get(at..)?).i64().map(Timestamp)
        };
        let span = timestamp(0).zip(rows.checked_sub(1).and_then(timestamp));
        let span = span.map(|(oldest, newest)| Span { oldest, newest });
        Some(Self { rows, log_len, salt, span })
    }
}

/// An index file that is mapped. Opening verifies header and directory; [`Index::columns_are_sound`] verifies the rest.
pub(super) struct Index {
    bytes: Bytes,
    sections: Sections,
    columns_checksum: u32,
    pub(super) salt: u64,
    pub(super) rows: usize,
    pub(super) log_len: u64,
    pub(super) body_bytes: u64,
}

impl Index {
    /// Reads an index and the names of its topics.
    pub(super) fn open(bytes: Bytes) -> Result<(Self, Arc<[TopicName]>), &'static str> {
        const CUT: &str = "header is cut off";
        let mut fields = open_header(&bytes, INDEX_HEADER_BYTES, INDEX_MAGIC)?;
        let mut count = || fields.u64().and_then(|n| usize::try_from(n).ok()).ok_or(CUT);
        let (rows, topics, names_len) = (count()?, count()?, count()?);
        if rows.max(topics).max(names_len) > bytes.len() {
            return Err("file is cut off");
        }
        let log_len = fields.u64().ok_or(CUT)?;
        let body_bytes = fields.u64().ok_or(CUT)?;
        let salt = fields.u64().ok_or(CUT)?;
        let columns_checksum = fields.u32().ok_or(CUT)?;
        let directory_checksum = fields.u32().ok_or(CUT)?;
        let sections = Sections::new(rows, topics, names_len);
        let directory = bytes.get(sections.directory()).ok_or("file is cut off")?;
        if crc32c::crc32c(directory) != directory_checksum {
            return Err("topic directory is damaged");
        }
        let names = bytes.get(sections.names.clone()).and_then(|names| decode_names(names, topics));
        let names = names.ok_or("topic directory is damaged")?;
        Ok((Self { bytes, sections, columns_checksum, salt, rows, log_len, body_bytes }, names))
    }

    pub(super) fn columns_are_sound(&self) -> bool {
        let columns = self.bytes.get(self.sections.columns()).unwrap_or_default();
        crc32c::crc32c(columns) == self.columns_checksum
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn column<T: bytemuck::AnyBitPattern>(&self, range: &Range<usize>) -> &[T] {
        let bytes = self.bytes.get(range.clone()).unwrap_or_default();
        bytemuck::try_cast_slice(bytes).unwrap_or_default()
    }

    pub(super) fn timestamps(&self) -> &[i64] {
        self.column(&self.sections.timestamps)
    }

    pub(super) fn offsets(&self) -> &[u32] {
        self.column(&self.sections.offsets)
    }

    /// The topic of each row.
    pub(super) fn topics(&self) -> TopicColumn<'_> {
        if topic_width(self.topic_count()) == 2 {
            TopicColumn::Narrow(self.column(&self.sections.topic_of))
        } else {
            TopicColumn::Wide(self.column(&self.sections.topic_of))
        }
    }

    fn topic_count(&self) -> usize {
        (self.sections.posting_starts.len() / 4).saturating_sub(1)
    }

    /// How many rows a topic has.
    pub(super) fn topic_rows(&self, topic: u32) -> usize {
        self.posting_range(topic).map_or(0, |range| range.len())
    }

    /// The rows of a topic, in order.
    pub(super) fn postings(&self, topic: u32) -> &[u32] {
        let postings: &[u32] = self.column(&self.sections.postings);
        self.posting_range(topic).and_then(|range| postings.get(range)).unwrap_or_default()
    }

    fn posting_range(&self, topic: u32) -> Option<Range<usize>> {
        let starts: &[u32] = self.column(&self.sections.posting_starts);
        let start = *starts.get(topic as usize)? as usize;
        let end = *starts.get(topic as usize + 1)? as usize;
        Some(start..end)
    }

    /// Rows whose hash may be this one.
    pub(super) fn candidates(&self, hash: &MessageHash) -> impl Iterator<Item = usize> {
        let slots: &[u32] = self.column(&self.sections.slots);
        let bits = row_bits(self.rows);
        let (start, fingerprint) = slot_of(hash, self.salt, slots.len(), bits);
        let row_mask = (1_u32 << bits) - 1;
        let wrapped =
            slots.get(start..).unwrap_or_default().iter().chain(slots.get(..start).unwrap_or_default());
        wrapped
            .take_while(|slot| **slot != 0)
            .filter(move |slot| **slot & !row_mask == fingerprint)
            .map(move |slot| (*slot & row_mask) as usize - 1)
    }
}

/// The column of topic numbers, as wide as the number of topics requires.
#[derive(Clone, Copy)]
pub(super) enum TopicColumn<'a> {
    Narrow(&'a [u16]),
    Wide(&'a [u32]),
}

#[cfg(test)]
mod tests {
    use super::*;
    use restante_core::Timestamp;

    fn rows(n: u32) -> Vec<IndexRow> {
        let row = |i: u32| IndexRow {
            key: Key { timestamp: Timestamp(i64::from(i) * 10), message_hash: hash(i) },
            offset: 64 + i * 100,
            topic: i % 3,
        };
        (0..n).map(row).collect()
    }

    fn hash(i: u32) -> MessageHash {
        let mut bytes = [7; 32];
        bytes[..4].copy_from_slice(&i.wrapping_mul(2_654_435_761).to_le_bytes());
        MessageHash(bytes)
    }

    fn index(rows: &[IndexRow]) -> Vec<u8> {
        let name = |i: u32| TopicName { channel: "c".into(), topic: format!("topic {i}").into() };
        let topics: Vec<TopicName> = (0..3).map(name).collect();
        encode_index(&IndexInput { rows, topics: &topics, log_len: 999, body_bytes: 55, salt: 42 })
    }

    #[test]
    fn an_index_reads_back() {
        for n in [0, 1, 2, 255, 1_000] {
            let rows = rows(n);
            let (index, names) = Index::open(index(&rows).into()).unwrap();
            assert!(index.columns_are_sound());
            assert_eq!((index.rows, index.log_len, index.body_bytes), (rows.len(), 999, 55));
            assert_eq!(&*names[2].topic, "topic 2");
            assert!(index.timestamps().iter().eq(rows.iter().map(|row| &row.key.timestamp.0)));
            assert!(index.offsets().iter().eq(rows.iter().map(|row| &row.offset)));
            for topic in 0..3 {
                let expected =
                    rows.iter().enumerate().filter(|(_, row)| row.topic == topic).map(|(i, _)| i as u32);
                assert!(index.postings(topic).iter().copied().eq(expected));
            }
            for (number, row) in rows.iter().enumerate() {
                assert!(index.candidates(&row.key.message_hash).any(|candidate| candidate == number));
            }
            assert!(index.candidates(&MessageHash::MAX).count() <= 1, "a fingerprint may collide, rarely");
        }
    }

    #[test]
    fn any_flipped_byte_is_noticed() {
        let sound = index(&rows(40));
        for at in 0..sound.len() {
            let mut damaged = sound.clone();
            damaged[at] ^= 0x10;
            let noticed = Index::open(damaged.into()).map_or(true, |(index, _)| !index.columns_are_sound());
            let is_padding = Index::open(sound.clone().into()).is_ok_and(|(index, _)| {
                at >= index.sections.slots.end && at < index.sections.posting_starts.start
            });
            assert!(noticed || is_padding, "byte {at}");
        }
    }

    #[test]
    fn log_headers_read_back() {
        let id = SegmentId { window_start: 86_400_000_000_000, window_len: 5, sequence: 12, salt: 3 };
        let header = encode_log_header(&id);
        assert_eq!(decode_log_header(&header), Ok(id));
        assert_eq!((header.len() as u64, salts_of_damaged_header(&header)), (LOG_HEADER_BYTES, [3, 3]));
        assert_eq!(id.log_name(), "00000012.log");
        assert_eq!(sequence_of(&id.index_name()), Some(12));
        assert_eq!(decode_log_header(&[0; 64]), Err("header has another magic"));
    }
}
