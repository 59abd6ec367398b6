//! Retention: the oldest messages are removed in small steps, between which appends continue; then their pages are released, in
//! small steps as well.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use parking_lot::MutexGuard;
use restante_core::{ErrorKind, Timestamp};
use rusqlite::{Connection, TransactionBehavior};
use tracing::debug;

use super::{
    Shared,
    append::Writer,
    checkpoint::{self, End},
    known::RowId,
    schema,
};
use crate::{Error, Pruned, Retention, waiting::closed};

/// The most messages that one step removes: each touches a page of the hash index, so a step writes about 1 MiB and delays
/// appends by a few milliseconds.
const STEP_MESSAGES: u32 = 128;
/// Bytes of bodies after which a step ends: large bodies have pages of their own.
const STEP_BYTES: u64 = 1 << 20;
/// Pages that one step releases.
const STEP_PAGES: u32 = 64;
/// Bytes of a message in the file apart from its body: its row and three index entries.
const ROW_BYTES: u64 = 180;
/// The size of the write-ahead log while appends continue.
const LOG_BYTES: u64 = 16 << 20;
/// How long a step rests, in multiples of the time it worked, and at most. Measured with 200 appends a second: 12,000 messages a
/// second are removed, and the appends' p99 rises by less than half.
const REST: u32 = 2;
const REST_MAX: Duration = Duration::from_millis(50);
/// Steps between two checkpoints: about 4 MiB of log, so that syncing the file doesn't delay the appends' syncs for long.
const STEPS_BEFORE_CHECKPOINT: u32 = 4;
/// How often the end of a prune tries to empty the log while it is being read.
const TRIES_MAX: u32 = 10;

/// Removes what `policy` does not keep.
pub(super) fn prune(shared: &Shared, policy: &Retention, now: Timestamp) -> Result<Pruned, Error> {
    let before = shared.disk_bytes();
    let mut prune = Prune {
        shared,
        policy,
        oldest_kept: policy.oldest_kept(now),
        pruned: Pruned::default(),
        steps: 0,
        smaller: 0,
    };
    let result = prune.run();
    if let Some(reserve) = &shared.reserve {
        reserve.make(); // it was released if the disk was full
    }
    shared.disk_full.look();
    let mut pruned = prune.pruned;
    shared.metrics.pruned_messages.inc_by(pruned.messages);
    pruned.disk_bytes = before.saturating_sub(shared.disk_bytes());
    match result {
        Ok(()) => Ok(pruned),
        Err(error) => {
            let what = format!("{error}; {} messages were removed before that", pruned.messages);
            Err(Error::new(error.kind(), what).with_source(error))
        }
    }
}

struct Prune<'a> {
    shared: &'a Shared,
    policy: &'a Retention,
    oldest_kept: Option<Timestamp>,
    pruned: Pruned,
    steps: u32,
    /// How often the steps were halved, because the disk had no space for larger ones.
    smaller: u32,
}

