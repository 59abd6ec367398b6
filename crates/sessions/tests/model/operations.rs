//! Long random sequences with few users and resources, so that collisions are frequent.

use proptest::{
    prelude::*,
    test_runner::{FileFailurePersistence, TestRunner},
};
use restante_sessions::{Ended, INFO_BYTES_MAX, SessionId};

use crate::{
    common::{
        OwnedChange, OwnedValue,
        engines::{Engine, TestTable, run},
        node::Node,
    },
    table::Model,
};

const USERS: [&str; 5] = ["ann", "bob", "a:b", "a", "\0*é"];
const RESOURCES: [&str; 6] = ["phone", "desk", "b:c", "*", "ユ\0", "p"];
const SESSIONS_PER_USER_MAX: usize = 4;

/// An operation on one of the nodes.
#[derive(Clone, Debug)]
enum Operation {
    Open { user: usize, resource: usize, changes: Vec<OwnedChange> },
    Close { which: Which, why: usize },
    Presence { which: Which, priority: Option<i8>, changes: Vec<OwnedChange> },
    Merge { which: Which, changes: Vec<OwnedChange> },
    Look { user: usize, resource: usize },
    Check,
    Heartbeat,
    Leave,
}

/// One of the sessions opened so far.
#[derive(Clone, Debug)]
enum Which {
    /// One that is open, if any is.
    Open(prop::sample::Index),
    /// One that is open or closed.
    Any(prop::sample::Index),
}

fn which() -> impl Strategy<Value = Which> {
    prop_oneof![
        3 => any::<prop::sample::Index>().prop_map(Which::Open),
        1 => any::<prop::sample::Index>().prop_map(Which::Any),
    ]
}

fn values() -> impl Strategy<Value = OwnedValue> {
    prop_oneof![
        6 => any::<i64>().prop_map(OwnedValue::Number),
        6 => "\\PC{0,40}".prop_map(OwnedValue::Text),
        2 => (any::<std::net::IpAddr>(), any::<u16>()).prop_map(|at| OwnedValue::Address(at.into())),
        1 => (0..INFO_BYTES_MAX).prop_map(|len| OwnedValue::Text("x".repeat(len))),
    ]
}

/// Usually of few keys, so that they collide; sometimes of many.
fn changes() -> impl Strategy<Value = Vec<OwnedChange>> {
    let key = prop_oneof![4 => 0..6_u16, 1 => any::<u16>()];
    let one = (key, prop::option::weighted(0.8, values()));
    let how_many = prop_oneof![9 => 0..4_usize, 1 => 4..40_usize];
    (how_many, prop::collection::vec(one, 40)).prop_map(|(how_many, mut changes)| {
        changes.truncate(how_many);
        changes
    })
}

fn operations() -> impl Strategy<Value = Operation> {
    let address = (0..USERS.len(), 0..RESOURCES.len());
    let open = (address.clone(), changes());
    let presence = (which(), any::<Option<i8>>(), changes());
    prop_oneof![
        12 => open.prop_map(|((user, resource), changes)| Operation::Open { user, resource, changes }),
        5 => (which(), 0..Ended::ALL.len()).prop_map(|(which, why)| Operation::Close { which, why }),
        4 => presence.prop_map(|(which, priority, changes)| Operation::Presence { which, priority, changes }),
        5 => (which(), changes()).prop_map(|(which, changes)| Operation::Merge { which, changes }),
        3 => address.prop_map(|(user, resource)| Operation::Look { user, resource }),
        1 => Just(Operation::Check),
        1 => Just(Operation::Heartbeat),
        1 => Just(Operation::Leave),
    ]
}

/// The nodes of a table and its model.
struct Subject<'a> {
    table: &'a TestTable,
    model: Model,
    nodes: Vec<Node>,
}

impl<'a> Subject<'a> {
    async fn new(table: &'a TestTable) -> Self {
        let mut nodes = vec![table.node_with_limit(SESSIONS_PER_USER_MAX).await];
        if table.engine.is_shared() {
            nodes.push(table.node_with_limit(SESSIONS_PER_USER_MAX).await);
        }
        Self { table, model: Model::new(SESSIONS_PER_USER_MAX), nodes }
    }

