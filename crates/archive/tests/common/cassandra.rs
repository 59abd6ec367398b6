//! Keyspaces for tests. Creating and dropping tables takes seconds in Cassandra, so tests reuse the same ones one after the
//! other.

use std::{
    env,
    hash::{BuildHasher, RandomState},
    sync::{Mutex, OnceLock},
    thread,
};

use restante_archive::CassandraUrl;
use scylla::client::{session::Session, session_builder::SessionBuilder};
use tokio::runtime::Runtime;

/// The variables that `dev/services` sets: the hosts of one node or of three, and their port.
pub const HOST: &str = "RESTANTE_CASSANDRA_HOST";
const PORT: &str = "RESTANTE_CASSANDRA_PORT";

/// Keyspaces that no test uses now, with empty tables.
static FREE: Mutex<Vec<CassandraUrl>> = Mutex::new(Vec::new());
static ADMIN: OnceLock<(Runtime, Session)> = OnceLock::new();

/// The nodes, each a host with its port, separated by commas.
pub fn nodes() -> Option<String> {
    let set = |name| env::var(name).ok().filter(|value| !value.is_empty());
    let (hosts, port) = (set(HOST)?, set(PORT).unwrap_or_else(|| "9042".to_owned()));
    let nodes: Vec<String> = hosts.split(',').map(|host| format!("{host}:{port}")).collect();
    Some(nodes.join(","))
}

/// A keyspace for one test: one that another test has used, or one that doesn't exist yet.
pub fn take_keyspace() -> CassandraUrl {
    FREE.lock().unwrap().pop().unwrap_or_else(|| {
        let name = format!("t_{:016x}", RandomState::new().hash_one("keyspace"));
        format!("cassandra://{}/{name}", nodes().unwrap()).parse().unwrap()
    })
}

/// Empties the keyspace of a test for the next one; after a failed test it stays as it is.
pub fn give_back(url: &CassandraUrl) {
    if thread::panicking() {
        eprintln!("the keyspace of the failed test stays behind: {url}");
        return;
    }
    let name = url.keyspace().to_owned();
    blocking(async move |admin| empty(admin, &name).await);
    FREE.lock().unwrap().push(url.clone());
}

/// Drops the keyspaces of this run.
pub fn drop_keyspaces() {
    let free = std::mem::take(&mut *FREE.lock().unwrap());
    for url in free {
        let drop = format!("DROP KEYSPACE IF EXISTS {}", url.keyspace());
        blocking(async move |admin| execute(admin, &drop).await);
    }
}

/// Executes a statement that returns nothing.
pub async fn execute(session: &Session, cql: &str) {
    let mut statement = scylla::statement::Statement::new(cql);
    statement.set_request_timeout(Some(std::time::Duration::from_secs(120)));
    session.query_unpaged(statement, ()).await.unwrap();
}

/// The first column of a statement's rows.
pub async fn texts(session: &Session, cql: &str) -> Vec<String> {
    let rows = session.query_unpaged(cql, ()).await.unwrap().into_rows_result().unwrap();
    rows.rows::<(String,)>().unwrap().map(|row| row.unwrap().0).collect()
}

/// A separate connection, not the archive's own.
pub async fn connect() -> Session {
    SessionBuilder::new().known_nodes(nodes().unwrap().split(',')).build().await.unwrap()
}

/// Runs on a separate thread, because this one may belong to a runtime.
fn blocking<F: Future<Output = ()>>(work: impl (FnOnce(&'static Session) -> F) + Send) {
    thread::scope(|scope| {
        let working = scope.spawn(|| {
            let (runtime, session) = ADMIN.get_or_init(|| {
                let runtime = tokio::runtime::Builder::new_multi_thread()
                    .worker_threads(1)
                    .enable_all()
                    .build()
                    .unwrap();
                let session = runtime.block_on(connect());
                (runtime, session)
            });
            runtime.block_on(work(session));
        });
        working.join().unwrap();
    });
}

/// Removes all rows. Rows of messages have decreasing timestamps, so they can't be deleted and stored again: their tables are
/// truncated. A table of an epoch is created with `IF NOT EXISTS`, so the next test finds it.
async fn empty(session: &Session, keyspace: &str) {
    let tables = format!("SELECT table_name FROM system_schema.tables WHERE keyspace_name = '{keyspace}'");
    for table in texts(session, &tables).await {
        let table = format!("{keyspace}.{table}");
        let has_rows = {
            let rows = session.query_unpaged(format!("SELECT * FROM {table} LIMIT 1"), ()).await.unwrap();
            rows.into_rows_result().unwrap().rows_num() > 0
        };
        if has_rows {
            execute(session, &format!("TRUNCATE {table}")).await;
        }
    }
}
