//! Who is connected: one table of every client of every door on every node, and the live hub, by which they are handed what
//! arrives now.
//!
//! [`Sessions`] is the contract that every engine keeps, [`Nodes`] is what keeps several nodes on one table honest.
//! [`open`] chooses an engine by URL. The [`hub`] knows who wants which topic. Each sentence of the contract is a named test
//! that runs on every engine: see `tests/conformance`.

mod answer;
mod error;
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
pub use error::Error;
pub use found::{Found, FoundIter, RESOURCE_BYTES_MAX, Session, USER_BYTES_MAX};
pub use id::{NodeId, ParseSessionIdError, SESSION_ID_BYTES, SessionId};
pub use info::{INFO_BYTES_MAX, Info, InfoBuf, InfoChange, InfoIter, InfoKey, InfoValue};
pub use metrics::SessionMetrics;
pub use open::{Config, EngineUrl, Live, Opened, RedisConfig, open};

use hub::Event;

/// The table of sessions.
///
/// A session belongs to one user (a bare address) and has a resource that no other session of that user has. It lives on the
/// node that opened it, and ends when it is closed, when another takes its place, or with its node.
///
/// **Order.** Look-ups give the sessions of a user newest first: by id, descending.
///
/// **Type.** Every look-up gives a [`Found`], whether it can find one session or many.
pub trait Sessions: Send + Sync + 'static {
    /// Opens a session on this node.
    ///
    /// - *Replacement*: a session of the same user with the same resource ends, on whatever node it is, and its owner is told
    ///   [`Ended::Replaced`]. There is no moment at which both, or neither, are found. The info of the new session is what it
    ///   brings, and nothing of the old one's.
    /// - *Limit*: a user has at most `sessions_per_user_max` sessions. Beyond it the oldest one ends, and its owner is told
    ///   [`Ended::Crowded`].
    /// - *Ids*: the new id is greater than every id that this node has given before.
    /// - A new session has no priority: it is connected, but not available (RFC 6121 §4.2).
    ///
    /// # Errors
    /// - `Invalid`: a user or resource that is empty or too long. `Full`: its info takes too much, or all sessions of the user
    ///   together more than a hundred of them may take.
    /// - Never `Unavailable`: when other nodes are out of reach the session is opened here, and they learn of it later.
    fn open<'a>(&'a self, new: NewSession<'a>) -> Answer<'a, Result<SessionId, Error>>;

    /// Ends a session, on whatever node it is. Answers whether there was one.
    ///
    /// - By id and never by address: a delayed close of an old session can't end the new one that took its place.
    /// - The session's owner is told why, once, unless it is [`Ended::Left`], which is what owners say themselves.
    ///
    /// # Errors
    /// `Unavailable`: the session is another node's, and that can't be reached.
    fn close(&self, id: SessionId, why: Ended) -> Answer<'_, Result<bool, Error>>;

    /// Sets how much a session of this node wants its user's messages (`None`: not at all now), and changes its info in the
    /// same step. Answers whether there is such a session.
    ///
    /// # Errors
    /// `Full`: its info would take too much; nothing was changed.
    fn set_presence<'a>(
        &'a self,
        id: SessionId,
        priority: Option<i8>,
        changes: &'a [InfoChange<'a>],
    ) -> Answer<'a, Result<bool, Error>>;

    /// Changes the info of a session of this node, all of it at once: nobody sees a part, and of two changes at the same time
    /// none is lost. Answers whether there is such a session.
    ///
    /// # Errors
    /// `Full`: its info would take too much; nothing was changed.
    fn merge_info<'a>(
        &'a self,
        id: SessionId,
        changes: &'a [InfoChange<'a>],
    ) -> Answer<'a, Result<bool, Error>>;

    /// The sessions of a user, of all nodes whose lease has not run out. Its cost does not grow with the table.
    ///
    /// # Errors
    /// None when other nodes are out of reach: then it gives this node's sessions, and [`Found::is_complete`] is false.
    fn by_user<'a>(&'a self, user: &'a str) -> Answer<'a, Result<Found, Error>>;

    /// The session of a user with a resource, if there is one. Errors as those of [`Sessions::by_user`].
    fn by_address<'a>(&'a self, user: &'a str, resource: &'a str) -> Answer<'a, Result<Found, Error>>;

    /// The session with an id, if there is one. Errors as those of [`Sessions::by_user`].
    fn by_id(&self, id: SessionId) -> Answer<'_, Result<Found, Error>>;

    /// All sessions, each user's together, in no order. What was there when the stream began and is still there at its end is
    /// given exactly once; what came or went meanwhile may be given. It holds up nobody, and takes memory for a hundred users at most.
    ///
    /// # Errors
    /// None when other nodes are out of reach: then everything given is incomplete.
    fn all(&self) -> BoxStream<'_, Result<Found, Error>>;

    /// How many sessions and users there are. Its cost does not grow with the table.
    ///
    /// # Errors
    /// None when other nodes are out of reach: then it counts this node's, and [`Counts::is_complete`] is false.
    fn counts(&self) -> Answer<'_, Result<Counts, Error>>;
}

