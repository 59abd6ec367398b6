//! Tests of the `cassandra` engine alone: copies, interrupted appends, damage, dropped tables, an unavailable cluster.
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

mod common;

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use common::{
    cassandra::{connect, execute, texts},
    engines::{self, Engine, TestArchive},
    message, rows, sorted, walk,
};
use restante_archive::{
    Appended, Archive, Comparison, Config, Copied, Copier, EngineUrl, Message, Query, Scope, SpoolConfig,
    TimeRange, Topics, open,
};
use restante_core::{Clock, Cursor, ErrorKind, SystemClock, Timestamp, nonzero};

const SECOND: i64 = 1_000_000_000;

type Run = fn(Arc<TestArchive>) -> Pin<Box<dyn Future<Output = ()>>>;

/// Lists test functions by name.
macro_rules! promises {
    ($($promise:ident),* $(,)?) => { [$((stringify!($promise), (|place| Box::pin($promise(place))) as Run)),*] };
}

fn main() {
    let promises = promises![
        a_row_without_a_value_is_no_message,
        duplicates_are_known_among_many_others,
        the_first_body_stays,
        keys_without_a_message_are_skipped,
        damage_is_found_and_keys_are_made_anew,
        a_removed_epoch_leaves_no_table,
        an_epoch_is_removed_as_empty_only_if_it_is,
        counts_are_kept_of_windows_that_are_quiet,
        a_table_that_is_gone_is_unavailable,
        a_cluster_that_is_away_is_unavailable,
        while_the_cluster_is_away_messages_wait_in_the_spool,
        a_newer_layout_is_refused,
        a_reader_of_nothing_finds_nothing,
    ];
    let mut trials = Vec::new();
    for (name, promise) in promises {
        let engine = Engine::CassandraSmall;
        trials.push(engines::trial(engine, name, move || engines::run(engine, promise)));
    }
    let move_through_all = || engines::run(Engine::Cassandra, a_move_through_all_engines_is_complete);
    let (engine, needs) = (Engine::Cassandra, Some(engines::POSTGRES_URL));
    trials.push(engines::trial_with(
        engine,
        needs,
        "a_move_through_all_engines_is_complete",
        move_through_all,
    ));
    engines::conclude(&libtest_mimic::run(&engines::arguments(), trials))
}

fn keyspace(place: &TestArchive) -> String {
    match &place.config.url {
        EngineUrl::Cassandra(url) => url.keyspace().to_owned(),
        other => panic!("{other} is no keyspace"),
    }
}

fn every_second(seconds: i64) -> Vec<Message> {
    (0..seconds).map(|n| message(n * SECOND, 1, &format!("topic {}", n % 7))).collect()
}

async fn assert_equal(a: &dyn Archive, b: &dyn Archive) {
    let mut comparison = Comparison::new(a, b, Scope { range: TimeRange::default(), bodies: true, seed: 11 });
    while comparison.step().await.unwrap() {}
    assert_eq!(comparison.differing(), []);
}

/// How long a copy may run before it is interrupted; doubled each time until the copy completes within that time.
const CUT_AFTER: Duration = Duration::from_millis(40);

/// Copies everything; the copy is interrupted at any point and continues from the last known progress. Both archives are opened
/// again each time.
async fn move_all(from: &TestArchive, to: &TestArchive) -> Copied {
    let (mut copied, mut limit, mut cuts) = (Copied::default(), CUT_AFTER, 0);
    loop {
        let (source, target) = (from.open_read_only().await, to.open().await);
        let mut copier = Copier::new(&*source.archive, &*target.archive, TimeRange::default(), copied);
        let copying = async { while copier.step().await.unwrap() {} };
        let is_done = tokio::time::timeout(limit, copying).await.is_ok();
        copied = copier.copied();
        for opened in [source, target] {
            opened.upkeep.close().await.unwrap();
        }
        if is_done {
            assert!(cuts > 0, "it was never cut short");
            return copied;
        }
        cuts += 1;
        limit *= 2;
    }
}

