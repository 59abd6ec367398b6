//! A sharded table: 64 locked hash tables, with users and sessions of fixed size and the info as fields.

use std::{
    hash::BuildHasher,
    net::IpAddr,
    sync::atomic::{AtomicU64, Ordering},
};

use foldhash::fast::FixedState;
use hashbrown::{HashTable, hash_table::Entry};
use parking_lot::RwLock;
use restante_bench::sessions::{Name, SessionTable, route};
use restante_sessions::{InfoChange, InfoKey, InfoValue};
use smallvec::SmallVec;

const SHARDS: usize = 64;
/// Which bits of the hash choose a shard: the table itself uses the highest seven and the lowest.
const SHARD_SHIFT: u32 = 48;
/// The longest text, enough for the names of this benchmark.
const TEXT_BYTES: usize = 23;

/// A short text, stored inline.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Text {
    len: u8,
    bytes: [u8; TEXT_BYTES],
}

impl Text {
    fn new(text: &str) -> Option<Self> {
        let mut bytes = [0; TEXT_BYTES];
        bytes.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
        Some(Self { len: text.len() as u8, bytes })
    }

    fn is(&self, text: &str) -> bool {
        self.bytes.get(..usize::from(self.len)) == Some(text.as_bytes())
    }
}

/// One session, with a field for each entry of info.
struct Session {
    sid: u64,
    resource: Text,
    address: u32,
    port: u16,
    priority: Option<i8>,
    kind: u8,
    carbons: u8,
}

struct User {
    name: Text,
    sessions: SmallVec<[Session; 1]>,
}

/// A shard, on a cache line of its own.
#[repr(align(64))]
struct Shard(RwLock<HashTable<User>>);

/// The 64 tables. Look-ups read under the lock and copy nothing.
pub(crate) struct Sharded {
    shards: Vec<Shard>,
    hasher: FixedState,
    last: AtomicU64,
}

/// The number of a session, and the hash of its user, which finds the shard.
#[derive(Clone, Copy)]
pub(crate) struct ShardedId {
    sid: u64,
    hash: u64,
}

impl Sharded {
    pub(crate) fn new() -> Self {
        let shards = (0..SHARDS).map(|_| Shard(RwLock::new(HashTable::new()))).collect();
        Self { shards, hasher: FixedState::default(), last: AtomicU64::new(0) }
    }

    fn shard(&self, hash: u64) -> Option<&RwLock<HashTable<User>>> {
        self.shards.get((hash >> SHARD_SHIFT) as usize % SHARDS).map(|shard| &shard.0)
    }

    fn hash(&self, text: &[u8]) -> u64 {
        self.hasher.hash_one(text)
    }

    /// Changes a session by its id.
    fn change(&self, id: ShardedId, change: impl FnOnce(&mut Session)) -> bool {
        let Some(shard) = self.shard(id.hash) else { return false };
        let mut users = shard.write();
        let Some(user) = users.find_mut(id.hash, |user| has(user, id.sid)) else { return false };
        let Some(session) = user.sessions.iter_mut().find(|session| session.sid == id.sid) else {
            return false;
        };
        change(session);
        true
    }

    /// Routes to those of a user's sessions that match.
    fn find(&self, user: &str, is_match: impl Fn(&Session) -> bool) -> u64 {
        let hash = self.hash(user.as_bytes());
        let Some(shard) = self.shard(hash) else { return 0 };
        let users = shard.read();
        let Some(user) = users.find(hash, |found| found.name.is(user)) else { return 0 };
        route(user.sessions.iter().filter(|session| is_match(session)).map(|session| session.priority))
    }

    fn new_session(&self, resource: &str, info: &[InfoChange<'_>]) -> Option<Session> {
        let mut session = Session {
            sid: self.last.fetch_add(1, Ordering::Relaxed),
            resource: Text::new(resource)?,
            address: 0,
            port: 0,
            priority: None,
            kind: 0,
            carbons: 0,
        };
        for change in info {
            match *change {
                (InfoKey::ADDRESS, Some(InfoValue::Address(address))) => {
                    let IpAddr::V4(ip) = address.ip() else { return None };
                    (session.address, session.port) = (ip.to_bits(), address.port());
                }
                (InfoKey::CARBONS, Some(InfoValue::Number(version))) => session.carbons = version as u8,
                (InfoKey::DOOR, Some(InfoValue::Text(door))) => session.kind = door.len() as u8,
                _ => return None,
            }
        }
        Some(session)
    }
}

fn has(user: &User, sid: u64) -> bool {
    user.sessions.iter().any(|session| session.sid == sid)
}

impl SessionTable for Sharded {
    type Id = ShardedId;
    const NAME: &'static str = "64 shards";
    const HAS_IDS: bool = true;

    fn open(&self, name: Name<'_>, info: &[InfoChange<'_>]) -> Option<ShardedId> {
        let session = self.new_session(name.resource, info)?;
        let hash = self.hash(name.user.as_bytes());
        let id = ShardedId { sid: session.sid, hash };
        let mut users = self.shard(hash)?.write();
        let rehash = |user: &User| self.hash(user.name.bytes.get(..user.name.len.into()).unwrap_or_default());
        match users.entry(hash, |user| user.name.is(name.user), rehash) {
            Entry::Occupied(mut user) => {
                let sessions = &mut user.get_mut().sessions;
                sessions.retain(|session| !session.resource.is(name.resource));
                sessions.push(session);
            }
            Entry::Vacant(entry) => {
                let name = Text::new(name.user)?;
                entry.insert(User { name, sessions: SmallVec::from_buf([session]) });
            }
        }
        Some(id)
    }

    fn close(&self, _: Name<'_>, id: ShardedId) -> bool {
        let Some(shard) = self.shard(id.hash) else { return false };
        let mut users = shard.write();
        let Ok(mut user) = users.find_entry(id.hash, |user| has(user, id.sid)) else { return false };
        user.get_mut().sessions.retain(|session| session.sid != id.sid);
        if user.get().sessions.is_empty() {
            user.remove();
        }
        true
    }

    fn by_user(&self, user: &str) -> u64 {
        self.find(user, |_| true)
    }

    fn by_address(&self, name: Name<'_>) -> u64 {
        self.find(name.user, |session| session.resource.is(name.resource))
    }

    fn by_id(&self, id: ShardedId) -> u64 {
        let Some(shard) = self.shard(id.hash) else { return 0 };
        let users = shard.read();
        let Some(user) = users.find(id.hash, |user| has(user, id.sid)) else { return 0 };
        let found = user.sessions.iter().filter(|session| session.sid == id.sid);
        route(found.map(|session| session.priority))
    }

    fn merge_info(&self, _: Name<'_>, id: ShardedId, carbons: i64) -> bool {
        self.change(id, |session| session.carbons = carbons as u8)
    }

    fn set_presence(&self, _: Name<'_>, id: ShardedId, priority: i8) -> bool {
        self.change(id, |session| session.priority = Some(priority))
    }
}

#[cfg(test)]
mod tests {
    use restante_bench::sessions::assert_is_table;

    use super::*;

    #[test]
    fn the_sharded_table_keeps_the_contract() {
        assert_is_table(&Sharded::new());
    }
}
