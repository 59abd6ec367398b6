//! Backups: a copy of everything that a server stores, taken while it runs, and restored to an empty location.
//!
//! `docs/design/backup.md` states what a backup guarantees, and why its parts are copied in this order.
//!
//! - `layout`: what a server stores, and where; `records` and `archive`: how each store is copied. `source`: the input of a
//!   backup.
//! - `take`: the copy, from the first check of the disk to the last rename. `events`: its progress.
//! - `manifest`: the description of a backup. `verify`: whether the backup matches it.
//! - `location`, `names`, `target`, `restore`: where each part of a backup goes, which files it may have, how its location is
//!   filled, and the restore itself.
//! - `route`: how a running server is requested to take a backup. `metrics`: the outcome of backups.
//! - `disk`: files and folders.

#[cfg(feature = "archive")]
mod archive;
mod disk;
mod events;
mod layout;
mod location;
mod manifest;
mod metrics;
mod names;
#[cfg(test)]
mod power_cut;
#[cfg(feature = "records")]
mod records;
mod restore;
mod route;
mod source;
mod take;
mod target;
mod verify;

use std::sync::Arc;

use restante_core::Error;

#[cfg(feature = "archive")]
pub use archive::ArchiveFiles;
pub use events::{Event, EventSender, StopSignal, Summary, stopped};
pub use layout::{Layout, Store};
pub use manifest::{FileEntry, Manifest, Role, RoleEntry};
pub use metrics::BackupMetrics;
pub use restore::{RestoreOptions, Restored, check_not_halfway, restore};
pub use route::{Asked, BackupPermit, PATH, route};
pub use source::{Sources, real_path};
pub use take::take;
pub use target::OF_DISK;
pub use verify::{Wrong, verify};

#[cfg(feature = "records")]
use records::check_pages;

/// Called with the bytes done so far, and with the total.
pub type Progress<'a> = &'a mut (dyn FnMut(u64, u64) + Send);

/// Held while blobs are removed, and by a backup between its copies of records and of blobs.
pub type Removing = Arc<tokio::sync::Mutex<()>>;

/// Without records and blobs no restored file is LMDB's.
#[cfg(not(feature = "records"))]
fn check_pages(_part: location::Part, _path: &str, _file: &std::fs::File) -> Result<(), Error> {
    Ok(())
}

/// Runs work that reads and writes files on the blocking pool.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let joined = tokio::task::spawn_blocking(work).await;
    joined.unwrap_or_else(|_| Err(Error::internal("a task of the backup ended early")))
}
