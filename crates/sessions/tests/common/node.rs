//! A node under test: its table, and an owner of its sessions that records notifications.

use std::{
    collections::BTreeMap,
    sync::{Arc, mpsc},
};

use parking_lot::Mutex;
use restante_sessions::{
    Config, Counts, Ended, Error, InfoChange, NewSession, NodeId, NodeState, Nodes, Opened, Owner, SessionId,
    Sessions, hub::Event, open,
};
use tokio::runtime::Runtime;

use super::{Row, gather, rows, until};

/// An owner that records notifications.
#[derive(Default)]
pub struct Recorder {
    ended: Mutex<Vec<(SessionId, Ended)>>,
    heard: Mutex<Vec<Event>>,
}

impl Owner for Recorder {
    fn ended(&self, id: SessionId, why: Ended) {
        self.ended.lock().push((id, why));
    }

    fn received(&self, event: Event) {
        self.heard.lock().push(event);
    }
}

impl Recorder {
    /// The ended sessions that it was notified of, ordered by id.
    pub fn ended_sessions(&self) -> Vec<(SessionId, Ended)> {
        let mut ended = self.ended.lock().clone();
        ended.sort_by_key(|(id, why)| (*id, why.as_str()));
        ended
    }

    fn forget(&self, id: SessionId) {
        self.ended.lock().retain(|(ended, _)| *ended != id);
    }

    /// The events that it received, as text that shows every field.
    pub fn heard(&self) -> Vec<String> {
        let mut heard: Vec<String> = self.heard.lock().iter().map(show).collect();
        heard.sort();
        heard
    }
}

/// All fields of an event.
pub fn show(event: &Event) -> String {
    let Event { channel, topic, message_hash, timestamp, body, .. } = event;
    format!("{channel:?} {topic:?} {message_hash:?} {timestamp:?} {body:?}")
}

/// A node. An error of it fails the test.
pub struct Node {
    pub sessions: Arc<dyn Sessions>,
    pub nodes: Arc<dyn Nodes>,
    pub owner: Arc<Recorder>,
}

impl Node {
    pub async fn new(config: Config) -> Self {
        let owner = Arc::new(Recorder::default());
        let Opened { sessions, nodes } = open(config, owner.clone()).await.unwrap();
        until("the node finds the others", || nodes.health().is_ok()).await;
        Self { sessions, nodes, owner }
    }

    pub fn here(&self) -> NodeId {
        self.nodes.here()
    }

