//! The writer: one thread that takes groups of appends and stores each in one transaction.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    thread::JoinHandle,
    time::Instant,
};

use foldhash::fast::RandomState;
use restante_core::Key;
use rusqlite::{CachedStatement, Connection, TransactionBehavior, config::DbConfig};

use super::{
    Shared, checkpoint,
    generation::Generation,
    known::{Known, RowId},
    schema,
};
use crate::{
    Appended, Error, Message, TopicName,
    group::{GroupLimit, Waiting, answer_all},
    waiting::{Append, closed},
};

/// A group takes no more appends at this size: large enough that the sync is the smaller part of its time, and small enough that
/// others don't wait long.
const GROUP: GroupLimit = GroupLimit { messages: 4_096, bytes: 8 << 20 };

/// The one connection that changes the tables. The holder of its lock is the only writer in this process.
pub(super) struct Writer {
    pub(super) connection: Connection,
}

impl Writer {
    /// Closes the connection. If it is the last one and the log is empty, SQLite removes the log's files.
    pub(super) fn close(self, log_is_empty: bool) -> rusqlite::Result<()> {
        self.connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, !log_is_empty)?;
        self.connection.close().map_err(|(_, error)| error)
    }
}

/// Starts the writer's thread.
pub(super) fn start(shared: Arc<Shared>, mut waiting: Waiting) -> std::io::Result<JoinHandle<()>> {
    let thread = std::thread::Builder::new().name("archive-sqlite".into());
    thread.spawn(move || {
        while let Some(group) = waiting.group_blocking(GROUP) {
            let answer = store(&shared, &group);
            answer_all(group, answer);
        }
    })
}

/// Stores all of a group or nothing.
fn store(shared: &Shared, group: &[Append]) -> Result<Vec<Appended>, Error> {
    shared.check_refusal()?;
    let messages: Vec<&Message> = group.iter().flat_map(|append| &append.messages).collect();
    let mut committed = try_commit(shared, &messages)?;
    // Truncating the write-ahead log may free space, unless the last attempt has just freed none.
    if committed.as_ref().is_err_and(|error| shared.note_full("write to", error))
        && checkpoint::make_room(shared)
    {
        committed = try_commit(shared, &messages)?;
    }
    if committed.is_ok() {
        shared.metrics.commit_messages.observe(messages.len() as f64);
        shared.disk_full.look();
    }
    committed.map_err(|error| shared.write_failed(error))
}

/// Commits with the writer's connection; an error of the outer result says that it is closed.
fn try_commit(shared: &Shared, messages: &[&Message]) -> Result<rusqlite::Result<Vec<Appended>>, Error> {
    let mut writer = shared.writer.lock();
    let writer = writer.as_mut().ok_or_else(closed)?;
    let committed = commit(shared, &mut writer.connection, messages);
    if committed.is_ok() {
        shared.checkpointer.measure(&writer.connection);
    }
    Ok(committed)
}

fn commit(
    shared: &Shared,
    connection: &mut Connection,
    messages: &[&Message],
) -> rusqlite::Result<Vec<Appended>> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let staged = stage(&transaction, &shared.known.read(), messages)?;
    // Topics become known before their messages are visible, so that no query sees a message without its topic.
    {
        let mut known = shared.known.write();
        for (row, topic) in &staged.topics {
            known.count(*row, &topic.name.channel, &topic.name.topic, topic.messages);
        }
    }
    let begun = Instant::now();
    let committed = transaction.commit();
    shared.metrics.sync_seconds.observe(begun.elapsed().as_secs_f64());
    if let Err(error) = committed {
        let mut known = shared.known.write();
        for (row, topic) in &staged.topics {
            known.discount(*row, topic.messages);
        }
        return Err(error);
    }
    Ok(staged.answers)
}

/// The rows that a transaction has written.
struct Staged {
    answers: Vec<Appended>,
    topics: BTreeMap<RowId, NewMessages>,
}

/// New messages of a topic.
struct NewMessages {
    name: TopicName,
    messages: u64,
}

