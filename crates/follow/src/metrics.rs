//! The metrics of followers.

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// The metrics of followers. Clones share the counts; metrics that are not registered are not exported.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    lag: Family<FollowerLabel, Gauge<f64, AtomicU64>>,
    backoff: Family<FollowerLabel, Gauge>,
    lagging: Family<FollowerLabel, Gauge>,
    changes: Family<FollowerLabel, Counter>,
    resets: Family<FollowerLabel, Counter>,
    errors: Family<ErrorLabel, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FollowerLabel {
    follower: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ErrorLabel {
    follower: &'static str,
    source: &'static str,
}

impl Metrics {
    /// Makes the metrics visible in `registry` as `restante_follow_...{follower}`. A follower's labels exist as soon as it is
    /// created.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("restante_follow");
        let help = "Age of the oldest commit that is not followed and saved, 0 when there is none";
        registry.register("lag_seconds", help, self.lag.clone());
        let help = "Accounts that could not be followed, and wait for another attempt";
        registry.register("backoff_accounts", help, self.backoff.clone());
        let help = "Accounts that have more changes than are handled in one round";
        registry.register("lagging_accounts", help, self.lagging.clone());
        registry.register("changes", "Changes that were handled", self.changes.clone());
        registry.register("resets", "Accounts that were begun from zero", self.resets.clone());
        registry.register("errors", "Attempts that failed, by who failed", self.errors.clone());
    }
}

/// The counts of one follower.
#[derive(Debug)]
pub(crate) struct Counts {
    pub(crate) lag: Gauge<f64, AtomicU64>,
    pub(crate) backoff: Gauge,
    pub(crate) lagging: Gauge,
    pub(crate) changes: Counter,
    pub(crate) resets: Counter,
    pub(crate) records_errors: Counter,
    pub(crate) handler_errors: Counter,
}

impl Counts {
    pub(crate) fn new(metrics: &Metrics, follower: &'static str) -> Self {
        let label = FollowerLabel { follower };
        let errors = |source| metrics.errors.get_or_create_owned(&ErrorLabel { follower, source });
        Self {
            lag: metrics.lag.get_or_create_owned(&label),
            backoff: metrics.backoff.get_or_create_owned(&label),
            lagging: metrics.lagging.get_or_create_owned(&label),
            changes: metrics.changes.get_or_create_owned(&label),
            resets: metrics.resets.get_or_create_owned(&label),
            records_errors: errors("records"),
            handler_errors: errors("handler"),
        }
    }
}
