//! How much one address may do.

use std::net::SocketAddr;

use parking_lot::Mutex;
use restante_net::{Buckets, Source};
use tokio::time::Instant;

use crate::{SmtpConfig, SmtpMetrics, config::per_minute, metrics::Limit};

/// The rates of all addresses. Loopback is not limited: it may stand for any number of clients.
#[derive(Debug)]
pub(crate) struct AddressRates {
    connects: Mutex<Buckets<Source>>,
    messages: Mutex<Buckets<Source>>,
    unknown: Mutex<Buckets<Source>>,
    metrics: SmtpMetrics,
}

impl AddressRates {
    pub(crate) fn new(config: &SmtpConfig, metrics: SmtpMetrics) -> Self {
        let buckets = |rate| Mutex::new(Buckets::new(per_minute(rate)));
        Self {
            connects: buckets(config.connects_per_minute_max),
            messages: buckets(config.messages_per_minute_max),
            unknown: buckets(config.unknown_per_minute_max),
            metrics,
        }
    }

    /// Whether an address may connect once more.
    pub(crate) fn admits_connection(&self, peer: SocketAddr) -> bool {
        self.take(&self.connects, peer, Limit::Connects)
    }

    /// Whether an address may send one more message.
    pub(crate) fn admits_message(&self, peer: SocketAddr) -> bool {
        self.take(&self.messages, peer, Limit::Messages)
    }

    /// Whether an address may name one more unknown recipient.
    pub(crate) fn admits_unknown(&self, peer: SocketAddr) -> bool {
        self.take(&self.unknown, peer, Limit::Unknown)
    }

    fn take(&self, buckets: &Mutex<Buckets<Source>>, peer: SocketAddr, limit: Limit) -> bool {
        let is_admitted = Source::of(peer).is_none_or(|source| buckets.lock().take(source, Instant::now()));
        if !is_admitted {
            self.metrics.count_limit(limit);
        }
        is_admitted
    }
}
