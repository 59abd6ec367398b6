//! `check` and `rebuild`: the rows of messages are authoritative; indexes and counts are derived from them.

use std::collections::BTreeMap;

use rusqlite::{Connection, TransactionBehavior};

use super::{Shared, generation::Generation, known::Known, schema};
use crate::{Error, Finding, Report, waiting::closed};

pub(super) type Progress<'a> = &'a (dyn Fn(u64, u64) + Send + Sync);

/// Progress is reported after this many messages.
const MESSAGES_BEFORE_PROGRESS: u64 = 10_000;

const ALL_MESSAGES: &str = "SELECT id, timestamp, length(hash), topic, length(body) FROM message ORDER BY id";
const KEYS_TWICE: &str = "SELECT count(*) FROM (SELECT 1 FROM message INDEXED BY message_time \
    GROUP BY timestamp, hash HAVING count(*) > 1)";
const REMOVE_TWICE: &str = "DELETE FROM message WHERE id IN (SELECT id FROM \
    (SELECT id, row_number() OVER (PARTITION BY timestamp, hash ORDER BY id) AS place FROM message) WHERE place > 1)";
const ALL_TOPICS: &str = "SELECT id, messages FROM topic ORDER BY id";
const ALL_GENERATIONS: &str =
    "SELECT number, messages, body_bytes, oldest, newest FROM generation ORDER BY number";
const SET_TOPIC: &str = "UPDATE topic SET messages = ?2 WHERE id = ?1";
const RAISE_NEXT_TOPIC: &str = "UPDATE meta SET value = max(value, \
    (SELECT coalesce(max(id), 0) + 1 FROM topic)) WHERE name = 'next_topic'";

/// Has SQLite verify its pages and indexes, and recounts everything.
pub(super) fn check(shared: &Shared, progress: Progress<'_>) -> Result<Report, Error> {
    let mut check = Check::new(shared, progress);
    match shared.readers.read(|connection| check.run(connection)) {
        Ok(()) => Ok(check.report),
        Err(error) if super::is_damage(&error) => {
            check.add(format!("the check ended early: {error}"));
            Ok(check.report)
        }
        Err(error) => Err(shared.failed("check", error)),
    }
}

/// Rebuilds indexes and counts, and removes what can't be served: rows that are no messages, and duplicate messages.
pub(super) fn rebuild(shared: &Shared, progress: Progress<'_>) -> Result<Report, Error> {
    shared.check_refusal()?;
    let mut writer = shared.writer.lock();
    let connection = &mut writer.as_mut().ok_or_else(closed)?.connection;
    let mut check = Check::new(shared, progress);
    match check.rebuild(connection) {
        Ok(known) => *shared.known.write() = known,
        Err(error) => return Err(shared.write_failed(error)),
    }
    shared.checkpointer.measure(connection);
    Ok(check.report)
}

/// All messages, counted.
#[derive(Default)]
struct Census {
    topics: BTreeMap<i64, i64>,
    generations: BTreeMap<i64, Generation>,
    /// Rows that can't be served.
    damaged: Vec<i64>,
}

struct Check<'a> {
    shared: &'a Shared,
    progress: Progress<'a>,
    file_bytes: u64,
    report: Report,
}

impl<'a> Check<'a> {
    fn new(shared: &'a Shared, progress: Progress<'a>) -> Self {
        let file_bytes = shared.disk_bytes();
        Self { shared, progress, file_bytes, report: Report { bytes: file_bytes, ..Report::default() } }
    }

    fn add(&mut self, what: String) {
        let part = self.shared.file.display().to_string();
        self.report.add(Finding { part, offset: None, what });
    }

    fn run(&mut self, connection: &mut Connection) -> rusqlite::Result<()> {
        let snapshot = connection.transaction()?;
        self.verify_pages(&snapshot)?;
        let topics = topics(&snapshot)?;
        let census = self.count(&snapshot, &topics)?;
        for id in &census.damaged {
            self.add(format!("row {id} is no message: its hash has not 32 bytes, or it has no topic"));
        }
        for (id, messages) in &topics {
            let counted = census.topics.get(id).copied().unwrap_or(0);
            if counted != *messages {
                self.add(format!("topic {id} has {counted} messages and a count of {messages}"));
            }
        }
        self.compare_generations(&snapshot, &census)?;
        let twice: i64 = snapshot.query_row(KEYS_TWICE, [], |row| row.get(0))?;
        if twice > 0 {
            self.add(format!("{twice} messages stand twice"));
        }
        Ok(())
    }

