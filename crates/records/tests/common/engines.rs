//! The engines under test, and where their stores are during a test.

use std::{
    env,
    future::Future,
    hash::{BuildHasher, RandomState},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use libtest_mimic::{Arguments, Trial};
use restante_core::{ManualClock, Timestamp, nonzero};
use restante_disk::testing::run_or_ignore;
use restante_fault_proxy::Cluster;
use restante_records::{Config, EngineUrl, LmdbConfig, Opened, PostgresConfig, PostgresUrl, Schema, open};
use tokio_postgres::NoTls;

use super::{cassandra, schema};

/// Each trial writes and syncs: more than this at once only wait for the disk.
const TRIALS_AT_ONCE_MAX: usize = 8;

/// Names the PostgreSQL server, as `dev/services/with postgres` sets it.
const POSTGRES_URL: &str = "RESTANTE_POSTGRES_URL";
/// Name the nodes and the port of Cassandra, as `dev/services/with cassandra` sets them.
pub const CASSANDRA_HOST: &str = "RESTANTE_CASSANDRA_HOST";
pub const CASSANDRA_PORT: &str = "RESTANTE_CASSANDRA_PORT";
/// How long the removal of a test's remains may take.
const CLEANING_SECONDS_MAX: u64 = 60;

/// An engine under test, in one of its shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    Memory,
    Lmdb,
    /// Without a commit log: each group of commits is an LMDB transaction.
    LmdbNoLog,
    /// A commit log of two times 64 KiB, so that it is full all the time.
    LmdbSmallLog,
    /// Bodies are stored as they are.
    LmdbUncompressed,
    Postgres,
    Cassandra,
}

impl Engine {
    pub const ALL: [Self; 7] = [
        Self::Memory,
        Self::Lmdb,
        Self::LmdbNoLog,
        Self::LmdbSmallLog,
        Self::LmdbUncompressed,
        Self::Postgres,
        Self::Cassandra,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Lmdb => "lmdb",
            Self::LmdbNoLog => "lmdb-no-log",
            Self::LmdbSmallLog => "lmdb-small-log",
            Self::LmdbUncompressed => "lmdb-uncompressed",
            Self::Postgres => "postgres",
            Self::Cassandra => "cassandra",
        }
    }

    /// Whether its data is in files of its own on this machine.
    pub fn has_files(self) -> bool {
        !self.is_volatile() && !self.is_shared()
    }

    /// Whether several processes may have its store open at once.
    pub fn is_shared(self) -> bool {
        matches!(self, Self::Postgres | Self::Cassandra)
    }

    /// Why it isn't available here.
    fn missing(self) -> Option<String> {
        let (is_built, variable) = match self {
            Self::Postgres => (cfg!(feature = "postgres"), POSTGRES_URL),
            Self::Cassandra => (cfg!(feature = "cassandra"), CASSANDRA_HOST),
            _ => return None,
        };
        if !is_built {
            return Some("this build is without the engine".to_owned());
        }
        set(variable).is_none().then(|| format!("{variable} is not set"))
    }

    /// Whether it loses its data when it is closed.
    pub fn is_volatile(self) -> bool {
        self == Self::Memory
    }

    fn lmdb(self) -> LmdbConfig {
        let default = LmdbConfig::default();
        match self {
            Self::Memory | Self::Lmdb | Self::Postgres | Self::Cassandra => default,
            Self::LmdbNoLog => LmdbConfig { log_bytes: 0, ..default },
            Self::LmdbSmallLog => LmdbConfig { log_bytes: 64 << 10, ..default },
            Self::LmdbUncompressed => LmdbConfig { is_compressed: false, ..default },
        }
    }
}

/// The value of a variable that is set.
pub fn set(variable: &str) -> Option<String> {
    env::var(variable).ok().filter(|value| !value.is_empty())
}

/// The command line, with no more trials at once than make sense.
pub fn arguments() -> Arguments {
    let mut arguments = Arguments::from_args();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    arguments.test_threads.get_or_insert(cores.min(TRIALS_AT_ONCE_MAX));
    arguments
}

/// A test named for an engine and for what holds on it. Where the engine isn't available the test is ignored; where the
/// engine is required but not available, it fails.
pub fn trial(engine: Engine, name: &str, test: impl FnOnce() + Send + 'static) -> Trial {
    Trial::ignorable_test(format!("{}::{name}", engine.name()), move || {
        run_or_ignore(engine.name(), engine.missing(), test)
    })
}

