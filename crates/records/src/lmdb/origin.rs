//! Whether a folder is where its records have been in use, or a copy that was put there.
//!
//! A copy may be older than the records that clients know, so its numbers have to jump. A folder in use has the file
//! `ORIGINAL`, which no backup has. So whatever puts a copy in place need not know of it, and a folder that is moved as a whole
//! stays what it is.

use std::path::{Path, PathBuf};

use restante_disk::{Disk, Folder, create_folder};
use restante_lmdb::Store;
use tracing::warn;

use super::schema::{META, META_RESTORES, corrupt, decode_number, encode_number};
use crate::Error;

/// LMDB's file.
pub(crate) const DATA_FILE: &str = "data.mdb";
/// The file that a folder in use has.
const ORIGINAL: &str = "ORIGINAL";
/// What it says, for people.
const ORIGINAL_TEXT: &[u8] =
    b"These records are in use in this folder. In a copy of them that is to replace them, remove this file: \
records without it count as restored from a backup, and give numbers out that are higher than all before.\n";

/// What a folder was found to be.
pub(super) struct Origin {
    folder: PathBuf,
    is_copy: bool,
}

impl Origin {
    /// Looks at a folder before its store is opened. A folder without a store is marked as the original before there is one:
    /// when a power cut leaves half of a store there, it is no copy.
    pub(super) fn of(folder: &Path) -> Result<Self, Error> {
        let is_marked = folder.join(ORIGINAL).exists();
        let is_copy = !is_marked && folder.join(DATA_FILE).exists();
        if !is_marked && !is_copy {
            create_folder(folder)?;
            mark(folder)?;
        }
        Ok(Self { folder: folder.to_owned(), is_copy })
    }

    /// Counts the restore when the folder was a copy. Returns the number of restores that the store has been through.
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

    /// The mark says that the restore was counted: without the count, numbers that were given before would be given again.
    #[tokio::test]
    async fn a_restore_is_counted_before_its_folder_is_marked() {
        let (folder, records) = engine();
        make(&records, [create(email(1, 1))]).await;
        records.bodies.close();
        records.store.close().await.unwrap();
        drop(records);
        fs::remove_file(folder.path().join(ORIGINAL)).unwrap();
        // It can't be created: the folder that the link leads to is not there.
        std::os::unix::fs::symlink("missing/file", folder.path().join(ORIGINAL)).unwrap();
        assert!(open(folder.path()).is_err());
        // As a power cut leaves it that came when the mark was there and the server had not begun.
        fs::remove_file(folder.path().join(ORIGINAL)).unwrap();
        fs::write(folder.path().join(ORIGINAL), ORIGINAL_TEXT).unwrap();
        assert_eq!(open(folder.path()).unwrap().ledger.restores, 1);
    }
}
