//! The leases of nodes: a node is alive while its lease runs.
//!
//! Known leases are cached with the time at which each expires, so that a lookup need not query them and still finds no session
//! of a node whose lease has expired. Only leases that are unknown, or should have expired by now, are queried.

use std::{collections::HashMap, time::Duration};

use redis::Value;
use tokio::time::Instant;

use super::{
    link::{Link, LinkError},
    reply,
    table::Table,
};
use crate::{NodeId, NodeState, redis_metrics::Op};

/// When the lease of each node expires.
#[derive(Debug, Default)]
pub(super) struct Leases {
    until: HashMap<NodeId, Instant>,
}

impl Leases {
    pub(super) fn has(&self, node: NodeId) -> bool {
        self.until.get(&node).is_some_and(|until| Instant::now() < *until)
    }

    /// When the lease of a node expires, as far as is known.
    pub(super) fn until(&self, node: NodeId) -> Option<Instant> {
        self.until.get(&node).copied()
    }

    /// When the next lease of another node expires.
    pub(super) fn next_end(&self, here: NodeId) -> Option<Instant> {
        self.until.iter().filter(|(node, _)| **node != here).map(|(_, until)| *until).min()
    }
}

impl Table {
    /// Records the nodes that Redis returned to a request sent at `asked`.
    pub(super) fn record_leases(&self, asked: Instant, states: &[NodeState]) {
        let leases = states.iter().filter(|state| state.is_living());
        let until = leases
            .clone()
            .map(|state| (state.id, asked + Duration::from_millis(state.lease_ms.unwrap_or(0))));
        *self.leases.write() = Leases { until: until.collect() };
        let metrics = &self.metrics;
        metrics.nodes.set(i64::try_from(leases.clone().count()).unwrap_or(i64::MAX));
        let sessions = leases.map(|state| state.sessions).sum::<u64>();
        metrics.sessions.set(i64::try_from(sessions).unwrap_or(i64::MAX));
    }

    /// Queries the leases of those nodes that are not known to be alive.
    pub(super) async fn refresh_leases(
        &self,
        link: &Link,
        nodes: impl Iterator<Item = NodeId>,
    ) -> Result<(), LinkError> {
        let unknown = {
            let leases = self.leases.read();
            let mut unknown: Vec<NodeId> =
                nodes.filter(|node| *node != self.here && !leases.has(*node)).collect();
            unknown.sort_unstable();
            unknown.dedup();
            unknown
        };
        if unknown.is_empty() {
            return Ok(());
        }
        let asked = Instant::now();
        let mut ask = redis::pipe();
        for node in &unknown {
            ask.cmd("PTTL").arg(self.keys.lease(*node));
        }
        let answers = link.ask_all(Op::Leases, &ask).await?;
        let mut leases = self.leases.write();
        for (node, answer) in unknown.into_iter().zip(&answers) {
            // Negative when there is none.
            let Ok(runs_ms @ 1..) = reply::count(answer) else { continue };
            leases.until.insert(node, asked + Duration::from_millis(runs_ms));
        }
        Ok(())
    }

    /// Whether the lease of a node runs. Call [`Table::refresh_leases`] before.
    pub(super) fn is_alive(&self, node: NodeId) -> bool {
        node == self.here || self.leases.read().has(node)
    }
}

/// Decodes the number of users and the nodes, ordered by id.
pub(super) fn read(value: &Value) -> Result<(u64, Vec<NodeState>), LinkError> {
    let [users, nodes] = reply::fields(value)?;
    let mut states = Vec::new();
    for node in reply::array(nodes)? {
        let [id, name, lease_ms, sessions] = reply::fields(node)?;
        let Ok(id) = u32::try_from(reply::number(id)?) else { continue };
        states.push(NodeState {
            id: NodeId(id),
            name: String::from_utf8_lossy(reply::bytes(name)?).into_owned(),
            lease_ms: Some(reply::count(lease_ms)?),
            sessions: reply::count(sessions)?,
        });
    }
    states.sort_unstable_by_key(|state| state.id);
    Ok((reply::count(users)?, states))
}
