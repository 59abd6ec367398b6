use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

/// Metrics of a store. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics {
    pub(crate) writes: Counter,
    pub(crate) groups: Counter,
    pub(crate) applies: Counter,
    pub(crate) apply_failures: Counter,
    pub(crate) waiting_rows: Gauge,
    pub(crate) log_bytes: Gauge,
    pub(crate) group_seconds: Histogram,
    pub(crate) apply_seconds: Histogram,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            writes: Counter::default(),
            groups: Counter::default(),
            applies: Counter::default(),
            apply_failures: Counter::default(),
            waiting_rows: Gauge::default(),
            log_bytes: Gauge::default(),
            group_seconds: Histogram::new([
                0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0,
            ]),
            apply_seconds: Histogram::new([
                0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 10.0,
            ]),
        }
    }
}

impl Metrics {
    /// Makes the metrics visible in `registry` as `..._lmdb_...`; pass a registry with the prefix of the role.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("lmdb");
        registry.register("writes", "Batches that were written", self.writes.clone());
        registry.register("groups", "Groups of batches, each made durable by one sync", self.groups.clone());
        registry.register(
            "applies",
            "Full files of the commit log that were brought into LMDB",
            self.applies.clone(),
        );
        registry.register(
            "apply_failures",
            "Times that a file of the commit log could not be brought into LMDB",
            self.apply_failures.clone(),
        );
        registry.register(
            "waiting_rows",
            "Rows in the commit log that are not in LMDB yet",
            self.waiting_rows.clone(),
        );
        registry.register("log_bytes", "Length of the commit log's files", self.log_bytes.clone());
        registry.register("group_seconds", "Time to make a group durable", self.group_seconds.clone());
        registry.register(
            "apply_seconds",
            "Time to bring a file of the commit log into LMDB",
            self.apply_seconds.clone(),
        );
    }
}
