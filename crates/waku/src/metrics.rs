use prometheus_client::registry::Registry;

use crate::{
    filter::FilterMetrics, intake::IntakeMetrics, metadata::MetadataMetrics, node::NodeMetrics,
    peer_exchange::PeerExchangeMetrics, sync::SyncMetrics,
};

/// The metrics of the door, except those of REST. Clones share the counters.
#[derive(Clone, Debug, Default)]
pub struct WakuMetrics {
    /// Connections, peers, relay and requests.
    pub node: NodeMetrics,
    /// Peers' answers to metadata requests.
    pub metadata: MetadataMetrics,
    /// Records of peers that were exchanged.
    pub peer_exchange: PeerExchangeMetrics,
    /// Incoming messages.
    pub intake: IntakeMetrics,
    /// Filter subscribers and messages pushed to them.
    pub filter: FilterMetrics,
    /// Store sync.
    pub sync: SyncMetrics,
}

impl WakuMetrics {
    /// Registers the metrics as `restante_waku_...`.
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
