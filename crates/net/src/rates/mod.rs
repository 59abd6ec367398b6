//! Token buckets: how many requests each client may make per period.

mod text;

pub use text::ParseRateError;

use std::{collections::HashMap, hash::Hash, mem, time::Duration};

use tokio::time::Instant;

/// The most clients in one generation. Two generations are kept: about 1.5 MB for keys of 80 bytes.
const GENERATION_CLIENTS_MAX: usize = 4_096;

/// The number of requests that one client may make per period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// The number of requests.
    pub requests: u32,
    /// The period.
    pub period: Duration,
}

/// A token bucket for each client. A request takes a token, and tokens are refilled evenly.
///
/// The buckets are in two generations: those used since the last change of generations, and those used before it. A bucket that
/// is not used for a whole period is full again, and a full bucket need not be stored. So generations change once a period, and
/// the old one is dropped as a whole: each request costs the same, however many clients there are. A client that uses many names
/// makes generations change earlier; then the clients that have been silent for longest get their tokens back early, but memory
/// does not grow.
#[derive(Debug)]
pub struct Buckets<K> {
    rate: Rate,
    young: HashMap<K, Bucket>,
    old: HashMap<K, Bucket>,
    young_since: Option<Instant>,
}

/// The tokens that were taken and are not refilled yet.
///
/// They are counted in shares, so that nothing is rounded: a token has one share for each nanosecond of its period, and every
/// nanosecond refills one share for each token of a period.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    taken: u128,
    at: Instant,
}

impl Bucket {
    fn taken_at(self, rate: Rate, now: Instant) -> u128 {
        let elapsed = now.saturating_duration_since(self.at).as_nanos();
        self.taken.saturating_sub(elapsed.saturating_mul(u128::from(rate.requests)))
    }
}

impl<K: Copy + Eq + Hash> Buckets<K> {
    /// Creates full buckets.
    pub fn new(rate: Rate) -> Self {
        Self { rate, young: HashMap::new(), old: HashMap::new(), young_since: None }
    }

    /// Takes a token of a client; returns false when it has none.
    pub fn take(&mut self, client: K, now: Instant) -> bool {
        self.change_generations(now);
        let bucket = match self.young.get(&client) {
            Some(bucket) => Some(*bucket),
            None => self.old.remove(&client),
        };
        // The requests of several threads may not arrive in the order of their times.
        let now = bucket.map_or(now, |bucket| bucket.at.max(now));
        let taken = bucket.map_or(0, |bucket| bucket.taken_at(self.rate, now));
        let token = self.rate.period.as_nanos();
        let is_admitted = taken + token <= token * u128::from(self.rate.requests);
        let taken = if is_admitted { taken + token } else { taken };
        self.young.insert(client, Bucket { taken, at: now });
        is_admitted
    }

    /// Whether a client has a token. Does not take it.
    pub fn has(&self, client: &K, now: Instant) -> bool {
        let Some(bucket) = self.young.get(client).or_else(|| self.old.get(client)) else {
            return self.rate.requests > 0;
        };
        let token = self.rate.period.as_nanos();
        bucket.taken_at(self.rate, now) + token <= token * u128::from(self.rate.requests)
    }

