//! The table of connected sessions, of all protocols and nodes, and the live hub, which delivers new events to them.
//!
//! [`Sessions`] is the contract of every engine, [`Nodes`] that of the nodes that share a table. [`open`] chooses an engine
//! by URL. The [`hub`] matches events with the sessions that subscribed to their topics. Each sentence of the contract is a
//! named test that runs on every engine: see `tests/conformance`.

mod answer;
mod found;
pub mod hub;
mod id;
mod info;
mod memory;
mod metrics;
mod open;
#[cfg(feature = "redis")]
mod redis;
mod redis_metrics;
mod varint;

use futures_util::stream::BoxStream;

pub use answer::Answer;
pub use found::{Found, FoundIter, RESOURCE_BYTES_MAX, Session, USER_BYTES_MAX};
pub use id::{NodeId, ParseSessionIdError, SESSION_ID_BYTES, SessionId};
pub use info::{INFO_BYTES_MAX, Info, InfoBuf, InfoChange, InfoIter, InfoKey, InfoValue};
pub use metrics::SessionMetrics;
pub use open::{Config, EngineUrl, Live, Opened, RedisConfig, open};
pub use restante_core::Error;

use hub::Event;

/// The table of sessions.
///
/// A session belongs to one user (a bare address) and has a resource that is unique among the user's sessions. It belongs to
/// the node that opened it, and ends when it is closed, when another session replaces it, or with its node.
///
/// **Order.** Lookups return the sessions of a user newest first: by id, descending.
///
/// **Type.** Every lookup returns a [`Found`], whether it can find one session or several.
pub trait Sessions: Send + Sync + 'static {
    /// Opens a session on this node.
    ///
    /// - *Replacement*: a session of the same user with the same resource ends, on any node, and its owner is
    ///   notified with [`Ended::Replaced`]. Every lookup finds exactly one of the two. The new session has only its own info,
    ///   nothing of the old one's.
    /// - *Limit*: a user has at most `sessions_per_user_max` sessions. Beyond it the oldest one ends, and its owner is notified
    ///   with [`Ended::Crowded`].
    /// - *Ids*: the new id is greater than every id that this node has assigned before.
    /// - A new session has no priority: it is connected, but not available (RFC 6121 §4.2).
    ///
    /// # Errors
    /// - `Invalid`: a user or resource that is empty or too long. `Full`: the info is too large, or all sessions of the user
    ///   together need more space than a hundred sessions may take.
    /// - Never `Unavailable`: while other nodes are unreachable the session is opened here, and they learn of it later.
    fn open<'a>(&'a self, new: NewSession<'a>) -> Answer<'a, Result<SessionId, Error>>;

    /// Ends a session, on any node. Returns whether it existed.
    ///
    /// - By id, never by address: a delayed close of an old session can't end the session that replaced it.
    /// - The session's owner is notified once, with the reason, unless it is [`Ended::Left`], which only owners report.
    ///
    /// # Errors
    /// `Unavailable`: the session belongs to another node, which is unreachable.
    fn close(&self, id: SessionId, why: Ended) -> Answer<'_, Result<bool, Error>>;

    /// Sets the priority of a session of this node (`None`: not available), and changes its info in the same step. Returns
    /// whether the session exists.
    ///
    /// # Errors
    /// `Full`: its info would be too large; nothing was changed.
    fn set_presence<'a>(
        &'a self,
        id: SessionId,
        priority: Option<i8>,
        changes: &'a [InfoChange<'a>],
    ) -> Answer<'a, Result<bool, Error>>;

    /// Changes the info of a session of this node atomically: no lookup sees a part of the changes, and no concurrent change
    /// is lost. Returns whether the session exists.
    ///
    /// # Errors
    /// `Full`: its info would be too large; nothing was changed.
    fn merge_info<'a>(
        &'a self,
        id: SessionId,
        changes: &'a [InfoChange<'a>],
    ) -> Answer<'a, Result<bool, Error>>;

    /// The sessions of a user, on all nodes whose lease has not expired. The cost does not depend on the size of the table.
    ///
    /// # Errors
    /// None when other nodes are unreachable: then it returns this node's sessions, and [`Found::is_complete`] is false.
    fn by_user<'a>(&'a self, user: &'a str) -> Answer<'a, Result<Found, Error>>;

    /// The session of a user with a resource, if it exists. Errors as for [`Sessions::by_user`].
    fn by_address<'a>(&'a self, user: &'a str, resource: &'a str) -> Answer<'a, Result<Found, Error>>;

    /// The session with an id, if it exists. Errors as for [`Sessions::by_user`].
    fn by_id(&self, id: SessionId) -> Answer<'_, Result<Found, Error>>;

    /// All sessions, each user's together, in no order. A session that exists during the whole stream is returned exactly once;
    /// one that is opened or ended meanwhile may be returned. It blocks no other call, and holds at most a hundred users in memory.
    ///
    /// # Errors
    /// None when other nodes are unreachable: then everything returned is incomplete.
    fn all(&self) -> BoxStream<'_, Result<Found, Error>>;

    /// How many sessions and users there are. The cost does not depend on the size of the table.
    ///
    /// # Errors
    /// None when other nodes are unreachable: then it counts this node's, and [`Counts::is_complete`] is false.
    fn counts(&self) -> Answer<'_, Result<Counts, Error>>;
}

