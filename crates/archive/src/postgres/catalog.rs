//! What every server knows about the database: its windows, its topics, and which topics occur in which window.
//!
//! The catalogue in memory is never older than the state of the database at some moment, and a query checks that it is not out of
//! date: a server that adds a topic to a window, or a window, raises `state.sequence` in the same transaction and locks that row
//! until the commit. So numbers become visible in order, and "nothing newer than n" needs one read of one row. Removing windows
//! raises `state.drops`, and the catalogue is reloaded.
//!
//! A failover may undo registrations, and another server may then assign the same numbers to other topics. So the catalogue
//! belongs to one *instance* (see [`Connection::instance`]), and messages are only stored over a connection to that instance.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use foldhash::fast::RandomState;
use parking_lot::{Mutex, RwLock};
use restante_core::TopicBits;
use tokio_postgres::{Client, Row};

use super::{
    attempt::{AttemptError, Doing},
    connect::Connection,
    schema::{self, leaf_name},
};
use crate::{
    Error, Message, Query,
    query::KeyRange,
    topics::{Dictionary, Selection, TopicId},
};

/// The most windows of an archive: each is a table with three indexes, and every query may read all of them.
const WINDOWS_MAX: usize = 10_000;
/// Notes that are remembered, so that a query can tell whether new topics concern it.
const NOTES_MAX: usize = 4_096;
/// How long creating a window waits for a lock on the partitioned table: meanwhile nothing can be registered.
const LOCK_TIMEOUT_MS: u32 = 2_000;
/// Counts that one statement writes.
const COUNTS_PER_STATEMENT: usize = 1_000;

/// A range of time with its own table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) generation: i64,
    pub(super) first_ns: i64,
    /// The first nanosecond after the window; for the last possible window, its last nanosecond.
    pub(super) end_ns: i64,
}

impl Window {
    pub(super) fn contains(&self, timestamp: i64) -> bool {
        self.first_ns <= timestamp && (timestamp < self.end_ns || self.end_ns == i64::MAX)
    }

    pub(super) fn leaf(&self) -> String {
        leaf_name(self.generation)
    }

    /// Whether rows of the window can be in a range.
    fn touches(&self, range: &KeyRange) -> bool {
        let ends_before = self.end_ns <= range.from.timestamp.0 && self.end_ns != i64::MAX;
        let begins_behind = range.until.is_some_and(|until| self.first_ns > until.timestamp.0);
        !ends_before && !begins_behind
    }
}

/// A window and the topics that occur in it.
#[derive(Clone, Debug)]
struct Known {
    window: Window,
    /// Approximate messages of each topic, for plans; which topics occur is exact.
    topics: HashMap<TopicId, u64, RandomState>,
    /// Their sum.
    messages: u64,
    /// See [`Candidate::density`] and [`Candidate::is_uneven`].
    density: f64,
    is_uneven: bool,
}

struct State {
    windows: BTreeMap<i64, Known>,
    dictionary: Dictionary,
    sequence: i64,
    drops: i64,
    /// Incremented with each note.
    version: u64,
    /// The last notes: the version, the window's first nanosecond, the topic.
    notes: VecDeque<(u64, i64, TopicId)>,
    /// The instance that the catalogue was read from.
    instance: String,
}

/// A window that a query may have to read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    pub(super) window: Window,
    /// Roughly how many messages the window has, and how many of wanted topics.
    pub(super) messages: u64,
    pub(super) wanted_messages: u64,
    /// How many wanted topics occur in it.
    pub(super) wanted_topics: usize,
    /// The number of messages in the part that was read last, divided by that of an average part of the same length of time.
    pub(super) density: f64,
    /// Whether a part of it had far more messages than expected, or more bytes than fit on a page.
    pub(super) is_uneven: bool,
}

/// The catalogue's answer to a query.
pub(super) struct Answer {
    pub(super) selection: Selection,
    /// The windows in the range, in the order of time.
    pub(super) windows: Vec<Window>,
    pub(super) sequence: i64,
    pub(super) drops: i64,
    version: u64,
}

