//! Storing messages: a few tasks, each with its own connection, take the waiting appends and store them in one transaction.

use std::{collections::HashMap, sync::Arc, time::Instant};

use foldhash::fast::RandomState;
use restante_core::{Key, MessageHash, Timestamp};
use tokio::sync::Mutex;
use tokio_postgres::{Statement, types::ToSql};

use super::{
    Shared,
    attempt::{AttemptError, Doing},
    catalog::{Missing, Window, get},
    connect::Connection,
    schema::{Access, Select},
};
use crate::{
    Appended, Direction, Error, Message,
    group::{GroupLimit, Waiting, answer_all},
    topics::TopicId,
    waiting::Append,
};

/// The most that one transaction stores, unless a single append has more.
const GROUP: GroupLimit = GroupLimit { messages: 4_096, bytes: 8 << 20 };
/// The most rows that one statement stores: they are in memory on both sides.
const STATEMENT_ROWS: usize = 2_048;
const STATEMENT_BYTES: usize = 16 << 20;
/// The most statements of one transaction: each may lock the table of another window.
const STATEMENTS_PER_TRANSACTION: usize = 32;
/// How often storing starts over because another server has changed the windows, or two servers have conflicted.
const ATTEMPTS: usize = 5;

/// Stores the appends that arrive until the queue is closed.
pub(super) async fn run(shared: Arc<Shared>, waiting: Arc<Mutex<Waiting>>) {
    loop {
        let group = waiting.lock().await.group(GROUP).await;
        let Some(group) = group else { return };
        let result = store(&shared, &group).await;
        let is_one_to_blame = group.len() > 1 && result.as_ref().is_err_and(|error| !error.is_transient());
        if !is_one_to_blame {
            answer_all(group, result);
            continue;
        }
        // An error of one append must not fail the others.
        for append in group {
            let alone = vec![append];
            let result = store(&shared, &alone).await;
            answer_all(alone, result);
        }
    }
}

async fn store(shared: &Shared, group: &[Append]) -> Result<Vec<Appended>, Error> {
    let begun = Instant::now();
    let mut messages: Vec<&Message> = group.iter().flat_map(|append| &append.messages).collect();
    let mut places: Vec<usize> = (0..messages.len()).collect();
    // All servers store in key order, so that they can't deadlock.
    places.sort_by_key(|place| messages.get(*place).map(|message| message.key()));
    messages.sort_by_key(|message| message.key());
    shared.metrics.commit_messages.observe(messages.len() as f64);
    let is_stored = store_sorted(shared, &messages).await?;
    shared.metrics.sync_seconds.observe(begun.elapsed().as_secs_f64());
    let mut answers = vec![Appended::Duplicate; messages.len()];
    for (place, is_stored) in places.iter().zip(is_stored) {
        if is_stored && let Some(answer) = answers.get_mut(*place) {
            *answer = Appended::Stored;
        }
    }
    Ok(answers)
}

/// Stores messages that are sorted by key; returns for each whether it is new.
async fn store_sorted(shared: &Shared, messages: &[&Message]) -> Result<Vec<bool>, Error> {
    let mut progress = Progress { is_stored: vec![false; messages.len()], done: 0, tried: 0 };
    let mut attempt = 1;
    loop {
        let lease = shared.database.writer().await?;
        let connection = lease.connection.clone();
        let step = async {
            // A server that prunes as fast as windows are created waits here once.
            let keeps_pruning_out = attempt >= ATTEMPTS / 2;
            if keeps_pruning_out {
                connection
                    .client
                    .batch_execute(&shared.prune_lock("lock_shared"))
                    .await
                    .doing("store messages")?;
            }
            transact(shared, &connection, messages, &mut progress).await?;
            if keeps_pruning_out {
                connection
                    .client
                    .batch_execute(&shared.prune_lock("unlock_shared"))
                    .await
                    .doing("store messages")?;
            }
            Ok(())
        };
        let error = match lease.drive("store messages", step).await {
            Ok(()) if progress.done == messages.len() => return Ok(progress.is_stored),
            Ok(()) => continue,
            Err(error) => error,
        };
        let is_passing = error.is_stale_catalog() || error.is_worth_repeating();
        if !is_passing || attempt == ATTEMPTS {
            return Err(error.into());
        }
        attempt += 1;
        if error.is_stale_catalog() {
            shared.reload().await?;
        }
    }
}

/// How many messages of a group are stored: what a transaction has committed stays committed when a later one has to be repeated.
struct Progress {
    is_stored: Vec<bool>,
    done: usize,
    /// The messages before this one, from `done` on, were in a transaction whose answer was lost, so that it is unknown whether it was
    /// committed.
    tried: usize,
}