/// The nodes that share a table. Each has a **lease**, which its heartbeat renews. Sessions of a node whose lease has expired
/// are no longer found, and the other nodes remove them.
pub trait Nodes: Send + Sync + 'static {
    /// This node.
    fn here(&self) -> NodeId;

    /// Renews the lease of this node, and registers its sessions again if the others have lost them. [`open`] starts a task
    /// that calls it three times per lease.
    ///
    /// # Errors
    /// `Unavailable`: the others are unreachable.
    fn heartbeat(&self) -> Answer<'_, Result<(), Error>>;

    /// Removes the sessions of nodes whose lease has expired. Returns how many. Several nodes may do so at the same time.
    ///
    /// # Errors
    /// `Unavailable`: the others are unreachable.
    fn sweep(&self) -> Answer<'_, Result<u64, Error>>;

    /// All nodes including this one, ordered by id.
    ///
    /// # Errors
    /// `Unavailable`: the others are unreachable.
    fn nodes(&self) -> Answer<'_, Result<Vec<NodeState>, Error>>;

    /// Sends an event to the owners of all other nodes. Never waits; events that can't be sent are dropped and counted.
    fn broadcast(&self, event: &Event);

    /// Whether the engine works: `Unavailable` with the reason while other nodes are unreachable.
    fn health(&self) -> Result<(), Error>;

    /// Ends the sessions of this node and its lease. Owners are not notified, because this node's doors have closed.
    ///
    /// # Errors
    /// `Unavailable`: the others are unreachable; the lease will expire.
    fn close(&self) -> Answer<'_, Result<(), Error>>;
}

/// The doors of this node, as the table sees them: notified when other nodes end their sessions and when events arrive at other
/// nodes. Called on any thread: it must neither block nor call the table.
pub trait Owner: Send + Sync + 'static {
    /// A session of this node has ended, and its own door did not close it. Called once per session.
    fn ended(&self, id: SessionId, why: Ended);

    /// An event has arrived at another node.
    fn received(&self, event: Event);
}

/// A session to be opened.
#[derive(Clone, Copy, Debug)]
pub struct NewSession<'a> {
    /// The bare address of the user.
    pub user: &'a str,
    /// Which of the user's clients it is.
    pub resource: &'a str,
    /// Its initial info.
    pub info: &'a [InfoChange<'a>],
}

/// Why a session has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ended {
    /// Its client has left, or its door has closed it.
    Left,
    /// Another session of the same user with the same resource has replaced it.
    Replaced,
    /// The user has opened more sessions than allowed, and it was the oldest.
    Crowded,
    /// It read too slowly.
    Slow,
    /// An event for it found the node's memory for waiting events full.
    Full,
    /// Nothing was received from it for too long.
    Expired,
    /// An operator has closed it.
    Operator,
    /// The other nodes considered its node dead.
    Lost,
    /// The server stops.
    Stopping,
}

