//! The engines under test: whether each is available, where its archive is stored during a test, and the removal of everything
//! afterwards.

use std::{
    env,
    future::Future,
    hash::{BuildHasher, RandomState},
    path::Path,
    sync::Arc,
    thread,
    time::Duration,
};

use libtest_mimic::{Arguments, Conclusion, Trial};
use restante_archive::{
    CassandraConfig, Config, EngineUrl, LogConfig, Opened, PostgresConfig, PostgresUrl, open,
};
use restante_core::nonzero;
use restante_disk::testing::run_or_ignore;
use restante_fault_proxy::Cluster;
use tokio_postgres::NoTls;

use super::cassandra;

/// The variable with the PostgreSQL server, as set by `dev/services/with postgres`.
pub const POSTGRES_URL: &str = "RESTANTE_POSTGRES_URL";
/// A trial on PostgreSQL uses at most two archives with a handful of connections each: this many fit into the hundred that a
/// server allows by default.
const TRIALS_AT_ONCE_MAX: usize = 8;
/// How long removing what a test has left may take.
const CLEANING_SECONDS_MAX: u64 = 60;

/// An engine under test, in one of its shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    Memory,
    Log,
    /// Windows of a second and segments of three messages, so that every query crosses many.
    LogSmall,
    Sqlite,
    Postgres,
    /// Partitions of a second, so that every query crosses many.
    PostgresSmall,
    Cassandra,
    /// Windows of a second and at most three epochs, so that queries cross several.
    CassandraSmall,
}

impl Engine {
    pub const ALL: [Self; 8] = [
        Self::Memory,
        Self::Log,
        Self::LogSmall,
        Self::Sqlite,
        Self::Postgres,
        Self::PostgresSmall,
        Self::Cassandra,
        Self::CassandraSmall,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Log => "log",
            Self::LogSmall => "log-small",
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
            Self::PostgresSmall => "postgres-small",
            Self::Cassandra => "cassandra",
            Self::CassandraSmall => "cassandra-small",
        }
    }

    /// Whether it loses its contents when it is closed.
    pub fn is_volatile(self) -> bool {
        self == Self::Memory
    }

    /// Whether it stores its data in files on this machine.
    pub fn has_files(self) -> bool {
        match self {
            Self::Log | Self::LogSmall | Self::Sqlite => true,
            Self::Memory | Self::Postgres | Self::PostgresSmall | Self::Cassandra | Self::CassandraSmall => {
                false
            }
        }
    }

    /// Whether it is Cassandra, in any shape. Two servers that append the same new message at once may both report that they
    /// stored it, and messages stored into an epoch while it is dropped may not be counted.
    pub fn is_cassandra(self) -> bool {
        matches!(self, Self::Cassandra | Self::CassandraSmall)
    }

    /// Why it isn't available here.
    fn missing(self) -> Option<String> {
        let (is_built, missing) = match self {
            Self::Memory | Self::Log | Self::LogSmall => (true, None),
            Self::Sqlite => (cfg!(feature = "sqlite"), None),
            Self::Postgres | Self::PostgresSmall => {
                (cfg!(feature = "postgres"), postgres_url().is_none().then_some(POSTGRES_URL))
            }
            Self::Cassandra | Self::CassandraSmall => {
                (cfg!(feature = "cassandra"), cassandra::nodes().is_none().then_some(cassandra::HOST))
            }
        };
        if !is_built {
            return Some("this build is without the engine".to_owned());
        }
        missing.map(|variable| format!("{variable} is not set"))
    }

    /// Its name in RESTANTE_TEST_REQUIRE: the same for all its shapes.
    fn required_as(self) -> &'static str {
        self.name().trim_end_matches("-small")
    }
}

fn postgres_url() -> Option<String> {
    env::var(POSTGRES_URL).ok().filter(|url| !url.is_empty())
}

/// The command line, with no more trials at once than a server has room for.
pub fn arguments() -> Arguments {
    let mut arguments = Arguments::from_args();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    arguments.test_threads.get_or_insert(cores.min(TRIALS_AT_ONCE_MAX));
    arguments
}

/// Ends a run: removes what its tests shared.
pub fn conclude(conclusion: &Conclusion) -> ! {
    cassandra::drop_keyspaces();
    conclusion.exit()
}

/// A test named after an engine and its property. Where the engine isn't available it is ignored; where it is required but not
/// available, it fails.
pub fn trial(engine: Engine, name: &str, test: impl FnOnce() + Send + 'static) -> Trial {
    trial_with(engine, None, name, test)
}

/// The same for a test that also needs a variable of `dev/services`.
pub fn trial_with(
    engine: Engine,
    variable: Option<&'static str>,
    name: &str,
    test: impl FnOnce() + Send + 'static,
) -> Trial {
    let unset =
        move || variable.filter(|name| env::var_os(name).is_none()).map(|name| format!("{name} is not set"));
    Trial::ignorable_test(format!("{}::{name}", engine.name()), move || {
        run_or_ignore(engine.required_as(), engine.missing().or_else(unset), test)
    })
}

