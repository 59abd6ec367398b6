//! Metrics of the engine `s3` in addition to those of all engines.

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

#[derive(Clone, Debug)]
pub(crate) struct S3Metrics {
    pub(crate) requests: Family<RequestLabel, Counter>,
    pub(crate) request_seconds: Histogram,
    pub(crate) cache_reads: Family<CacheLabel, Counter>,
    pub(crate) cache_bytes: Gauge,
    pub(crate) restored_blobs: Counter,
    pub(crate) purged_blobs: Counter,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct RequestLabel {
    pub(crate) method: &'static str,
    pub(crate) result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct CacheLabel {
    pub(crate) result: &'static str,
}

const METHODS: [&str; 5] = ["put", "get", "head", "delete", "post"];
/// `refused` is the client's fault, or an object that unexpectedly exists or is missing; `failed` is the storage's fault.
const RESULTS: [&str; 4] = ["ok", "refused", "failed", "no_answer"];
const CACHE_RESULTS: [&str; 2] = ["hit", "miss"];

impl Default for S3Metrics {
    fn default() -> Self {
        Self {
            requests: Family::default(),
            request_seconds: Histogram::new(exponential_buckets(500e-6, 2.0, 16)), // 0.5 ms to 16 s
            cache_reads: Family::default(),
            cache_bytes: Gauge::default(),
            restored_blobs: Counter::default(),
            purged_blobs: Counter::default(),
        }
    }
}

impl S3Metrics {
    pub(crate) fn register(&self, registry: &mut Registry) {
        for method in METHODS {
            for result in RESULTS {
                drop(self.requests.get_or_create(&RequestLabel { method, result }));
            }
        }
        for result in CACHE_RESULTS {
            drop(self.cache_reads.get_or_create(&CacheLabel { result }));
        }
        let Self { requests, request_seconds, cache_reads, cache_bytes, restored_blobs, purged_blobs } = self;
        let help = "Requests to the S3 storage by result: ok, refused, failed, no_answer; each try counts";
        registry.register("s3_requests", help, requests.clone());
        let help = "Time from a request to the S3 storage to the beginning of its answer";
        registry.register("s3_request_seconds", help, request_seconds.clone());
        let help = "Reads of blobs in an S3 storage that the local cache had: hit, or had not: miss";
        registry.register("s3_cache_reads", help, cache_reads.clone());
        registry.register("s3_cache_bytes", "Size of the local cache of blobs", cache_bytes.clone());
        let help = "Removed blobs that came back from the trash because they were put or touched meanwhile";
        registry.register("s3_restored_blobs", help, restored_blobs.clone());
        registry.register("s3_purged_blobs", "Blobs that left the trash for good", purged_blobs.clone());
    }
}
