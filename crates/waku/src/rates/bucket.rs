//! The token buckets of one service.

use std::{collections::HashMap, mem, time::Duration};

use libp2p::PeerId;
use tokio::time::Instant;

use super::Rate;

/// Peers in one generation. Two generations are stored: about 1.5 MB per service, for several times the connected peers.
const GENERATION_PEERS_MAX: usize = 4_096;

/// A bucket per peer, in two generations: those used since the last change of generations, and those used before it.
///
/// A bucket that is not used for a whole period is full again, and a full bucket need not be stored. So generations
/// change once a period, and the old one is dropped as a whole: each request costs the same, however many peers there
/// are. An attacker with ever new peer ids makes them change earlier: then the least recently used buckets are refilled
/// early, and memory does not grow.
#[derive(Debug)]
pub(super) struct Buckets {
    rate: Rate,
    young: HashMap<PeerId, Bucket>,
    old: HashMap<PeerId, Bucket>,
    young_since: Option<Instant>,
}

/// The tokens that were used and not refilled yet.
///
/// They are counted in shares: a token is as many shares as its period has nanoseconds, and in each nanosecond as many
/// shares are refilled as there are tokens in a period. So nothing is ever rounded.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    used: u128,
    at: Instant,
}

impl Bucket {
    fn used_at(self, rate: Rate, now: Instant) -> u128 {
        let elapsed = now.saturating_duration_since(self.at).as_nanos();
        self.used.saturating_sub(elapsed.saturating_mul(u128::from(rate.requests)))
    }
}

impl Buckets {
    pub(super) fn new(rate: Rate) -> Self {
        Self { rate, young: HashMap::new(), old: HashMap::new(), young_since: None }
    }

    /// Takes a token of a peer; returns false when it has none.
    pub(super) fn take(&mut self, peer: PeerId, now: Instant) -> bool {
        self.change_generations(now);
        let bucket = match self.young.get(&peer) {
            Some(bucket) => Some(*bucket),
            None => self.old.remove(&peer),
        };
        // Requests of several threads may arrive in another order than that of their timestamps.
        let now = bucket.map_or(now, |bucket| bucket.at.max(now));
        let used = bucket.map_or(0, |bucket| bucket.used_at(self.rate, now));
        let token = self.rate.period.as_nanos();
        let is_admitted = used + token <= token * u128::from(self.rate.requests);
        let used = if is_admitted { used + token } else { used };
        self.young.insert(peer, Bucket { used, at: now });
        is_admitted
    }

    fn change_generations(&mut self, now: Instant) {
        let since = *self.young_since.get_or_insert(now);
        let is_over = now.saturating_duration_since(since) >= self.rate.period.max(Duration::from_nanos(1));
        if is_over || self.young.len() >= GENERATION_PEERS_MAX {
            self.old = mem::take(&mut self.young);
            self.young_since = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(requests: u32, period: Duration) -> Rate {
        Rate { requests, period }
    }

    #[test]
    fn tokens_are_refilled_evenly_and_no_faster() {
        let period = Duration::from_secs(3);
        let mut buckets = Buckets::new(rate(3, period));
        let peer = PeerId::random();
        let start = Instant::now();
        let mut admitted_at = Vec::new();
        for tenth in 0..100_u64 {
            if buckets.take(peer, start + Duration::from_millis(tenth * 100)) {
                admitted_at.push(tenth);
            }
        }
        assert_eq!(admitted_at, [0, 1, 2, 10, 20, 30, 40, 50, 60, 70, 80, 90]);
    }

    #[test]
    fn an_idle_peer_has_all_of_its_tokens_and_not_more() {
        let mut buckets = Buckets::new(rate(7, Duration::from_millis(10)));
        let peer = PeerId::random();
        let start = Instant::now();
        for idle_ms in [0, 10, 1_000, 1_000_000] {
            let now = start + Duration::from_millis(idle_ms);
            assert_eq!((0..20).filter(|_| buckets.take(peer, now)).count(), 7, "after {idle_ms} ms");
        }
    }

    /// Numbers that don't divide each other neither add nor lose a token.
    #[test]
    fn odd_rates_are_exact_over_a_long_time() {
        let period = Duration::from_secs(1);
        let mut buckets = Buckets::new(rate(300_007, period));
        let peer = PeerId::random();
        let start = Instant::now();
        let at_once = (0..400_000).filter(|_| buckets.take(peer, start)).count();
        assert_eq!(at_once, 300_007);
        let mut later = 0;
        for ms in 1..=2_000 {
            let now = start + Duration::from_millis(ms);
            later += (0..400).filter(|_| buckets.take(peer, now)).count();
        }
        assert_eq!(later, 600_014);
    }

    #[test]
    fn the_bucket_of_a_busy_peer_survives_a_change_of_generations() {
        let period = Duration::from_secs(10);
        let mut buckets = Buckets::new(rate(1, period));
        let peer = PeerId::random();
        let start = Instant::now();
        let times = (0..=40).map(|second| start + Duration::from_secs(second));
        assert_eq!(times.filter(|now| buckets.take(peer, *now)).count(), 5);
    }

    #[test]
    fn ever_new_peers_take_bounded_memory() {
        let mut buckets = Buckets::new(rate(1, Duration::from_secs(3_600)));
        let now = Instant::now();
        for _ in 0..3 * GENERATION_PEERS_MAX {
            assert!(buckets.take(PeerId::random(), now));
            assert!(buckets.young.len() + buckets.old.len() <= 2 * GENERATION_PEERS_MAX);
        }
        assert!(buckets.young.capacity() + buckets.old.capacity() <= 4 * GENERATION_PEERS_MAX);
    }

    #[test]
    fn a_clock_that_stands_still_or_goes_back_refills_nothing() {
        let mut buckets = Buckets::new(rate(1, Duration::from_secs(1)));
        let peer = PeerId::random();
        let now = Instant::now() + Duration::from_secs(60);
        assert!(buckets.take(peer, now));
        assert!(!buckets.take(peer, now));
        assert!(!buckets.take(peer, now - Duration::from_secs(30)));
        assert!(!buckets.take(peer, now));
    }

    #[test]
    fn the_largest_rates_do_not_overflow() {
        let mut buckets = Buckets::new(rate(u32::MAX, Duration::MAX));
        let peer = PeerId::random();
        assert!(buckets.take(peer, Instant::now()));
        assert!(buckets.take(peer, Instant::now() + Duration::from_secs(1 << 30)));
    }
}
