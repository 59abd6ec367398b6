//! S3: an object for each blob, under its hash.
//!
//! Several servers may have the same blobs open. `docs/formats/blobs-s3.md` describes the layout, and explains why no blob is lost
//! between a put or a touch on one server and a removal on another.

mod cache;
mod check;
mod client;
mod error;
mod http;
mod list;
mod locks;
mod log;
mod read;
mod receive;
mod remove;
mod schema;
mod times;
mod touch;
mod trash;
mod write;

use std::{
    ops::Range,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use restante_core::{BlobId, Clock, Identity, Timestamp};
use tokio::sync::{RwLock, RwLockReadGuard, Semaphore};

use self::{
    cache::Cache,
    client::{Client, Created},
    list::Totals,
    locks::Locks,
    log::Log,
    receive::{blocking, receive},
    schema::{BLOB_BYTES_LIMIT, FORMAT, FORMAT_TEXT, OWNER},
    times::Times,
};
use crate::{
    Blobs, Config, Error, Listed, Opened, Put, Report, S3Url, Source, Stats, Upkeep,
    error::closed,
    limits::{check_limit, check_touch},
};

/// The most uploads of more than a megabyte at the same time: each has up to four parts of 8 MiB in memory.
const LARGE_UPLOADS_MAX: usize = 4;

/// The engine.
pub(super) struct S3 {
    client: Arc<Client>,
    log: Log,
    times: Times,
    locks: Arc<Locks>,
    cache: Arc<Cache>,
    totals: Mutex<Option<Totals>>,
    /// When the trash was emptied last.
    purged_at: Mutex<Option<Timestamp>>,
    /// Puts, touches and removals hold it; closing waits for them.
    gate: RwLock<()>,
    is_closed: AtomicBool,
    large_uploads: Semaphore,
    last_error: Mutex<Option<Error>>,
    /// Distinguishes the manifests and removals of this server from those of others.
    server: u64,
    settings: Settings,
}

struct Settings {
    blob_bytes_max: u64,
    /// The folder of long uploads until they are in the storage.
    folder: std::path::PathBuf,
    clock: Arc<dyn Clock>,
    metrics: crate::Metrics,
}

pub(crate) async fn open(url: &S3Url, config: Config) -> Result<Opened, Error> {
    if config.blob_bytes_max.get() > BLOB_BYTES_LIMIT {
        return Err(Error::invalid(format!(
            "the longest blob is set to {} bytes: set it to {BLOB_BYTES_LIMIT} at most",
            config.blob_bytes_max
        )));
    }
    let keys = config.s3_keys.as_ref().ok_or_else(|| {
        Error::invalid("blobs in an S3 storage need an access key and a secret key: look at blobs.s3")
    })?;
    let metrics = config.metrics.clone();
    let client = Arc::new(Client::new(url, &config.s3, keys, metrics.s3.clone())?);
    check_format(&client).await?;
    let folder = config.s3_folder.clone().unwrap_or_else(|| std::env::temp_dir().join("restante-blobs"));
    let (cache_folder, cache_metrics) = (folder.join("cache"), metrics.s3.clone());
    let cache_bytes_max = config.s3.cache_bytes_max;
    let cache = blocking(move || Cache::open(cache_folder, cache_bytes_max, cache_metrics)).await?;
    let [a, b, c, d, e, f, g, h, ..] = Identity::random().0;
    let server = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
    let interval = Duration::from_millis(config.s3.manifest_interval_ms);
    let s3 = Arc::new(S3 {
        log: Log::start(client.clone(), config.clock.clone(), server, interval),
        times: Times::new(client.clone(), config.clock.clone()),
        client,
        locks: Arc::default(),
        cache: Arc::new(cache),
        totals: Mutex::default(),
        purged_at: Mutex::default(),
        gate: RwLock::default(),
        is_closed: AtomicBool::new(false),
        large_uploads: Semaphore::new(LARGE_UPLOADS_MAX),
        last_error: Mutex::default(),
        server,
        settings: Settings {
            blob_bytes_max: config.blob_bytes_max.get(),
            folder,
            clock: config.clock.clone(),
            metrics,
        },
    });
    Ok(Opened { blobs: s3.clone(), upkeep: s3 })
}

/// Compares the format of the store, or creates a new store.
async fn check_format(client: &Client) -> Result<(), Error> {
    let found = match client.get_small(FORMAT).await? {
        Some(found) => found,
        None => match client.create(FORMAT, FORMAT_TEXT.into()).await? {
            Created::New => return Ok(()),
            // Another server may have created it at the same time.
            Created::Exists | Created::Unknown(_) => match client.get_small(FORMAT).await? {
                Some(found) => found,
                None => return client.overwrite(FORMAT, FORMAT_TEXT.into()).await,
            },
        },
    };
    if found == FORMAT_TEXT {
        return Ok(());
    }
    Err(Error::corrupt(
        "the object 'format' of the blobs is not understood: is the prefix right, or was a newer version here?",
    ))
}

impl S3 {
    fn check_open(&self) -> Result<(), Error> {
        if self.is_closed.load(Ordering::Acquire) { Err(closed()) } else { Ok(()) }
    }

    /// Begins an operation, which closing waits for.
    async fn begin(&self) -> Result<RwLockReadGuard<'_, ()>, Error> {
        let guard = self.gate.read().await;
        self.check_open()?;
        Ok(guard)
    }

    /// Remembers the outcome of a put for [`Upkeep::health`].
    fn note<T>(&self, outcome: &Result<T, Error>) {
        *self.last_error.lock() = match outcome {
            Err(error) if error.is_transient() => Some(error.duplicate()),
            Ok(_) | Err(_) => None,
        };
    }
}