    fn id(&self, which: &Which) -> Option<SessionId> {
        match which {
            Which::Open(which) => {
                let open: Vec<_> = self.model.ids().collect();
                (!open.is_empty()).then(|| *which.get(&open))
            }
            Which::Any(which) => (!self.model.given.is_empty()).then(|| *which.get(&self.model.given)),
        }
    }

    async fn run(&mut self, node: usize, operation: Operation) {
        let at = node % self.nodes.len();
        let node = &self.nodes[at];
        match operation {
            Operation::Open { user, resource, changes } => {
                self.model.open(node, USERS[user], RESOURCES[resource], &changes).await;
                self.model.check_user(node, USERS[user]).await;
            }
            Operation::Close { which, why } => {
                let Some(id) = self.id(&which) else { return };
                self.model.close(node, id, Ended::ALL[why]).await;
            }
            Operation::Presence { which, priority, changes } => {
                let Some(id) = self.id(&which) else { return };
                self.model.presence(node, id, priority, &changes).await;
            }
            Operation::Merge { which, changes } => {
                let Some(id) = self.id(&which) else { return };
                self.model.merge(node, id, &changes).await;
            }
            Operation::Look { user, resource } => self.look(node, USERS[user], RESOURCES[resource]).await,
            Operation::Check => self.model.check(node).await,
            Operation::Heartbeat => node.nodes.heartbeat().await.unwrap(),
            Operation::Leave => self.leave(at).await,
        }
        for node in &self.nodes {
            assert_eq!(node.counts().await, self.model.counts());
        }
    }

    async fn look(&self, node: &Node, user: &str, resource: &str) {
        self.model.check_user(node, user).await;
        let expected = self.model.user(user).into_iter().find(|row| row.resource == resource);
        assert_eq!(node.address(user, resource).await, expected);
    }

    /// A node ends, and a new one is opened.
    async fn leave(&mut self, at: usize) {
        self.check_ended(at).await;
        self.model.leave(&self.nodes[at]).await;
        self.nodes[at] = self.table.node_with_limit(SESSIONS_PER_USER_MAX).await;
    }

    /// The owner of a node got exactly the expected notifications, from its own node and others.
    async fn check_ended(&self, at: usize) {
        let node = &self.nodes[at];
        for other in &self.nodes {
            node.settle(other).await;
        }
        assert_eq!(node.owner.ended_sessions(), self.model.ended_sessions(node.here()));
    }
}

async fn compare(table: &TestTable, operations: Vec<(usize, Operation)>) {
    let mut subject = Subject::new(table).await;
    for (node, operation) in operations {
        subject.run(node, operation).await;
    }
    for at in 0..subject.nodes.len() {
        subject.model.check(&subject.nodes[at]).await;
        subject.check_ended(at).await;
    }
    for node in &subject.nodes {
        subject.model.leave(node).await;
    }
}

/// RESTANTE_TEST_CASES=10000 for a long run. An engine that takes longer for a case gets fewer.
fn cases(engine: Engine) -> u32 {
    let of_memory = std::env::var("RESTANTE_TEST_CASES").ok().and_then(|cases| cases.parse().ok());
    let times_slower = if engine == Engine::Memory { 1 } else { 4 };
    (of_memory.unwrap_or(80) / times_slower).max(1)
}

/// A failure prints its operations, minimised, and is stored in `model.regressions` for later runs.
pub(crate) fn agrees_with_the_model(engine: Engine) {
    let mut runner = TestRunner::new(ProptestConfig {
        cases: cases(engine),
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        source_file: Some(file!()),
        test_name: Some(engine.name()),
        ..ProptestConfig::default()
    });
    let operations = prop::collection::vec((0..2_usize, operations()), 1..250);
    let outcome = runner.run(&operations, |operations| {
        run(engine, async |table| compare(&table, operations).await);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}
