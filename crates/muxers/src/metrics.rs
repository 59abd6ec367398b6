use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// The metrics of unread bytes. Cloning shares them.
#[derive(Clone, Debug, Default)]
pub struct MuxerMetrics {
    pub(crate) unread_bytes: Gauge,
    closed: Family<LimitLabel, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LimitLabel {
    limit: &'static str,
}

impl MuxerMetrics {
    /// Registers them in the registry of the node.
    pub fn register(&self, registry: &mut Registry) {
        let what =
            "Received bytes that were not read yet, over all connections, beyond the first 16 KiB of each";
        registry.register("unread_bytes", what, self.unread_bytes.clone());
        for limit in ["connection", "all"] {
            let _ = self.closed.get_or_create(&LimitLabel { limit });
        }
        let what = "Connections that were closed because of too many unread bytes, by limit";
        registry.register("connections_closed_unread", what, self.closed.clone());
    }

    /// Counts a closed connection; `limit` is `connection` or `all`.
    pub(crate) fn closed(&self, limit: &'static str) {
        self.closed.get_or_create(&LimitLabel { limit }).inc();
    }
}
