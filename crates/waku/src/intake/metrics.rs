use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// Metrics of incoming messages.
#[derive(Clone, Debug, Default)]
pub struct IntakeMetrics {
    relayed: Family<ResultLabel, Counter>,
    pub(crate) unrelayed: Counter,
    pub(crate) handover_dropped: Counter,
    pub(crate) handover_failed: Counter,
    pub(crate) handover_messages: Gauge,
    pub(crate) handover_bytes: Gauge,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

impl ResultLabel {
    fn of(refused: Option<Refused>) -> Self {
        Self { result: refused.map_or("taken", Refused::as_str) }
    }
}

/// Why a relayed message does not go into the archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    TooOld,
    InFuture,
    NoTimestamp,
    TooLarge,
    NotServed,
    Malformed,
}

impl Refused {
    const ALL: [Self; 6] =
        [Self::TooOld, Self::InFuture, Self::NoTimestamp, Self::TooLarge, Self::NotServed, Self::Malformed];

    /// The value of the label `result`.
    fn as_str(self) -> &'static str {
        match self {
            Self::TooOld => "too_old",
            Self::InFuture => "in_future",
            Self::NoTimestamp => "no_timestamp",
            Self::TooLarge => "too_large",
            Self::NotServed => "not_served",
            Self::Malformed => "malformed",
        }
    }
}

impl IntakeMetrics {
    /// Counts a relayed message.
    pub(crate) fn relayed(&self, refused: Option<Refused>) {
        self.relayed.get_or_create(&ResultLabel::of(refused)).inc();
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        // All label values exist from the start, so that the first message of each is an increase.
        for refused in Refused::ALL.map(Some).into_iter().chain([None]) {
            let _ = self.relayed.get_or_create(&ResultLabel::of(refused));
        }
        let relayed = self.relayed.clone();
        registry.register("relay_messages", "Messages received by relay, by result", relayed);
        let unrelayed = self.unrelayed.clone();
        registry.register("relay_unsent", "Published messages that could not be relayed", unrelayed);
        let dropped = self.handover_dropped.clone();
        let what = "Relayed messages that were dropped because the queue for the archive was full";
        registry.register("handover_dropped", what, dropped);
        let failed = self.handover_failed.clone();
        registry.register("handover_failed", "Relayed messages that the archive refused permanently", failed);
        let messages = self.handover_messages.clone();
        registry.register("handover_messages", "Relayed messages that wait for the archive", messages);
        let bytes = self.handover_bytes.clone();
        registry.register("handover_bytes", "Bytes of relayed messages that wait for the archive", bytes);
    }
}
