//! The contents of an archive in PostgreSQL, and whether they are sound.

use std::collections::HashSet;

use restante_core::Timestamp;

use super::{
    Shared,
    attempt::{AttemptError, Doing, is_gone},
    catalog::get,
    connect::Connection,
    retention::{Held, disk_bytes, held},
};
use crate::{Error, Finding, PartStats, Report, Stats};

/// The contents of the archive.
pub(super) async fn stats(shared: &Shared) -> Result<Stats, Error> {
    let lease = shared.database.reader().await?;
    let connection = lease.connection.clone();
    Ok(lease.drive("count what it holds", stats_on(shared, &connection)).await?)
}

async fn stats_on(shared: &Shared, connection: &Connection) -> Result<Stats, AttemptError> {
    let held = held(connection).await?;
    let mut stats = Stats { engine: "postgres", damaged: shared.metrics.damaged.get(), ..Stats::default() };
    for held in held.iter().filter(|held| held.messages > 0) {
        let Some((oldest, newest)) = span(connection, held).await? else { continue };
        stats.messages += held.messages;
        stats.body_bytes += held.body_bytes;
        stats.oldest = stats.oldest.or(Some(oldest));
        stats.newest = Some(newest);
        stats.parts.push(PartStats {
            name: held.window.leaf(),
            oldest,
            newest,
            messages: held.messages,
            disk_bytes: held.disk_bytes,
            is_open: false,
        });
    }
    stats.topics = topics(connection, &held).await?;
    stats.disk_bytes = disk_bytes(connection, "true").await?;
    Ok(stats)
}

/// The oldest and the newest timestamp of a window; `None` when it is empty, or was removed meanwhile.
async fn span(connection: &Connection, held: &Held) -> Result<Option<(Timestamp, Timestamp)>, AttemptError> {
    let sql = format!("SELECT min(timestamp), max(timestamp) FROM {}", held.window.leaf());
    let row = match connection.client.query_one(&sql, &[]).await {
        Err(error) if is_gone(&error) => return Ok(None),
        row => row.doing("read its span")?,
    };
    let (oldest, newest): (Option<i64>, Option<i64>) = (get(&row, 0)?, get(&row, 1)?);
    Ok(oldest.zip(newest).map(|(oldest, newest)| (Timestamp(oldest), Timestamp(newest))))
}

/// How many topics occur. A topic is registered before its first message is stored; where no count has been written yet, the
/// messages themselves are queried.
async fn topics(connection: &Connection, held: &[Held]) -> Result<u64, AttemptError> {
    let sql = "SELECT topic, max(generation) FILTER (WHERE messages > 0) IS NOT NULL,
                      array_agg(generation) FILTER (WHERE messages = 0)
               FROM window_topics GROUP BY topic";
    let mut topics = 0;
    for row in connection.client.query(sql, &[]).await.doing("count its topics")? {
        let (topic, is_counted): (i32, bool) = (get(&row, 0)?, get(&row, 1)?);
        let uncounted: Option<Vec<i64>> = get(&row, 2)?;
        let mut occurs = is_counted;
        for generation in uncounted.into_iter().flatten() {
            occurs = occurs || occurs_in(connection, held, generation, topic).await?;
        }
        topics += u64::from(occurs);
    }
    Ok(topics)
}

async fn occurs_in(
    connection: &Connection,
    held: &[Held],
    generation: i64,
    topic: i32,
) -> Result<bool, AttemptError> {
    let Some(held) = held.iter().find(|held| held.window.generation == generation) else { return Ok(false) };
    let sql = format!("SELECT 1 FROM {} WHERE topic = $1 LIMIT 1", held.window.leaf());
    match connection.client.query_opt(&sql, &[&topic]).await {
        Err(error) if is_gone(&error) => Ok(false),
        row => Ok(row.doing("count its topics")?.is_some()),
    }
}

