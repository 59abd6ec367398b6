//! Storing messages: a few tasks take the waiting appends, look up which messages are already stored, and write the others.
//!
//! The order of the writes makes an append safe to repeat and to interrupt: first the catalogue and the marks, then
//! the postings and the long bodies, and last the row of the message itself. Without that row the message does not exist.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
    time::Instant,
};

use foldhash::fast::RandomState;
use futures_util::{StreamExt, TryStreamExt, stream};
use restante_core::{Key, MessageHash, Timestamp};
use tokio::sync::{Mutex, Notify};

use super::{
    Shared,
    catalog::Item,
    epochs::{Epoch, Stage},
    retention::EMPTY_SECONDS,
    schema::{self, BoundKey, EpochId, Statement, TopicKey, ValueRow},
};
use crate::{
    Appended, Error, Message, TopicName,
    group::{GroupLimit, Waiting, answer_all},
    waiting::Append,
};

/// The largest group that is stored at once; a single append may be larger.
const GROUP: GroupLimit = GroupLimit { messages: 2_000, bytes: 4 << 20 };
/// Keys of one lookup.
pub(super) const LOOKUP_KEYS: usize = 100;
/// Rows of other messages that a lookup reads at most.
const LOOKUP_OTHERS: usize = 100;
/// Rows and bytes of one write.
const WRITE_ROWS: usize = 100;
const WRITE_BYTES: usize = 256 << 10;
/// Concurrent requests of one group.
const REQUESTS: usize = 32;
/// Attempts to store a group while epochs are dropped.
const ATTEMPTS: usize = 5;

/// Keys that are being stored, so that no two tasks of this server store the same message at once.
#[derive(Default)]
pub(super) struct InFlight {
    keys: parking_lot::Mutex<HashSet<Key, RandomState>>,
    released: Notify,
}

/// Keys that this task stores. They are released when it is dropped.
struct Claim<'a> {
    in_flight: &'a InFlight,
    keys: Vec<Key>,
}

impl InFlight {
    /// Waits until no other task is storing any of the keys, and claims them all.
    async fn claim(&self, keys: Vec<Key>) -> Claim<'_> {
        loop {
            let released = self.released.notified();
            tokio::pin!(released);
            released.as_mut().enable();
            {
                let mut held = self.keys.lock();
                if !keys.iter().any(|key| held.contains(key)) {
                    held.extend(keys.iter().copied());
                    return Claim { in_flight: self, keys };
                }
            }
            released.await;
        }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut held = self.in_flight.keys.lock();
        for key in &self.keys {
            held.remove(key);
        }
        drop(held);
        self.in_flight.released.notify_waiters();
    }
}

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
    let all: Vec<&Message> = group.iter().flat_map(|append| &append.messages).collect();
    shared.metrics.commit_messages.observe(all.len() as f64);
    let mut firsts: BTreeMap<Key, usize> = BTreeMap::new();
    for (place, message) in all.iter().enumerate() {
        firsts.entry(message.key()).or_insert(place);
    }
    let claim = shared.in_flight.claim(firsts.keys().copied().collect()).await;
    let mut entries: Vec<Entry<'_>> = Vec::with_capacity(firsts.len());
    for place in firsts.values() {
        if let Some(message) = all.get(*place) {
            entries.push(Entry::new(shared, message));
        }
    }
    store_entries(shared, &mut entries).await?;
    drop(claim);
    shared.metrics.sync_seconds.observe(begun.elapsed().as_secs_f64());
    let mut answers = vec![Appended::Duplicate; all.len()];
    for (entry, place) in entries.iter().zip(firsts.values()) {
        if entry.outcome == Outcome::Stored
            && let Some(answer) = answers.get_mut(*place)
        {
            *answer = Appended::Stored;
        }
    }
    Ok(answers)
}

/// What is known about a message of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Unknown,
    /// An attempt to write it failed, perhaps after it was written: if it is found, it counts as stored.
    Tried,
    Stored,
    Duplicate,
}

/// A message, its topic, and the epoch that it belongs to.
struct Entry<'a> {
    message: &'a Message,
    topic: TopicKey,
    epoch: Option<Epoch>,
    outcome: Outcome,
}

impl<'a> Entry<'a> {
    fn new(shared: &Shared, message: &'a Message) -> Self {
        let topic = shared.catalog.key(&message.channel, &message.topic);
        Self { message, topic, epoch: None, outcome: Outcome::Unknown }
    }

