use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// What peer exchange counts.
#[derive(Clone, Debug, Default)]
pub struct PeerExchangeMetrics {
    pub(crate) known: Gauge,
    pub(crate) given: Counter,
    pub(crate) not_public: Counter,
    heard: Family<HeardLabels, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HeardLabels {
    result: &'static str,
}

/// What became of a record that was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// The peer was not known.
    New,
    /// It is newer than the one that was known.
    Newer,
    /// It was known, or a newer one.
    Known,
    /// It is not signed rightly, or malformed.
    Wrong,
    /// It is of another cluster, of no Waku node, of a node without an address, or our own.
    Useless,
}

impl Heard {
    /// As the value of the label `result`.
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
    pub(super) fn heard(&self, result: Heard) {
        self.heard.get_or_create(&HeardLabels { result: result.as_str() }).inc();
    }

    #[cfg(test)]
    pub(crate) fn count(&self, result: Heard) -> u64 {
        self.heard.get_or_create(&HeardLabels { result: result.as_str() }).get()
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        let what = "Addresses from peer exchange that are not dialled, because they are not public";
        registry.register("peer_exchange_not_public", what, self.not_public.clone());
        let what = "Node records that are known";
        registry.register("peer_exchange_records", what, self.known.clone());
        let what = "Node records that were given to peers";
        registry.register("peer_exchange_given", what, self.given.clone());
        let what = "Node records that peers told, by what became of them";
        registry.register("peer_exchange_heard", what, self.heard.clone());
    }
}
