//! Lookups.

use std::collections::VecDeque;

use futures_util::{
    StreamExt,
    stream::{self, BoxStream},
};
use redis::{Cmd, Value};
use tokio::time::Instant;

use super::{
    link::{Link, LinkError},
    nodes, reply,
    schema::{Row, field_of, resource_of, user_of},
    scripts::Script,
    table::Table,
};
use crate::{
    Answer, Counts, Error, Found, NodeState, RESOURCE_BYTES_MAX, Session, SessionId, USER_BYTES_MAX,
    found::{Origin, record_of},
    redis_metrics::Op,
};

/// Users per page of [`Table::all`].
const PAGE_USERS: usize = 100;

impl Table {
    pub(super) fn by_user<'a>(&'a self, user: &'a str) -> Answer<'a, Result<Found, Error>> {
        let mut ask = redis::cmd("HGETALL");
        ask.arg(self.keys.user(user));
        self.look_up(ask, Lookup { op: Op::ByUser, user, resource: None })
    }

    pub(super) fn by_address<'a>(
        &'a self,
        user: &'a str,
        resource: &'a str,
    ) -> Answer<'a, Result<Found, Error>> {
        let mut ask = redis::cmd("HGET");
        ask.arg(self.keys.user(user)).arg(resource);
        self.look_up(ask, Lookup { op: Op::ByAddress, user, resource: Some(resource) })
    }

    fn look_up<'a>(&'a self, ask: Cmd, lookup: Lookup<'a>) -> Answer<'a, Result<Found, Error>> {
        let Some(link) = self.link() else {
            return Answer::ready(Ok(lookup.here(self).incomplete()));
        };
        if lookup.is_too_long() {
            return Answer::ready(Ok(Found::none()));
        }
        Answer::later(async move {
            let was_synced = self.is_synced();
            let found = async {
                let answer = link.ask(lookup.op, &ask).await?;
                self.found(&link, lookup, &answer, was_synced).await
            };
            Ok(found.await.unwrap_or_else(|error| {
                self.report(&link, &error);
                lookup.here(self).incomplete()
            }))
        })
    }

    /// The sessions that match a lookup, from the answer of Redis.
    async fn found(
        &self,
        link: &Link,
        lookup: Lookup<'_>,
        answer: &Value,
        was_synced: bool,
    ) -> Result<Found, LinkError> {
        let mut sessions = sessions_in(lookup, answer)?;
        self.refresh_leases(link, sessions.iter().map(|session| session.id.node)).await?;
        sessions.retain(|session| self.is_alive(session.id.node));
        // A session of this node is found whether it was registered before or after Redis was queried.
        if was_synced && self.is_synced() {
            return Ok(found_of(lookup.user, &mut sessions));
        }
        let here = lookup.here(self);
        let mut sessions = newest(sessions.into_iter().filter(|session| session.id.node != self.here), &here);
        Ok(found_of(lookup.user, &mut sessions))
    }

    pub(super) fn by_id(&self, id: SessionId) -> Answer<'_, Result<Found, Error>> {
        let here = move || {
            let found = self.local.by_id(id);
            if id.node == self.here { found } else { found.incomplete() }
        };
        let Some(link) = self.link() else { return Answer::ready(Ok(here().incomplete())) };
        if id.node == self.here && !self.is_synced() {
            return Answer::ready(Ok(here()));
        }
        Answer::later(async move {
            Ok(self.found_by_id(&link, id).await.unwrap_or_else(|error| {
                self.report(&link, &error);
                here().incomplete()
            }))
        })
    }

    async fn found_by_id(&self, link: &Link, id: SessionId) -> Result<Found, LinkError> {
        let mut call = self.call(link, Script::ById);
        call.arg(id.node.0).arg(&id.to_bytes()).arg(&field_of(id));
        let answer = link.call(Op::ById, &call).await?;
        if reply::array(&answer)?.is_empty() {
            return Ok(Found::none());
        }
        let [user, resource, row] = reply::fields(&answer)?;
        let user = user_of(reply::bytes(user)?);
        let resource = resource_of(reply::bytes(resource)?);
        let row = Row::read(reply::bytes(row)?);
        let (Some(user), Some(resource), Some(row)) = (user, resource, row) else { return Ok(Found::none()) };
        self.refresh_leases(link, std::iter::once(id.node)).await?;
        if !self.is_alive(id.node) {
            return Ok(Found::none());
        }
        Ok(found_of(user, &mut [row.session(user, resource)]))
    }

    /// All sessions, in the order of users. If Redis becomes unreachable meanwhile, this node's remaining users follow.
    pub(super) fn all(&self) -> BoxStream<'_, Result<Found, Error>> {
        let walk = Walk { table: self, last: None, page: VecDeque::new(), here: None };
        stream::unfold(walk, |mut walk| async move {
            let found = walk.next().await?;
            Some((Ok(found), walk))
        })
        .boxed()
    }

    pub(super) fn counts(&self) -> Answer<'_, Result<Counts, Error>> {
        let link = self.link().filter(|_| self.is_synced());
        let Some(link) = link else { return Answer::ready(Ok(self.counts_here())) };
        Answer::later(async move {
            match self.states(&link).await {
                Ok((users, states)) => Ok(counts_of(users, &states)),
                Err(error) => {
                    self.report(&link, &error);
                    Ok(self.counts_here())
                }
            }
        })
    }

    fn counts_here(&self) -> Counts {
        let (sessions, users) = self.local.counts();
        let by_node = if sessions > 0 { vec![(self.here, sessions)] } else { Vec::new() };
        Counts { sessions, users, by_node, is_complete: false }
    }

    /// The number of users, and all nodes.
    pub(super) async fn states(&self, link: &Link) -> Result<(u64, Vec<NodeState>), LinkError> {
        let asked = Instant::now();
        let answer = link.call(Op::Nodes, &self.call(link, Script::Nodes)).await?;
        let (users, states) = nodes::read(&answer)?;
        self.record_leases(asked, &states);
        Ok((users, states))
    }
}