/// Writes the messages that are new. They are written in the archive's order, so that neighbours in time become neighbours in the
/// table and an index page is filled once.
fn stage(connection: &Connection, known: &Known, messages: &[&Message]) -> rusqlite::Result<Staged> {
    let mut stager = Stager::new(connection, known)?;
    let mut answers = vec![Appended::Duplicate; messages.len()];
    let mut in_order: Vec<_> = messages.iter().zip(&mut answers).collect();
    in_order.sort_by_key(|(message, _)| message.key()); // stable: of equal keys the first one is stored
    let mut last: Option<Key> = None;
    for (message, answer) in in_order {
        let is_twice_in_the_group = last.replace(message.key()) == Some(message.key());
        if !is_twice_in_the_group && !stager.is_stored(message)? {
            stager.add(message)?;
            *answer = Appended::Stored;
        }
    }
    let topics = stager.finish()?;
    Ok(Staged { answers, topics })
}

struct Stager<'a> {
    connection: &'a Connection,
    known: &'a Known,
    find: CachedStatement<'a>,
    add: CachedStatement<'a>,
    /// Topics that this transaction adds.
    new_topics: HashMap<TopicName, RowId, RandomState>,
    next_topic: i64,
    topics: BTreeMap<RowId, NewMessages>,
    generations: BTreeMap<i64, Generation>,
}

impl<'a> Stager<'a> {
    fn new(connection: &'a Connection, known: &'a Known) -> rusqlite::Result<Self> {
        let next_in_file: i64 =
            connection.prepare_cached(schema::NEXT_TOPIC)?.query_row([], |row| row.get(0))?;
        Ok(Self {
            connection,
            known,
            find: connection.prepare_cached(schema::FIND_MESSAGE)?,
            add: connection.prepare_cached(schema::ADD_MESSAGE)?,
            new_topics: HashMap::default(),
            // Queries have already seen a number that a failed commit assigned: it is not assigned again.
            next_topic: next_in_file.max(i64::from(known.next())),
            topics: BTreeMap::new(),
            generations: BTreeMap::new(),
        })
    }

    fn is_stored(&mut self, message: &Message) -> rusqlite::Result<bool> {
        self.find.exists((message.timestamp.0, &message.message_hash.as_bytes()[..]))
    }

    fn add(&mut self, message: &Message) -> rusqlite::Result<()> {
        let topic = self.topic(message)?;
        let timestamp = message.timestamp.0;
        let hash = &message.message_hash.as_bytes()[..];
        let id = self.add.insert((timestamp, hash, topic, &message.body[..]))?;
        let generation = self.generations.entry(schema::generation_of(id)).or_insert(Generation::EMPTY);
        generation.count(timestamp, message.body.len() as i64);
        Ok(())
    }

    /// The number of a message's topic; also counts the message.
    fn topic(&mut self, message: &Message) -> rusqlite::Result<RowId> {
        let (channel, topic) = (&message.channel, &message.topic);
        let row = match self.known.find(channel, topic) {
            Some(row) => row,
            None => {
                let name = TopicName { channel: channel.clone(), topic: topic.clone() };
                match self.new_topics.get(&name) {
                    Some(row) => *row,
                    None => self.add_topic(name)?,
                }
            }
        };
        let counts = self.topics.entry(row).or_insert_with(|| NewMessages {
            name: TopicName { channel: channel.clone(), topic: topic.clone() },
            messages: 0,
        });
        counts.messages += 1;
        Ok(row)
    }

    fn add_topic(&mut self, name: TopicName) -> rusqlite::Result<RowId> {
        let next = self.next_topic;
        let row = RowId::try_from(next).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(0, next))?;
        let mut statement = self.connection.prepare_cached(schema::ADD_TOPIC)?;
        statement.execute((row, &*name.channel, &*name.topic))?;
        self.new_topics.insert(name, row);
        self.next_topic += 1;
        Ok(row)
    }

    /// Writes the counts.
    fn finish(self) -> rusqlite::Result<BTreeMap<RowId, NewMessages>> {
        if !self.new_topics.is_empty() {
            self.connection.prepare_cached(schema::SET_NEXT_TOPIC)?.execute([self.next_topic])?;
        }
        let mut statement = self.connection.prepare_cached(schema::COUNT_TOPIC)?;
        for (row, topic) in &self.topics {
            statement.execute((row, topic.messages as i64))?;
        }
        let mut statement = self.connection.prepare_cached(schema::COUNT_GENERATION)?;
        for (number, counts) in &self.generations {
            let Generation { messages, body_bytes, oldest, newest } = counts;
            statement.execute((number, messages, body_bytes, oldest, newest))?;
        }
        Ok(self.topics)
    }
}
