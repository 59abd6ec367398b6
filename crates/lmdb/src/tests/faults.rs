//! The n-th step of the disk fails, for n = 1, 2, 3 and so on.

use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use restante_core::ErrorKind;
use tokio::task::JoinSet;

use super::{FIRST, SECOND, get, open, put, wait};
use crate::{
    Batch, Error, Options, Store,
    disk::{Disk, DiskFile, Folder},
    env::Environment,
    lock,
};

/// A disk whose writes and syncs fail from the n-th step on, for so many steps.
struct Failing {
    inner: Folder,
    plan: Arc<Plan>,
}

/// A disk that fails, some time after it was asked, what another thread than the writer asks of it.
struct FailingElsewhere(Folder);

struct FailingElsewhereFile(Arc<dyn DiskFile>);

impl Disk for FailingElsewhere {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(FailingElsewhereFile(self.0.open(name)?)))
    }

    fn sync_folder(&self) -> io::Result<()> {
        self.0.sync_folder()
    }
}

impl DiskFile for FailingElsewhereFile {
    fn read(&self) -> io::Result<Vec<u8>> {
        self.0.read()
    }

    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if thread::current().name() == Some("lmdb-sync") {
            thread::sleep(Duration::from_millis(100));
            return Err(io::ErrorKind::Other.into());
        }
        self.0.write_at(bytes, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
}

struct Plan {
    step: AtomicU64,
    first: u64,
    last: u64,
    kind: io::ErrorKind,
}

impl Plan {
    fn step(&self) -> io::Result<()> {
        let step = self.step.fetch_add(1, Ordering::SeqCst);
        if (self.first..self.last).contains(&step) { Err(self.kind.into()) } else { Ok(()) }
    }
}

struct FailingFile {
    inner: Arc<dyn DiskFile>,
    plan: Arc<Plan>,
}

impl Disk for Failing {
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(FailingFile { inner: self.inner.open(name)?, plan: self.plan.clone() }))
    }

    fn sync_folder(&self) -> io::Result<()> {
        self.inner.sync_folder()
    }
}

impl DiskFile for FailingFile {
    fn read(&self) -> io::Result<Vec<u8>> {
        self.inner.read()
    }

    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.plan.step()?;
        self.inner.write_at(bytes, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.plan.step()?;
        self.inner.sync()
    }
}

fn open_failing(folder: &Path, plan: Plan) -> (Store, Arc<Plan>) {
    open_failing_with(folder, plan, 2 << 10)
}

fn open_failing_with(folder: &Path, plan: Plan, log_bytes: u64) -> (Store, Arc<Plan>) {
    let plan = Arc::new(plan);
    let lock = lock::hold(folder).unwrap();
    let environment = Environment::open(folder, &[FIRST, SECOND], 1 << 20).unwrap();
    let disk = Failing { inner: Folder::new(folder), plan: plan.clone() };
    let options = Options { log_bytes, ..Options::default() };
    (Store::start(environment, &disk, options, lock).unwrap(), plan)
}

