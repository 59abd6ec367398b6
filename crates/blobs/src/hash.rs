//! The ids of blobs.

use restante_core::BlobId;
use sha2::{Digest, Sha256};

/// The id of bytes.
pub(crate) fn id_of(bytes: &[u8]) -> BlobId {
    BlobId(Sha256::digest(bytes).into())
}

/// Bytes that are hashed before other tasks of the thread get a turn: some 40 µs.
#[cfg(feature = "s3")]
const TURN_BYTES: usize = 64 << 10;

/// Hashes bytes in the calling task, which takes as long as on the blocking pool.
#[cfg(feature = "s3")]
pub(crate) async fn hash_in_turns(hasher: &mut Sha256, bytes: &[u8]) {
    for (n, part) in bytes.chunks(TURN_BYTES).enumerate() {
        if n > 0 {
            tokio::task::yield_now().await;
        }
        hasher.update(part);
    }
}