impl Ended {
    /// All reasons.
    pub const ALL: [Self; 9] = [
        Self::Left,
        Self::Replaced,
        Self::Crowded,
        Self::Slow,
        Self::Full,
        Self::Expired,
        Self::Operator,
        Self::Lost,
        Self::Stopping,
    ];

    /// One lowercase word, for labels, logs and protocols.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Left => "left",
            Self::Replaced => "replaced",
            Self::Crowded => "crowded",
            Self::Slow => "slow",
            Self::Full => "full",
            Self::Expired => "expired",
            Self::Operator => "operator",
            Self::Lost => "lost",
            Self::Stopping => "stopping",
        }
    }

    /// The explanation that clients get.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Left => "the session was closed",
            Self::Replaced => "replaced by a new connection",
            Self::Crowded => "too many sessions of one user: this was the oldest",
            Self::Slow => "messages were read too slowly: continue from your cursor",
            Self::Full => "the server has no memory for more messages: continue from your cursor",
            Self::Expired => "nothing was received for too long",
            Self::Operator => "an operator closed the session",
            Self::Lost => "the other nodes considered this node dead",
            Self::Stopping => "the server stops",
        }
    }

    /// The reason with this [`Ended::as_str`].
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|ended| ended.as_str() == name)
    }
}

/// How many sessions and users there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Sessions on all nodes.
    pub sessions: u64,
    /// Users with a session.
    pub users: u64,
    /// Sessions by node, for nodes that have some, in the order of ids.
    pub by_node: Vec<(NodeId, u64)>,
    /// Whether other nodes were counted as well.
    pub is_complete: bool,
}

/// A node on the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeState {
    /// Its id.
    pub id: NodeId,
    /// Its name, for display.
    pub name: String,
    /// Time until its lease expires, in milliseconds: 0 when it has expired, `None` for a node that shares its table with none.
    pub lease_ms: Option<u64>,
    /// How many sessions it has.
    pub sessions: u64,
}

impl NodeState {
    /// Whether its sessions are found.
    pub fn is_living(&self) -> bool {
        self.lease_ms != Some(0)
    }
}

/// Reads any bytes as a record of sessions, as a session and as an info, for the fuzzer and its seeds.
///
/// # Panics
/// When reading panics, or when bytes are accepted that would be written differently.
#[doc(hidden)]
pub fn fuzz_record(bytes: &[u8]) {
    fuzz_info(bytes);
    fuzz_session("user", bytes);
    let mut sessions = FoundIter::new(bytes, found::Origin::NONE);
    while let Some((session, own_bytes)) = sessions.next_with_bytes() {
        assert!(found::user_of(bytes).is_some(), "a session has a user");
        fuzz_session(session.user(), own_bytes);
        fuzz_info(session.info.as_bytes());
    }
}

/// Bytes that are accepted as a session are written again as the same bytes.
fn fuzz_session(user: &str, bytes: &[u8]) {
    let Ok(session) = found::check_session(user, bytes) else { return };
    assert!(session.info.check().is_ok(), "the info of a valid session is valid");
    let mut again = found::RecordBytes::new();
    found::put_session(&session, found::Origin::NONE, &mut again);
    assert_eq!(again.as_slice(), bytes, "a valid session is written again as the same bytes");
}

/// Bytes that are accepted as an info equal the encoding of its entries, and each entry is found.
fn fuzz_info(bytes: &[u8]) {
    let info = Info::new(bytes);
    let entries: Vec<_> = info.iter().collect();
    assert!(entries.len() <= info.len(), "no more entries are read than counted");
    if info.check().is_err() {
        return;
    }
    let changes: Vec<InfoChange<'_>> = entries.iter().map(|(key, value)| (*key, Some(*value))).collect();
    let mut again = InfoBuf::new();
    assert!(again.merge(&changes).is_ok(), "an info that fitted once fits again");
    assert_eq!(again.as_info().as_bytes(), bytes, "a valid info is encoded again as the same bytes");
    for (key, value) in entries {
        assert_eq!(info.get(key), Some(value));
    }
}
