//! Blobs: bytes under the name of their hash, put once and read in any part.
//!
//! [`Blobs`] is the contract that every engine keeps, [`Upkeep`] what operators need, [`sweep`] removes what nobody refers
//! to. [`open`] chooses an engine by URL. Each sentence of the contracts is a named test that runs on every engine: see
//! `tests/conformance`.
//!
//! A blob's id is the SHA-256 of its bytes.

mod error;
mod files;
mod hash;
mod limits;
mod memory;
mod metrics;
mod observe;
mod open;
mod source;
mod sweep;
mod upkeep;

use std::ops::Range;

use async_trait::async_trait;
pub use restante_core::BlobId;

pub use error::Error;
pub use metrics::Metrics;
pub use open::{Config, EngineUrl, FilesConfig, Opened, check_pages, open};
pub use source::{CHUNK_BYTES_MAX, Source};
pub use sweep::{References, Swept, sweep};
pub use upkeep::{Finding, LIST_BLOBS_MAX, Listed, Report, Stats, Upkeep};

/// Keeps blobs.
#[async_trait]
pub trait Blobs: Send + Sync + 'static {
    /// Stores what `source` gives, and returns when it is durable.
    ///
    /// - *Durable*: what was answered with success survives the process and a power cut, until it is removed.
    /// - *Idempotent*: the same bytes again give the same id and take no more room; the blob counts as put now (see
    ///   [`Upkeep::remove`] and [`Blobs::touch`]).
    /// - *Whole*: a blob is there with all its bytes or not at all; a source that fails leaves nothing.
    /// - *Streaming*: no more than a few chunks are held in memory, however long the blob is.
    ///
    /// # Errors
    /// `Invalid` when the blob is longer than the store takes ([`Config::blob_bytes_max`]); `Full`; `Unavailable`, after a
    /// failed sync until the store is opened again, and when the source is slow and others wait for their turn; the error of
    /// the source.
    async fn put(&self, source: &mut dyn Source) -> Result<Put, Error>;

    /// The bytes of a blob in a range, chunk by chunk; what lies beyond its end is left out. Each chunk is verified as far as
    /// the engine can do so by itself; reading all of it proves the hash.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` when the range ends before it begins; `Corrupt` when the bytes are not those that were put,
    /// here or from the source; `Unavailable`.
    async fn read(&self, id: BlobId, range: Range<u64>) -> Result<Box<dyn Source>, Error>;

    /// The length of a blob; `None` when it is not there.
    ///
    /// # Errors
    /// `Unavailable`.
    async fn size(&self, id: BlobId) -> Result<Option<u64>, Error>;

    /// Lets blobs count as put now, without their bytes, and tells of each whether it is there.
    ///
    /// Who commits a record that refers to a blob has put it before, or, when others have (a record that was copied, an upload
    /// that is used at last), has touched it: a sweep may be about to remove what nobody refers to yet.
    ///
    /// - *Held*: what was answered with true is there until a [`Upkeep::remove`] of what was last put before a time that is
    ///   after the touch.
    /// - *In order*: the answers are in the order of `ids`; a blob may be named twice.
    /// - *Not durable*: a touch may be forgotten when the process ends, as the commit is for which it was made.
    ///
    /// # Errors
    /// `Invalid` for more than [`TOUCH_BLOBS_MAX`] blobs; `Unavailable`, as of a put.
    async fn touch(&self, ids: &[BlobId]) -> Result<Vec<bool>, Error>;
}

/// The most blobs that one [`Blobs::touch`] takes.
pub const TOUCH_BLOBS_MAX: usize = 1_024;

/// A blob that was put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Put {
    /// Its identity.
    pub id: BlobId,
    /// Its length in bytes.
    pub bytes: u64,
    /// Whether it was not there before.
    pub is_new: bool,
}
