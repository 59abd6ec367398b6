//! The ids of blobs.

use restante_core::BlobId;
use sha2::{Digest, Sha256};

/// The id of bytes.
pub(crate) fn id_of(bytes: &[u8]) -> BlobId {
    BlobId(Sha256::digest(bytes).into())
}
