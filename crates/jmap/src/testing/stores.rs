//! Records and blobs of a test: in memory, or on the engines of servers that share their stores.
//!
//! `RESTANTE_TEST_RECORDS` names the engine of records (`memory`, `postgres` or `cassandra`), `RESTANTE_TEST_BLOBS` that of blobs
//! (`memory` or `s3`). The addresses of their servers are in the variables that `dev/services/with` sets.

use std::{
    env,
    hash::{BuildHasher, RandomState},
    sync::Arc,
    thread,
    time::Duration,
};

use restante_blobs::{S3Config, S3Keys};
use restante_core::{Clock, nonzero};
use restante_records::{CassandraUrl, EngineUrl, PostgresConfig, PostgresUrl, Schema};
use tokio::sync::Mutex;
use tokio_postgres::NoTls;

/// The timeout for removing the leftovers of a test.
const CLEANUP: Duration = Duration::from_secs(60);

/// Tests share the tables of one keyspace in Cassandra: concurrent creation of the same tables would fail.
static OPENING: Mutex<()> = Mutex::const_new(());

/// Stores that are not shared with other tests.
pub(super) struct Stores {
    pub(super) records: restante_records::Opened,
    pub(super) blobs: restante_blobs::Opened,
    pub(super) cleanup: Cleanup,
}

impl Stores {
    /// Stores in memory.
    pub(super) async fn in_memory(schema: Schema, clock: Arc<dyn Clock>) -> Self {
        let records = restante_records::Config::new(EngineUrl::Memory, schema);
        let blobs = restante_blobs::Config::new(restante_blobs::EngineUrl::Memory);
        Self {
            records: restante_records::open(records).await.unwrap(),
            blobs: restante_blobs::open(restante_blobs::Config { clock, ..blobs }).await.unwrap(),
            cleanup: Cleanup { schema: None, folder: tempfile::tempdir().unwrap() },
        }
    }

    /// Stores on the engines that the environment names.
    pub(super) async fn open(schema: Schema, clock: Arc<dyn Clock>) -> Self {
        let (url, cleanup) = records_url();
        let mut config = restante_records::Config::new(url, schema);
        // Few connections, so that many concurrent tests can share one server.
        config.postgres = PostgresConfig {
            read_connections: nonzero!(2),
            write_connections: nonzero!(1),
            ..PostgresConfig::default()
        };
        let opening = OPENING.lock().await;
        let records = restante_records::open(config).await.unwrap();
        drop(opening);
        let blobs = restante_blobs::open(blobs_config(clock, &cleanup)).await.unwrap();
        Self { records, blobs, cleanup }
    }
}

/// Removes the leftovers of a test in a server or in a folder when it is dropped. Leftovers in Cassandra and S3 stay.
pub(super) struct Cleanup {
    schema: Option<PostgresUrl>,
    folder: tempfile::TempDir,
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        let Some(url) = self.schema.take() else { return };
        // On a separate thread, because this one belongs to a runtime.
        let dropped = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async { tokio::time::timeout(CLEANUP, drop_schema(&url)).await })
        });
        if !matches!(dropped.join(), Ok(Ok(Ok(())))) {
            eprintln!("the schema of a test stays in the database");
        }
    }
}

async fn drop_schema(url: &PostgresUrl) -> Result<(), tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url.connection(), NoTls).await?;
    let connection = tokio::spawn(connection);
    client.batch_execute(&format!("DROP SCHEMA IF EXISTS {} CASCADE", url.schema())).await?;
    drop(client);
    connection.await.unwrap_or(Ok(()))
}

fn records_url() -> (EngineUrl, Cleanup) {
    let mut cleanup = Cleanup { schema: None, folder: tempfile::tempdir().unwrap() };
    let name = format!("t_{:016x}", RandomState::new().hash_one("store"));
    let url = match env::var("RESTANTE_TEST_RECORDS").as_deref() {
        Err(_) | Ok("" | "memory") => EngineUrl::Memory,
        Ok("postgres") => {
            let server: PostgresUrl = variable("RESTANTE_POSTGRES_URL").parse().unwrap();
            let url = server.with_schema(&name).unwrap();
            cleanup.schema = Some(url.clone());
            EngineUrl::Postgres(url)
        }
        Ok("cassandra") => {
            let server = format!("{}/restante_test", variable("RESTANTE_CASSANDRA_URL"));
            EngineUrl::Cassandra(server.parse::<CassandraUrl>().unwrap().with_store(&name).unwrap())
        }
        Ok(other) => panic!("RESTANTE_TEST_RECORDS is {other:?}: use memory, postgres or cassandra"),
    };
    (url, cleanup)
}

fn blobs_config(clock: Arc<dyn Clock>, cleanup: &Cleanup) -> restante_blobs::Config {
    let new = |url| restante_blobs::Config { clock, ..restante_blobs::Config::new(url) };
    match env::var("RESTANTE_TEST_BLOBS").as_deref() {
        Err(_) | Ok("" | "memory") => new(restante_blobs::EngineUrl::Memory),
        Ok("s3") => {
            let prefix = format!("{:016x}", RandomState::new().hash_one("prefix"));
            let url = format!("s3://{}/test/{prefix}", variable("RESTANTE_S3_BUCKET"));
            let mut config = new(url.parse().unwrap());
            config.s3 = S3Config {
                endpoint: variable("RESTANTE_S3_URL"),
                region: variable("RESTANTE_S3_REGION"),
                manifest_interval_ms: 0,
                ..S3Config::default()
            };
            config.s3_keys = Some(S3Keys {
                access_key: variable("RESTANTE_S3_ACCESS_KEY"),
                secret_key: variable("RESTANTE_S3_SECRET_KEY"),
            });
            config.s3_folder = Some(cleanup.folder.path().to_owned());
            config
        }
        Ok(other) => panic!("RESTANTE_TEST_BLOBS is {other:?}: use memory or s3"),
    }
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("{name} is not set: use dev/services/with"))
}
