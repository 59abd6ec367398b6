//! Reading a log from beginning to end: at start-up, to check it and to make its index anew.

use std::collections::HashSet;

use foldhash::fast::RandomState;
use restante_core::Key;

use super::schema::{IndexRow, LOG_HEADER_BYTES, SegmentId};
use crate::{
    BODY_BYTES_MAX, Finding, TopicName,
    record::{DEFINITION, Entry, HEADER_BYTES, Record},
};

/// What a log says.
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
}

/// A definition may be this far ahead of the last one that was read, when those between are damaged.
const DEFINITIONS_AHEAD_MAX: usize = 1 << 16;

/// Reads all records of a log.
///
/// A record that isn't sound is either the torn end of a write that nobody was answered for, or damage. It is damage when
/// a sound record follows it: then the bytes between are reported and left out, and what follows is kept.
pub(super) fn replay(log: &[u8], id: &SegmentId) -> Replay {
    let name = &id.log_name();
    let mut replay = Replay { seed: id.seed(), end: LOG_HEADER_BYTES, ..Replay::default() };
    let mut keys: HashSet<Key, RandomState> = HashSet::default();
    let mut at = LOG_HEADER_BYTES as usize;
    while at < log.len() {
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
    fn sound_record<'a>(&self, log: &'a [u8], at: usize) -> Option<(usize, Entry<'a>)> {
        let record = Record::read(log, at)?;
        if !self.is_plausible(&record) || !record.is_sound(self.seed) {
            return None;
        }
        Some((record.len(), record.entry()?))
    }

    /// Whether a record's fields can be right; it spares most wrong places the checksum.
    fn is_plausible(&self, record: &Record<'_>) -> bool {
        let field = record.topic_field();
        let number = (field & !DEFINITION) as usize;
        number < self.topics.len() + DEFINITIONS_AHEAD_MAX && record.len() <= HEADER_BYTES + BODY_BYTES_MAX
    }

    /// The next place behind `at` where a sound record begins.
    fn next_sound_record(&self, log: &[u8], at: usize) -> Option<usize> {
        // The length of the damaged record is probably right: then the next one is found at once.
        let follower = Record::read(log, at).map(|record| at + record.len());
        if let Some(next) = follower
            && self.sound_record(log, next).is_some()
        {
            return Some(next);
        }
        (at + 1..log.len()).find(|next| self.sound_record(log, *next).is_some())
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
                // A batch may stand twice: once from a failed commit that could not be cut, and once from its repetition.
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

    /// The topics' names, with empty ones where a definition is damaged; no row mentions those.
    pub(super) fn topic_names(&self) -> Vec<TopicName> {
        let nameless = TopicName { channel: "".into(), topic: "".into() };
        self.topics.iter().map(|name| name.clone().unwrap_or_else(|| nameless.clone())).collect()
    }
}