/// A frame that is written at once says that the group before it is durable: it must not be there when that one failed.
#[test]
fn a_large_frame_is_not_written_behind_a_group_that_failed() {
    let folder = tempfile::tempdir().unwrap();
    let lock = lock::hold(folder.path()).unwrap();
    let environment = Environment::open(folder.path(), &[FIRST, SECOND], 1 << 20).unwrap();
    let disk = FailingElsewhere(Folder::new(folder.path()));
    let store =
        Store::start(environment, &disk, Options { log_bytes: 1 << 20, ..Options::default() }, lock).unwrap();
    put(&store, FIRST, b"before", b"0").unwrap();
    let written = wait(async {
        let mut writing = JoinSet::new();
        for number in 0..40_u8 {
            let store = store.clone();
            writing.spawn(async move {
                let put = move |batch: &mut Batch<'_>| {
                    if number == 0 {
                        thread::sleep(Duration::from_millis(50)); // the others come to wait behind it
                    }
                    batch.put(FIRST, &[number], &vec![number; if number == 39 { 20_000 } else { 100 }]);
                    Ok::<_, Error>(())
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

/// Writes rows, small and large in turn, and answers which of them were acknowledged.
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
        let never =
            Plan { step: AtomicU64::new(0), first: u64::MAX, last: u64::MAX, kind: io::ErrorKind::Other };
        let (store, plan) = open_failing(folder.path(), never);
        assert!(write_some(&store).iter().all(|(_, written)| written.is_ok()));
        plan.step.load(Ordering::SeqCst)
    };
    assert!(steps > 60, "{steps} steps");
    for (kind, expected) in
        [(io::ErrorKind::Other, ErrorKind::Unavailable), (io::ErrorKind::StorageFull, ErrorKind::Full)]
    {
        for first in 0..steps {
            let folder = tempfile::tempdir().unwrap();
            let once = Plan { step: AtomicU64::new(0), first, last: first + 1, kind };
            let (store, _) = open_failing(folder.path(), once);
            let written = write_some(&store);
            let failed: Vec<_> = written.iter().filter_map(|(_, written)| written.as_ref().err()).collect();
            let has_refused = store.health().is_err();
            assert!(failed.len() == 1 || has_refused, "step {first}: {failed:?} refused, and well");
            assert!(
                failed.iter().all(|error| error.kind() == expected || error.kind() == ErrorKind::Unavailable)
            );
            check(&store, &written, first);
            drop(store);
            check(&open(folder.path(), 2 << 10), &written, first);
        }
    }
}

/// The same all at once: groups are on their way while others are staged.
fn write_at_once(store: &Store) -> Vec<(u8, Result<(), Error>)> {
    wait(async {
        let mut writing = JoinSet::new();
        for number in 1..=200_u8 {
            let store = store.clone();
            writing.spawn(async move {
                let put = move |batch: &mut Batch<'_>| {
                    batch.put(FIRST, &[number], &vec![number; size(number)]);
                    Ok::<_, Error>(())
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
    // With the longer files groups get as long as they may, with the shorter ones files are changed all the time.
    for (first, log_bytes) in (0..60).map(|n| (n / 2, [2 << 10, 1 << 20][n as usize % 2])) {
        let folder = tempfile::tempdir().unwrap();
        let once = Plan { step: AtomicU64::new(0), first, last: first + 1, kind: io::ErrorKind::Other };
        let (store, _) = open_failing_with(folder.path(), once, log_bytes);
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
    // A write with the room ahead of it, then the sync.
    let plan = Plan { step: AtomicU64::new(0), first: 2, last: 3, kind: io::ErrorKind::Other };
    let (store, _) = open_failing(folder.path(), plan);
    assert_eq!(put(&store, FIRST, b"first", b"1").unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(put(&store, FIRST, b"second", b"2").unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(get(&store, FIRST, b"first"), None, "nobody was told that it is there");
    drop(store);
    let store = open(folder.path(), 2 << 10);
    put(&store, FIRST, b"third", b"3").unwrap();
}

#[test]
fn a_full_disk_refuses_what_has_no_room_and_takes_what_comes_after_there_is_some() {
    let folder = tempfile::tempdir().unwrap();
    let plan = Plan { step: AtomicU64::new(0), first: 0, last: 3, kind: io::ErrorKind::StorageFull };
    let (store, _) = open_failing(folder.path(), plan);
    for _ in 0..3 {
        assert_eq!(put(&store, FIRST, b"key", b"early").unwrap_err().kind(), ErrorKind::Full);
        assert_eq!(get(&store, FIRST, b"key"), None);
    }
    put(&store, FIRST, b"key", b"late").unwrap();
    assert_eq!(get(&store, FIRST, b"key").as_deref(), Some(&b"late"[..]));
}
