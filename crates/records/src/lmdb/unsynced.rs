//! Blobs that an earlier process put without a sync, and whose bytes its commits made durable.

use std::ops::Bound;

use bytes::Bytes;
use restante_core::{BlobId, UnsyncedBlob, UnsyncedBlobs};
use restante_lmdb::{Direction, Store};
use tracing::{info, warn};

use super::schema::{BLOB, corrupt};
use crate::Error;

/// Blobs that are put together.
const BLOBS_AT_ONCE: usize = 256;

/// Puts blobs again that may have been lost in a crash, and deletes the rows with their bytes. A blob that can't be put, for
/// example for lack of space, does not keep the others from being put, and its row stays for the next time. Returns how many were
/// put.
pub(super) fn put_again(store: &Store, blobs: &dyn UnsyncedBlobs) -> Result<u64, Error> {
    let (mut put, mut left, mut after) = (0, 0, None);
    loop {
        let rows = page(store, after)?;
        let Some(last) = rows.last() else { break };
        after = Some(last.id);
        let found = rows.len();
        let ids = put_each(blobs, rows);
        put += ids.len() as u64;
        left += found - ids.len();
        let deleted = store.write_blocking(move |batch| {
            ids.iter().for_each(|id| batch.delete(BLOB, &id.0));
            Ok(())
        });
        if let Err(error) = deleted {
            warn!(%error, "blobs were put again, and the records can't note it: that is tried again when they are opened next");
        }
    }
    if put > 0 {
        info!(blobs = put, "blobs were put again from the commit log of the records");
    }
    if left > 0 {
        warn!(
            blobs = left,
            "blobs that were put last are only in the records: they are put again when these are opened next"
        );
    }
    Ok(put)
}

/// Puts blobs, together or, if that fails, one by one; returns which were put.
fn put_each(blobs: &dyn UnsyncedBlobs, rows: Vec<UnsyncedBlob>) -> Vec<BlobId> {
    if blobs.put_again(rows.clone()).is_ok() {
        return rows.into_iter().map(|blob| blob.id).collect();
    }
    let put_one = |blob: UnsyncedBlob| {
        let id = blob.id;
        match blobs.put_again(vec![blob]) {
            Ok(()) => Some(id),
            Err(error) => {
                warn!(blob = %id, %error, "a blob that was put last can't be put again");
                None
            }
        }
    };
    rows.into_iter().filter_map(put_one).collect()
}

/// Refuses to move records that may have the only copy of some blobs.
pub(super) fn check_none(store: &Store) -> Result<(), Error> {
    if !has_some(store)? {
        return Ok(());
    }
    Err(Error::invalid(
        "the server did not end by itself, and some blobs may only be in its records: start and stop it once, or run \
         `restante check`, which puts them where they belong",
    ))
}

/// Whether these records may have the only copy of some blobs.
pub(super) fn has_some(store: &Store) -> Result<bool, Error> {
    store.read(|view| {
        let mut rows = view.range(BLOB, Bound::Unbounded, Bound::Unbounded, Direction::Ascending)?;
        Ok(rows.next()?.is_some())
    })
}

