use async_trait::async_trait;
use restante_core::Timestamp;

use crate::{Error, Retention};

/// What operators do with an archive, beside appending and querying.
#[async_trait]
pub trait Upkeep: Send + Sync + 'static {
    /// What the archive holds and what it costs.
    ///
    /// # Errors
    /// `Unavailable` when the engine can't tell now.
    async fn stats(&self) -> Result<Stats, Error>;

    /// Removes the oldest messages that `policy` does not keep, and gives their disk space back before it returns.
    ///
    /// What is removed is a prefix of the order within each part, oldest first; nothing that the policy keeps is removed
    /// (see [`Retention`] for what each rule keeps). An engine may keep a little more than the policy asks for. Appends
    /// and queries go on meanwhile; pages that were handed out stay readable.
    ///
    /// # Errors
    /// `Unavailable` or `Full` when the engine can't remove now; what was removed until then stays removed.
    async fn prune(&self, policy: &Retention, now: Timestamp) -> Result<Pruned, Error>;

    /// Verifies every checksum and every index against the messages themselves; changes nothing.
    ///
    /// It keeps the thread of its caller busy until it is done: it is for tools, not for doors.
    ///
    /// `progress` is called now and then with the bytes done and the bytes in all.
    ///
    /// # Errors
    /// Only when the check could not be made; damage is reported in the [`Report`].
    async fn check(&self, progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<Report, Error>;

    /// Makes every index anew from the messages; reports what was damaged and left out. As [`Upkeep::check`], it keeps its
    /// caller's thread busy.
    ///
    /// # Errors
    /// When an index could not be written. The old indexes stay in use then.
    async fn rebuild(&self, progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<Report, Error>;

    /// Stops taking appends, finishes those that were taken, and lets the engine's resources go. Further appends are
    /// answered `Unavailable`. Closing twice is no error.
    ///
    /// # Errors
    /// When what was taken could not be finished.
    async fn close(&self) -> Result<(), Error>;
}

/// What an archive holds.
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
    /// Bytes that the archive takes on disk (0 for an engine without one).
    pub disk_bytes: u64,
    /// The oldest message's timestamp.
    pub oldest: Option<Timestamp>,
    /// The newest message's timestamp.
    pub newest: Option<Timestamp>,
    /// Damaged records found since the archive was opened; they are never served.
    pub damaged: u64,
    /// What the archive is made of, oldest first.
    pub parts: Vec<PartStats>,
}

/// One part of an archive: a segment, a partition, a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartStats {
    /// Its name, as a file or table.
    pub name: String,
    /// Its oldest message.
    pub oldest: Timestamp,
    /// Its newest message.
    pub newest: Timestamp,
    /// Its messages.
    pub messages: u64,
    /// Its bytes on disk.
    pub disk_bytes: u64,
    /// Whether it can still take messages.
    pub is_open: bool,
}

/// What a prune removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Messages removed.
    pub messages: u64,
    /// Bytes of disk given back.
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
    /// What is wrong; empty when all is well. At most [`Report::FINDINGS_MAX`].
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

/// One damaged place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file or table.
    pub part: String,
    /// Byte offset in it, where that makes sense.
    pub offset: Option<u64>,
    /// What is wrong.
    pub what: String,
}
