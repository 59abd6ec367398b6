//! Reading a log from beginning to end: at start-up, to check it and to rebuild its index.

use std::collections::HashSet;

use foldhash::fast::RandomState;
use restante_core::Key;

use super::{
    checksums::RangeChecksums,
    schema::{IndexRow, LOG_HEADER_BYTES, SegmentId},
};
use crate::{
    BODY_BYTES_MAX, Finding, TopicName,
    record::{DEFINITION, Entry, HEADER_BYTES, Record},
};

/// The contents of a log.
#[derive(Default)]
pub(super) struct Replay {
    seed: u32,
    /// The names of the topics by number; `None` where a definition is damaged.
    pub(super) topics: Vec<Option<TopicName>>,
    /// The rows in the order in which they were written; each key once.
    pub(super) rows: Vec<IndexRow>,
    pub(super) body_bytes: u64,
    /// Where the last sound record ends.
    pub(super) end: u64,
    /// Damaged places before `end`.
    pub(super) findings: Vec<Finding>,
    checker: Checker,
}

/// Checks records, in time that is linear in the log even where every byte seems to begin a record.
#[derive(Default)]
struct Checker {
    /// For records that would take too long to read; created on first use.
    checksums: Option<RangeChecksums>,
    /// Bytes that were read for records that turned out not to be sound.
    wasted_bytes: u64,
    /// Bytes of the records that were read from beginning to end.
    read_bytes: u64,
}

impl Checker {
    /// Declares that records before `at` are no longer needed.
    fn advance_to(&mut self, at: usize) {
        if let Some(checksums) = &mut self.checksums {
            checksums.advance_to(at);
        }
    }

    /// Reading a record is the quickest way if it is sound. The bytes read in vain are few compared with those that the log has
    /// before `at`.
    fn is_sound(&mut self, log: &[u8], at: usize, record: &Record<'_>, seed: u32) -> bool {
        let len = record.len() as u64;
        let is_affordable = (self.wasted_bytes + len) * 8 <= at as u64;
        if !is_affordable {
            let checksums = self.checksums.get_or_insert_with(|| RangeChecksums::new(at));
            if checksums.seed_of(log, at, record) != seed {
                return false;
            }
        }
        self.read_bytes += len;
        let is_sound = record.is_sound(seed);
        if !is_sound {
            self.wasted_bytes += len;
        }
        is_sound
    }

    /// Bytes that went into checksums. A byte counts as often as it was read.
    #[cfg(test)]
    fn checked_bytes(&self) -> u64 {
        self.read_bytes + self.checksums.as_ref().map_or(0, |checksums| checksums.read_bytes)
    }
}

/// A definition may be this far ahead of the last one that was read, when those in between are damaged.
const DEFINITIONS_AHEAD_MAX: usize = 1 << 16;

/// Reads all records of a log.
///
/// A record that isn't sound is either the end of a write that was never acknowledged, or damage. It is damage when
/// a sound record follows it: then the bytes in between are reported and skipped, and what follows is kept.
pub(super) fn replay(log: &[u8], id: &SegmentId) -> Replay {
    let name = &id.log_name();
    let mut replay = Replay { seed: id.seed(), end: LOG_HEADER_BYTES, ..Replay::default() };
    let mut keys: HashSet<Key, RandomState> = HashSet::default();
    let mut at = LOG_HEADER_BYTES as usize;
    while at < log.len() {
        replay.checker.advance_to(at);
        match replay.sound_record(log, at) {
            Some((len, entry)) => {
                replay.add(entry, at, name, &mut keys);
                at += len;
                replay.end = at as u64;
            }
            None => {
                let Some(next) = replay.next_sound_record(log, at) else { break };
                replay.find(name, at, format!("{} damaged bytes left out", next - at));
                at = next;
            }
        }
    }
    replay
}

