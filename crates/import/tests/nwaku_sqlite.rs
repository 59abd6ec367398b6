//! nwaku's and go-waku's SQLite files, created as their sources create them.
#![expect(clippy::unwrap_used, reason = "a test that can't go on has failed")]

mod common;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use common::{CONTENT_TOPIC, PUBSUB_TOPIC, Sample, read_all, samples};
use restante_core::ErrorKind;
use restante_import::{Extent, Findings, Location, Options, Owner, open};
use rusqlite::{Connection, params};
use tempfile::TempDir;

/// nwaku v0.35.1 with its new store.
const NEW: &str = "CREATE TABLE Message (pubsubTopic BLOB NOT NULL, contentTopic BLOB NOT NULL, payload BLOB,
    version INTEGER NOT NULL, id BLOB, messageHash BLOB PRIMARY KEY, timestamp INTEGER NOT NULL, meta BLOB) WITHOUT ROWID;
    CREATE INDEX i_ts ON Message (timestamp);";
/// nwaku's legacy store, and go-waku v0.10.0.
const LEGACY: &str = "CREATE TABLE message (pubsubTopic BLOB NOT NULL, contentTopic BLOB NOT NULL, payload BLOB,
    version INTEGER NOT NULL, timestamp INTEGER NOT NULL, id BLOB, messageHash BLOB, storedAt INTEGER NOT NULL,
    CONSTRAINT messageIndex PRIMARY KEY (messageHash)) WITHOUT ROWID;
    CREATE INDEX i_ts ON message (storedAt);
    CREATE INDEX i_query ON message (contentTopic, pubsubTopic, storedAt, id);";
/// go-waku before it adopted nwaku's columns.
const OLDEST: &str =
    "CREATE TABLE message (id BLOB, receiverTimestamp INTEGER NOT NULL, senderTimestamp INTEGER NOT NULL,
    contentTopic BLOB NOT NULL, pubsubTopic BLOB NOT NULL, payload BLOB, version INTEGER NOT NULL DEFAULT 0,
    CONSTRAINT messageIndex PRIMARY KEY (id, pubsubTopic)) WITHOUT ROWID;
    CREATE INDEX message_senderTimestamp ON message(senderTimestamp);
    CREATE INDEX message_receiverTimestamp ON message(receiverTimestamp);";

struct Store {
    _folder: TempDir,
    file: PathBuf,
    connection: Connection,
}

impl Store {
    fn new(schema: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("store.sqlite3");
        let connection = Connection::open(&file).unwrap();
        connection.execute_batch("PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0;").unwrap();
        connection.execute_batch(schema).unwrap();
        Self { _folder: folder, file, connection }
    }

    /// A row of [`NEW`].
    fn put(&self, sample: &Sample) {
        let hash = sample.hash().0;
        self.put_as(sample, &hash);
    }

    fn put_as(&self, sample: &Sample, hash: &[u8]) {
        let Sample { payload, meta, version, timestamp, .. } = sample;
        let sql = "INSERT INTO Message VALUES (?, ?, ?, ?, ?, ?, ?, ?)";
        let (pubsub, content) = (PUBSUB_TOPIC.as_bytes(), CONTENT_TOPIC.as_bytes());
        self.connection
            .execute(sql, params![pubsub, content, payload, version, b"id", hash, timestamp, meta])
            .unwrap();
    }

    fn location(&self) -> Location {
        Location::of(&self.file).unwrap().unwrap()
    }
}

fn files_beside(file: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let paths = fs::read_dir(file.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path());
    paths.map(|path| (path.clone(), fs::read(&path).unwrap())).collect()
}

#[tokio::test]
async fn messages_of_nwaku_are_restored_to_the_byte() {
    let store = Store::new(NEW);
    let samples = samples(10);
    samples.iter().for_each(|sample| store.put(sample));
    let source = open(store.location(), None, Options::default()).await.unwrap();
    assert_eq!((source.owner, source.extent), (Owner::Nwaku, Some(Extent::Rows(10))));
    let read = read_all(source).await;
    assert_eq!(read.messages, samples.iter().map(Sample::message).collect::<Vec<_>>());
    assert_eq!((read.refused, read.renamed, read.done), (Findings::default(), Findings::default(), 10));
}

#[tokio::test]
async fn the_legacy_store_and_go_waku_are_read() {
    let store = Store::new(LEGACY);
    let samples = samples(10);
    for sample in &samples {
        let sql = "INSERT INTO message VALUES (?, ?, ?, ?, ?, ?, ?, ?)";
        let (pubsub, content) = (PUBSUB_TOPIC.as_bytes(), CONTENT_TOPIC.as_bytes());
        let Sample { payload, version, timestamp, .. } = sample;
        let hash = sample.without_meta().hash().0;
        store
            .connection
            .execute(sql, params![pubsub, content, payload, version, timestamp, b"id", hash, timestamp + 5])
            .unwrap();
    }
    let read = read_all(open(store.location(), Some(Owner::Nwaku), Options::default()).await.unwrap()).await;
    let expected: Vec<_> = samples.iter().map(|sample| sample.without_meta().message()).collect();
    assert_eq!(read.messages, expected);
    assert_eq!(read.refused, Findings::default());
    let last = samples.last().unwrap().timestamp + 5;
    assert_eq!(read.after, Some(last.to_string()), "it goes on by the time of storing");
}

