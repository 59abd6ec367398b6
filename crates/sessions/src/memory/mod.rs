//! The table in this process.
//!
//! Users are spread over shards by their *user hash*, 32 bits of a hash of the user's name. A shard has one record for each user,
//! with all of the user's sessions, in cells of one cache line: see [`table`] for their layout and [`cell`] for how they are
//! read without a lock. A session's id contains the user hash, so that lookups by id need no index.

mod cell;
mod map;
mod metrics;
mod shard;
mod sync;
mod table;

use std::{
    hash::BuildHasher,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use foldhash::quality::RandomState;
use futures_util::stream::{self, BoxStream, StreamExt};
use restante_core::Clock;
use smallvec::SmallVec;
use tokio::task::yield_now;

use crate::{
    Answer, Config, Counts, Ended, Error, Found, FoundIter, Info, InfoChange, NewSession, NodeId, NodeState,
    Nodes, Opened, Owner, RESOURCE_BYTES_MAX, Session, SessionId, Sessions, USER_BYTES_MAX,
    found::{Origin, RecordBytes, record_of, user_of},
    hub::Event,
    info::{self, InfoBytes},
};
use cell::CELL_BYTES;
use map::{Map, SharedMap};
pub(crate) use metrics::TableMetrics;
use shard::{Change, RecordHash, Shard};
use table::{BUCKET_BITS, Cells, RetryRead};

/// Shards: writers of different shards never wait for each other, and a shard that grows blocks its writers while a 64th of the
/// table is copied.
const SHARDS: usize = 1 << (u32::BITS - BUCKET_BITS);
/// Buckets that [`Sessions::all`] reads between two yields to other tasks.
const PAGES_BETWEEN_PAUSES: u32 = 256;
/// The node of a table that is not shared.
const SINGLE_NODE: NodeId = NodeId(1);

pub(crate) fn open(config: &Config, owner: Arc<dyn Owner>) -> Opened {
    let memory = Arc::new(Memory::new(SINGLE_NODE, config, owner));
    Opened { sessions: memory.clone(), nodes: memory }
}

/// The table.
pub(crate) struct Memory {
    node: NodeId,
    node_name: String,
    shards: Box<[Shard]>,
    /// The same shards' cells, for readers.
    map: Arc<SharedMap>,
    hasher: RandomState,
    /// The time of the last id.
    last_us: AtomicU64,
    sessions_per_user_max: usize,
    clock: Arc<dyn Clock>,
    owner: Arc<dyn Owner>,
    metrics: TableMetrics,
}

/// Sessions that have ended, with the reasons that their owner is notified of.
pub(crate) type EndedSessions = SmallVec<[(SessionId, Ended); 2]>;

/// The sessions of a record while it is changed.
type List<'a> = SmallVec<[Session<'a>; 4]>;

impl Memory {
    /// An empty table of one node.
    pub(crate) fn new(node: NodeId, config: &Config, owner: Arc<dyn Owner>) -> Self {
        let hasher = RandomState::default();
        let of_record = hasher.clone();
        let record_hash: RecordHash = Arc::new(move |record| {
            let user = user_of(record).unwrap_or_default();
            hash_user(&of_record, user)
        });
        let map = Arc::new(SharedMap::new());
        let shard = |number| Shard::new(number, map.clone(), record_hash.clone());
        Self {
            node,
            node_name: config.node_name.clone(),
            shards: (0..SHARDS).map(shard).collect(),
            map,
            hasher,
            last_us: AtomicU64::new(0),
            sessions_per_user_max: config.sessions_per_user_max.get(),
            clock: config.clock.clone(),
            owner,
            metrics: config.metrics.table.clone(),
        }
    }

    #[inline]
    fn shard(&self, user_hash: u32) -> &Shard {
        let shard = self.shards.get((user_hash >> BUCKET_BITS) as usize);
        shard.expect("there is a shard for each value of a user_hash's upper bits")
    }

    /// The node and user hash that the ids of a user have in common.
    #[inline]
    fn origin(&self, user_hash: u32) -> Origin {
        Origin { node: self.node, user_hash }
    }

    #[inline]
    fn hash_of(&self, user: &str) -> u32 {
        hash_user(&self.hasher, user.as_bytes())
    }

