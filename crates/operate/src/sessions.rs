//! Who is connected, for operators: lists of sessions by page, their counts, and how to end them.
//!
//! The table lists all sessions in no order. A page is made by one iteration over it, which collects the newest that no earlier
//! page had; so paging by cursor returns each session that stays connected exactly once, and needs no more memory than a page.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    extract::{RawQuery, State},
    http::Uri,
    response::Response,
};
use futures_util::StreamExt;
use restante_core::ErrorKind;
use restante_http::{MemoryPermit, Refusal, path, reply};
use restante_sessions::{
    Counts, Ended, Error, Found, Info, InfoKey, InfoValue, NodeId, NodeState, Session, SessionId, Sessions,
};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use crate::Operate;

/// Sessions on a page if the request sets no limit.
const PAGE_SESSIONS: usize = 100;
/// The most sessions on a page.
const PAGE_SESSIONS_MAX: usize = 10_000;
/// The most bytes of a page: one of long addresses has fewer sessions.
const PAGE_BYTES_MAX: usize = 8 << 20;
/// The memory of an answer while it is made: its sessions, and the JSON into which they are copied.
const ANSWER_BYTES_MAX: usize = 2 * PAGE_BYTES_MAX + (64 << 10);
/// Users that are processed before other tasks run: an iteration must not occupy a thread.
const USERS_PER_YIELD: usize = 1_000;

/// The parameters of a list.
pub const LIST_NAMES: &[&str] = &["user", "resource", "door", "node", "limit", "cursor"];
/// The parameters of closing all sessions of a user.
pub const CLOSE_NAMES: &[&str] = &["user", "resource"];

const OUT_OF_REACH: Refusal = Refusal::unavailable("other nodes are out of reach: try again later");
const TOO_SLOW: Refusal =
    Refusal::unavailable("the table was not walked through in time: name a user, or try again later");

/// `GET /admin/v1/sessions`
pub(crate) async fn list(
    State(operate): State<Arc<Operate>>,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let asked = Asked::from_query_string(LIST_NAMES, query.as_deref().unwrap_or_default())?;
    let deadline = operate.deadline();
    let (memory, page) = match &asked.user {
        Some(user) => of_user(&operate, &asked, user, deadline).await?,
        None => of_all(&operate, &asked, deadline).await?,
    };
    Ok(reply::json(memory.hold(page.into_json())))
}

/// `GET /admin/v1/sessions/counts`
pub(crate) async fn counts(State(operate): State<Arc<Operate>>) -> Result<Response, Refusal> {
    let live = &operate.parts.live;
    let deadline = operate.deadline();
    let asked = async {
        let counts = live.sessions.counts().await.map_err(|error| refuse(&error))?;
        let nodes = live.nodes.nodes().await.unwrap_or_default(); // unreachable: the counts say so
        Ok(reply::json(show_counts(&counts, &nodes).to_string()))
    };
    timeout_at(deadline, asked).await.map_err(|_| TOO_SLOW)?
}

/// `GET /admin/v1/sessions/{sessionId}`
pub(crate) async fn one(State(operate): State<Arc<Operate>>, uri: Uri) -> Result<Response, Refusal> {
    let id = session_id(&uri)?;
    let found = timeout_at(operate.deadline(), operate.parts.live.sessions.by_id(id)).await;
    let found = found.map_err(|_| TOO_SLOW)?.map_err(|error| refuse(&error))?;
    match found.by_id(id) {
        Some(session) => Ok(reply::json(show(&session))),
        None if found.is_complete() => Err(NO_SESSION),
        None => Err(OUT_OF_REACH),
    }
}

/// `DELETE /admin/v1/sessions/{sessionId}`
pub(crate) async fn close(State(operate): State<Arc<Operate>>, uri: Uri) -> Result<Response, Refusal> {
    let id = session_id(&uri)?;
    let closed = timeout_at(operate.deadline(), operate.parts.live.sessions.close(id, Ended::Operator)).await;
    match closed.map_err(|_| TOO_SLOW)?.map_err(|error| refuse(&error))? {
        true => Ok(reply::json(json!({"closed": 1, "complete": true}).to_string())),
        false => Err(NO_SESSION),
    }
}