/// A foreign file may contain anything. A view, a virtual table or a generated column would run code of the file.
#[tokio::test]
async fn nothing_that_a_file_defines_is_run() {
    let columns = "pubsubTopic, contentTopic, payload, version, id, messageHash, timestamp, meta";
    let endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)";
    let view = format!(
        "CREATE VIEW message ({columns}) AS {endless} SELECT x'', x'', x'', 0, x'', x'', i, x'' FROM n WHERE i < 0;"
    );
    let virtual_table =
        format!("CREATE VIRTUAL TABLE message USING fts5 ({});", columns.replace("version", "ver"));
    let generated = NEW.replace("payload BLOB", "payload BLOB AS (zeroblob(1000000000))");
    for (schema, why) in [
        (view, "no table of messages"),
        (virtual_table, "no table of messages"),
        (generated, "no column payload"),
    ] {
        let store = Store::new(&schema);
        let error = open(store.location(), None, Options::default()).await.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains(why), "{error}");
    }
}

#[tokio::test]
async fn rows_without_hashes_are_read() {
    let store = Store::new(OLDEST);
    let sample = samples(1).remove(0).without_meta();
    let sql = "INSERT INTO message VALUES (?, ?, ?, ?, ?, ?, ?)";
    // go-waku bound topics as text.
    let Sample { payload, version, timestamp, .. } = &sample;
    store
        .connection
        .execute(
            sql,
            params![vec![1_u8; 72], timestamp, timestamp, CONTENT_TOPIC, PUBSUB_TOPIC, payload, version],
        )
        .unwrap();
    let read = read_all(open(store.location(), None, Options::default()).await.unwrap()).await;
    assert_eq!(read.messages, [sample.message()]);
}

#[tokio::test]
async fn a_counter_instead_of_a_hash_is_ignored() {
    let store = Store::new(NEW);
    let sample = samples(1).remove(0);
    store.put(&sample);
    store.connection.execute("UPDATE Message SET messageHash = 17", []).unwrap();
    let read = read_all(open(store.location(), None, Options::default()).await.unwrap()).await;
    assert_eq!((read.messages, read.refused.count), (vec![sample.message()], 0));
}

#[tokio::test]
async fn invalid_rows_are_refused_and_reported() {
    let store = Store::new(NEW);
    let samples = samples(8);
    samples.iter().for_each(|sample| store.put(sample));
    let edits = [
        "payload = x'00'",
        "pubsubTopic = x'ff'",
        "timestamp = 0",
        "timestamp = 'noon'",
        "version = -1",
        "meta = zeroblob(65)",
        "payload = zeroblob(20000000)",
    ];
    for (edit, sample) in edits.iter().zip(&samples) {
        let sql = format!("UPDATE Message SET {edit} WHERE messageHash = ?");
        assert_eq!(store.connection.execute(&sql, [sample.hash().0]).unwrap(), 1);
    }
    let read = read_all(open(store.location(), None, Options::default()).await.unwrap()).await;
    assert_eq!(read.messages, [samples[7].message()]);
    assert_eq!(read.refused.count, edits.len() as u64);
    let reported = read.refused.listed.join("\n");
    for (why, sample) in [
        "the stored hash is",
        "pubsubTopic is not UTF-8",
        "the timestamp is missing",
        "timestamp is not an integer",
        "version -1",
        "meta of 65 bytes",
        "payload of 20000000 bytes is too long",
    ]
    .iter()
    .zip(&samples)
    {
        assert!(
            reported.contains(&format!("message {}: {why}", sample.hash())),
            "{why} is not in\n{reported}"
        );
    }
}

#[tokio::test]
async fn a_message_with_another_hash_is_imported_by_option() {
    let store = Store::new(NEW);
    let sample = samples(1).remove(0);
    store.put_as(&sample, &[7; 32]);
    let options = Options { rehash: true, ..Options::default() };
    let read = read_all(open(store.location(), None, options).await.unwrap()).await;
    assert_eq!((read.messages, read.refused.count), (vec![sample.message()], 0));
    assert_eq!(read.renamed.count, 1);
    assert!(read.renamed.listed[0].contains(&sample.hash().to_string()), "{:?}", read.renamed);
}