/// A test that acts on single nodes of a cluster, with the program that a variable names.
pub fn trial_of_nodes(engine: Engine, name: &str, test: impl FnOnce() + Send + 'static) -> Trial {
    let unset = || set(Cluster::VARIABLE).is_none().then(|| format!("{} is not set", Cluster::VARIABLE));
    Trial::ignorable_test(format!("{}-nodes::{name}", engine.name()), move || {
        run_or_ignore("cassandra3", engine.missing().or_else(unset), test)
    })
}

/// A test that needs several engines at once.
pub fn trial_of_all(engines: [Engine; 2], name: &str, test: impl FnOnce() + Send + 'static) -> Trial {
    let names = engines.map(Engine::name).join("_and_");
    Trial::ignorable_test(format!("{names}::{name}"), move || {
        let missing = engines.into_iter().find_map(|engine| Some((engine, engine.missing()?)));
        match missing {
            Some((engine, why)) => run_or_ignore(engine.name(), Some(why), test),
            None => run_or_ignore(&names, None, test),
        }
    })
}

/// Runs an asynchronous test with a new place for a store.
pub fn run<F: Future<Output = ()>>(engine: Engine, test: impl FnOnce(Arc<TestStore>) -> F) {
    let place = Arc::new(TestStore::new(engine));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap();
    runtime.block_on(test(place.clone()));
}

/// Where the store of one test is: a folder, or schemas of a database. They are removed when it is dropped.
pub struct TestStore {
    pub engine: Engine,
    /// How the store is opened.
    pub config: Config,
    /// The store's clock. It stops until a test moves it.
    pub clock: Arc<ManualClock>,
    folder: tempfile::TempDir,
    copies: AtomicUsize,
}

impl TestStore {
    pub fn new(engine: Engine) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::new(Timestamp(0)));
        let url = match engine {
            Engine::Memory => EngineUrl::Memory,
            Engine::Postgres => {
                let server: PostgresUrl = set(POSTGRES_URL).unwrap().parse().unwrap();
                let schema = format!("t_{:016x}", RandomState::new().hash_one("schema"));
                EngineUrl::Postgres(server.with_schema(&schema).unwrap())
            }
            Engine::Cassandra => EngineUrl::Cassandra(cassandra::new_place()),
            _ => EngineUrl::Lmdb(folder.path().join("records")),
        };
        let mut config = Config::new(url, schema());
        config.lmdb = engine.lmdb();
        // Few connections, so that many tests at once find space in one server.
        config.postgres = PostgresConfig {
            read_connections: nonzero!(2),
            write_connections: nonzero!(2),
            ..config.postgres
        };
        // Nodes of tests are slow, and there is no second one that could answer sooner.
        config.cassandra.request_timeout_ms = nonzero!(10_000);
        config.cassandra.patience_ms = nonzero!(60_000);
        config.clock = clock.clone();
        Self { engine, config, clock, folder, copies: AtomicUsize::new(0) }
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

    /// A folder beside the store that does not exist yet.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Another store of the same engine, which does not exist yet.
    pub fn other(&self) -> Config {
        let number = self.copies.fetch_add(1, Ordering::SeqCst);
        let url = match &self.config.url {
            EngineUrl::Memory => EngineUrl::Memory,
            EngineUrl::Lmdb(_) => EngineUrl::Lmdb(self.beside(&format!("other {number}"))),
            EngineUrl::Postgres(url) => {
                EngineUrl::Postgres(url.with_schema(&format!("{}_{number}", url.schema())).unwrap())
            }
            EngineUrl::Cassandra(url) => {
                EngineUrl::Cassandra(url.with_store(&format!("{}_{number}", url.store())).unwrap())
            }
        };
        Config { url, ..self.config.clone() }
    }

    /// A copy of a store that is open, as a backup has it.
    pub async fn copy(&self, from: &Config, opened: &Opened) -> Config {
        let copy = self.other();
        match (&from.url, &copy.url) {
            (EngineUrl::Lmdb(_), EngineUrl::Lmdb(folder)) => {
                std::fs::create_dir(folder).unwrap();
                opened.upkeep.backup(folder).await.unwrap();
            }
            (EngineUrl::Postgres(from), EngineUrl::Postgres(to)) => {
                // Under another identity, so that all that it has at the end was copied.
                let identity = restante_core::Identity::random();
                let made = open(Config { identity, ..copy.clone() }).await.unwrap();
                made.upkeep.close().await.unwrap();
                copy_schema(from, to).await;
            }
            (EngineUrl::Cassandra(from), EngineUrl::Cassandra(to)) => cassandra::copy(from, to).await,
            other => panic!("no copy of {other:?}"),
        }
        copy
    }

    /// Moves the store, which is closed, to another place as a whole.
    pub async fn moved(&self) -> Config {
        if let EngineUrl::Cassandra(url) = &self.config.url {
            // A keyspace has no other name: it is reached elsewhere.
            return Config { url: EngineUrl::Cassandra(cassandra::elsewhere(url)), ..self.config.clone() };
        }
        let moved = self.other();
        match (&self.config.url, &moved.url) {
            (EngineUrl::Lmdb(from), EngineUrl::Lmdb(to)) => {
                #[expect(clippy::disallowed_methods, reason = "no power cut is to be survived")]
                std::fs::rename(from, to).unwrap();
            }
            (EngineUrl::Postgres(from), EngineUrl::Postgres(to)) => {
                let sql = format!("ALTER SCHEMA {} RENAME TO {}", from.schema(), to.schema());
                run_sql(from, &sql).await.unwrap();
            }
            other => panic!("{other:?} is not moved"),
        }
        moved
    }

    /// Runs statements in the database of the store.
    pub async fn sql(&self, sql: &str) {
        let EngineUrl::Postgres(url) = &self.config.url else { panic!("the engine has no database") };
        run_sql(url, sql).await.unwrap();
    }

    pub fn set_seconds(&self, seconds: i64) {
        self.clock.set(Timestamp::from_seconds(seconds));
    }
}

