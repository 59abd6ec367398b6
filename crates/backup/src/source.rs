//! What a backup copies.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use restante_core::{Clock, Error};

use super::{BackupMetrics, Layout, Removing};

/// What a backup copies, and what it needs for that.
pub struct Sources {
    pub(super) layout: Layout,
    /// The text of the file of settings.
    pub(super) settings: String,
    /// The data folder, by the one name that it has.
    pub(super) data: PathBuf,
    pub(super) clock: Arc<dyn Clock>,
    /// Held while blobs must not go away.
    pub(super) removing: Removing,
    pub(super) metrics: BackupMetrics,
}

impl Sources {
    /// The stores of a layout, and `settings` as the text of their file. The `removing` is the one of those who remove blobs.
    pub fn new(layout: Layout, settings: String, clock: Arc<dyn Clock>, removing: Removing) -> Self {
        let data = real_path(layout.data());
        Self { layout, settings, data, clock, removing, metrics: BackupMetrics::default() }
    }

    /// Counts the backups in the metrics of a server.
    pub fn counted_by(self, metrics: BackupMetrics) -> Self {
        Self { metrics, ..self }
    }

    /// Fails when `data` is another data folder than the one that is copied here.
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