impl Replay {
    fn sound_record<'a>(&mut self, log: &'a [u8], at: usize) -> Option<(usize, Entry<'a>)> {
        let record = Record::read(log, at)?;
        if !is_plausible(&record, self.topics.len()) || !self.checker.is_sound(log, at, &record, self.seed) {
            return None;
        }
        Some((record.len(), record.entry()?))
    }

    /// The next offset after `at` where a sound record begins.
    fn next_sound_record(&mut self, log: &[u8], at: usize) -> Option<usize> {
        // The length of the damaged record is probably right: then the next record is found at once.
        let follower = Record::read(log, at).map(|record| at + record.len());
        if let Some(next) = follower
            && self.sound_record(log, next).is_some()
        {
            return Some(next);
        }
        let checksums = self.checker.checksums.get_or_insert_with(|| RangeChecksums::new(at));
        search(checksums, log, at + 1, self.topics.len(), &[self.seed]).map(|(next, _)| next)
    }

    fn add(&mut self, entry: Entry<'_>, at: usize, name: &str, keys: &mut HashSet<Key, RandomState>) {
        match entry {
            Entry::Definition { number, channel, topic } => {
                let number = number as usize;
                if number >= self.topics.len() {
                    self.topics.resize(number + 1, None);
                }
                if let Some(slot @ None) = self.topics.get_mut(number) {
                    *slot = Some(TopicName { channel: channel.into(), topic: topic.into() });
                }
            }
            Entry::Message(message) => {
                let has_topic = self.topics.get(message.topic as usize).is_some_and(Option::is_some);
                if !has_topic {
                    self.find(name, at, "message left out: the definition of its topic is damaged".into());
                    return;
                }
                // A batch may occur twice: once from a failed commit that could not be truncated, and once from its repetition.
                if keys.insert(message.key()) {
                    let offset = u32::try_from(at).expect("a segment is at most SEGMENT_BYTES_MAX long");
                    self.rows.push(IndexRow { key: message.key(), offset, topic: message.topic });
                    self.body_bytes += message.body.len() as u64;
                }
            }
        }
    }

    fn find(&mut self, name: &str, at: usize, what: String) {
        self.findings.push(Finding { part: name.to_owned(), offset: Some(at as u64), what });
    }

    /// The topics' names, with empty ones where a definition is damaged; no row refers to those.
    pub(super) fn topic_names(&self) -> Vec<TopicName> {
        let nameless = TopicName { channel: "".into(), topic: "".into() };
        self.topics.iter().map(|name| name.clone().unwrap_or_else(|| nameless.clone())).collect()
    }
}

/// Whether a record's fields are possible after this many topics. At most wrong offsets this saves computing the checksum.
fn is_plausible(record: &Record<'_>, topics: usize) -> bool {
    let number = (record.topic_field() & !DEFINITION) as usize;
    number < topics + DEFINITIONS_AHEAD_MAX && record.len() <= HEADER_BYTES + BODY_BYTES_MAX
}

/// The next sound record, from `begin` on, under one of these seeds; and that seed.
fn search(
    checksums: &mut RangeChecksums,
    log: &[u8],
    begin: usize,
    topics: usize,
    seeds: &[u32],
) -> Option<(usize, u32)> {
    for at in begin..log.len() {
        checksums.advance_to(at);
        let Some(record) = Record::read(log, at).filter(|record| is_plausible(record, topics)) else {
            continue;
        };
        let seed = checksums.seed_of(log, at, &record);
        if !seeds.contains(&seed) {
            continue;
        }
        checksums.read_bytes += record.len() as u64;
        if record.is_sound(seed) && record.entry().is_some() {
            return Some((at, seed));
        }
    }
    None
}

/// The salt under which the first sound record of a log begins; the first salt when there is none. All are tried together at each
/// offset, so that a wrong one costs no separate search.
pub(super) fn salt_of(log: &[u8], salts: &[u64]) -> Option<u64> {
    let seed = |salt: &u64| SegmentId { window_start: 0, window_len: 0, sequence: 0, salt: *salt }.seed();
    let seeds: Vec<u32> = salts.iter().map(seed).collect();
    let begin = LOG_HEADER_BYTES as usize;
    let found = search(&mut RangeChecksums::new(begin), log, begin, 0, &seeds);
    let is_right = |salt: &&u64| found.is_none_or(|(_, right)| seed(salt) == right);
    salts.iter().find(is_right).copied()
}

#[cfg(test)]
mod tests {
    use restante_core::{MessageHash, Timestamp};

    use super::*;
    use crate::{
        log::schema::encode_log_header,
        record::{encode_definition, encode_message},
    };

    const BODY_BYTES: usize = 64 << 10;
    const BODIES: u32 = 8;

