//! Peers to which the node always keeps a connection.

use std::{collections::HashMap, time::Duration};

use libp2p::{Multiaddr, PeerId};
use tokio::time::Instant;

use super::PeerAddress;

/// The delay before a peer is dialled again: from the first to the last, doubling.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LAST: Duration = Duration::from_secs(60);
/// A shorter connection counts as a failed dial: one of the two may have refused the other.
const STEADY: Duration = Duration::from_secs(30);

/// The static peers and when each is to be dialled.
#[derive(Debug, Default)]
pub(crate) struct StaticPeers {
    by_id: HashMap<PeerId, Static>,
}

#[derive(Debug)]
struct Static {
    addresses: Vec<Multiaddr>,
    /// The index of the address to dial next.
    next: usize,
    failures: u32,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Connected(Instant),
    Dialling,
    /// To be dialled at this time; at once for `None`.
    Waiting(Option<Instant>),
}

impl StaticPeers {
    /// Several addresses of one peer are tried one after the other.
    pub(crate) fn new(addresses: &[PeerAddress]) -> Self {
        let mut static_peers = Self::default();
        for PeerAddress { address, peer } in addresses {
            let fresh =
                || Static { addresses: Vec::new(), next: 0, failures: 0, state: State::Waiting(None) };
            static_peers.by_id.entry(*peer).or_insert_with(fresh).addresses.push(address.clone());
        }
        static_peers
    }

    pub(crate) fn contains(&self, peer: PeerId) -> bool {
        self.by_id.contains_key(&peer)
    }

    /// Returns the peers to dial now, and marks them as being dialled.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<(PeerId, Multiaddr)> {
        let mut due = Vec::new();
        for (peer, one) in &mut self.by_id {
            let is_due = matches!(one.state, State::Waiting(at) if at.is_none_or(|at| at <= now));
            let address = one.addresses.get(one.next % one.addresses.len().max(1));
            if let Some(address) = address.filter(|_| is_due) {
                due.push((*peer, address.clone()));
                one.next = one.next.wrapping_add(1);
                one.state = State::Dialling;
            }
        }
        due
    }

    pub(crate) fn connected(&mut self, peer: PeerId, now: Instant) {
        if let Some(one) = self.by_id.get_mut(&peer) {
            one.state = State::Connected(now);
        }
    }

    /// A connection to a peer ended: the peer is dialled again, soon if the connection was a lasting one. Returns whether to
    /// log it: it was a lasting connection, or the first.
    pub(crate) fn gone(&mut self, peer: PeerId, now: Instant) -> bool {
        let Some(one) = self.by_id.get_mut(&peer) else { return false };
        let was_steady = matches!(one.state, State::Connected(since) if now.duration_since(since) >= STEADY);
        if was_steady {
            one.failures = 0;
        }
        self.failed(peer, now)
    }

    /// A dial failed: the next is later. Returns whether to log it: it is the first failure since a lasting connection.
    pub(crate) fn failed(&mut self, peer: PeerId, now: Instant) -> bool {
        let Some(one) = self.by_id.get_mut(&peer) else { return false };
        let pause = RETRY_FIRST.saturating_mul(1 << one.failures.min(10)).min(RETRY_LAST);
        one.state = State::Waiting(Some(now + pause));
        one.failures = one.failures.saturating_add(1);
        one.failures == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16, peer: PeerId) -> Multiaddr {
        format!("/ip4/127.0.0.1/tcp/{port}/p2p/{peer}").parse().unwrap()
    }

    #[test]
    fn an_unreachable_peer_is_dialled_with_growing_delays() {
        let peer = PeerId::random();
        let mut static_peers = StaticPeers::new(&[1, 2].map(|port| address(port, peer).try_into().unwrap()));
        let mut now = Instant::now();
        assert_eq!(static_peers.due(now), [(peer, address(1, peer))]);
        assert_eq!(static_peers.due(now), [], "it is being dialled");
        assert!(static_peers.failed(peer, now), "the first failure is logged");
        assert_eq!(static_peers.due(now), []);
        let mut pauses = Vec::new();
        for _ in 0..8 {
            let begun = now;
            while static_peers.due(now).is_empty() {
                now += Duration::from_millis(500);
            }
            pauses.push((now - begun).as_secs());
            assert!(!static_peers.failed(peer, now), "further failures are not logged");
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        static_peers.connected(peer, now);
        assert_eq!(static_peers.due(now + RETRY_LAST * 9), []);
        static_peers.gone(peer, now + RETRY_FIRST);
        assert_eq!(
            static_peers.due(now + RETRY_LAST),
            [],
            "a connection that closed at once counts as a failure"
        );
        now += RETRY_LAST * 2;
        assert_eq!(static_peers.due(now).len(), 1);
        static_peers.connected(peer, now);
        now += STEADY;
        static_peers.gone(peer, now);
        assert_eq!(
            static_peers.due(now + RETRY_FIRST).len(),
            1,
            "after a lasting connection the peer is dialled again soon"
        );
    }

    #[test]
    fn other_peers_are_ignored() {
        let mut static_peers = StaticPeers::new(&[]);
        let stranger = PeerId::random();
        static_peers.connected(stranger, Instant::now());
        static_peers.gone(stranger, Instant::now());
        assert!(!static_peers.failed(stranger, Instant::now()) && !static_peers.contains(stranger));
        assert_eq!(static_peers.due(Instant::now()), []);
    }
}
