use async_trait::async_trait;
use bytes::Bytes;

use crate::Error;

/// The most bytes of one chunk.
pub const CHUNK_BYTES_MAX: usize = 1 << 20;

/// Bytes that are read in chunks.
#[async_trait]
pub trait Source: Send {
    /// The next chunk, of 1 to [`CHUNK_BYTES_MAX`] bytes; `None` after the last.
    ///
    /// # Errors
    /// When the bytes can't be read; nothing follows then.
    async fn next(&mut self) -> Result<Option<Bytes>, Error>;
}

/// Bytes in memory.
#[async_trait]
impl Source for Bytes {
    async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        let chunk = self.split_to(self.len().min(CHUNK_BYTES_MAX));
        Ok((!chunk.is_empty()).then_some(chunk))
    }
}
