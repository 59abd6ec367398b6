//! Retention: whole windows go, by detaching and dropping their tables.
//!
//! A window first disappears from the catalogue, for all servers; then its table is detached without a lock that stops anybody,
//! and dropped with a lock that is given up when it isn't had at once. What a crash leaves in between is found and dropped by
//! the next prune of any server.

use std::time::Duration;

use restante_core::Timestamp;
use tracing::{debug, info};

use super::{
    Shared,
    catalog::{Window, get},
    connect::Connection,
    fault::{Doing, Fault},
    schema::leaf_name,
};
use crate::{Error, Pruned, Retention};

/// How long dropping a table waits for those who read it, before it lets others pass and tries again.
const LOCK_TIMEOUT_MS: u32 = 50;
/// How often and how far apart it is tried.
const DROP_ATTEMPTS: u32 = 100;
const DROP_PAUSE: Duration = Duration::from_millis(50);

/// A window and what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) window: Window,
    pub(super) messages: u64,
    pub(super) body_bytes: u64,
    pub(super) disk_bytes: u64,
}

/// Removes what `policy` doesn't keep.
pub(super) async fn prune(shared: &Shared, policy: &Retention, now: Timestamp) -> Result<Pruned, Error> {
    let mut connection = shared.database.writer().await?;
    let pruned = prune_on(shared, &mut connection, policy, now).await;
    let pruned = pruned.map_err(Error::from)?;
    connection.end();
    Ok(pruned)
}

async fn prune_on(
    shared: &Shared,
    connection: &mut Connection,
    policy: &Retention,
    now: Timestamp,
) -> Result<Pruned, Fault> {
    let schema = &shared.schema;
    let lock = format!("SELECT pg_advisory_lock(hashtextextended('restante prune {schema}', 0))");
    connection.client.batch_execute(&lock).await.doing("take its turn to prune")?;
    let mut pruned = Pruned::default();
    let held = held(connection).await?;
    let disk_bytes = disk_bytes(connection).await?;
    for window in choose(&held, disk_bytes, policy, now) {
        let messages = forget(connection, &window.window).await?;
        shared.catalog.load(connection).await?;
        drop_leaf(connection, window.window.generation).await?;
        info!(leaf = window.window.leaf(), messages, "window removed");
        pruned.messages += messages;
        pruned.disk_bytes += window.disk_bytes;
        pruned.parts += 1;
    }
    drop_orphans(connection).await?;
    if pruned.parts > 0 {
        forget_topics(connection).await?;
        shared.catalog.load(connection).await?;
    }
    let unlock = format!("SELECT pg_advisory_unlock(hashtextextended('restante prune {schema}', 0))");
    connection.client.batch_execute(&unlock).await.doing("end its turn to prune")?;
    shared.metrics.pruned_messages.inc_by(pruned.messages);
    Ok(pruned)
}

/// All windows with what they hold, in the order of time.
pub(super) async fn held(connection: &Connection) -> Result<Vec<Held>, Fault> {
    let sql = "SELECT w.generation, w.first_ns, w.end_ns, coalesce(c.messages, 0)::bigint, coalesce(c.body_bytes, 0)::bigint,
                      coalesce(pg_total_relation_size(to_regclass('messages_' || w.generation)), 0)
               FROM windows AS w LEFT JOIN LATERAL
                   (SELECT sum(messages) AS messages, sum(body_bytes) AS body_bytes
                    FROM window_counts WHERE generation = w.generation) AS c ON true
               ORDER BY w.first_ns";
    let rows = connection.client.query(sql, &[]).await.doing("count its messages")?;
    let mut held = Vec::with_capacity(rows.len());
    for row in &rows {
        let number = |column: usize| -> Result<u64, Fault> { Ok(get::<i64>(row, column)?.max(0) as u64) };
        held.push(Held {
            window: Window { generation: get(row, 0)?, first_ns: get(row, 1)?, end_ns: get(row, 2)? },
            messages: number(3)?,
            body_bytes: number(4)?,
            disk_bytes: number(5)?,
        });
    }
    Ok(held)
}

