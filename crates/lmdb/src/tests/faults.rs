//! The n-th step of the disk fails, for n = 1, 2, 3 and so on.

use std::{path::Path, sync::Arc, thread, time::Duration};

use restante_core::ErrorKind;
use restante_disk::testing::{FailingDisk, FailurePlan, InjectedFailure};
use tokio::task::JoinSet;

use super::{FIRST, SECOND, get, open, put, wait};
use crate::{Batch, Error, Options, Store, env::Environment, store::lock};

/// A store on a disk whose steps fail according to the returned plan.
fn open_failing(folder: &Path, log_bytes: u64) -> (Store, Arc<FailurePlan>) {
    let faults = FailurePlan::none();
    let lock = lock(folder).unwrap();
    let environment = Environment::open(folder, &[FIRST, SECOND], 1 << 20).unwrap();
    let disk = FailingDisk::new(folder, faults.clone());
    let options = Options { log_bytes, ..Options::default() };
    let store = Store::start(environment, &disk, options, lock).unwrap();
    faults.clear();
    (store, faults)
}

/// Opens a store whose commit log can't be written into LMDB at first, because the disk is full.
fn open_full(folder: &Path) -> Store {
    let faults = FailurePlan::none();
    faults.plan(|_, step| (step == "apply").then_some(InjectedFailure::Full));
    let lock = lock(folder).unwrap();
    let environment = Environment::open(folder, &[FIRST, SECOND], 1 << 20).unwrap();
    let options = Options { log_bytes: 1 << 20, ..Options::default() };
    let store = Store::start(environment, &FailingDisk::new(folder, faults.clone()), options, lock).unwrap();
    assert!(faults.failed().contains("apply"));
    store
}

#[test]
fn a_store_opens_on_a_full_disk_with_the_rows_that_only_the_commit_log_has() {
    let folder = tempfile::tempdir().unwrap();
    let is_there = |store: &Store, numbers: std::ops::Range<u8>| {
        numbers.clone().all(|number| get(store, FIRST, &[number]) == Some(vec![number; size(number)]))
    };
    let store = open(folder.path(), 1 << 20);
    assert!(write_some(&store).iter().all(|(_, written)| written.is_ok()));
    drop(store); // not closed: the rows stay in the commit log
    for _ in 0..2 {
        assert!(is_there(&open_full(folder.path()), 1..40), "it is left before anything is written");
    }
    let store = open_full(folder.path());
    // Refused until LMDB has the rows, which is retried automatically.
    while let Err(error) = put(&store, FIRST, &[40], &vec![40; size(40)]) {
        assert_eq!(error.kind(), ErrorKind::Full);
    }
    assert!(is_there(&store, 1..41));
    drop(store);
    assert!(is_there(&open(folder.path(), 1 << 20), 1..41));
}

/// A frame that is written at once implies that the group before it is durable: it must not exist if that one failed.
#[test]
fn a_large_frame_is_not_written_behind_a_group_that_failed() {
    let folder = tempfile::tempdir().unwrap();
    let (store, faults) = open_failing(folder.path(), 1 << 20);
    faults.plan(|_, step| {
        if step != "write" || thread::current().name() != Some("lmdb-sync") {
            return None;
        }
        thread::sleep(Duration::from_millis(100));
        Some(InjectedFailure::Fails)
    });
    put(&store, FIRST, b"before", b"0").unwrap();
    let written = wait(async {
        let mut writing = JoinSet::new();
        for number in 0..40_u8 {
            let store = store.clone();
            writing.spawn(async move {
                let put = move |batch: &mut Batch<'_>| {
                    if number == 0 {
                        thread::sleep(Duration::from_millis(50)); // the others queue up after it
                    }
                    batch.put(FIRST, &[number], &vec![number; if number == 39 { 20_000 } else { 100 }]);
                    Ok(())
                };
                store.write(put).await
            });
        }
        writing.join_all().await
    });
    assert!(written.iter().all(Result::is_err), "{written:?}");
    drop(store);
    assert_eq!(get(&open(folder.path(), 1 << 20), FIRST, b"before").as_deref(), Some(&b"0"[..]));
}

/// Writes rows, alternately small and large, and returns which of them were acknowledged.
fn write_some(store: &Store) -> Vec<(u8, Result<(), Error>)> {
    (1..40).map(|number| (number, put(store, FIRST, &[number], &vec![number; size(number)]))).collect()
}

fn size(number: u8) -> usize {
    if number.is_multiple_of(7) { 20_000 } else { 200 }
}

#[test]
fn what_was_acknowledged_survives_any_failed_write_or_sync() {
    let steps = {
        let folder = tempfile::tempdir().unwrap();
        let (store, faults) = open_failing(folder.path(), 2 << 10);
        assert!(write_some(&store).iter().all(|(_, written)| written.is_ok()));
        faults.steps()
    };
    assert!(steps > 60, "{steps} steps");
    for (fault, expected) in
        [(InjectedFailure::Fails, ErrorKind::Unavailable), (InjectedFailure::Full, ErrorKind::Full)]
    {
        for first in 1..=steps {
            let folder = tempfile::tempdir().unwrap();
            let (store, faults) = open_failing(folder.path(), 2 << 10);
            faults.fail_at(first, fault);
            let written = write_some(&store);
            let failed: Vec<_> = written.iter().filter_map(|(_, written)| written.as_ref().err()).collect();
            let has_refused = store.health().is_err();
            // Space ahead is not required.
            let may_be_none = fault == InjectedFailure::Full && failed.is_empty();
            assert!(
                failed.len() == 1 || may_be_none || has_refused,
                "step {first}: {failed:?} refused, and well"
            );
            assert!(
                failed.iter().all(|error| error.kind() == expected || error.kind() == ErrorKind::Unavailable)
            );
            check(&store, &written, first);
            drop(store);
            check(&open(folder.path(), 2 << 10), &written, first);
        }
    }
}