/// Some blobs whose only copy may be in these records, in the order of their ids.
fn page(store: &Store, after: Option<BlobId>) -> Result<Vec<UnsyncedBlob>, Error> {
    let from = after.as_ref().map_or(Bound::Unbounded, |id| Bound::Excluded(&id.0[..]));
    store.read(|view| {
        let mut rows = view.range(BLOB, from, Bound::Unbounded, Direction::Ascending)?;
        let mut blobs = Vec::new();
        while blobs.len() < BLOBS_AT_ONCE
            && let Some((key, bytes)) = rows.next()?
        {
            let id = BlobId(key.try_into().map_err(|_| corrupt(BLOB, key))?);
            blobs.push(UnsyncedBlob { id, bytes: Bytes::copy_from_slice(bytes) });
        }
        Ok(blobs)
    })
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        path::Path,
        sync::{
            Arc,
            atomic::{AtomicBool, AtomicUsize, Ordering},
        },
    };

    use parking_lot::Mutex;
    use restante_core::{ErrorKind, Gate};

    use super::*;
    use crate::{
        Commit, Config, EngineUrl, Opened,
        lmdb::testing::{ACCOUNT, create, email, schema},
        open, open_moving,
    };

    /// Blobs that record the calls.
    #[derive(Default)]
    struct Blobs {
        syncs: AtomicUsize,
        are_broken: AtomicBool,
        /// Blobs that can't be put.
        refused: Mutex<Vec<BlobId>>,
        put_again: Mutex<BTreeMap<BlobId, Bytes>>,
    }

    impl Blobs {
        fn check(&self) -> Result<(), Error> {
            match self.are_broken.load(Ordering::Relaxed) {
                true => Err(Error::full("no space")),
                false => Ok(()),
            }
        }

        /// Returns the blobs that were put again since the last call.
        fn take(&self) -> Vec<(BlobId, Bytes)> {
            std::mem::take(&mut *self.put_again.lock()).into_iter().collect()
        }

        fn config(self: &Arc<Self>, folder: &Path) -> Config {
            let url = EngineUrl::Lmdb(folder.to_owned());
            Config { unsynced_blobs: Some(self.clone()), ..Config::new(url, schema()) }
        }

        async fn open(self: &Arc<Self>, folder: &Path) -> Opened {
            let opened = open(self.config(folder)).await.unwrap();
            opened.upkeep.put_blobs_again(self.clone()).await.unwrap();
            opened
        }
    }

    impl UnsyncedBlobs for Blobs {
        fn sync(&self) -> Result<(), Error> {
            self.syncs.fetch_add(1, Ordering::Relaxed);
            self.check()
        }

        fn put_again(&self, blobs: Vec<UnsyncedBlob>) -> Result<(), Error> {
            self.check()?;
            if blobs.iter().any(|blob| self.refused.lock().contains(&blob.id)) {
                return Err(Error::corrupt("the bytes of a blob are those of another"));
            }
            self.put_again.lock().extend(blobs.into_iter().map(|blob| (blob.id, blob.bytes)));
            Ok(())
        }
    }

    fn blob(number: u16) -> UnsyncedBlob {
        let mut id = [0; 32];
        id[..2].copy_from_slice(&number.to_be_bytes());
        UnsyncedBlob { id: BlobId(id), bytes: format!("message {number}").into() }
    }

    async fn commit(opened: &Opened, number: u16) {
        let (keeper, gate) = Gate::of_unsynced(blob(number));
        keeper.open();
        let commit = Commit::of([create(email(1, number.into()))]);
        opened.records.commit_after(&[gate], ACCOUNT, commit).await.unwrap();
    }

    /// Drops the store as if the process had ended.
    async fn crash(opened: Opened) {
        tokio::task::spawn_blocking(move || drop(opened)).await.unwrap();
    }

    fn pairs(numbers: impl IntoIterator<Item = u16>) -> Vec<(BlobId, Bytes)> {
        numbers.into_iter().map(blob).map(|blob| (blob.id, blob.bytes)).collect()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn after_a_crash_blobs_are_put_again_once() {
        let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::new(Blobs::default()));
        let opened = blobs.open(folder.path()).await;
        assert!(opened.records.makes_blobs_durable());
        let numbers = 0..=BLOBS_AT_ONCE as u16; // more than are put together
        for number in numbers.clone() {
            commit(&opened, number).await;
        }
        crash(opened).await;
        let opened = blobs.open(folder.path()).await;
        assert_eq!(blobs.take(), pairs(numbers));
        crash(opened).await;
        let opened = blobs.open(folder.path()).await;
        assert_eq!(blobs.take(), []);
        assert_eq!(opened.upkeep.check(&|_, _| ()).await.unwrap().findings, []);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn after_a_close_no_blob_is_put_again() {
        let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::new(Blobs::default()));
        let opened = blobs.open(folder.path()).await;
        commit(&opened, 1).await;
        opened.upkeep.close().await.unwrap();
        assert_eq!(blobs.syncs.load(Ordering::Relaxed), 1);
        crash(opened).await;
        let opened = blobs.open(folder.path()).await;
        assert_eq!(blobs.take(), []);
        opened.upkeep.close().await.unwrap();
        assert_eq!(blobs.syncs.load(Ordering::Relaxed), 1, "there is nothing to sync");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn blobs_that_can_not_be_synced_or_put_again_stay_in_the_records() {
        let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::new(Blobs::default()));
        let opened = blobs.open(folder.path()).await;
        commit(&opened, 1).await;
        blobs.are_broken.store(true, Ordering::Relaxed);
        opened.upkeep.close().await.unwrap();
        crash(opened).await;
        let opened = blobs.open(folder.path()).await;
        commit(&opened, 2).await;
        crash(opened).await;
        blobs.are_broken.store(false, Ordering::Relaxed);
        let opened = blobs.open(folder.path()).await;
        assert_eq!(blobs.take(), pairs([1, 2]));
        opened.upkeep.close().await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn blobs_that_can_not_be_put_again_do_not_hold_up_others() {
        let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::new(Blobs::default()));
        let opened = blobs.open(folder.path()).await;
        for number in 0..4 {
            commit(&opened, number).await;
        }
        crash(opened).await;
        *blobs.refused.lock() = vec![blob(0).id, blob(2).id];
        let opened = blobs.open(folder.path()).await;
        assert_eq!(blobs.take(), pairs([1, 3]));
        assert!(opened.upkeep.has_blobs_to_put().await.unwrap());
        crash(opened).await;
        blobs.refused.lock().clear();
        let opened = blobs.open(folder.path()).await;
        assert_eq!(blobs.take(), pairs([0, 2]));
        assert!(!opened.upkeep.has_blobs_to_put().await.unwrap());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn records_that_were_opened_without_their_blobs_keep_them_for_later() {
        let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::new(Blobs::default()));
        let opened = blobs.open(folder.path()).await;
        commit(&opened, 1).await;
        crash(opened).await;
        let alone = Config { unsynced_blobs: None, ..blobs.config(folder.path()) };
        // Blobs that are not known to be those of the records are synced, but no blob is put again into them.
        for config in [alone.clone(), blobs.config(folder.path())] {
            let opened = open(config).await.unwrap();
            assert!(!opened.records.makes_blobs_durable());
            opened.upkeep.close().await.unwrap();
            assert_eq!(blobs.take(), []);
            crash(opened).await;
        }
        let refused = open_moving(alone.clone()).await.err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::Invalid);
        assert!(refused.to_string().contains("restante check"), "{refused}");
        let opened = open(alone.clone()).await.unwrap();
        assert_eq!(opened.upkeep.put_blobs_again(blobs.clone()).await.unwrap(), 1);
        assert_eq!(blobs.take(), pairs([1]));
        assert_eq!(opened.upkeep.put_blobs_again(blobs.clone()).await.unwrap(), 0);
        opened.upkeep.close().await.unwrap();
        crash(opened).await;
        open_moving(alone).await.unwrap().opened.upkeep.close().await.unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn no_commit_makes_blobs_durable_where_the_settings_do_not_want_it_or_there_is_no_log() {
        let (folder, blobs) = (tempfile::tempdir().unwrap(), Arc::new(Blobs::default()));
        let mut config = blobs.config(folder.path());
        config.lmdb.has_blobs_in_log = false;
        for lmdb in [config.lmdb, crate::LmdbConfig { log_bytes: 0, ..Default::default() }] {
            config.lmdb = lmdb;
            let opened = open(config.clone()).await.unwrap();
            opened.upkeep.put_blobs_again(blobs.clone()).await.unwrap();
            assert!(!opened.records.makes_blobs_durable());
            crash(opened).await;
        }
    }
}
