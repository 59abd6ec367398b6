//! S3: puts and gets of whole blobs, and reads from the local cache compared with the engine `files`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, ensure};
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use object_store::{ObjectStoreExt, aws::AmazonS3, path::Path};
use restante_blobs::{BlobId, Blobs, Config, EngineUrl, Opened, S3Config, S3Keys};

use super::{
    Bench, OverheadArgs, RAW, Server, Subject,
    pairs::{Bound, Load, load},
};
use crate::{
    engines::{Engine, s3},
    random::Random,
};

const NAME: &str = "s3";
/// The sizes of blobs, each with the goal of its rate.
const SIZES: [(&str, usize, f64); 3] =
    [("4 KB", 4 << 10, 0.8), ("128 KB", 128 << 10, 0.9), ("1 MB", 1 << 20, 0.9)];
const CACHED_BYTES: usize = 128 << 10;
const CACHED_GOAL: f64 = 0.8;
/// Requests of one server at the same time.
const CLIENTS: usize = 64;
const CACHE_CLIENTS: usize = 8;
/// Blobs that are read.
const BLOBS: u64 = 64;

/// Connects to the storage that is named.
pub(super) async fn connect(args: &OverheadArgs) -> anyhow::Result<Option<Box<dyn Server>>> {
    let Some(storage) = s3::find(&args.engines()).await? else { return Ok(None) };
    Ok(Some(Box::new(S3(storage))))
}

/// The storage, in which a bucket is made for this run.
struct S3(s3::S3);

#[async_trait(?Send)]
impl Server for S3 {
    fn name(&self) -> &'static str {
        NAME
    }

    fn created(&self) -> String {
        self.0.created()
    }

    async fn measure(&self, bench: &mut Bench<'_>) -> anyhow::Result<()> {
        self.0.make_bucket().await?;
        let without_cache = self.open(bench, "plain", 0).await?;
        for size in SIZES {
            self.measure_puts(bench, &without_cache, size).await?;
            self.measure_gets(bench, &without_cache, size).await?;
        }
        without_cache.upkeep.close().await?;
        self.measure_cache(bench).await
    }

    async fn clean_up(&self) -> anyhow::Result<()> {
        self.0.clean_up().await
    }
}

impl S3 {
    /// Opens blobs in the storage.
    async fn open(&self, bench: &Bench<'_>, name: &str, cache_bytes_max: u64) -> anyhow::Result<Opened> {
        let storage = self.0.location();
        let mut config = Config::new(format!("s3://{}/{}/{name}", storage.bucket, storage.prefix).parse()?);
        config.s3 = S3Config {
            endpoint: storage.endpoint,
            region: storage.region,
            cache_bytes_max,
            ..S3Config::default()
        };
        config.s3_keys = Some(S3Keys { access_key: storage.access_key, secret_key: storage.secret_key });
        config.s3_folder = Some(bench.folder.join(name));
        restante_blobs::open(config).await.context("can't open the blobs")
    }

    async fn measure_puts(
        &self,
        bench: &mut Bench<'_>,
        opened: &Opened,
        (name, bytes, goal): (&str, usize, f64),
    ) -> anyhow::Result<()> {
        let contents = Arc::new(Contents::new(bytes));
        let base = async |span| {
            let (store, contents, keys) = (self.0.store(), contents.clone(), self.0.key("raw-puts"));
            load(CLIENTS, span, move |_, _| {
                let (store, content) = (store.clone(), contents.next());
                let key = keys.clone().join(content.0.to_string());
                async move {
                    store.put(&key, content.1.into()).await?;
                    Ok(())
                }
            })
            .await
        };
        let ours = async |span| {
            let (blobs, contents) = (opened.blobs.clone(), contents.clone());
            load(CLIENTS, span, move |_, _| {
                let (blobs, mut content) = (blobs.clone(), contents.next().1);
                async move {
                    ensure!(blobs.put(&mut content).await?.is_new, "a new blob was there already");
                    Ok(())
                }
            })
            .await
        };
        let what = format!("put {name}, {CLIENTS} at once");
        bench.compare(Subject { what: &what, beside: RAW }, &[Bound::Rate(goal)], base, ours).await
    }