/// The catalogue of one server.
pub(super) struct Catalog {
    state: RwLock<State>,
    /// Messages stored since the counts were last written to the database, by window and topic.
    uncounted: Mutex<HashMap<(i64, TopicId), u64, RandomState>>,
    /// Locked during a query to the database: tasks that waited find it done.
    reading: tokio::sync::Mutex<()>,
    topic_bits: fn(&str) -> TopicBits,
}

/// What has to be registered or loaded before messages can be stored.
pub(super) enum Missing<'a> {
    /// Windows for these timestamps.
    Windows(Vec<i64>),
    /// Topics of windows: the generation, the channel, the topic.
    Topics(Vec<(i64, &'a str, &'a str)>),
    /// The catalogue of this instance: the one in memory is another's.
    Catalog,
}

impl Catalog {
    pub(super) fn new(topic_bits: fn(&str) -> TopicBits) -> Self {
        Self {
            state: RwLock::new(State::new(topic_bits, 0)),
            uncounted: Mutex::default(),
            reading: tokio::sync::Mutex::default(),
            topic_bits,
        }
    }

    /// The topics that a query matches and the windows that may have them.
    pub(super) fn ask(&self, query: &Query, range: &KeyRange) -> Answer {
        let state = self.state.read();
        let selection = state.dictionary.select(query);
        let all = state.windows.values().map(|known| known.window);
        let windows = all.filter(|window| window.touches(range)).collect();
        let State { sequence, drops, version, .. } = *state;
        Answer { selection, windows, sequence, drops, version }
    }

    /// Whether what the catalogue has learnt since an answer could have changed the result of a query.
    pub(super) fn has_changed(&self, query: &Query, range: &KeyRange, before: &Answer) -> bool {
        let state = self.state.read();
        let is_forgotten = state.notes.front().is_some_and(|(oldest, ..)| *oldest > before.version + 1);
        let is_there = |window: &Window| {
            let known = state.windows.get(&window.first_ns);
            known.is_some_and(|known| known.window == *window)
        };
        if is_forgotten || !before.windows.iter().all(is_there) {
            return true;
        }
        let selection = state.dictionary.select(query);
        let since = state.notes.iter().rev().take_while(|(version, ..)| *version > before.version);
        for (_, first_ns, topic) in since {
            let Some(known) = state.windows.get(first_ns) else { return true };
            let matters = match &selection {
                Selection::All => !before.windows.contains(&known.window),
                Selection::Topics(set) => set.contains(*topic),
            };
            if matters && known.window.touches(range) {
                return true;
            }
        }
        false
    }

    /// What a window may have for a query; `None` if nothing.
    pub(super) fn candidate(&self, window: &Window, selection: &Selection) -> Option<Candidate> {
        let state = self.state.read();
        let known = state.windows.get(&window.first_ns)?;
        let candidate = known.candidate(selection);
        let may_have_rows = matches!(selection, Selection::All) || candidate.wanted_topics > 0;
        may_have_rows.then_some(candidate)
    }

    /// Notes how dense a part of a window was, and whether it was too large. Plans use it until the catalogue is reloaded.
    pub(super) fn note_part(&self, window: &Window, density: f64, is_too_large: bool) {
        if let Some(known) = self.state.write().windows.get_mut(&window.first_ns) {
            known.density = density;
            known.is_uneven |= is_too_large;
        }
    }

    /// The numbers of wanted topics that occur in a window.
    pub(super) fn wanted_in(&self, window: &Window, selection: &Selection) -> Vec<i32> {
        let Selection::Topics(set) = selection else { return Vec::new() };
        let state = self.state.read();
        let Some(known) = state.windows.get(&window.first_ns) else { return Vec::new() };
        let occurring = set.ids().iter().filter(|id| known.topics.contains_key(id));
        occurring.map(|id| *id as i32).collect()
    }

    /// The names of topics; `None` where one is unknown.
    pub(super) fn names(&self, ids: &[TopicId]) -> Option<Vec<crate::TopicName>> {
        let state = self.state.read();
        ids.iter().map(|id| state.dictionary.name(*id).cloned()).collect()
    }

    /// All windows in the order of time.
    pub(super) fn windows(&self) -> Vec<Window> {
        self.state.read().windows.values().map(|known| known.window).collect()
    }

