//! Metrics of the table and the hub.

use prometheus_client::registry::Registry;

use crate::{hub::HubMetrics, memory::TableMetrics, redis_metrics::RedisMetrics};

/// Metrics of sessions. Clones share their counters.
#[derive(Clone, Debug, Default)]
pub struct SessionMetrics {
    /// Metrics of the hub.
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
