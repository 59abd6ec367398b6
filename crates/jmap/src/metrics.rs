//! What is counted of JMAP.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
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
        Self { calls: Family::default(), queries: QueryMetrics::default(), request_seconds }
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
    }

    /// Counts a call.
    pub(crate) fn count(&self, method: &'static str, error: Option<&MethodError>) {
        let outcome = error.map_or("ok", MethodError::name);
        self.calls.get_or_create(&CallLabels { method, outcome }).inc();
    }
}
