//! Keys and values.
//!
//! ```text
//! <prefix>:u:<user>       hash: a user's sessions, resource -> row
//! <prefix>:users          sorted set: users with a session, all at score 0, so in the order of their bytes
//! <prefix>:n:<node>       hash: a node's sessions, field -> location
//! <prefix>:nodes          hash: nodes that have, or had, a lease, id -> name
//! <prefix>:lease:<node>   string: the token of the process that has the lease; it expires with the lease
//! <prefix>:mail:<node>    hash: sessions of a node that others have ended, field -> reason; emptied by its heartbeat
//! <prefix>:to:<node>      channel: the same at once: id, reason
//! <prefix>:live:<db>      channel: events of all nodes (see events.rs); channels belong to no database, hence its number
//!
//! row:    id (16 bytes), revision (6 bytes, big-endian), 1 and the priority (i8) or 0, info
//! field:  id without its node: opened at (8 bytes), user hash (4 bytes)
//! location: length of the user (2 bytes, big-endian), user, resource
//! ```
//!
//! A row doesn't repeat its resource and stays below 64 bytes with a few entries of info, so that Redis stores a user's
//! sessions in one compact list (`hash-max-listpack-value`). The *revision* counts the changes of a node: of two rows of one
//! session the one with the greater revision includes the other's change.

use crate::{
    Ended, Error, Info, NodeId, RESOURCE_BYTES_MAX, RedisConfig, SESSION_ID_BYTES, Session, SessionId,
    USER_BYTES_MAX,
    varint::{take_array, take_byte},
};

/// Bytes of a revision: enough for 89 years at a hundred thousand changes a second.
const REVISION_BYTES: usize = 6;
/// Bytes of a session's field in its node's hash.
const FIELD_BYTES: usize = 12;
/// The longest reason that is decoded.
const WHY_BYTES_MAX: usize = 32;

/// The names of keys and channels.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    /// Including the colon.
    prefix: String,
    db: i64,
}

impl Keys {
    pub(super) fn new(prefix: &str, db: i64) -> Result<Self, Error> {
        if let Some(error) = RedisConfig::prefix_error(prefix) {
            return Err(Error::invalid(format!(
                "the prefix '{prefix}' of keys in Redis can't be used: {error}"
            )));
        }
        Ok(Self { prefix: format!("{prefix}:"), db })
    }

    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(super) fn user(&self, user: &str) -> String {
        format!("{}u:{user}", self.prefix)
    }

    pub(super) fn users(&self) -> String {
        format!("{}users", self.prefix)
    }

    pub(super) fn index(&self, node: NodeId) -> String {
        format!("{}n:{node}", self.prefix)
    }

    pub(super) fn lease(&self, node: NodeId) -> String {
        format!("{}lease:{node}", self.prefix)
    }

    pub(super) fn mail(&self, node: NodeId) -> String {
        format!("{}mail:{node}", self.prefix)
    }

    /// The channel on which a node is notified of its sessions that others have ended.
    pub(super) fn to(&self, node: NodeId) -> String {
        format!("{}to:{node}", self.prefix)
    }

    /// The channel of events.
    pub(super) fn live(&self) -> String {
        format!("{}live:{}", self.prefix, self.db)
    }
}

/// A session as decoded from its row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row<'a> {
    pub(super) id: SessionId,
    pub(super) priority: Option<i8>,
    pub(super) info: Info<'a>,
}

impl<'a> Row<'a> {
    /// Encodes the row of a session at a revision.
    pub(super) fn of(session: &Session<'_>, revision: u64) -> Vec<u8> {
        let info = session.info.as_bytes();
        let mut row = Vec::with_capacity(SESSION_ID_BYTES + REVISION_BYTES + 2 + info.len());
        row.extend_from_slice(&session.id.to_bytes());
        let [_, _, revision @ ..] = revision.to_be_bytes();
        row.extend_from_slice(&revision);
        match session.priority {
            Some(priority) => row.extend_from_slice(&[1, priority as u8]),
            None => row.push(0),
        }
        row.extend_from_slice(info);
        row
    }

    /// Decodes a row; `None` if it is invalid.
    pub(super) fn read(mut bytes: &'a [u8]) -> Option<Self> {
        let id = SessionId::from_bytes(take_array(&mut bytes)?);
        let _revision: [u8; REVISION_BYTES] = take_array(&mut bytes)?;
        let priority = match take_byte(&mut bytes)? {
            0 => None,
            1 => Some(take_byte(&mut bytes)? as i8),
            _ => return None,
        };
        let info = Info::new(bytes);
        info.check().ok()?;
        Some(Self { id, priority, info })
    }

    /// The session with this row.
    pub(super) fn session(self, user: &'a str, resource: &'a str) -> Session<'a> {
        let mut session = Session::new(self.id, user, resource, self.info);
        session.priority = self.priority;
        session
    }
}

/// A resource from Redis; `None` if it is invalid.
pub(super) fn resource_of(bytes: &[u8]) -> Option<&str> {
    let is_long = bytes.is_empty() || bytes.len() > RESOURCE_BYTES_MAX;
    if is_long { None } else { std::str::from_utf8(bytes).ok() }
}

