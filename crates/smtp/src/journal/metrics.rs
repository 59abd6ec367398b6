use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// The metrics of the journal. Cloning shares the counts.
#[derive(Clone, Debug)]
pub struct JournalMetrics {
    entries: Family<ResultLabel, Counter>,
    /// Entries that were written.
    pub(super) noted: Counter,
    /// Entries that were lost: they came faster than they were written, or the disk failed.
    pub(super) dropped: Counter,
    /// Entries that were not noted: the address had too many.
    pub(super) limited: Counter,
    pub(super) bytes: Gauge,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

impl Default for JournalMetrics {
    fn default() -> Self {
        let entries: Family<ResultLabel, Counter> = Family::default();
        let counter = |result| entries.get_or_create_owned(&ResultLabel { result });
        let (noted, dropped, limited) = (counter("noted"), counter("dropped"), counter("limited"));
        Self { noted, dropped, limited, bytes: Gauge::default(), entries }
    }
}

impl JournalMetrics {
    /// Registers the metrics in `registry` as `restante_smtp_journal_...`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("restante_smtp_journal");
        let what = "Entries of the journal of deliveries, by result";
        registry.register("entries", what, self.entries.clone());
        registry.register("bytes", "Bytes of the journal of deliveries", self.bytes.clone());
    }
}