#[async_trait]
impl Blobs for S3 {
    async fn put(&self, source: &mut dyn Source) -> Result<Put, Error> {
        self.check_open()?;
        let received = receive(source, self.settings.blob_bytes_max, &self.settings.folder).await?;
        let _open = self.begin().await?;
        let put = self.store(received).await;
        self.note(&put);
        put
    }

    async fn read(&self, id: BlobId, range: Range<u64>) -> Result<Box<dyn Source>, Error> {
        self.check_open()?;
        self.open_blob(id, range).await
    }

    async fn size(&self, id: BlobId) -> Result<Option<u64>, Error> {
        self.check_open()?;
        Ok(self.find(id).await?.map(|object| object.bytes))
    }

    async fn touch(&self, ids: &[BlobId]) -> Result<Vec<bool>, Error> {
        check_touch(ids.len())?;
        let _open = self.begin().await?;
        self.touch_all(ids).await
    }
}

#[async_trait]
impl Upkeep for S3 {
    async fn list(&self, after: Option<BlobId>, limit: usize) -> Result<Vec<Listed>, Error> {
        check_limit(limit)?;
        self.check_open()?;
        self.page(after, limit).await
    }

    async fn remove(&self, ids: &[BlobId], put_before: Timestamp) -> Result<u64, Error> {
        let _open = self.begin().await?;
        self.remove_all(ids, put_before).await
    }

    async fn owner(&self) -> Result<Option<Identity>, Error> {
        self.check_open()?;
        let Some(text) = self.client.get_small(OWNER).await? else { return Ok(None) };
        let owner = str::from_utf8(&text).ok().and_then(|text| text.trim_end().parse().ok());
        owner.map(Some).ok_or_else(|| {
            Error::corrupt(
                "the object 'owner' of the blobs is damaged: stop the servers and run `restante blobs sweep --adopt`, which \
                 makes them the blobs of the present records, or put it back from a copy",
            )
        })
    }

    async fn set_owner(&self, owner: Identity) -> Result<(), Error> {
        let _open = self.begin().await?;
        self.client.overwrite(OWNER, format!("{owner}\n").into()).await
    }

    async fn stats(&self) -> Result<Stats, Error> {
        self.check_open()?;
        let (blobs, bytes) = self.count().await?;
        let (cached_blobs, cache_bytes) = self.cache.totals();
        let engine = [("cached_blobs", cached_blobs), ("cache_bytes", cache_bytes)];
        let engine = engine.map(|(name, figure)| (name.to_owned(), figure)).into();
        Ok(Stats { blobs, bytes, disk_bytes: cache_bytes, engine })
    }

    fn health(&self) -> Result<(), Error> {
        self.check_open()?;
        self.last_error.lock().as_ref().map_or(Ok(()), |error| Err(error.duplicate()))
    }

    async fn check(&self, progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<Report, Error> {
        self.check_open()?;
        self.check_all(progress).await
    }

    async fn backup(&self, _folder: &Path) -> Result<(), Error> {
        self.check_open()?;
        Err(Error::invalid(
            "blobs in an S3 storage have no files to back up: copy the bucket with the storage's own means, or the blobs with \
             `restante blobs copy`",
        ))
    }

    async fn close(&self) -> Result<(), Error> {
        self.is_closed.store(true, Ordering::Release);
        drop(self.gate.write().await); // waits for operations in progress
        self.log.close().await;
        Ok(())
    }
}