/// A test that affects single nodes of a cluster, with the program given by a variable.
pub fn trial_of_nodes(engine: Engine, name: &str, test: impl FnOnce() + Send + 'static) -> Trial {
    let unset =
        || env::var_os(Cluster::VARIABLE).is_none().then(|| format!("{} is not set", Cluster::VARIABLE));
    Trial::ignorable_test(format!("{}-nodes::{name}", engine.name()), move || {
        run_or_ignore("cassandra3", engine.missing().or_else(unset), test)
    })
}

/// Runs an asynchronous test with a new location for archives.
pub fn run<F: Future<Output = ()>>(engine: Engine, test: impl FnOnce(Arc<TestArchive>) -> F) {
    // The location is dropped after the runtime, and so after all connections, even if the test fails.
    let place = Arc::new(TestArchive::new(engine));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(test(place.clone()));
}

/// The location of one test's archive: a folder, a schema. Dropping this removes both.
pub struct TestArchive {
    pub engine: Engine,
    /// The configuration for opening the archive.
    pub config: Config,
    _folder: tempfile::TempDir,
}

impl TestArchive {
    pub fn new(engine: Engine) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut config = Config::new(url(engine, &folder));
        config.topic_bits = super::topic_bits;
        // Few connections, so that many concurrent tests fit into one server; and windows of a day, so that three days have
        // several.
        config.postgres = PostgresConfig {
            window_seconds: nonzero!(86_400),
            read_connections: nonzero!(2),
            write_connections: nonzero!(1),
            ..config.postgres
        };
        match engine {
            Engine::LogSmall => {
                config.log = LogConfig {
                    window_seconds: nonzero!(1),
                    segment_messages: nonzero!(3),
                    open_segments: nonzero!(2),
                    ..config.log
                };
            }
            Engine::PostgresSmall => config.postgres.window_seconds = nonzero!(1),
            Engine::CassandraSmall => {
                config.cassandra = CassandraConfig {
                    window_seconds: nonzero!(1),
                    epoch_seconds: 10,
                    epochs_max: nonzero!(3),
                    ..config.cassandra
                };
            }
            Engine::Memory | Engine::Log | Engine::Sqlite | Engine::Postgres | Engine::Cassandra => {}
        }
        Self { engine, config, _folder: folder }
    }

    pub async fn open(&self) -> Opened {
        open(self.config.clone()).await.unwrap()
    }

    pub async fn reopen(&self, opened: Opened) -> Opened {
        opened.upkeep.close().await.unwrap();
        drop(opened);
        self.open().await
    }

    /// Opens the copy that a backup has written into a folder.
    pub async fn open_copy(&self, folder: &Path) -> Opened {
        let url = match self.engine {
            Engine::Sqlite => EngineUrl::Sqlite(folder.join("archive.db")),
            _ => EngineUrl::Log(folder.to_owned()),
        };
        open(Config { url, ..self.config.clone() }).await.unwrap()
    }

    pub async fn open_read_only(&self) -> Opened {
        open(Config { read_only: true, ..self.config.clone() }).await.unwrap()
    }
}

fn url(engine: Engine, folder: &tempfile::TempDir) -> EngineUrl {
    match engine {
        Engine::Memory => EngineUrl::Memory,
        Engine::Log | Engine::LogSmall => EngineUrl::Log(folder.path().join("archive")),
        Engine::Sqlite => EngineUrl::Sqlite(folder.path().join("archive.db")),
        Engine::Postgres | Engine::PostgresSmall => {
            let server: PostgresUrl = postgres_url().unwrap().parse().unwrap();
            let schema = format!("t_{:016x}", RandomState::new().hash_one("schema"));
            EngineUrl::Postgres(server.with_schema(&schema).unwrap())
        }
        Engine::Cassandra | Engine::CassandraSmall => EngineUrl::Cassandra(cassandra::take_keyspace()),
    }
}

impl Drop for TestArchive {
    fn drop(&mut self) {
        if let EngineUrl::Cassandra(url) = &self.config.url {
            cassandra::give_back(url);
        }
        let EngineUrl::Postgres(url) = self.config.url.clone() else { return };
        // On a separate thread, because this one may belong to a runtime.
        let dropped = thread::spawn(move || drop_schema(&url)).join();
        let is_dropped = matches!(dropped, Ok(Ok(())));
        if !is_dropped && thread::panicking() {
            eprintln!("the schema of the failed test stays behind: {dropped:?}");
        } else {
            assert!(is_dropped, "the test's schema can't be dropped: {dropped:?}");
        }
    }
}

fn drop_schema(url: &PostgresUrl) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let work = async {
        let (client, connection) = tokio_postgres::connect(url.connection(), NoTls).await?;
        let connection = tokio::spawn(connection);
        client.batch_execute(&format!("DROP SCHEMA IF EXISTS {} CASCADE", url.schema())).await?;
        drop(client);
        connection.await.unwrap()
    };
    let limit = Duration::from_secs(CLEANING_SECONDS_MAX);
    let done = runtime.block_on(async { tokio::time::timeout(limit, work).await });
    let done: Result<(), tokio_postgres::Error> = done.map_err(|elapsed| elapsed.to_string())?;
    done.map_err(|error| format!("{error}: {:?}", std::error::Error::source(&error)))
}