    fn id() -> SegmentId {
        SegmentId { window_start: 0, window_len: 1_000, sequence: 1, salt: 0x1234_5678_9abc_def0 }
    }

    fn body_of(pattern: &[u8]) -> Vec<u8> {
        pattern.iter().copied().cycle().take(BODY_BYTES).collect()
    }

    /// A body in which a record of `len` bytes seems to begin every twelve bytes.
    fn hostile_body(len: u32) -> Vec<u8> {
        let fields = [len, 0x5555_5555, 0]; // length, checksum, topic
        body_of(&fields.map(u32::to_le_bytes).concat())
    }

    /// A log of messages with this body, and where each record begins; the first one is the definition of their topic.
    fn log_of(body: &[u8]) -> (Vec<u8>, Vec<usize>) {
        let mut log = encode_log_header(&id());
        let mut offsets = vec![log.len()];
        encode_definition(id().seed(), 0, "channel", "topic", &mut log);
        for n in 0..BODIES {
            offsets.push(log.len());
            let key = Key { timestamp: Timestamp(i64::from(n)), message_hash: MessageHash([n as u8; 32]) };
            encode_message(id().seed(), 0, key, body, &mut log);
        }
        (log, offsets)
    }

    /// A power cut may leave a file with its full length, but not all of its bytes.
    #[test]
    fn a_damaged_record_that_ends_with_the_log_is_no_sound_one() {
        for lost_bytes in [1, 100, BODY_BYTES] {
            let (mut log, offsets) = log_of(&vec![7; BODY_BYTES]);
            let begin = log.len() - lost_bytes;
            log[begin..].fill(0);
            let replay = replay(&log, &id());
            assert_eq!(replay.rows.len(), BODIES as usize - 1);
            assert_eq!(replay.end, *offsets.last().unwrap() as u64);
            assert!(replay.findings.is_empty());
        }
    }

    /// The right one of several salts is found at any position in the list, even if the first record is damaged.
    #[test]
    fn the_salt_under_which_records_are_sound_is_found() {
        let wrong = [1 << 40, 2 << 40];
        let (mut log, offsets) = log_of(&hostile_body(300_000));
        for salts in [
            [id().salt, wrong[0], wrong[1]],
            [wrong[0], id().salt, wrong[1]],
            [wrong[0], wrong[1], id().salt],
        ] {
            assert_eq!(salt_of(&log, &salts), Some(id().salt));
        }
        log[offsets[0]] ^= 0x40;
        log[offsets[1] + 4] ^= 0x40;
        assert_eq!(salt_of(&log, &[wrong[0], id().salt]), Some(id().salt));
    }

    /// Senders choose bodies. After a damaged record each offset that may begin a record used to be checked in full, so that 41
    /// MB of bodies delayed a start by minutes.
    #[test]
    fn a_scan_checks_no_more_than_a_few_times_the_log_whatever_bodies_hold() {
        type Damage = fn(&mut Vec<u8>, &[usize]) -> usize;
        let damages: [(&str, Damage); 4] = [
            ("the length of every second message", |log, offsets| {
                offsets.iter().skip(1).step_by(2).for_each(|at| log[at + 1] ^= 0x40);
                BODIES as usize / 2
            }),
            ("the definition of the topic", |log, offsets| {
                log[offsets[0]] ^= 0x40;
                0
            }),
            ("a torn end", |log, _| {
                log.truncate(log.len() - 1);
                BODIES as usize - 1
            }),
            ("the checksum of every message", |log, offsets| {
                offsets.iter().for_each(|at| log[at + 4] ^= 0x40);
                0
            }),
        ];
        // In the last one every second byte seems to begin a record: of 255 bytes, or of 65,280.
        let bodies =
            [hostile_body(200), hostile_body(30_000), hostile_body(300_000), body_of(&[0, 255, 0, 0])];
        for body in bodies {
            for (name, damage) in damages {
                let (mut log, offsets) = log_of(&body);
                let expected_rows = damage(&mut log, &offsets);
                let replay = replay(&log, &id());
                assert_eq!(replay.rows.len(), expected_rows, "{name}");
                let times = replay.checker.checked_bytes() / log.len() as u64;
                assert!(times < 8, "{name}: every byte was checked {times} times");
            }
        }
    }
}
