use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use super::Totals;

/// How a message leaves the quarantine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Leaving {
    /// An operator released it.
    Released,
    /// An operator dropped it.
    Dropped,
    /// Its time in the quarantine was over.
    Expired,
    /// There was more than the settings allow.
    Displaced,
}

impl Leaving {
    const ALL: [Self; 4] = [Self::Released, Self::Dropped, Self::Expired, Self::Displaced];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Dropped => "dropped",
            Self::Expired => "expired",
            Self::Displaced => "displaced",
        }
    }
}

/// Metrics of the quarantine. Clones share the counts.
#[derive(Clone, Debug)]
pub struct QuarantineMetrics {
    messages: Gauge,
    bytes: Gauge,
    kept: Counter,
    left: Family<HowLabel, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HowLabel {
    how: &'static str,
}

impl Default for QuarantineMetrics {
    fn default() -> Self {
        let left = Family::default();
        for how in Leaving::ALL {
            // Exported as 0, so that the first one is an increase.
            drop(left.get_or_create(&HowLabel { how: how.as_str() }));
        }
        Self { messages: Gauge::default(), bytes: Gauge::default(), kept: Counter::default(), left }
    }
}

impl QuarantineMetrics {
    /// Makes the metrics visible in `registry` as `restante_quarantine_...`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("restante_quarantine");
        registry.register("messages", "Messages in quarantine", self.messages.clone());
        registry.register("bytes", "Bytes of the messages in quarantine", self.bytes.clone());
        registry.register("kept", "Messages that were put into quarantine", self.kept.clone());
        registry.register("left", "Messages that left the quarantine, by how", self.left.clone());
    }

    pub(super) fn count_kept(&self, messages: u64) {
        self.kept.inc_by(messages);
    }

    pub(super) fn count_left(&self, how: Leaving, messages: u64) {
        self.left.get_or_create(&HowLabel { how: how.as_str() }).inc_by(messages);
    }

    pub(super) fn show(&self, totals: &Totals) {
        self.messages.set(i64::try_from(totals.messages).unwrap_or(i64::MAX));
        self.bytes.set(i64::try_from(totals.bytes).unwrap_or(i64::MAX));
    }
}
