//! Tests that need the inside of the engine: plans, faults and damage.

use std::sync::Arc;

use restante_core::{MessageHash, Timestamp};
use rusqlite::Connection;

use super::{append::Writer, open::open, schema};
use crate::{
    Appended, Archive, Config, Direction, Message, Opened, Query, Topics, Upkeep, Walk, open as open_archive,
};

const SECOND: i64 = 1_000_000_000;

fn message(timestamp: i64, hash: u8, topic: &str) -> Message {
    let mut bytes = [hash; 32];
    bytes[24..].copy_from_slice(&timestamp.to_be_bytes());
    Message {
        message_hash: MessageHash(bytes),
        channel: "chan".into(),
        topic: topic.into(),
        timestamp: Timestamp(timestamp),
        body: vec![hash; 700].into(),
    }
}

struct TestArchive {
    folder: tempfile::TempDir,
    config: Config,
}

impl TestArchive {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("archive.db").display());
        Self { config: Config::new(url.parse().unwrap()), folder }
    }

    async fn open(&self) -> Opened {
        open_archive(self.config.clone()).await.unwrap()
    }

    /// A connection like that of an operator with a shell.
    fn shell(&self) -> Connection {
        let connection = Connection::open(self.folder.path().join("archive.db")).unwrap();
        connection.busy_timeout(schema::BUSY).unwrap();
        connection
    }
}

async fn count(archive: &dyn Archive) -> usize {
    let mut walk = Walk::new(Query { limit: 1_000, ..Query::default() });
    let mut rows = 0;
    while let Some(page) = walk.next(archive).await.unwrap() {
        rows += page.rows().count();
    }
    rows
}

fn no_progress(_: u64, _: u64) {}

#[tokio::test]
async fn every_statement_goes_by_an_index() {
    let place = TestArchive::new();
    let opened = place.open().await;
    opened.archive.append((0..100).map(|n| message(n, 1, "a")).collect()).await.unwrap();
    let shell = place.shell();
    for sql in schema::STATEMENTS {
        let mut statement = shell.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let parameters = vec![rusqlite::types::Null; statement.parameter_count()];
        let plan = statement.query_map(rusqlite::params_from_iter(parameters), |row| row.get::<_, String>(3));
        let plan: Vec<String> = plan.unwrap().map(Result::unwrap).collect();
        for step in &plan {
            // There are few generations. The first rows of an index are read with a limit.
            let is_small = step.starts_with("SCAN generation") || step == "SCAN g";
            let is_count = sql == schema::TOPIC_COUNT && step.starts_with("SCAN topic USING COVERING INDEX");
            let is_first = [schema::OLDEST, schema::NEWEST, schema::OLDEST_MESSAGES].contains(&sql)
                && sql.contains("LIMIT")
                && step.starts_with("SCAN message USING")
                && step.ends_with("INDEX message_time");
            assert!(step.starts_with("SEARCH") || is_small || is_count || is_first, "{sql}\n{plan:#?}");
        }
    }
    let plan_of = |sql: &str| -> String {
        let mut statement = shell.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let parameters = vec![rusqlite::types::Null; statement.parameter_count()];
        statement.query_row(rusqlite::params_from_iter(parameters), |row| row.get(3)).unwrap()
    };
    for sql in [schema::SCAN_FORWARD, schema::SCAN_BACKWARD] {
        assert_eq!(
            plan_of(sql),
            "SEARCH message USING COVERING INDEX message_time ((timestamp,hash)>(?,?) AND (timestamp,hash)<(?,?))"
        );
    }
    for sql in [schema::TOPIC_FORWARD, schema::TOPIC_BACKWARD] {
        assert_eq!(
            plan_of(sql),
            "SEARCH message USING COVERING INDEX message_topic \
             (topic=? AND (timestamp,hash)>(?,?) AND (timestamp,hash)<(?,?))"
        );
    }
}

