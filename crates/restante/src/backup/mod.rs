//! Backups: a copy of all that a server keeps, taken while it runs, and put back into an empty place.
//!
//! `docs/design/backup.md` states what a backup guarantees, and why its parts are copied in this order.
//!
//! - [`source`]: what is copied, each role by its own upkeep.
//! - [`take`]: the copy, from the first look at the disk to the last rename. [`events`]: its progress.
//! - [`manifest`]: what a backup says of itself. [`verify`]: whether that is so.
//! - [`location`], [`names`], [`target`], [`restore`]: which part of a backup goes where, which files it can have, how it comes there,
//!   and putting it there.
//! - [`route`]: how a running server is asked. [`metrics`]: how backups went.
//! - [`disk`]: files and folders.

mod disk;
mod events;
mod location;
mod manifest;
mod metrics;
mod names;
#[cfg(test)]
mod power_cut;
mod restore;
mod route;
mod settings;
mod source;
mod take;
mod target;
mod verify;

use std::{error::Error, io, path::Path, sync::Arc};

use restante_core::ErrorKind;

pub(crate) use events::{Event, EventSender, Summary};
pub(crate) use manifest::{Manifest, Role};
pub(crate) use metrics::BackupMetrics;
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

/// Why a backup could not be taken, read or restored.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub(crate) struct BackupError {
    kind: ErrorKind,
    text: String,
}

impl BackupError {
    pub(crate) fn new(kind: ErrorKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }

    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, text)
    }

    pub(crate) fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The client of the backup has disconnected, or the user has stopped it.
    pub(crate) fn stopped() -> Self {
        Self::new(ErrorKind::Unavailable, "the backup was stopped before it was finished: there is none")
    }

    /// The server that takes a backup is ending.
    fn server_stops() -> Self {
        Self::new(
            ErrorKind::Unavailable,
            "the server is stopping, and no backup was taken: take it when the server runs again",
        )
    }

    /// An I/O error while doing `what` to a path.
    fn io(what: &str, path: &Path, error: io::Error) -> Self {
        let kind = match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                ErrorKind::Full
            }
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            io::ErrorKind::AlreadyExists => ErrorKind::Conflict,
            _ => ErrorKind::Unavailable,
        };
        Self::new(kind, format!("can't {what} {}: {error}", path.display()))
    }

    /// The error of a role that could not be copied.
    fn of_role(role: Role, kind: ErrorKind, error: &dyn Error) -> Self {
        Self::new(kind, format!("can't back up the {}: {error}", role.name()))
    }
}

/// Runs what reads and writes files on a thread made for that.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, BackupError> + Send + 'static,
) -> Result<T, BackupError> {
    let joined = tokio::task::spawn_blocking(work).await;
    joined.unwrap_or_else(|_| Err(BackupError::new(ErrorKind::Internal, "a task of the backup ended early")))
}
