//! Retention: whole windows are removed, by detaching and dropping their tables.
//!
//! A window is removed in one transaction: its entry in the catalogue, its counts and its table, all or nothing. If the locks for
//! this are not granted within a moment, the attempt is repeated later, so that nothing queues up because of a reader that runs
//! for hours.

use std::time::Duration;

use restante_core::Timestamp;
use tokio_postgres::error::SqlState;
use tracing::{debug, info};

use super::{
    Shared,
    attempt::{AttemptError, Doing},
    catalog::{Window, get},
    connect::Connection,
};
use crate::{
    Error, Pruned, Retention,
    retention::{LeftByPrune, PartWords},
};

/// How long dropping a table waits for its readers, before it releases its lock request and tries again.
const LOCK_TIMEOUT_MS: u32 = 50;
/// How many attempts there are, and the pause between them.
const DROP_ATTEMPTS: u32 = 100;
const DROP_PAUSE: Duration = Duration::from_millis(50);
/// How long ago a window without messages must have ended to be removed: late messages may still arrive.
const EMPTY_SECONDS: i64 = 86_400;

/// A window and its counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) window: Window,
    pub(super) messages: u64,
    pub(super) body_bytes: u64,
    pub(super) disk_bytes: u64,
}

/// Removes what `policy` doesn't keep.
pub(super) async fn prune(shared: &Shared, policy: &Retention, now: Timestamp) -> Result<Pruned, Error> {
    let lease = shared.database.maintainer().await?;
    let connection = lease.connection.clone();
    Ok(lease.drive("prune", prune_on(shared, &connection, policy, now)).await?)
}

async fn prune_on(
    shared: &Shared,
    connection: &Connection,
    policy: &Retention,
    now: Timestamp,
) -> Result<Pruned, AttemptError> {
    connection.client.batch_execute(&shared.prune_lock("lock")).await.doing("take its turn to prune")?;
    let mut pruned = Pruned::default();
    let mut held = held(connection).await?;
    let catalog_bytes = disk_bytes(connection, "c.relname !~ '^messages_[0-9]+$'").await?;
    for window in choose(&held, catalog_bytes, policy, now) {
        let Some((messages, drops)) = remove(connection, &window).await? else { continue };
        shared.catalog.forget(&window.window, drops);
        info!(leaf = window.window.leaf(), messages, "window removed");
        shared.metrics.pruned_messages.inc_by(messages);
        pruned.messages += messages;
        pruned.disk_bytes += window.disk_bytes;
        pruned.parts += 1;
        held.retain(|other| other.window != window.window);
    }
    *shared.left_by_prune.lock() = Left { held, catalog_bytes };
    if pruned.parts > 0 {
        shared.catalog.take_drops(forget_topics(connection).await?);
    }
    connection.client.batch_execute(&shared.prune_lock("unlock")).await.doing("end its turn to prune")?;
    Ok(pruned)
}

/// All windows with their counts, in the order of time.
pub(super) async fn held(connection: &Connection) -> Result<Vec<Held>, AttemptError> {
    let sql = "SELECT w.generation, w.first_ns, w.end_ns, coalesce(c.messages, 0)::bigint, coalesce(c.body_bytes, 0)::bigint,
                      coalesce(pg_total_relation_size(to_regclass('messages_' || w.generation)), 0)
               FROM windows AS w LEFT JOIN LATERAL
                   (SELECT sum(messages) AS messages, sum(body_bytes) AS body_bytes
                    FROM window_counts WHERE generation = w.generation) AS c ON true
               ORDER BY w.first_ns";
    let rows = connection.client.query(sql, &[]).await.doing("count its messages")?;
    let mut held = Vec::with_capacity(rows.len());
    for row in &rows {
        let number =
            |column: usize| -> Result<u64, AttemptError> { Ok(get::<i64>(row, column)?.max(0) as u64) };
        held.push(Held {
            window: Window { generation: get(row, 0)?, first_ns: get(row, 1)?, end_ns: get(row, 2)? },
            messages: number(3)?,
            body_bytes: number(4)?,
            disk_bytes: number(5)?,
        });
    }
    Ok(held)
}