/// `DELETE /admin/v1/sessions`: all of a user. The answer says if some could not be reached; they stay.
pub(crate) async fn close_all(
    State(operate): State<Arc<Operate>>,
    RawQuery(query): RawQuery,
) -> Result<Response, Refusal> {
    let asked = Asked::from_query_string(CLOSE_NAMES, query.as_deref().unwrap_or_default())?;
    let user = asked.user.as_deref().ok_or(NO_USER)?;
    let sessions = &*operate.parts.live.sessions;
    let _permit = operate.parts.permits.acquire()?;
    let closing = async {
        let found = look_up(sessions, user, asked.resource.as_deref()).await?;
        let ids: Vec<SessionId> = found.iter().map(|session| session.id).collect();
        let (mut closed, mut is_complete) = (0, found.is_complete());
        for id in ids {
            match sessions.close(id, Ended::Operator).await {
                Ok(was_there) => closed += u64::from(was_there),
                Err(error) if error.kind() == ErrorKind::Unavailable => is_complete = false,
                Err(error) => return Err(refuse(&error)),
            }
        }
        Ok(reply::json(json!({"closed": closed, "complete": is_complete}).to_string()))
    };
    timeout_at(operate.deadline(), closing).await.map_err(|_| TOO_SLOW)?
}

const NO_SESSION: Refusal = Refusal::not_found("no session has this id: it may have ended meanwhile");
const NO_USER: Refusal = Refusal::bad_request("user: name the one whose sessions shall be closed");

fn session_id(uri: &Uri) -> Result<SessionId, Refusal> {
    let id = path::last(uri, "sessionId")?;
    id.parse().map_err(|_| Refusal::field("sessionId", "a session id has 32 hexadecimal digits"))
}

/// How the table's errors are reported to a client. The texts are fixed: the errors' own ones may name machines.
fn refuse(error: &Error) -> Refusal {
    match error.kind() {
        ErrorKind::Unavailable => OUT_OF_REACH,
        ErrorKind::Invalid => Refusal::bad_request("the table of sessions can't take this request"),
        _ => Refusal::internal(),
    }
}

async fn look_up(sessions: &dyn Sessions, user: &str, resource: Option<&str>) -> Result<Found, Refusal> {
    let found = match resource {
        Some(resource) => sessions.by_address(user, resource).await,
        None => sessions.by_user(user).await,
    };
    found.map_err(|error| refuse(&error))
}

/// The sessions of one user, and memory for them.
async fn of_user(
    operate: &Operate,
    asked: &Asked,
    user: &str,
    deadline: Instant,
) -> Result<(MemoryPermit, Page), Refusal> {
    let memory = operate.parts.memory.acquire(ANSWER_BYTES_MAX, deadline).await?;
    let _permit = operate.parts.permits.acquire()?;
    let looked_up = async {
        let nodes = wanted_nodes(operate, asked).await?;
        let found = look_up(&*operate.parts.live.sessions, user, asked.resource.as_deref()).await?;
        let mut page = Page::new(asked);
        page.take(&found, asked, nodes.as_deref());
        Ok((memory, page))
    };
    timeout_at(deadline, looked_up).await.map_err(|_| TOO_SLOW)?
}

/// Iterates over the table, one request at a time: many iterations would leave no processor for others. A request that waits for
/// its permit holds no memory.
async fn of_all(
    operate: &Operate,
    asked: &Asked,
    deadline: Instant,
) -> Result<(MemoryPermit, Page), Refusal> {
    let permit = timeout_at(deadline, operate.walks.acquire()).await;
    let _permit = permit.ok().and_then(Result::ok).ok_or(Refusal::busy())?;
    let memory = operate.parts.memory.acquire(ANSWER_BYTES_MAX, deadline).await?;
    let walked = async {
        let nodes = wanted_nodes(operate, asked).await?;
        let live = &operate.parts.live;
        let mut page = Page::new(asked);
        let mut all = live.sessions.all();
        let mut users = 0;
        while let Some(found) = all.next().await {
            page.take(&found.map_err(|error| refuse(&error))?, asked, nodes.as_deref());
            users += 1;
            if users % USERS_PER_YIELD == 0 {
                tokio::task::yield_now().await;
            }
        }
        // With an empty table, no session shows that others are missing.
        page.is_complete &= live.nodes.health().is_ok();
        Ok((memory, page))
    };
    timeout_at(deadline, walked).await.map_err(|_| TOO_SLOW)?
}

/// The nodes that were named, by number or by name; `None` for all. A machine that was restarted has had several, so that one
/// name may stand for more than one of them.
async fn wanted_nodes(operate: &Operate, asked: &Asked) -> Result<Option<Vec<NodeId>>, Refusal> {
    let Some(wanted) = &asked.node else { return Ok(None) };
    let number = wanted.parse().ok().map(NodeId);
    let nodes = match (operate.parts.live.nodes.nodes().await, number) {
        (Ok(nodes), _) => nodes,
        (Err(_), Some(_)) => Vec::new(), // a number needs no list of names
        (Err(error), None) => return Err(refuse(&error)),
    };
    let named = nodes.iter().filter(|node| node.name == *wanted).map(|node| node.id);
    let ids: Vec<NodeId> = named.chain(number).collect();
    let unknown = || Refusal::field("node", "no node has this name: see /admin/v1/sessions/counts");
    if ids.is_empty() { Err(unknown()) } else { Ok(Some(ids)) }
}