/// From the embedded engine to Cassandra, on to PostgreSQL, and back.
async fn a_move_through_all_engines_is_complete(between: Arc<TestArchive>) {
    const MESSAGES: usize = 30_000;
    let (first, last) = (TestArchive::new(Engine::Log), TestArchive::new(Engine::Log));
    let postgres = TestArchive::new(Engine::Postgres);
    let mut messages: Vec<Message> = (0..MESSAGES as i64)
        .map(|n| message(n / 3 * 50_000_000, n as u8, &format!("topic {}", n % 31)))
        .collect();
    for (n, len) in [(5, 40_000), (600, 700_000), (9_000, 3_000_000)] {
        messages[n].body = vec![n as u8; len].into();
    }
    let filled = first.open().await;
    for batch in messages.chunks(10_000) {
        filled.archive.append(batch.to_vec()).await.unwrap();
    }
    filled.upkeep.close().await.unwrap();
    for (from, to) in [(&first, &*between), (&between, &postgres), (&postgres, &last)] {
        let copied = move_all(from, to).await;
        assert!(copied.stored + copied.duplicates >= MESSAGES as u64, "{copied:?}");
        let (from, to) = (from.open_read_only().await, to.open_read_only().await);
        assert_equal(&*from.archive, &*to.archive).await;
        assert_eq!(to.upkeep.stats().await.unwrap().messages, MESSAGES as u64);
    }
    assert_equal(&*first.open_read_only().await.archive, &*last.open_read_only().await.archive).await;
}

/// An interrupted append may have left a row whose value no node has: the message is stored as if the row didn't exist.
async fn a_row_without_a_value_is_no_message(place: Arc<TestArchive>) {
    let opened = place.open().await;
    let messages = every_second(3);
    opened.archive.append(messages[..2].to_vec()).await.unwrap();
    let row = format!(
        "INSERT INTO {}.messages_1 (part, timestamp, hash, size) VALUES ({}, {}, 0x{}, 5) USING TIMESTAMP -1",
        keyspace(&place),
        window_part(2),
        2 * SECOND,
        hex(&messages[2].message_hash.0)
    );
    execute(&connect().await, &row).await;
    let everything = Query::default();
    assert_eq!(rows(&opened.archive.query(&everything).await.unwrap()), sorted(&messages[..2]));
    assert_eq!(opened.upkeep.check(&|_, _| ()).await.unwrap().messages, 2);
    let answers = opened.archive.append(messages.clone()).await.unwrap();
    assert_eq!(answers, [Appended::Duplicate, Appended::Duplicate, Appended::Stored]);
    assert_eq!(rows(&opened.archive.query(&everything).await.unwrap()), sorted(&messages));
}

/// The partition of a window of a second.
fn window_part(window: u64) -> String {
    format!("0x00{:016x}", window ^ (1 << 63))
}

/// A lookup reads the rows from the first to the last message, and after a bounded number of other rows each message by its key.
async fn duplicates_are_known_among_many_others(place: Arc<TestArchive>) {
    let opened = place.open().await;
    let messages: Vec<Message> = (0..800).map(|n| message(n * 1_000_000, 1, "a")).collect();
    let (new, old): (Vec<_>, Vec<_>) = messages.iter().cloned().enumerate().partition(|(n, _)| n % 7 == 3);
    opened.archive.append(old.into_iter().map(|(_, message)| message).collect()).await.unwrap();
    let sparse: Vec<usize> = (0..800).filter(|n| n % 5 == 3).collect();
    let batch = sparse.iter().map(|n| messages[*n].clone()).collect();
    let expected: Vec<Appended> =
        sparse.iter().map(|n| if n % 7 == 3 { Appended::Stored } else { Appended::Duplicate }).collect();
    assert_eq!(opened.archive.append(batch).await.unwrap(), expected);
    let rest: Vec<Message> = new.into_iter().map(|(_, message)| message).collect();
    let stored = opened.archive.append(rest).await.unwrap();
    assert_eq!(stored.iter().filter(|answer| **answer == Appended::Stored).count(), 114 - 23);
    assert_eq!(walk(&*opened.archive, Query::default()).await.concat(), sorted(&messages));
}

