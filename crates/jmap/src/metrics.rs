//! What is counted of JMAP.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use crate::{core::MethodError, methods::email::query::QueryMetrics};

/// Calls and requests. Cloning shares the counts.
#[derive(Clone, Debug)]
pub struct JmapMetrics {
    calls: Family<CallLabels, Counter>,
    pub(crate) request_seconds: Histogram,
    pub(crate) queries: QueryMetrics,
    pub(crate) pushes: PushMetrics,
}

/// Pushes to the URLs of subscriptions. Cloning shares the counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct PushMetrics {
    sent: Family<PushLabels, Counter>,
    removed: Family<RemovalLabels, Counter>,
    waiting: Gauge,
    pub(crate) subscriptions: Gauge,
}

/// The values are closed sets.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PushLabels {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RemovalLabels {
    reason: &'static str,
}

/// Why the server removes a push subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RemovalReason {
    Expired,
    /// Its password or token is not there any more.
    Revoked,
    /// The push service does not know its URL.
    Gone,
    /// Its pushes have failed for too long.
    Failed,
}

impl RemovalReason {
    fn name(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Revoked => "revoked",
            Self::Gone => "gone",
            Self::Failed => "failed",
        }
    }
}

/// A push that waits, until it is dropped.
pub(crate) struct WaitingPush(Gauge);

impl Drop for WaitingPush {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl PushMetrics {
    fn register(&self, registry: &mut Registry) {
        registry.register("pushes", "Pushes to URLs of subscriptions by result", self.sent.clone());
        let help = "Push subscriptions that the server has removed, by reason";
        registry.register("push_subscriptions_removed", help, self.removed.clone());
        let help = "Pushes that wait for others, or to be tried again";
        registry.register("pushes_waiting", help, self.waiting.clone());
        registry.register("push_subscriptions", "Push subscriptions", self.subscriptions.clone());
    }

    /// Counts a push that waits.
    pub(crate) fn wait(&self) -> WaitingPush {
        self.waiting.inc();
        WaitingPush(self.waiting.clone())
    }

    pub(crate) fn sent(&self, is_sent: bool) {
        self.sent.get_or_create(&PushLabels { result: if is_sent { "sent" } else { "failed" } }).inc();
    }

    pub(crate) fn removed(&self, reason: RemovalReason) {
        self.removed.get_or_create(&RemovalLabels { reason: reason.name() }).inc();
    }
}

/// The values are closed sets: the names of the table of methods and `unknown`; `ok` and the types of errors.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CallLabels {
    method: &'static str,
    outcome: &'static str,
}

impl Default for JmapMetrics {
    fn default() -> Self {
        let request_seconds = Histogram::new(exponential_buckets(50e-6, 2.0, 18)); // 50 us to 6.5 s
        Self {
            calls: Family::default(),
            queries: QueryMetrics::default(),
            pushes: PushMetrics::default(),
            request_seconds,
        }
    }
}

impl JmapMetrics {
    /// Makes the metrics visible in `registry` as `restante_jmap_...`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("restante_jmap");
        registry.register("calls", "Calls by method and outcome", self.calls.clone());
        let help = "Time from a request that was read to its responses";
        registry.register("request_seconds", help, self.request_seconds.clone());
        self.queries.register(registry);
        self.pushes.register(registry);
    }

    /// Counts a call.
    pub(crate) fn count(&self, method: &'static str, error: Option<&MethodError>) {
        let outcome = error.map_or("ok", MethodError::name);
        self.calls.get_or_create(&CallLabels { method, outcome }).inc();
    }
}