    async fn measure_gets(
        &self,
        bench: &mut Bench<'_>,
        opened: &Opened,
        (name, bytes, goal): (&str, usize, f64),
    ) -> anyhow::Result<()> {
        let contents = Contents::new(bytes);
        let (mut keys, mut ids) = (Vec::new(), Vec::new());
        for _ in 0..BLOBS {
            let (number, mut content) = contents.next();
            let key = self.0.key("raw-gets").join(number.to_string());
            self.0.store().put(&key, content.clone().into()).await?;
            keys.push(key);
            ids.push(opened.blobs.put(&mut content).await?.id);
        }
        let (keys, ids) = (Arc::new(keys), Arc::new(ids));
        let base = async |span| {
            let (store, keys) = (self.0.store(), keys.clone());
            load(CLIENTS, span, move |_, number| raw_get(store.clone(), keys.clone(), number, bytes)).await
        };
        let ours = reads(opened.blobs.clone(), ids, CLIENTS, bytes);
        let what = format!("get {name}, {CLIENTS} at once");
        bench.compare(Subject { what: &what, beside: RAW }, &[Bound::Rate(goal)], base, ours).await
    }

    /// Blobs in the local cache.
    async fn measure_cache(&self, bench: &mut Bench<'_>) -> anyhow::Result<()> {
        let cached = self.open(bench, "cached", 1 << 30).await?;
        let url = EngineUrl::Files(bench.folder.join("files"));
        let files = restante_blobs::open(Config::new(url)).await.context("can't open the blobs in files")?;
        let contents = Contents::new(CACHED_BYTES);
        let mut ids = Vec::new();
        for _ in 0..BLOBS {
            let (_, content) = contents.next();
            files.blobs.put(&mut content.clone()).await?;
            ids.push(cached.blobs.put(&mut content.clone()).await?.id);
        }
        let ids = Arc::new(ids);
        let base = reads(files.blobs.clone(), ids.clone(), CACHE_CLIENTS, CACHED_BYTES);
        let ours = reads(cached.blobs.clone(), ids, CACHE_CLIENTS, CACHED_BYTES);
        let what = format!("get 128 KB from the cache, {CACHE_CLIENTS} at once");
        let subject = Subject { what: &what, beside: "the engine files" };
        bench.compare(subject, &[Bound::Rate(CACHED_GOAL)], base, ours).await?;
        cached.upkeep.close().await?;
        files.upkeep.close().await?;
        Ok(())
    }
}

/// A side that reads blobs as a whole.
fn reads(
    blobs: Arc<dyn Blobs>,
    ids: Arc<Vec<BlobId>>,
    clients: usize,
    bytes: usize,
) -> impl AsyncFnMut(Duration) -> anyhow::Result<Load> {
    async move |span| {
        let (blobs, ids) = (blobs.clone(), ids.clone());
        load(clients, span, move |_, number| get(blobs.clone(), ids.clone(), number, bytes)).await
    }
}

async fn get(blobs: Arc<dyn Blobs>, ids: Arc<Vec<BlobId>>, number: u64, bytes: usize) -> anyhow::Result<()> {
    let id = ids.get((number % BLOBS) as usize).context("a blob without an id")?;
    let mut source = blobs.read(*id, 0..u64::MAX).await?;
    let mut found = 0;
    while let Some(chunk) = source.next().await? {
        found += chunk.len();
    }
    ensure!(found == bytes, "a blob has {found} bytes");
    Ok(())
}

async fn raw_get(
    store: Arc<AmazonS3>,
    keys: Arc<Vec<Path>>,
    number: u64,
    bytes: usize,
) -> anyhow::Result<()> {
    let key = keys.get((number % BLOBS) as usize).context("an object without a key")?;
    let mut parts = store.get(key).await?.into_stream();
    let mut found = 0;
    while let Some(part) = parts.next().await {
        found += part?.len();
    }
    ensure!(found == bytes, "an object has {found} bytes");
    Ok(())
}

/// Contents that can't be compressed. Each is used only once in a run, whatever its size.
struct Contents {
    pattern: Vec<u8>,
}

impl Contents {
    fn new(bytes: usize) -> Self {
        let mut pattern = vec![0; bytes];
        Random::new(bytes as u64, 1).fill(&mut pattern);
        Self { pattern }
    }

    /// The next one and its number.
    fn next(&self) -> (u64, Bytes) {
        static MADE: AtomicU64 = AtomicU64::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let mut content = self.pattern.clone();
        if let Some(front) = content.first_chunk_mut() {
            *front = number.to_be_bytes();
        }
        (number, content.into())
    }
}
