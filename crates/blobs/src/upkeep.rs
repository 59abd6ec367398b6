use std::path::Path;

use async_trait::async_trait;
use restante_core::{BlobId, Identity, Timestamp};

use crate::Error;

/// The most blobs that one page of [`Upkeep::list`] has.
pub const LIST_BLOBS_MAX: usize = 4_096;

/// What operators, and the sweeper, do with a blob store.
#[async_trait]
pub trait Upkeep: Send + Sync + 'static {
    /// A page of the blobs, by id, from behind one.
    ///
    /// # Errors
    /// `Invalid` for a limit of 0 or above [`LIST_BLOBS_MAX`]; `Unavailable`.
    async fn list(&self, after: Option<BlobId>, limit: usize) -> Result<Vec<Listed>, Error>;

    /// Removes those of `ids` that were last put before a time, and answers how many. A put of the same bytes at the same
    /// time either keeps the blob or stores it anew: what a put answered is there. Who reads a blob that is removed meanwhile
    /// gets it whole, or an error.
    ///
    /// # Errors
    /// `Unavailable`; what was removed until then stays removed.
    async fn remove(&self, ids: &[BlobId], put_before: Timestamp) -> Result<u64, Error>;

    /// Whose the blobs are: which records [`crate::sweep`] asks for references to them. `None` as long as nobody has said it.
    ///
    /// # Errors
    /// `Corrupt` when it can't be read: it is to be said anew. `Unavailable`.
    async fn owner(&self) -> Result<Option<Identity>, Error>;

    /// Says whose the blobs are, whoever's they were. Durable when it returns, and in every backup that is begun later.
    ///
    /// # Errors
    /// `Full`; `Unavailable`. Whose they are afterwards is what was said now or before.
    async fn set_owner(&self, owner: Identity) -> Result<(), Error>;

    /// What the store holds and what it costs.
    ///
    /// # Errors
    /// `Unavailable`.
    async fn stats(&self) -> Result<Stats, Error>;

    /// Whether the store takes blobs, from memory.
    ///
    /// # Errors
    /// The error that puts are answered with.
    fn health(&self) -> Result<(), Error>;

    /// Reads every blob and compares it with its id; changes nothing. It keeps the thread of its caller busy until it is done.
    ///
    /// `progress` is called now and then with the bytes done and the bytes in all.
    ///
    /// # Errors
    /// Only when the check could not be made; damage is reported in the [`Report`].
    async fn check(&self, progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<Report, Error>;

    /// Writes a copy of every blob that was put before the call, and not removed since, into `folder`, which must exist and be
    /// empty: the engine's files as they would be after a close. Nothing is removed while it works.
    ///
    /// # Errors
    /// `Invalid` when the engine keeps nothing on disk; `Conflict` when the folder is not empty; those of the disk.
    async fn backup(&self, folder: &Path) -> Result<(), Error>;

    /// Takes no more blobs, finishes those that were taken, and lets the engine's resources go. Closing twice is no error.
    ///
    /// # Errors
    /// When what was taken could not be finished.
    async fn close(&self) -> Result<(), Error>;
}

/// A blob of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its identity.
    pub id: BlobId,
    /// Its length.
    pub bytes: u64,
    /// When it was last put.
    pub put_at: Timestamp,
}

/// What a blob store holds and costs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Blobs that are there.
    pub blobs: u64,
    /// Their lengths together.
    pub bytes: u64,
    /// Bytes on disk, all files together; 0 when the engine keeps nothing on disk.
    pub disk_bytes: u64,
    /// What else the engine has to tell, each a name and a figure.
    pub engine: Vec<(String, u64)>,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Blobs that were read.
    pub blobs: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// What is wrong, the first [`Report::FINDINGS_MAX`].
    pub findings: Vec<Finding>,
    /// How much is wrong in all.
    pub wrong: u64,
}

impl Report {
    /// The most findings that are kept.
    pub const FINDINGS_MAX: usize = 1_000;

    /// Notes something that is wrong.
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
    /// Where: a blob or a file.
    pub place: String,
    /// What: lowercase, no full stop.
    pub what: String,
}
