use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

/// Metrics of aggregate reports. Clones share the counts.
#[derive(Clone, Debug)]
pub struct AggregateMetrics {
    messages: Family<ResultLabel, Counter>,
    reports: Family<ResultLabel, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// The outcome of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReportResult {
    /// It was queued.
    Queued,
    /// The domain asks for none, or names only addresses that do not take it.
    NoRecipient,
    /// It will be tried again.
    Failed,
}

impl ReportResult {
    const ALL: [Self; 3] = [Self::Queued, Self::NoRecipient, Self::Failed];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::NoRecipient => "no_recipient",
            Self::Failed => "failed",
        }
    }
}

impl Default for AggregateMetrics {
    fn default() -> Self {
        let metrics = Self { messages: Family::default(), reports: Family::default() };
        // Exported as 0, so that the first one is an increase.
        for result in ["pass", "fail"] {
            drop(metrics.messages.get_or_create(&ResultLabel { result }));
        }
        for result in ReportResult::ALL {
            drop(metrics.reports.get_or_create(&ResultLabel { result: result.as_str() }));
        }
        metrics
    }
}

impl AggregateMetrics {
    /// Makes the metrics visible in `registry` as `restante_dmarc_...`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("restante_dmarc");
        let what = "Received messages whose domain has a DMARC record, by whether they passed";
        registry.register("messages", what, self.messages.clone());
        let what = "Aggregate reports to domains about a day, by what became of them";
        registry.register("reports", what, self.reports.clone());
    }

    pub(super) fn count_message(&self, is_pass: bool) {
        self.messages.get_or_create(&ResultLabel { result: if is_pass { "pass" } else { "fail" } }).inc();
    }

    pub(super) fn count_report(&self, result: ReportResult) {
        self.reports.get_or_create(&ResultLabel { result: result.as_str() }).inc();
    }
}
