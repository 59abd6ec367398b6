use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

/// Metrics of edits of mail. Clones share the counts; they are exported only once registered.
#[derive(Clone, Debug)]
pub struct MailMetrics {
    /// The number of edits that share a commit.
    pub(crate) edits_per_commit: Histogram,
    /// Time from an edit's call to its answer.
    pub(crate) edit_seconds: Histogram,
    /// Commits that failed because another server's commit came first.
    pub(crate) conflicts: Counter,
    deliveries: Family<DeliveryLabel, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DeliveryLabel {
    result: &'static str,
}

/// How a delivery ended, as it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeliveryResult {
    New,
    Repeated,
    OverQuota,
    Failed,
}

impl DeliveryResult {
    const ALL: [Self; 4] = [Self::New, Self::Repeated, Self::OverQuota, Self::Failed];

    const fn as_str(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Repeated => "repeated",
            Self::OverQuota => "over_quota",
            Self::Failed => "failed",
        }
    }
}

impl Default for MailMetrics {
    fn default() -> Self {
        let metrics = Self {
            edits_per_commit: Histogram::new(exponential_buckets(1.0, 2.0, 9)), // 1 to 256
            edit_seconds: Histogram::new(exponential_buckets(20e-6, 2.0, 20)),  // 20 us to 10 s
            conflicts: Counter::default(),
            deliveries: Family::default(),
        };
        // A label that was never counted is not exported, so its first increase would not be seen.
        for result in DeliveryResult::ALL {
            drop(metrics.deliveries_of(result));
        }
        metrics
    }
}

impl MailMetrics {
    /// Makes the metrics visible in `registry` as `restante_mail_...`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("restante_mail");
        registry.register("deliveries", "Deliveries to accounts by result", self.deliveries.clone());
        registry.register("edit_seconds", "Time to make an edit durable", self.edit_seconds.clone());
        registry.register("edits_per_commit", "Edits that share a commit", self.edits_per_commit.clone());
        registry.register(
            "conflicts",
            "Commits that were planned again, because another server committed before",
            self.conflicts.clone(),
        );
    }

    pub(crate) fn deliveries_of(&self, result: DeliveryResult) -> Counter {
        self.deliveries.get_or_create_owned(&DeliveryLabel { result: result.as_str() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_exported_before_anything_is_counted() {
        let mut registry = Registry::default();
        MailMetrics::default().register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "restante_mail_deliveries_total{result=\"over_quota\"} 0",
            "restante_mail_edit_seconds_count 0",
            "restante_mail_edits_per_commit_count 0",
            "restante_mail_conflicts_total 0",
        ] {
            assert!(text.lines().any(|known| known == line), "{line} is not in\n{text}");
        }
    }
}