/// A user from Redis; `None` if it is invalid.
pub(super) fn user_of(bytes: &[u8]) -> Option<&str> {
    let is_long = bytes.is_empty() || bytes.len() > USER_BYTES_MAX;
    if is_long { None } else { std::str::from_utf8(bytes).ok() }
}

/// The field of a session in its node's hash.
pub(super) fn field_of(id: SessionId) -> [u8; FIELD_BYTES] {
    let mut field = [0; FIELD_BYTES];
    let (opened, user_hash) = field.split_at_mut(8);
    opened.copy_from_slice(&id.opened_us.to_be_bytes());
    user_hash.copy_from_slice(&id.user_hash.to_be_bytes());
    field
}

/// The value of a session in its node's hash.
pub(super) fn location_of(session: &Session<'_>) -> Vec<u8> {
    let (user, resource) = (session.user().as_bytes(), session.resource().as_bytes());
    let user_bytes = user.len() as u16; // bounded by USER_BYTES_MAX
    [&user_bytes.to_be_bytes(), user, resource].concat()
}

/// The id of a session of a node, by its field in the node's hash.
pub(super) fn id_of_field(node: NodeId, field: &[u8]) -> Option<SessionId> {
    let (opened, user_hash) = field.split_first_chunk::<8>()?;
    let user_hash: [u8; 4] = user_hash.try_into().ok()?;
    Some(SessionId { opened_us: u64::from_be_bytes(*opened), node, user_hash: u32::from_be_bytes(user_hash) })
}

/// Decodes the id and reason of an ended session, as scripts write them.
pub(super) fn end_of(bytes: &[u8]) -> Option<(SessionId, Ended)> {
    let (id, why) = bytes.split_first_chunk::<SESSION_ID_BYTES>()?;
    Some((SessionId::from_bytes(*id), why_of(why)?))
}

/// A reason by its name. An unknown name, of a later version, still ends the session.
pub(super) fn why_of(name: &[u8]) -> Option<Ended> {
    if name.len() > WHY_BYTES_MAX {
        return None;
    }
    let name = std::str::from_utf8(name).ok()?;
    Some(Ended::from_name(name).unwrap_or(Ended::Lost))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{InfoBuf, InfoKey, InfoValue};

    fn id() -> SessionId {
        SessionId { opened_us: 1_700_000_000_000_000, node: NodeId(3_000_000_000), user_hash: 77 }
    }

    /// The colon ends a prefix: keys of the prefix `a:u` would be those of a user of the prefix `a`.
    #[test]
    fn a_prefix_has_no_separator() {
        assert_eq!(Keys::new("a", 0).unwrap().user("x:users"), "a:u:x:users");
        for prefix in ["", "a:u", ":", &"x".repeat(65)] {
            assert!(Keys::new(prefix, 0).is_err(), "{prefix:?}");
        }
    }

    #[test]
    fn a_row_survives() {
        let mut info = InfoBuf::new();
        info.merge(&[(InfoKey::DOOR, Some(InfoValue::Text("waku_filter")))]).unwrap();
        for priority in [None, Some(-1), Some(127)] {
            let mut session = Session::new(id(), "alice@b.example", "phone", info.as_info());
            session.priority = priority;
            let bytes = Row::of(&session, (1 << 48) - 1);
            assert_eq!(Row::read(&bytes).unwrap().session("alice@b.example", "phone"), session);
        }
    }

    #[test]
    fn a_row_with_a_few_entries_fits_into_a_compact_list() {
        let mut info = InfoBuf::new();
        info.merge(&[
            (InfoKey::DOOR, Some(InfoValue::Text("waku_filter"))),
            (InfoKey::ADDRESS, Some(InfoValue::Address("192.0.2.1:60000".parse().unwrap()))),
            (InfoKey::TOPICS, Some(InfoValue::Number(12))),
        ])
        .unwrap();
        let mut session = Session::new(id(), "a", "filter", info.as_info());
        session.priority = Some(5);
        assert!(Row::of(&session, 1).len() <= 64, "{}", Row::of(&session, 1).len());
    }

    #[test]
    fn a_field_gives_its_id_back() {
        let bytes = id().to_bytes();
        let field = field_of(id());
        assert_eq!(field, [&bytes[..8], &bytes[12..]].concat()[..]);
        assert_eq!(id_of_field(id().node, &field), Some(id()));
        assert_eq!(id_of_field(id().node, &field[1..]), None);
    }

    #[test]
    fn ends_are_read() {
        let end = [&id().to_bytes()[..], b"replaced"].concat();
        assert_eq!(end_of(&end), Some((id(), Ended::Replaced)));
        let of_a_later_version = [&id().to_bytes()[..], b"moved"].concat();
        assert_eq!(end_of(&of_a_later_version), Some((id(), Ended::Lost)));
        assert_eq!(end_of(&end[..10]), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Some(row) = Row::read(&bytes) {
                let session = row.session("u", "r");
                let again = Row::of(&session, 0);
                prop_assert_eq!(&again[..SESSION_ID_BYTES], &bytes[..SESSION_ID_BYTES]);
                prop_assert_eq!(&again[22..], &bytes[22..]);
            }
            let _ = (end_of(&bytes), id_of_field(NodeId(1), &bytes), resource_of(&bytes), user_of(&bytes));
        }
    }
}