#[tokio::test]
async fn the_file_is_as_the_format_says() {
    let place = TestArchive::new();
    let opened = place.open().await;
    opened.archive.append(vec![message(-1, 1, "a"), message(1_554_076_800 * SECOND, 2, "b")]).await.unwrap();
    let shell = place.shell();
    let pragma = |name: &str| shell.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(pragma("application_id"), i64::from(schema::APPLICATION_ID));
    assert_eq!(pragma("user_version"), i64::from(schema::VERSION));
    assert_eq!(pragma("page_size"), i64::from(schema::PAGE_BYTES));
    assert_eq!(pragma("auto_vacuum"), 2);
    let mode: String = shell.pragma_query_value(None, "journal_mode", |row| row.get(0)).unwrap();
    assert_eq!(mode, "wal");
    let mut statement = shell.prepare("SELECT time, topic, body_bytes FROM messages ORDER BY id").unwrap();
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
    let rows: Vec<(String, String, i64)> = rows.unwrap().map(Result::unwrap).collect();
    assert_eq!(
        rows,
        [
            ("1969-12-31T23:59:59.999999999Z".into(), "a".into(), 700),
            ("2019-04-01T00:00:00.000000000Z".into(), "b".into(), 700)
        ]
    );
}

#[tokio::test]
async fn the_writer_syncs_every_commit() {
    let place = TestArchive::new();
    let connection = {
        drop(place.open().await);
        schema::connect_to_write(&place.folder.path().join("archive.db"), 1 << 20).unwrap()
    };
    let writer = Writer { connection };
    let full: i64 = writer.connection.pragma_query_value(None, "synchronous", |row| row.get(0)).unwrap();
    assert_eq!(full, 2);
}

#[tokio::test]
async fn a_prune_leaves_the_writer_syncing() {
    let place = TestArchive::new();
    let sqlite = place.sqlite();
    sqlite.append((0..500).map(|n| message(n, 1, "a")).collect()).await.unwrap();
    sqlite.prune(&"capacity:10".parse().unwrap(), Timestamp(0)).await.unwrap();
    let writer = sqlite.shared.writer.lock();
    let connection = &writer.as_ref().unwrap().connection;
    let full: i64 = connection.pragma_query_value(None, "synchronous", |row| row.get(0)).unwrap();
    assert_eq!(full, 2);
}

impl TestArchive {
    /// The engine itself.
    fn sqlite(&self) -> Arc<super::Sqlite> {
        open(&self.folder.path().join("archive.db"), &self.config).unwrap()
    }
}

#[tokio::test]
async fn a_full_file_refuses_a_batch_whole_and_takes_it_after_a_prune() {
    let place = TestArchive::new();
    let sqlite = place.sqlite();
    sqlite.append((0..1_000).map(|n| message(n * SECOND, 1, "old")).collect()).await.unwrap();
    let limit = {
        let writer = sqlite.shared.writer.lock();
        let connection = &writer.as_ref().unwrap().connection;
        let pages = schema::pages(connection).unwrap().in_all + 2;
        connection.pragma_update(None, "max_page_count", pages as i64).unwrap();
        pages
    };
    let batch: Vec<Message> =
        (2_000..2_200).map(|n| message(n * SECOND, 1, &format!("new {}", n % 3))).collect();
    let error = sqlite.append(batch.clone()).await.unwrap_err();
    assert_eq!(error.kind(), restante_core::ErrorKind::Full, "{error}");
    assert_eq!(count(&*sqlite).await, 1_000);
    let stats = sqlite.stats().await.unwrap();
    assert_eq!((stats.messages, stats.topics), (1_000, 1), "nothing of the batch is left");
    assert!(sqlite.health().problem.is_none());

    let pruned = sqlite.prune(&"capacity:500".parse().unwrap(), Timestamp(0)).await.unwrap();
    assert_eq!(pruned.messages, 500);
    assert_eq!(sqlite.append(batch).await.unwrap(), [Appended::Stored; 200]);
    assert!(
        sqlite.stats().await.unwrap().disk_bytes <= (limit + 1) * u64::from(schema::PAGE_BYTES) + (16 << 20)
    );
    let topics = Topics::List(vec!["new 1".into()]);
    let page = sqlite.query(&Query { topics, limit: 1_000, ..Query::default() }).await.unwrap();
    assert_eq!(page.len(), 66);
    let report = sqlite.check(&no_progress).await.unwrap();
    assert!(report.is_sound(), "{report:?}");
    assert_eq!(report.messages, 700);
}