/// What to look up.
#[derive(Clone, Copy)]
struct Lookup<'a> {
    op: Op,
    user: &'a str,
    /// `None` for all resources.
    resource: Option<&'a str>,
}

impl Lookup<'_> {
    /// Whether no session can have this address: then Redis is not queried.
    fn is_too_long(&self) -> bool {
        let resource_bytes = self.resource.map_or(0, str::len);
        self.user.len() > USER_BYTES_MAX || resource_bytes > RESOURCE_BYTES_MAX
    }

    /// The matching sessions of this node.
    fn here(&self, table: &Table) -> Found {
        match self.resource {
            Some(resource) => table.local.by_address(self.user, resource),
            None => table.local.by_user(self.user),
        }
    }
}

/// Reads a user's hash, or one value of it. Values that are no valid row are skipped.
fn sessions_in<'a>(lookup: Lookup<'a>, answer: &'a Value) -> Result<Vec<Session<'a>>, LinkError> {
    if let Some(resource) = lookup.resource {
        if *answer == Value::Nil {
            return Ok(Vec::new());
        }
        let row = Row::read(reply::bytes(answer)?);
        return Ok(row.map(|row| row.session(lookup.user, resource)).into_iter().collect());
    }
    let mut sessions = Vec::new();
    for (resource, row) in reply::pairs(answer)? {
        if let (Some(resource), Some(row)) = (resource_of(resource), Row::read(row)) {
            sessions.push(row.session(lookup.user, resource));
        }
    }
    Ok(sessions)
}

fn found_of(user: &str, sessions: &mut [Session<'_>]) -> Found {
    if sessions.is_empty() {
        Found::none()
    } else {
        Found::of(record_of(user, sessions, Origin::NONE), Origin::NONE)
    }
}

/// The sessions of other nodes and of this one; of two with the same resource, the newer.
fn newest<'a>(others: impl Iterator<Item = Session<'a>>, here: &'a Found) -> Vec<Session<'a>> {
    let mut sessions: Vec<Session<'a>> = others.collect();
    for own in here {
        match sessions.iter_mut().find(|session| session.has_resource(own.resource())) {
            Some(other) if other.id > own.id => {}
            Some(other) => *other = own,
            None => sessions.push(own),
        }
    }
    sessions
}

/// Only sessions of living nodes count. Users of dead nodes count until they are swept, but never more users than sessions.
fn counts_of(users: u64, states: &[NodeState]) -> Counts {
    let leases = states.iter().filter(|state| state.is_living() && state.sessions > 0);
    let by_node: Vec<_> = leases.map(|state| (state.id, state.sessions)).collect();
    let sessions = by_node.iter().map(|(_, sessions)| sessions).sum();
    Counts { sessions, users: users.min(sessions), by_node, is_complete: true }
}

/// The state of an iteration over all users.
struct Walk<'a> {
    table: &'a Table,
    /// The last user of the pages read.
    last: Option<Vec<u8>>,
    page: VecDeque<Found>,
    /// This node's remaining users, once Redis is unreachable.
    here: Option<BoxStream<'a, Result<Found, Error>>>,
}

