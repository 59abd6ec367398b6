//! What listeners count.

use std::path::Path;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// Values of the label `result`.
pub(crate) const OK: &str = "ok";
pub(crate) const FAILED: &str = "failed";
pub(crate) const TIMEOUT: &str = "timeout";

/// What all listeners of a process count. Cloning shares the counts.
#[derive(Clone, Debug, Default)]
pub struct NetMetrics {
    connections: Family<ListenerLabel, Gauge>,
    idle: Family<ListenerLabel, Gauge>,
    idle_closed: Family<ListenerLabel, Counter>,
    refused: Family<ListenerLabel, Counter>,
    bad_headers: Family<ListenerLabel, Counter>,
    handshakes: Family<HandshakeLabels, Counter>,
    certificate_expiry: Family<FileLabel, Gauge>,
    certificate_reloads: Family<ResultLabel, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ListenerLabel {
    listener: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HandshakeLabels {
    listener: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FileLabel {
    file: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// What one listener counts.
#[derive(Clone, Debug)]
pub struct ListenerMetrics {
    pub(crate) listener: &'static str,
    pub(crate) connections: Gauge,
    pub(crate) idle: Gauge,
    pub(crate) idle_closed: Counter,
    pub(crate) refused: Counter,
    pub(crate) bad_headers: Counter,
    handshakes: Family<HandshakeLabels, Counter>,
}

impl NetMetrics {
    /// Registers the metrics in `registry` as `restante_net_...`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("restante_net");
        registry.register("connections", "Open connections by listener", self.connections.clone());
        let what = "Open connections that wait for a request, by listener";
        registry.register("idle_connections", what, self.idle.clone());
        let what = "Connections closed while they waited for a request, to admit new ones, by listener";
        registry.register("idle_connections_closed", what, self.idle_closed.clone());
        let what = "Connections refused because their address had as many as it may have, by listener";
        registry.register("connections_refused", what, self.refused.clone());
        let what = "Connections closed because a proxy sent no valid PROXY header, by listener";
        registry.register("proxy_headers_refused", what, self.bad_headers.clone());
        let what = "TLS handshakes by listener and result";
        registry.register("tls_handshakes", what, self.handshakes.clone());
        let what = "When the certificate in a file expires, in seconds since the epoch";
        registry.register("certificate_expiry_timestamp_seconds", what, self.certificate_expiry.clone());
        let what = "Certificates that were read again, by result";
        registry.register("certificate_reloads", what, self.certificate_reloads.clone());
    }

    pub(crate) fn certificate_expiry(&self, file: &Path) -> Gauge {
        for result in [OK, FAILED] {
            let _ = self.certificate_reloads.get_or_create(&ResultLabel { result }); // so that the first reload is an increase
        }
        self.certificate_expiry.get_or_create(&FileLabel { file: file.display().to_string() }).clone()
    }

    pub(crate) fn count_reload(&self, is_ok: bool) {
        let result = if is_ok { OK } else { FAILED };
        self.certificate_reloads.get_or_create(&ResultLabel { result }).inc();
    }

    /// The counts of a listener. Its name is the value of the label `listener`, and appears in its log lines.
    pub fn listener(&self, listener: &'static str) -> ListenerMetrics {
        let label = ListenerLabel { listener };
        ListenerMetrics {
            listener,
            connections: self.connections.get_or_create(&label).clone(),
            idle: self.idle.get_or_create(&label).clone(),
            idle_closed: self.idle_closed.get_or_create(&label).clone(),
            refused: self.refused.get_or_create(&label).clone(),
            bad_headers: self.bad_headers.get_or_create(&label).clone(),
            handshakes: self.handshakes.clone(),
        }
    }
}

impl ListenerMetrics {
    #[cfg(test)]
    pub(crate) fn handshakes(&self, result: &'static str) -> u64 {
        self.handshakes.get_or_create(&HandshakeLabels { listener: self.listener, result }).get()
    }

    pub(crate) fn count_handshake(&self, result: &'static str) {
        self.handshakes.get_or_create(&HandshakeLabels { listener: self.listener, result }).inc();
    }
}
