//! Sessions of one user, in the packed form of the table: a lookup copies the bytes and decodes them afterwards.
//!
//! ```text
//! record:   length of the user (varint), the user, then the sessions, newest first
//! session:  length of the rest (varint), head (varint), id, the priority (i8) if it has one, the resource, the info
//! head:     1 if it has a priority, 2 if its id is whole, 4 times the length of the resource
//! id:       whole: 16 bytes as of SessionId; else only the time of opening (7 bytes, little-endian): the node and user hash
//!           that all ids of a record have in common are stored beside it
//! ```

use std::fmt;

use smallvec::SmallVec;

use crate::{
    Error, Info, NodeId, SessionId,
    info::{InfoBytes, unreadable},
    varint::{put, take, take_array, take_byte, take_slice},
};

/// The most bytes of a user's bare address: a local part and a domain of 1,023 each, and the `@` between them (RFC 7622 §3.1).
pub const USER_BYTES_MAX: usize = 2_047;
/// The most bytes of a resource (RFC 7622 §3.4).
pub const RESOURCE_BYTES_MAX: usize = 1_023;

/// The bytes of one user's sessions. Most records fit without an allocation. A record may end in zeros, which are no sessions:
/// none has a length of 0.
pub(crate) type RecordBytes = SmallVec<[u8; 112]>;

/// The sessions that a lookup has found: of one user, newest first. Every lookup returns this type, even if it can find only
/// one session.
#[derive(Clone)]
pub struct Found {
    record: RecordBytes,
    origin: Origin,
    is_complete: bool,
}

impl Found {
    /// Without sessions.
    #[inline]
    pub(crate) fn none() -> Self {
        Self::at(Origin::NONE)
    }

    /// Without sessions, for a record of a table that is to be filled in.
    #[inline]
    pub(crate) fn at(origin: Origin) -> Self {
        Self { record: RecordBytes::new(), origin, is_complete: true }
    }

    /// Marks the result as without the sessions of other nodes.
    pub fn incomplete(mut self) -> Self {
        self.is_complete = false;
        self
    }

    /// The sessions in a record of a table.
    pub(crate) fn of(record: RecordBytes, origin: Origin) -> Self {
        Self { record, ..Self::at(origin) }
    }

    /// Only one of its sessions.
    pub(crate) fn only(&self, session: Session<'_>) -> Self {
        let record = record_of(session.user(), &mut [session], self.origin);
        Self { record, origin: self.origin, is_complete: self.is_complete }
    }

    /// Whether the sessions of other nodes are included.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// The sessions, newest first.
    #[inline]
    pub fn iter(&self) -> FoundIter<'_> {
        FoundIter::new(&self.record, self.origin)
    }

    /// The newest session.
    #[inline]
    pub fn first(&self) -> Option<Session<'_>> {
        self.iter().next()
    }

    /// Whether there is no session.
    pub fn is_empty(&self) -> bool {
        self.first().is_none()
    }

    /// How many sessions there are.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// The session with an id.
    pub fn by_id(&self, id: SessionId) -> Option<Session<'_>> {
        self.iter().find(|session| session.id == id)
    }
}

impl PartialEq for Found {
    fn eq(&self, other: &Self) -> bool {
        self.is_complete == other.is_complete && self.iter().eq(other)
    }
}

impl Eq for Found {}

impl<'a> IntoIterator for &'a Found {
    type Item = Session<'a>;
    type IntoIter = FoundIter<'a>;

    fn into_iter(self) -> FoundIter<'a> {
        self.iter()
    }
}

impl fmt::Debug for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Found")
            .field("sessions", &self.iter().collect::<Vec<_>>())
            .field("is_complete", &self.is_complete)
            .finish()
    }
}

/// A connected client, as the table knows it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Session<'a> {
    user: &'a [u8],
    resource: &'a [u8],
    /// Its id.
    pub id: SessionId,
    /// Its priority for messages to the user (RFC 6121 §4.7.2.3); `None` until it is available.
    pub priority: Option<i8>,
    /// What doors and features remember about it.
    pub info: Info<'a>,
}

impl<'a> Session<'a> {
    /// A session as it is written into a record.
    pub(crate) fn new(id: SessionId, user: &'a str, resource: &'a str, info: Info<'a>) -> Self {
        Self { user: user.as_bytes(), resource: resource.as_bytes(), id, priority: None, info }
    }

    /// The same session with another info.
    pub(crate) fn with_info<'b>(self, info: Info<'b>) -> Session<'b>
    where
        'a: 'b,
    {
        Session { info, ..self }
    }

    /// The bare address of the user.
    pub fn user(&self) -> &'a str {
        text(self.user)
    }

    /// Which of the user's clients it is.
    pub fn resource(&self) -> &'a str {
        text(self.resource)
    }

    /// Whether it has this resource.
    pub fn has_resource(&self, resource: &str) -> bool {
        self.resource == resource.as_bytes()
    }
}

/// Bytes that were UTF-8 when they were written. Checking them costs more than a lookup, so only users of the text pay for it.
fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap_or_default()
}

impl fmt::Debug for Session<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("id", &self.id)
            .field("user", &self.user())
            .field("resource", &self.resource())
            .field("priority", &self.priority)
            .field("info", &self.info)
            .finish()
    }
}

/// The part of the ids of a record that is not stored in it, except for ids that are written whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) node: NodeId,
    pub(crate) user_hash: u32,
}

impl Origin {
    /// For records in which every id is whole: no node has the number 0.
    pub(crate) const NONE: Self = Self { node: NodeId(0), user_hash: 0 };