#[tokio::test]
async fn damaged_rows_are_counted_once_and_never_served() {
    let place = TestArchive::new();
    let opened = place.open().await;
    opened.archive.append((0..10).map(|n| message(n, 1, "a")).collect()).await.unwrap();
    let shell = place.shell();
    shell.execute("UPDATE message SET hash = x'00' WHERE timestamp = 3", []).unwrap();
    shell.execute("UPDATE message SET topic = 77 WHERE timestamp = 5", []).unwrap();
    for direction in [Direction::Forward, Direction::Backward] {
        for bodies in [true, false] {
            let page = opened.archive.query(&Query { direction, bodies, ..Query::default() }).await.unwrap();
            let timestamps: Vec<i64> = page.rows().map(|row| row.timestamp.0).collect();
            assert_eq!(timestamps, [0, 1, 2, 4, 6, 7, 8, 9]);
        }
    }
    assert_eq!(opened.upkeep.stats().await.unwrap().damaged, 2);
    let report = opened.upkeep.check(&no_progress).await.unwrap();
    assert_eq!(report.messages, 8);
    assert!(report.findings.iter().any(|finding| finding.what.contains("row 4 ")), "{report:?}");
    assert!(report.findings.iter().any(|finding| finding.what.contains("row 6 ")), "{report:?}");

    let report = opened.upkeep.rebuild(&no_progress).await.unwrap();
    assert_eq!((report.messages, report.findings.len()), (8, 2), "{report:?}");
    assert!(opened.upkeep.check(&no_progress).await.unwrap().is_sound());
    assert_eq!(count(&*opened.archive).await, 8);
    assert_eq!(opened.upkeep.stats().await.unwrap().messages, 8);
}

#[tokio::test]
async fn wrong_counts_and_messages_that_stand_twice_are_found_and_mended() {
    let place = TestArchive::new();
    let opened = place.open().await;
    opened
        .archive
        .append((0..10).map(|n| message(n, 1, ["a", "b"][n as usize % 2])).collect())
        .await
        .unwrap();
    let shell = place.shell();
    shell.execute("UPDATE topic SET messages = messages + 7 WHERE topic = 'a'", []).unwrap();
    shell.execute("UPDATE generation SET body_bytes = 1", []).unwrap();
    shell
        .execute(
            "INSERT INTO message (timestamp, hash, topic, body) \
             SELECT timestamp, hash, topic, x'00' FROM message WHERE id = 4",
            [],
        )
        .unwrap();
    let findings = opened.upkeep.check(&no_progress).await.unwrap().findings;
    for what in ["topic 1 has 5", "generation 0 is", "1 messages stand twice"] {
        assert!(findings.iter().any(|finding| finding.what.contains(what)), "{what}: {findings:?}");
    }
    let report = opened.upkeep.rebuild(&no_progress).await.unwrap();
    assert_eq!((report.messages, report.findings.len()), (10, 1), "{report:?}");
    assert!(opened.upkeep.check(&no_progress).await.unwrap().is_sound());
    let page = opened.archive.query(&Query::default()).await.unwrap();
    assert!(page.rows().all(|row| row.body.len() == 700), "the first one counts");
    assert_eq!(opened.upkeep.stats().await.unwrap().body_bytes, 7_000);
}

#[tokio::test]
async fn a_broken_index_is_found_and_made_anew() {
    let place = TestArchive::new();
    let opened = place.open().await;
    opened.archive.append((0..10).map(|n| message(n, 1, "a")).collect()).await.unwrap();
    opened.upkeep.close().await.unwrap();
    drop(opened);
    // A row that an index doesn't have: the index is removed from the schema for a moment.
    let shell = place.shell();
    shell.set_db_config(rusqlite::config::DbConfig::SQLITE_DBCONFIG_DEFENSIVE, false).unwrap();
    shell.pragma_update(None, "writable_schema", true).unwrap();
    let sql = "SELECT sql FROM sqlite_schema WHERE name = 'message_topic'";
    let sql: String = shell.query_row(sql, [], |row| row.get(0)).unwrap();
    shell
        .execute("UPDATE sqlite_schema SET sql = sql || ' WHERE topic < 0' WHERE name = 'message_topic'", [])
        .unwrap();
    drop(shell);
    let shell = place.shell();
    shell.execute("DELETE FROM message WHERE id = 4", []).unwrap();
    shell.pragma_update(None, "writable_schema", true).unwrap();
    shell.execute("UPDATE sqlite_schema SET sql = ?1 WHERE name = 'message_topic'", [sql]).unwrap();
    drop(shell);

    let opened = place.open().await;
    let report = opened.upkeep.check(&no_progress).await.unwrap();
    assert!(!report.is_sound());
    let topics = Topics::List(vec!["a".into()]);
    let page = opened.archive.query(&Query { topics: topics.clone(), ..Query::default() }).await.unwrap();
    assert_eq!(page.rows().count(), 9, "what an index names and isn't there is left out");
    opened.upkeep.rebuild(&no_progress).await.unwrap();
    let report = opened.upkeep.check(&no_progress).await.unwrap();
    assert!(report.is_sound(), "{report:?}");
    assert_eq!(opened.upkeep.stats().await.unwrap().messages, 9);
}

