//! The n-th step on the disk fails, for n = 1, 2, 3, ... until none does; and a disk that is full for a while.

use std::{
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use bytes::Bytes;
use parking_lot::Mutex;
use restante_core::{ErrorKind, Timestamp};

use super::{SECOND, config, everything, message, open, runtime};
use crate::{
    Message,
    backup::Extent,
    log::disk::{Disk, DiskFile, Folder},
};

/// What a disk does when its time has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Nothing is done.
    Fails,
    /// Half of a write is done.
    FailsHalfway,
    /// There is no room.
    Full,
}

impl Fault {
    fn error(self) -> io::Error {
        match self {
            Self::Full => io::ErrorKind::StorageFull.into(),
            Self::Fails | Self::FailsHalfway => io::Error::other("the disk failed, as the test wanted"),
        }
    }
}

/// A disk of which one step fails.
pub(in crate::log) struct Failing {
    folder: Folder,
    state: Arc<State>,
}

struct State {
    steps_until_fault: AtomicI64,
    fault: Fault,
    /// The step that failed.
    failed: Mutex<Option<&'static str>>,
}

impl State {
    fn step(&self, what: &'static str) -> io::Result<()> {
        if self.steps_until_fault.fetch_sub(1, Ordering::SeqCst) != 1 {
            return Ok(());
        }
        *self.failed.lock() = Some(what);
        Err(self.fault.error())
    }
}

impl Failing {
    /// A disk whose step of that number finds no room.
    pub(in crate::log) fn at_step(folder: &std::path::Path, step: i64) -> Self {
        let state =
            State { steps_until_fault: AtomicI64::new(step), fault: Fault::Full, failed: Mutex::default() };
        Self { folder: Folder::new(folder), state: Arc::new(state) }
    }
}

struct FailingFile {
    file: Box<dyn DiskFile>,
    state: Arc<State>,
}

impl Disk for Failing {
    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        self.folder.list()
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        self.state.step("create")?;
        Ok(Box::new(FailingFile { file: self.folder.create(name)?, state: self.state.clone() }))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(FailingFile { file: self.folder.open(name)?, state: self.state.clone() }))
    }

    fn read(&self, name: &str) -> io::Result<Bytes> {
        self.folder.read(name)
    }

    fn map(&self, name: &str, len: usize) -> io::Result<Bytes> {
        self.state.step("map")?;
        self.folder.map(name, len)
    }

    fn copy_out(&self, name: &str, extent: Extent, to: &Path) -> io::Result<()> {
        self.state.step("copy out")?;
        self.folder.copy_out(name, extent, to)
    }

    fn own(&self, name: &str) -> io::Result<()> {
        self.state.step("own")?;
        self.folder.own(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.state.step("rename")?;
        self.folder.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.state.step("remove")?;
        self.folder.remove(name)
    }

    fn sync_folder(&self) -> io::Result<()> {
        self.state.step("sync folder")?;
        self.folder.sync_folder()
    }
}

impl DiskFile for FailingFile {
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let step = self.state.step("write");
        if step.is_err() && self.state.fault == Fault::FailsHalfway {
            self.file.write_at(&bytes[..bytes.len() / 2], offset)?;
        }
        step?;
        self.file.write_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.state.step("sync")?;
        self.file.sync()
    }

    fn reserve(&self, offset: u64, len: u64) -> io::Result<()> {
        self.state.step("reserve")?;
        self.file.reserve(offset, len)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.state.step("cut")?;
        self.file.set_len(len)
    }
}

/// Appends sixty batches, is copied once and prunes once; every error is taken as an operator's clients would take it. Returns what was
/// acknowledged and whether an append was refused, or nothing when the archive could not be opened.
async fn run_workload(disk: Arc<dyn Disk>) -> Option<(Vec<Message>, bool)> {
    let opened = open(disk).ok()?;
    let (mut acked, mut was_refused) = (Vec::new(), false);
    for n in 0..60 {
        let batch = vec![message(2 * n, 40), message(2 * n + 1, 3_000)];
        match opened.archive.append(batch.clone()).await {
            Ok(_) => acked.extend(batch),
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Full), "{error}");
                was_refused = true;
            }
        }
        if n == 30 {
            let copy = tempfile::tempdir().unwrap();
            if opened.upkeep.backup(copy.path()).await.is_ok() {
                let copied = everything(&open(Arc::new(Folder::new(copy.path()))).unwrap()).await;
                assert!(
                    acked.iter().all(|message| copied.contains(message)),
                    "a copy that was made is whole"
                );
            }
        }
        if n == 40 {
            // An error is no loss: what was removed until then stays removed.
            let _ = opened.upkeep.prune(&"time:99".parse().unwrap(), Timestamp(100 * SECOND)).await;
            acked.retain(|message| message.timestamp >= Timestamp(SECOND));
        }
    }
    opened.upkeep.close().await.unwrap();
    Some((acked, was_refused))
}