    fn change_generations(&mut self, now: Instant) {
        let since = *self.young_since.get_or_insert(now);
        let is_over = now.saturating_duration_since(since) >= self.rate.period.max(Duration::from_nanos(1));
        if is_over || self.young.len() >= GENERATION_CLIENTS_MAX {
            self.old = mem::take(&mut self.young);
            self.young_since = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: u64 = 1;

    fn rate(requests: u32, period: Duration) -> Rate {
        Rate { requests, period }
    }

    #[test]
    fn looking_for_a_token_takes_none() {
        let mut buckets = Buckets::new(rate(1, Duration::from_secs(3)));
        let now = Instant::now();
        assert!(buckets.has(&CLIENT, now) && buckets.has(&CLIENT, now) && buckets.take(CLIENT, now));
        assert!(!buckets.has(&CLIENT, now) && !buckets.take(CLIENT, now));
        assert!(buckets.has(&CLIENT, now + Duration::from_secs(3)) && buckets.has(&2, now));
        assert!(!Buckets::new(rate(0, Duration::from_secs(3))).has(&CLIENT, now));
    }

    #[test]
    fn tokens_come_back_evenly_and_no_faster() {
        let period = Duration::from_secs(3);
        let mut buckets = Buckets::new(rate(3, period));
        let start = Instant::now();
        let mut admitted_at = Vec::new();
        for tenth in 0..100_u64 {
            if buckets.take(CLIENT, start + Duration::from_millis(tenth * 100)) {
                admitted_at.push(tenth);
            }
        }
        assert_eq!(admitted_at, [0, 1, 2, 10, 20, 30, 40, 50, 60, 70, 80, 90]);
    }

    #[test]
    fn a_rested_client_has_all_of_its_tokens_and_not_more() {
        let mut buckets = Buckets::new(rate(7, Duration::from_millis(10)));
        let start = Instant::now();
        for rest_ms in [0, 10, 1_000, 1_000_000] {
            let now = start + Duration::from_millis(rest_ms);
            assert_eq!((0..20).filter(|_| buckets.take(CLIENT, now)).count(), 7, "after {rest_ms} ms");
        }
    }

    /// Numbers that don't divide each other neither add nor lose a token.
    #[test]
    fn odd_rates_are_exact_over_a_long_time() {
        let period = Duration::from_secs(1);
        let mut buckets = Buckets::new(rate(300_007, period));
        let start = Instant::now();
        let at_once = (0..400_000).filter(|_| buckets.take(CLIENT, start)).count();
        assert_eq!(at_once, 300_007);
        let mut later = 0;
        for ms in 1..=2_000 {
            let now = start + Duration::from_millis(ms);
            later += (0..400).filter(|_| buckets.take(CLIENT, now)).count();
        }
        assert_eq!(later, 600_014);
    }

    #[test]
    fn a_client_that_keeps_asking_keeps_its_bucket_over_generations() {
        let period = Duration::from_secs(10);
        let mut buckets = Buckets::new(rate(1, period));
        let start = Instant::now();
        let times = (0..=40).map(|second| start + Duration::from_secs(second));
        assert_eq!(times.filter(|now| buckets.take(CLIENT, *now)).count(), 5);
    }

    #[test]
    fn ever_new_clients_take_bounded_memory() {
        let mut buckets = Buckets::new(rate(1, Duration::from_secs(3_600)));
        let now = Instant::now();
        for client in 0..3 * GENERATION_CLIENTS_MAX {
            assert!(buckets.take(client, now));
            assert!(buckets.young.len() + buckets.old.len() <= 2 * GENERATION_CLIENTS_MAX);
        }
        assert!(buckets.young.capacity() + buckets.old.capacity() <= 4 * GENERATION_CLIENTS_MAX);
    }

    #[test]
    fn a_clock_that_stands_still_or_goes_back_gives_nothing_away() {
        let mut buckets = Buckets::new(rate(1, Duration::from_secs(1)));
        let now = Instant::now() + Duration::from_secs(60);
        assert!(buckets.take(CLIENT, now));
        assert!(!buckets.take(CLIENT, now));
        assert!(!buckets.take(CLIENT, now - Duration::from_secs(30)));
        assert!(!buckets.take(CLIENT, now));
    }

    #[test]
    fn the_largest_rates_do_not_overflow() {
        let mut buckets = Buckets::new(rate(u32::MAX, Duration::MAX));
        assert!(buckets.take(CLIENT, Instant::now()));
        assert!(buckets.take(CLIENT, Instant::now() + Duration::from_secs(1 << 30)));
    }
}
