use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};
use restante_core::ErrorKind;

use crate::s3_metrics::S3Metrics;

/// Metrics of a blob store. Clones share their counters.
#[derive(Clone, Debug)]
pub struct Metrics {
    pub(crate) put_seconds: Histogram,
    pub(crate) put_blobs: Family<ResultLabel, Counter>,
    pub(crate) put_bytes: Counter,
    pub(crate) touched_blobs: Counter,
    pub(crate) read_blobs: Counter,
    pub(crate) read_bytes: Counter,
    pub(crate) errors: Family<ErrorLabel, Counter>,
    pub(crate) removed_blobs: Counter,
    pub(crate) slow_uploads: Counter,
    pub(crate) commit_blobs: Histogram,
    pub(crate) sync_seconds: Histogram,
    pub(crate) rewritten_bytes: Counter,
    /// Metrics of the index.
    pub(crate) index: restante_lmdb::Metrics,
    /// Metrics of the engine `s3`.
    pub(crate) s3: S3Metrics,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ResultLabel {
    pub(crate) result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ErrorLabel {
    pub(crate) operation: &'static str,
    pub(crate) kind: &'static str,
}

/// Whether a blob existed when it was put.
const RESULTS: [&str; 2] = ["new", "known"];
/// The operations of [`Blobs`](crate::Blobs).
const OPERATIONS: [&str; 5] = ["put", "read", "size", "sync", "touch"];
/// The kinds of errors.
const KINDS: [ErrorKind; 7] = [
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
        let seconds = || Histogram::new(exponential_buckets(20e-6, 2.0, 20)); // 20 us to 10 s
        Self {
            put_seconds: seconds(),
            put_blobs: Family::default(),
            put_bytes: Counter::default(),
            touched_blobs: Counter::default(),
            read_blobs: Counter::default(),
            read_bytes: Counter::default(),
            errors: Family::default(),
            removed_blobs: Counter::default(),
            slow_uploads: Counter::default(),
            commit_blobs: Histogram::new(exponential_buckets(1.0, 4.0, 6)), // 1 to 1,024
            sync_seconds: seconds(),
            rewritten_bytes: Counter::default(),
            index: restante_lmdb::Metrics::default(),
            s3: S3Metrics::default(),
        }
    }
}

impl Metrics {
    /// Makes the metrics visible in `registry` as `restante_blobs_...`.
    pub fn register(&self, registry: &mut Registry) {
        self.begin_at_zero();
        let registry = registry.sub_registry_with_prefix("restante_blobs");
        let Self { put_seconds, put_blobs, put_bytes, touched_blobs, read_blobs, read_bytes, .. } = self;
        registry.register("put_seconds", "Time from a put to its durable answer", put_seconds.clone());
        registry.register("put_blobs", "Blobs that were put by result: new, known", put_blobs.clone());
        registry.register("put_bytes", "Bytes of the blobs that were put", put_bytes.clone());
        let help = "Blobs that exist and were touched";
        registry.register("touched_blobs", help, touched_blobs.clone());
        registry.register("read_blobs", "Blobs that were read, in whole or in part", read_blobs.clone());
        registry.register("read_bytes", "Bytes of blobs that were read", read_bytes.clone());
        let help = "Uploads that were ended because they made no progress while others waited";
        registry.register("slow_uploads", help, self.slow_uploads.clone());
        let Self { errors, removed_blobs, commit_blobs, sync_seconds, rewritten_bytes, .. } = self;
        registry.register("errors", "Failed operations by kind of error", errors.clone());
        registry.register("removed_blobs", "Blobs that were removed", removed_blobs.clone());
        registry.register("commit_blobs", "Blobs in one group commit", commit_blobs.clone());
        registry.register("sync_seconds", "Time of one sync of a pack to disk", sync_seconds.clone());
        let help = "Bytes that were moved out of packs with less than half in use";
        registry.register("rewritten_bytes", help, rewritten_bytes.clone());
        self.index.register(registry);
        self.s3.register(registry);
    }

    /// Creates every label: a family without labels is not exported, and a rate needs its zero.
    fn begin_at_zero(&self) {
        for result in RESULTS {
            drop(self.put_blobs.get_or_create(&ResultLabel { result }));
        }
        for operation in OPERATIONS {
            for kind in KINDS {
                drop(self.errors.get_or_create(&ErrorLabel { operation, kind: kind.as_str() }));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_is_exported_before_anything_is_counted() {
        let mut registry = Registry::default();
        Metrics::default().register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "restante_blobs_put_blobs_total{result=\"known\"} 0",
            "restante_blobs_errors_total{operation=\"read\",kind=\"corrupt\"} 0",
            "restante_blobs_errors_total{operation=\"touch\",kind=\"unavailable\"} 0",
            "restante_blobs_touched_blobs_total 0",
            "restante_blobs_removed_blobs_total 0",
            "restante_blobs_slow_uploads_total 0",
            "restante_blobs_put_seconds_count 0",
            "restante_blobs_s3_requests_total{method=\"put\",result=\"no_answer\"} 0",
            "restante_blobs_s3_cache_reads_total{result=\"hit\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }
}
