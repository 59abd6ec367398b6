//! Disk step n fails, for n = 1, 2, 3, ... until none does.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use restante_core::{BlobId, ErrorKind, Identity, Timestamp, nonzero};
use restante_disk::{
    Disk,
    testing::{BLOCK_BYTES, FailingDisk, FailurePlan, InjectedFailure},
};
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;

use super::{
    assert_sound, blob, config, copy_folder, folder, open, open_folder, open_with, put, read_all, runtime,
};
use crate::{
    Error, Opened, Put,
    files::{
        index::Index,
        schema::{PACK_HEADER_BYTES, pack_name, record_bytes},
    },
};

/// Acknowledged operations.
#[derive(Default)]
struct Acked {
    there: Vec<Bytes>,
    gone: Vec<BlobId>,
    /// The owners that the store may have: the last acknowledged one and refused later ones.
    owners: Vec<Option<Identity>>,
    was_refused: bool,
}

/// Puts short and long blobs, some of them twice, removes most of them, and puts more. Errors are handled as a client would.
async fn run_workload(disk: Arc<dyn Disk>) -> Acked {
    let mut acked = Acked::default();
    let Ok(opened) = open(disk) else { return acked };
    for n in 0..10 {
        put_noted(&opened, blob(n, if n % 5 == 0 { 1_500 } else { 700 }), &mut acked).await;
    }
    put_noted(&opened, blob(3, 700), &mut acked).await;
    put_noted(&opened, blob(5, 1_500), &mut acked).await;
    let going: Vec<Bytes> =
        (0..10).filter(|n| n % 4 != 3).map(|n| blob(n, if n % 5 == 0 { 1_500 } else { 700 })).collect();
    let ids: Vec<BlobId> = going.iter().map(|bytes| crate::hash::id_of(bytes)).collect();
    // A refused removal may have removed blobs; an acknowledged one has.
    acked.there.retain(|bytes| !going.contains(bytes));
    match opened.upkeep.remove(&ids, Timestamp::MAX).await {
        Ok(_) => acked.gone = ids,
        Err(_) => acked.was_refused = true,
    }
    acked.owners.push(None);
    for owner in [Identity([1; 16]), Identity([2; 16])] {
        match opened.upkeep.set_owner(owner).await {
            Ok(()) => acked.owners = vec![Some(owner)],
            Err(_) => {
                acked.owners.push(Some(owner));
                acked.was_refused = true;
            }
        }
    }
    for n in 20..24 {
        put_noted(&opened, blob(n, if n == 22 { 1_500 } else { 700 }), &mut acked).await;
    }
    let _ = opened.upkeep.close().await;
    acked
}

async fn put_noted(opened: &Opened, bytes: Bytes, acked: &mut Acked) {
    match opened.blobs.put(&mut bytes.clone()).await {
        Ok(_) => acked.there.push(bytes),
        Err(error) => {
            assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Full), "{error}");
            acked.was_refused = true;
        }
    }
}

/// Runs the workload repeatedly; `plan` decides which steps of each run fail.
fn every_step_may_fail(plan: fn(run: u64, step: u64) -> Option<InjectedFailure>, expected: &[&str]) {
    let runtime = runtime();
    let mut seen = BTreeSet::new();
    for step in 1.. {
        let dir = tempfile::tempdir().unwrap();
        let faults = FailurePlan::none();
        faults.plan(move |number, _| plan(step, number));
        let disk = FailingDisk::new(dir.path(), faults.clone());
        let acked = runtime.block_on(run_workload(Arc::new(disk)));
        let failed = faults.failed();
        runtime.block_on(async {
            let opened = open_folder(dir.path());
            for bytes in &acked.there {
                let found = read_all(&*opened.blobs, crate::hash::id_of(bytes)).await;
                assert_eq!(&found.unwrap(), bytes, "step {step} ({failed:?}): what was acknowledged");
            }
            for id in &acked.gone {
                assert_eq!(
                    opened.blobs.size(*id).await.unwrap(),
                    None,
                    "step {step} ({failed:?}): what was removed"
                );
            }
            let owner = opened.upkeep.owner().await.unwrap();
            let is_one_of_them = acked.owners.is_empty() || acked.owners.contains(&owner);
            assert!(is_one_of_them, "step {step} ({failed:?}): {owner:?} is none of {:?}", acked.owners);
            opened.upkeep.set_owner(Identity([3; 16])).await.unwrap();
            assert_eq!(opened.upkeep.owner().await.unwrap(), Some(Identity([3; 16])));
            assert_sound(&opened).await;
            put(&opened, &blob(999, 700)).await;
            put(&opened, &blob(999, 1_500)).await;
            opened.upkeep.close().await.unwrap();
        });
        if failed.is_empty() {
            assert!(
                !acked.was_refused && acked.there.len() == 7 && acked.gone.len() == 8,
                "{}",
                acked.there.len()
            );
            break;
        }
        seen.extend(failed);
    }
    for step in expected {
        assert!(seen.contains(step), "the workload has no '{step}': {seen:?}");
    }
}

