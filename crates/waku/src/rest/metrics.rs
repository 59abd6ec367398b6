//! The metrics of the REST interface.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use super::live::LiveMetrics;

/// The metrics of the REST interface besides requests and connections. Cloning shares the counts; unregistered metrics are not exported.
#[derive(Clone, Debug, Default)]
pub struct RestMetrics {
    pub(crate) cache: CacheMetrics,
    pub(super) live: LiveMetrics,
}

impl RestMetrics {
    /// Registers the metrics in `registry` as `restante_rest_...`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("restante_rest");
        self.cache.register(registry);
        self.live.register(registry);
    }
}

/// The metrics of messages that wait until clients fetch them.
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

/// Why a message is dropped before it was fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DropReason {
    /// The queue of its subscription is full.
    Full,
    /// The memory for all waiting messages is used up.
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
        // Both label values exist from the start, so that the first of each is an increase.
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
