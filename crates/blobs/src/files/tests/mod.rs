//! Tests from inside: failing disks, damage, crashes, and slow uploads.

mod any_damage;
mod crash;
mod damage;
mod faults;
mod slow;

use std::{path::Path, sync::Arc};

use bytes::Bytes;
use restante_core::{BlobId, ManualClock, Timestamp, nonzero};
use restante_disk::{Disk, Folder};

use super::{FilesEngine, backup, open_on};
use crate::{Blobs, Config, Error, FilesConfig, Opened, hash::id_of};

/// Packs of a few records, so that a small workload crosses many.
fn config() -> Config {
    let mut config = Config::new("memory:".parse().unwrap());
    config.clock = Arc::new(ManualClock::new(Timestamp::from_seconds(1_000)));
    config.files = FilesConfig { packed_bytes_max: 1_000, pack_bytes: nonzero!(4_000) };
    config
}

fn folder(path: &Path) -> Arc<Folder> {
    Arc::new(Folder::new(path))
}

fn open(disk: Arc<dyn Disk>) -> Result<Opened, Error> {
    open_with(disk, config())
}

/// Opens a store on a thread that may block, as [`crate::open`] does.
fn open_with(disk: Arc<dyn Disk>, config: Config) -> Result<Opened, Error> {
    std::thread::spawn(move || open_on(disk, &config)).join().unwrap()
}

/// Opens the store of a folder on a working disk.
fn open_folder(path: &Path) -> Opened {
    open(folder(path)).unwrap()
}

/// Blob number `n`, filled with its number.
fn blob(n: u32, len: usize) -> Bytes {
    n.to_le_bytes().iter().copied().cycle().take(len).collect::<Vec<u8>>().into()
}

async fn put(opened: &Opened, bytes: &Bytes) -> BlobId {
    let answer = opened.blobs.put(&mut bytes.clone()).await.unwrap();
    assert_eq!(answer.id, id_of(bytes));
    answer.id
}

async fn read_all(blobs: &dyn Blobs, id: BlobId) -> Result<Vec<u8>, Error> {
    read(blobs, id, 0..u64::MAX).await
}

async fn read(blobs: &dyn Blobs, id: BlobId, range: std::ops::Range<u64>) -> Result<Vec<u8>, Error> {
    let mut source = blobs.read(id, range).await?;
    let mut all = Vec::new();
    while let Some(chunk) = source.next().await? {
        all.extend_from_slice(&chunk);
    }
    Ok(all)
}

/// Asserts that every blob exists and is undamaged.
async fn assert_sound(opened: &Opened) {
    let report = opened.upkeep.check(&|_, _| ()).await.unwrap();
    assert_eq!(report.findings, []);
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Copies the folder as it is, as if the process had ended; `keeps` selects the files.
fn copy_folder(from: &Path, to: &Path, keeps: &dyn Fn(&str) -> bool) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if !keeps(&name) {
            continue;
        }
        if entry.file_type().unwrap().is_dir() {
            copy_folder(&entry.path(), &to.join(name), keeps);
        } else {
            std::fs::copy(entry.path(), to.join(name)).unwrap();
        }
    }
}

/// Whether reads without waiting for the disk work here: some file systems don't support them.
#[cfg(target_os = "linux")]
fn reads_without_waiting(folder: &Path) -> bool {
    use rustix::io::{ReadWriteFlags, preadv2};
    let path = folder.join("probe");
    std::fs::write(&path, b"probe").unwrap();
    let mut bytes = [0; 5];
    let mut buffers = [std::io::IoSliceMut::new(&mut bytes)];
    preadv2(std::fs::File::open(path).unwrap(), &mut buffers, 0, ReadWriteFlags::NOWAIT).is_ok()
}

#[tokio::test]
#[cfg(target_os = "linux")]
async fn what_the_system_has_in_memory_is_read_without_another_thread_unless_it_is_damaged() {
    use futures_util::FutureExt;
    let folder = tempfile::tempdir().unwrap();
    let opened = open_folder(folder.path());
    let ids = [put(&opened, &blob(1, 500)).await, put(&opened, &blob(2, 500)).await];
    assert_eq!(read_all(opened.blobs.as_ref(), ids[0]).await.unwrap(), blob(1, 500));
    let read_now = |n: usize| read_all(opened.blobs.as_ref(), ids[n]).now_or_never();
    if reads_without_waiting(folder.path()) {
        assert_eq!(read_now(0).expect("it is read at once").unwrap(), blob(1, 500));
        let part = read(opened.blobs.as_ref(), ids[1], 100..200).now_or_never();
        assert_eq!(part.expect("it is read at once").unwrap(), blob(2, 500)[100..200]);
    }
    let pack = folder.path().join("packs").read_dir().unwrap().next().unwrap().unwrap().path();
    let mut bytes = std::fs::read(&pack).unwrap();
    let at = bytes.windows(500).position(|window| window == blob(2, 500)).unwrap();
    bytes[at + 7] ^= 1;
    std::fs::write(&pack, bytes).unwrap();
    let damaged = read_all(opened.blobs.as_ref(), ids[1]).await.unwrap_err();
    assert_eq!(damaged.kind(), restante_core::ErrorKind::Corrupt);
}

/// Once, the copy counted them in the length of their pack, which is not scanned when the copy is opened.
#[tokio::test]
async fn a_copy_has_blobs_whose_rows_are_not_written_yet() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let disk = folder(from.path());
    let engine = std::thread::spawn(move || FilesEngine::open(disk, &config()).unwrap()).join().unwrap();
    let engine = Arc::new(engine);
    let opened = Opened { blobs: engine.clone(), upkeep: engine.clone() };
    let first = put(&opened, &blob(1, 500)).await;
    engine.queue.flush_index().await.unwrap();
    let second = put(&opened, &blob(2, 500)).await;
    let shared = engine.shared.clone();
    let folder = to.path().to_owned();
    let index = tokio::task::spawn_blocking(move || backup::copy(&shared, &folder)).await.unwrap().unwrap();
    index.close().await.unwrap();
    drop(index);
    let copy = open_folder(to.path());
    for (id, bytes) in [(first, blob(1, 500)), (second, blob(2, 500))] {
        assert_eq!(read_all(copy.blobs.as_ref(), id).await.unwrap(), bytes);
    }
    assert_eq!(copy.upkeep.stats().await.unwrap().blobs, 2);
    assert_sound(&copy).await;
}
