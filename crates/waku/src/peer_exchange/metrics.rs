use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// The metrics of peer exchange.
#[derive(Clone, Debug, Default)]
pub struct PeerExchangeMetrics {
    pub(crate) known: Gauge,
    pub(crate) sent: Counter,
    pub(crate) not_public: Counter,
    received: Family<ResultLabel, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// The result for a received record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordResult {
    /// There was no record of the peer.
    New,
    /// It is newer than the known record.
    Newer,
    /// It or a newer one was known.
    Known,
    /// It is malformed or its signature is invalid.
    Wrong,
    /// Its node is in another cluster, not a Waku node, or without an address, or it is our own.
    Useless,
}

impl RecordResult {
    /// The value of the label `result`.
    fn as_str(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Newer => "newer",
            Self::Known => "known",
            Self::Wrong => "wrong",
            Self::Useless => "useless",
        }
    }
}

impl PeerExchangeMetrics {
    pub(super) fn count_record(&self, result: RecordResult) {
        self.received.get_or_create(&ResultLabel { result: result.as_str() }).inc();
    }

    #[cfg(test)]
    pub(crate) fn count(&self, result: RecordResult) -> u64 {
        self.received.get_or_create(&ResultLabel { result: result.as_str() }).get()
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        let what = "Addresses from peer exchange that are not dialled, because they are not public";
        registry.register("peer_exchange_not_public", what, self.not_public.clone());
        let what = "Node records that are known";
        registry.register("peer_exchange_records", what, self.known.clone());
        let what = "Node records that were sent to peers";
        registry.register("peer_exchange_given", what, self.sent.clone());
        let what = "Node records received from peers, by result";
        registry.register("peer_exchange_heard", what, self.received.clone());
    }
}