    /// SQLite's own check: pages, free pages, the order of every tree, and that each index has each row.
    fn verify_pages(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let pragma = format!("PRAGMA integrity_check({})", Report::FINDINGS_MAX);
        let mut statement = connection.prepare(&pragma)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let what: String = row.get(0)?;
            if what != "ok" {
                self.add(what);
            }
        }
        self.report(0, 0);
        Ok(())
    }

    /// SQLite's check is half of the progress, the count the other half.
    fn report(&self, counted: u64, messages: u64) {
        let share = if messages == 0 { 0.0 } else { counted as f64 / messages as f64 };
        let done = self.file_bytes + (share * self.file_bytes as f64) as u64;
        (self.progress)(done.min(2 * self.file_bytes), 2 * self.file_bytes);
    }

    fn count(&mut self, connection: &Connection, topics: &BTreeMap<i64, i64>) -> rusqlite::Result<Census> {
        let (messages, _) = schema::totals(connection)?;
        let mut census = Census::default();
        let mut statement = connection.prepare(ALL_MESSAGES)?;
        let mut rows = statement.query([])?;
        let mut seen = 0;
        while let Some(row) = rows.next()? {
            let (id, timestamp, hash_len, topic, body_len): (i64, i64, i64, i64, i64) = row.try_into()?;
            seen += 1;
            if seen % MESSAGES_BEFORE_PROGRESS == 0 {
                self.report(seen, messages);
            }
            census.add(id, timestamp, topic, body_len);
            if hash_len == 32 && topics.contains_key(&topic) {
                self.report.messages += 1;
            } else {
                census.damaged.push(id);
            }
        }
        self.report(1, 1);
        Ok(census)
    }

    /// The bounds of a generation may be wider than its messages, because retention may have removed some.
    fn compare_generations(&mut self, connection: &Connection, census: &Census) -> rusqlite::Result<()> {
        let written = generations(connection)?;
        for (number, counted) in &census.generations {
            let is_right = written.get(number).is_some_and(|written| {
                (written.messages, written.body_bytes) == (counted.messages, counted.body_bytes)
                    && written.oldest <= counted.oldest
                    && written.newest >= counted.newest
            });
            if !is_right {
                let written = written.get(number);
                self.add(format!("generation {number} is {counted:?} and is written as {written:?}"));
            }
        }
        for number in written.keys().filter(|number| !census.generations.contains_key(number)) {
            self.add(format!("generation {number} has no messages"));
        }
        Ok(())
    }

    fn rebuild(&mut self, connection: &mut Connection) -> rusqlite::Result<Known> {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.execute_batch("REINDEX")?;
        self.report(0, 0);
        let twice = transaction.execute(REMOVE_TWICE, [])?;
        if twice > 0 {
            self.add(format!("{twice} messages that stood twice were left out"));
        }
        let topics = topics(&transaction)?;
        let damaged = self.count(&transaction, &topics)?.damaged;
        for id in damaged {
            transaction.prepare_cached(schema::REMOVE_MESSAGE)?.execute([id])?;
            self.add(format!("row {id} was left out: its hash has not 32 bytes, or it has no topic"));
        }
        self.report.messages = 0;
        let census = self.count(&transaction, &topics)?;
        write_counts(&transaction, &topics, &census)?;
        let mut known = Known::new(self.shared.topic_bits);
        known.load_new(&transaction)?;
        transaction.commit()?;
        Ok(known)
    }
}

impl Census {
    fn add(&mut self, id: i64, timestamp: i64, topic: i64, body_len: i64) {
        *self.topics.entry(topic).or_insert(0) += 1;
        let generation = self.generations.entry(schema::generation_of(id)).or_insert(Generation::EMPTY);
        generation.count(timestamp, body_len);
    }
}

/// The topics and their stored counts.
fn topics(connection: &Connection) -> rusqlite::Result<BTreeMap<i64, i64>> {
    let mut statement = connection.prepare(ALL_TOPICS)?;
    statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
}

fn generations(connection: &Connection) -> rusqlite::Result<BTreeMap<i64, Generation>> {
    let mut statement = connection.prepare(ALL_GENERATIONS)?;
    let rows = statement.query_map([], |row| {
        let generation = Generation {
            messages: row.get(1)?,
            body_bytes: row.get(2)?,
            oldest: row.get(3)?,
            newest: row.get(4)?,
        };
        Ok((row.get(0)?, generation))
    })?;
    rows.collect()
}

fn write_counts(
    connection: &Connection,
    topics: &BTreeMap<i64, i64>,
    census: &Census,
) -> rusqlite::Result<()> {
    for id in topics.keys() {
        let messages = census.topics.get(id).copied().unwrap_or(0);
        connection.prepare_cached(SET_TOPIC)?.execute((id, messages))?;
        connection.prepare_cached(schema::REMOVE_TOPIC)?.execute([id])?;
    }
    connection.execute(RAISE_NEXT_TOPIC, [])?;
    connection.execute("DELETE FROM generation", [])?;
    for (number, counts) in &census.generations {
        let Generation { messages, body_bytes, oldest, newest } = counts;
        let row = (number, messages, body_bytes, oldest, newest);
        connection.prepare_cached(schema::COUNT_GENERATION)?.execute(row)?;
    }
    Ok(())
}