impl Prune<'_> {
    fn run(&mut self) -> Result<(), Error> {
        while self.step_in_room(|prune, connection| prune.remove(connection))? {}
        if self.pruned.messages == 0 && !self.has_free_pages()? {
            return Ok(());
        }
        while self
            .step_in_room(|prune, connection| give_pages_back(connection, STEP_PAGES >> prune.smaller))?
        {
        }
        self.shrink()
    }

    /// Does one step. On a full disk the reserve is released, and steps become smaller until they find space: removals must be
    /// written to the log first.
    fn step_in_room(
        &mut self,
        step: impl Fn(&mut Self, &mut Connection) -> rusqlite::Result<bool>,
    ) -> Result<bool, Error> {
        loop {
            let error = match self.step(&step) {
                Err(error) if error.kind() == ErrorKind::Full => error,
                done => {
                    self.shared.disk_full.look();
                    return done;
                }
            };
            self.shared.disk_full.note(&error);
            let is_released = self.shared.reserve.as_ref().is_some_and(|reserve| reserve.release());
            // The file may be too long for the disk now; removing pages makes it shorter.
            let is_moved =
                checkpoint::move_log(self.shared, End::Truncate).is_ok_and(|is_complete| is_complete);
            if !is_released {
                if STEP_PAGES >> self.smaller <= 1 {
                    return Err(error);
                }
                self.smaller += 1;
            }
            debug!(%error, is_released, is_moved, smaller = self.smaller, "pruning on a full disk");
        }
    }

    /// Does one step with the writer's connection and rests. The step returns whether there is more to do.
    fn step(
        &mut self,
        step: impl FnOnce(&mut Self, &mut Connection) -> rusqlite::Result<bool>,
    ) -> Result<bool, Error> {
        self.shared.check_refusal()?;
        let mut writer = self.shared.writer.lock();
        let begun = Instant::now();
        let connection = &mut writer.as_mut().ok_or_else(closed)?.connection;
        // A step need not be synced: the sync of the next append covers it, and at the end that of the checkpoint.
        let result =
            connection.pragma_update(None, "synchronous", "NORMAL").and_then(|()| step(self, connection));
        let restored = connection.pragma_update(None, "synchronous", "FULL");
        if let Err(error) = &restored {
            // An append that isn't synced would be acknowledged as if it were.
            self.shared.refuse(&format!("syncing can't be switched on again after a prune: {error}"));
        }
        let result = result.and_then(|more| restored.map(|()| more));
        let result = result.map_err(|error| self.shared.write_failed(error));
        let worked = begun.elapsed();
        MutexGuard::<Option<Writer>>::unlock_fair(writer); // a waiting append goes first
        let more = result?;
        self.steps += 1;
        if self.shared.disk_full.is_full() {
            // The next step needs the log's space. What can't be moved now is moved when the file is shorter.
            let moved = checkpoint::move_log(self.shared, End::Truncate);
            let _ = moved.inspect_err(|error| debug!(%error, "the log stays as it is on a full disk"));
        } else if self.steps.is_multiple_of(STEPS_BEFORE_CHECKPOINT) {
            self.checkpoint(End::Restart)?;
        }
        if more {
            std::thread::sleep((worked * REST).min(REST_MAX));
        }
        Ok(more)
    }

    /// Removes some of the oldest messages. False when no more have to be removed.
    fn remove(&mut self, connection: &mut Connection) -> rusqlite::Result<bool> {
        let (messages, _) = schema::totals(connection)?;
        let mut too_many = self.policy.capacity.map_or(0, |capacity| messages.saturating_sub(capacity));
        let mut too_big = self.excess_bytes(connection)?;
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut step = Step::default();
        for message in oldest(&transaction, STEP_MESSAGES >> self.smaller)? {
            let is_too_old = self.oldest_kept.is_some_and(|kept| message.timestamp < kept.0);
            let is_the_last = step.messages + 1 >= messages;
            let is_too_big = too_big > 0 && !is_the_last; // the newest message is kept whatever its size
            let is_enough = step.bytes >= STEP_BYTES >> self.smaller;
            if is_enough || !(is_too_old || too_many > 0 || is_too_big) {
                break;
            }
            too_many = too_many.saturating_sub(1);
            too_big = too_big.saturating_sub(message.body_bytes + ROW_BYTES);
            step.add(&message);
            transaction.prepare_cached(schema::REMOVE_MESSAGE)?.execute([message.id])?;
        }
        if step.messages == 0 {
            return Ok(false);
        }
        step.write(&transaction)?;
        transaction.commit()?;
        let mut known = self.shared.known.write();
        for (topic, messages) in &step.topics {
            known.discount(*topic, *messages);
        }
        self.pruned.messages += step.messages;
        Ok(true)
    }

    /// Bytes above the limit that the file would have if its free pages were released. Some of the limit is left to the
    /// write-ahead log.
    fn excess_bytes(&self, connection: &Connection) -> rusqlite::Result<u64> {
        let Some(limit) = self.policy.size_bytes else { return Ok(0) };
        let pages = schema::pages(connection)?;
        let used = (pages.in_all - pages.free) * pages.bytes;
        Ok(used.saturating_sub(limit - (limit / 8).min(LOG_BYTES)))
    }

    fn has_free_pages(&self) -> Result<bool, Error> {
        let writer = self.shared.writer.lock();
        let connection = &writer.as_ref().ok_or_else(closed)?.connection;
        let pages =
            schema::pages(connection).map_err(|error| self.shared.failed("count the pages of", error))?;
        Ok(pages.free > 0)
    }

    /// Moves the log into the file, which is then as short as its tables.
    fn shrink(&self) -> Result<(), Error> {
        for _ in 0..TRIES_MAX {
            if self.checkpoint(End::Truncate)? {
                break;
            }
            std::thread::sleep(REST_MAX);
        }
        Ok(())
    }

    fn checkpoint(&self, end: End) -> Result<bool, Error> {
        let is_complete = checkpoint::run(self.shared, end);
        is_complete.map_err(|error| self.shared.failed("checkpoint", error))
    }
}