const STEPS: [&str; 8] =
    ["create", "create folder", "write", "sync", "rename", "remove", "sync folder", "index"];

#[test]
fn any_step_may_fail() {
    every_step_may_fail(|run, step| (step == run).then_some(InjectedFailure::Fails), &STEPS);
}

#[test]
fn any_write_may_fail_halfway() {
    every_step_may_fail(|run, step| (step == run).then_some(InjectedFailure::FailsHalfway), &STEPS);
}

#[test]
fn any_step_may_find_the_disk_full() {
    every_step_may_fail(|run, step| (step == run).then_some(InjectedFailure::Full), &STEPS);
}

#[test]
fn the_disk_may_go_away_at_any_step() {
    every_step_may_fail(
        |run, step| (step >= run).then_some(InjectedFailure::FailsHalfway),
        &["write", "cut", "sync", "remove"],
    );
}

/// After a failed sync it is unknown what is on disk: a second sync may succeed without having written anything.
#[test]
fn after_a_failed_sync_nothing_more_is_taken() {
    // The write to a pack and its sync; and the folders, creation, write, sync, note and rename of a file.
    for (steps, len) in [(2, 700), (8, 1_500)] {
        runtime().block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let faults = FailurePlan::none();
            let opened = open(Arc::new(FailingDisk::new(dir.path(), faults.clone()))).unwrap();
            let id = put(&opened, &blob(0, 700)).await;
            faults.fail_at(steps, InjectedFailure::Fails);
            for n in 1..4 {
                let error = opened.blobs.put(&mut blob(n, len)).await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Unavailable);
            }
            assert!(faults.failed().iter().any(|step| step.starts_with("sync")));
            let error = opened.upkeep.health().unwrap_err();
            assert!(error.to_string().contains("until the store is opened again"), "{error}");
            assert_eq!(
                opened.upkeep.remove(&[id], Timestamp::MAX).await.unwrap_err().kind(),
                ErrorKind::Unavailable
            );
            assert_eq!(read_all(&*opened.blobs, id).await.unwrap(), blob(0, 700), "reads still work");
            opened.upkeep.close().await.unwrap();
            let opened = open_folder(dir.path());
            assert_eq!(read_all(&*opened.blobs, id).await.unwrap(), blob(0, 700));
            put(&opened, &blob(1, len)).await;
        });
    }
}

/// Puts a blob without a sync, and waits until it can be read.
async fn put_unsynced(opened: &Opened, bytes: &Bytes) -> BlobId {
    let (ended, put) = oneshot::channel();
    let done = move |put: Result<Put, Error>| ended.send(put).unwrap();
    opened.blobs.put_unsynced(&mut bytes.clone(), Box::new(done)).await.unwrap();
    put.await.unwrap().unwrap().id
}

