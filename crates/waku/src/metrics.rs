use prometheus_client::registry::Registry;

use crate::{
    filter::FilterMetrics, intake::IntakeMetrics, metadata::MetadataMetrics, node::NodeMetrics,
    peer_exchange::PeerExchangeMetrics, sync::SyncMetrics,
};

/// What the door counts, but for REST. Cloning shares the counts; unregistered metrics count for nobody.
#[derive(Clone, Debug, Default)]
pub struct WakuMetrics {
    /// Connections, peers, relay and requests.
    pub node: NodeMetrics,
    /// What peers say of their cluster.
    pub metadata: MetadataMetrics,
    /// Whom peers know.
    pub peer_exchange: PeerExchangeMetrics,
    /// Messages on their way in.
    pub intake: IntakeMetrics,
    /// Filter subscribers and what is pushed to them.
    pub filter: FilterMetrics,
    /// What store sync found.
    pub sync: SyncMetrics,
}

impl WakuMetrics {
    /// Makes the metrics visible in `registry` as `restante_waku_...`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("restante_waku");
        self.node.register(registry);
        self.metadata.register(registry);
        self.peer_exchange.register(registry);
        self.intake.register(registry);
        self.filter.register(registry);
        self.sync.register(registry);
    }
}