fn every_step_may_fail_once(fault: Fault) {
    let runtime = runtime();
    let mut seen = std::collections::BTreeSet::new();
    for step in 1.. {
        let folder = tempfile::tempdir().unwrap();
        let state = State { steps_until_fault: AtomicI64::new(step), fault, failed: Mutex::default() };
        let state = Arc::new(state);
        let disk = Failing { folder: Folder::new(folder.path()), state: state.clone() };
        let outcome = runtime.block_on(run_workload(Arc::new(disk)));
        let failed = state.failed.lock().take();
        let (acked, was_refused) = outcome.unwrap_or_default();
        runtime.block_on(async {
            let opened = open(Arc::new(Folder::new(folder.path()))).unwrap();
            let served = everything(&opened).await;
            for message in &acked {
                assert!(
                    served.contains(message),
                    "step {step} ({failed:?}): {message:?} was acknowledged and is lost"
                );
            }
            for message in &served {
                let n = u32::from_be_bytes(message.message_hash.0[4..8].try_into().unwrap());
                let original = super::message(n, message.body.len());
                assert_eq!(*message, original, "step {step} ({failed:?}): what is served is as it was sent");
            }
            let again = opened.archive.append(vec![message(999, 5)]).await;
            assert!(
                again.is_ok(),
                "step {step} ({failed:?}): the archive takes messages after it was opened again"
            );
            opened.upkeep.close().await.unwrap();
        });
        let Some(failed) = failed else {
            assert!(!was_refused);
            break;
        };
        seen.insert(failed);
    }
    let steps =
        ["create", "reserve", "write", "sync", "cut", "rename", "remove", "sync folder", "map", "copy out"];
    for step in steps {
        assert!(seen.contains(step), "the workload has no '{step}': {seen:?}");
    }
}

#[test]
fn any_step_may_fail() {
    every_step_may_fail_once(Fault::Fails);
}

#[test]
fn any_write_may_fail_halfway() {
    every_step_may_fail_once(Fault::FailsHalfway);
}

#[test]
fn any_step_may_find_the_disk_full() {
    every_step_may_fail_once(Fault::Full);
}

/// After a failed sync nobody knows what the disk has kept: a second sync may succeed without having written anything.
#[test]
fn after_a_failed_sync_nothing_more_is_taken() {
    runtime().block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let state =
            State { steps_until_fault: AtomicI64::new(0), fault: Fault::Fails, failed: Mutex::default() };
        let state = Arc::new(state);
        let disk = Failing { folder: Folder::new(folder.path()), state: state.clone() };
        let opened = open(Arc::new(disk)).unwrap();
        opened.archive.append(vec![message(0, 10)]).await.unwrap();
        state.steps_until_fault.store(2, Ordering::SeqCst); // the next write succeeds, there is room for it; its sync fails
        for n in 1..4 {
            let error = opened.archive.append(vec![message(n, 10)]).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(error.to_string().contains("until it is opened again"), "{error}");
        }
        assert_eq!(*state.failed.lock(), Some("sync"));
        assert_eq!(everything(&opened).await, [message(0, 10)], "it goes on answering");
        opened.upkeep.close().await.unwrap();
        let opened = open_again(folder.path());
        opened.archive.append(vec![message(1, 10)]).await.unwrap();
        assert!(everything(&opened).await.contains(&message(1, 10)));
    });
}

fn open_again(folder: &std::path::Path) -> crate::Opened {
    open(Arc::new(Folder::new(folder))).unwrap()
}

/// A disk with room for so many bytes; what is removed makes room again.
struct Small {
    folder: Folder,
    room: Arc<AtomicI64>,
}

struct SmallFile {
    file: Box<dyn DiskFile>,
    room: Arc<AtomicI64>,
}

impl Disk for Small {
    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        self.folder.list()
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(SmallFile { file: self.folder.create(name)?, room: self.room.clone() }))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn DiskFile>> {
        self.folder.open(name)
    }

    fn read(&self, name: &str) -> io::Result<Bytes> {
        self.folder.read(name)
    }

    fn map(&self, name: &str, len: usize) -> io::Result<Bytes> {
        self.folder.map(name, len)
    }

    fn copy_out(&self, name: &str, extent: Extent, to: &Path) -> io::Result<()> {
        self.folder.copy_out(name, extent, to)
    }

    fn own(&self, name: &str) -> io::Result<()> {
        self.folder.own(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.folder.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let len = self.list()?.into_iter().find(|(other, _)| other == name).map_or(0, |(_, len)| len);
        self.folder.remove(name)?;
        self.room.fetch_add(len as i64, Ordering::SeqCst);
        Ok(())
    }

    fn sync_folder(&self) -> io::Result<()> {
        self.folder.sync_folder()
    }
}

impl DiskFile for SmallFile {
    fn reserve(&self, _offset: u64, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::StorageFull.into())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if self.room.load(Ordering::SeqCst) < bytes.len() as i64 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.room.fetch_sub(bytes.len() as i64, Ordering::SeqCst);
        self.file.write_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
}

#[test]
fn a_full_disk_refuses_until_retention_makes_room() {
    runtime().block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let disk = Small { folder: Folder::new(folder.path()), room: Arc::new(AtomicI64::new(500_000)) };
        let opened = open(Arc::new(disk)).unwrap();
        let mut acked = Vec::new();
        let refused = loop {
            let next = message(acked.len() as u32, 3_000);
            match opened.archive.append(vec![next.clone()]).await {
                Ok(_) => acked.push(next),
                Err(error) => break (next, error),
            }
        };
        assert_eq!(refused.1.kind(), ErrorKind::Full);
        assert!(acked.len() > 100);
        assert_eq!(everything(&opened).await, acked, "what was acknowledged is served");

        opened.upkeep.prune(&"capacity:40".parse().unwrap(), config().clock.now()).await.unwrap();
        opened.archive.append(vec![refused.0.clone()]).await.unwrap();
        let served = everything(&opened).await;
        assert!(served.len() > 40 && served.contains(&refused.0));
        opened.upkeep.close().await.unwrap();
    });
}
