//! What the REST interface counts.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use super::live::LiveMetrics;

/// What the REST interface counts beside requests and connections. Cloning shares the counts; unregistered metrics count for nobody.
#[derive(Clone, Debug, Default)]
pub struct RestMetrics {
    pub(crate) cache: CacheMetrics,
    pub(super) live: LiveMetrics,
}

impl RestMetrics {
    /// Makes the metrics visible in `registry` as `restante_rest_...`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("restante_rest");
        self.cache.register(registry);
        self.live.register(registry);
    }
}

/// What is counted of messages that wait until clients fetch them.
#[derive(Clone, Debug, Default)]
pub(crate) struct CacheMetrics {
    subscriptions: Gauge,
    messages: Gauge,
    bytes: Gauge,
    dropped: Family<DropLabel, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DropLabel {
    reason: &'static str,
}

/// Why a message is dropped before anybody has fetched it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DropReason {
    /// Its subscription has as many as it may have.
    Full,
    /// All together take as much memory as they may take.
    Memory,
}

impl DropReason {
    fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Memory => "memory",
        }
    }
}

impl CacheMetrics {
    fn register(&self, registry: &mut Registry) {
        let subscriptions = self.subscriptions.clone();
        registry.register("subscriptions", "Topics that REST clients have subscribed to", subscriptions);
        let messages = self.messages.clone();
        registry.register("cached_messages", "Messages that wait until a client fetches them", messages);
        registry.register("cached_bytes", "What the messages that wait take", self.bytes.clone());
        // Both reasons are there from the start, so that the first of each is an increase.
        for reason in [DropReason::Full, DropReason::Memory] {
            let _ = self.dropped.get_or_create(&DropLabel { reason: reason.as_str() });
        }
        let what = "Messages that were dropped before a client fetched them, by why";
        registry.register("cache_dropped", what, self.dropped.clone());
    }

    pub(crate) fn note(&self, subscriptions: usize, messages: usize, bytes: usize) {
        self.subscriptions.set(subscriptions as i64);
        self.messages.set(messages as i64);
        self.bytes.set(bytes as i64);
    }

    pub(crate) fn dropped(&self, reason: DropReason) {
        self.dropped.get_or_create(&DropLabel { reason: reason.as_str() }).inc();
    }
}