/// The nodes that share a table. Each has a **lease**, which it renews by its heartbeat; sessions of a node whose lease has run
/// out are found no more, and the others remove them.
pub trait Nodes: Send + Sync + 'static {
    /// This node.
    fn here(&self) -> NodeId;

    /// Renews the lease of this node, and writes down again what others have forgotten of it. [`open`] has it done three times
    /// in a lease.
    ///
    /// # Errors
    /// `Unavailable`: the others are out of reach.
    fn heartbeat(&self) -> Answer<'_, Result<(), Error>>;

    /// Removes the sessions of nodes whose lease has run out. Answers how many. Several nodes may do so at the same time.
    ///
    /// # Errors
    /// `Unavailable`: the others are out of reach.
    fn sweep(&self) -> Answer<'_, Result<u64, Error>>;

    /// The nodes, this one among them, in the order of ids.
    ///
    /// # Errors
    /// `Unavailable`: the others are out of reach.
    fn nodes(&self) -> Answer<'_, Result<Vec<NodeState>, Error>>;

    /// Hands an event to the owners of all other nodes. Never waits; what they can't take is lost to them and counted.
    fn tell_others(&self, event: &Event);

    /// Whether the engine works: `Unavailable` with the reason while other nodes are out of reach.
    fn health(&self) -> Result<(), Error>;

    /// Ends the sessions of this node and its lease. Owners are not told: this node's doors have closed.
    ///
    /// # Errors
    /// `Unavailable`: the others are out of reach; they will find the lease run out.
    fn close(&self) -> Answer<'_, Result<(), Error>>;
}

/// The doors of this node, as the table sees them. It is told what others have done to their sessions, and what arrived
/// elsewhere. Told from wherever it happens: it must not wait, nor call the table.
pub trait Owner: Send + Sync + 'static {
    /// A session of this node has ended, and not by its own door. It is told once for each.
    fn ended(&self, id: SessionId, why: Ended);

    /// Something has arrived at another node.
    fn heard(&self, event: Event);
}

/// A session to be opened.
#[derive(Clone, Copy, Debug)]
pub struct NewSession<'a> {
    /// Whose it is: a bare address.
    pub user: &'a str,
    /// Which of the user's clients it is.
    pub resource: &'a str,
    /// What is remembered about it from the start.
    pub info: &'a [InfoChange<'a>],
}

/// Why a session has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ended {
    /// Its client has left, or its door has closed it.
    Left,
    /// Another session of the same user with the same resource has taken its place.
    Replaced,
    /// The user has opened more sessions than one may have, and it was the oldest.
    Crowded,
    /// It read too slowly.
    Slow,
    /// A message came for it, and what waits for all sessions had used up the node's room.
    Full,
    /// It was not heard of for too long.
    Expired,
    /// An operator has closed it.
    Operator,
    /// The other nodes took its node for dead.
    Lost,
    /// The server stops.
    Stopping,
}

impl Ended {
    /// All of them.
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

    /// One lowercase word, for labels, logs and wires.
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

    /// What a client is told.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Left => "the session was closed",
            Self::Replaced => "replaced by a new connection",
            Self::Crowded => "too many sessions of one user: this was the oldest",
            Self::Slow => "messages were read too slowly: go on from your cursor",
            Self::Full => "the server has no room for more messages: go on from your cursor",
            Self::Expired => "nothing was heard for too long",
            Self::Operator => "an operator has closed the session",
            Self::Lost => "this node was taken for dead",
            Self::Stopping => "the server stops",
        }
    }

    /// The reason with a name as of [`Ended::as_str`].
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|ended| ended.as_str() == name)
    }
}

/// How much there is.
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
    /// Its name, for people.
    pub name: String,
    /// How long its lease still runs: 0 when it has run out, `None` for a node that shares its table with nobody and needs none.
    pub lease_ms: Option<u64>,
    /// Its sessions.
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
/// When reading panics, or when something is accepted that would be written otherwise.
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

/// A session that is accepted is written again as the same bytes.
fn fuzz_session(user: &str, bytes: &[u8]) {
    let Ok(session) = found::check_session(user, bytes) else { return };
    assert!(session.info.check().is_ok(), "the info of a sound session is sound");
    let mut again = found::RecordBytes::new();
    found::put_session(&session, found::Origin::NONE, &mut again);
    assert_eq!(again.as_slice(), bytes, "a sound session is written again as it was");
}

/// An info that is accepted is what its entries make, and gives each of them.
fn fuzz_info(bytes: &[u8]) {
    let info = Info::new(bytes);
    let entries: Vec<_> = info.iter().collect();
    assert!(entries.len() <= info.len(), "no more is read than is counted");
    if info.check().is_err() {
        return;
    }
    let changes: Vec<InfoChange<'_>> = entries.iter().map(|(key, value)| (*key, Some(*value))).collect();
    let mut again = InfoBuf::new();
    assert!(again.merge(&changes).is_ok(), "what was room enough is room enough");
    assert_eq!(again.as_info().as_bytes(), bytes, "a sound info is made again as it was");
    for (key, value) in entries {
        assert_eq!(info.get(key), Some(value));
    }
}
