//! The results of upkeep.

use restante_core::Timestamp;

/// The contents of an archive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// The engine's name.
    pub engine: &'static str,
    /// Stored messages.
    pub messages: u64,
    /// Distinct topics, each counted per channel.
    pub topics: u64,
    /// Bytes of all bodies.
    pub body_bytes: u64,
    /// Bytes on disk (0 for an engine without one).
    pub disk_bytes: u64,
    /// The oldest message's timestamp.
    pub oldest: Option<Timestamp>,
    /// The newest message's timestamp.
    pub newest: Option<Timestamp>,
    /// Damaged records found since the archive was opened; they are never served.
    pub damaged: u64,
    /// The parts of the archive, sorted by their oldest message. Every message is in one of them, so they show the distribution
    /// of the messages over time, with a resolution that depends on the length of the parts.
    pub parts: Vec<PartStats>,
}

/// One part of an archive: a segment, a partition, consecutive messages, a day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartStats {
    /// Its name, such as a file or table.
    pub name: String,
    /// Its oldest message.
    pub oldest: Timestamp,
    /// Its newest message.
    pub newest: Timestamp,
    /// Its messages.
    pub messages: u64,
    /// Its bytes on disk; its share of them, where parts are in one file.
    pub disk_bytes: u64,
    /// Whether it still accepts messages.
    pub is_open: bool,
}

/// What a prune removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Messages removed.
    pub messages: u64,
    /// Bytes on disk that were freed.
    pub disk_bytes: u64,
    /// Parts removed whole.
    pub parts: u64,
}

/// What a check or a rebuild found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Sound messages seen.
    pub messages: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Messages that were archived and can no longer be read, as far as is known. A finding names each segment.
    pub lost: u64,
    /// What is wrong; empty when nothing is. At most [`Report::FINDINGS_MAX`].
    pub findings: Vec<Finding>,
    /// Findings beyond those listed.
    pub findings_left_out: u64,
}

impl Report {
    /// How many findings a report lists.
    pub const FINDINGS_MAX: usize = 1_000;

    /// Whether nothing is wrong.
    pub fn is_sound(&self) -> bool {
        self.findings.is_empty() && self.findings_left_out == 0
    }

    pub(crate) fn add(&mut self, finding: Finding) {
        if self.findings.len() < Self::FINDINGS_MAX {
            self.findings.push(finding);
        } else {
            self.findings_left_out += 1;
        }
    }
}

/// One damage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file or table.
    pub part: String,
    /// Byte offset in it, where that makes sense.
    pub offset: Option<u64>,
    /// What is wrong.
    pub what: String,
}