/// The same all at once: groups are being synced while others are staged.
fn write_at_once(store: &Store) -> Vec<(u8, Result<(), Error>)> {
    wait(async {
        let mut writing = JoinSet::new();
        for number in 1..=200_u8 {
            let store = store.clone();
            writing.spawn(async move {
                let put = move |batch: &mut Batch<'_>| {
                    batch.put(FIRST, &[number], &vec![number; size(number)]);
                    Ok(())
                };
                (number, store.write(put).await)
            });
        }
        writing.join_all().await
    })
}

#[test]
fn what_was_acknowledged_to_many_at_once_survives_any_failed_write_or_sync() {
    let mut failed = 0;
    // With the longer files groups get as long as allowed, with the shorter ones files are switched all the time.
    for (first, log_bytes) in (0..60).map(|n| (n / 2, [2 << 10, 1 << 20][n as usize % 2])) {
        let folder = tempfile::tempdir().unwrap();
        let (store, faults) = open_failing(folder.path(), log_bytes);
        faults.fail_at(first + 1, InjectedFailure::Fails);
        let written = write_at_once(&store);
        assert_eq!(written.len(), 200);
        failed += u64::from(written.iter().any(|(_, written)| written.is_err()));
        check(&store, &written, first);
        drop(store);
        check(&open(folder.path(), log_bytes), &written, first);
    }
    assert!(failed > 20, "{failed} of 60 disks failed in time");
}

fn check(store: &Store, written: &[(u8, Result<(), Error>)], first: u64) {
    for (number, acknowledged) in written {
        let there = get(store, FIRST, &[*number]);
        if acknowledged.is_ok() {
            assert_eq!(there, Some(vec![*number; size(*number)]), "step {first}, row {number}");
        }
    }
}

#[test]
fn after_a_failed_sync_nothing_more_is_taken_until_the_store_is_opened_again() {
    let folder = tempfile::tempdir().unwrap();
    // A write with the space ahead of it, then the sync.
    let (store, faults) = open_failing(folder.path(), 2 << 10);
    faults.fail_at(3, InjectedFailure::Fails);
    assert_eq!(put(&store, FIRST, b"first", b"1").unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(put(&store, FIRST, b"second", b"2").unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(get(&store, FIRST, b"first"), None, "it was not acknowledged");
    drop(store);
    let store = open(folder.path(), 2 << 10);
    put(&store, FIRST, b"third", b"3").unwrap();
}

/// A write that keeps nothing has read the rows of its group, and its answer reveals them.
#[test]
fn a_write_that_only_read_fails_with_the_group_that_it_has_read() {
    let folder = tempfile::tempdir().unwrap();
    let (store, faults) = open_failing(folder.path(), 2 << 10);
    faults.plan(|_, step| (step == "sync").then_some(InjectedFailure::Fails));
    let (is_queued, queued) = std::sync::mpsc::sync_channel(1);
    let first = store.write(move |batch: &mut Batch<'_>| {
        batch.put(FIRST, b"key", b"1");
        let _ = queued.recv(); // until the second is queued after it
        Ok::<_, Error>(())
    });
    let second = store.write(|batch: &mut Batch<'_>| {
        Ok::<_, Error>(batch.view().get(FIRST, b"key")?.map(|value| value.to_vec()))
    });
    let (first, second) = wait(async {
        let queue = async {
            tokio::task::yield_now().await;
            is_queued.send(()).unwrap();
        };
        let (first, second, ()) = tokio::join!(first, second, queue);
        (first, second)
    });
    assert_eq!(first.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(second.unwrap_err().kind(), ErrorKind::Unavailable);
}

#[test]
fn a_full_disk_refuses_what_has_no_room_and_takes_what_comes_after_there_is_some() {
    let folder = tempfile::tempdir().unwrap();
    let (store, faults) = open_failing(folder.path(), 2 << 10);
    faults.limit(0);
    // The real disk has space, so the store may assume for a moment that it can write again.
    let is_unhealthy = (0..1_000).any(|_| {
        assert_eq!(put(&store, FIRST, b"key", b"early").unwrap_err().kind(), ErrorKind::Full);
        assert_eq!(get(&store, FIRST, b"key"), None);
        store.health().is_err_and(|error| error.kind() == ErrorKind::Full)
    });
    assert!(is_unhealthy);
    faults.limit(1 << 20);
    put(&store, FIRST, b"key", b"late").unwrap();
    assert_eq!(get(&store, FIRST, b"key").as_deref(), Some(&b"late"[..]));
}