    /// How many windows there are.
    pub(super) fn window_count(&self) -> usize {
        self.state.read().windows.len()
    }

    /// Whether the catalogue is up to date with these numbers.
    pub(super) fn is_at(&self, sequence: i64, drops: i64) -> bool {
        let state = self.state.read();
        state.sequence >= sequence && state.drops == drops
    }

    /// Where messages belong in an instance, as of one moment: the window and the topic number of each.
    pub(super) fn place<'a>(
        &self,
        instance: &str,
        messages: &[&'a Message],
    ) -> Result<Vec<(Window, TopicId)>, Missing<'a>> {
        let state = self.state.read();
        if state.instance != instance {
            return Err(Missing::Catalog);
        }
        let mut places = Vec::with_capacity(messages.len());
        let mut no_window = BTreeSet::new();
        let mut no_topic = BTreeSet::new();
        for message in messages {
            let timestamp = message.timestamp.0;
            let before = state.windows.range(..=timestamp).next_back();
            let Some((_, known)) = before.filter(|(_, known)| known.window.contains(timestamp)) else {
                no_window.insert(timestamp);
                continue;
            };
            let (channel, topic) = (&*message.channel, &*message.topic);
            match state.dictionary.find(channel, topic).filter(|id| known.topics.contains_key(id)) {
                Some(id) => places.push((known.window, id)),
                None => {
                    no_topic.insert((known.window.generation, channel, topic));
                }
            }
        }
        if !no_window.is_empty() {
            return Err(Missing::Windows(no_window.into_iter().collect()));
        }
        if !no_topic.is_empty() {
            return Err(Missing::Topics(no_topic.into_iter().collect()));
        }
        Ok(places)
    }

    /// Counts messages that were stored.
    pub(super) fn count(&self, generation: i64, first_ns: i64, counts: &HashMap<TopicId, u64, RandomState>) {
        let mut state = self.state.write();
        if let Some(known) = state.windows.get_mut(&first_ns) {
            for (topic, messages) in counts {
                if let Some(count) = known.topics.get_mut(topic) {
                    *count += messages;
                    known.messages += messages;
                }
            }
        }
        drop(state);
        let mut uncounted = self.uncounted.lock();
        for (topic, messages) in counts {
            *uncounted.entry((generation, *topic)).or_insert(0) += messages;
        }
    }

    /// Writes the counts of topics to the database. They are only used for plans, so they are written now and then, and losing
    /// them does no harm.
    pub(super) async fn write_counts(&self, connection: &Connection) -> Result<(), AttemptError> {
        let taken = std::mem::take(&mut *self.uncounted.lock());
        let mut counts: Vec<((i64, TopicId), u64)> = taken.into_iter().collect();
        counts.sort_unstable(); // servers lock the rows in the same order
        while !counts.is_empty() {
            let some = counts.split_off(counts.len().saturating_sub(COUNTS_PER_STATEMENT));
            if let Err(error) = write_some_counts(connection, &some).await {
                counts.extend(some);
                self.take_back(counts);
                return Err(error);
            }
        }
        Ok(())
    }

    fn take_back(&self, counts: Vec<((i64, TopicId), u64)>) {
        let mut uncounted = self.uncounted.lock();
        for (place, messages) in counts {
            *uncounted.entry(place).or_insert(0) += messages;
        }
    }

    /// Reloads everything.
    pub(super) async fn load(&self, connection: &Connection) -> Result<(), AttemptError> {
        let _turn = self.reading.lock().await;
        self.load_in_turn(connection).await
    }

    /// Reloads everything at the first use of a connection that reaches another instance.
    pub(super) async fn load_if_other(&self, connection: &Connection) -> Result<(), AttemptError> {
        if connection.is_first_use() && !self.is_of(connection) {
            self.load(connection).await?;
        }
        Ok(())
    }

    fn is_of(&self, connection: &Connection) -> bool {
        self.state.read().instance == connection.instance
    }

    async fn load_in_turn(&self, connection: &Connection) -> Result<(), AttemptError> {
        let client = begin_snapshot(connection).await?;
        let (sequence, drops) = read_state(client).await?;
        let (windows, topics) = read_rows(client, -1).await?;
        client.batch_execute("COMMIT").await.doing("read its catalogue")?;
        let mut state = self.state.write();
        let mut new = State::new(self.topic_bits, state.version + 1);
        new.add(&windows, &topics)?;
        (new.sequence, new.drops) = (sequence, drops);
        new.instance.clone_from(&connection.instance);
        *state = new;
        Ok(())
    }

    /// Reads what is newer than the catalogue. When the connection reaches another instance, or the database has gone back to an
    /// older state, everything is reloaded.
    pub(super) async fn refresh(&self, connection: &Connection) -> Result<(), AttemptError> {
        let _turn = self.reading.lock().await;
        if !self.is_of(connection) {
            return self.load_in_turn(connection).await;
        }
        let (known_sequence, known_drops) = {
            let state = self.state.read();
            (state.sequence, state.drops)
        };
        let client = begin_snapshot(connection).await?;
        let (sequence, drops) = read_state(client).await?;
        if drops < known_drops || sequence < known_sequence {
            client.batch_execute("COMMIT").await.doing("read its catalogue")?;
            return self.load_in_turn(connection).await;
        }
        let left = match drops == known_drops {
            true => None,
            false => Some(read_generations(client).await?),
        };
        let (windows, topics) = match sequence == known_sequence {
            true => (Vec::new(), Vec::new()),
            false => read_rows(client, known_sequence).await?,
        };
        client.batch_execute("COMMIT").await.doing("read its catalogue")?;
        let mut state = self.state.write();
        if let Some(left) = left {
            state.forget_all_but(&left);
            state.drops = state.drops.max(drops);
        }
        state.add(&windows, &topics)?;
        state.sequence = state.sequence.max(sequence);
        Ok(())
    }

    /// Forgets a window that this server has removed; `drops` is the number of this removal.
    pub(super) fn forget(&self, window: &Window, drops: i64) {
        let mut state = self.state.write();
        state.forget(window.first_ns, window.generation);
        state.take_drops(drops);
    }

    /// Notes that topics that occur nowhere were removed, which are already forgotten here; `drops` is the number of this
    /// removal.
    pub(super) fn take_drops(&self, drops: i64) {
        self.state.write().take_drops(drops);
    }

    /// Creates windows for timestamps that have none, and loads them.
    pub(super) async fn make_windows(
        &self,
        connection: &Connection,
        timestamps: &[i64],
        window_ns: i64,
    ) -> Result<(), AttemptError> {
        make_some_windows(connection, timestamps, window_ns).await?;
        self.refresh(connection).await
    }

    /// Assigns numbers to topics and notes that they occur in windows.
    pub(super) async fn register(
        &self,
        connection: &Connection,
        pairs: &[(i64, &str, &str)],
    ) -> Result<(), AttemptError> {
        let what = "register topics";
        let client = &connection.client;
        client.batch_execute("BEGIN").await.doing(what)?;
        let row = client
            .query_one("UPDATE state SET sequence = sequence + 1 RETURNING sequence, next_topic", &[])
            .await
            .doing(what)?;
        let (sequence, next_topic): (i64, i32) = (get(&row, 0)?, get(&row, 1)?);
        let ids = number_topics(client, pairs, next_topic).await?;
        let generations: Vec<i64> = pairs.iter().map(|(generation, _, _)| *generation).collect();
        let sql = "INSERT INTO window_topics (generation, topic, sequence)
                   SELECT n.*, $3 FROM unnest($1::bigint[], $2::int[]) AS n ON CONFLICT DO NOTHING";
        client.execute(sql, &[&generations, &ids, &sequence]).await.doing(what)?;
        // Synced, because the catalogue in memory must not have entries that a crash of the server undoes.
        client.batch_execute("COMMIT").await.doing(what)?;
        let mut state = self.state.write();
        if state.instance == connection.instance {
            state.take_registered(pairs, &ids, sequence);
        }
        Ok(())
    }
}