/// One of the oldest messages.
struct Oldest {
    id: i64,
    timestamp: i64,
    topic: RowId,
    body_bytes: u64,
}

fn oldest(connection: &Connection, messages_max: u32) -> rusqlite::Result<Vec<Oldest>> {
    let mut statement = connection.prepare_cached(schema::OLDEST_MESSAGES)?;
    let rows = statement.query_map([messages_max], |row| {
        let body_bytes: i64 = row.get(3)?;
        Ok(Oldest {
            id: row.get(0)?,
            timestamp: row.get(1)?,
            topic: RowId::try_from(row.get::<_, i64>(2)?).unwrap_or(0), // 0: a damaged row, of no topic
            body_bytes: body_bytes.max(0).unsigned_abs(),
        })
    })?;
    rows.collect()
}

/// What a step removes.
#[derive(Default)]
struct Step {
    messages: u64,
    bytes: u64,
    topics: BTreeMap<RowId, u64>,
    generations: BTreeMap<i64, (u64, u64)>,
    last: i64,
}

impl Step {
    fn add(&mut self, message: &Oldest) {
        self.messages += 1;
        self.bytes += message.body_bytes;
        *self.topics.entry(message.topic).or_insert(0) += 1;
        let (messages, bytes) = self.generations.entry(schema::generation_of(message.id)).or_insert((0, 0));
        *messages += 1;
        *bytes += message.body_bytes;
        self.last = message.timestamp;
    }

    /// Writes the counts. Entries that have no more messages are removed.
    fn write(&self, connection: &Connection) -> rusqlite::Result<()> {
        for (topic, messages) in &self.topics {
            connection.prepare_cached(schema::DISCOUNT_TOPIC)?.execute((topic, *messages as i64))?;
            connection.prepare_cached(schema::REMOVE_TOPIC)?.execute([topic])?;
        }
        for (number, (messages, bytes)) in &self.generations {
            let counts = (number, *messages as i64, *bytes as i64, self.last);
            connection.prepare_cached(schema::DISCOUNT_GENERATION)?.execute(counts)?;
            connection.prepare_cached(schema::REMOVE_GENERATION)?.execute([number])?;
        }
        Ok(())
    }
}

/// Releases some free pages. False when there are none left, or an append has taken as many.
fn give_pages_back(connection: &mut Connection, pages_max: u32) -> rusqlite::Result<bool> {
    let free = schema::pages(connection)?.free;
    // The statement returns a row for each page, and continues only as far as rows are read.
    let mut statement = connection.prepare(&format!("PRAGMA incremental_vacuum({pages_max})"))?;
    let mut rows = statement.query([])?;
    while rows.next()?.is_some() {}
    drop(rows);
    drop(statement);
    let left = schema::pages(connection)?.free;
    Ok(0 < left && left < free)
}