#[tokio::test]
async fn a_scan_that_finds_little_gives_way_to_a_merge() {
    let place = TestArchive::new();
    let sqlite = place.open().await;
    let memory = open_archive(Config::new("memory:".parse().unwrap())).await.unwrap();
    // Two thirds are of topic "early", which ends where "late" begins; "rare" occurs here and there.
    let topic = |n: i64| match n {
        _ if n % 997 == 0 => "rare",
        _ if n < 4_000 => "early",
        _ => "late",
    };
    let messages: Vec<Message> = (0..6_000).map(|n| message(n, 1, topic(n))).collect();
    for opened in [&sqlite, &memory] {
        opened.archive.append(messages.clone()).await.unwrap();
    }
    for wanted in [vec!["early"], vec!["late"], vec!["rare"], vec!["early", "rare"], vec!["late", "rare"]] {
        for direction in [Direction::Forward, Direction::Backward] {
            for (start, end) in [(0, 6_000), (3_990, 6_000), (10, 4_100), (4_500, 4_600)] {
                let topics = Topics::List(wanted.iter().map(|topic| (*topic).to_owned()).collect());
                let query = Query {
                    topics,
                    direction,
                    start: Some(Timestamp(start)),
                    end: Some(Timestamp(end)),
                    limit: 7,
                    ..Query::default()
                };
                let page = sqlite.archive.query(&query).await.unwrap();
                let expected = memory.archive.query(&query).await.unwrap();
                let rows: Vec<_> = page.rows().collect();
                assert_eq!(rows, expected.rows().collect::<Vec<_>>(), "{query:?}");
                assert_eq!(page.next, expected.next, "{query:?}");
            }
        }
    }
}

#[tokio::test]
async fn hashes_are_found_in_every_generation() {
    let place = TestArchive::new();
    let opened = place.open().await;
    let of = |n: i64| message(n, 1, "a");
    opened.archive.append(vec![of(1)]).await.unwrap();
    // As if many messages had been stored and removed.
    for (generation, n) in [(1, 2), (5, 3), (6, 4)] {
        let id: i64 = generation << schema::GENERATION_BITS;
        let shell = place.shell();
        shell
            .execute(
                "INSERT INTO message SELECT ?1, timestamp, zeroblob(32), topic, body FROM message WHERE id = 1",
                [id],
            )
            .unwrap();
        opened.archive.append(vec![of(n)]).await.unwrap();
        shell.execute("DELETE FROM message WHERE id = ?1", [id]).unwrap();
    }
    let generations: i64 =
        place.shell().query_row("SELECT count(*) FROM generation", [], |row| row.get(0)).unwrap();
    assert_eq!(generations, 4);
    for n in 1..=4 {
        let hashes = vec![of(n).message_hash];
        let page = opened.archive.query(&Query { hashes, ..Query::default() }).await.unwrap();
        assert_eq!(page.rows().map(|row| row.timestamp.0).collect::<Vec<_>>(), [n]);
    }
    let report = opened.upkeep.check(&no_progress).await.unwrap();
    assert!(report.is_sound(), "{report:?}");
}

