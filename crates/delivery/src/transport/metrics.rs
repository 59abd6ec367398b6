//! What is counted of sending to other servers.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use restante_mail::queue::Reply;

/// Counts of connections to other servers and of what became of recipients. Cloning shares them.
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

/// What became of a recipient, or of an attempt to connect.
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
    /// It is encrypted, and nobody knows by whom.
    Unverified,
    /// It is encrypted by a server that was verified.
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
    /// Registers them, with all values of their labels.
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
