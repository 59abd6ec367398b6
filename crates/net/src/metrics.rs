//! What listeners count.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// What all listeners of a process count. Cloning shares the counts.
#[derive(Clone, Debug, Default)]
pub struct NetMetrics {
    connections: Family<ListenerLabel, Gauge>,
    idle: Family<ListenerLabel, Gauge>,
    idle_closed: Family<ListenerLabel, Counter>,
    refused: Family<ListenerLabel, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ListenerLabel {
    listener: &'static str,
}

/// What one listener counts.
#[derive(Clone, Debug)]
pub struct ListenerMetrics {
    pub(crate) listener: &'static str,
    pub(crate) connections: Gauge,
    pub(crate) idle: Gauge,
    pub(crate) idle_closed: Counter,
    pub(crate) refused: Counter,
}

impl NetMetrics {
    /// Makes the metrics visible in `registry` as `restante_net_...`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("restante_net");
        registry.register("connections", "Open connections by listener", self.connections.clone());
        let what = "Open connections that wait for a request, by listener";
        registry.register("idle_connections", what, self.idle.clone());
        let what = "Connections closed while they waited for a request, to admit new ones, by listener";
        registry.register("idle_connections_closed", what, self.idle_closed.clone());
        let what = "Connections refused because their address had as many as it may have, by listener";
        registry.register("connections_refused", what, self.refused.clone());
    }

    /// The counts of a listener. Its name is the value of the label `listener`, and stands in its log lines.
    pub fn listener(&self, listener: &'static str) -> ListenerMetrics {
        let label = ListenerLabel { listener };
        ListenerMetrics {
            listener,
            connections: self.connections.get_or_create(&label).clone(),
            idle: self.idle.get_or_create(&label).clone(),
            idle_closed: self.idle_closed.get_or_create(&label).clone(),
            refused: self.refused.get_or_create(&label).clone(),
        }
    }
}
