//! How much one address and one network may do.

use std::{net::SocketAddr, num::NonZeroU32};

use parking_lot::Mutex;
use restante_net::{Buckets, Source};
use tokio::time::Instant;

use crate::{SmtpConfig, SmtpMetrics, config::per_minute, metrics::Limit};

/// The rates of all addresses and networks. Loopback is not limited: it may be the address of any number of clients.
#[derive(Debug)]
pub(crate) struct AddressRates {
    connects: Rates,
    messages: Rates,
    unknown: Rates,
    metrics: SmtpMetrics,
}

/// The rates of one kind, for each address and each network. Their memory is bounded, however many there are.
#[derive(Debug)]
struct Rates {
    addresses: Mutex<Buckets<Source>>,
    networks: Option<Mutex<Buckets<Source>>>,
}

impl Rates {
    /// `address_max` per minute for an address, and `network_factor` times as many for its network.
    fn new(address_max: NonZeroU32, network_factor: u32) -> Self {
        let networks = NonZeroU32::new(network_factor).map(|factor| {
            let rate = per_minute(address_max.saturating_mul(factor));
            Mutex::new(Buckets::new(rate))
        });
        Self { addresses: Mutex::new(Buckets::new(per_minute(address_max))), networks }
    }

    fn take(&self, source: Source, now: Instant) -> bool {
        // What is refused to an address does not count against its network.
        self.addresses.lock().take(source, now)
            && self.networks.as_ref().is_none_or(|networks| networks.lock().take(source.network(), now))
    }
}

impl AddressRates {
    pub(crate) fn new(config: &SmtpConfig, metrics: SmtpMetrics) -> Self {
        let rates = |address_max| Rates::new(address_max, config.network_factor);
        Self {
            connects: rates(config.connects_per_minute_max),
            messages: rates(config.messages_per_minute_max),
            unknown: rates(config.unknown_per_minute_max),
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

    fn take(&self, rates: &Rates, peer: SocketAddr, limit: Limit) -> bool {
        let is_admitted = Source::of(peer).is_none_or(|source| rates.take(source, Instant::now()));
        if !is_admitted {
            self.metrics.count_limit(limit);
        }
        is_admitted
    }
}