/// The windows that `policy` lets go, oldest first.
///
/// A window goes only when the policy keeps none of its messages, so up to a window more than asked for is kept; and the
/// window that holds the newest messages stays, unless it is too old.
fn choose(held: &[Held], disk_bytes: u64, policy: &Retention, now: Timestamp) -> Vec<Held> {
    let mut kept_bytes = disk_bytes;
    let mut kept_messages: u64 = held.iter().map(|held| held.messages).sum();
    let mut chosen = Vec::new();
    for held in held {
        let is_ahead = held.window.first_ns > now.0 || held.window.contains(now.0);
        let behind = kept_messages - held.messages;
        let ends_before = |kept: Timestamp| held.window.end_ns <= kept.0 && held.window.end_ns != i64::MAX;
        let is_too_old = policy.oldest_kept(now).is_some_and(ends_before);
        let is_too_many = policy.capacity.is_some_and(|capacity| behind >= capacity);
        let is_too_big = policy.size_bytes.is_some_and(|size| kept_bytes > size) && behind > 0;
        let is_empty = held.messages == 0;
        if !is_too_old && is_empty {
            continue; // it stands in nobody's way
        }
        if !(is_too_old || is_too_many || is_too_big) || (is_empty && is_ahead) {
            break;
        }
        kept_bytes = kept_bytes.saturating_sub(held.disk_bytes);
        kept_messages = behind;
        chosen.push(*held);
    }
    chosen
}

/// Takes a window out of the catalogue of all servers; how many messages it had.
///
/// Who stores into the window counts in the same transaction, under a foreign key to the window. So those who are at it are
/// waited for and counted, and those who come later are refused and store elsewhere.
async fn forget(connection: &mut Connection, window: &Window) -> Result<u64, Fault> {
    let what = "remove a window";
    let transaction = connection.client.transaction().await.doing(what)?;
    transaction.batch_execute("UPDATE state SET drops = drops + 1").await.doing(what)?;
    let lock = "SELECT 1 FROM windows WHERE generation = $1 FOR UPDATE";
    transaction.execute(lock, &[&window.generation]).await.doing(what)?;
    let uncount = "DELETE FROM window_counts WHERE generation = $1 RETURNING messages";
    let rows = transaction.query(uncount, &[&window.generation]).await.doing(what)?;
    transaction
        .execute("DELETE FROM windows WHERE generation = $1", &[&window.generation])
        .await
        .doing(what)?;
    transaction.commit().await.doing(what)?;
    let mut messages = 0;
    for row in &rows {
        messages += get::<i64>(row, 0)?.max(0) as u64;
    }
    Ok(messages)
}

/// What the archive takes on disk.
pub(super) async fn disk_bytes(connection: &Connection) -> Result<u64, Fault> {
    let sql = "SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class AS c
               JOIN pg_namespace AS n ON n.oid = c.relnamespace
               WHERE n.nspname = current_schema() AND c.relkind = 'r'";
    let row = connection.client.query_one(sql, &[]).await.doing("tell its size")?;
    Ok(get::<Option<i64>>(&row, 0)?.unwrap_or(0).max(0) as u64)
}

/// Forgets topics that occur in no window any more. The state is locked, so nobody registers one meanwhile.
async fn forget_topics(connection: &mut Connection) -> Result<(), Fault> {
    let what = "forget topics";
    let transaction = connection.client.transaction().await.doing(what)?;
    transaction.batch_execute("UPDATE state SET drops = drops + 1").await.doing(what)?;
    let sql =
        "DELETE FROM topics AS t WHERE NOT EXISTS (SELECT 1 FROM window_topics AS w WHERE w.topic = t.id)";
    transaction.batch_execute(sql).await.doing(what)?;
    transaction.commit().await.doing(what)
}

