//! Several servers on the same blobs.

use std::sync::{
    Arc,
    atomic::{AtomicI64, AtomicU64, Ordering},
};

use hyper::{Method, StatusCode};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use restante_blobs::{BlobId, EngineUrl, Opened, S3Url};
use restante_core::{ErrorKind, Identity, Timestamp};

use crate::common::{
    TestStore, at, bytes, list, put, read_all,
    s3::{keys, request},
};

fn url(store: &TestStore) -> S3Url {
    match &store.config.url {
        EngineUrl::S3(url) => url.clone(),
        other => panic!("{other} is no storage"),
    }
}

/// The path of a key of the store.
fn path(store: &TestStore, key: &str) -> String {
    let url = url(store);
    format!("/{}/{}{key}", url.bucket(), url.key_prefix())
}

/// The keys of the store with a prefix.
async fn keys_of(store: &TestStore, start: &str) -> Vec<String> {
    let url = url(store);
    keys(store.engine.name(), url.bucket(), &format!("{}{start}", url.key_prefix())).await
}

async fn set_object(store: &TestStore, key: &str, bytes: impl Into<bytes::Bytes>) {
    let (status, _) = request(store.engine.name(), Method::PUT, &path(store, key), bytes.into()).await;
    assert!(status.is_success(), "{status}");
}

async fn delete_object(store: &TestStore, key: &str) {
    let (status, _) =
        request(store.engine.name(), Method::DELETE, &path(store, key), bytes::Bytes::new()).await;
    assert!(status.is_success(), "{status}");
}

fn key_of(id: BlobId) -> String {
    format!("b/{:02x}/{id}", id.0[0])
}

/// A time in the form that keys use.
fn in_key(time: Timestamp) -> String {
    format!("{:016x}", (time.nanos() as u64) ^ (1 << 63))
}

pub(crate) async fn servers_see_each_others_blobs_and_touches(mut store: TestStore) {
    store.config.s3.cache_bytes_max = 0;
    let (one, other) = (store.open().await, store.open().await);
    let id = put(&*one.blobs, &bytes(1, 500)).await.id;
    assert_eq!(read_all(&*other.blobs, id).await.unwrap(), bytes(1, 500));
    assert!(!put(&*other.blobs, &bytes(1, 500)).await.is_new);
    assert_eq!(list(&*other.upkeep).await, list(&*one.upkeep).await);
    store.tick(10);
    assert_eq!(one.blobs.touch(&[id]).await.unwrap(), [true]);
    assert_eq!(other.upkeep.remove(&[id], at(10)).await.unwrap(), 0);
    assert_eq!(other.upkeep.remove(&[id], at(11)).await.unwrap(), 1);
    assert_eq!(one.blobs.touch(&[id]).await.unwrap(), [false]);
    assert_eq!(read_all(&*one.blobs, id).await.unwrap_err().kind(), ErrorKind::NotFound);
    one.upkeep.set_owner(Identity([3; 16])).await.unwrap();
    assert_eq!(other.upkeep.owner().await.unwrap(), Some(Identity([3; 16])));
}