#[tokio::test]
async fn reading_continues_after_a_batch() {
    let store = Store::new(NEW);
    let samples = samples(9_000);
    store.connection.execute_batch("BEGIN").unwrap();
    samples.iter().for_each(|sample| store.put(sample));
    store.connection.execute_batch("COMMIT").unwrap();
    let mut source = open(store.location(), None, Options::default()).await.unwrap();
    let first = source.next().await.unwrap().unwrap();
    drop(source);
    assert!(first.messages.len() < samples.len());
    let after = first.after.clone();
    assert_eq!(after, Some(first.messages.last().unwrap().timestamp.nanos().to_string()));
    let rest =
        read_all(open(store.location(), None, Options { after, ..Options::default() }).await.unwrap()).await;
    // The rows of the last moment are returned again: others of that moment may not have been read.
    assert_eq!(rest.messages[0], *first.messages.last().unwrap());
    let all: Vec<_> = first.messages.iter().chain(&rest.messages[1..]).cloned().collect();
    assert_eq!(all, samples.iter().map(Sample::message).collect::<Vec<_>>());
}

/// The rows are in the WAL, and the server has both files open.
#[tokio::test]
async fn a_file_is_read_while_a_server_writes_it() {
    let store = Store::new(NEW);
    let samples = samples(10);
    samples[..5].iter().for_each(|sample| store.put(sample));
    let before = files_beside(&store.file);
    assert!(before.keys().any(|path| path.ends_with("store.sqlite3-wal")));
    let read = read_all(open(store.location(), None, Options::default()).await.unwrap()).await;
    assert_eq!(read.messages.len(), 5);
    let after = files_beside(&store.file);
    for name in ["store.sqlite3", "store.sqlite3-wal"] {
        let of = |files: &BTreeMap<PathBuf, Vec<u8>>| files[&store.file.with_file_name(name)].clone();
        assert_eq!(of(&before), of(&after), "{name}");
    }
    samples[5..].iter().for_each(|sample| store.put(sample));
    let read = read_all(open(store.location(), None, Options::default()).await.unwrap()).await;
    assert_eq!(read.messages.len(), 10);
}

/// A server that stops properly removes its WAL, one that is killed leaves it.
#[tokio::test]
async fn a_file_without_a_server_is_not_changed() {
    let store = Store::new(NEW);
    let samples = samples(3);
    samples.iter().for_each(|sample| store.put(sample));
    let other = tempfile::tempdir().unwrap();
    let copy = other.path().join("50%?#.db");
    fs::copy(&store.file, &copy).unwrap();
    fs::copy(store.file.with_file_name("store.sqlite3-wal"), other.path().join("50%?#.db-wal")).unwrap();
    let before = files_beside(&copy);
    let read = read_all(open(Location::Sqlite(copy.clone()), None, Options::default()).await.unwrap()).await;
    assert_eq!(read.messages.len(), 3);
    let mut after = files_beside(&copy);
    after.remove(&other.path().join("50%?#.db-shm")); // the index of the WAL, which SQLite rebuilds
    assert_eq!(after, before);

    let Store { _folder, file, connection } = store;
    connection.close().unwrap();
    let before = files_beside(&file);
    assert_eq!(before.len(), 1, "{:?}", before.keys());
    let read = read_all(open(Location::Sqlite(file.clone()), None, Options::default()).await.unwrap()).await;
    assert_eq!(read.messages.len(), 3);
    assert_eq!(files_beside(&file), before);
}

#[tokio::test]
async fn errors_say_that_it_is_not_an_archive() {
    let store = Store::new("CREATE TABLE other (x)");
    let error = open(store.location(), None, Options::default()).await.unwrap_err().to_string();
    assert!(error.contains("no table of messages"), "{error}");
    let error =
        open(store.location(), Some(Owner::Status), Options::default()).await.unwrap_err().to_string();
    assert!(error.contains("an archive of nwaku, not of a Status mailserver"), "{error}");
    let store = Store::new("CREATE TABLE message (payload BLOB, timestamp INTEGER)");
    let error = open(store.location(), None, Options::default()).await.unwrap_err().to_string();
    assert!(error.contains("no column pubsubTopic"), "{error}");
}

/// Any damage to the file leads to an error or to fewer messages, but never to a panic or to a wrong message.
#[tokio::test]
async fn a_damaged_file_is_an_error_or_refused() {
    let store = Store::new(NEW);
    let samples = samples(40);
    samples.iter().for_each(|sample| store.put(sample));
    let Store { _folder, file, connection } = store;
    connection.close().unwrap();
    let sound = fs::read(&file).unwrap();
    let known: Vec<_> = samples.iter().map(Sample::message).collect();
    let mut was_seen = 0;
    for at in (16..sound.len()).step_by(sound.len() / 200) {
        let mut damaged = sound.clone();
        damaged[at] ^= 0x55;
        fs::write(&file, damaged).unwrap();
        let Ok(mut source) = open(Location::Sqlite(file.clone()), None, Options::default()).await else {
            was_seen += 1;
            continue;
        };
        loop {
            match source.next().await {
                Ok(Some(batch)) => {
                    was_seen += batch.refused.count;
                    // The hash does not cover the version.
                    let stray = batch.messages.iter().filter(|message| {
                        !known.iter().any(|known| known.message_hash == message.message_hash)
                    });
                    assert_eq!(stray.count(), 0, "byte {at}");
                }
                Ok(None) => break,
                Err(_) => {
                    was_seen += 1;
                    break;
                }
            }
        }
    }
    assert!(was_seen > 20, "{was_seen}");
}