    /// A new id, greater than all before it, even when the clock stands still or goes back.
    fn next_id(&self, user_hash: u32) -> SessionId {
        let now_us = u64::try_from(self.clock.now().nanos() / 1_000).unwrap_or(0);
        let next = |last: u64| now_us.max(last + 1);
        let last = self.last_us.update(Ordering::Relaxed, Ordering::Relaxed, next);
        SessionId { opened_us: next(last), node: self.node, user_hash }
    }

    /// Opens a session. Returns also the sessions that it ended; their owner has been notified.
    pub(crate) fn open_now(&self, new: NewSession<'_>) -> Result<(SessionId, EndedSessions), Error> {
        check(new.user, USER_BYTES_MAX, "user")?;
        check(new.resource, RESOURCE_BYTES_MAX, "resource")?;
        let mut info = InfoBytes::new();
        info::merge(Info::EMPTY, new.info, &mut info)?;
        let user_hash = self.hash_of(new.user);
        let origin = self.origin(user_hash);
        let (id, ended) = self.shard(user_hash).change(user_hash, &is_of(new.user), |record| {
            let mut sessions = sessions_in(record, origin);
            let before = sessions.len() as i64;
            let ended = make_room(&mut sessions, new.resource, self.sessions_per_user_max);
            let id = self.next_id(user_hash); // under the shard's lock, so that the newest is the last
            let (user, resource) = (new.user, new.resource);
            sessions.push(Session::new(id, user, resource, Info::new(&info)));
            let more = sessions.len() as i64 - before;
            Ok((Change::Put(record_of(user, &mut sessions, origin), more), (id, ended)))
        })?;
        self.metrics.opened();
        self.notify_owner(&ended);
        Ok((id, ended))
    }

    fn close_now(&self, id: SessionId, why: Ended) -> Result<bool, Error> {
        let origin = self.origin(id.user_hash);
        let is_closed = self.change_by_id(id, |user, sessions, at| {
            sessions.remove(at);
            match sessions.is_empty() {
                true => Ok(Change::Remove(1)),
                false => Ok(Change::Put(record_of(user, sessions, origin), -1)),
            }
        })?;
        if is_closed {
            self.metrics.ended(why);
        }
        if is_closed && why != Ended::Left {
            self.owner.ended(id, why);
        }
        Ok(is_closed)
    }