impl Known {
    fn candidate(&self, selection: &Selection) -> Candidate {
        let messages = self.messages;
        let mut candidate = Candidate {
            window: self.window,
            messages,
            wanted_messages: messages,
            wanted_topics: 0,
            density: self.density,
            is_uneven: self.is_uneven,
        };
        let Selection::Topics(set) = selection else { return candidate };
        candidate.wanted_messages = 0;
        let mut take = |messages: u64| {
            candidate.wanted_messages += messages;
            candidate.wanted_topics += 1;
        };
        if set.ids().len() < self.topics.len() {
            set.ids().iter().filter_map(|id| self.topics.get(id)).for_each(|messages| take(*messages));
        } else {
            let wanted = self.topics.iter().filter(|(id, _)| set.contains(**id));
            wanted.for_each(|(_, messages)| take(*messages));
        }
        candidate
    }
}

impl State {
    fn new(topic_bits: fn(&str) -> TopicBits, version: u64) -> Self {
        Self {
            windows: BTreeMap::new(),
            dictionary: Dictionary::new(topic_bits),
            sequence: 0,
            drops: 0,
            version,
            notes: VecDeque::new(),
            instance: String::new(),
        }
    }

    fn add(&mut self, windows: &[Row], topics: &[Row]) -> Result<(), AttemptError> {
        for row in windows {
            let window = Window { generation: get(row, 0)?, first_ns: get(row, 1)?, end_ns: get(row, 2)? };
            self.windows.entry(window.first_ns).or_insert_with(|| Known {
                window,
                topics: HashMap::default(),
                messages: 0,
                density: 1.0,
                is_uneven: false,
            });
        }
        let by_generation: HashMap<i64, i64, RandomState> =
            self.windows.values().map(|known| (known.window.generation, known.window.first_ns)).collect();
        for row in topics {
            let (generation, id, messages): (i64, i32, i64) = (get(row, 0)?, get(row, 1)?, get(row, 2)?);
            let (channel, topic) = (text(row, 3)?, text(row, 4)?);
            let Some(first_ns) = by_generation.get(&generation) else { continue };
            self.note(*first_ns, id as TopicId, channel, topic, messages as u64);
        }
        Ok(())
    }

