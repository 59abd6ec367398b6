//! Detects dead connections and peers that accept no messages.

use std::{collections::HashMap, time::Duration};

use libp2p::{PeerId, swarm::ConnectionId};
use tokio::time::Instant;

/// A connection is dead after this many unanswered pings in a row. Without pings, a machine that lost power would be noticed only
/// by TCP's time-out, after a quarter of an hour.
const LATE_PINGS_MAX: u32 = 2;
/// A peer is stuck when its queue was full in this many of relay's heartbeats in a row.
const STUCK_BEATS_MAX: u32 = 10;
/// Heartbeats that are further apart are not in a row.
const BEATS_APART: Duration = Duration::from_secs(3);

/// Unanswered pings and full queues of connected peers.
#[derive(Debug, Default)]
pub(crate) struct Liveness {
    late_pings: HashMap<ConnectionId, u32>,
    stuck: HashMap<PeerId, (u32, Instant)>,
}

impl Liveness {
    /// Records a ping; returns whether the connection is dead.
    pub(crate) fn is_dead(&mut self, id: ConnectionId, is_late: bool) -> bool {
        if !is_late {
            self.late_pings.remove(&id);
            return false;
        }
        let late = self.late_pings.entry(id).or_default();
        *late += 1;
        *late >= LATE_PINGS_MAX
    }

    /// Records that a peer's queue was full; returns whether the peer is stuck.
    pub(crate) fn is_stuck(&mut self, peer: PeerId, now: Instant) -> bool {
        let (beats, last) = self.stuck.entry(peer).or_insert((0, now));
        let is_in_a_row = now.duration_since(*last) <= BEATS_APART;
        *beats = if is_in_a_row { *beats + 1 } else { 1 };
        *last = now;
        *beats >= STUCK_BEATS_MAX
    }

    /// Forgets a connection that is closed, and its peer.
    pub(crate) fn forget(&mut self, peer: PeerId, id: ConnectionId) {
        self.late_pings.remove(&id);
        self.stuck.remove(&peer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_pings_count_in_a_row() {
        let mut liveness = Liveness::default();
        let (one, other) = (ConnectionId::new_unchecked(1), ConnectionId::new_unchecked(2));
        assert!(!liveness.is_dead(one, true));
        assert!(!liveness.is_dead(other, true), "each connection by itself");
        assert!(!liveness.is_dead(one, false));
        assert!(!liveness.is_dead(one, true), "an answer resets the count");
        assert!(liveness.is_dead(one, true));
        liveness.forget(PeerId::random(), other);
        assert!(!liveness.is_dead(other, true));
    }

    #[test]
    fn a_peer_is_stuck_after_many_heartbeats_in_a_row() {
        let mut liveness = Liveness::default();
        let peer = PeerId::random();
        let mut now = Instant::now();
        for _ in 0..50 {
            assert!(!liveness.is_stuck(peer, now), "not in a row");
            now += BEATS_APART * 2;
        }
        let beats = (1..).find(|_| {
            now += Duration::from_secs(1);
            liveness.is_stuck(peer, now)
        });
        assert_eq!(beats, Some(STUCK_BEATS_MAX as usize));
    }
}
