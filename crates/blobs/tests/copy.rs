//! Copies between engines of this machine.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

mod common;

use common::{Engine, TestStore, bytes, list, put};
use restante_blobs::copy;
use restante_core::{ErrorKind, Identity};

#[tokio::test]
async fn a_copy_is_complete_and_a_second_one_has_nothing_to_do() {
    let (files, memory) = (TestStore::new(Engine::FilesSmall), TestStore::new(Engine::Memory));
    let (from, to) = (files.open().await, memory.open().await);
    from.upkeep.set_owner(Identity([1; 16])).await.unwrap();
    for n in 0..100 {
        put(&*from.blobs, &bytes(n, 77 * n as usize)).await;
    }
    let done = copy(&from, &to, &|_, _| ()).await.unwrap();
    assert_eq!((done.copied, done.known, done.report.blobs), (100, 0, 100));
    assert_eq!(done.copied_bytes, from.upkeep.stats().await.unwrap().bytes);
    assert_eq!(list(&*to.upkeep).await, list(&*from.upkeep).await);
    assert_eq!(to.upkeep.owner().await.unwrap(), Some(Identity([1; 16])));
    let again = copy(&from, &to, &|_, _| ()).await.unwrap();
    assert_eq!((again.copied, again.known), (0, 100));
}

#[tokio::test]
async fn blobs_of_different_records_are_not_mixed() {
    let (files, memory) = (TestStore::new(Engine::Files), TestStore::new(Engine::Memory));
    let (from, to) = (files.open().await, memory.open().await);
    put(&*from.blobs, &bytes(1, 10)).await;
    from.upkeep.set_owner(Identity([1; 16])).await.unwrap();
    to.upkeep.set_owner(Identity([2; 16])).await.unwrap();
    assert_eq!(copy(&from, &to, &|_, _| ()).await.unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(list(&*to.upkeep).await, []);
}

#[tokio::test]
async fn a_damaged_blob_is_reported_and_the_rest_is_copied() {
    let (files, memory) = (TestStore::new(Engine::Files), TestStore::new(Engine::Memory));
    let (from, to) = (files.open().await, memory.open().await);
    from.upkeep.set_owner(Identity([1; 16])).await.unwrap();
    let long = put(&*from.blobs, &bytes(1, 300_000)).await.id;
    put(&*from.blobs, &bytes(2, 10)).await;
    let mut folders = vec![files.folder_named("blobs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.file_name().unwrap().to_str() == Some(&long.to_string()) {
                let mut content = std::fs::read(&path).unwrap();
                content[150_000] ^= 1;
                std::fs::write(&path, content).unwrap();
            }
        }
    }
    let done = copy(&from, &to, &|_, _| ()).await.unwrap();
    assert_eq!((done.copied, done.report.wrong), (1, 1));
    assert_eq!(done.report.findings[0].place, long.to_string());
    assert_eq!(to.upkeep.owner().await.unwrap(), None, "it is not complete");
}
