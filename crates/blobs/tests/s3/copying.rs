//! Copies between a storage and files.

use std::sync::atomic::{AtomicU64, Ordering};

use restante_blobs::{BlobId, Config, EngineUrl, Opened, copy, open};
use restante_core::{ErrorKind, Identity};

use crate::{
    common::{Engine, TestStore, bytes, list, put, read_all, s3::storage},
    proxy::{Mode, Proxy},
};

const LENGTHS: [usize; 6] = [0, 10, 5_000, 300_000, 2_000_000, 9_000_000];

/// Ids and lengths.
async fn contents(opened: &Opened) -> Vec<(BlobId, u64)> {
    list(&*opened.upkeep).await.iter().map(|blob| (blob.id, blob.bytes)).collect()
}

pub(crate) async fn blobs_move_to_a_storage_and_back_also_when_interrupted(store: TestStore) {
    let files = TestStore::new(Engine::Files);
    let from = files.open().await;
    let owner = Identity([7; 16]);
    from.upkeep.set_owner(owner).await.unwrap();
    let mut ids = Vec::new();
    for n in 0..30 {
        ids.push(put(&*from.blobs, &bytes(n, LENGTHS[n as usize % 6].min(3_000_000 + n as usize))).await.id);
    }
    let all = contents(&from).await;

    let proxy = Proxy::before(&storage(store.engine.name()).unwrap().url).await;
    let mut config = store.config.clone();
    config.s3.endpoint = proxy.url.clone();
    config.s3.retry_ms = 0;
    let there = open(config).await.unwrap();
    let calls = AtomicU64::new(0);
    let interrupt = |_, _| {
        if calls.fetch_add(1, Ordering::SeqCst) == 10 {
            proxy.set(Mode::Refuse);
        }
    };
    let error = copy(&from, &there, &interrupt).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    proxy.set(Mode::Pass);
    let half = contents(&there).await.len();
    assert!((1..all.len()).contains(&half), "{half} of {}", all.len());
    assert_eq!(there.upkeep.owner().await.unwrap(), None);

    let done = copy(&from, &there, &|done, total| assert!(done <= total)).await.unwrap();
    assert_eq!((done.copied + done.known, done.report.wrong), (all.len() as u64, 0));
    assert!(done.known >= half as u64, "{done:?}");
    assert_eq!(contents(&there).await, all);
    assert_eq!(there.upkeep.owner().await.unwrap(), Some(owner));

    let back = Config { url: EngineUrl::Files(files.folder_named("back")), ..files.config.clone() };
    let back = open(back).await.unwrap();
    let done = copy(&there, &back, &|_, _| ()).await.unwrap();
    assert_eq!((done.copied, done.known), (all.len() as u64, 0));
    assert_eq!(contents(&back).await, all);
    for id in &ids {
        assert_eq!(read_all(&*back.blobs, *id).await.unwrap(), read_all(&*from.blobs, *id).await.unwrap());
    }
    assert_eq!(back.upkeep.check(&|_, _| ()).await.unwrap().findings, []);
    assert_eq!(back.upkeep.owner().await.unwrap(), Some(owner));
}
