//! Backups: a copy of all that a server keeps, taken while it runs, and put back into an empty place.
//!
//! `docs/design/backup.md` states what a backup guarantees, and why its parts are copied in this order.
//!
//! - [`layout`]: what a server stores, and where; [`records`] and [`archive`]: how each store is copied. [`source`]: what a backup needs.
//! - [`take`]: the copy, from the first look at the disk to the last rename. [`events`]: its progress.
//! - [`manifest`]: what a backup says of itself. [`verify`]: whether that is so.
//! - [`location`], [`names`], [`target`], [`restore`]: which part of a backup goes where, which files it can have, how it comes there,
//!   and putting it there.
//! - [`route`]: how a running server is asked. [`metrics`]: how backups went.
//! - [`disk`]: files and folders.

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
mod records;
mod restore;
mod route;
mod source;
mod take;
mod target;
mod verify;

use std::sync::Arc;

use restante_core::Error;

pub(crate) use archive::ArchiveFiles;
pub(crate) use events::{Event, EventSender, StopSignal, Summary, stopped};
pub(crate) use layout::{Layout, Store};
pub(crate) use manifest::{Manifest, Role};
pub(crate) use metrics::BackupMetrics;
use records::check_pages;
pub(crate) use restore::{RestoreOptions, Restored, check_not_halfway, restore};
pub(crate) use route::{Asked, BackupPermit, PATH, route};
pub(crate) use source::{Sources, real_path};
pub(crate) use take::take;
pub(crate) use target::OF_DISK;
pub(crate) use verify::verify;

/// Called with the bytes that are done, and with the total.
pub(crate) type Progress<'a> = &'a mut (dyn FnMut(u64, u64) + Send);

/// Held while blobs are removed, and by a backup between its copies of records and of blobs.
pub(crate) type Removing = Arc<tokio::sync::Mutex<()>>;

/// Runs what reads and writes files on a thread made for that.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let joined = tokio::task::spawn_blocking(work).await;
    joined.unwrap_or_else(|_| Err(Error::internal("a task of the backup ended early")))
}
