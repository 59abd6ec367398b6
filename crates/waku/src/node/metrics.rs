use std::time::Duration;

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
use restante_muxers::MuxerMetrics;

/// The metrics of a node.
#[derive(Clone, Debug)]
pub struct NodeMetrics {
    pub(crate) connections: Gauge,
    pub(crate) peers: Gauge,
    pub(crate) relay_published: Counter,
    pub(crate) relay_slow: Family<KindLabel, Counter>,
    pub(crate) mesh_peers: Gauge,
    pub(crate) refused_connections: Counter,
    evicted_connections: Family<LimitLabel, Counter>,
    pub(crate) handshakes: Gauge,
    evicted_handshakes: Family<LimitLabel, Counter>,
    pub(crate) own_peer_id: Counter,
    pub(crate) refused_streams: Counter,
    pub(crate) muxers: MuxerMetrics,
    requests: Family<RequestLabels, Counter>,
    seconds: Family<ServiceLabel, Histogram, fn() -> Histogram>,
    answer_bytes: Family<ServiceLabel, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    service: &'static str,
    status: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ServiceLabel {
    service: &'static str,
}

/// Which messages did not reach a slow peer: their queue was full, or they waited for too long.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct KindLabel {
    /// `data` or `control`.
    pub(crate) kind: &'static str,
}

/// Which limit was reached: of one connection, of one address, or of `all`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LimitLabel {
    limit: &'static str,
}

impl Default for NodeMetrics {
    fn default() -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(exponential_buckets(50e-6, 2.0, 18)); // 50 us to 6.5 s
        Self {
            connections: Gauge::default(),
            peers: Gauge::default(),
            relay_published: Counter::default(),
            relay_slow: Family::default(),
            mesh_peers: Gauge::default(),
            refused_connections: Counter::default(),
            evicted_connections: Family::default(),
            handshakes: Gauge::default(),
            evicted_handshakes: Family::default(),
            own_peer_id: Counter::default(),
            refused_streams: Counter::default(),
            muxers: MuxerMetrics::default(),
            requests: Family::default(),
            seconds: Family::new_with_constructor(histogram),
            answer_bytes: Family::default(),
        }
    }
}

/// The value of the label `status` for an HTTP status.
fn class_of(status: u32) -> &'static str {
    match status {
        200..=299 => "2xx",
        300..=399 => "3xx",
        429 => "429",
        400..=499 => "4xx",
        _ => "5xx",
    }
}

impl NodeMetrics {
    /// Counts an answered request.
    pub(crate) fn answered(&self, service: &'static str, status: u32, bytes: usize, took: Duration) {
        self.count(service, class_of(status));
        self.seconds.get_or_create(&ServiceLabel { service }).observe(took.as_secs_f64());
        self.answer_bytes.get_or_create(&ServiceLabel { service }).inc_by(bytes as u64);
    }

    /// Counts a request that failed: it was malformed or too slow, or its answer was not read.
    pub(crate) fn broken(&self, service: &'static str) {
        self.count(service, "broken");
    }

    /// Counts a connection that was closed for a new one; `limit` is `address` or `all`.
    pub(crate) fn evicted_connection(&self, limit: &'static str) {
        self.evicted_connections.get_or_create(&LimitLabel { limit }).inc();
    }

    /// Counts a handshake that was ended for a new one; `limit` is `address` or `all`.
    pub(crate) fn evicted_handshake(&self, limit: &'static str) {
        self.evicted_handshakes.get_or_create(&LimitLabel { limit }).inc();
    }

    fn count(&self, service: &'static str, status: &'static str) {
        self.requests.get_or_create(&RequestLabels { service, status }).inc();
    }

    pub(crate) fn register(&self, registry: &mut Registry) {
        registry.register("connections", "Open connections", self.connections.clone());
        registry.register("peers", "Connected peers", self.peers.clone());
        let what = "Messages of this node that were relayed";
        registry.register("relay_published", what, self.relay_published.clone());
        // Both label values exist from the start, so that the first of each is an increase.
        for kind in ["data", "control"] {
            let _ = self.relay_slow.get_or_create(&KindLabel { kind });
        }
        let what = "Relayed messages that did not reach a slow peer";
        registry.register("relay_dropped", what, self.relay_slow.clone());
        let what = "Peers in the relay's meshes, over all pubsub topics";
        registry.register("relay_mesh_peers", what, self.mesh_peers.clone());
        let what = "Connections that were refused by a limit";
        registry.register("connections_refused", what, self.refused_connections.clone());
        for limit in ["address", "all"] {
            let _ = self.evicted_connections.get_or_create(&LimitLabel { limit });
            let _ = self.evicted_handshakes.get_or_create(&LimitLabel { limit });
        }
        let what = "Idle connections that were closed for new ones, by limit";
        registry.register("connections_evicted", what, self.evicted_connections.clone());
        let what = "Incoming connections whose handshake is not done";
        registry.register("handshakes", what, self.handshakes.clone());
        let what = "Handshakes that were ended for new ones, by limit";
        registry.register("handshakes_evicted", what, self.evicted_handshakes.clone());
        let what = "Connections with a peer that has this node's own peer id";
        registry.register("own_peer_id_met", what, self.own_peer_id.clone());
        let what = "Streams that were refused by a limit";
        registry.register("streams_refused", what, self.refused_streams.clone());
        self.muxers.register(registry);
        let what = "Requests of peers by service and class of status";
        registry.register("requests", what, self.requests.clone());
        let what = "Time from a request's last byte until its answer is written";
        registry.register("request_seconds", what, self.seconds.clone());
        registry.register("answer_bytes", "Bytes of answers by service", self.answer_bytes.clone());
    }
}
