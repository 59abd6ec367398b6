use std::sync::atomic::AtomicU64;

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
use restante_core::ErrorKind;

/// The metrics of a search index. Clones share the counts; metrics that are not registered are not exported.
#[derive(Clone, Debug)]
pub struct Metrics {
    pub(crate) query_seconds: Histogram,
    pub(crate) query_hits: Histogram,
    pub(crate) commit_seconds: Histogram,
    pub(crate) documents: Counter,
    pub(crate) removed: Counter,
    pub(crate) uncommitted: Gauge<u64, AtomicU64>,
    pub(crate) cleared: Counter,
    pub(crate) rejected: Counter,
    pub(crate) retried: Counter,
    pub(crate) errors: Family<ErrorLabel, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ErrorLabel {
    pub(crate) operation: &'static str,
    pub(crate) kind: &'static str,
}

/// The operations of a search index, as errors are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Query,
    Write,
    Upkeep,
}

impl Operation {
    const ALL: [Self; 3] = [Self::Query, Self::Write, Self::Upkeep];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Query => "query",
            Self::Write => "write",
            Self::Upkeep => "upkeep",
        }
    }
}

const ERROR_KINDS: [ErrorKind; 7] = [
    ErrorKind::NotFound,
    ErrorKind::Invalid,
    ErrorKind::Conflict,
    ErrorKind::Full,
    ErrorKind::Unavailable,
    ErrorKind::Corrupt,
    ErrorKind::Internal,
];

impl Default for Metrics {
    fn default() -> Self {
        let metrics = Self {
            query_seconds: Histogram::new(exponential_buckets(50e-6, 2.0, 16)), // 50 us to 1.6 s
            query_hits: Histogram::new(exponential_buckets(1.0, 4.0, 10)),      // 1 to 262,144
            commit_seconds: Histogram::new(exponential_buckets(1e-3, 2.0, 14)), // 1 ms to 8 s
            documents: Counter::default(),
            removed: Counter::default(),
            uncommitted: Gauge::default(),
            cleared: Counter::default(),
            rejected: Counter::default(),
            retried: Counter::default(),
            errors: Family::default(),
        };
        // A label that was never counted would not be exported at all, so its rise from 0 would not be visible.
        for operation in Operation::ALL {
            for kind in ERROR_KINDS {
                drop(metrics.errors_of(operation, kind));
            }
        }
        metrics
    }
}

impl Metrics {
    /// Makes the metrics visible in `registry` as `restante_search_...`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("restante_search");
        registry.register("query_seconds", "Time to answer a page of a query", self.query_seconds.clone());
        registry.register("query_hits", "Emails of a page of a query", self.query_hits.clone());
        let help = "Time of a commit, after which what was written is found";
        registry.register("commit_seconds", help, self.commit_seconds.clone());
        registry.register("documents", "Documents that were written", self.documents.clone());
        registry.register("removed", "Documents that were to be removed", self.removed.clone());
        let help = "Documents and removals that are written and in no commit";
        registry.register("uncommitted_documents", help, self.uncommitted.clone());
        let help = "Times that the index began empty: made, cleared, or found damaged or of another version";
        registry.register("cleared", help, self.cleared.clone());
        let help = "Documents that an OpenSearch refused, and that are not searched";
        registry.register("rejected", help, self.rejected.clone());
        let help = "Documents that were sent again because an OpenSearch was busy or out of reach";
        registry.register("retried", help, self.retried.clone());
        registry.register("errors", "Failed operations by kind of error", self.errors.clone());
    }

    pub(crate) fn errors_of(&self, operation: Operation, kind: ErrorKind) -> Counter {
        let label = ErrorLabel { operation: operation.as_str(), kind: kind.as_str() };
        self.errors.get_or_create_owned(&label)
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
            "restante_search_query_seconds_count 0",
            "restante_search_query_hits_count 0",
            "restante_search_commit_seconds_count 0",
            "restante_search_documents_total 0",
            "restante_search_removed_total 0",
            "restante_search_uncommitted_documents 0",
            "restante_search_cleared_total 0",
            "restante_search_rejected_total 0",
            "restante_search_retried_total 0",
            "restante_search_errors_total{operation=\"write\",kind=\"full\"} 0",
        ] {
            assert!(text.lines().any(|known| known == line), "{line} is not in\n{text}");
        }
    }
}