    fn has(self, id: SessionId) -> bool {
        self.node == id.node && self.user_hash == id.user_hash && id.opened_us < 1 << (8 * TIME_BYTES)
    }
}

/// Bytes of a time of opening without the rest of the id: enough for two thousand years.
const TIME_BYTES: usize = 7;
/// A head's bit: the session has a priority.
const HAS_PRIORITY: u32 = 1;
/// A head's bit: the id is whole.
const IS_WHOLE: u32 = 2;
/// Bits of a head below the length of the resource.
const HEAD_BITS: u32 = 2;

/// The sessions in a record.
#[derive(Clone, Debug)]
pub struct FoundIter<'a> {
    origin: Origin,
    user: &'a [u8],
    sessions: &'a [u8],
}

impl<'a> FoundIter<'a> {
    /// Reads a record; sessions that can't be decoded are skipped.
    #[inline]
    pub(crate) fn new(record: &'a [u8], origin: Origin) -> Self {
        let mut sessions = record;
        match take_bytes(&mut sessions) {
            Some(user) => Self { origin, user, sessions },
            None => Self { origin, user: &[], sessions: &[] },
        }
    }

    /// The next session, and where in the record's sessions its bytes are.
    #[inline]
    pub(crate) fn next_with_bytes(&mut self) -> Option<(Session<'a>, &'a [u8])> {
        let before = self.sessions;
        let session = self.next()?;
        let taken = before.len() - self.sessions.len();
        Some((session, before.get(..taken)?))
    }
}

impl<'a> Iterator for FoundIter<'a> {
    type Item = Session<'a>;

    #[inline(always)]
    fn next(&mut self) -> Option<Session<'a>> {
        let len = take(&mut self.sessions).filter(|len| *len > 0)?;
        let body = take_slice(&mut self.sessions, len as usize)?;
        read_session(self.user, body, self.origin)
    }
}

#[inline]
fn take_bytes<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = take(bytes)?;
    take_slice(bytes, len as usize)
}

#[inline(always)]
fn read_session<'a>(user: &'a [u8], mut body: &'a [u8], origin: Origin) -> Option<Session<'a>> {
    let head = take(&mut body)?;
    let id = if head & IS_WHOLE == 0 {
        let mut time = [0; 8];
        *time.first_chunk_mut()? = take_array::<TIME_BYTES>(&mut body)?;
        SessionId { opened_us: u64::from_le_bytes(time), node: origin.node, user_hash: origin.user_hash }
    } else {
        SessionId::from_bytes(take_array(&mut body)?)
    };
    let priority = if head & HAS_PRIORITY == 0 { None } else { Some(take_byte(&mut body)? as i8) };
    let resource = take_slice(&mut body, (head >> HEAD_BITS) as usize)?;
    Some(Session { user, resource, id, priority, info: Info::new(body) })
}

/// The user of a record.
#[inline]
pub(crate) fn user_of(mut record: &[u8]) -> Option<&[u8]> {
    take_bytes(&mut record)
}

/// Begins the record of a user.
pub(crate) fn put_user(user: &str, record: &mut RecordBytes) {
    put(user.len() as u32, record); // bounded by USER_BYTES_MAX
    record.extend_from_slice(user.as_bytes());
}

/// Appends a session to a record, or to an empty buffer.
pub(crate) fn put_session(session: &Session<'_>, origin: Origin, record: &mut RecordBytes) {
    let is_whole = !origin.has(session.id);
    let mut head = (session.resource.len() as u32) << HEAD_BITS; // bounded by RESOURCE_BYTES_MAX
    head |= if is_whole { IS_WHOLE } else { 0 };
    head |= if session.priority.is_some() { HAS_PRIORITY } else { 0 };
    let mut body = InfoBytes::new();
    put(head, &mut body);
    if is_whole {
        body.extend_from_slice(&session.id.to_bytes());
    } else {
        body.extend(session.id.opened_us.to_le_bytes().into_iter().take(TIME_BYTES));
    }
    body.extend(session.priority.map(|priority| priority as u8));
    body.extend_from_slice(session.resource);
    body.extend_from_slice(session.info.as_bytes());
    put(body.len() as u32, record); // bounded by the info's bound
    record.extend_from_slice(&body);
}

/// A record of these sessions, which are sorted.
pub(crate) fn record_of(user: &str, sessions: &mut [Session<'_>], origin: Origin) -> RecordBytes {
    sessions.sort_unstable_by_key(|session| std::cmp::Reverse(session.id));
    let mut record = RecordBytes::new();
    put_user(user, &mut record);
    for session in sessions {
        put_session(session, origin, &mut record);
    }
    record
}

/// Checks that bytes are a session as [`put_session`] writes it, and returns it.
///
/// # Errors
/// `Corrupt` when they are not.
pub(crate) fn check_session<'a>(user: &'a str, mut bytes: &'a [u8]) -> Result<Session<'a>, Error> {
    let whole = bytes;
    let len = take(&mut bytes);
    let session = len
        .filter(|len| *len as usize == bytes.len())
        .and_then(|_| read_session(user.as_bytes(), bytes, Origin::NONE));
    let is_text = |session: &Session<'_>| std::str::from_utf8(session.resource).is_ok();
    let session = session.filter(is_text).ok_or_else(|| unreadable("a session"))?;
    session.info.check()?;
    let mut again = RecordBytes::new();
    put_session(&session, Origin::NONE, &mut again);
    if again.as_slice() == whole { Ok(session) } else { Err(unreadable("a session")) }
}

#[cfg(test)]
mod tests;
