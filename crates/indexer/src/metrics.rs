//! The metrics of the indexer.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

/// The metrics of the indexer, in addition to those of [`restante_follow::Metrics`] for the follower `indexer`. Clones share the
/// counts; metrics that are not registered are not exported.
#[derive(Clone, Debug)]
pub struct Metrics {
    pub(crate) emails: Family<OutcomeLabel, Counter>,
    pub(crate) bytes: Counter,
    pub(crate) series: Counter,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct OutcomeLabel {
    outcome: &'static str,
}

/// The outcome for an email.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It was written to the index.
    Indexed,
    /// It was destroyed before it was read.
    Gone,
    /// Its record or its message is damaged or missing: it can't be found by its words.
    Unreadable,
    /// It was removed from the index.
    Removed,
}

impl Outcome {
    const ALL: [Self; 4] = [Self::Indexed, Self::Gone, Self::Unreadable, Self::Removed];

    const fn label(self) -> OutcomeLabel {
        let outcome = match self {
            Self::Indexed => "indexed",
            Self::Gone => "gone",
            Self::Unreadable => "unreadable",
            Self::Removed => "removed",
        };
        OutcomeLabel { outcome }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        let metrics =
            Self { emails: Family::default(), bytes: Counter::default(), series: Counter::default() };
        for outcome in Outcome::ALL {
            metrics.count(outcome, 0); // so that it is exported before it happens
        }
        metrics
    }
}

impl Metrics {
    /// Makes the metrics visible in `registry` as `restante_indexer_...`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("restante_indexer");
        registry.register("emails", "Emails that were handled, repeats too, by outcome", self.emails.clone());
        registry.register("bytes", "Bytes of the messages that were read", self.bytes.clone());
        let help = "Times that writing to the index began: at the start, after a failed write, after a clear";
        registry.register("series", help, self.series.clone());
    }

    pub(crate) fn count(&self, outcome: Outcome, emails: usize) {
        self.emails.get_or_create(&outcome.label()).inc_by(emails as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_exported_before_anything_is_counted() {
        let mut registry = Registry::default();
        Metrics::default().register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "restante_indexer_emails_total{outcome=\"unreadable\"} 0",
            "restante_indexer_bytes_total 0",
            "restante_indexer_series_total 0",
        ] {
            assert!(text.lines().any(|known| known == line), "{line} is not in\n{text}");
        }
    }
}