    fn is_done(&self) -> bool {
        matches!(self.outcome, Outcome::Stored | Outcome::Duplicate)
    }

    fn window(&self) -> (EpochId, i64) {
        self.epoch.map_or((0, 0), |epoch| (epoch.id, epoch.window(self.message.timestamp.0)))
    }

    fn row_key(&self) -> BoundKey<'a> {
        (self.message.timestamp.0, self.message.message_hash.0.as_slice())
    }
}

/// Stores the messages that aren't stored yet, even if epochs are dropped meanwhile.
async fn store_entries(shared: &Shared, entries: &mut [Entry<'_>]) -> Result<(), Error> {
    let mut attempt = 1;
    loop {
        let error = match store_once(shared, entries).await {
            Ok(true) => return Ok(()),
            Ok(false) => None,
            Err(error) => Some(error),
        };
        if error.is_some() {
            shared.sync().await?;
        }
        let list = shared.catalog.list();
        let is_stale = |epoch: &Epoch| list.get(epoch.id).is_none_or(|found| found.stage != Stage::Open);
        let has_moved = entries.iter().any(|entry| entry.epoch.as_ref().is_some_and(is_stale));
        if attempt == ATTEMPTS || (error.is_some() && !has_moved) {
            return Err(error.unwrap_or_else(|| {
                Error::unavailable("epochs are dropped as fast as they are made: is the retention policy shorter than the messages are old?")
            }));
        }
        attempt += 1;
    }
}

/// One attempt; `false` when it has to be repeated because epochs changed before or during the write.
async fn store_once(shared: &Shared, entries: &mut [Entry<'_>]) -> Result<bool, Error> {
    for entry in entries.iter_mut().filter(|entry| !entry.is_done()) {
        entry.epoch = Some(shared.epoch_for(entry.message.timestamp.0).await?);
    }
    let (state, found) = tokio::join!(shared.state(), look_up(shared, entries));
    let state = state?;
    if !shared.is_current(&state) {
        shared.sync().await?;
        let list = shared.catalog.list();
        let still_takes = |epoch: &Epoch| list.get(epoch.id).is_some_and(|found| found.stage == Stage::Open);
        let pending = entries.iter().filter(|entry| !entry.is_done());
        if !pending.filter_map(|entry| entry.epoch.as_ref()).all(still_takes) {
            return Ok(false);
        }
    }
    let found = found?;
    for entry in entries.iter_mut().filter(|entry| found.contains(&entry.message.key())) {
        entry.outcome = match entry.outcome {
            Outcome::Tried | Outcome::Stored => Outcome::Stored,
            Outcome::Unknown | Outcome::Duplicate => Outcome::Duplicate,
        };
    }
    let places: Vec<usize> =
        (0..entries.len()).filter(|place| entries.get(*place).is_some_and(|e| !e.is_done())).collect();
    if places.is_empty() {
        return Ok(true);
    }
    for place in &places {
        if let Some(entry) = entries.get_mut(*place) {
            entry.outcome = Outcome::Tried;
        }
    }
    let pending: Vec<&Entry<'_>> = places.iter().filter_map(|place| entries.get(*place)).collect();
    let windows: Vec<(EpochId, i64)> = windows_of(&pending).into_keys().collect();
    let appending = shared.marks.begin(&windows, shared.micros());
    register(shared, &pending).await?;
    shared.mark(&windows).await?;
    write(shared, &pending).await?;
    drop(appending);
    let doubtful: BTreeSet<EpochId> =
        pending.iter().filter(|entry| may_be_closed(shared, entry)).map(|entry| entry.window().0).collect();
    if !doubtful.is_empty() && !are_open(shared, &doubtful).await? {
        return Ok(false);
    }
    for place in places {
        if let Some(entry) = entries.get_mut(place) {
            entry.outcome = Outcome::Stored;
        }
    }
    Ok(true)
}

/// Whether retention may have found an entry's epoch empty and closed it during the append. Retention does that to epochs that
/// ended and were opened a day ago; half a day allows for clocks that differ. An epoch that was created for this message is not
/// looked at again: with a policy that does not keep the message, the append would start over forever.
fn may_be_closed(shared: &Shared, entry: &Entry<'_>) -> bool {
    let now = shared.now();
    let opened_before = now.plus_seconds(-EMPTY_SECONDS / 2);
    entry.epoch.is_some_and(|epoch| epoch.end_ns <= now.0 && epoch.since_ns <= opened_before.0)
}

/// Whether all of the epochs are open, according to a state that is read now.
async fn are_open(shared: &Shared, epochs: &BTreeSet<EpochId>) -> Result<bool, Error> {
    shared.sync().await?;
    let list = shared.catalog.list();
    Ok(epochs.iter().all(|id| list.get(*id).is_some_and(|epoch| epoch.stage == Stage::Open)))
}

fn windows_of<'a, 'b>(entries: &[&'b Entry<'a>]) -> BTreeMap<(EpochId, i64), Vec<&'b Entry<'a>>> {
    let mut windows: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for entry in entries {
        windows.entry(entry.window()).or_default().push(*entry);
    }
    windows
}

/// Which of the messages are already stored.
async fn look_up(shared: &Shared, entries: &[Entry<'_>]) -> Result<HashSet<Key, RandomState>, Error> {
    let pending: Vec<&Entry<'_>> = entries.iter().filter(|entry| !entry.is_done()).collect();
    let windows = windows_of(&pending);
    let chunks = windows.iter().flat_map(|((epoch, window), entries)| {
        entries.chunks(LOOKUP_KEYS).map(|entries| (*epoch, schema::window_part(*window), entries))
    });
    let lookups: Vec<_> =
        chunks.map(|(epoch, part, entries)| look_up_some(shared, epoch, part, entries)).collect();
    let found: Vec<Vec<ValueRow>> = stream::iter(lookups).buffer_unordered(REQUESTS).try_collect().await?;
    let found = found.into_iter().flatten().filter(|(_, _, value)| value.is_some());
    Ok(found.filter_map(|(timestamp, hash, _)| key_of(timestamp, &hash)).collect())
}

/// The rows of some messages of a window, sorted by key, and of some others between them.
///
/// New messages are mostly the newest ones, so a slice from the first to the last of them has few rows or none, and costs a node
/// much less than a search for each. If the slice was truncated, the messages after its end are looked up by key.
///
/// Values are read although they aren't used. An interrupted append may have reached one node only; reading the
/// value writes it to a quorum before the read returns (read repair writes the columns that are read, and no others), so that
/// a message that is reported as a duplicate is as durable as one that is stored.
async fn look_up_some(
    shared: &Shared,
    epoch: EpochId,
    part: Vec<u8>,
    entries: &[&Entry<'_>],
) -> Result<Vec<ValueRow>, Error> {
    let what = "look for duplicates";
    let (Some(first), Some(last)) = (entries.first(), entries.last()) else { return Ok(Vec::new()) };
    let (first, _) = first.row_key();
    let (last, hash) = last.row_key();
    let behind_last = [hash, &[0]].concat();
    let rows_max = entries.len() + LOOKUP_OTHERS;
    let before_first: &[u8] = &[];
    let values = (part.as_slice(), first, before_first, last, behind_last.as_slice(), rows_max as i32);
    let mut rows: Vec<ValueRow> = shared.database.read(what, Statement::Forward(epoch), values).await?;
    let cut = rows.last().filter(|_| rows.len() >= rows_max);
    if let Some((timestamp, hash, _)) = cut {
        let is_behind = |key: &BoundKey<'_>| *key > (*timestamp, hash.as_slice());
        let keys: Vec<BoundKey<'_>> = entries.iter().map(|entry| entry.row_key()).filter(is_behind).collect();
        if !keys.is_empty() {
            let others: Vec<ValueRow> =
                shared.database.read(what, Statement::Rows(epoch), (part, keys)).await?;
            rows.extend(others);
        }
    }
    Ok(rows)
}

/// The key of a row; `None` for a row that this engine did not write.
pub(super) fn key_of(timestamp: i64, hash: &[u8]) -> Option<Key> {
    Some(Key { timestamp: Timestamp(timestamp), message_hash: MessageHash(hash.try_into().ok()?) })
}

/// Registers the windows and topics that are new.
async fn register(shared: &Shared, entries: &[&Entry<'_>]) -> Result<(), Error> {
    let mut seen: HashSet<(EpochId, Item), RandomState> = HashSet::default();
    let mut items = Vec::new();
    for (epoch, window) in windows_of(entries).into_keys() {
        if !shared.catalog.contents(epoch).windows.contains(&window) {
            items.push((epoch, Item::Window(window)));
        }
    }
    for entry in entries {
        let (epoch, _) = entry.window();
        if shared.catalog.has_topic(epoch, &entry.topic) {
            continue;
        }
        let message = entry.message;
        let name = TopicName { channel: message.channel.clone(), topic: message.topic.clone() };
        let item = (epoch, Item::Topic(name));
        if seen.insert(item.clone()) {
            items.push(item);
        }
    }
    shared.register(items).await
}

/// Writes messages: postings and long bodies, then the messages themselves.
async fn write(shared: &Shared, entries: &[&Entry<'_>]) -> Result<(), Error> {
    // The first write of a message wins because, for Cassandra, later ones have lower timestamps: a body never changes.
    let written = shared.write_timestamp();
    let (postings, hashes, chunks) = tokio::join!(
        write_postings(shared, entries, written),
        write_hashes(shared, entries, written),
        write_chunks(shared, entries, written)
    );
    postings.and(hashes).and(chunks)?;
    let mut requests = Vec::new();
    for ((epoch, window), entries) in windows_of(entries) {
        let part = schema::window_part(window);
        let mut rows = Vec::new();
        let mut bytes = 0;
        for entry in entries {
            let value = schema::encode_value(&entry.topic, &entry.message.body);
            let (timestamp, hash) = entry.row_key();
            bytes += value.len() + 64;
            let size = i32::try_from(entry.message.body.len()).unwrap_or(i32::MAX);
            rows.push((part.clone(), timestamp, hash, value, size, written));
            if rows.len() >= WRITE_ROWS || bytes >= WRITE_BYTES {
                requests.push((epoch, std::mem::take(&mut rows)));
                bytes = 0;
            }
        }
        if !rows.is_empty() {
            requests.push((epoch, rows));
        }
    }
    let writes: Vec<_> = requests
        .into_iter()
        .map(|(epoch, rows)| async move {
            shared.database.write_rows("store messages", Statement::PutMessage(epoch), &rows).await
        })
        .collect();
    stream::iter(writes).buffer_unordered(REQUESTS).try_collect().await
}

/// Writes the keys of messages under their topics, all of a partition in one write.
async fn write_postings(shared: &Shared, entries: &[&Entry<'_>], written: i64) -> Result<(), Error> {
    let mut parts: BTreeMap<(EpochId, Vec<u8>), Vec<_>> = BTreeMap::new();
    for entry in entries {
        let (epoch, window) = entry.window();
        let part = schema::posting_part(&entry.topic, Epoch::span(window));
        let (timestamp, hash) = entry.row_key();
        parts.entry((epoch, part.clone())).or_default().push((part, timestamp, hash, written));
    }
    let requests =
        parts.iter().flat_map(|((epoch, _), rows)| rows.chunks(WRITE_ROWS).map(|rows| (*epoch, rows)));
    let requests: Vec<_> = requests.collect();
    let writes: Vec<_> = requests
        .into_iter()
        .map(|(epoch, rows)| async move {
            shared.database.write_rows("store keys by topic", Statement::PutKey(epoch), rows).await
        })
        .collect();
    stream::iter(writes).buffer_unordered(REQUESTS).try_collect().await
}

/// Writes the keys of messages under their hashes.
async fn write_hashes(shared: &Shared, entries: &[&Entry<'_>], written: i64) -> Result<(), Error> {
    let rows = entries.iter().map(|entry| {
        let (timestamp, hash) = entry.row_key();
        (entry.window().0, (schema::hash_part(&entry.message.message_hash.0), timestamp, hash, written))
    });
    let rows: Vec<_> = rows.collect();
    let writes: Vec<_> = rows
        .into_iter()
        .map(|(epoch, row)| async move {
            shared.database.write("store keys by hash", Statement::PutKey(epoch), row).await
        })
        .collect();
    stream::iter(writes).buffer_unordered(REQUESTS).try_collect().await
}

/// Writes long bodies.
async fn write_chunks(shared: &Shared, entries: &[&Entry<'_>], written: i64) -> Result<(), Error> {
    let mut chunks = Vec::new();
    for entry in entries.iter().filter(|entry| schema::is_long(&entry.message.body)) {
        let part = schema::chunk_part(&schema::body_hash(&entry.message.body));
        for (number, chunk) in (0_i64..).zip(entry.message.body.chunks(schema::CHUNK_BYTES)) {
            chunks.push((entry.window().0, (part.clone(), number, schema::CHUNK_HASH, chunk, written)));
        }
    }
    let writes: Vec<_> = chunks
        .into_iter()
        .map(|(epoch, row)| async move {
            shared.database.write("store a long body", Statement::PutChunk(epoch), row).await
        })
        .collect();
    stream::iter(writes).buffer_unordered(REQUESTS / 4).try_collect().await
}