#[tokio::test]
async fn after_a_failed_sync_nothing_is_written_until_it_is_opened_again() {
    let place = TestArchive::new();
    let sqlite = place.sqlite();
    let messages: Vec<Message> = (0..10).map(|n| message(n, 1, "a")).collect();
    sqlite.append(messages.clone()).await.unwrap();
    let failure = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_IOERR_FSYNC);
    let error = sqlite.shared.write_failed(rusqlite::Error::SqliteFailure(failure, None));
    assert_eq!(error.kind(), restante_core::ErrorKind::Unavailable);

    let error = sqlite.append(vec![message(11, 1, "a")]).await.unwrap_err();
    assert_eq!(error.kind(), restante_core::ErrorKind::Unavailable);
    let error = sqlite.prune(&"capacity:1".parse().unwrap(), Timestamp(0)).await.unwrap_err();
    assert_eq!(error.kind(), restante_core::ErrorKind::Unavailable);
    let health = sqlite.health();
    assert!(health.problem.is_some_and(|problem| problem.contains("sync")) && health.since.is_some());
    assert_eq!(count(&*sqlite).await, 10, "it still answers");
    sqlite.close().await.unwrap();
    let log = super::open::beside(&place.folder.path().join("archive.db"), "-wal");
    assert!(std::fs::metadata(log).unwrap().len() > 0, "the log may be all that the disk has kept");
    drop(sqlite);

    let sqlite = place.sqlite();
    assert_eq!(sqlite.append(messages).await.unwrap(), [Appended::Duplicate; 10]);
    assert_eq!(sqlite.append(vec![message(11, 1, "a")]).await.unwrap(), [Appended::Stored]);
    assert!(sqlite.health().problem.is_none());
}

/// A topic that counts as known but has no row in the file would leave its messages without a name.
#[tokio::test]
async fn a_topic_of_a_commit_that_failed_is_not_known() {
    let place = TestArchive::new();
    let sqlite = place.sqlite();
    {
        let writer = sqlite.shared.writer.lock();
        // The violation is detected when the transaction commits.
        let fails_at_commit = "PRAGMA foreign_keys = ON;
            CREATE TEMP TABLE parent (id INTEGER PRIMARY KEY);
            CREATE TEMP TABLE child (id INTEGER REFERENCES parent (id) DEFERRABLE INITIALLY DEFERRED);
            CREATE TEMP TRIGGER fails_at_commit AFTER INSERT ON main.message BEGIN INSERT INTO child VALUES (1); END;";
        writer.as_ref().unwrap().connection.execute_batch(fails_at_commit).unwrap();
    }
    sqlite.append(vec![message(1, 1, "new")]).await.unwrap_err();
    {
        let writer = sqlite.shared.writer.lock();
        writer.as_ref().unwrap().connection.execute_batch("DROP TRIGGER temp.fails_at_commit").unwrap();
    }
    assert_eq!(sqlite.append(vec![message(1, 1, "new")]).await.unwrap(), [Appended::Stored]);
    sqlite.close().await.unwrap();
    drop(sqlite);
    let opened = place.open().await;
    let topics = Topics::List(vec!["new".to_owned()]);
    let page = opened.archive.query(&Query { topics, ..Query::default() }).await.unwrap();
    assert_eq!(page.rows().count(), 1);
    let report = opened.upkeep.check(&no_progress).await.unwrap();
    assert!(report.is_sound(), "{report:?}");
}

#[tokio::test]
async fn the_log_is_emptied_and_goes_when_the_archive_is_closed() {
    let place = TestArchive::new();
    let sqlite = place.sqlite();
    let file = place.folder.path().join("archive.db");
    let log = super::open::beside(&file, "-wal");
    for n in 0..40 {
        let mut large = message(n, 1, "a");
        large.body = vec![1; 1 << 20].into();
        sqlite.append(vec![large]).await.unwrap();
    }
    assert!(super::checkpoint::run(&sqlite.shared, super::checkpoint::End::Truncate).unwrap());
    assert_eq!(std::fs::metadata(&log).unwrap().len(), 0);
    assert!(std::fs::metadata(&file).unwrap().len() > 40 << 20);
    sqlite.append(vec![message(100, 1, "a")]).await.unwrap();
    sqlite.close().await.unwrap();
    assert!(!log.exists());
    assert_eq!(count(&*sqlite).await, 41);
}
