//! Shared by the engines that store each account as one ordered map in a database: `postgres` and `cassandra`.
//!
//! - [`keys`]: the keys. [`work`]: computes in memory what a commit writes. [`query`], [`changes`]: pages, built from rows.
//! - [`announce`]: announcements of this server's commits and of others'. [`check`]: rows verified against each other.
//! - [`moving`]: the rows of an account that is moved.

pub(crate) mod announce;
pub(crate) mod changes;
pub(crate) mod check;
pub(crate) mod keys;
pub(crate) mod moving;
pub(crate) mod query;
pub(crate) mod work;

use restante_core::BlobId;

/// A blob id in a column.
const BLOB_BYTES: usize = 32;

/// Decodes the ids of a column `blobs`.
pub(crate) fn blobs_of(bytes: &[u8]) -> Option<Vec<BlobId>> {
    let mut blobs = Vec::with_capacity(bytes.len() / BLOB_BYTES);
    for id in bytes.chunks(BLOB_BYTES) {
        blobs.push(BlobId(id.try_into().ok()?));
    }
    Some(blobs)
}