impl Progress {
    /// Records which of the next messages a transaction has stored.
    ///
    /// If it stored none of those that an earlier transaction had tried, the earlier one was committed, so that they count as
    /// stored. If it stored any of them, the earlier one was not committed.
    fn take(&mut self, flags: &[Flag]) {
        let tried = self.tried.saturating_sub(self.done);
        let was_committed = !flags.iter().take(tried).any(|flag| *flag == Flag::New);
        let answers = self.is_stored.iter_mut().skip(self.done);
        for (place, (is_stored, flag)) in answers.zip(flags).enumerate() {
            let is_found = *flag == Flag::Found && was_committed && place < tried;
            *is_stored = *flag == Flag::New || is_found;
        }
        self.done += flags.len();
        if !was_committed {
            self.tried = self.done;
        }
    }
}

/// The outcome of a message in a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flag {
    /// It was stored.
    New,
    /// It was already there.
    Found,
    /// The group has it twice, and this is not the first occurrence.
    Repeated,
}

/// One transaction.
async fn transact(
    shared: &Shared,
    connection: &Connection,
    messages: &[&Message],
    progress: &mut Progress,
) -> Result<(), AttemptError> {
    let rest = messages.get(progress.done..).unwrap_or_default();
    let rest = rest.get(..first_windows(rest, shared.window_ns)).unwrap_or_default();
    let places = place(shared, connection, rest).await?;
    let chunks = chunks(rest, &places);
    let mut may_be_committed = false;
    let inserted = match chunks.as_slice() {
        [chunk] => chunk.insert(connection, &mut may_be_committed).await.map(|stored| vec![stored]),
        chunks => insert_all(connection, chunks, &mut may_be_committed).await,
    };
    if may_be_committed && inserted.as_ref().is_err_and(AttemptError::is_outcome_unknown) {
        let tried = chunks.iter().map(|chunk| chunk.messages.len()).sum::<usize>();
        progress.tried = progress.tried.max(progress.done + tried);
    }
    let stored = inserted?;
    let flags: Vec<Flag> =
        chunks.iter().zip(&stored).flat_map(|(chunk, stored)| chunk.flags(stored)).collect();
    progress.take(&flags);
    for (chunk, stored) in chunks.iter().zip(&stored) {
        shared.catalog.count(chunk.window.generation, chunk.window.first_ns, &chunk.counts(stored));
    }
    Ok(())
}

/// How many of the messages, sorted by key, are in as many windows as one transaction may touch.
fn first_windows(messages: &[&Message], window_ns: i64) -> usize {
    let window = |message: &&Message| message.timestamp.0.div_euclid(window_ns);
    let by_window = messages.chunk_by(|one, other| window(one) == window(other));
    by_window.take(STATEMENTS_PER_TRANSACTION).map(<[&Message]>::len).sum()
}

/// Finds each message's window and topic number, after creating windows and registering topics that are missing.
async fn place(
    shared: &Shared,
    connection: &Connection,
    messages: &[&Message],
) -> Result<Vec<(Window, TopicId)>, AttemptError> {
    for _ in 0..ATTEMPTS {
        match shared.catalog.place(&connection.instance, messages) {
            Ok(places) => return Ok(places),
            Err(Missing::Catalog) => shared.catalog.load(connection).await?,
            Err(Missing::Windows(timestamps)) => {
                shared.catalog.make_windows(connection, &timestamps, shared.window_ns).await?;
            }
            Err(Missing::Topics(pairs)) => shared.catalog.register(connection, &pairs).await?,
        }
    }
    Err(AttemptError::WindowsDropped)
}

/// Messages of one window that one statement stores.
struct Chunk<'a> {
    window: Window,
    messages: &'a [&'a Message],
    places: &'a [(Window, TopicId)],
}

/// Splits messages, sorted by key, into statements for one transaction.
fn chunks<'a>(messages: &'a [&'a Message], places: &'a [(Window, TopicId)]) -> Vec<Chunk<'a>> {
    let mut chunks = Vec::new();
    let mut begin = 0;
    while let Some((window, _)) = places.get(begin).filter(|_| chunks.len() < STATEMENTS_PER_TRANSACTION) {
        let mut bytes = 0;
        let mut end = begin;
        while let Some((message, (other, _))) = messages.get(end).zip(places.get(end)) {
            let is_full = end - begin >= STATEMENT_ROWS || bytes >= STATEMENT_BYTES;
            if is_full || other != window {
                break;
            }
            bytes += message.body.len();
            end += 1;
        }
        let part = messages.get(begin..end).zip(places.get(begin..end));
        let Some((messages, places)) = part else { break };
        chunks.push(Chunk { window: *window, messages, places });
        begin = end;
    }
    chunks
}

