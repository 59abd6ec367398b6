use std::path::Path;

use async_trait::async_trait;
use restante_core::Timestamp;

use crate::{Error, Health, Pruned, Report, Retention, Stats};

/// What operators do with an archive, beside appending and querying.
#[async_trait]
pub trait Upkeep: Send + Sync + 'static {
    /// What the archive holds and what it costs, from what the engine counts as it goes: no engine on a disk walks through its
    /// messages for it.
    ///
    /// # Errors
    /// `Unavailable` when the engine can't be read now.
    async fn stats(&self) -> Result<Stats, Error>;

    /// How the archive is, from memory: it never waits for an engine.
    fn health(&self) -> Health;

    /// Removes the oldest messages that `policy` does not keep, and gives their disk space back before it returns.
    ///
    /// What is removed is a prefix of the order within each part, oldest first; nothing that the policy keeps is removed
    /// (see [`Retention`] for what each rule keeps). An engine may keep a little more than the policy asks for. Appends
    /// and queries continue meanwhile; pages that were returned stay readable. In Cassandra, what other servers store into a part while
    /// it is removed may be removed without being counted.
    ///
    /// # Errors
    /// `Unavailable` or `Full` when the engine can't remove now; what was removed until then stays removed.
    async fn prune(&self, policy: &Retention, now: Timestamp) -> Result<Pruned, Error>;

    /// Says for operators what a prune by this policy leaves although the policy does not keep all of it, and why; `None` when
    /// that is nothing. It answers from memory: some engines know only what their last [`Upkeep::prune`] has left.
    fn not_pruned(&self, _policy: &Retention, _now: Timestamp) -> Option<String> {
        None
    }

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

    /// Writes a copy of everything that was acknowledged before the call into `folder`, which must exist and be empty: an
    /// archive that can be opened. It is what the archive had at one moment, each batch whole; what is appended later may be
    /// missing, and nothing is removed by a prune while the copy is made. Appends and queries continue meanwhile. What the copy
    /// has is durable when this returns.
    ///
    /// Files that never change may be links to those of the archive: copy them before writing to them.
    ///
    /// Removing the folder cancels the copy: it ends at its next file or piece of a file, with an error.
    ///
    /// Beside the engine's own files the folder has what waits in a spool, in [`crate::backup::SPOOL`], the second archive of
    /// a tandem when it lies on this machine, in [`crate::backup::SECOND`], and what waits for that, in
    /// [`crate::backup::SECOND_SPOOL`]. Each message is in the engine's copy or in that of its spool.
    ///
    /// # Errors
    /// `Invalid` when the engine itself keeps nothing on this machine, with what to do instead; what waits for it in a spool is
    /// in the folder all the same. `Conflict` when the folder is not empty, `NotFound` when it is not there, `Unavailable` when
    /// the archive is closed or read-only, and those of the disk; what was written until then stays.
    async fn backup(&self, folder: &Path) -> Result<(), Error>;

    /// Stops taking appends, finishes those that were taken, and lets the engine's resources go. Further appends are
    /// answered `Unavailable`. Closing twice is no error.
    ///
    /// # Errors
    /// When what was taken could not be finished.
    async fn close(&self) -> Result<(), Error>;
}