/// Counts the syncs of packs from now on; `fails` says which steps fail.
fn count_syncs(
    faults: &FailurePlan,
    fails: impl Fn(&str) -> Option<InjectedFailure> + Send + Sync + 'static,
) -> Arc<AtomicUsize> {
    let syncs = Arc::new(AtomicUsize::new(0));
    let counted = syncs.clone();
    faults.plan(move |_, step| {
        let is_of_pack = step == "sync" && thread::current().name() == Some("blobs");
        counted.fetch_add(usize::from(is_of_pack), Ordering::Relaxed);
        fails(step)
    });
    syncs
}

/// The pack is left when the rest of a write can't be removed from it, and nothing would sync it later.
#[test]
fn a_pack_that_is_left_after_a_failed_write_is_synced() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let faults = FailurePlan::none();
        let opened = open(Arc::new(FailingDisk::new(dir.path(), faults.clone()))).unwrap();
        put(&opened, &blob(0, 700)).await; // creates a pack
        put_unsynced(&opened, &blob(1, 700)).await;
        let syncs = count_syncs(&faults, |step| {
            matches!(step, "write" | "cut").then_some(InjectedFailure::FailsHalfway)
        });
        opened.blobs.put(&mut blob(2, 700)).await.unwrap_err();
        assert!(["cut", "write"].iter().all(|step| faults.failed().contains(step)));
        assert_eq!(syncs.load(Ordering::Relaxed), 1);
        faults.clear();
        opened.blobs.sync().await.unwrap();
        put(&opened, &blob(2, 700)).await;
        assert_sound(&opened).await;
    });
}

/// A second sync may succeed without having written anything, so nothing that was not durable before is called durable.
#[test]
fn a_failed_sync_of_blobs_that_can_be_read_already_is_not_repeated() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let faults = FailurePlan::none();
        let opened = open(Arc::new(FailingDisk::new(dir.path(), faults.clone()))).unwrap();
        put(&opened, &blob(0, 700)).await; // creates a pack
        let id = put_unsynced(&opened, &blob(1, 700)).await;
        assert_eq!(read_all(&*opened.blobs, id).await.unwrap(), blob(1, 700));
        faults.fail_at(1, InjectedFailure::Fails);
        for _ in 0..2 {
            assert_eq!(opened.blobs.sync().await.unwrap_err().kind(), ErrorKind::Unavailable);
        }
        assert!(faults.failed().contains("sync"));
        assert_eq!(opened.blobs.touch(&[id]).await.unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!(opened.blobs.put(&mut blob(1, 700)).await.unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!(
            opened.upkeep.close().await.unwrap_err().kind(),
            ErrorKind::Unavailable,
            "it is not indexed"
        );
        drop(opened);
        let opened = open_folder(dir.path());
        assert_eq!(read_all(&*opened.blobs, id).await.unwrap(), blob(1, 700));
        assert_sound(&opened).await;
    });
}

/// What is put or touched must be durable, also when it was put before without a sync.
#[test]
fn a_sync_comes_before_an_answer_about_a_blob_that_was_put_without_one() {
    async fn put_again(opened: Opened) {
        put(&opened, &blob(1, 700)).await;
    }
    async fn put_another(opened: Opened) {
        put(&opened, &blob(2, 700)).await;
    }
    async fn touch(opened: Opened) {
        let id = BlobId(Sha256::digest(blob(1, 700)).into());
        assert_eq!(opened.blobs.touch(&[id]).await.unwrap(), [true]);
    }
    async fn list(opened: Opened) {
        assert_eq!(opened.upkeep.list(None, 10).await.unwrap().len(), 2);
    }
    type Step = fn(Opened) -> BoxFuture<'static, ()>;
    let steps: [Step; 4] = [
        |opened| Box::pin(put_again(opened)),
        |opened| Box::pin(put_another(opened)),
        |opened| Box::pin(touch(opened)),
        |opened| Box::pin(list(opened)),
    ];
    for step in steps {
        runtime().block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let faults = FailurePlan::none();
            let opened = open(Arc::new(FailingDisk::new(dir.path(), faults.clone()))).unwrap();
            put(&opened, &blob(0, 700)).await; // creates a pack
            let syncs = count_syncs(&faults, |_| None);
            put_unsynced(&opened, &blob(1, 700)).await;
            assert_eq!(syncs.load(Ordering::Relaxed), 0);
            step(opened.clone()).await;
            assert_eq!(syncs.load(Ordering::Relaxed), 1);
            opened.blobs.sync().await.unwrap();
            assert_eq!(syncs.load(Ordering::Relaxed), 1, "nothing to sync any more");
        });
    }
}

