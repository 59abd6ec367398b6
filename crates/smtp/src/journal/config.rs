use std::num::{NonZeroU32, NonZeroU64};

use restante_core::nonzero;
use serde::{Deserialize, Serialize};

use super::{PENDING_BYTES_MAX, files::Limits};

/// The fewest bytes and entries of a journal: with less, a file could not hold the entries of one message.
const BYTES_MIN: u64 = 1 << 20;
const ENTRIES_MIN: u64 = 1_000;
/// How many files of each kind of entries a full journal has. The oldest is removed as a whole.
const FILES: u64 = 8;

/// The settings of the journal of deliveries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JournalConfig {
    /// How long entries are kept. 0 disables the journal.
    pub days: u32,
    /// The most entries; the oldest are removed first.
    pub entries_max: NonZeroU64,
    /// The most bytes on the disk.
    pub bytes_max: NonZeroU64,
    /// The most entries per minute of one address of SMTP for messages and recipients that are not stored; further ones are not noted.
    pub refused_per_minute_max: NonZeroU32,
}

impl Default for JournalConfig {
    fn default() -> Self {
        Self {
            days: 7,
            entries_max: nonzero!(500_000),
            bytes_max: nonzero!(134_217_728),
            refused_per_minute_max: nonzero!(100),
        }
    }
}

impl JournalConfig {
    /// What is wrong with these settings, if anything: the setting, and how to fix it.
    pub fn problem(&self) -> Option<(&'static str, String)> {
        if self.entries_max.get() < ENTRIES_MIN {
            return Some(("entries_max", format!("use at least {ENTRIES_MIN}, or days = 0 for no journal")));
        }
        if self.bytes_max.get() < BYTES_MIN {
            return Some(("bytes_max", format!("use at least {BYTES_MIN}, or days = 0 for no journal")));
        }
        None
    }

    /// The bounds of the entries of one kind: half of each setting.
    pub(super) fn limits(&self) -> Limits {
        let (bytes, entries) = (self.bytes_max.get() / 2, self.entries_max.get() / 2);
        let (file_bytes, file_entries) = (bytes / FILES, entries / FILES);
        Limits { bytes, entries, file_bytes, file_entries, batch_bytes: file_bytes.min(PENDING_BYTES_MAX) }
    }
}
