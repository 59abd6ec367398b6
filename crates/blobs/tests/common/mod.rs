//! Shared by the tests of all engines.
#![allow(dead_code, unreachable_pub, reason = "each test uses its part")]

#[cfg(feature = "s3")]
pub mod s3;

use std::{future::Future, ops::Range, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use libtest_mimic::Trial;
use restante_blobs::{
    BlobId, Blobs, Config, EngineUrl, Error, FilesConfig, Listed, Opened, Put, Source, Upkeep, open,
};
use restante_core::{ManualClock, Timestamp, nonzero};
use restante_disk::testing::run_or_ignore;
use tokio::sync::oneshot;

/// An engine under test, in one of its configurations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    Memory,
    Files,
    /// Packs of a few blobs, so that every test crosses many.
    FilesSmall,
    /// The storage of RESTANTE_S3_URL.
    S3,
    /// The same engine on another server, that of RESTANTE_MINIO_URL.
    Minio,
}

impl Engine {
    pub const ALL: [Self; 5] = [Self::Memory, Self::Files, Self::FilesSmall, Self::S3, Self::Minio];

    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Files => "files",
            Self::FilesSmall => "files-small",
            Self::S3 => "s3",
            Self::Minio => "minio",
        }
    }

    /// Whether its blobs are in files of its own on this machine.
    pub fn has_files(self) -> bool {
        matches!(self, Self::Files | Self::FilesSmall)
    }

    /// Why it is not available here.
    fn missing(self) -> Option<String> {
        match self {
            Self::Memory | Self::Files | Self::FilesSmall => None,
            #[cfg(feature = "s3")]
            Self::S3 | Self::Minio => s3::missing(self.name()),
            #[cfg(not(feature = "s3"))]
            Self::S3 | Self::Minio => Some("this build is without the engine".to_owned()),
        }
    }

    /// Whether its blobs are lost when it is closed.
    pub fn is_volatile(self) -> bool {
        self == Self::Memory
    }
}

/// A test named after an engine and the promise that it tests. It is ignored when the engine is not available, and fails
/// when the engine is required.
pub fn trial(engine: Engine, name: &str, test: impl FnOnce() + Send + 'static) -> Trial {
    Trial::ignorable_test(format!("{}::{name}", engine.name()), move || {
        run_or_ignore(engine.name(), engine.missing(), test)
    })
}

/// Runs tests, removes what they left in a storage, and ends the process.
pub fn run_trials(trials: Vec<Trial>) -> ! {
    let done = libtest_mimic::run(&libtest_mimic::Arguments::from_args(), trials);
    #[cfg(feature = "s3")]
    s3::clean_up();
    done.exit()
}

/// Runs an asynchronous test with a new store for blobs.
pub fn run<F: Future<Output = ()>>(engine: Engine, test: impl FnOnce(Arc<TestStore>) -> F) {
    let store = Arc::new(TestStore::new(engine));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(test(store.clone()));
}

/// The folder and settings of the store of one test. The folder is removed when this is dropped.
pub struct TestStore {
    pub engine: Engine,
    pub config: Config,
    pub clock: Arc<ManualClock>,
    folder: tempfile::TempDir,
}

/// The time at which each test begins.
pub const BEGIN: Timestamp = Timestamp::from_seconds(1_000);

/// A time in seconds after the beginning.
pub fn at(seconds: i64) -> Timestamp {
    BEGIN.plus_seconds(seconds)
}