/// Compares each window's messages with its indexes, its counts and its topics.
pub(super) async fn check(
    shared: &Shared,
    progress: &(dyn Fn(u64, u64) + Send + Sync),
) -> Result<Report, Error> {
    let lease = shared.database.maintainer().await?;
    let connection = lease.connection.clone();
    Ok(lease.drive("check", check_on(&connection, progress)).await?)
}

async fn check_on(
    connection: &Connection,
    progress: &(dyn Fn(u64, u64) + Send + Sync),
) -> Result<Report, AttemptError> {
    let held = held(connection).await?;
    let total = held.iter().map(|held| held.body_bytes).sum();
    let mut report = Report::default();
    for held in &held {
        progress(report.bytes, total);
        match check_window(connection, held, &mut report).await {
            // Another server has removed it meanwhile.
            Err(error) if error.is_stale_catalog() => {
                connection.client.batch_execute("ROLLBACK").await.doing("check a window")?;
            }
            checked => checked?,
        }
    }
    progress(total, total);
    Ok(report)
}

/// Both counts see the same moment, and each uses a different path to the rows: the table, and each index.
async fn check_window(connection: &Connection, held: &Held, report: &mut Report) -> Result<(), AttemptError> {
    let what = "check a window";
    let (leaf, generation) = (held.window.leaf(), held.window.generation);
    let client = &connection.client;
    client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await.doing(what)?;
    let table = format!(
        "SELECT count(*), coalesce(sum(length(body)), 0)::bigint,
                count(*) FILTER (WHERE length(hash) <> 32 OR timestamp < {first} OR (timestamp >= {end} AND {end} <> {max}))
         FROM {leaf}",
        first = literal(held.window.first_ns),
        end = literal(held.window.end_ns),
        max = i64::MAX,
    );
    let row = count_by(
        connection,
        "SET LOCAL enable_seqscan = on; SET LOCAL enable_indexscan = off; \
                                    SET LOCAL enable_indexonlyscan = off",
        &table,
    )
    .await?;
    let (rows, bytes, wrong): (i64, i64, i64) = (get(&row, 0)?, get(&row, 1)?, get(&row, 2)?);
    let by_index = "SET LOCAL enable_seqscan = off; SET LOCAL enable_indexscan = on; SET LOCAL enable_indexonlyscan = on";
    let mut findings = HashSet::new();
    for (name, order) in [("pkey", "timestamp, hash"), ("by_topic", "topic, timestamp + 0")] {
        let sql = format!("SELECT count(*) FROM (SELECT 1 FROM {leaf} ORDER BY {order}) AS ordered");
        let row = count_by(connection, by_index, &sql).await?;
        let indexed: i64 = get(&row, 0)?;
        if indexed != rows {
            findings.insert(format!("the index {leaf}_{name} has {indexed} rows where the table has {rows}"));
        }
    }
    let sql = "SELECT coalesce(sum(messages), 0)::bigint, coalesce(sum(body_bytes), 0)::bigint FROM window_counts WHERE generation = $1";
    let row = client.query_one(sql, &[&generation]).await.doing(what)?;
    let (counted, counted_bytes): (i64, i64) = (get(&row, 0)?, get(&row, 1)?);
    if (counted, counted_bytes) != (rows, bytes) {
        findings.insert(format!(
            "{counted} messages of {counted_bytes} bytes are counted, there are {rows} of {bytes}"
        ));
    }
    let sql = format!(
        "SELECT count(*) FROM (SELECT DISTINCT topic FROM {leaf}) AS m
         WHERE NOT EXISTS (SELECT 1 FROM window_topics AS w WHERE w.generation = {generation} AND w.topic = m.topic)"
    );
    let row = client.query_one(&sql, &[]).await.doing(what)?;
    let unregistered: i64 = get(&row, 0)?;
    if unregistered > 0 {
        findings.insert(format!("{unregistered} topics are not registered: queries for them miss messages"));
    }
    if wrong > 0 {
        findings.insert(format!("{wrong} messages have a wrong hash or lie outside of the window"));
    }
    client.batch_execute("COMMIT").await.doing(what)?;
    report.messages += rows.max(0) as u64;
    report.bytes += bytes.max(0) as u64;
    for what in findings {
        report.add(Finding { part: leaf.clone(), offset: None, what });
    }
    Ok(())
}