/// The parameters of a request.
#[derive(Debug, Default)]
struct Asked {
    user: Option<String>,
    resource: Option<String>,
    door: Option<String>,
    node: Option<String>,
    limit: Option<usize>,
    /// Only older sessions than this one.
    cursor: Option<SessionId>,
}

impl Asked {
    /// Parses `application/x-www-form-urlencoded`. A name that is not among `names` is refused: it was probably meant to select
    /// sessions.
    fn from_query_string(names: &[&str], text: &str) -> Result<Self, Refusal> {
        let mut asked = Self::default();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if !names.contains(&name) {
                return Err(Refusal::unknown(name, names));
            }
            let value = path::decode_form(value, name)?;
            asked.set(name, &value).map_err(|problem| Refusal::field(name, problem))?;
        }
        Ok(asked)
    }

    fn set(&mut self, name: &str, text: &str) -> Result<(), &'static str> {
        if text.is_empty() {
            return Err("is empty");
        }
        match name {
            "user" => path::set_once(&mut self.user, text.to_owned()),
            "resource" => path::set_once(&mut self.resource, text.to_owned()),
            "door" => path::set_once(&mut self.door, text.to_owned()),
            "node" => path::set_once(&mut self.node, text.to_owned()),
            "limit" => path::set_once(&mut self.limit, parse_limit(text)?),
            _ => {
                path::set_once(&mut self.cursor, text.parse().map_err(|_| "is no cursor of an earlier page")?)
            }
        }
    }

    fn is_met_by(&self, session: &Session<'_>, nodes: Option<&[NodeId]>) -> bool {
        let is_resource = self.resource.as_deref().is_none_or(|resource| resource == session.resource());
        let door = session.info.text(InfoKey::DOOR);
        let is_door = self.door.is_none() || self.door.as_deref() == door;
        let is_node = nodes.is_none_or(|nodes| nodes.contains(&session.id.node));
        let is_older = self.cursor.is_none_or(|cursor| session.id < cursor);
        is_resource && is_door && is_node && is_older
    }
}

fn parse_limit(text: &str) -> Result<usize, &'static str> {
    let limit = text.parse().ok().filter(|limit| (1..=PAGE_SESSIONS_MAX).contains(limit));
    limit.ok_or("expected a number from 1 to 10000")
}

/// The newest of the sessions that were offered, as many as fit on a page.
struct Page {
    /// Sessions as JSON.
    rows: BTreeMap<SessionId, Vec<u8>>,
    rows_max: usize,
    bytes: usize,
    bytes_max: usize,
    /// The newest session that did not fit. Older ones are left out too, or the page would have a hole.
    left_out: Option<SessionId>,
    is_complete: bool,
}

impl Page {
    fn new(asked: &Asked) -> Self {
        Self {
            rows: BTreeMap::new(),
            rows_max: asked.limit.unwrap_or(PAGE_SESSIONS),
            bytes: 0,
            bytes_max: PAGE_BYTES_MAX,
            left_out: None,
            is_complete: true,
        }
    }

    fn take(&mut self, found: &Found, asked: &Asked, nodes: Option<&[NodeId]>) {
        self.is_complete &= found.is_complete();
        for session in found {
            if asked.is_met_by(&session, nodes) {
                self.offer(session.id, || show(&session));
            }
        }
    }

    fn offer(&mut self, id: SessionId, row: impl FnOnce() -> Vec<u8>) {
        let is_full = self.rows.len() >= self.rows_max;
        let is_oldest = self.rows.first_key_value().is_none_or(|(oldest, _)| id < *oldest);
        if self.left_out.is_some_and(|newest| id <= newest) || (is_full && is_oldest) {
            self.left_out = self.left_out.max(Some(id));
            return;
        }
        let row = row();
        self.bytes += row.len();
        if let Some(same) = self.rows.insert(id, row) {
            self.bytes -= same.len();
        }
        while self.rows.len() > self.rows_max || (self.bytes > self.bytes_max && self.rows.len() > 1) {
            let Some((oldest, row)) = self.rows.pop_first() else { break };
            self.bytes -= row.len();
            self.left_out = Some(oldest);
        }
    }

