use std::path::Path;

use async_trait::async_trait;
use restante_core::{BlobId, Identity, Timestamp};

use crate::Error;

/// The most blobs of a page of [`Upkeep::list`].
pub const LIST_BLOBS_MAX: usize = 4_096;

/// The interface of a blob store for operators and the sweeper.
#[async_trait]
pub trait Upkeep: Send + Sync + 'static {
    /// A page of the blobs, ordered by id, after one.
    ///
    /// # Errors
    /// `Invalid` for a limit of 0 or above [`LIST_BLOBS_MAX`]; `Unavailable`.
    async fn list(&self, after: Option<BlobId>, limit: usize) -> Result<Vec<Listed>, Error>;

    /// Removes those of `ids` that were last put before a time, and returns how many. A concurrent put of the same bytes either keeps
    /// the blob or stores it again: an acknowledged blob exists. A concurrent reader gets the whole blob, or an error.
    ///
    /// # Errors
    /// `Unavailable`; what was removed until then stays removed.
    async fn remove(&self, ids: &[BlobId], put_before: Timestamp) -> Result<u64, Error>;

    /// The identity of the records whose blobs these are, which [`crate::sweep`] compares. `None` until it is set.
    ///
    /// # Errors
    /// `Corrupt` when it can't be read: set it again. `Unavailable`.
    async fn owner(&self) -> Result<Option<Identity>, Error>;

    /// Sets or replaces the owner. Durable when it returns, and in every backup that begins later.
    ///
    /// # Errors
    /// `Full`; `Unavailable`. Then the owner is the old or the new one.
    async fn set_owner(&self, owner: Identity) -> Result<(), Error>;

    /// What the store contains and its size on disk.
    ///
    /// # Errors
    /// `Unavailable`.
    async fn stats(&self) -> Result<Stats, Error>;

    /// Whether the store accepts blobs; this reads memory only.
    ///
    /// # Errors
    /// The error of the last put, or the one that the next put will return.
    fn health(&self) -> Result<(), Error>;

    /// Reads every blob and compares it with its id; changes nothing. It blocks the caller's thread until it is done.
    ///
    /// `progress` is called from time to time with the bytes done and the total bytes.
    ///
    /// # Errors
    /// Only when the check could not be performed; damage is reported in the [`Report`].
    async fn check(&self, progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<Report, Error>;

    /// Writes a copy of every blob that was put before the call, and not removed since, into `folder`, which must exist and be
    /// empty: the engine's files as after a close. Nothing is removed while it works.
    ///
    /// # Errors
    /// `Invalid` when the engine has no files; `Conflict` when the folder is not empty; those of the disk.
    async fn backup(&self, folder: &Path) -> Result<(), Error>;

    /// Accepts no more blobs, finishes those that are being put, and releases all resources. Closing twice is not an error.
    ///
    /// # Errors
    /// When blobs that were being put could not be finished.
    async fn close(&self) -> Result<(), Error>;
}

/// A blob in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its id.
    pub id: BlobId,
    /// Its length.
    pub bytes: u64,
    /// When it was last put.
    pub put_at: Timestamp,
}

/// The contents and size of a blob store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// How many blobs exist.
    pub blobs: u64,
    /// The sum of their lengths.
    pub bytes: u64,
    /// Bytes of all files on disk; 0 when the engine has no files.
    pub disk_bytes: u64,
    /// Further figures of the engine, by name.
    pub engine: Vec<(String, u64)>,
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Blobs that were read.
    pub blobs: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// The first [`Report::FINDINGS_MAX`] defects.
    pub findings: Vec<Finding>,
    /// The number of defects.
    pub wrong: u64,
}

impl Report {
    /// The most findings of a report.
    pub const FINDINGS_MAX: usize = 1_000;

    /// Adds a defect.
    pub fn note(&mut self, place: impl Into<String>, what: impl Into<String>) {
        self.wrong += 1;
        if self.findings.len() < Self::FINDINGS_MAX {
            self.findings.push(Finding { place: place.into(), what: what.into() });
        }
    }
}

/// A defect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Where: a blob or a file.
    pub place: String,
    /// What: lowercase, no full stop.
    pub what: String,
}
