use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use crate::Ended;

/// Metrics of this node's sessions. Lookups are not counted: counting one would cost as much as the lookup.
#[derive(Clone, Debug, Default)]
pub(crate) struct TableMetrics {
    open: Gauge,
    opened: Counter,
    ended: Family<EndedLabel, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndedLabel {
    reason: &'static str,
}

impl TableMetrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register("open", "Sessions of this node", self.open.clone());
        registry.register("opened", "Sessions that this node has opened", self.opened.clone());
        // Create all labels at start, so that the first count of each is an increase.
        for why in Ended::ALL {
            let _ = self.ended.get_or_create(&EndedLabel { reason: why.as_str() });
        }
        registry.register("ended", "Sessions of this node that have ended, by why", self.ended.clone());
    }

    pub(super) fn opened(&self) {
        self.opened.inc();
        self.open.inc();
    }

    pub(super) fn ended(&self, why: Ended) {
        self.ended_at_once(1, why);
    }

    pub(super) fn ended_at_once(&self, sessions: u64, why: Ended) {
        self.open.dec_by(sessions as i64);
        self.ended.get_or_create(&EndedLabel { reason: why.as_str() }).inc_by(sessions);
    }
}