    fn into_json(self) -> Vec<u8> {
        let next = self.left_out.and_then(|_| self.rows.first_key_value());
        let next = next.map(|(oldest, _)| oldest.to_string());
        let end = format!("],\"next\":{},\"complete\":{}}}", json!(next), self.is_complete);
        let mut json = Vec::with_capacity(self.bytes + self.rows.len() + end.len() + 16);
        json.extend_from_slice(b"{\"sessions\":[");
        for (index, row) in self.rows.values().rev().enumerate() {
            if index > 0 {
                json.push(b',');
            }
            json.extend_from_slice(row);
        }
        json.extend_from_slice(end.as_bytes());
        json
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownSession<'s> {
    id: String,
    user: &'s str,
    resource: &'s str,
    priority: Option<i8>,
    node: u32,
    opened_at: String,
    info: ShownInfo<'s>,
}

struct ShownInfo<'s>(Info<'s>);

impl Serialize for ShownInfo<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key.to_string(), show_value(value))))
    }
}

fn show_value(value: InfoValue<'_>) -> Value {
    match value {
        InfoValue::Number(number) => number.into(),
        InfoValue::Text(text) => text.into(),
        InfoValue::Address(address) => address.to_string().into(),
    }
}

fn show(session: &Session<'_>) -> Vec<u8> {
    let shown = ShownSession {
        id: session.id.to_string(),
        user: session.user(),
        resource: session.resource(),
        priority: session.priority,
        node: session.id.node.0,
        opened_at: session.id.opened_at().to_string(),
        info: ShownInfo(session.info),
    };
    serde_json::to_vec(&shown).expect("texts and numbers can be written as JSON")
}

/// The counts, with the names of the nodes as far as they are known. A node without sessions is listed as well.
fn show_counts(counts: &Counts, nodes: &[NodeState]) -> Value {
    let mut by_node: BTreeMap<NodeId, Value> = BTreeMap::new();
    for (id, sessions) in &counts.by_node {
        by_node.insert(*id, json!({"node": id.0, "name": null, "sessions": sessions, "leaseMs": null}));
    }
    for node in nodes {
        let counted = counts.by_node.iter().find(|(id, _)| *id == node.id);
        let sessions = counted.map_or(0, |(_, sessions)| *sessions);
        let shown =
            json!({"node": node.id.0, "name": node.name, "sessions": sessions, "leaseMs": node.lease_ms});
        by_node.insert(node.id, shown);
    }
    json!({
        "sessions": counts.sessions, "users": counts.users, "byNode": by_node.into_values().collect::<Vec<Value>>(),
        "complete": counts.is_complete,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(opened_us: u64) -> SessionId {
        SessionId { opened_us, node: NodeId(1), user_hash: 0 }
    }

    fn page(rows_max: usize, bytes_max: usize) -> Page {
        Page { rows_max, bytes_max, ..Page::new(&Asked::default()) }
    }

    fn ids(page: &Page) -> Vec<u64> {
        page.rows.keys().map(|id| id.opened_us).collect()
    }

    #[test]
    fn a_page_has_the_newest_whatever_order_they_come_in() {
        for order in [[1, 2, 3, 4, 5], [5, 4, 3, 2, 1], [3, 1, 5, 2, 4], [4, 5, 1, 3, 2]] {
            let mut page = page(3, 1_000);
            for opened_us in order {
                page.offer(id(opened_us), || b"{}".to_vec());
            }
            assert_eq!(ids(&page), [3, 4, 5], "{order:?}");
            assert_eq!((page.bytes, page.left_out), (6, Some(id(2))));
        }
    }

    /// A small row that came after a large one had been left out would have been added, and the large one would have been on no
    /// page.
    #[test]
    fn a_page_that_is_full_of_bytes_has_no_holes() {
        let mut page = page(10, 10);
        page.offer(id(3), || vec![b' '; 8]);
        page.offer(id(4), || vec![b' '; 8]);
        assert_eq!(ids(&page), [4]);
        page.offer(id(2), || vec![b' '; 1]);
        assert_eq!(ids(&page), [4]);
        page.offer(id(5), || vec![b' '; 1]);
        assert_eq!(ids(&page), [4, 5]);
        assert_eq!(page.left_out, Some(id(3)));
    }

    #[test]
    fn one_session_is_given_however_long_it_is() {
        let mut page = page(10, 10);
        page.offer(id(1), || vec![b' '; 100]);
        assert_eq!((ids(&page), page.left_out), (vec![1], None));
    }
}
