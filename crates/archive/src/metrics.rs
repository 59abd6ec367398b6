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

/// Metrics of an archive. Clones share them.
#[derive(Clone, Debug)]
pub struct Metrics {
    pub(crate) append_seconds: Histogram,
    pub(crate) query_seconds: Histogram,
    pub(crate) query_rows: Histogram,
    pub(crate) messages: Family<ResultLabel, Counter>,
    pub(crate) errors: Family<ErrorLabel, Counter>,
    pub(crate) commit_messages: Histogram,
    pub(crate) sync_seconds: Histogram,
    pub(crate) damaged: Counter,
    pub(crate) lost_messages: Gauge,
    pub(crate) damaged_files: Gauge,
    pub(crate) rebuilt_indexes: Counter,
    pub(crate) pruned_messages: Counter,
    pub(crate) disk_full: Gauge,
    pub(crate) open_segments: Gauge,
    pub(crate) sealed_segments: Gauge,
    pub(crate) spool: SpoolMetrics,
    pub(crate) tandem: TandemMetrics,
}

/// The counters of a spool, and whether its engine is available.
#[derive(Clone, Debug, Default)]
pub(crate) struct SpoolMetrics {
    pub(crate) up: Gauge,
    pub(crate) messages: Gauge,
    pub(crate) bytes: Gauge,
    pub(crate) oldest: Gauge,
    pub(crate) put: Counter,
    pub(crate) drained: Counter,
    pub(crate) refused: Counter,
}

impl SpoolMetrics {
    /// Those of an engine that has not been unavailable yet.
    fn new() -> Self {
        let metrics = Self::default();
        metrics.up.set(1);
        metrics
    }

    fn register(&self, registry: &mut Registry) {
        let Self { up: _, messages, bytes, oldest, put, drained, refused } = self;
        registry.register("messages", "Messages that wait for the engine", messages.clone());
        registry.register("bytes", "Bytes that they take on disk", bytes.clone());
        let help = "Timestamp of the oldest message that waits, Unix time, or 0";
        registry.register("oldest_timestamp_seconds", help, oldest.clone());
        registry.register("put_messages", "Messages put into the spool", put.clone());
        registry.register(
            "drained_messages",
            "Messages of the spool that the engine has taken",
            drained.clone(),
        );
        let help = "Messages of the spool that the engine refused; they were set aside";
        registry.register("refused_messages", help, refused.clone());
    }
}

/// The counters of a tandem.
#[derive(Clone, Debug)]
pub(crate) struct TandemMetrics {
    pub(crate) spool: SpoolMetrics,
    pub(crate) stopped: Gauge,
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

impl Default for Metrics {
    fn default() -> Self {
        let seconds = || Histogram::new(exponential_buckets(20e-6, 2.0, 18)); // 20 us to 2.6 s
        let counts = || Histogram::new(exponential_buckets(1.0, 4.0, 8)); // 1 to 16,384
        Self {
            append_seconds: seconds(),
            query_seconds: seconds(),
            query_rows: counts(),
            messages: Family::default(),
            errors: Family::default(),
            commit_messages: counts(),
            sync_seconds: seconds(),
            damaged: Counter::default(),
            lost_messages: Gauge::default(),
            damaged_files: Gauge::default(),
            rebuilt_indexes: Counter::default(),
            pruned_messages: Counter::default(),
            disk_full: Gauge::default(),
            open_segments: Gauge::default(),
            sealed_segments: Gauge::default(),
            spool: SpoolMetrics::new(),
            tandem: TandemMetrics { spool: SpoolMetrics::new(), stopped: Gauge::default() },
        }
    }
}

impl Metrics {
    /// Damaged records that were found since the archive was opened, each counted once. They are never served.
    pub fn damaged_records(&self) -> u64 {
        self.damaged.get()
    }

    /// Makes the metrics visible in `registry` as `restante_archive_...{engine}`.
    pub fn register(&self, registry: &mut Registry, engine: &'static str) {
        let registry = registry.sub_registry_with_prefix("restante_archive");
        let registry = registry.sub_registry_with_label(("engine".into(), engine.into()));
        registry.register(
            "append_seconds",
            "Time from an append to its durable answer",
            self.append_seconds.clone(),
        );
        registry.register("query_seconds", "Time to answer one page", self.query_seconds.clone());
        registry.register("query_rows", "Rows on a page", self.query_rows.clone());
        registry.register(
            "messages",
            "Appended messages by result: stored, duplicate, spooled",
            self.messages.clone(),
        );
        registry.register("errors", "Failed operations by kind of error", self.errors.clone());
        registry.register("commit_messages", "Messages in one group commit", self.commit_messages.clone());
        registry.register("sync_seconds", "Time of one sync to disk", self.sync_seconds.clone());
        registry.register("damaged_records", "Damaged records found and not served", self.damaged.clone());
        let help = "Archived messages that are known to be lost: their segments are cut, damaged or gone";
        registry.register("lost_messages", help, self.lost_messages.clone());
        let help = "Damaged files that were set aside under another name";
        registry.register("damaged_files", help, self.damaged_files.clone());
        let help = "Damaged indexes that were made anew from their logs";
        registry.register("rebuilt_indexes", help, self.rebuilt_indexes.clone());
        registry.register("pruned_messages", "Messages removed by retention", self.pruned_messages.clone());
        let help = "Whether the disk is full, so that messages are refused: 0, or 1";
        registry.register("disk_full", help, self.disk_full.clone());
        registry.register("open_segments", "Segments that take messages", self.open_segments.clone());
        registry.register("sealed_segments", "Segments that are sealed", self.sealed_segments.clone());
        registry.register("engine_up", "Whether the engine answers: 1, or 0", self.spool.up.clone());
        self.spool.register(registry.sub_registry_with_prefix("spool"));
        let tandem = registry.sub_registry_with_prefix("tandem");
        tandem.register("up", "Whether the second engine answers: 1, or 0", self.tandem.spool.up.clone());
        tandem.register(
            "stopped",
            "Whether the second follows no more: 0, or 1",
            self.tandem.stopped.clone(),
        );
        self.tandem.spool.register(tandem);
    }
}
