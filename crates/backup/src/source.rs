//! The input of a backup.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use restante_core::{Clock, Error};

use super::{BackupMetrics, Layout, Removing};

/// The stores to back up, and what the backup needs besides.
pub struct Sources {
    pub(super) layout: Layout,
    /// The text of the settings file.
    pub(super) settings: String,
    /// The canonical path of the data folder.
    pub(super) data: PathBuf,
    pub(super) clock: Arc<dyn Clock>,
    /// Held while no blob may be removed.
    pub(super) removing: Removing,
    pub(super) metrics: BackupMetrics,
}

impl Sources {
    /// The stores of a layout, and `settings` as the text of their file. `removing` is shared with everything that removes
    /// blobs.
    pub fn new(layout: Layout, settings: String, clock: Arc<dyn Clock>, removing: Removing) -> Self {
        let data = real_path(layout.data());
        Self { layout, settings, data, clock, removing, metrics: BackupMetrics::default() }
    }

    /// Counts the backups in the metrics of a server.
    pub fn counted_by(self, metrics: BackupMetrics) -> Self {
        Self { metrics, ..self }
    }

    /// Fails when `data` is not the data folder that is backed up here.
    pub(super) fn check_meant(&self, data: Option<&Path>) -> Result<(), Error> {
        match data {
            Some(data) if data != self.data => Err(Error::conflict(format!(
                "this server keeps what is in {}, and not {}",
                self.data.display(),
                data.display()
            ))),
            _ => Ok(()),
        }
    }
}

/// The canonical path of a folder, with links resolved where that is possible.
pub fn real_path(folder: &Path) -> PathBuf {
    folder.canonicalize().or_else(|_| std::path::absolute(folder)).unwrap_or_else(|_| folder.to_owned())
}
