//! The engines under test, and where their stores lie during a test.

use std::{future::Future, path::PathBuf, sync::Arc, thread};

use libtest_mimic::{Arguments, Completion, Trial};
use restante_core::{ManualClock, Timestamp};
use restante_records::{Config, EngineUrl, LmdbConfig, Opened, Schema, open};

use super::schema;

/// Each trial writes and syncs: more at once than this only wait for the disk.
const TRIALS_AT_ONCE_MAX: usize = 8;

/// An engine under test, in one of its shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    Memory,
    Lmdb,
    /// Without a commit log: each group of commits is an LMDB transaction.
    LmdbNoLog,
    /// A commit log of two times 64 KiB, so that it is full all the time.
    LmdbSmallLog,
    /// Bodies as they come.
    LmdbUncompressed,
}

impl Engine {
    pub const ALL: [Self; 5] =
        [Self::Memory, Self::Lmdb, Self::LmdbNoLog, Self::LmdbSmallLog, Self::LmdbUncompressed];

    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Lmdb => "lmdb",
            Self::LmdbNoLog => "lmdb-no-log",
            Self::LmdbSmallLog => "lmdb-small-log",
            Self::LmdbUncompressed => "lmdb-uncompressed",
        }
    }

    /// Whether it forgets what it has when it is closed.
    pub fn is_volatile(self) -> bool {
        self == Self::Memory
    }

    fn lmdb(self) -> LmdbConfig {
        let default = LmdbConfig::default();
        match self {
            Self::Memory | Self::Lmdb => default,
            Self::LmdbNoLog => LmdbConfig { log_bytes: 0, ..default },
            Self::LmdbSmallLog => LmdbConfig { log_bytes: 64 << 10, ..default },
            Self::LmdbUncompressed => LmdbConfig { is_compressed: false, ..default },
        }
    }
}

/// The command line, with no more trials at once than make sense.
pub fn arguments() -> Arguments {
    let mut arguments = Arguments::from_args();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    arguments.test_threads.get_or_insert(cores.min(TRIALS_AT_ONCE_MAX));
    arguments
}

/// A test named for an engine and for what holds on it.
pub fn trial(engine: Engine, name: &str, test: impl FnOnce() + Send + 'static) -> Trial {
    Trial::ignorable_test(format!("{}::{name}", engine.name()), move || {
        test();
        Ok(Completion::Completed)
    })
}

/// Runs an asynchronous test with a new place for a store.
pub fn run<F: Future<Output = ()>>(engine: Engine, test: impl FnOnce(Arc<TestStore>) -> F) {
    let place = Arc::new(TestStore::new(engine));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    runtime.block_on(test(place.clone()));
}

/// Where the store of one test lies. It goes with it.
pub struct TestStore {
    pub engine: Engine,
    /// How the store is opened.
    pub config: Config,
    /// What the store takes for the time. It stands still until a test moves it.
    pub clock: Arc<ManualClock>,
    folder: tempfile::TempDir,
}

impl TestStore {
    pub fn new(engine: Engine) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::new(Timestamp(0)));
        let url = match engine {
            Engine::Memory => EngineUrl::Memory,
            _ => EngineUrl::Lmdb(folder.path().join("records")),
        };
        let mut config = Config::new(url, schema());
        config.lmdb = engine.lmdb();
        config.clock = clock.clone();
        Self { engine, config, clock, folder }
    }

    pub async fn open(&self) -> Opened {
        open(self.config.clone()).await.unwrap()
    }

    pub async fn open_with(&self, schema: Schema) -> Opened {
        open(Config { schema, ..self.config.clone() }).await.unwrap()
    }

    pub async fn reopen(&self, opened: Opened) -> Opened {
        opened.upkeep.close().await.unwrap();
        drop(opened);
        self.open().await
    }

    /// A folder beside the store that is not there yet.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn set_seconds(&self, seconds: i64) {
        self.clock.set(Timestamp::from_seconds(seconds));
    }
}
