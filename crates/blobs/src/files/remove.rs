//! Removing blobs.

use std::collections::BTreeSet;

use restante_core::{BlobId, Timestamp};
use tracing::warn;

use super::{
    index::Row,
    schema::{FILES, file_name},
    write::{Move, Writer},
};
use crate::Error;

/// Blobs that are removed with one write of the index.
const REMOVED_AT_ONCE_MAX: usize = 1_024;

impl Writer {
    /// Removes blobs that were last put before a time. This thread handles puts too, so that none comes in between.
    pub(super) fn remove(&mut self, ids: Vec<BlobId>, put_before: Timestamp) -> Result<u64, Error> {
        self.shared.check_writable()?;
        let ids: Vec<BlobId> = BTreeSet::from_iter(ids).into_iter().collect();
        let mut removed = 0;
        for ids in ids.chunks(REMOVED_AT_ONCE_MAX) {
            let mut moves = Vec::new();
            for id in ids {
                let old = self.shared.find(*id)?.filter(|entry| entry.put_at < put_before);
                if old.is_some() {
                    moves.push(Move { id: *id, old, new: None });
                }
            }
            if moves.is_empty() {
                continue;
            }
            self.flush_index(&moves, vec![])?;
            removed += moves.len() as u64;
            self.shared.metrics.removed_blobs.inc_by(moves.len() as u64);
            self.remove_freed(&moves);
        }
        Ok(removed)
    }

    /// Removes the files of removed blobs. After an error they stay noted, and opening the store tries again.
    pub(super) fn remove_freed(&self, moves: &[Move]) {
        let freed: Vec<BlobId> =
            moves.iter().filter(|change| change.frees_file()).map(|change| change.id).collect();
        if freed.is_empty() {
            return;
        }
        if let Err(error) = self.remove_loose(&freed) {
            warn!(%error, "files of removed blobs stay until the store is opened again");
        }
    }

    fn remove_loose(&self, loose: &[BlobId]) -> Result<(), Error> {
        let mut folders = BTreeSet::from([FILES.to_owned()]);
        for id in loose {
            let (name, [folder, _]) = file_name(*id);
            self.shared.disk.remove(&name).map_err(|error| Error::io("remove", &name, error))?;
            folders.insert(folder);
        }
        self.sync_folders(&folders)?;
        self.shared.index()?.write(loose.iter().map(|id| Row::LooseGone(*id)).collect())
    }
}
