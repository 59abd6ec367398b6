use std::path::Path;

use async_trait::async_trait;
use restante_core::Timestamp;

use crate::{Error, Health, Pruned, Report, Retention, Stats};

/// What operators do with an archive, in addition to appending and querying.
#[async_trait]
pub trait Upkeep: Send + Sync + 'static {
    /// The contents and the size of the archive, from counts that the engine updates as it works: no engine on a disk reads all
    /// its messages for this.
    ///
    /// # Errors
    /// `Unavailable` when the engine can't be read now.
    async fn stats(&self) -> Result<Stats, Error>;

    /// The health of the archive, from memory: it never waits for an engine.
    fn health(&self) -> Health;

    /// Removes the oldest messages that `policy` does not keep, and releases their disk space before it returns.
    ///
    /// What is removed is a prefix of the order within each part, oldest first; nothing that the policy keeps is removed
    /// (see [`Retention`] for what each rule keeps). An engine may keep a little more than the policy requires. Appends and
    /// queries continue meanwhile; pages that were returned stay readable. In Cassandra, messages that other servers store into a
    /// part while it is removed may be removed without being counted.
    ///
    /// # Errors
    /// `Unavailable` or `Full` when the engine can't remove now; what was removed before stays removed.
    async fn prune(&self, policy: &Retention, now: Timestamp) -> Result<Pruned, Error>;

    /// Describes for operators what a prune by this policy leaves although the policy does not keep all of it, and why; `None` if
    /// nothing. It answers from memory: some engines only know what their last [`Upkeep::prune`] has left.
    fn not_pruned(&self, _policy: &Retention, _now: Timestamp) -> Option<String> {
        None
    }

    /// Verifies every checksum and every index against the messages themselves; changes nothing.
    ///
    /// It keeps the thread of its caller busy until it is done: it is meant for tools, not for servers.
    ///
    /// `progress` is called now and then with the bytes done and the bytes in all.
    ///
    /// # Errors
    /// Only when the check could not be run; damage is reported in the [`Report`].
    async fn check(&self, progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<Report, Error>;

    /// Rebuilds every index from the messages; reports what was damaged and left out. Like [`Upkeep::check`], it keeps its
    /// caller's thread busy.
    ///
    /// # Errors
    /// When an index could not be written. The old indexes stay in use then.
    async fn rebuild(&self, progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<Report, Error>;

    /// Writes a copy of everything that was acknowledged before the call into `folder`, which must exist and be empty: an archive
    /// that can be opened. It has the state of one moment, with each batch complete; what is appended later may be missing, and
    /// nothing is removed by a prune while the copy is made. Appends and queries continue meanwhile. The copy is durable when
    /// this returns.
    ///
    /// Files that never change may be hard links to those of the archive: copy them before writing to them.
    ///
    /// Removing the folder cancels the copy: it ends at its next file or piece of a file, with an error.
    ///
    /// In addition to the engine's own files, the folder has the messages that wait in a spool, in [`crate::backup::SPOOL`], the
    /// second archive of a tandem when it is on this machine, in [`crate::backup::SECOND`], and the messages that wait for that,
    /// in [`crate::backup::SECOND_SPOOL`]. Each message is in the engine's copy or in that of its spool.
    ///
    /// # Errors
    /// `Invalid` when the engine itself stores nothing on this machine, with what to do instead; the messages that wait for it in
    /// a spool are copied all the same. `Conflict` when the folder is not empty, `NotFound` when it does not exist, `Unavailable`
    /// when the archive is closed or read-only, and those of the disk; what was written before the error stays.
    async fn backup(&self, folder: &Path) -> Result<(), Error>;

    /// Accepts no more appends, finishes those that were accepted, and releases the engine's resources. Further appends fail with
    /// `Unavailable`. Closing twice is no error.
    ///
    /// # Errors
    /// When accepted appends could not be finished.
    async fn close(&self) -> Result<(), Error>;
}
