//! The metrics of live streams.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use restante_sessions::Ended;

use super::feed::End;

/// The metrics of live streams.
#[derive(Clone, Debug, Default)]
pub(crate) struct LiveMetrics {
    streams: Family<TransportLabel, Gauge>,
    messages: Family<SourceLabel, Counter>,
    ended: Family<ReasonLabel, Counter>,
}

/// The transport of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Sse,
    WebSocket,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TransportLabel {
    transport: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SourceLabel {
    source: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

impl Transport {
    const ALL: [Self; 2] = [Self::Sse, Self::WebSocket];

    fn label(self) -> TransportLabel {
        let transport = match self {
            Self::Sse => "sse",
            Self::WebSocket => "websocket",
        };
        TransportLabel { transport }
    }
}

impl LiveMetrics {
    /// Registers the metrics in `registry`, that of the REST door.
    pub(crate) fn register(&self, registry: &mut Registry) {
        // All label values exist from the start, so that the first of each is an increase.
        for transport in Transport::ALL {
            let _ = self.streams.get_or_create(&transport.label());
        }
        let _ = (self.archived(), self.arrived());
        for end in Ended::ALL.map(End::Session).into_iter().chain([End::Unavailable]) {
            let _ = self.ended.get_or_create(&ReasonLabel { reason: end.as_str() });
        }
        registry.register("live_streams", "Open live streams, by how they are read", self.streams.clone());
        let what = "Messages that live streams were given, by where they came from";
        registry.register("live_messages", what, self.messages.clone());
        registry.register("live_ended", "Live streams that have ended, by why", self.ended.clone());
    }

    pub(super) fn streams(&self, transport: Transport) -> Gauge {
        self.streams.get_or_create(&transport.label()).clone()
    }

    /// Counts messages from the archive.
    pub(super) fn archived(&self) -> Counter {
        self.messages.get_or_create(&SourceLabel { source: "archive" }).clone()
    }

    /// Counts messages as they arrive.
    pub(super) fn arrived(&self) -> Counter {
        self.messages.get_or_create(&SourceLabel { source: "live" }).clone()
    }

    pub(super) fn ended(&self, why: End) {
        self.ended.get_or_create(&ReasonLabel { reason: why.as_str() }).inc();
    }
}
