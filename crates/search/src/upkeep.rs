use async_trait::async_trait;

use crate::Error;

/// The interface of a search index for operators.
#[async_trait]
pub trait Upkeep: Send + Sync + 'static {
    /// Whether the index can be queried and written; this reads memory only.
    ///
    /// # Errors
    /// The error of the last write that failed, until a commit succeeds; `Unavailable` when the index was found damaged and is not
    /// rebuilt yet, or is closed.
    fn health(&self) -> Result<(), Error>;

    /// The size of the index as of its last commit.
    ///
    /// # Errors
    /// `Unavailable`.
    async fn stats(&self) -> Result<Stats, Error>;

    /// Verifies the index; changes nothing. An engine with files verifies the checksum of each; one with a server checks that each
    /// part of the index is there.
    ///
    /// `progress` is called now and then with the bytes done and the bytes in all.
    ///
    /// # Errors
    /// Only when the check could not be performed; damage is reported in the [`Report`].
    async fn check(&self, progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<Report, Error>;

    /// Removes everything, and ends the series of writes: the follower begins from zero. Meanwhile queries are answered with
    /// what the index contains.
    ///
    /// # Errors
    /// `Unavailable`, `Full`; then the index is cleared when the next series begins.
    async fn clear(&self) -> Result<(), Error>;

    /// Rebuilds the index from zero, and ends the series of writes. An engine that can build an index beside another answers queries
    /// from the old one until the new one is complete for each account up to the same revision; others do the same as
    /// [`Upkeep::clear`].
    ///
    /// # Errors
    /// As [`Upkeep::clear`].
    async fn rebuild(&self) -> Result<(), Error> {
        self.clear().await
    }

    /// Commits what was written, ends the series and releases the engine's resources. Further calls are answered `Unavailable`.
    /// Closing twice is not an error.
    ///
    /// # Errors
    /// When the commit failed: what was written since the commit before is lost and will be written again.
    async fn close(&self) -> Result<(), Error>;
}

/// The size of an index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Documents of all accounts.
    pub documents: u64,
    /// Documents and removals that are written and not committed.
    pub uncommitted: u64,
    /// Parts that a query searches one after the other.
    pub segments: u64,
    /// Bytes on disk; 0 when the engine stores nothing on disk.
    pub disk_bytes: u64,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The bytes that were verified.
    pub bytes: u64,
    /// The files that are damaged, or the parts of the index that are missing.
    pub damaged: Vec<String>,
}
