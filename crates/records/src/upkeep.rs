use std::{path::Path, sync::Arc};

use async_trait::async_trait;
use restante_core::{BlobId, ErrorKind, Identity, Timestamp, UnsyncedBlobs};

use crate::{AccountId, Error, Kind, Record, RecordId};

/// The most records that one page of a dump has.
pub const DUMP_RECORDS_MAX: usize = 4_096;

/// Operations for the operators of a record store.
#[async_trait]
pub trait Upkeep: Send + Sync + 'static {
    /// What the store holds and what it costs. Computed by walking the store: meant for people, not for polling every second.
    ///
    /// # Errors
    /// `Unavailable` when the engine can't answer now.
    async fn stats(&self) -> Result<Stats, Error>;

    /// Whether the store accepts commits. Answered from memory.
    ///
    /// # Errors
    /// The error that commits are answered with.
    fn health(&self) -> Result<(), Error>;

    /// Verifies that every record can be read, that the indexes, the history and the counters agree with the records, and that
    /// nothing is left over; changes nothing. It blocks the thread of its caller until it is done.
    ///
    /// `progress` is called now and then with the number of checked rows, and their total.
    ///
    /// # Errors
    /// Only when the check could not be completed; damage is reported in the [`Report`].
    async fn check(&self, progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<Report, Error>;

    /// Removes tombstones of records that were destroyed before a time; engines may keep those of the same second. The floor
    /// of an account's history rises to the last revision that was forgotten: [`crate::Records::changes`] works from there on. Works
    /// in small commits, so that other commits continue meanwhile, and stops after `limit` tombstones; [`Cleaned::has_more`] says
    /// whether there are more.
    ///
    /// # Errors
    /// Those of a commit; what was forgotten until then stays forgotten.
    async fn clean(&self, before: Timestamp, limit: usize) -> Result<Cleaned, Error>;

    /// Erases an account: its records with their bodies, index entries and history. Works in small commits, so that other commits
    /// continue meanwhile, and stops after `limit` records and tombstones; [`Erased::has_more`] says whether there are more. Call
    /// it again until there are none.
    ///
    /// - *From the first call to the last*, commits in the account fail with `Conflict`, also after a crash. Readers see fewer
    ///   and fewer records, each whole.
    /// - *Nothing is assigned twice*: the account keeps its next id and its next revision. An account id that is used again
    ///   starts empty, and continues with both.
    /// - *Everybody notices*: the first and the last step take a revision each, which are in the feed and announced. Changes
    ///   since earlier revisions can't be calculated, so followers drop their data of the account.
    /// - An account without records and tombstones is left as it is, so repeating the call does no harm.
    ///
    /// # Errors
    /// Those of a commit; what was erased until then stays erased.
    async fn erase(&self, account: AccountId, limit: usize) -> Result<Erased, Error>;

    /// A page of all records, by account, kind and id, after a key. Each record is read as of the moment of the read.
    /// A damaged record is returned as its [`Damage`], and the records after it follow.
    ///
    /// # Errors
    /// `Invalid` for a limit of 0 or above [`DUMP_RECORDS_MAX`]; `Unavailable`; `Corrupt` when something other than records is
    /// damaged, so that it is not known which there are.
    async fn dump(&self, after: Option<RecordKey>, limit: usize) -> Result<Vec<Dumped>, Error>;

    /// A page of the blobs that records refer to, with repeats, in an engine-specific order. `after` is the [`Referenced::next`]
    /// of the previous page. The walk returns every blob that was referred to at all times from the request for the first page
    /// until the answer to the last one. That includes a blob whose reference moves from one record to another meanwhile: in one
    /// commit, or in two of which the first adds the new reference and the second removes the old one.
    ///
    /// # Errors
    /// `Unavailable`; `Corrupt`.
    async fn referenced(&self, after: Option<u64>) -> Result<Referenced, Error>;

    /// The identity of the store: random, assigned when it was created, and the same as long as it exists and in every copy of
    /// it. Code that stores something elsewhere for the records, such as blobs, notes the identity, to verify later that the
    /// records are still the same.
    fn identity(&self) -> Identity;

    /// How often the store was restored from a backup. It rises when a copy made by [`Upkeep::backup`] is opened, and is kept in
    /// later copies of that. An engine that keeps nothing on disk returns 0.
    fn restores(&self) -> u64;

    /// Writes a copy of everything that was acknowledged before the call to `folder`, which must exist and be empty: the engine's
    /// files as they would be after a close. Commits continue meanwhile; those acknowledged later may be in the copy or not, each
    /// as a whole.
    ///
    /// # Errors
    /// `Invalid` when the engine keeps nothing on disk; `Conflict` when the folder is not empty; those of the disk.
    async fn backup(&self, folder: &Path) -> Result<(), Error>;

    /// Whether [`Upkeep::put_blobs_again`] has something to do.
    ///
    /// # Errors
    /// `Unavailable`; `Corrupt`.
    async fn has_blobs_to_put(&self) -> Result<bool, Error> {
        Ok(false)
    }

    /// Puts blobs again that may exist only in these records, because the process ended before they were durable, and returns how
    /// many. Blobs that can't be put, for example because a disk is full, stay in the records and do not hold up the others.
    ///
    /// `blobs` must be those of these records: other blobs in their place, such as an empty folder where a disk is not mounted,
    /// would get the only copy. After this call commits may make blobs durable
    /// ([`Records::makes_blobs_durable`](crate::Records::makes_blobs_durable)).
    ///
    /// # Errors
    /// `Unavailable`; `Corrupt`.
    async fn put_blobs_again(&self, _blobs: Arc<dyn UnsyncedBlobs>) -> Result<u64, Error> {
        Ok(0)
    }

    /// Accepts no more commits, finishes the accepted ones, and releases the engine's resources. Further commits fail with
    /// `Unavailable`. Closing twice is no error.
    ///
    /// # Errors
    /// When accepted commits could not be finished; nothing that was acknowledged is lost.
    async fn close(&self) -> Result<(), Error>;
}