/// Detaches and drops a window's table.
async fn drop_leaf(connection: &Connection, generation: i64) -> Result<(), Fault> {
    let leaf = leaf_name(generation);
    let what = "drop a window's table";
    for attempt in 1.. {
        let dropped = try_to_drop(connection, &leaf).await;
        let Err(error) = dropped else { return Ok(()) };
        let is_in_use = error.code().is_some_and(|state| {
            use tokio_postgres::error::SqlState;
            // A deadlock is possible where somebody has locked the partitioned table by hand.
            [SqlState::LOCK_NOT_AVAILABLE, SqlState::T_R_DEADLOCK_DETECTED, SqlState::OBJECT_IN_USE]
                .contains(state)
        });
        if !is_in_use || attempt == DROP_ATTEMPTS {
            return Err(error).doing(what);
        }
        debug!(leaf, attempt, "a window's table is in use: it is dropped a little later");
        tokio::time::sleep(DROP_PAUSE).await;
    }
    Ok(())
}

/// One attempt to detach, or to finish detaching, and to drop.
async fn try_to_drop(connection: &Connection, leaf: &str) -> Result<(), tokio_postgres::Error> {
    let client = &connection.client;
    let sql = "SELECT inhdetachpending FROM pg_inherits WHERE inhrelid = to_regclass($1)";
    let attached = client.query_opt(sql, &[&leaf]).await?;
    if let Some(row) = attached {
        let is_pending: bool = row.try_get(0)?;
        let how = if is_pending { "FINALIZE" } else { "CONCURRENTLY" };
        client.batch_execute(&format!("ALTER TABLE messages DETACH PARTITION {leaf} {how}")).await?;
    }
    // In one message, and so in one transaction.
    let drop = format!("SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}; DROP TABLE IF EXISTS {leaf}");
    client.batch_execute(&drop).await
}

/// Drops tables of windows that nobody knows: a prune was cut short before.
async fn drop_orphans(connection: &Connection) -> Result<(), Fault> {
    let sql = "SELECT substr(c.relname, 10)::bigint FROM pg_class AS c
               JOIN pg_namespace AS n ON n.oid = c.relnamespace
               WHERE n.nspname = current_schema() AND c.relkind = 'r' AND c.relname ~ '^messages_[0-9]+$'
                 AND NOT EXISTS (SELECT 1 FROM windows AS w WHERE w.generation = substr(c.relname, 10)::bigint)";
    for row in connection.client.query(sql, &[]).await.doing("look for tables that are left over")? {
        let generation: i64 = get(&row, 0)?;
        drop_leaf(connection, generation).await?;
        info!(leaf = leaf_name(generation), "a table that was left over is removed");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn days(days: i64) -> Vec<Held> {
        let window = |n: i64| Window { generation: n, first_ns: n * 100, end_ns: (n + 1) * 100 };
        (0..days)
            .map(|n| Held { window: window(n), messages: 10, body_bytes: 5, disk_bytes: 1_000 })
            .collect()
    }

    fn chosen(held: &[Held], policy: &str, now: i64) -> Vec<i64> {
        let bytes = held.iter().map(|held| held.disk_bytes).sum();
        let chosen = choose(held, bytes, &policy.parse().unwrap(), Timestamp(now));
        chosen.iter().map(|held| held.window.generation).collect()
    }

    #[test]
    fn nothing_goes_that_the_policy_keeps() {
        assert_eq!(chosen(&days(5), "none", i64::MAX), [0_i64; 0]);
        assert_eq!(chosen(&days(5), "capacity:35", 0), [0]);
        assert_eq!(chosen(&days(5), "capacity:30", 0), [0, 1]);
        assert_eq!(chosen(&days(5), "time:1", 1_000_000_250), [0, 1]);
        assert_eq!(chosen(&days(5), "time:1;capacity:20", 1_000_000_250), [0, 1, 2]);
    }

    #[test]
    fn the_window_with_the_newest_messages_stays_under_a_size() {
        let mut held = days(3);
        for day in &mut held {
            day.disk_bytes = 5_000_000;
        }
        assert_eq!(chosen(&held, "size:1MB", 0), [0, 1]);
        // An empty window behind it, made ahead, changes nothing.
        if let Some(last) = held.last_mut() {
            last.messages = 0;
        }
        assert_eq!(chosen(&held, "size:1MB", 0), [0]);
    }
}
