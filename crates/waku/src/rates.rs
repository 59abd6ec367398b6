//! Rate limits: a token bucket per service and peer. Each request takes a token, and tokens are refilled evenly.

mod parse;

use libp2p::PeerId;
use parking_lot::Mutex;
use restante_core::settings;
use restante_net::{Buckets, Rate};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

pub use parse::{ParseEntryError, RateEntry, RatedService};

/// The request rate of each peer for each service; `None` is unlimited.
///
/// nwaku's rates differ in one respect: they are shared by all peers, and each peer may use three quarters. Here every peer
/// has its own rate, and [`crate::node::NodeLimits::requests_max`] bounds the requests of all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateLimits {
    /// Store queries.
    #[serde(with = "settings::text_or_empty")]
    pub store: Option<Rate>,
    /// Filter subscriptions and pings.
    #[serde(with = "settings::text_or_empty")]
    pub filter: Option<Rate>,
    /// Lightpush requests of both versions.
    #[serde(with = "settings::text_or_empty")]
    pub lightpush: Option<Rate>,
    /// Peer exchange requests.
    #[serde(with = "settings::text_or_empty")]
    pub peer_exchange: Option<Rate>,
}

impl RateLimits {
    /// Builds the rates from the values of nwaku's `--rate-limit`: an entry with a service sets that service's rate, one without
    /// sets all others; the last of two for the same service counts.
    pub fn from_entries(entries: &[RateEntry]) -> Self {
        let mut limits = Self::default();
        let (named, for_all): (Vec<RateEntry>, Vec<RateEntry>) =
            entries.iter().partition(|entry| entry.service.is_some());
        for entry in for_all.into_iter().chain(named) {
            limits.set(entry);
        }
        limits
    }

    fn set(&mut self, entry: RateEntry) {
        match entry.service {
            None => *self = Self::all(entry.rate),
            Some(RatedService::Store) => self.store = entry.rate,
            Some(RatedService::Filter) => self.filter = entry.rate,
            Some(RatedService::Lightpush) => self.lightpush = entry.rate,
            Some(RatedService::PeerExchange) => self.peer_exchange = entry.rate,
        }
    }

    fn all(rate: Option<Rate>) -> Self {
        Self { store: rate, filter: rate, lightpush: rate, peer_exchange: rate }
    }
}

/// Decides whether a request is answered.
#[derive(Debug, Default)]
pub struct Limiter {
    store: Option<Mutex<Buckets<PeerId>>>,
    filter: Option<Mutex<Buckets<PeerId>>>,
    lightpush: Option<Mutex<Buckets<PeerId>>>,
    peer_exchange: Option<Mutex<Buckets<PeerId>>>,
}

impl Limiter {
    /// Creates a limiter.
    pub fn new(limits: RateLimits) -> Self {
        let buckets = |rate: Option<Rate>| rate.map(|rate| Mutex::new(Buckets::new(rate)));
        Self {
            store: buckets(limits.store),
            filter: buckets(limits.filter),
            lightpush: buckets(limits.lightpush),
            peer_exchange: buckets(limits.peer_exchange),
        }
    }

    /// Takes a token for a request of a peer to a service, given by [`crate::service::Service::name`]. Returns whether the
    /// request is to be answered.
    pub fn admits(&self, service: &'static str, peer: PeerId) -> bool {
        self.admits_at(service, peer, Instant::now())
    }

    fn admits_at(&self, service: &'static str, peer: PeerId, now: Instant) -> bool {
        let buckets = match service {
            "store" => &self.store,
            "filter" => &self.filter,
            "lightpush" => &self.lightpush,
            "peer_exchange" => &self.peer_exchange,
            _ => return true, // metadata: peers disconnect from nodes that don't answer it
        };
        buckets.as_ref().is_none_or(|buckets| buckets.lock().take(peer, now))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const TWO_A_SECOND: Rate = Rate { requests: 2, period: Duration::from_secs(1) };

    #[test]
    fn each_service_and_each_peer_has_its_own_tokens() {
        let limits =
            RateLimits { store: Some(TWO_A_SECOND), filter: Some(TWO_A_SECOND), ..RateLimits::default() };
        let limiter = Limiter::new(limits);
        let (a, b) = (PeerId::random(), PeerId::random());
        let now = Instant::now();
        let admitted = |service, peer| (0..9).filter(|_| limiter.admits_at(service, peer, now)).count();
        assert_eq!([admitted("store", a), admitted("store", a), admitted("store", b)], [2, 0, 2]);
        assert_eq!([admitted("filter", a), admitted("lightpush", a), admitted("metadata", a)], [2, 9, 9]);
    }

    #[test]
    fn entries_are_combined_as_in_nwaku() {
        let entries = ["store:2/1s", "100/1s", "px:0/1s"].map(|text| text.parse().unwrap());
        let hundred = Some(Rate { requests: 100, period: Duration::from_secs(1) });
        let expected = RateLimits {
            store: Some(TWO_A_SECOND),
            filter: hundred,
            lightpush: hundred,
            peer_exchange: None,
        };
        assert_eq!(RateLimits::from_entries(&entries), expected);
        assert_eq!(RateLimits::from_entries(&[]), RateLimits::default());
    }
}