/// The windows that `policy` removes, oldest first.
///
/// A window is removed only when the policy keeps none of its messages, so up to one window more than configured is kept; and the
/// window that has the newest messages stays, unless it is too old. Windows that are over and have stayed empty are removed too.
fn choose(held: &[Held], catalog_bytes: u64, policy: &Retention, now: Timestamp) -> Vec<Held> {
    let mut kept_bytes = catalog_bytes + held.iter().map(|held| held.disk_bytes).sum::<u64>();
    let mut kept_messages: u64 = held.iter().map(|held| held.messages).sum();
    let mut chosen = Vec::new();
    for held in held {
        let ended_before = |kept: Timestamp| held.window.end_ns <= kept.0 && held.window.end_ns != i64::MAX;
        let behind = kept_messages - held.messages;
        let is_too_old = policy.oldest_kept(now).is_some_and(ended_before);
        let is_too_many = policy.capacity.is_some_and(|capacity| behind >= capacity);
        let is_too_big = policy.size_bytes.is_some_and(|size| kept_bytes > size) && behind > 0;
        let goes = match held.messages {
            0 => is_too_old || ended_before(now.plus_seconds(-EMPTY_SECONDS)),
            _ => is_too_old || is_too_many || is_too_big,
        };
        if !goes && held.messages > 0 {
            break;
        }
        if goes {
            kept_bytes = kept_bytes.saturating_sub(held.disk_bytes);
            kept_messages = behind;
            chosen.push(*held);
        }
    }
    chosen
}

const WINDOW: PartWords =
    PartWords { one: "a window", many: "windows", settings: "archive.postgres.window_seconds" };

/// What the last prune has left.
#[derive(Debug, Default)]
pub(super) struct Left {
    held: Vec<Held>,
    catalog_bytes: u64,
}

impl Left {
    /// Describes which window stays although the policy may remove some of its messages, and why; `None` when there is none.
    pub(super) fn not_removed(&self, policy: &Retention, now: Timestamp) -> Option<String> {
        let with_messages = self.held.iter().filter(|held| held.messages > 0);
        let oldest = with_messages.clone().next()?;
        let messages: u64 = with_messages.map(|held| held.messages).sum();
        let bytes = self.catalog_bytes + self.held.iter().map(|held| held.disk_bytes).sum::<u64>();
        let left = LeftByPrune {
            name: oldest.window.leaf(),
            first: Timestamp(oldest.window.first_ns),
            messages: oldest.messages,
            disk_bytes: oldest.disk_bytes,
            all_messages: messages,
            all_disk_bytes: bytes,
        };
        left.not_removed(policy, now, &WINDOW)
    }
}

/// Removes a window; returns how many messages it had, and the number of this removal. It is retried for some seconds while
/// others hold the locks. `None` when the window was counted as empty and has messages now: it stays.
async fn remove(connection: &Connection, held: &Held) -> Result<Option<(u64, i64)>, AttemptError> {
    let mut attempt = 1;
    loop {
        let error = match try_to_remove(connection, held).await {
            Ok(removed) => return Ok(removed),
            Err(error) => error,
        };
        let in_use = [SqlState::LOCK_NOT_AVAILABLE, SqlState::T_R_DEADLOCK_DETECTED, SqlState::OBJECT_IN_USE];
        let is_in_use = error.code().is_some_and(|state| in_use.contains(state));
        if !is_in_use || attempt == DROP_ATTEMPTS {
            return Err(error);
        }
        debug!(
            leaf = held.window.leaf(),
            attempt, "a window's table is in use: it is dropped a little later"
        );
        connection.client.batch_execute("ROLLBACK").await.doing("remove a window")?;
        tokio::time::sleep(DROP_PAUSE).await;
        attempt += 1;
    }
}