    /// Notes that a topic occurs in a window.
    fn note(&mut self, first_ns: i64, id: TopicId, channel: &str, topic: &str, messages: u64) {
        let Some(known) = self.windows.get_mut(&first_ns) else { return };
        if known.topics.contains_key(&id) {
            return;
        }
        known.topics.insert(id, messages);
        known.messages += messages;
        self.dictionary.count_numbered(id, channel, topic, 1); // windows are counted here, not messages
        self.version += 1;
        if self.notes.len() == NOTES_MAX {
            self.notes.pop_front();
        }
        self.notes.push_back((self.version, first_ns, id));
    }

    fn forget(&mut self, first_ns: i64, generation: i64) {
        let is_meant = self.windows.get(&first_ns).is_some_and(|known| known.window.generation == generation);
        let Some(known) = is_meant.then(|| self.windows.remove(&first_ns)).flatten() else { return };
        for topic in known.topics.into_keys() {
            self.dictionary.discount(topic, 1);
        }
    }

    fn forget_all_but(&mut self, left: &BTreeSet<i64>) {
        let known = self.windows.values().map(|known| (known.window.first_ns, known.window.generation));
        let gone: Vec<(i64, i64)> = known.filter(|(_, generation)| !left.contains(generation)).collect();
        for (first_ns, generation) in gone {
            self.forget(first_ns, generation);
        }
    }

    /// Removals by another server in between are still unknown.
    fn take_drops(&mut self, drops: i64) {
        if drops == self.drops + 1 {
            self.drops = drops;
        }
    }

    fn take_registered(&mut self, pairs: &[(i64, &str, &str)], ids: &[i32], sequence: i64) {
        let by_generation: HashMap<i64, i64, RandomState> =
            self.windows.values().map(|known| (known.window.generation, known.window.first_ns)).collect();
        for ((generation, channel, topic), id) in pairs.iter().zip(ids) {
            if let Some(first_ns) = by_generation.get(generation) {
                self.note(*first_ns, *id as TopicId, channel, topic, 0);
            }
        }
        // Registrations by another server in between are still unknown.
        if sequence == self.sequence + 1 {
            self.sequence = sequence;
        }
    }
}

