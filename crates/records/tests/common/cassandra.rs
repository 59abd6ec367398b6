//! Stores of tests in Cassandra. Making a table takes seconds, so they share the tables of one keyspace.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{Mutex, PoisonError},
    thread,
};

use restante_records::{CassandraUrl, Config, EngineUrl, open};
use scylla::{
    client::{session::Session, session_builder::SessionBuilder},
    value::{CqlValue, Row},
};

use super::{
    engines::{CASSANDRA_HOST, CASSANDRA_PORT, set},
    schema,
};

const KEYSPACE: &str = "restante_test";
/// The tables with the columns that follow the name of the store. The accounts come first: rows of other tables that
/// no account refers to belong to commits that are not made yet.
const TABLES: [(&str, &[&str]); 7] = [
    ("account", &["account", "key", "value", "version"]),
    ("accounts", &["bucket", "account"]),
    ("body", &["account", "bucket", "number", "blobs", "bytes"]),
    ("reference", &["segment", "number", "account", "blobs"]),
    ("feed", &["segment", "slot", "value", "account", "done"]),
    ("follower", &["name", "account", "number"]),
    ("meta", &["key", "value"]),
];

/// Whether the tables exist. Two servers that create the same ones at once may disturb each other.
static ARE_MADE: Mutex<bool> = Mutex::new(false);

/// The URL of a new store.
pub fn new_place() -> CassandraUrl {
    let server = url_of(&set(CASSANDRA_HOST).unwrap());
    make_tables(&server);
    server.with_store(&format!("t_{:016x}", RandomState::new().hash_one("store"))).unwrap()
}

/// The URL of the keyspace on some hosts.
pub fn url_of(hosts: &str) -> CassandraUrl {
    let port = set(CASSANDRA_PORT).unwrap_or_else(|| "9042".to_owned());
    let nodes: Vec<String> = hosts.split(',').map(|host| format!("{host}:{port}")).collect();
    format!("cassandra://{}/{KEYSPACE}", nodes.join(",")).parse().unwrap()
}

/// The same store, reached by other names of its nodes.
pub fn elsewhere(url: &CassandraUrl) -> CassandraUrl {
    let text = url.to_string().replacen("127.0.0.1", "localhost", 1);
    assert_ne!(text, url.to_string(), "the node has another name");
    text.parse().unwrap()
}

fn make_tables(server: &CassandraUrl) {
    let mut are_made = ARE_MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if *are_made {
        return;
    }
    let config = Config::new(EngineUrl::Cassandra(server.with_store("first").unwrap()), schema());
    let made = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { open(config).await.unwrap().upkeep.close().await.unwrap() });
    });
    made.join().unwrap();
    *are_made = true;
}

pub async fn session(url: &CassandraUrl) -> Session {
    let builder = SessionBuilder::new().known_nodes(url.nodes()).use_keyspace(url.keyspace(), false);
    builder.build().await.unwrap()
}

/// The rows that a statement returns, if it returns any.
pub async fn run_cql(session: &Session, cql: &str, values: Vec<Option<CqlValue>>) -> Vec<Row> {
    let result = session.query_unpaged(cql, values).await.unwrap();
    if !result.is_rows() {
        return Vec::new();
    }
    result.into_rows_result().unwrap().rows::<Row>().unwrap().map(Result::unwrap).collect()
}

/// Copies all rows of a store to another one, as the restore of a snapshot does.
pub async fn copy(from: &CassandraUrl, to: &CassandraUrl) {
    let session = session(from).await;
    for (table, columns) in TABLES {
        let list = columns.join(", ");
        let select = format!("SELECT {list} FROM {table} WHERE store = ? ALLOW FILTERING");
        let rows = run_cql(&session, &select, vec![Some(CqlValue::Text(from.store().to_owned()))]).await;
        let marks = ", ?".repeat(columns.len());
        let insert = format!("INSERT INTO {table} (store, {list}) VALUES (?{marks})");
        let insert = session.prepare(insert).await.unwrap();
        for row in rows {
            let mut values = vec![Some(CqlValue::Text(to.store().to_owned()))];
            values.extend(row.columns);
            session.execute_unpaged(&insert, values).await.unwrap();
        }
    }
}
