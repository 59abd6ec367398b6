//! A second implementation of the contract, written to be obviously right: what every node of a table must find, and the
//! notifications that each owner must get.

use std::collections::{BTreeMap, BTreeSet};

use restante_core::ErrorKind;
use restante_sessions::{Counts, Ended, Error, InfoBuf, NodeId, SessionId};

use crate::common::{OwnedChange, OwnedInfo, Row, borrow_changes, change, node::Node};

/// The expected contents of a table.
pub(crate) struct Model {
    per_user_max: usize,
    /// Open sessions.
    open: BTreeMap<SessionId, Row>,
    /// The same by user.
    by_user: BTreeMap<String, BTreeSet<SessionId>>,
    /// Ended sessions that owners were notified of.
    ended: BTreeSet<(SessionId, &'static str)>,
    /// The last id of each node.
    last: BTreeMap<NodeId, SessionId>,
    /// Ids in the order in which they were opened, including closed ones.
    pub(crate) given: Vec<SessionId>,
}

impl Model {
    pub(crate) fn new(per_user_max: usize) -> Self {
        Self {
            per_user_max,
            open: BTreeMap::new(),
            by_user: BTreeMap::new(),
            ended: BTreeSet::new(),
            last: BTreeMap::new(),
            given: Vec::new(),
        }
    }