/// Begins a transaction in which everything is read as of one moment. If it is not completed, the connection is not used again.
async fn begin_snapshot(connection: &Connection) -> Result<&Client, AttemptError> {
    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
    connection.client.batch_execute(begin).await.doing("read its catalogue")?;
    Ok(&connection.client)
}

async fn read_state(client: &Client) -> Result<(i64, i64), AttemptError> {
    let row = client.query_one(schema::STATE, &[]).await.doing("read its state")?;
    Ok((get(&row, 0)?, get(&row, 1)?))
}

/// The existing windows.
async fn read_generations(client: &Client) -> Result<BTreeSet<i64>, AttemptError> {
    let rows = client.query("SELECT generation FROM windows", &[]).await.doing("read its windows")?;
    rows.iter().map(|row| get(row, 0)).collect()
}

/// Windows and topics of windows that are newer than a sequence number.
async fn read_rows(client: &Client, sequence: i64) -> Result<(Vec<Row>, Vec<Row>), AttemptError> {
    let windows = "SELECT generation, first_ns, end_ns FROM windows WHERE generation > $1";
    let topics = "SELECT w.generation, w.topic, w.messages, t.channel, t.topic
                  FROM window_topics AS w JOIN topics AS t ON t.id = w.topic WHERE w.sequence > $1";
    let windows = client.query(windows, &[&sequence]).await.doing("read its windows")?;
    let topics = client.query(topics, &[&sequence]).await.doing("read its topics")?;
    Ok((windows, topics))
}

/// The numbers of topics; those that have none are assigned the next ones.
async fn number_topics(
    client: &Client,
    pairs: &[(i64, &str, &str)],
    mut next_topic: i32,
) -> Result<Vec<i32>, AttemptError> {
    let what = "register topics";
    let channels: Vec<&[u8]> = pairs.iter().map(|(_, channel, _)| channel.as_bytes()).collect();
    let topics: Vec<&[u8]> = pairs.iter().map(|(_, _, topic)| topic.as_bytes()).collect();
    let sql = "SELECT t.id, n.channel, n.topic FROM unnest($1::bytea[], $2::bytea[]) AS n (channel, topic)
               JOIN topics AS t ON sha256(t.topic) = sha256(n.topic) AND sha256(t.channel) = sha256(n.channel)";
    let rows = client.query(sql, &[&channels, &topics]).await.doing(what)?;
    let mut known: HashMap<(Vec<u8>, Vec<u8>), i32> = HashMap::new();
    for row in &rows {
        known.insert((get(row, 1)?, get(row, 2)?), get(row, 0)?);
    }
    let (mut ids, mut new) = (Vec::new(), (Vec::new(), Vec::new(), Vec::new()));
    for (channel, topic) in channels.iter().zip(&topics) {
        let id = *known.entry((channel.to_vec(), topic.to_vec())).or_insert_with(|| {
            new.0.push(next_topic);
            new.1.push(*channel);
            new.2.push(*topic);
            next_topic += 1;
            next_topic - 1
        });
        ids.push(id);
    }
    if !new.0.is_empty() {
        let sql = "INSERT INTO topics SELECT * FROM unnest($1::int[], $2::bytea[], $3::bytea[])";
        client.execute(sql, &[&new.0, &new.1, &new.2]).await.doing(what)?;
        client.execute("UPDATE state SET next_topic = $1", &[&next_topic]).await.doing(what)?;
    }
    Ok(ids)
}

/// Creates windows in one transaction, which keeps all other servers from creating any.
async fn make_some_windows(
    connection: &Connection,
    timestamps: &[i64],
    window_ns: i64,
) -> Result<(), AttemptError> {
    let what = "make a window";
    let client = &connection.client;
    let begin = format!("BEGIN; SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}");
    client.batch_execute(&begin).await.doing(what)?;
    let row = client.query_one("SELECT sequence FROM state FOR UPDATE", &[]).await.doing(what)?;
    let mut generation: i64 = get(&row, 0)?;
    let mut taken: BTreeMap<i64, i64> = BTreeMap::new();
    for row in client.query("SELECT first_ns, end_ns FROM windows", &[]).await.doing(what)? {
        taken.insert(get(&row, 0)?, get(&row, 1)?);
    }
    for timestamp in timestamps {
        let Some((first_ns, end_ns)) = bounds_of(*timestamp, window_ns, &taken) else { continue };
        if taken.len() >= WINDOWS_MAX {
            let full =
                format!("the archive has {WINDOWS_MAX} windows, which is the limit: make windows longer");
            return Err(Error::full(full).into());
        }
        generation += 1;
        client.batch_execute(&schema::create_leaf(generation, first_ns, end_ns)).await.doing(what)?;
        let sql = "INSERT INTO windows (generation, first_ns, end_ns) VALUES ($1, $2, $3)";
        client.execute(sql, &[&generation, &first_ns, &end_ns]).await.doing(what)?;
        taken.insert(first_ns, end_ns);
    }
    client.execute("UPDATE state SET sequence = $1", &[&generation]).await.doing(what)?;
    client.batch_execute("COMMIT").await.doing(what)
}