    pub async fn try_open(
        &self,
        user: &str,
        resource: &str,
        info: &[InfoChange<'_>],
    ) -> Result<SessionId, Error> {
        self.sessions.open(NewSession { user, resource, info }).await
    }

    pub async fn open(&self, user: &str, resource: &str) -> SessionId {
        self.try_open(user, resource, &[]).await.unwrap()
    }

    pub async fn open_with(&self, user: &str, resource: &str, info: &[InfoChange<'_>]) -> SessionId {
        self.try_open(user, resource, info).await.unwrap()
    }

    pub async fn close(&self, id: SessionId, why: Ended) -> bool {
        self.sessions.close(id, why).await.unwrap()
    }

    pub async fn merge(&self, id: SessionId, changes: &[InfoChange<'_>]) -> bool {
        self.sessions.merge_info(id, changes).await.unwrap()
    }

    pub async fn presence(&self, id: SessionId, priority: Option<i8>, changes: &[InfoChange<'_>]) -> bool {
        self.sessions.set_presence(id, priority, changes).await.unwrap()
    }

    /// The sessions of a user by a complete lookup, newest first.
    pub async fn user(&self, user: &str) -> Vec<Row> {
        let found = self.sessions.by_user(user).await.unwrap();
        assert!(found.is_complete());
        let rows = rows(&found);
        assert!(rows.is_sorted_by(|one, next| one.id > next.id), "newest first: {rows:?}");
        assert!(rows.iter().all(|row| row.user == user), "all are {user}'s: {rows:?}");
        assert_eq!((found.len(), found.is_empty()), (rows.len(), rows.is_empty()));
        assert_eq!(found.first().map(Row::from), rows.first().cloned());
        rows
    }

    /// The ids of a user's sessions, newest first.
    pub async fn ids(&self, user: &str) -> Vec<SessionId> {
        self.user(user).await.into_iter().map(|row| row.id).collect()
    }

    /// The session at an address.
    pub async fn address(&self, user: &str, resource: &str) -> Option<Row> {
        let found = self.sessions.by_address(user, resource).await.unwrap();
        assert!(found.is_complete());
        assert!(found.len() <= 1, "there is one session at an address at most: {found:?}");
        found.first().map(Row::from)
    }

    /// The session with an id.
    pub async fn id(&self, id: SessionId) -> Option<Row> {
        let found = self.sessions.by_id(id).await.unwrap();
        assert!(found.is_complete());
        assert!(found.len() <= 1, "there is one session with an id at most: {found:?}");
        found.first().map(Row::from)
    }

    /// All sessions, by user.
    pub async fn all(&self) -> BTreeMap<String, Vec<Row>> {
        gather(self.sessions.all()).await
    }

    pub async fn counts(&self) -> Counts {
        let counts = self.sessions.counts().await.unwrap();
        assert!(counts.is_complete);
        counts
    }

    /// Sessions and users of a table with one node.
    pub async fn totals(&self) -> (u64, u64) {
        let counts = self.counts().await;
        let of_nodes = if counts.sessions == 0 { vec![] } else { vec![(self.here(), counts.sessions)] };
        assert_eq!(counts.by_node, of_nodes);
        (counts.sessions, counts.users)
    }

    /// The state of this node, as `other` sees it.
    pub async fn seen_by(&self, other: &Self) -> Option<NodeState> {
        let nodes = other.nodes.nodes().await.unwrap();
        assert!(nodes.is_sorted_by(|one, next| one.id < next.id), "in the order of ids: {nodes:?}");
        nodes.into_iter().find(|node| node.id == self.here())
    }

    /// Waits until this node's owner has every notification that `other` sent: the last one arrives after the rest.
    pub async fn settle(&self, other: &Self) {
        let id = self.open("the test itself", "settles").await;
        assert!(other.close(id, Ended::Operator).await);
        until("the owner is notified", || self.owner.ended_sessions().iter().any(|(ended, _)| *ended == id))
            .await;
        self.owner.forget(id);
    }

    /// The ended sessions that this node itself notified its owner of.
    pub async fn ended_sessions(&self) -> Vec<(SessionId, Ended)> {
        self.settle(self).await;
        self.owner.ended_sessions()
    }

    /// The same, when another node may have notified it.
    pub async fn ended_by(&self, other: &Self) -> Vec<(SessionId, Ended)> {
        self.settle(other).await;
        self.ended_sessions().await
    }
}

/// A node with a thread of its own, so that it can die or stop as a process can.
pub struct MortalNode {
    pub node: Node,
    runtime: Option<Runtime>,
}

/// Lets a stopped node continue when it is dropped.
pub struct Standstill {
    _threads: mpsc::SyncSender<()>,
}

impl MortalNode {
    pub async fn new(config: Config) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let node = runtime.spawn(Node::new(config)).await.unwrap();
        Self { node, runtime: Some(runtime) }
    }

    /// Drops everything that it does, without closing the table.
    pub fn die(mut self) {
        self.stop();
    }

    /// Blocks its one thread, and with it everything that it does.
    pub async fn stand_still(&self) -> Standstill {
        let (resume, wait) = mpsc::sync_channel::<()>(1);
        let (stands, is_standing) = tokio::sync::oneshot::channel();
        let runtime = self.runtime.as_ref().expect("it lives until it dies");
        runtime.spawn(async move {
            let _ = stands.send(());
            let _ = wait.recv();
        });
        is_standing.await.unwrap();
        Standstill { _threads: resume }
    }

    fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for MortalNode {
    fn drop(&mut self) {
        self.stop();
    }
}