/// One attempt, in one transaction.
///
/// A transaction that stores into the window locks its table and counts, under a foreign key to the window. So running ones are
/// waited for and counted, and later ones find no table and store elsewhere.
async fn try_to_remove(connection: &Connection, held: &Held) -> Result<Option<(u64, i64)>, AttemptError> {
    let what = "remove a window";
    let window = &held.window;
    let (client, leaf) = (&connection.client, window.leaf());
    let lock = format!(
        "BEGIN; SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}; LOCK TABLE {leaf} IN ACCESS EXCLUSIVE MODE"
    );
    client.batch_execute(&lock).await.doing(what)?;
    if held.messages == 0 {
        // The window was counted before the lock: a message may have been stored since.
        let any = format!("SELECT 1 FROM {leaf} LIMIT 1");
        if client.query_opt(&any, &[]).await.doing(what)?.is_some() {
            client.batch_execute("ROLLBACK").await.doing(what)?;
            return Ok(None);
        }
    }
    client.batch_execute(&format!("ALTER TABLE messages DETACH PARTITION {leaf}")).await.doing(what)?;
    let row = client.query_one(RAISE_DROPS, &[]).await.doing(what)?;
    let uncount = "DELETE FROM window_counts WHERE generation = $1 RETURNING messages";
    let rows = client.query(uncount, &[&window.generation]).await.doing(what)?;
    client.execute("DELETE FROM windows WHERE generation = $1", &[&window.generation]).await.doing(what)?;
    client.batch_execute(&format!("DROP TABLE {leaf}; COMMIT")).await.doing(what)?;
    let mut messages = 0;
    for row in &rows {
        messages += get::<i64>(row, 0)?.max(0) as u64;
    }
    Ok(Some((messages, get(&row, 0)?)))
}

const RAISE_DROPS: &str = "UPDATE state SET drops = drops + 1 RETURNING drops";

/// The size on disk of the archive's tables that `which` selects.
pub(super) async fn disk_bytes(connection: &Connection, which: &str) -> Result<u64, AttemptError> {
    let sql = format!(
        "SELECT sum(pg_total_relation_size(c.oid))::bigint FROM pg_class AS c
         JOIN pg_namespace AS n ON n.oid = c.relnamespace
         WHERE n.nspname = current_schema() AND c.relkind = 'r' AND {which}"
    );
    let row = connection.client.query_one(&sql, &[]).await.doing("read its size")?;
    Ok(get::<Option<i64>>(&row, 0)?.unwrap_or(0).max(0) as u64)
}

/// Removes topics that no longer occur in any window; returns the number of this removal. The state is locked, so that no server
/// registers one meanwhile.
async fn forget_topics(connection: &Connection) -> Result<i64, AttemptError> {
    let what = "forget topics";
    let client = &connection.client;
    client.batch_execute("BEGIN").await.doing(what)?;
    let row = client.query_one(RAISE_DROPS, &[]).await.doing(what)?;
    let forget = "DELETE FROM topics AS t
                  WHERE NOT EXISTS (SELECT 1 FROM window_topics AS w WHERE w.topic = t.id); COMMIT";
    client.batch_execute(forget).await.doing(what)?;
    get(&row, 0)
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
        let chosen = choose(held, 0, &policy.parse().unwrap(), Timestamp(now));
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
    fn the_window_that_stays_is_named_with_the_reason() {
        let said = |policy: &str, now| {
            Left { held: days(3), catalog_bytes: 0 }.not_removed(&policy.parse().unwrap(), Timestamp(now))
        };
        for (policy, now) in [("capacity:25", 0), ("time:1", 1_000_000_050)] {
            let text = said(policy, now).unwrap();
            assert!(text.starts_with("messages_0 (10 messages, 1000 bytes, from 1970-01-01T"), "{text}");
            assert!(text.contains("archive.postgres.window_seconds"), "{text}");
        }
        for (policy, now) in [("capacity:30", 0), ("time:1", 1_000_000_000), ("size:1MB", 0)] {
            assert_eq!(said(policy, now), None, "{policy}");
        }
        assert_eq!(Left::default().not_removed(&"capacity:1".parse().unwrap(), Timestamp(0)), None);
    }

    #[test]
    fn the_window_with_the_newest_messages_stays_under_a_size() {
        let mut held = days(3);
        for day in &mut held {
            day.disk_bytes = 5_000_000;
        }
        assert_eq!(chosen(&held, "size:1MB", 0), [0, 1]);
        // An empty window after it, made ahead, changes nothing.
        if let Some(last) = held.last_mut() {
            last.messages = 0;
        }
        assert_eq!(chosen(&held, "size:1MB", 0), [0]);
    }

    #[test]
    fn windows_that_stayed_empty_go() {
        let mut held = days(4);
        for (place, day) in held.iter_mut().enumerate() {
            day.messages = if place == 2 { 10 } else { 0 };
        }
        let day_later = EMPTY_SECONDS * 1_000_000_000 + 200;
        assert_eq!(chosen(&held, "capacity:20", day_later), [0, 1]);
        assert_eq!(chosen(&held, "capacity:20", 350), [0_i64; 0]);
    }
}