/// Keys that were new, as often as they were stored: once.
type Stored = HashMap<Key, TopicId, RandomState>;

impl Chunk<'_> {
    async fn prepare(&self, connection: &Connection) -> Result<Statement, AttemptError> {
        let select = Select::new(Access::Insert, Direction::Forward, true);
        let sql = || select.sql(&self.window.leaf());
        connection.prepared((self.window.generation, select), sql).await.doing("store messages")
    }

    /// Stores the chunk in a separate transaction.
    async fn insert(
        &self,
        connection: &Connection,
        may_be_committed: &mut bool,
    ) -> Result<Stored, AttemptError> {
        let statement = self.prepare(connection).await?;
        *may_be_committed = true;
        self.execute(connection, &statement).await
    }

    async fn execute(&self, connection: &Connection, statement: &Statement) -> Result<Stored, AttemptError> {
        let timestamps: Vec<i64> = self.messages.iter().map(|message| message.timestamp.0).collect();
        let hashes: Vec<&[u8]> = self.messages.iter().map(|message| &message.message_hash.0[..]).collect();
        let topics: Vec<i32> = self.places.iter().map(|(_, topic)| *topic as i32).collect();
        let bodies: Vec<&[u8]> = self.messages.iter().map(|message| &message.body[..]).collect();
        let parameters: [&(dyn ToSql + Sync); 5] =
            [&timestamps, &hashes, &topics, &bodies, &self.window.generation];
        let rows = connection.client.query(statement, &parameters).await.doing("store messages")?;
        let topics = self.messages.iter().zip(self.places).rev();
        let topic_of: HashMap<Key, TopicId, RandomState> =
            topics.map(|(message, (_, topic))| (message.key(), *topic)).collect();
        let mut stored = Stored::default();
        for row in rows {
            let hash: &[u8] = get(&row, 1)?;
            let Ok(hash) = hash.try_into() else { continue };
            let key = Key { timestamp: Timestamp(get(&row, 0)?), message_hash: MessageHash(hash) };
            if let Some(topic) = topic_of.get(&key) {
                stored.insert(key, *topic);
            }
        }
        Ok(stored)
    }

    /// The outcome of each message.
    fn flags(&self, stored: &Stored) -> impl Iterator<Item = Flag> {
        let mut last = None;
        self.messages.iter().map(move |message| {
            let key = message.key();
            let is_repeated = last.replace(key) == Some(key);
            match (is_repeated, stored.contains_key(&key)) {
                (true, _) => Flag::Repeated,
                (false, true) => Flag::New,
                (false, false) => Flag::Found,
            }
        })
    }

    fn counts(&self, stored: &Stored) -> HashMap<TopicId, u64, RandomState> {
        let mut counts = HashMap::default();
        for topic in stored.values() {
            *counts.entry(*topic).or_insert(0) += 1;
        }
        counts
    }
}

/// Stores several chunks in one transaction, sent without waiting for each answer. When one fails, the connection is not used
/// again, and the server rolls back the others.
async fn insert_all(
    connection: &Connection,
    chunks: &[Chunk<'_>],
    may_be_committed: &mut bool,
) -> Result<Vec<Stored>, AttemptError> {
    let mut statements = Vec::with_capacity(chunks.len());
    for chunk in chunks {
        statements.push(chunk.prepare(connection).await?);
    }
    connection.client.batch_execute("BEGIN").await.doing("store messages")?;
    let inserts =
        chunks.iter().zip(&statements).map(|(chunk, statement)| chunk.execute(connection, statement));
    let stored = futures_util::future::try_join_all(inserts).await?;
    *may_be_committed = true;
    connection.client.batch_execute("COMMIT").await.doing("store messages")?;
    Ok(stored)
}

#[cfg(test)]
mod tests {
    use super::{Flag::*, *};

    fn taken(done: usize, tried: usize, flags: &[Flag]) -> Vec<bool> {
        let mut progress = Progress { is_stored: vec![false; done + flags.len()], done, tried };
        progress.take(flags);
        progress.is_stored.split_off(done)
    }

    #[test]
    fn what_is_found_after_a_lost_answer_was_stored() {
        assert_eq!(taken(1, 0, &[New, Found, Repeated]), [true, false, false]);
        assert_eq!(taken(1, 4, &[Found, Found, Repeated]), [true, true, false]);
        // The lost transaction had fewer.
        assert_eq!(taken(1, 3, &[Found, Found, Found, New]), [true, true, false, true]);
        // It was not committed: it would have stored them all.
        assert_eq!(taken(0, 3, &[New, Found, Repeated]), [true, false, false]);
    }
}
