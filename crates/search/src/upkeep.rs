use async_trait::async_trait;

use crate::Error;

/// What operators do with a search index.
#[async_trait]
pub trait Upkeep: Send + Sync + 'static {
    /// Whether the index can be asked and written, from memory.
    ///
    /// # Errors
    /// The error of the last write that failed, until a commit succeeds; `Unavailable` when the index was found damaged and is not made
    /// again yet, or is closed.
    fn health(&self) -> Result<(), Error>;

    /// What the index holds and costs, as of its last commit.
    ///
    /// # Errors
    /// `Unavailable`.
    async fn stats(&self) -> Result<Stats, Error>;

    /// Verifies the index; changes nothing. An engine with files verifies the checksum of each, one with a server that each part of the
    /// index is there.
    ///
    /// `progress` is called now and then with the bytes done and the bytes in all.
    ///
    /// # Errors
    /// Only when the check could not be made; damage is reported in the [`Report`].
    async fn check(&self, progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<Report, Error>;

    /// Removes everything, and ends the series of writes: the follower begins from zero. Queries are answered with what there is
    /// meanwhile.
    ///
    /// # Errors
    /// `Unavailable`, `Full`; then the index is cleared when a series begins.
    async fn clear(&self) -> Result<(), Error>;

    /// Makes the index again from zero, and ends the series of writes. An engine that can build an index beside another answers queries
    /// from the one that it has until the new one is complete for each account up to the same revision; others do as
    /// [`Upkeep::clear`].
    ///
    /// # Errors
    /// As [`Upkeep::clear`].
    async fn rebuild(&self) -> Result<(), Error> {
        self.clear().await
    }

    /// Commits what was written, ends the series and releases the engine's resources. Further calls are answered `Unavailable`.
    /// Closing twice is no error.
    ///
    /// # Errors
    /// When the commit failed: what was written since the one before is lost and will be written again.
    async fn close(&self) -> Result<(), Error>;
}

/// What an index holds and costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Documents of all accounts.
    pub documents: u64,
    /// Documents and removals that are written and in no commit.
    pub uncommitted: u64,
    /// Parts that a query looks into one after the other.
    pub segments: u64,
    /// Bytes on disk; 0 when the engine keeps nothing on disk.
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
