//! Destroyed emails that can still be restored.

use bytes::Bytes;
use restante_core::BlobId;
use restante_records::{Cursor, Record, RecordId, Value};

use crate::{mailboxes::number_of, schema::vault};

/// A destroyed email that can still be restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VaultEntry {
    /// The entry.
    pub id: RecordId,
    /// The id that the email had.
    pub email: RecordId,
    /// The mailboxes that it was in; some may be gone.
    pub mailboxes: Vec<RecordId>,
    /// When it was received, in seconds since 1970.
    pub received: u64,
    /// When it was destroyed, in seconds since 1970.
    pub deleted_at: u64,
    /// The bytes of its message.
    pub size: u64,
    /// The raw message.
    pub blob: Option<BlobId>,
    /// The listing row that the email had.
    pub row: Bytes,
}

impl VaultEntry {
    pub(crate) fn of(record: Record) -> Self {
        let number = |property| number_of(&record.properties, property).unwrap_or(0);
        let mailboxes = record.properties.values(vault::MAILBOX).filter_map(|value| match value {
            Value::Number(id) => Some(RecordId(*id)),
            _ => None,
        });
        Self {
            id: record.id,
            email: RecordId(number(vault::EMAIL)),
            mailboxes: mailboxes.collect(),
            received: number(vault::RECEIVED),
            deleted_at: number(vault::DELETED_AT),
            size: number(vault::SIZE),
            blob: record.body.blobs.first().copied(),
            row: record.body.bytes,
        }
    }
}

/// A page of the vault of an account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VaultPage {
    /// The last destroyed first.
    pub entries: Vec<VaultEntry>,
    /// Where the next page begins; `None` after the last.
    pub next: Option<Cursor>,
}

/// How much a vault holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VaultUsage {
    /// Its emails that were read.
    pub emails: u64,
    /// The bytes of their messages.
    pub bytes: u64,
    /// When the first of them was destroyed, in seconds since 1970; `None` without any.
    pub oldest: Option<u64>,
    /// When the last of them was destroyed, in seconds since 1970; `None` without any.
    pub newest: Option<u64>,
    /// Whether all emails of the vault were read.
    pub is_whole: bool,
}

impl VaultUsage {
    pub(crate) fn add(&mut self, entry: &VaultEntry) {
        self.emails += 1;
        self.bytes += entry.size;
        self.oldest = Some(self.oldest.map_or(entry.deleted_at, |oldest| oldest.min(entry.deleted_at)));
        self.newest = Some(self.newest.map_or(entry.deleted_at, |newest| newest.max(entry.deleted_at)));
    }
}

/// What [`crate::Mail::purge_vault`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Purged {
    /// Entries that are gone.
    pub entries: usize,
    /// Whether there are more to purge.
    pub has_more: bool,
}