impl TestStore {
    pub fn new(engine: Engine) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::new(BEGIN));
        let url = match engine {
            Engine::Memory => EngineUrl::Memory,
            Engine::Files | Engine::FilesSmall => EngineUrl::Files(folder.path().join("blobs")),
            #[cfg(feature = "s3")]
            Engine::S3 | Engine::Minio => s3::new_url(engine.name()),
            #[cfg(not(feature = "s3"))]
            Engine::S3 | Engine::Minio => panic!("this build is without the engine"),
        };
        let mut config = Config::new(url);
        config.clock = clock.clone();
        #[cfg(feature = "s3")]
        if matches!(engine, Engine::S3 | Engine::Minio) {
            s3::set(&mut config, engine.name(), &folder.path().join("local"));
        }
        if engine == Engine::FilesSmall {
            config.files = FilesConfig { packed_bytes_max: 1_000, pack_bytes: nonzero!(4_000) };
        }
        Self { engine, config, clock, folder }
    }

    pub async fn open(&self) -> Opened {
        open(self.config.clone()).await.unwrap()
    }

    pub async fn reopen(&self, opened: Opened) -> Opened {
        opened.upkeep.close().await.unwrap();
        drop(opened);
        self.open().await
    }

    /// The location of another store of the same engine, which does not exist yet.
    pub fn another(&self, name: &str) -> EngineUrl {
        match &self.config.url {
            EngineUrl::Memory => EngineUrl::Memory,
            EngineUrl::Files(_) => EngineUrl::Files(self.folder_named(name)),
            EngineUrl::S3(url) => EngineUrl::S3(format!("{url}-{name}").parse().unwrap()),
        }
    }

    /// A store opened from another folder below this store.
    pub async fn open_at(&self, name: &str) -> Opened {
        let url = EngineUrl::Files(self.folder_named(name));
        open(Config { url, ..self.config.clone() }).await.unwrap()
    }

    pub fn folder_named(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    pub fn tick(&self, seconds: i64) {
        self.clock.set(at(seconds));
    }
}

/// The bytes of blob number `n`: all blobs differ, regardless of their lengths.
pub fn bytes(n: u32, len: usize) -> Bytes {
    let mut state = u64::from(n) << 32 | len as u64;
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(&(state >> 32).to_le_bytes()[..4]);
    }
    bytes.truncate(len);
    bytes.into()
}

pub async fn put(blobs: &dyn Blobs, bytes: &Bytes) -> Put {
    blobs.put(&mut bytes.clone()).await.unwrap()
}

/// Puts without a sync, and waits until the blob can be read.
pub async fn put_unsynced(blobs: &dyn Blobs, bytes: &Bytes) -> Put {
    let (ended, put) = oneshot::channel();
    blobs.put_unsynced(&mut bytes.clone(), Box::new(|put| drop(ended.send(put)))).await.unwrap();
    put.await.unwrap().unwrap()
}

/// Reads a range, and checks that each chunk is as long as possible.
pub async fn read(blobs: &dyn Blobs, id: BlobId, range: Range<u64>) -> Result<Vec<u8>, Error> {
    let mut source = blobs.read(id, range).await?;
    let mut all = Vec::new();
    while let Some(chunk) = source.next().await? {
        assert!(!chunk.is_empty() && chunk.len() <= restante_blobs::CHUNK_BYTES_MAX, "{} bytes", chunk.len());
        all.extend_from_slice(&chunk);
    }
    Ok(all)
}

pub async fn read_all(blobs: &dyn Blobs, id: BlobId) -> Result<Vec<u8>, Error> {
    read(blobs, id, 0..u64::MAX).await
}

/// All blobs, by pages of three.
pub async fn list(upkeep: &dyn Upkeep) -> Vec<Listed> {
    let mut all: Vec<Listed> = Vec::new();
    loop {
        let page = upkeep.list(all.last().map(|blob| blob.id), 3).await.unwrap();
        if page.is_empty() {
            return all;
        }
        all.extend(page);
    }
}

/// Chunks, then an error or the end.
pub struct Chunks {
    pub chunks: std::collections::VecDeque<Bytes>,
    pub error: Option<Error>,
}

impl Chunks {
    pub fn new(chunks: impl IntoIterator<Item = Bytes>) -> Self {
        Self { chunks: chunks.into_iter().collect(), error: None }
    }

    pub fn then_fails(mut self) -> Self {
        self.error = Some(Error::conflict("the source broke"));
        self
    }
}

#[async_trait]
impl Source for Chunks {
    async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        match self.chunks.pop_front() {
            Some(chunk) => Ok(Some(chunk)),
            None => self.error.take().map_or(Ok(None), Err),
        }
    }
}