/// A negative number in a statement needs its type.
fn literal(number: i64) -> String {
    format!("'{number}'::bigint")
}

async fn count_by(
    connection: &Connection,
    settings: &str,
    sql: &str,
) -> Result<tokio_postgres::Row, AttemptError> {
    let what = "check a window";
    let unbounded = "SET LOCAL statement_timeout = 0";
    connection.client.batch_execute(&format!("{unbounded}; {settings}")).await.doing(what)?;
    connection.client.query_one(sql, &[]).await.doing(what)
}

/// Rebuilds the indexes of each window, one after the other and without blocking others, and counts again.
pub(super) async fn rebuild(
    shared: &Shared,
    progress: &(dyn Fn(u64, u64) + Send + Sync),
) -> Result<Report, Error> {
    let lease = shared.database.maintainer().await?;
    let connection = lease.connection.clone();
    lease.drive("rebuild", rebuild_on(shared, &connection, progress)).await?;
    check(shared, progress).await
}

async fn rebuild_on(
    shared: &Shared,
    connection: &Connection,
    progress: &(dyn Fn(u64, u64) + Send + Sync),
) -> Result<(), AttemptError> {
    let what = "rebuild a window";
    let held = held(connection).await?;
    let total = held.iter().map(|held| held.body_bytes).sum();
    let mut done = 0;
    for held in &held {
        progress(done, total);
        let leaf = held.window.leaf();
        match rebuild_window(connection, &leaf, held.window.generation).await {
            Err(error) if error.is_stale_catalog() => {
                connection.client.batch_execute("ROLLBACK").await.doing(what)?;
            }
            rebuilt => rebuilt?,
        }
        done += held.body_bytes;
    }
    connection.abandon(); // its time-outs are changed
    shared.catalog.load(connection).await
}

async fn rebuild_window(connection: &Connection, leaf: &str, generation: i64) -> Result<(), AttemptError> {
    let what = "rebuild a window";
    let client = &connection.client;
    client.batch_execute("SET statement_timeout = 0; SET lock_timeout = 0").await.doing(what)?;
    // What an interrupted attempt has left behind.
    let invalid =
        "SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = to_regclass($1) AND NOT indisvalid";
    for row in client.query(invalid, &[&leaf]).await.doing(what)? {
        let index: &str = get(&row, 0)?;
        client.batch_execute(&format!("DROP INDEX {index}")).await.doing(what)?;
    }
    client.batch_execute(&format!("REINDEX TABLE CONCURRENTLY {leaf}")).await.doing(what)?;
    client.batch_execute(&recount(leaf, generation)).await.doing(what)
}

/// Recounts a window's messages and topics in one transaction that keeps others from storing into it meanwhile; the state is
/// locked only at its end. Topics without messages stay: another server may be about to store their first one.
fn recount(leaf: &str, generation: i64) -> String {
    format!(
        "BEGIN;
         LOCK TABLE {leaf} IN SHARE ROW EXCLUSIVE MODE;
         CREATE TEMPORARY TABLE recounted ON COMMIT DROP AS
             SELECT topic, count(*) AS messages, sum(length(body)) AS body_bytes FROM {leaf} GROUP BY topic;
         DELETE FROM window_counts WHERE generation = {generation};
         INSERT INTO window_counts (generation, slot, messages, body_bytes)
             SELECT {generation}, 0, sum(messages), sum(body_bytes) FROM recounted HAVING count(*) > 0;
         UPDATE state SET sequence = sequence + 1, drops = drops + 1;
         INSERT INTO window_topics AS w (generation, topic, messages, sequence)
             SELECT {generation}, topic, messages, (SELECT sequence FROM state) FROM recounted
             WHERE topic IN (SELECT id FROM topics)
             ON CONFLICT (generation, topic) DO UPDATE SET messages = excluded.messages;
         COMMIT"
    )
}