#[test]
fn a_hook_gets_the_error_of_its_blob() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let faults = FailurePlan::none();
        let opened = open(Arc::new(FailingDisk::new(dir.path(), faults.clone()))).unwrap();
        put(&opened, &blob(0, 700)).await; // creates a pack
        faults.fail_at(1, InjectedFailure::Full); // the write to it, after the put was queued
        let (ended, put) = oneshot::channel();
        let done = move |put: Result<Put, Error>| ended.send(put).unwrap();
        opened.blobs.put_then(&mut blob(1, 700), Box::new(done)).await.unwrap();
        assert_eq!(put.await.unwrap().unwrap_err().kind(), ErrorKind::Full);
        assert!(faults.failed().contains("write"));
    });
}

/// Only the put itself relies on a file that is being received.
#[test]
fn a_failed_sync_of_a_file_that_is_received_fails_that_put_alone() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let faults = FailurePlan::none();
        let opened = open(Arc::new(FailingDisk::new(dir.path(), faults.clone()))).unwrap();
        faults.fail_at(3, InjectedFailure::Fails); // it is created, written, synced
        let error = opened.blobs.put(&mut blob(1, 1_500)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(faults.failed().contains("sync"));
        let id = put(&opened, &blob(1, 1_500)).await;
        assert_eq!(read_all(&*opened.blobs, id).await.unwrap(), blob(1, 1_500));
        opened.upkeep.health().unwrap();
    });
}

/// For a while, new short blobs need no row; operations that need one are refused, and change nothing.
#[test]
fn while_the_index_cannot_be_written_new_blobs_are_taken_up_to_a_bound() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let faults = FailurePlan::none();
        let disk = FailingDisk::new(dir.path(), faults.clone());
        let mut config = config();
        config.files.pack_bytes = nonzero!(1 << 20);
        let opened = open_with(Arc::new(disk), config).unwrap();
        let (short, long) = (put(&opened, &blob(0, 700)).await, put(&opened, &blob(1, 1_500)).await);
        faults.plan(|_, step| (step == "index").then_some(InjectedFailure::Fails));

        assert_eq!(opened.blobs.touch(&[short, long]).await.unwrap(), [true, true]);
        assert!(opened.upkeep.remove(&[short, long], Timestamp::MAX).await.is_err());
        assert!(opened.blobs.put(&mut blob(0, 700)).await.is_err(), "its new time would be lost");
        assert!(opened.blobs.put(&mut blob(2, 1_500)).await.is_err());
        let mut puts = tokio::task::JoinSet::new();
        for n in 0..4_000 {
            let blobs = opened.blobs.clone();
            puts.spawn(async move { (n, blobs.put(&mut blob(10 + n, 50)).await.is_ok()) });
        }
        let taken: BTreeSet<u32> =
            puts.join_all().await.into_iter().filter(|(_, ok)| *ok).map(|(n, _)| n).collect();
        assert!((1_000..=3_072).contains(&taken.len()), "{} of 4,000 were taken", taken.len());
        assert!(opened.upkeep.health().is_err());

        faults.clear();
        assert_eq!(opened.upkeep.stats().await.unwrap().blobs, 2 + taken.len() as u64);
        put(&opened, &blob(2, 1_500)).await;
        opened.upkeep.health().unwrap();
        assert_eq!(opened.upkeep.remove(&[short, long], Timestamp::MAX).await.unwrap(), 2);
        opened.upkeep.close().await.unwrap();
        drop(opened);
        let opened = open_folder(dir.path());
        assert_sound(&opened).await;
        for n in taken {
            let found = opened.blobs.size(crate::hash::id_of(&blob(10 + n, 50))).await.unwrap();
            assert_eq!(found, Some(50), "blob {n}");
        }
    });
}