    /// Changes the priority and the info of a session.
    fn update_now(
        &self,
        id: SessionId,
        priority: Option<Option<i8>>,
        changes: &[InfoChange<'_>],
    ) -> Result<bool, Error> {
        let origin = self.origin(id.user_hash);
        self.change_by_id(id, |user, sessions, at| {
            let Some(session) = sessions.get_mut(at) else { return Ok(Change::Keep) };
            let mut merged = InfoBytes::new();
            info::merge(session.info, changes, &mut merged)?;
            let mut changed = session.with_info(Info::new(&merged));
            changed.priority = priority.unwrap_or(session.priority);
            let mut all: List<'_> = sessions.iter().copied().collect();
            if let Some(slot) = all.get_mut(at) {
                *slot = changed;
            }
            Ok(Change::Put(record_of(user, &mut all, origin), 0))
        })
    }

    /// Whether a record contains the session with an id. Records of other users in the same neighbourhood are tested as well; their
    /// ids look the same, so the hash of the user is compared.
    fn has(&self, record: &[u8], id: SessionId) -> bool {
        let has_time = FoundIter::new(record, self.origin(id.user_hash)).any(|session| session.id == id);
        has_time && self.hash_of_record(record) == id.user_hash
    }

    fn hash_of_record(&self, record: &[u8]) -> u32 {
        hash_user(&self.hasher, user_of(record).unwrap_or_default())
    }

    /// Changes the sessions of the user who has the session with an id. Returns whether that exists.
    fn change_by_id(
        &self,
        id: SessionId,
        change: impl FnOnce(&str, &mut List<'_>, usize) -> Result<Change, Error>,
    ) -> Result<bool, Error> {
        if id.node != self.node {
            return Ok(false);
        }
        let origin = self.origin(id.user_hash);
        let has = |record: &[u8]| self.has(record, id);
        self.shard(id.user_hash).change(id.user_hash, &has, |record| {
            let mut sessions = sessions_in(record, origin);
            let at = sessions.iter().position(|session| session.id == id);
            let Some((at, user)) = at.and_then(|at| Some((at, sessions.get(at)?.user()))) else {
                return Ok((Change::Keep, false));
            };
            change(user, &mut sessions, at).map(|change| (change, true))
        })
    }

    fn notify_owner(&self, ended: &EndedSessions) {
        for (id, why) in ended {
            self.metrics.ended(*why);
            self.owner.ended(*id, *why);
        }
    }

    /// Copies the record that matches, if there is one.
    #[inline]
    fn read(&self, user_hash: u32, matches: &impl Fn(&[u8]) -> bool) -> Found {
        let mut bytes = [0; CELL_BYTES];
        let in_bucket = |map: &Map| cells_of(map, user_hash).read_in_bucket(user_hash, matches, &mut bytes);
        match self.map.with(in_bucket) {
            Some(true) => Found::of(RecordBytes::from_slice(&bytes), self.origin(user_hash)),
            _ => self.read_anywhere(user_hash, matches),
        }
    }

    /// Reads without the bucket's fast path, and takes the writers' lock if writers interfered with every try.
    #[inline(never)]
    fn read_anywhere(&self, user_hash: u32, matches: &impl Fn(&[u8]) -> bool) -> Found {
        let read = self.with_cells(user_hash, |cells| cells.read(user_hash, matches));
        let read = read.unwrap_or_else(|RetryRead| self.shard(user_hash).find_locked(user_hash, matches));
        Found::of(read.unwrap_or_default(), self.origin(user_hash))
    }

    /// Reads the cells for a user hash without the writers' lock, if possible.
    #[inline]
    fn with_cells<T>(
        &self,
        user_hash: u32,
        look: impl FnOnce(&Cells) -> Result<T, RetryRead>,
    ) -> Result<T, RetryRead> {
        self.map.with(|map| look(cells_of(map, user_hash))).unwrap_or(Err(RetryRead))
    }

    /// Not inlined into its callers, so that the functions it calls are inlined here: a call costs as much as one of them.
    #[inline(never)]
    fn find_user(&self, user: &str) -> Found {
        let user_hash = self.hash_of(user);
        self.read(user_hash, &is_of(user))
    }

    fn find_id(&self, id: SessionId) -> Found {
        if id.node != self.node {
            return Found::none();
        }
        let has = |record: &[u8]| self.has(record, id);
        let found = self.read(id.user_hash, &has);
        only(&found, |session| session.id == id)
    }

    /// How many sessions and users there are.
    fn count(&self) -> Counts {
        let sum = |count: fn(&Shard) -> &AtomicU64| {
            self.shards
                .iter()
                .fold(0_u64, |sum, shard| sum.wrapping_add(count(shard).load(Ordering::Relaxed)))
        };
        let sessions = sum(|shard| &shard.sessions);
        let by_node = if sessions == 0 { Vec::new() } else { vec![(self.node, sessions)] };
        Counts { sessions, users: sum(|shard| &shard.users), by_node, is_complete: true }
    }

    /// The sessions of the users in the bucket of a user hash, and the hash from which to continue.
    fn found_from(&self, from: u32) -> (Vec<Found>, Option<u32>) {
        let shard = from >> BUCKET_BITS;
        let look = |cells: &Cells| {
            let bucket = cells.bucket_of(from);
            cells.records_of(bucket).map(|records| (records, cells.first_hash_after(bucket)))
        };
        let read = self.with_cells(from, look);
        let (records, after) =
            read.or_else(|RetryRead| self.shard(from).with_cells(look)).unwrap_or_default();
        let hashed = records.into_iter().map(|record| (self.hash_of_record(&record), record));
        // The table may have grown since the last call, so that a bucket now includes users that were returned already.
        let ahead = hashed.filter(|(user_hash, _)| *user_hash >= from);
        let found = ahead.map(|(user_hash, record)| Found::of(record, self.origin(user_hash))).collect();
        let next = match after {
            Some(after) => Some(shard << BUCKET_BITS | after),
            None => (shard + 1 < SHARDS as u32).then(|| (shard + 1) << BUCKET_BITS),
        };
        (found, next)
    }
}

#[inline]
fn cells_of(map: &Map, user_hash: u32) -> &Cells {
    map.get((user_hash >> BUCKET_BITS) as usize)
        .expect("there is a shard for each value of a user_hash's upper bits")
}

fn hash_user(hasher: &RandomState, user: &[u8]) -> u32 {
    (hasher.hash_one(user) >> 32) as u32
}

/// Matches the record of a user.
fn is_of(user: &str) -> impl Fn(&[u8]) -> bool {
    move |record| user_of(record) == Some(user.as_bytes())
}

fn check(text: &str, bytes_max: usize, what: &str) -> Result<(), Error> {
    match text.len() {
        0 => Err(Error::invalid(format!("the {what} of a session is empty"))),
        len if len > bytes_max => {
            Err(Error::invalid(format!("the {what} of a session has {len} bytes: the limit is {bytes_max}")))
        }
        _ => Ok(()),
    }
}

fn sessions_in(record: Option<&RecordBytes>, origin: Origin) -> List<'_> {
    record.into_iter().flat_map(|record| FoundIter::new(record, origin)).collect()
}

/// Ends the session with this resource, or else the oldest ones beyond the limit.
fn make_room(sessions: &mut List<'_>, resource: &str, sessions_max: usize) -> EndedSessions {
    let mut ended = EndedSessions::new();
    if let Some(at) = sessions.iter().position(|session| session.has_resource(resource)) {
        ended.push((sessions.remove(at).id, Ended::Replaced));
    }
    while sessions.len() >= sessions_max {
        let Some(oldest) = sessions.pop() else { break }; // newest first
        ended.push((oldest.id, Ended::Crowded));
    }
    ended
}

/// The one session that passes the test.
fn only(found: &Found, test: impl Fn(&Session<'_>) -> bool) -> Found {
    found.iter().find(test).map_or_else(Found::none, |session| found.only(session))
}

impl Sessions for Memory {
    fn open<'a>(&'a self, new: NewSession<'a>) -> Answer<'a, Result<SessionId, Error>> {
        Answer::ready(self.open_now(new).map(|(id, _)| id))
    }

    fn close(&self, id: SessionId, why: Ended) -> Answer<'_, Result<bool, Error>> {
        Answer::ready(self.close_now(id, why))
    }

    fn set_presence<'a>(
        &'a self,
        id: SessionId,
        priority: Option<i8>,
        changes: &'a [InfoChange<'a>],
    ) -> Answer<'a, Result<bool, Error>> {
        Answer::ready(self.update_now(id, Some(priority), changes))
    }

    fn merge_info<'a>(
        &'a self,
        id: SessionId,
        changes: &'a [InfoChange<'a>],
    ) -> Answer<'a, Result<bool, Error>> {
        Answer::ready(self.update_now(id, None, changes))
    }

    #[inline]
    fn by_user<'a>(&'a self, user: &'a str) -> Answer<'a, Result<Found, Error>> {
        Answer::ready(Ok(self.find_user(user)))
    }

    fn by_address<'a>(&'a self, user: &'a str, resource: &'a str) -> Answer<'a, Result<Found, Error>> {
        let found = self.find_user(user);
        Answer::ready(Ok(only(&found, |session| session.has_resource(resource))))
    }

    fn by_id(&self, id: SessionId) -> Answer<'_, Result<Found, Error>> {
        Answer::ready(Ok(self.find_id(id)))
    }

    fn all(&self) -> BoxStream<'_, Result<Found, Error>> {
        let pages = stream::unfold((Some(0), 0_u32), move |(user_hash, pages)| async move {
            if pages % PAGES_BETWEEN_PAUSES == 0 {
                yield_now().await;
            }
            let (found, next) = self.found_from(user_hash?);
            Some((stream::iter(found), (next, pages.wrapping_add(1))))
        });
        pages.flatten().map(Ok).boxed()
    }

    fn counts(&self) -> Answer<'_, Result<Counts, Error>> {
        Answer::ready(Ok(self.count()))
    }
}

impl Nodes for Memory {
    fn here(&self) -> NodeId {
        self.node
    }

    fn heartbeat(&self) -> Answer<'_, Result<(), Error>> {
        Answer::ready(Ok(()))
    }

    fn sweep(&self) -> Answer<'_, Result<u64, Error>> {
        Answer::ready(Ok(0))
    }

    fn nodes(&self) -> Answer<'_, Result<Vec<NodeState>, Error>> {
        let sessions = self.count().sessions;
        let name = self.node_name.clone();
        Answer::ready(Ok(vec![NodeState { id: self.node, name, lease_ms: None, sessions }]))
    }

    fn broadcast(&self, _event: &Event) {}

    fn health(&self) -> Result<(), Error> {
        Ok(())
    }

    fn close(&self) -> Answer<'_, Result<(), Error>> {
        for shard in &self.shards {
            self.metrics.ended_at_once(shard.clear(), Ended::Stopping);
        }
        Answer::ready(Ok(()))
    }
}

#[cfg(test)]
mod tests;