    /// The sessions of a user, newest first.
    pub(crate) fn user(&self, user: &str) -> Vec<Row> {
        let ids = self.by_user.get(user).into_iter().flatten().rev();
        ids.map(|id| self.open[id].clone()).collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    pub(crate) fn is_open(&self, id: SessionId) -> bool {
        self.open.contains_key(&id)
    }

    /// The ids of open sessions.
    pub(crate) fn ids(&self) -> impl Iterator<Item = SessionId> {
        self.open.keys().copied()
    }

    pub(crate) fn all(&self) -> BTreeMap<String, Vec<Row>> {
        self.by_user.keys().map(|user| (user.clone(), self.user(user))).collect()
    }

    pub(crate) fn counts(&self) -> Counts {
        let mut by_node = BTreeMap::new();
        for id in self.ids() {
            *by_node.entry(id.node).or_default() += 1;
        }
        Counts {
            sessions: self.open.len() as u64,
            users: self.by_user.len() as u64,
            by_node: by_node.into_iter().collect(),
            is_complete: true,
        }
    }

    /// The ended sessions that the owner of a node was notified of, ordered by id.
    pub(crate) fn ended_sessions(&self, node: NodeId) -> Vec<(SessionId, Ended)> {
        let of_node = self.ended.iter().filter(|(id, _)| id.node == node);
        of_node.map(|(id, why)| (*id, Ended::from_name(why).unwrap())).collect()
    }

    /// Opens a session on the node and in the model, and compares the results.
    pub(crate) async fn open(&mut self, node: &Node, user: &str, resource: &str, changes: &[OwnedChange]) {
        let answer = node.try_open(user, resource, &borrow_changes(changes)).await;
        let Some(info) = merged(&OwnedInfo::new(), changes) else {
            assert_eq!(answer.map_err(|error| error.kind()), Err(ErrorKind::Full));
            return;
        };
        let id = answer.unwrap();
        assert_eq!(id.node, node.here());
        let last = self.last.insert(id.node, id);
        assert!(last < Some(id), "{id} follows {last:?}");
        let before = self.user(user);
        for old in before.iter().filter(|row| row.resource == resource) {
            self.end(old.id, Ended::Replaced);
        }
        let others = self.user(user);
        if others.len() == self.per_user_max {
            self.end(others.last().unwrap().id, Ended::Crowded);
        }
        self.by_user.entry(user.to_owned()).or_default().insert(id);
        let (user, resource) = (user.to_owned(), resource.to_owned());
        self.open.insert(id, Row { id, user, resource, priority: None, info });
        self.given.push(id);
    }

    /// Ends a session; its owner is notified unless it gave the reason itself. Returns whether it existed.
    fn end(&mut self, id: SessionId, why: Ended) -> bool {
        let was_open = self.remove(id);
        if was_open && why != Ended::Left {
            self.ended.insert((id, why.as_str()));
        }
        was_open
    }

    fn remove(&mut self, id: SessionId) -> bool {
        let Some(row) = self.open.remove(&id) else { return false };
        let of_user = self.by_user.get_mut(&row.user).unwrap();
        of_user.remove(&id);
        if of_user.is_empty() {
            self.by_user.remove(&row.user);
        }
        true
    }

    pub(crate) async fn close(&mut self, node: &Node, id: SessionId, why: Ended) {
        assert_eq!(node.close(id, why).await, self.end(id, why), "close {id}");
    }

    pub(crate) async fn presence(
        &mut self,
        node: &Node,
        id: SessionId,
        priority: Option<i8>,
        changes: &[OwnedChange],
    ) {
        let answer = node.sessions.set_presence(id, priority, &borrow_changes(changes)).await;
        if self.change(node, id, changes, answer) {
            self.open.get_mut(&id).unwrap().priority = priority;
        }
    }

    pub(crate) async fn merge(&mut self, node: &Node, id: SessionId, changes: &[OwnedChange]) {
        let answer = node.sessions.merge_info(id, &borrow_changes(changes)).await;
        self.change(node, id, changes, answer);
    }

    /// Changes the info of a session as the engine did, and compares the results.
    fn change(
        &mut self,
        node: &Node,
        id: SessionId,
        changes: &[OwnedChange],
        answer: Result<bool, Error>,
    ) -> bool {
        let is_here = id.node == node.here();
        let Some(row) = self.open.get_mut(&id).filter(|_| is_here) else {
            assert!(!answer.unwrap(), "there is no such session of this node");
            return false;
        };
        match merged(&row.info, changes) {
            Some(info) => {
                assert!(answer.unwrap());
                row.info = info;
                true
            }
            None => {
                assert_eq!(answer.map_err(|error| error.kind()), Err(ErrorKind::Full));
                false
            }
        }
    }

    /// Ends all sessions of a node without notifications. A later node may have the same id, so ids and notifications of this one are
    /// forgotten.
    pub(crate) async fn leave(&mut self, node: &Node) {
        node.nodes.close().await.unwrap();
        let ended: Vec<_> = self.ids().filter(|id| id.node == node.here()).collect();
        for id in ended {
            self.remove(id);
        }
        self.ended.retain(|(id, _)| id.node != node.here());
        self.last.remove(&node.here());
    }

    /// A user's sessions are found as they should be, however they are looked up.
    pub(crate) async fn check_user(&self, node: &Node, user: &str) {
        let expected = self.user(user);
        assert_eq!(node.user(user).await, expected);
        for row in &expected {
            assert_eq!(node.address(user, &row.resource).await.as_ref(), Some(row));
            assert_eq!(node.id(row.id).await.as_ref(), Some(row));
        }
    }

    /// Everything is found as it should be, and what has ended is not.
    pub(crate) async fn check(&self, node: &Node) {
        assert_eq!(node.counts().await, self.counts());
        let all = self.all();
        assert_eq!(node.all().await, all);
        for user in all.keys() {
            self.check_user(node, user).await;
        }
        for id in self.given.iter().filter(|id| !self.is_open(**id)) {
            assert_eq!(node.id(*id).await, None);
        }
    }
}

/// An info after changes, or `None` if it would be too long: only that question is answered by the tested code, which has its
/// own tests for it.
fn merged(info: &OwnedInfo, changes: &[OwnedChange]) -> Option<OwnedInfo> {
    let mut merged = info.clone();
    change(&mut merged, changes);
    let whole: Vec<OwnedChange> = merged.iter().map(|(key, value)| (*key, Some(value.clone()))).collect();
    let fits = InfoBuf::new().merge(&borrow_changes(&whole)).is_ok();
    fits.then_some(merged)
}