impl Walk<'_> {
    async fn next(&mut self) -> Option<Found> {
        while self.here.is_none() {
            if let Some(found) = self.page.pop_front() {
                return Some(found);
            }
            let link = self.table.link().filter(|_| self.table.is_synced());
            let Some(link) = link else { break };
            match self.read_page(&link).await {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => {
                    self.table.report(&link, &error);
                    break;
                }
            }
        }
        self.next_here().await
    }

    async fn next_here(&mut self) -> Option<Found> {
        let here = self.here.get_or_insert_with(|| self.table.local.all());
        loop {
            let found = here.next().await?.ok()?;
            let user = found.first()?.user();
            let is_given = self.last.as_deref().is_some_and(|last| user.as_bytes() <= last);
            if !is_given {
                return Some(found.incomplete());
            }
        }
    }

    /// Reads the next users; returns whether there were any. On an error nothing of the page is taken, so that this node's own users
    /// on it are still returned.
    async fn read_page(&mut self, link: &Link) -> Result<bool, LinkError> {
        let table = self.table;
        let from = self.last.as_ref().map_or_else(|| b"-".to_vec(), |last| [b"(", last.as_slice()].concat());
        let mut ask = redis::cmd("ZRANGEBYLEX");
        ask.arg(table.keys.users()).arg(from).arg("+").arg("LIMIT").arg(0).arg(PAGE_USERS);
        let answer = link.ask(Op::Page, &ask).await?;
        let users = reply::array(&answer)?;
        let Some(last) = users.last() else { return Ok(false) };
        let last = reply::bytes(last)?.to_vec();
        let users: Vec<&str> = users.iter().filter_map(|user| user_of(reply::bytes(user).ok()?)).collect();
        let mut ask = redis::pipe();
        for user in &users {
            ask.cmd("HGETALL").arg(table.keys.user(user));
        }
        let answers = link.ask_all(Op::Page, &ask).await?;
        let mut page = VecDeque::with_capacity(users.len());
        for (user, answer) in users.iter().zip(&answers) {
            let lookup = Lookup { op: Op::Page, user, resource: None };
            let found = table.found(link, lookup, answer, true).await?;
            if !found.is_empty() {
                page.push_back(found);
            }
        }
        (self.last, self.page) = (Some(last), page);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Info, NodeId};

    fn session(node: u32, opened_us: u64, resource: &str) -> Session<'_> {
        let id = SessionId { opened_us, node: NodeId(node), user_hash: 0 };
        Session::new(id, "u", resource, Info::EMPTY)
    }

    #[test]
    fn of_two_sessions_with_one_resource_the_newer_is_found() {
        let here = found_of("u", &mut [session(1, 10, "a"), session(1, 30, "b"), session(1, 5, "c")]);
        let others = [session(2, 20, "a"), session(2, 20, "b"), session(2, 1, "d")];
        let mut merged = newest(others.into_iter(), &here);
        merged.sort_by_key(|session| session.resource());
        let ids: Vec<_> = merged.iter().map(|s| (s.resource(), s.id.node.0)).collect();
        assert_eq!(ids, [("a", 2), ("b", 1), ("c", 1), ("d", 2)]);
    }

    #[test]
    fn dead_nodes_are_not_counted() {
        let state = |id, lease_ms, sessions| NodeState {
            id: NodeId(id),
            name: String::new(),
            lease_ms: Some(lease_ms),
            sessions,
        };
        let counts = counts_of(9, &[state(1, 5, 2), state(2, 0, 7), state(3, 5, 0)]);
        assert_eq!((counts.sessions, counts.users), (2, 2));
        assert_eq!(counts.by_node, [(NodeId(1), 2)]);
    }
}
