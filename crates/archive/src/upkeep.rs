use async_trait::async_trait;
use restante_core::Timestamp;

use crate::{Error, Health, Pruned, Report, Retention, Stats};

/// What operators do with an archive, beside appending and querying.
#[async_trait]
pub trait Upkeep: Send + Sync + 'static {
    /// What the archive holds and what it costs.
    ///
    /// # Errors
    /// `Unavailable` when the engine can't tell now.
    async fn stats(&self) -> Result<Stats, Error>;

    /// How the archive is, from memory: it never waits for an engine.
    fn health(&self) -> Health;

    /// Removes the oldest messages that `policy` does not keep, and gives their disk space back before it returns.
    ///
    /// What is removed is a prefix of the order within each part, oldest first; nothing that the policy keeps is removed
    /// (see [`Retention`] for what each rule keeps). An engine may keep a little more than the policy asks for. Appends
    /// and queries go on meanwhile; pages that were handed out stay readable.
    ///
    /// # Errors
    /// `Unavailable` or `Full` when the engine can't remove now; what was removed until then stays removed.
    async fn prune(&self, policy: &Retention, now: Timestamp) -> Result<Pruned, Error>;

    /// Verifies every checksum and every index against the messages themselves; changes nothing.
    ///
    /// It keeps the thread of its caller busy until it is done: it is for tools, not for doors.
    ///
    /// `progress` is called now and then with the bytes done and the bytes in all.
    ///
    /// # Errors
    /// Only when the check could not be made; damage is reported in the [`Report`].
    async fn check(&self, progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<Report, Error>;

    /// Makes every index anew from the messages; reports what was damaged and left out. As [`Upkeep::check`], it keeps its
    /// caller's thread busy.
    ///
    /// # Errors
    /// When an index could not be written. The old indexes stay in use then.
    async fn rebuild(&self, progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<Report, Error>;

    /// Stops taking appends, finishes those that were taken, and lets the engine's resources go. Further appends are
    /// answered `Unavailable`. Closing twice is no error.
    ///
    /// # Errors
    /// When what was taken could not be finished.
    async fn close(&self) -> Result<(), Error>;
}
