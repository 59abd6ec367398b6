//! Detects whether a folder is where its records have been in use, or a copy.
//!
//! A copy may be older than the records that clients know, so its numbers have to jump. A folder in use has the file `ORIGINAL`,
//! which no backup has. So the tools that restore a copy need not know about this, and a folder that is moved as a whole stays
//! the original.

use std::path::{Path, PathBuf};

use restante_disk::{Disk, Folder, create_folder};
use restante_lmdb::Store;
use tracing::warn;

use super::schema::{META, META_RESTORES, corrupt, decode_number, encode_number};
use crate::Error;

/// The file of LMDB.
pub(crate) const DATA_FILE: &str = "data.mdb";
/// The file that marks a folder in use.
const ORIGINAL: &str = "ORIGINAL";
/// Its content, an explanation for people.
const ORIGINAL_TEXT: &[u8] =
    b"These records are in use in this folder. In a copy of them that is to replace them, remove this file: \
records without it count as restored from a backup, and give numbers out that are higher than all before.\n";

/// The result of looking at a folder.
pub(super) struct Origin {
    folder: PathBuf,
    is_copy: bool,
}

impl Origin {
    /// Looks at a folder before its store is opened. A folder without a store is marked as the original before the store is
    /// created: if a power cut leaves half of a store there, that is not a copy.
    pub(super) fn of(folder: &Path) -> Result<Self, Error> {
        let is_marked = folder.join(ORIGINAL).exists();
        let is_copy = !is_marked && folder.join(DATA_FILE).exists();
        if !is_marked && !is_copy {
            create_folder(folder)?;
            mark(folder)?;
        }
        Ok(Self { folder: folder.to_owned(), is_copy })
    }

    /// Counts the restore if the folder is a copy. Returns how many restores the store has been through.
    pub(super) fn settle(self, store: &Store) -> Result<u64, Error> {
        let restores = store.read(|view| match view.get(META, META_RESTORES)? {
            Some(value) => decode_number(value).ok_or_else(|| corrupt(META, META_RESTORES)),
            None => Ok(0),
        })?;
        if !self.is_copy {
            return Ok(restores);
        }
        let restores = restores + 1;
        store.write_blocking(move |batch| {
            batch.put(META, META_RESTORES, &encode_number(restores));
            Ok(())
        })?;
        mark(&self.folder)?; // a power cut before this lets the numbers jump once more
        warn!(restores, folder = %self.folder.display(), "the records come from a backup: ids and revisions go on higher up");
        Ok(restores)
    }
}

fn mark(folder: &Path) -> Result<(), Error> {
    let disk = Folder::new(folder);
    let failed = |error| Error::io("create", folder.join(ORIGINAL).display(), error);
    let file = disk.open_or_create(ORIGINAL).map_err(failed)?;
    file.write_at(ORIGINAL_TEXT, 0)
        .and_then(|()| file.sync())
        .and_then(|()| disk.sync_folder(""))
        .map_err(failed)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::testing::{create, email, engine, make, open};
    use super::*;

    /// The mark says that the restore was counted. A mark without the count would let numbers be assigned again.
    #[tokio::test]
    async fn a_restore_is_counted_before_its_folder_is_marked() {
        let (folder, records) = engine();
        make(&records, [create(email(1, 1))]).await;
        records.bodies.close();
        records.store.close().await.unwrap();
        drop(records);
        fs::remove_file(folder.path().join(ORIGINAL)).unwrap();
        // The file can't be created: the folder that the link points to does not exist.
        std::os::unix::fs::symlink("missing/file", folder.path().join(ORIGINAL)).unwrap();
        assert!(open(folder.path()).is_err());
        // As after a power cut between creating the mark and starting the server.
        fs::remove_file(folder.path().join(ORIGINAL)).unwrap();
        fs::write(folder.path().join(ORIGINAL), ORIGINAL_TEXT).unwrap();
        assert_eq!(open(folder.path()).unwrap().ledger.restores, 1);
    }
}
