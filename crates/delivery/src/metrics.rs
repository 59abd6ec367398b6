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

/// Metrics of the queue and its sender. Clones share the counts.
#[derive(Clone, Debug)]
pub struct SenderMetrics {
    attempts: Family<ResultLabel, Counter>,
    notices: Family<KindLabel, Counter>,
    pub(crate) connections: Counter,
    pub(crate) connections_failed: Counter,
    pub(crate) connections_now: Gauge,
    pub(crate) slow_connections_now: Gauge,
    pub(crate) domains: Gauge,
    pub(crate) leases_expired: Counter,
    pub(crate) queued: Gauge,
    pub(crate) held: Gauge,
    pub(crate) remembered: Gauge,
    pub(crate) oldest_due_seconds: Gauge,
    pub(crate) is_held: Gauge,
    pub(crate) queued_seconds: Histogram,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

/// The outcome for a recipient in an attempt, as it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttemptResult {
    Delivered,
    Postponed,
    Failed,
    Expired,
    /// It is not to be sent any more.
    Canceled,
    /// It was not tried after all.
    Returned,
    /// It could not be prepared.
    Faulted,
}

impl AttemptResult {
    const ALL: [Self; 7] = [
        Self::Delivered,
        Self::Postponed,
        Self::Failed,
        Self::Expired,
        Self::Canceled,
        Self::Returned,
        Self::Faulted,
    ];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Postponed => "postponed",
            Self::Failed => "failed",
            Self::Expired => "expired",
            Self::Canceled => "canceled",
            Self::Returned => "returned",
            Self::Faulted => "faulted",
        }
    }
}

/// The kinds of reports.
pub(crate) const NOTICE_KINDS: [&str; 3] = ["failed", "delayed", "delivered"];

impl Default for SenderMetrics {
    fn default() -> Self {
        let metrics = Self {
            attempts: Family::default(),
            notices: Family::default(),
            connections: Counter::default(),
            connections_failed: Counter::default(),
            connections_now: Gauge::default(),
            slow_connections_now: Gauge::default(),
            domains: Gauge::default(),
            leases_expired: Counter::default(),
            queued: Gauge::default(),
            held: Gauge::default(),
            remembered: Gauge::default(),
            oldest_due_seconds: Gauge::default(),
            is_held: Gauge::default(),
            queued_seconds: Histogram::new(exponential_buckets(1.0, 3.0, 13)), // 1 s to 6 days
        };
        // Exported as 0, so that the first one is an increase.
        for result in AttemptResult::ALL {
            let _ = metrics.attempts.get_or_create(&ResultLabel { result: result.as_str() });
        }
        for kind in NOTICE_KINDS {
            let _ = metrics.notices.get_or_create(&KindLabel { kind });
        }
        metrics
    }
}

impl SenderMetrics {
    /// Makes the metrics visible in `registry` as `restante_queue_...`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("restante_queue");
        let what = "Attempts to deliver outgoing mail, by what became of the recipient";
        registry.register("attempts", what, self.attempts.clone());
        let what = "Reports about outgoing mail that were made, by kind";
        registry.register("notices", what, self.notices.clone());
        let what = "Connections to other servers that were made";
        registry.register("connections", what, self.connections.clone());
        let what = "Connections to other servers that failed";
        registry.register("connections_failed", what, self.connections_failed.clone());
        let what = "Attempts under way at other servers, for domains that are not slow";
        registry.register("connections_now", what, self.connections_now.clone());
        let what = "Attempts under way, for domains that are slow or do not answer";
        registry.register("slow_connections_now", what, self.slow_connections_now.clone());
        let what = "Domains with recipients that wait for a connection, or that are known to be slow or down";
        registry.register("domains", what, self.domains.clone());
        let what = "Attempts that ended without an outcome, as when a server dies";
        registry.register("leases_expired", what, self.leases_expired.clone());
        registry.register("recipients", "Recipients in the queue that are not held", self.queued.clone());
        registry.register("held", "Recipients in the queue that are held", self.held.clone());
        let what = "Recipients that have left the queue and are remembered, so that they are not added again";
        registry.register("remembered", what, self.remembered.clone());
        let what = "How long the oldest recipient that is due has been due";
        registry.register("oldest_due_seconds", what, self.oldest_due_seconds.clone());
        let what = "1 while the whole queue is held, as after a restore";
        registry.register("is_held", what, self.is_held.clone());
        let what = "Time from when a recipient first became due to its delivery";
        registry.register("delivered_seconds", what, self.queued_seconds.clone());
    }

    pub(crate) fn count(&self, result: AttemptResult) {
        self.attempts.get_or_create(&ResultLabel { result: result.as_str() }).inc();
    }

    pub(crate) fn count_notice(&self, kind: &'static str) {
        self.notices.get_or_create(&KindLabel { kind }).inc();
    }
}