/// Bytes beyond the known end of a pack may be in the page cache only: they must be durable before they are indexed.
#[test]
fn what_was_perhaps_never_synced_is_written_again_before_it_gets_a_row() {
    let dir = tempfile::tempdir().unwrap();
    let opened = open_folder(dir.path());
    let id = runtime().block_on(put(&opened, &blob(1, 300)));
    let mut seen = BTreeSet::new();
    for step in 1.. {
        let copy = tempfile::tempdir().unwrap();
        copy_folder(dir.path(), copy.path(), &|_| true);
        let faults = FailurePlan::at_step(step, InjectedFailure::Fails);
        let is_open = open(Arc::new(FailingDisk::new(copy.path(), faults.clone()))).is_ok();
        let failed = faults.failed();
        if is_open && failed.is_empty() {
            break;
        }
        if is_open {
            // An open store writes waiting rows later, by itself.
            assert!(failed.iter().all(|step| *step == "index"), "passed over: {failed:?}");
            continue;
        }
        if failed.contains("open") || failed.contains("index") {
            continue; // the last of them is opened to be appended to, when the rows are there; and one write makes the row
        }
        seen.extend(failed);
        let index = Index::open(folder(copy.path()), restante_lmdb::Metrics::default()).unwrap();
        assert_eq!(index.find(id).unwrap(), None, "step {step}");
    }
    assert!(seen.contains("write") && seen.contains("sync") && seen.contains("sync folder"), "{seen:?}");
}

/// Moving blobs needs space before it reclaims any.
#[test]
fn on_a_full_disk_packs_without_blobs_still_go() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let faults = FailurePlan::none();
        let opened = open(Arc::new(FailingDisk::new(dir.path(), faults.clone()))).unwrap();
        let mut ids = Vec::new();
        for n in 0..11 {
            ids.push(put(&opened, &blob(n, 700)).await); // five in a pack
        }
        // After the rows of the removal: removing the pack, syncing the folder, and the row of the pack.
        faults.fail_at(5, InjectedFailure::Full);
        assert_eq!(opened.upkeep.remove(&ids[1..10], Timestamp::MAX).await.unwrap(), 9);
        assert!(faults.failed().contains("write"), "the blob that is left was not moved");
        assert!(dir.path().join(pack_name(1)).exists());
        assert!(!dir.path().join(pack_name(2)).exists());
        assert_eq!(read_all(&*opened.blobs, ids[0]).await.unwrap(), blob(0, 700));
    });
}

/// Only what was put while the disk was full is lost.
#[test]
fn a_store_goes_on_when_there_is_room_again() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let faults = FailurePlan::none();
        let opened = open(Arc::new(FailingDisk::new(dir.path(), faults.clone()))).unwrap();
        put(&opened, &blob(0, 700)).await;
        faults.fail_at(1, InjectedFailure::Full);
        let error = opened.blobs.put(&mut blob(1, 700)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full);
        assert_eq!(opened.upkeep.health().unwrap_err().kind(), ErrorKind::Full);
        put(&opened, &blob(1, 700)).await;
        opened.upkeep.health().unwrap();
        assert_sound(&opened).await;
    });
}

/// The zeros written ahead need space that a full disk does not have.
#[test]
fn a_disk_with_little_space_takes_blobs_without_zeros_behind_them() {
    runtime().block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let faults = FailurePlan::none();
        let disk = Arc::new(FailingDisk::new(dir.path(), faults.clone()));
        let mut config = config();
        config.files.pack_bytes = nonzero!(1 << 20);
        let opened = open_with(disk, config).unwrap();
        faults.limit(8 * BLOCK_BYTES);
        for n in 0..20 {
            put(&opened, &blob(n, 700)).await;
        }
        let len = dir.path().join(pack_name(1)).metadata().unwrap().len();
        assert_eq!(len, PACK_HEADER_BYTES + 20 * record_bytes(700));
        assert_sound(&opened).await;
    });
}