async fn write_some_counts(
    connection: &Connection,
    counts: &[((i64, TopicId), u64)],
) -> Result<(), AttemptError> {
    let generations: Vec<i64> = counts.iter().map(|((generation, _), _)| *generation).collect();
    let topics: Vec<i32> = counts.iter().map(|((_, topic), _)| *topic as i32).collect();
    let messages: Vec<i64> = counts.iter().map(|(_, messages)| *messages as i64).collect();
    let sql = "UPDATE window_topics AS w SET messages = w.messages + n.messages
               FROM unnest($1::bigint[], $2::int[], $3::bigint[]) AS n (generation, topic, messages)
               WHERE w.generation = n.generation AND w.topic = n.topic";
    connection.client.execute(sql, &[&generations, &topics, &messages]).await.doing("write counts")?;
    Ok(())
}

/// The bounds of a new window for a timestamp, cut where others exist; `None` when one of them covers it. Windows may have been
/// created with other lengths.
fn bounds_of(timestamp: i64, window_ns: i64, taken: &BTreeMap<i64, i64>) -> Option<(i64, i64)> {
    let mut first_ns = timestamp.div_euclid(window_ns).saturating_mul(window_ns);
    let mut end_ns = first_ns.saturating_add(window_ns);
    if let Some((_, end)) = taken.range(..=timestamp).next_back() {
        let is_inside = timestamp < *end || *end == i64::MAX;
        if is_inside {
            return None;
        }
        first_ns = first_ns.max(*end);
    }
    if timestamp < i64::MAX
        && let Some((first, _)) = taken.range(timestamp + 1..).next()
    {
        end_ns = end_ns.min(*first);
    }
    Some((first_ns, end_ns))
}

/// A column of a row.
pub(super) fn get<'a, T: tokio_postgres::types::FromSql<'a>>(
    row: &'a Row,
    column: usize,
) -> Result<T, AttemptError> {
    row.try_get(column).doing("read a column")
}

fn text(row: &Row, column: usize) -> Result<&str, AttemptError> {
    let bytes: &[u8] = get(row, column)?;
    let text = std::str::from_utf8(bytes);
    text.map_err(|_| Error::corrupt("a topic's name in postgres is no UTF-8").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_aligned_and_never_overlap() {
        let mut taken = BTreeMap::new();
        assert_eq!(bounds_of(25, 10, &taken), Some((20, 30)));
        assert_eq!(bounds_of(-1, 10, &taken), Some((-10, 0)));
        taken.insert(20, 30);
        assert_eq!(bounds_of(29, 10, &taken), None);
        // Windows were made longer: the remaining gap is filled.
        assert_eq!(bounds_of(5, 100, &taken), Some((0, 20)));
        assert_eq!(bounds_of(31, 100, &taken), Some((30, 100)));
    }

    #[test]
    fn the_ends_of_time_have_windows() {
        let taken = BTreeMap::new();
        let (first_ns, end_ns) = bounds_of(i64::MAX, 1_000, &taken).unwrap();
        assert!(Window { generation: 1, first_ns, end_ns }.contains(i64::MAX));
        let (first_ns, end_ns) = bounds_of(i64::MIN, 1_000, &taken).unwrap();
        assert!(Window { generation: 1, first_ns, end_ns }.contains(i64::MIN));
        assert!(end_ns > first_ns);
    }
}
