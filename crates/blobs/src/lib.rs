//! Blobs: bytes stored by their hash, written once and read in any range.
//!
//! [`Blobs`] is the contract of every engine, [`Upkeep`] the interface for operators, [`sweep`] removes unreferenced blobs.
//! [`open`] chooses an engine by URL. Each sentence of the contracts is a named test that runs on every engine: see
//! `tests/conformance`.
//!
//! A blob's id is the SHA-256 of its bytes.

mod copy;
mod error;
mod files;
mod hash;
mod limits;
mod memory;
mod metrics;
mod observe;
mod open;
#[cfg(feature = "s3")]
mod s3;
mod s3_metrics;
mod s3_url;
mod source;
mod sweep;
mod unsynced;
mod upkeep;

use std::ops::Range;

use async_trait::async_trait;
pub use restante_core::{BlobId, Error};

pub use copy::{Copied, copy};
pub use metrics::Metrics;
pub use open::{Config, EngineUrl, FilesConfig, Opened, S3Config, check_pages, open};
pub use s3_url::{S3Encryption, S3Keys, S3Url};
pub use source::{CHUNK_BYTES_MAX, Source};
pub use sweep::{References, Swept, sweep};
pub use unsynced::unsynced;
pub use upkeep::{Finding, LIST_BLOBS_MAX, Listed, Report, Stats, Upkeep};

/// A store of blobs.
#[async_trait]
pub trait Blobs: Send + Sync + 'static {
    /// Stores the bytes of `source`, and returns when they are durable.
    ///
    /// - *Durable*: an acknowledged blob survives the end of the process and a power cut, until it is removed.
    /// - *Idempotent*: the same bytes again give the same id and take no more space; the blob counts as put now (see
    ///   [`Upkeep::remove`] and [`Blobs::touch`]).
    /// - *Whole*: a blob is stored with all its bytes or not at all; a source that fails leaves nothing.
    /// - *Streaming*: at most a few chunks are in memory, however long the blob is.
    ///
    /// # Errors
    /// `Invalid` when the blob is longer than [`Config::blob_bytes_max`]; `Full`; `Unavailable` after a failed sync until the
    /// store is opened again, and when the source is slow while other uploads wait; the error of the source.
    async fn put(&self, source: &mut dyn Source) -> Result<Put, Error>;

    /// [`Blobs::put`] that calls `done` instead of returning the result: it is called when the blob is durable, or could not be
    /// stored. The engine `files` returns when it has all bytes, and calls `done` on its own thread, so that the next step starts
    /// without waking another one; `done` must not block. Other engines return after the call.
    ///
    /// # Errors
    /// Those of [`Blobs::put`]; `done` is dropped then.
    async fn put_then(&self, source: &mut dyn Source, done: PutHook) -> Result<(), Error> {
        done(Ok(self.put(source).await?));
        Ok(())
    }

    /// [`Blobs::put_then`] for a blob that the caller makes durable in another way as well: `done` is called when the blob can be
    /// read, which may be before it is durable. It is durable after the next [`Blobs::sync`], and after the next put or touch of it. A
    /// power cut before that may remove it.
    ///
    /// The engine `files` saves the sync of a short blob; with other engines it is the same as [`Blobs::put_then`].
    ///
    /// # Errors
    /// Those of [`Blobs::put_then`].
    async fn put_unsynced(&self, source: &mut dyn Source, done: PutHook) -> Result<(), Error> {
        self.put_then(source, done).await
    }

    /// Makes all blobs durable that were put before this call.
    ///
    /// # Errors
    /// `Unavailable` when that failed: until the store is opened again it is unknown whether blobs are durable that were put by
    /// [`Blobs::put_unsynced`].
    async fn sync(&self) -> Result<(), Error> {
        Ok(())
    }

    /// The bytes of a blob in a range, in chunks; a range is cut at its end. Each chunk is verified as far as the engine can do
    /// so by itself; reading all of it verifies the hash.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` when the range ends before it begins; `Corrupt` when the bytes are not those that were put, here or
    /// from the source; `Unavailable`.
    async fn read(&self, id: BlobId, range: Range<u64>) -> Result<Box<dyn Source>, Error>;

    /// The length of a blob; `None` when it does not exist.
    ///
    /// # Errors
    /// `Unavailable`.
    async fn size(&self, id: BlobId) -> Result<Option<u64>, Error>;

    /// Makes blobs count as put now, without sending their bytes, and returns for each whether it exists.
    ///
    /// Before a record is committed that refers to a blob, the blob must be put, or touched if it was put earlier (a copied record, an
    /// old upload): a sweep may be about to remove unreferenced blobs.
    ///
    /// - *Held*: a blob for which this returned true exists until an [`Upkeep::remove`] with a `put_before` after the touch.
    /// - *In order*: the results are in the order of `ids`; a blob may be named twice.
    /// - *Not durable*: a touch may be lost when the process ends, as is the commit for which it was made.
    ///
    /// # Errors
    /// `Invalid` for more than [`TOUCH_BLOBS_MAX`] blobs; `Unavailable`, as of a put.
    async fn touch(&self, ids: &[BlobId]) -> Result<Vec<bool>, Error>;
}

/// The most blobs that one [`Blobs::touch`] takes.
pub const TOUCH_BLOBS_MAX: usize = 1_024;

/// What [`Blobs::put_then`] calls.
pub type PutHook = Box<dyn FnOnce(Result<Put, Error>) + Send>;

/// A blob that was put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Put {
    /// Its identity.
    pub id: BlobId,
    /// Its length in bytes.
    pub bytes: u64,
    /// Whether it did not exist before.
    pub is_new: bool,
}
