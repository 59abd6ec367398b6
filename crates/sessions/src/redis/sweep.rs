//! Removal of the sessions of dead nodes.
//!
//! A script removes about a hundred sessions and checks each time that the node is still dead. So other requests run in between,
//! any number of nodes may sweep at the same time, and a node that comes back loses no further sessions.

use super::{
    link::{Link, LinkError},
    reply,
    scripts::Script,
    table::Table,
};
use crate::{NodeId, NodeState, redis_metrics::Op};

/// Sessions that one script removes, approximately.
const SWEEP_SESSIONS: usize = 100;

impl Table {
    /// Removes the sessions of the dead ones of these nodes. Returns how many.
    pub(super) async fn sweep_dead(&self, link: &Link, nodes: &[NodeState]) -> Result<u64, LinkError> {
        let mut removed = 0;
        for node in nodes {
            if !node.is_living() && node.id != self.here {
                removed += self.sweep_node(link, node.id).await?;
            }
        }
        Ok(removed)
    }

    /// Removes the sessions of a node that has no lease, in one pass over them.
    pub(super) async fn sweep_node(&self, link: &Link, node: NodeId) -> Result<u64, LinkError> {
        let mut cursor = 0;
        let mut removed = 0;
        loop {
            let mut call = self.call(link, Script::Sweep);
            call.arg(node.0).arg(cursor).arg(SWEEP_SESSIONS);
            let answer = link.call(Op::Sweep, &call).await?;
            let [count, next] = reply::fields(&answer)?;
            let count = reply::count(count)?;
            self.metrics.swept.inc_by(count);
            removed += count;
            cursor = reply::number(next)?;
            if cursor == 0 {
                return Ok(removed);
            }
            if node != self.here {
                self.beat_if_due(link).await?;
            }
        }
    }
}
