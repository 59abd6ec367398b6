use bytes::Bytes;

use crate::{BlobId, Error};

/// A blob that can be read but is not durable yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnsyncedBlob {
    /// Its identity.
    pub id: BlobId,
    /// All its bytes.
    pub bytes: Bytes,
}

/// Blobs that may be put without being durable, for records that make such a blob durable together with the commit that refers to
/// it.
///
/// Both methods block, so they are not for threads of an async runtime.
pub trait UnsyncedBlobs: Send + Sync + 'static {
    /// Makes all blobs that were put before durable.
    ///
    /// # Errors
    /// When it is unknown whether they are durable.
    fn sync(&self) -> Result<(), Error>;

    /// Durably puts blobs that a crash may have removed.
    ///
    /// # Errors
    /// When one of them could not be stored.
    fn put_again(&self, blobs: Vec<UnsyncedBlob>) -> Result<(), Error>;
}
