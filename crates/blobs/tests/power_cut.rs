//! Power cuts while blobs are put, put again, removed, moved and copied: what was acknowledged is there.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

mod common;

use std::{collections::BTreeMap, path::Path, sync::Arc};

use bytes::Bytes;
use common::{at, bytes, list, put, put_unsynced, read_all};
use restante_blobs::{BlobId, Blobs, Config, EngineUrl, FilesConfig, Opened, open};
use restante_core::{Identity, ManualClock, Timestamp, nonzero};
use restante_power_cut::{Child, child, cuts, record};

/// The longest are in files of their own, the others in packs of a few blobs.
fn blob(n: u32) -> Bytes {
    bytes(n, if n.is_multiple_of(6) { 1_200 + n as usize } else { 30 * (n as usize % 30) })
}

/// The blobs that a round of removals removes.
fn goes(n: u32, round: u32) -> bool {
    n % 4 != round % 4
}

async fn open_at(folder: &Path) -> Opened {
    let mut config = Config::new(EngineUrl::Files(folder.to_owned()));
    config.files = FilesConfig { packed_bytes_max: 1_000, pack_bytes: nonzero!(4_000) };
    config.clock = Arc::new(ManualClock::new(at(0)));
    open(config).await.unwrap()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

const BLOBS_PER_ROUND: u32 = 40;
const ROUNDS: u32 = 3;

/// The owner that a round sets; a round without one keeps the last.
fn owner(round: u32) -> Option<Identity> {
    (round < 2).then_some(Identity([round as u8 + 1; 16]))
}

/// Puts a blob durably: at once, or without a sync, which comes by itself, with the same blob once more, or with a touch of it.
async fn put_somehow(blobs: &dyn Blobs, n: u32) -> BlobId {
    if n % 5 < 2 {
        return put(blobs, &blob(n)).await.id;
    }
    let id = put_unsynced(blobs, &blob(n)).await.id;
    match n % 5 {
        2 => blobs.sync().await.unwrap(),
        3 => assert!(!put(blobs, &blob(n)).await.is_new),
        _ => assert_eq!(blobs.touch(&[id]).await.unwrap(), [true]),
    }
    id
}

/// Puts many blobs at a time and sets owners meanwhile; removes most of them, which rewrites packs; copies the store.
async fn run(child: Arc<Child>) {
    let opened = open_at(&child.folder().join("store")).await;
    let mut ids: BTreeMap<u32, BlobId> = BTreeMap::new();
    for round in 0..ROUNDS {
        let mut puts = tokio::task::JoinSet::new();
        let first = (round * BLOBS_PER_ROUND).saturating_sub(BLOBS_PER_ROUND / 2);
        for n in first..(round + 1) * BLOBS_PER_ROUND {
            let (blobs, child) = (opened.blobs.clone(), child.clone());
            puts.spawn(async move {
                child.acknowledge(&format!("putting {n}")).unwrap();
                let id = put_somehow(&*blobs, n).await;
                child.acknowledge(&format!("put {n}")).unwrap();
                (n, id)
            });
        }
        if let Some(owner) = owner(round) {
            child.acknowledge(&format!("owning {round}")).unwrap();
            opened.upkeep.set_owner(owner).await.unwrap();
            child.acknowledge(&format!("owned {round}")).unwrap();
        }
        ids.extend(puts.join_all().await);
        let going: Vec<(u32, BlobId)> =
            ids.iter().filter(|(n, _)| goes(**n, round)).map(|(n, id)| (*n, *id)).collect();
        for some in going.chunks(25) {
            for (n, _) in some {
                child.acknowledge(&format!("going {n}")).unwrap();
            }
            let ids: Vec<BlobId> = some.iter().map(|(_, id)| *id).collect();
            opened.upkeep.remove(&ids, Timestamp::MAX).await.unwrap();
            for (n, _) in some {
                child.acknowledge(&format!("gone {n}")).unwrap();
            }
        }
        ids.retain(|n, _| !goes(*n, round));
        let copy = child.folder().join(format!("copy-{round}"));
        std::fs::create_dir(&copy).unwrap();
        std::fs::File::open(child.folder()).unwrap().sync_all().unwrap();
        opened.upkeep.backup(&copy).await.unwrap();
        child.acknowledge(&format!("copied {round}")).unwrap();
    }
    opened.upkeep.close().await.unwrap();
}

/// The blobs that must exist or must not; others may.
fn expected(acknowledged: &[&str]) -> BTreeMap<u32, bool> {
    let mut expected = BTreeMap::new();
    for line in acknowledged {
        let (what, n) = line.split_once(' ').unwrap();
        let n = n.parse().unwrap();
        match what {
            "put" => drop(expected.insert(n, true)),
            "putting" if expected.get(&n) == Some(&true) => {} // once more
            "putting" | "going" => drop(expected.remove(&n)),
            "gone" => drop(expected.insert(n, false)),
            "copied" | "owning" | "owned" => {}
            other => panic!("'{other}' was not acknowledged by the test"),
        }
    }
    expected
}

/// The owners that the store may have: the last acknowledged one, or one that was being set.
fn owners(acknowledged: &[&str]) -> Vec<Option<Identity>> {
    let mut owners = vec![None];
    for line in acknowledged {
        match line.split_once(' ').unwrap() {
            ("owning", round) => owners.push(owner(round.parse().unwrap())),
            ("owned", round) => owners = vec![owner(round.parse().unwrap())],
            _ => {}
        }
    }
    owners
}

async fn verify(folder: &Path, ids: &[BlobId], acknowledged: &[&str], is_rebuilt: bool) {
    let (expected, owners) = (&expected(acknowledged), owners(acknowledged));
    let opened = open_at(folder).await;
    let owner = opened.upkeep.owner().await.unwrap();
    assert!(owners.contains(&owner), "{owner:?} is none of {owners:?}");
    for (n, must_be) in expected {
        match (read_all(&*opened.blobs, ids[*n as usize]).await, must_be) {
            (Ok(found), true) => assert_eq!(found, blob(*n)),
            (Err(error), true) => panic!("blob {n} was acknowledged: {error}"),
            (Ok(_), false) => assert!(is_rebuilt, "blob {n} was removed"),
            (Err(_), false) => {}
        }
    }
    let report = opened.upkeep.check(&|_, _| ()).await.unwrap();
    assert_eq!(report.findings, []);
    let (stats, listed) = (opened.upkeep.stats().await.unwrap(), list(&*opened.upkeep).await);
    assert_eq!((stats.blobs, stats.bytes), (listed.len() as u64, listed.iter().map(|blob| blob.bytes).sum()));
    // The store works: everything can be removed, and its space is reclaimed.
    put(&*opened.blobs, &blob(10_000)).await;
    let all: Vec<BlobId> = list(&*opened.upkeep).await.iter().map(|blob| blob.id).collect();
    assert_eq!(opened.upkeep.remove(&all, Timestamp::MAX).await.unwrap(), all.len() as u64);
    let stats = opened.upkeep.stats().await.unwrap();
    let packs = stats.engine.iter().find(|(name, _)| name == "pack_bytes").unwrap().1;
    assert!(packs < 100, "{packs} bytes of packs are left");
    opened.upkeep.close().await.unwrap();
}

#[test]
fn acknowledged_blobs_survive_power_cuts() {
    let runtime = runtime();
    if let Some(child) = child().unwrap() {
        return runtime.block_on(run(Arc::new(child)));
    }
    let log = record("acknowledged_blobs_survive_power_cuts").unwrap();
    let ids: Vec<BlobId> = runtime.block_on(async {
        let memory = open(Config::new(EngineUrl::Memory)).await.unwrap();
        let mut ids = Vec::new();
        for n in 0..ROUNDS * BLOBS_PER_ROUND {
            ids.push(put(&*memory.blobs, &blob(n)).await.id);
        }
        ids
    });
    log.replay(cuts(60), 5, |cut| {
        runtime.block_on(async {
            let acknowledged = cut.acknowledged();
            for round in 0..ROUNDS {
                let copied = format!("copied {round}");
                if let Some(end) = acknowledged.iter().position(|line| *line == copied) {
                    let copy = cut.folder().join(format!("copy-{round}"));
                    verify(&copy, &ids, &acknowledged[..end], false).await;
                }
            }
            let store = cut.folder().join("store");
            let rebuilt = cut.folder().join("rebuilt");
            copy_without_index(&store, &rebuilt);
            verify(&store, &ids, acknowledged, false).await;
            verify(&rebuilt, &ids, acknowledged, true).await;
        });
    })
    .unwrap();
}

fn copy_without_index(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    let Ok(entries) = std::fs::read_dir(from) else { return };
    for entry in entries {
        let entry = entry.unwrap();
        let name = entry.file_name();
        match entry.file_type().unwrap().is_dir() {
            _ if name == "index" => {}
            true => copy_without_index(&entry.path(), &to.join(name)),
            false => drop(std::fs::copy(entry.path(), to.join(name)).unwrap()),
        }
    }
}
