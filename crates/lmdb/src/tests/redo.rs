//! Rows that repeat writes to something else.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use super::{FIRST, get, put, wait};
use crate::{
    Direction, Error, Options, Store, SyncOthers, Table,
    env::Environment,
    store::{Batch, lock},
};
use restante_core::ErrorKind;
use restante_disk::testing::{FailingDisk, FailurePlan, InjectedFailure};

const REDO: Table = Table::redo(2, "redo");

/// Counts how often it is called to sync, and fails while `fails` is set.
#[derive(Clone, Default)]
struct Other {
    syncs: Arc<AtomicUsize>,
    fails: Arc<AtomicBool>,
}

impl Other {
    fn options(&self) -> Options {
        let other = self.clone();
        let sync = move || {
            other.syncs.fetch_add(1, Ordering::Relaxed);
            match other.fails.load(Ordering::Relaxed) {
                true => Err(Error::unavailable("it can't be synced")),
                false => Ok(()),
            }
        };
        Options { log_bytes: 1 << 20, sync_others: Some(SyncOthers(Arc::new(sync))), ..Options::default() }
    }

    fn open(&self, folder: &Path) -> Store {
        Store::open(folder, &[FIRST, REDO], self.options()).unwrap()
    }

    fn syncs(&self) -> usize {
        self.syncs.load(Ordering::Relaxed)
    }
}

/// Puts a row, and one that repeats what it relies on.
fn put_both(store: &Store, key: u8) {
    let work = move |batch: &mut Batch<'_>| {
        batch.put(FIRST, &[key], b"row");
        batch.put(REDO, &[key], b"redo");
        Ok(())
    };
    store.write_blocking(work).unwrap();
}

fn redo_rows(store: &Store) -> Vec<u8> {
    let all = (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded);
    let read = store.read(|view| {
        let mut keys = Vec::new();
        let mut rows = view.range(REDO, all.0, all.1, Direction::Ascending)?;
        while let Some((key, _)) = rows.next()? {
            keys.push(key[0]);
        }
        Ok(keys)
    });
    read.unwrap()
}

#[test]
fn redo_rows_go_when_what_they_repeat_is_durable() {
    let folder = tempfile::tempdir().unwrap();
    let other = Other::default();
    let store = other.open(folder.path());
    put_both(&store, 1);
    assert_eq!((redo_rows(&store), other.syncs()), (vec![1], 0), "they are in the commit log");
    wait(store.settle()).unwrap();
    assert_eq!((redo_rows(&store), other.syncs()), (vec![], 1));
    assert_eq!(get(&store, FIRST, &[1]).as_deref(), Some(&b"row"[..]));
    put(&store, FIRST, &[2], b"row").unwrap();
    wait(store.settle()).unwrap();
    assert_eq!(other.syncs(), 1, "nothing to repeat, nothing to sync");
    put_both(&store, 3);
    wait(store.close()).unwrap();
    drop(store);
    let store = other.open(folder.path());
    assert_eq!((redo_rows(&store), other.syncs()), (vec![], 2));
}

#[test]
fn redo_rows_stay_when_what_they_repeat_can_not_be_made_durable() {
    let folder = tempfile::tempdir().unwrap();
    let other = Other::default();
    let store = other.open(folder.path());
    put_both(&store, 1);
    other.fails.store(true, Ordering::Relaxed);
    wait(store.close()).unwrap();
    assert_eq!(other.syncs(), 1);
    drop(store);
    let store = other.open(folder.path());
    assert_eq!(redo_rows(&store), [1]);
    store
        .write_blocking(|batch| {
            batch.delete(REDO, &[1]);
            Ok(())
        })
        .unwrap();
    other.fails.store(false, Ordering::Relaxed);
    wait(store.settle()).unwrap();
    assert_eq!(redo_rows(&store), [0_u8; 0], "a deleted one is deleted in LMDB too");
}

/// What the previous process has written may be gone, so a sync proves nothing.
#[test]
fn redo_rows_of_the_process_before_are_there_on_opening_and_stay() {
    let folder = tempfile::tempdir().unwrap();
    let other = Other::default();
    let store = other.open(folder.path());
    put_both(&store, 1);
    drop(store); // not closed: the rows stay in the commit log
    let store = other.open(folder.path());
    assert_eq!(redo_rows(&store), [1]);
    put_both(&store, 2);
    wait(store.settle()).unwrap();
    assert_eq!(redo_rows(&store), [1], "only those of this process are dropped");
}

#[test]
fn redo_rows_of_the_process_before_stay_when_the_disk_was_full_on_opening() {
    let folder = tempfile::tempdir().unwrap();
    let other = Other::default();
    put_both(&other.open(folder.path()), 1);
    let faults = FailurePlan::none();
    faults.plan(|_, step| (step == "apply").then_some(InjectedFailure::Full));
    let held = lock(folder.path()).unwrap();
    let environment = Environment::open(folder.path(), &[FIRST, REDO], 1 << 20).unwrap();
    let disk = FailingDisk::new(folder.path(), faults.clone());
    let store = Store::start(environment, &disk, other.options(), held).unwrap();
    assert!(faults.failed().contains("apply"));
    assert_eq!(redo_rows(&store), [1]);
    while wait(store.settle()).is_err() {}
    assert_eq!((redo_rows(&store), other.syncs()), (vec![1], 0));
}

#[test]
fn without_anything_to_sync_redo_rows_are_rows_like_others() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Store::open(folder.path(), &[FIRST, REDO], Options { log_bytes: 0, ..Options::default() });
    let store = open().unwrap();
    put_both(&store, 1);
    drop(store);
    assert_eq!(redo_rows(&open().unwrap()), [1]);
}

/// The row in LMDB stayed forever: of a row that was deleted and put again only the put was seen.
#[test]
fn a_redo_row_that_is_put_again_leaves_none_in_lmdb() {
    let folder = tempfile::tempdir().unwrap();
    let other = Other::default();
    let store = other.open(folder.path());
    put_both(&store, 1);
    drop(store);
    let store = other.open(folder.path());
    wait(store.settle()).unwrap();
    assert_eq!(redo_rows(&store), [1]);
    let deleted = |batch: &mut Batch<'_>| {
        batch.delete(REDO, &[1]);
        Ok(())
    };
    store.write_blocking(deleted).unwrap();
    put_both(&store, 1);
    wait(store.settle()).unwrap();
    assert_eq!((redo_rows(&store), other.syncs()), (vec![], 1));
}

/// Commits waited for it forever.
#[test]
fn a_panic_of_what_is_synced_refuses_writes() {
    let folder = tempfile::tempdir().unwrap();
    let sync = SyncOthers(Arc::new(|| panic!("on purpose")));
    let options = Options { log_bytes: 1 << 20, sync_others: Some(sync), ..Options::default() };
    let store = Store::open(folder.path(), &[FIRST, REDO], options).unwrap();
    put_both(&store, 1);
    let kind = |done: Result<(), Error>| done.unwrap_err().kind();
    assert_eq!(kind(wait(store.settle())), ErrorKind::Unavailable);
    assert_eq!(kind(put(&store, FIRST, &[2], b"row")), ErrorKind::Unavailable);
    assert_eq!(get(&store, FIRST, &[1]).as_deref(), Some(&b"row"[..]));
}