impl Drop for TestStore {
    fn drop(&mut self) {
        let EngineUrl::Postgres(url) = self.config.url.clone() else { return };
        let mut schemas = vec![url.schema().to_owned()];
        schemas.extend(
            (0..self.copies.load(Ordering::SeqCst)).map(|number| format!("{}_{number}", url.schema())),
        );
        // On a thread of its own, because this one may belong to a runtime. One at a time: each has many tables to lock.
        let dropped = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            for schema in schemas {
                let sql = format!("DROP SCHEMA IF EXISTS {schema} CASCADE");
                let limit = Duration::from_secs(CLEANING_SECONDS_MAX);
                let done = runtime.block_on(async { tokio::time::timeout(limit, run_sql(&url, &sql)).await });
                done.map_err(|elapsed| elapsed.to_string())??;
            }
            Ok::<(), String>(())
        });
        let dropped = dropped.join();
        let is_dropped = matches!(dropped, Ok(Ok(())));
        if !is_dropped && thread::panicking() {
            eprintln!("the schemas of the failed test stay behind: {dropped:?}");
        } else {
            assert!(is_dropped, "the test's schemas can't be dropped: {dropped:?}");
        }
    }
}

/// Runs statements on a connection of their own.
async fn run_sql(url: &PostgresUrl, sql: &str) -> Result<(), String> {
    let work = async {
        let (client, connection) = tokio_postgres::connect(url.connection(), NoTls).await?;
        let connection = tokio::spawn(connection);
        client.batch_execute(sql).await?;
        drop(client);
        connection.await.unwrap()
    };
    let done: Result<(), tokio_postgres::Error> = work.await;
    done.map_err(|error| format!("{error}: {:?}", std::error::Error::source(&error)))
}

/// Replaces the rows of one schema with those of another, all as of one moment, as `pg_restore` does.
async fn copy_schema(from: &PostgresUrl, to: &PostgresUrl) {
    let (from, to, url) = (from.schema(), to.schema(), from);
    let tables = ["meta", "account", "entry", "body", "feed", "feed_head", "follower"];
    let mut sql = String::new();
    for table in tables {
        sql.push_str(&format!("TRUNCATE {to}.{table};"));
    }
    run_sql(url, &sql).await.unwrap();
    let mut sql = String::from("BEGIN ISOLATION LEVEL REPEATABLE READ;");
    for table in tables {
        sql.push_str(&format!("INSERT INTO {to}.{table} SELECT * FROM {from}.{table};"));
    }
    sql.push_str(&format!("SELECT setval('{to}.body_id', nextval('{from}.body_id')); COMMIT"));
    run_sql(url, &sql).await.unwrap();
}
