//! Metrics of sending to other servers.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use restante_mail::queue::Reply;

/// Metrics of connections to other servers and of the outcomes for recipients. Clones share the counts.
#[derive(Clone, Debug, Default)]
pub struct RemoteMetrics {
    connections: Family<ResultLabel, Counter>,
    recipients: Family<ResultLabel, Counter>,
    tls: Family<TlsLabel, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TlsLabel {
    tls: &'static str,
}

/// The outcome for a recipient, or of an attempt to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageResult {
    Sent,
    Deferred,
    Refused,
}

/// How a connection is protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protection {
    /// It is not.
    None,
    /// It is encrypted, but the server was not verified.
    Unverified,
    /// It is encrypted, and the server was verified.
    Verified,
}

impl MessageResult {
    pub(super) fn of(reply: &Reply) -> Self {
        match reply {
            reply if reply.is_success() => Self::Sent,
            reply if reply.is_permanent() => Self::Refused,
            _ => Self::Deferred,
        }
    }
}

impl RemoteMetrics {
    /// Registers the metrics, with all values of their labels.
    pub fn register(&self, registry: &mut Registry) {
        let metrics = self;
        for result in ["sent", "deferred", "refused"] {
            let _ = metrics.recipients.get_or_create(&ResultLabel { result });
        }
        for result in ["open", "deferred", "refused"] {
            let _ = metrics.connections.get_or_create(&ResultLabel { result });
        }
        for tls in ["none", "unverified", "verified"] {
            let _ = metrics.tls.get_or_create(&TlsLabel { tls });
        }
        registry.register(
            "restante_delivery_remote_connects",
            "Attempts to get a connection to a server for a domain, by what became of them",
            metrics.connections.clone(),
        );
        registry.register(
            "restante_delivery_remote_recipients",
            "Recipients transmitted to other servers, by what became of them",
            metrics.recipients.clone(),
        );
        registry.register(
            "restante_delivery_remote_tls",
            "Connections to other servers, by how they are protected",
            metrics.tls.clone(),
        );
    }

    pub(super) fn count_recipient(&self, result: MessageResult) {
        let result = match result {
            MessageResult::Sent => "sent",
            MessageResult::Deferred => "deferred",
            MessageResult::Refused => "refused",
        };
        self.recipients.get_or_create(&ResultLabel { result }).inc();
    }

    pub(super) fn count_connect(&self, refused: Option<&Reply>) {
        let result = match refused {
            None => "open",
            Some(reply) if reply.is_permanent() => "refused",
            Some(_) => "deferred",
        };
        self.connections.get_or_create(&ResultLabel { result }).inc();
    }

    pub(super) fn count_tls(&self, protection: Protection) {
        let tls = match protection {
            Protection::None => "none",
            Protection::Unverified => "unverified",
            Protection::Verified => "verified",
        };
        self.tls.get_or_create(&TlsLabel { tls }).inc();
    }
}
