//! Shared by the tests of sessions: plain values to compare, names that are easily confused, and timeouts.
#![allow(dead_code, unreachable_pub, reason = "each test target uses a part of it")]
#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test ends where something is not as it should be"
)]

pub mod engines;
pub mod node;

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use futures_util::{Stream, StreamExt};
use restante_sessions::{Error, Found, Info, InfoChange, InfoKey, InfoValue, Session, SessionId};

/// How long a test waits for a condition.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often it checks the condition.
const GLANCE: Duration = Duration::from_millis(2);

/// An owned session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub id: SessionId,
    pub user: String,
    pub resource: String,
    pub priority: Option<i8>,
    pub info: OwnedInfo,
}

impl From<Session<'_>> for Row {
    fn from(session: Session<'_>) -> Self {
        Self {
            id: session.id,
            user: session.user().to_owned(),
            resource: session.resource().to_owned(),
            priority: session.priority,
            info: owned_info(session.info),
        }
    }
}

/// An info as a plain map.
pub type OwnedInfo = BTreeMap<u16, OwnedValue>;

pub fn owned_info(info: Info<'_>) -> OwnedInfo {
    let entries: OwnedInfo = info.iter().map(|(key, value)| (key.0, value.into())).collect();
    assert_eq!(entries.len(), info.len(), "no key stands there twice");
    entries
}

/// An owned value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnedValue {
    Number(i64),
    Text(String),
    Address(SocketAddr),
}

impl From<InfoValue<'_>> for OwnedValue {
    fn from(value: InfoValue<'_>) -> Self {
        match value {
            InfoValue::Number(number) => Self::Number(number),
            InfoValue::Text(text) => Self::Text(text.to_owned()),
            InfoValue::Address(address) => Self::Address(address),
        }
    }
}

impl OwnedValue {
    pub fn borrow(&self) -> InfoValue<'_> {
        match self {
            Self::Number(number) => InfoValue::Number(*number),
            Self::Text(text) => InfoValue::Text(text),
            Self::Address(address) => InfoValue::Address(*address),
        }
    }
}

/// An owned change.
pub type OwnedChange = (u16, Option<OwnedValue>);

pub fn borrow_changes(changes: &[OwnedChange]) -> Vec<InfoChange<'_>> {
    changes.iter().map(|(key, value)| (InfoKey(*key), value.as_ref().map(OwnedValue::borrow))).collect()
}

/// Applies changes to a plain map.
pub fn change(info: &mut OwnedInfo, changes: &[OwnedChange]) {
    for (key, value) in changes {
        match value {
            Some(value) => info.insert(*key, value.clone()),
            None => info.remove(key),
        };
    }
}

/// A change to a number.
pub fn number(key: u16, value: i64) -> InfoChange<'static> {
    (InfoKey(key), Some(InfoValue::Number(value)))
}

/// A change to a text.
pub fn text(key: u16, value: &str) -> InfoChange<'_> {
    (InfoKey(key), Some(InfoValue::Text(value)))
}

/// A change that removes a key.
pub fn forget(key: u16) -> InfoChange<'static> {
    (InfoKey(key), None)
}

/// The found sessions, in order.
pub fn rows(found: &Found) -> Vec<Row> {
    found.iter().map(Row::from).collect()
}

/// Reads a stream of all sessions, by user. No user is returned without sessions.
pub async fn read_all(all: impl Stream<Item = Result<Found, Error>>) -> Vec<(String, Vec<Row>)> {
    let mut all = std::pin::pin!(all);
    let mut users = Vec::new();
    while let Some(found) = all.next().await {
        users.push(one_user(&found.unwrap()));
    }
    users
}

/// The sessions of one user from such a stream.
pub fn one_user(found: &Found) -> (String, Vec<Row>) {
    assert!(found.is_complete());
    let sessions = rows(found);
    let user = sessions.first().expect("each user has sessions").user.clone();
    assert!(sessions.iter().all(|row| row.user == user), "each user's sessions are together");
    (user, sessions)
}

/// Reads a stream of all sessions while none is opened or closed: no user is returned twice.
pub async fn gather(all: impl Stream<Item = Result<Found, Error>>) -> BTreeMap<String, Vec<Row>> {
    let users = read_all(all).await;
    let count = users.len();
    let by_user: BTreeMap<_, _> = users.into_iter().collect();
    assert_eq!(by_user.len(), count, "each user is given once");
    by_user
}

/// Waits until a condition holds.
pub async fn until(what: &str, holds: impl Fn() -> bool) {
    soon(what, async {
        while !holds() {
            tokio::time::sleep(GLANCE).await;
        }
    })
    .await;
}

/// Waits until an asynchronous condition holds.
pub async fn eventually(what: &str, holds: impl AsyncFn() -> bool) {
    soon(what, async {
        while !holds().await {
            tokio::time::sleep(GLANCE).await;
        }
    })
    .await;
}

/// Waits for a future that must finish soon, so that a test fails instead of hanging.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let answer = tokio::time::timeout(PATIENCE, future).await;
    answer.unwrap_or_else(|_| panic!("{what}: this did not come about"))
}

/// Names that an engine may misread: separators of keys, patterns, quotes, ends of texts, protocol lines.
pub const ODD_NAMES: [&str; 28] = [
    "a",
    "A",
    "a ",
    " a",
    "a:",
    ":a",
    "a:b",
    "a:b:c",
    "a::b",
    "a\0b",
    "\0",
    "*",
    "?",
    "a*",
    "[a-z]",
    "\\",
    "\\*",
    "'",
    "\"",
    "{a}",
    "}{",
    "%s%n",
    "a\r\nb",
    "$3\r\n",
    "é",
    "e\u{301}",
    "ユーザー",
    "\u{1f4ec}\u{200d}\u{10ffff}",
];