/// What a record store holds and costs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Accounts that ever had a commit.
    pub accounts: u64,
    /// Figures per kind, ascending by kind.
    pub kinds: Vec<KindStats>,
    /// Commits that were made, in all accounts: the sum of their revisions, without those that restores skipped.
    pub commits: u64,
    /// Bytes on disk, all files together; 0 when the engine keeps nothing on disk, or doesn't know.
    pub disk_bytes: u64,
    /// Further figures of the engine, each with its name.
    pub engine: Vec<(String, u64)>,
}

/// The figures of a kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KindStats {
    /// The kind.
    pub kind: Kind,
    /// Records that exist.
    pub records: u64,
    /// Destroyed records that are still in the history.
    pub tombstones: u64,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Records that were read.
    pub records: u64,
    /// What is wrong, at most the first [`Report::FINDINGS_MAX`].
    pub findings: Vec<Finding>,
    /// How many errors were found in total.
    pub wrong: u64,
}

impl Report {
    /// The most findings that are kept.
    pub const FINDINGS_MAX: usize = 1_000;

    /// Adds a finding.
    pub fn note(&mut self, place: impl Into<String>, what: impl Into<String>) {
        self.wrong += 1;
        if self.findings.len() < Self::FINDINGS_MAX {
            self.findings.push(Finding { place: place.into(), what: what.into() });
        }
    }
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Where: an account, a kind and an id, or a table and a key.
    pub place: String,
    /// What: lowercase, no full stop.
    pub what: String,
}

/// The result of [`Upkeep::clean`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cleaned {
    /// Tombstones that were removed.
    pub tombstones: u64,
    /// Accounts whose floor rose.
    pub accounts: u64,
    /// Whether there is more to forget.
    pub has_more: bool,
}

/// The result of a call of [`Upkeep::erase`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Erased {
    /// Records that were removed.
    pub records: u64,
    /// Tombstones that were removed.
    pub tombstones: u64,
    /// Whether there is more to erase.
    pub has_more: bool,
}

/// The key of a record in a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordKey {
    /// Compared first.
    pub account: AccountId,
    /// Compared second.
    pub kind: Kind,
    /// Compared last.
    pub id: RecordId,
}

/// A record of a dump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dumped {
    /// Which record.
    pub key: RecordKey,
    /// The record, or what is wrong with it.
    pub record: Result<Record, Damage>,
}

/// What is wrong with a record, or with what is left of a destroyed one, that can't be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage(
    /// As the text of an error: lowercase, no full stop.
    pub String,
);

impl Damage {
    /// Separates damage from other errors, so that one damaged record does not end the reading of all.
    ///
    /// # Errors
    /// Those of `read` but `Corrupt`.
    pub(crate) fn separate<T>(read: Result<T, Error>) -> Result<Result<T, Self>, Error> {
        match read {
            Ok(value) => Ok(Ok(value)),
            Err(error) if error.kind() == ErrorKind::Corrupt => Ok(Err(Self(error.to_string()))),
            Err(error) => Err(error),
        }
    }
}

/// A page of references.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Referenced {
    /// Blobs that are referred to.
    pub blobs: Vec<BlobId>,
    /// Where the next page begins; `None` after the last.
    pub next: Option<u64>,
}
