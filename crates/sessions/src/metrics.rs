//! What the table and the hub count.

use prometheus_client::registry::Registry;

use crate::{hub::HubMetrics, memory::TableMetrics, redis_metrics::RedisMetrics};

/// What is counted of sessions. Cloning shares the counts; unregistered metrics count for nobody.
#[derive(Clone, Debug, Default)]
pub struct SessionMetrics {
    /// What the hub counts.
    pub hub: HubMetrics,
    pub(crate) table: TableMetrics,
    pub(crate) redis: RedisMetrics,
}

impl SessionMetrics {
    /// Makes the metrics visible in `registry` as `restante_sessions_...`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("restante_sessions");
        self.table.register(registry);
        self.hub.register(registry);
        self.redis.register(registry);
    }
}