/// The state after another server removed a blob without knowing of a touch.
pub(crate) async fn a_blob_that_was_removed_too_early_comes_back(store: TestStore) {
    let opened = store.open().await;
    let blob = bytes(1, 500);
    let id = put(&*opened.blobs, &blob).await.id;
    store.tick(10);
    opened.blobs.touch(&[id]).await.unwrap();
    let remove_before = async |put_before: Timestamp, at: Timestamp| {
        let key = format!("trash/{id}/{}-{}-0000000000000001", in_key(at), in_key(put_before));
        set_object(&store, &key, blob.clone()).await;
        delete_object(&store, &key_of(id)).await;
    };
    let other = {
        let mut config = store.config.clone();
        config.s3.cache_bytes_max = 0;
        restante_blobs::open(config).await.unwrap()
    };
    remove_before(at(10), at(11)).await;
    assert_eq!(other.blobs.size(id).await.unwrap(), Some(500));
    remove_before(at(9), at(12)).await;
    assert_eq!(read_all(&*other.blobs, id).await.unwrap(), blob);
    remove_before(at(9), at(13)).await;
    assert_eq!(other.blobs.touch(&[id]).await.unwrap(), [true]);
    // This removal was right.
    remove_before(at(11), at(14)).await;
    assert_eq!(other.blobs.size(id).await.unwrap(), None);
    assert_eq!(other.blobs.touch(&[id]).await.unwrap(), [false]);
    assert_eq!(read_all(&*other.blobs, id).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert!(put(&*other.blobs, &blob).await.is_new);
}

pub(crate) async fn the_trash_is_emptied_after_a_week_and_keeps_what_is_due(store: TestStore) {
    const DAY: i64 = 86_400;
    let opened = store.open().await;
    let gone = put(&*opened.blobs, &bytes(1, 500)).await.id;
    let due = put(&*opened.blobs, &bytes(2, 500)).await.id;
    assert_eq!(opened.upkeep.remove(&[gone], at(1)).await.unwrap(), 1);
    assert_eq!(keys_of(&store, "trash/").await.len(), 1);
    let key = format!("trash/{due}/{}-{}-0000000000000001", in_key(at(2)), in_key(at(0)));
    set_object(&store, &key, bytes(2, 500)).await;
    delete_object(&store, &key_of(due)).await;
    for (days, left) in [(6, 2), (8, 0)] {
        store.tick(days * DAY);
        opened.upkeep.remove(&[], at(days * DAY)).await.unwrap();
        assert_eq!(keys_of(&store, "trash/").await.len(), left, "after {days} days");
    }
    assert_eq!(keys_of(&store, "b/").await.len(), 1);
    assert_eq!(opened.blobs.size(due).await.unwrap(), Some(500));
    assert_eq!(opened.blobs.size(gone).await.unwrap(), None);
    assert!(!keys_of(&store, "log/").await.is_empty());
    store.tick(50 * DAY);
    opened.upkeep.remove(&[], at(50 * DAY)).await.unwrap();
    assert_eq!(keys_of(&store, "log/").await, Vec::<String>::new());
    let error = opened.upkeep.remove(&[due], at(0)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

pub(crate) async fn foreign_and_damaged_objects_are_reported(store: TestStore) {
    let opened = store.open().await;
    let damaged = put(&*opened.blobs, &bytes(1, 2_000_000)).await.id;
    put(&*opened.blobs, &bytes(2, 500)).await;
    set_object(&store, &key_of(damaged), bytes(3, 2_000_000)).await;
    set_object(&store, "b/zz/something", "x").await;
    let report = opened.upkeep.check(&|_, _| ()).await.unwrap();
    let places: Vec<&str> = report.findings.iter().map(|finding| finding.place.as_str()).collect();
    let expected = key_of(damaged);
    assert!(places.contains(&"b/zz/something") && places.contains(&expected.as_str()), "{report:?}");
    assert_eq!((report.wrong, report.blobs), (2, 2));
    assert_eq!(read_all(&*opened.blobs, damaged).await.unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(list(&*opened.upkeep).await.len(), 2, "what is no blob is not listed");
    assert_eq!(opened.upkeep.stats().await.unwrap().blobs, 2);
}

pub(crate) async fn other_formats_owners_and_manifests_are_refused(store: TestStore) {
    let opened = store.open().await;
    let id = put(&*opened.blobs, &bytes(1, 10)).await.id;
    set_object(&store, "owner", "somebody").await;
    assert_eq!(opened.upkeep.owner().await.unwrap_err().kind(), ErrorKind::Corrupt);
    opened.upkeep.set_owner(Identity([4; 16])).await.unwrap();
    assert_eq!(opened.upkeep.owner().await.unwrap(), Some(Identity([4; 16])));
    let manifest = format!("log/{}-0000000000000001-00000000", in_key(at(0)));
    set_object(&store, &manifest, "RBM1 and something else").await;
    let error = opened.upkeep.remove(&[id], at(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert_eq!(opened.blobs.size(id).await.unwrap(), Some(10));
    delete_object(&store, &manifest).await;
    assert_eq!(opened.upkeep.remove(&[id], at(1)).await.unwrap(), 1);
    set_object(&store, "format", "restante blobs s3 2\n").await;
    let error = restante_blobs::open(store.config.clone()).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}

/// A missing object of a blob that was never removed is not found, and is not an error of the storage.
pub(crate) async fn a_bucket_that_is_missing_is_named(mut store: TestStore) {
    store.config.url = EngineUrl::S3("s3://restante-test-no-such-bucket".parse().unwrap());
    let error = restante_blobs::open(store.config.clone()).await.map(drop).unwrap_err();
    assert!(error.to_string().contains("create the bucket"), "{error}");
    let (status, _) = request(
        store.engine.name(),
        Method::GET,
        "/restante-test-no-such-bucket?list-type=2",
        bytes::Bytes::new(),
    )
    .await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

/// Sweeps in progress when a put or a touch begins may not know of it: the blob may be removed once this many later sweeps
/// have begun.
const GRACE: i64 = 4;
/// Different blobs.
const BLOBS: u32 = 24;
/// Puts and touches between sweeps. `RESTANTE_TEST_OPERATIONS=1000000` for a long run.
const OPERATIONS: u64 = 600;
/// The number of clients that put and touch at the same time.
const WORKERS: u64 = 6;

struct World {
    servers: [Opened; 2],
    store: TestStore,
    seconds: AtomicI64,
    /// The latest time before which blobs were removed.
    removed_before: AtomicI64,
    verified: AtomicU64,
    removed: AtomicU64,
    operations: u64,
}

impl World {
    fn blob(n: u32) -> bytes::Bytes {
        // One in eight is sent in another way.
        bytes(n, if n.is_multiple_of(8) { 1_200_000 } else { 100 + n as usize })
    }

    /// Puts and touches blobs, and checks at once whether they exist.
    async fn work(&self, seed: u64, ids: &[BlobId]) {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        for _ in 0..self.operations {
            let n = random.random_range(0..BLOBS);
            let id = ids[n as usize];
            let server = &self.servers[random.random_range(0..2)];
            let begun = self.seconds.load(Ordering::SeqCst);
            let is_there = if random.random_bool(0.5) {
                assert_eq!(put(&*server.blobs, &Self::blob(n)).await.id, id);
                true
            } else {
                server.blobs.touch(&[id]).await.unwrap()[0]
            };
            if !is_there {
                continue;
            }
            let reader = &self.servers[random.random_range(0..2)];
            let found = match random.random_bool(0.5) {
                true => read_all(&*reader.blobs, id).await.map(|found| assert!(found == Self::blob(n))),
                false => reader
                    .blobs
                    .size(id)
                    .await
                    .map(|size| assert!(size.is_some() || self.may_be_gone(begun), "blob {n}")),
            };
            if self.may_be_gone(begun) {
                continue;
            }
            if let Err(error) = found {
                panic!("blob {n}, put or touched at {begun}: {error}");
            }
            self.verified.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Whether a removal has begun of blobs that were put at a time.
    fn may_be_gone(&self, put_at: i64) -> bool {
        self.removed_before.load(Ordering::SeqCst) > put_at
    }

    async fn sweep(&self, server: usize, ids: &[BlobId]) {
        let now = self.seconds.fetch_add(1, Ordering::SeqCst) + 1;
        self.store.tick(now);
        let put_before = now - GRACE;
        self.removed_before.fetch_max(put_before, Ordering::SeqCst);
        let removed = self.servers[server].upkeep.remove(ids, at(put_before)).await.unwrap();
        self.removed.fetch_add(removed, Ordering::SeqCst);
    }
}

pub(crate) async fn no_blob_is_lost_between_sweeps_puts_and_touches_of_two_servers(mut store: TestStore) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let operations = number("RESTANTE_TEST_OPERATIONS").unwrap_or(OPERATIONS) / WORKERS;
    let seed = number("RESTANTE_TEST_SEED").unwrap_or_else(rand_seed);
    eprintln!("seed {seed}");
    store.config.s3.cache_bytes_max = 0;
    let servers = [store.open().await, store.open().await];
    let mut ids = Vec::new();
    for n in 0..BLOBS {
        ids.push(put(&*servers[0].blobs, &World::blob(n)).await.id);
    }
    let zero = || AtomicI64::new(0);
    let world = Arc::new(World {
        servers,
        store,
        seconds: zero(),
        removed_before: AtomicI64::new(i64::MIN),
        verified: AtomicU64::new(0),
        removed: AtomicU64::new(0),
        operations,
    });
    let mut workers = tokio::task::JoinSet::new();
    for worker in 0..WORKERS {
        let (world, ids) = (world.clone(), ids.clone());
        workers.spawn(async move { world.work(seed.wrapping_add(worker), &ids).await });
    }
    let mut sweepers = tokio::task::JoinSet::new();
    for server in 0..2 {
        let (world, ids) = (world.clone(), ids.clone());
        sweepers.spawn(async move {
            loop {
                world.sweep(server, &ids).await;
            }
        });
    }
    while let Some(done) = workers.join_next().await {
        done.unwrap();
    }
    sweepers.abort_all();
    while sweepers.join_next().await.is_some() {}
    let (verified, removed) = (world.verified.load(Ordering::SeqCst), world.removed.load(Ordering::SeqCst));
    eprintln!("{verified} puts and touches were verified, {removed} blobs were removed");
    assert!(verified > 0 && removed > 0, "{verified} verified, {removed} removed");
    for server in &world.servers {
        assert_eq!(server.upkeep.check(&|_, _| ()).await.unwrap().findings, []);
    }
}

fn rand_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one("seed")
}