/// Even if it is long, and another server appends the other one.
async fn the_first_body_stays(place: Arc<TestArchive>) {
    let (one, other) = (place.open().await, place.open().await);
    for len in [10, 100_000] {
        let mut first = message(len, 1, "a");
        first.body = vec![1; len as usize].into();
        let mut second = first.clone();
        second.body = vec![2; len as usize + 5].into();
        assert_eq!(one.archive.append(vec![first.clone()]).await.unwrap(), [Appended::Stored]);
        assert_eq!(other.archive.append(vec![second]).await.unwrap(), [Appended::Duplicate]);
        let hashes = vec![first.message_hash];
        let page = other.archive.query(&Query { hashes, ..Query::default() }).await.unwrap();
        assert_eq!(rows(&page), sorted(&[first]));
    }
}

/// An interrupted append may have written the keys of a message and not the message.
async fn keys_without_a_message_are_skipped(place: Arc<TestArchive>) {
    let opened = place.open().await;
    let messages = every_second(8);
    opened.archive.append(messages.clone()).await.unwrap();
    let cut = &messages[3];
    let session = connect().await;
    let table = format!("{}.messages_1", keyspace(&place));
    // The last write is undone: the message's row in its window.
    let part = window_part(3);
    let hash = format!("0x{}", hex(&cut.message_hash.0));
    let delete = format!(
        "DELETE FROM {table} USING TIMESTAMP -1 WHERE part = {part} AND timestamp = {} AND hash = {hash}",
        3 * SECOND
    );
    execute(&session, &delete).await;
    let rest: Vec<Message> = messages.iter().filter(|message| message != &cut).cloned().collect();
    let by_topic = Query { topics: Topics::List(vec!["topic 3".into()]), ..Query::default() };
    let by_hash = Query { hashes: vec![cut.message_hash], ..Query::default() };
    for query in [by_topic, by_hash] {
        assert!(opened.archive.query(&query).await.unwrap().is_empty());
    }
    assert_eq!(walk(&*opened.archive, Query { limit: 3, ..Query::default() }).await.concat(), sorted(&rest));
    let cursor = Some(Cursor::Message(cut.message_hash));
    let error = opened.archive.query(&Query { cursor, ..Query::default() }).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(
        opened.upkeep.check(&|_, _| ()).await.unwrap().is_sound(),
        "nothing that was acknowledged is missing"
    );
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

async fn damage_is_found_and_keys_are_made_anew(place: Arc<TestArchive>) {
    let opened = place.open().await;
    let messages = every_second(6);
    opened.archive.append(messages.clone()).await.unwrap();
    let session = connect().await;
    let table = format!("{}.messages_1", keyspace(&place));
    let hash = |n: usize| format!("0x{}", hex(&messages[n].message_hash.0));
    // The key by hash of one, and the size of another.
    execute(&session, &format!("DELETE FROM {table} USING TIMESTAMP -1 WHERE part = 0x02{}", &hash(2)[2..]))
        .await;
    let part = window_part(4);
    let size = format!(
        "INSERT INTO {table} (part, timestamp, hash, size) VALUES ({part}, {}, {}, 1) USING TIMESTAMP -2",
        4 * SECOND,
        hash(4)
    );
    execute(&session, &size).await;
    let report = opened.upkeep.check(&|_, _| ()).await.unwrap();
    assert_eq!((report.messages, report.lost, report.findings.len()), (6, 0, 2), "{report:?}");
    assert_eq!(opened.upkeep.rebuild(&|_, _| ()).await.unwrap().messages, 6);
    assert!(opened.upkeep.check(&|_, _| ()).await.unwrap().is_sound());
    // A message whose value is damaged is lost.
    let value = format!(
        "INSERT INTO {table} (part, timestamp, hash, value) VALUES ({part}, {}, {}, 0x00) USING TIMESTAMP -2",
        4 * SECOND,
        hash(4)
    );
    execute(&session, &value).await;
    let report = opened.upkeep.check(&|_, _| ()).await.unwrap();
    assert_eq!((report.messages, report.lost), (5, 1), "{report:?}");
    assert_eq!(opened.archive.query(&Query::default()).await.unwrap().len(), 5);
}

async fn a_removed_epoch_leaves_no_table(place: Arc<TestArchive>) {
    let opened = place.open().await;
    opened.archive.append(every_second(25)).await.unwrap();
    let session = connect().await;
    let cql =
        format!("SELECT table_name FROM system_schema.tables WHERE keyspace_name = '{}'", keyspace(&place));
    let has = |tables: &[String], n: i32| tables.contains(&format!("messages_{n}"));
    let pruned = opened.upkeep.prune(&"time:5".parse().unwrap(), Timestamp(25 * SECOND)).await.unwrap();
    assert_eq!((pruned.parts, pruned.messages), (2, 20));
    let left = |policy: &str| opened.upkeep.not_pruned(&policy.parse().unwrap(), Timestamp(25 * SECOND));
    assert_eq!(left("time:5"), None);
    assert!(
        left("capacity:3").is_some_and(|left| left.starts_with("messages_3 (5 messages, ")),
        "it is named"
    );
    let tables = texts(&session, &cql).await;
    assert!(!has(&tables, 1) && !has(&tables, 2) && has(&tables, 3), "{tables:?}");
    // A message of that time gets a new table.
    assert_eq!(opened.archive.append(every_second(1)).await.unwrap(), [Appended::Stored]);
    assert_eq!(opened.upkeep.stats().await.unwrap().messages, 6);
    assert!(has(&texts(&session, &cql).await, 4));
}

/// An epoch was counted as empty and removed, although another server had stored a message there since.
async fn an_epoch_is_removed_as_empty_only_if_it_is(place: Arc<TestArchive>) {
    let opened = place.open().await;
    let messages = every_second(1);
    opened.archive.append(messages.clone()).await.unwrap();
    let opened = place.reopen(opened).await;
    assert_eq!(opened.upkeep.stats().await.unwrap().messages, 1, "a count is kept");
    // The count from before the message: with the same marks, and of no messages.
    let session = connect().await;
    let table = format!("{}.windows", keyspace(&place));
    let row = format!("epoch = 1 AND window = 0 AND server = 0x{}", hex(&[0; 16]));
    let counts = session.query_unpaged(format!("SELECT count FROM {table} WHERE {row}"), ()).await.unwrap();
    let (mut count,) = counts.into_rows_result().unwrap().single_row::<(Vec<u8>,)>().unwrap();
    count[8..].fill(0);
    execute(&session, &format!("UPDATE {table} SET count = 0x{} WHERE {row}", hex(&count))).await;
    assert_eq!(opened.upkeep.stats().await.unwrap().messages, 0);

    let policy = "capacity:1000".parse().unwrap();
    let later = SystemClock.now().plus_seconds(3 * 86_400);
    let prune = async || opened.upkeep.prune(&policy, later).await.unwrap().parts;
    assert_eq!(prune().await, 0);
    assert_eq!(walk(&*opened.archive, Query::default()).await.concat(), sorted(&messages));
    assert_eq!(opened.archive.append(messages.clone()).await.unwrap(), [Appended::Duplicate]);
    execute(&session, &format!("TRUNCATE {}.messages_1", keyspace(&place))).await;
    assert_eq!(prune().await, 1, "it is empty");
    assert_eq!(opened.archive.append(messages).await.unwrap(), [Appended::Stored]);
}

async fn counts_are_kept_of_windows_that_are_quiet(place: Arc<TestArchive>) {
    let opened = place.open().await;
    opened.archive.append(every_second(5)).await.unwrap();
    let session = connect().await;
    let kept = async || {
        let cql = format!("SELECT count FROM {}.windows WHERE epoch = 1", keyspace(&place));
        let rows = session.query_unpaged(cql, ()).await.unwrap().into_rows_result().unwrap();
        rows.rows::<(Option<Vec<u8>>,)>().unwrap().filter(|row| row.as_ref().unwrap().0.is_some()).count()
    };
    assert_eq!(opened.upkeep.stats().await.unwrap().messages, 5);
    assert_eq!(kept().await, 0, "the windows may still take messages");
    let opened = place.reopen(opened).await;
    assert_eq!(opened.upkeep.stats().await.unwrap().messages, 5);
    assert_eq!(kept().await, 5);
    let late = message(2 * SECOND + 7, 9, "late");
    opened.archive.append(vec![late]).await.unwrap();
    for _ in 0..2 {
        let stats = opened.upkeep.stats().await.unwrap();
        assert_eq!((stats.messages, stats.topics), (6, 6), "a count is not used once its window has changed");
    }
}

/// An operator has dropped it, or a node does not know it yet. A spool takes messages then, and a caller may try again.
async fn a_table_that_is_gone_is_unavailable(place: Arc<TestArchive>) {
    let opened = place.open().await;
    let messages = every_second(12);
    opened.archive.append(messages[..5].to_vec()).await.unwrap();
    execute(&connect().await, &format!("DROP TABLE {}.messages_1", keyspace(&place))).await;
    let error = opened.archive.append(messages[5..10].to_vec()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let error = opened.archive.query(&Query::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(opened.upkeep.health().problem, None, "the cluster answers");
    // Another epoch is not affected.
    assert_eq!(opened.archive.append(messages[10..].to_vec()).await.unwrap(), [Appended::Stored; 2]);
}

/// An address where no server listens.
fn away() -> EngineUrl {
    "cassandra://127.0.0.1:1/none".parse().unwrap()
}

async fn a_cluster_that_is_away_is_unavailable(place: Arc<TestArchive>) {
    let config = Config { url: away(), ..place.config.clone() };
    let error = open(config.clone()).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let opened = open(Config { is_lazy: true, ..config }).await.unwrap();
    let error = opened.archive.append(vec![message(1, 1, "a")]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let error = opened.archive.query(&Query::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(opened.upkeep.health().problem.is_some());
    opened.upkeep.close().await.unwrap();
}

async fn while_the_cluster_is_away_messages_wait_in_the_spool(place: Arc<TestArchive>) {
    let folder = tempfile::tempdir().unwrap();
    let spool = SpoolConfig { timeout_ms: nonzero!(2_000), ..SpoolConfig::new(folder.path().join("spool")) };
    let config = Config { url: away(), spool: Some(spool), ..place.config.clone() };
    let messages = every_second(3);
    let opened = open(config.clone()).await.unwrap();
    assert_eq!(opened.archive.append(messages.clone()).await.unwrap(), [Appended::Spooled; 3]);
    opened.upkeep.close().await.unwrap();
    drop(opened);
    // The same spool with an available cluster.
    let opened = open(Config { url: place.config.url.clone(), ..config }).await.unwrap();
    while opened.upkeep.health().spooled_messages > 0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(walk(&*opened.archive, Query::default()).await.concat(), sorted(&messages));
    opened.upkeep.close().await.unwrap();
}

async fn a_newer_layout_is_refused(place: Arc<TestArchive>) {
    let opened = place.open().await;
    opened.archive.append(every_second(1)).await.unwrap();
    opened.upkeep.close().await.unwrap();
    let session = connect().await;
    execute(&session, &format!("UPDATE {}.state SET epochs = 0x0900000001 WHERE id = 0", keyspace(&place)))
        .await;
    let error = open(place.config.clone()).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("version 9"), "{error}");
}

async fn a_reader_of_nothing_finds_nothing(place: Arc<TestArchive>) {
    let EngineUrl::Cassandra(url) = &place.config.url else { panic!("it is no keyspace") };
    let url = EngineUrl::Cassandra(url.with_keyspace("t_nothing_is_here").unwrap());
    let error = open(Config { url, read_only: true, ..place.config.clone() }).await.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}
