//! Failed log-ins, limited by IP address and by account.

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hash, RandomState},
    net::IpAddr,
    num::NonZero,
};

use parking_lot::Mutex;
use restante_core::Timestamp;

use crate::DirectoryConfig;

/// The most addresses, and the most accounts, whose failures are counted.
const BUCKETS_MAX: usize = 65_536;

/// The failures that are left, by address and by account. A log-in takes one of each before its password is checked, so that many
/// at once don't get more guesses, and returns them if the password was right. A log-in by token takes a failure once it has
/// failed.
pub(crate) struct Failures {
    hasher: RandomState,
    per_ip: Mutex<Buckets>,
    per_account: Mutex<Buckets>,
}

/// The address and the account that the failures of a log-in are counted for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt {
    ip: u64,
    account: Option<u64>,
}

/// Seconds until the next log-in may fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wait(pub(crate) u64);

impl Failures {
    pub(crate) fn new(config: &DirectoryConfig) -> Self {
        let buckets = |max| Mutex::new(Buckets::new(max, config.failure_seconds));
        Self {
            hasher: RandomState::new(),
            per_ip: buckets(config.failures_per_ip_max),
            per_account: buckets(config.failures_per_account_max),
        }
    }

    /// A log-in from an address to an account; with a token the account is not known.
    pub(crate) fn attempt(&self, ip: IpAddr, account: Option<&str>) -> Attempt {
        let network = match ip.to_canonical() {
            IpAddr::V4(ip) => u64::from(ip.to_bits()),
            IpAddr::V6(ip) => (ip.to_bits() >> 64) as u64,
        };
        Attempt {
            ip: self.hash((ip.to_canonical().is_ipv4(), network)),
            account: account.map(|account| self.hash(account)),
        }
    }

    fn hash(&self, value: impl Hash) -> u64 {
        self.hasher.hash_one(value)
    }

    /// Whether a log-in may fail now.
    pub(crate) fn check(&self, attempt: Attempt, now: Timestamp) -> Result<(), Wait> {
        self.per_ip.lock().check(attempt.ip, now)?;
        attempt.account.map_or(Ok(()), |account| self.per_account.lock().check(account, now))
    }

    /// Takes a failure of the address and of the account.
    pub(crate) fn take(&self, attempt: Attempt, now: Timestamp) -> Result<(), Wait> {
        self.per_ip.lock().take(attempt.ip, now)?;
        let Some(account) = attempt.account else { return Ok(()) };
        let taken = self.per_account.lock().take(account, now);
        if taken.is_err() {
            self.per_ip.lock().give_back(attempt.ip);
        }
        taken
    }

    /// Returns what was taken: the log-in did not fail.
    pub(crate) fn give_back(&self, attempt: Attempt) {
        self.per_ip.lock().give_back(attempt.ip);
        if let Some(account) = attempt.account {
            self.per_account.lock().give_back(account);
        }
    }
}

/// Token buckets; one that is not stored is full.
struct Buckets {
    max: f64,
    per_second: f64,
    buckets: HashMap<u64, Bucket>,
}

#[derive(Clone, Copy)]
struct Bucket {
    tokens: f64,
    at: Timestamp,
}

impl Buckets {
    fn new(max: NonZero<u32>, seconds: NonZero<u64>) -> Self {
        let max = f64::from(max.get());
        Self { max, per_second: max / seconds.get() as f64, buckets: HashMap::new() }
    }

    fn tokens(&self, key: u64, now: Timestamp) -> f64 {
        self.buckets.get(&key).map_or(self.max, |bucket| self.filled(*bucket, now))
    }

    fn filled(&self, bucket: Bucket, now: Timestamp) -> f64 {
        // A clock that was set back refills nothing.
        let seconds = now.nanos().saturating_sub(bucket.at.nanos()).max(0) as f64 / 1e9;
        (bucket.tokens + seconds * self.per_second).min(self.max)
    }

    fn check(&self, key: u64, now: Timestamp) -> Result<(), Wait> {
        let tokens = self.tokens(key, now);
        if tokens >= 1.0 { Ok(()) } else { Err(Wait(((1.0 - tokens) / self.per_second).ceil() as u64)) }
    }

    fn take(&mut self, key: u64, now: Timestamp) -> Result<(), Wait> {
        self.check(key, now)?;
        let tokens = self.tokens(key, now) - 1.0;
        if self.buckets.len() >= BUCKETS_MAX && !self.buckets.contains_key(&key) {
            self.make_space(now);
        }
        self.buckets.insert(key, Bucket { tokens, at: now });
        Ok(())
    }

    fn give_back(&mut self, key: u64) {
        let max = self.max;
        if let Some(bucket) = self.buckets.get_mut(&key) {
            bucket.tokens = (bucket.tokens + 1.0).min(max);
            if bucket.tokens >= max {
                self.buckets.remove(&key);
            }
        }
    }

    /// Drops buckets that are full again; when all are in use, every other one.
    fn make_space(&mut self, now: Timestamp) {
        let (max, per_second) = (self.max, self.per_second);
        self.buckets.retain(|_, bucket| {
            let seconds = now.nanos().saturating_sub(bucket.at.nanos()).max(0) as f64 / 1e9;
            bucket.tokens + seconds * per_second < max
        });
        if self.buckets.len() >= BUCKETS_MAX {
            let mut is_kept = false;
            self.buckets.retain(|_, _| {
                is_kept = !is_kept;
                is_kept
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failures(per_ip: u32, per_account: u32) -> Failures {
        let number = |number| NonZero::new(number).unwrap();
        Failures::new(&DirectoryConfig {
            failures_per_ip_max: number(per_ip),
            failures_per_account_max: number(per_account),
            failure_seconds: NonZero::new(100).unwrap(),
            ..DirectoryConfig::default()
        })
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_seconds(1_000_000 + seconds)
    }

    #[test]
    fn an_account_has_so_many_failures_and_gets_them_back() {
        let failures = failures(1_000, 10);
        let attempt = |ip: u8, account| failures.attempt(IpAddr::from([192, 0, 2, ip]), Some(account));
        for ip in 0..10 {
            failures.take(attempt(ip, "anna"), at(0)).unwrap();
        }
        assert_eq!(failures.take(attempt(11, "anna"), at(0)), Err(Wait(10)));
        assert_eq!(failures.check(attempt(11, "anna"), at(5)), Err(Wait(5)));
        failures.take(attempt(11, "bert"), at(0)).unwrap();
        failures.take(attempt(11, "anna"), at(10)).unwrap();
        assert!(failures.take(attempt(11, "anna"), at(10)).is_err());
        failures.give_back(attempt(11, "anna"));
        failures.take(attempt(11, "anna"), at(10)).unwrap();
        assert!(failures.take(attempt(11, "anna"), at(-1_000)).is_err(), "a clock that was put back");
    }

    #[test]
    fn an_ipv6_network_is_one_address() {
        let failures = failures(2, 1_000);
        let attempt = |ip: &str, account: &str| failures.attempt(ip.parse().unwrap(), Some(account));
        failures.take(attempt("2001:db8::1", "a"), at(0)).unwrap();
        failures.take(attempt("2001:db8::2", "b"), at(0)).unwrap();
        assert!(failures.take(attempt("2001:db8:0:0:ffff::", "c"), at(0)).is_err());
        failures.take(attempt("2001:db8:0:1::1", "c"), at(0)).unwrap();
        failures.take(attempt("192.0.2.1", "c"), at(0)).unwrap();
        failures.take(attempt("::ffff:192.0.2.1", "c"), at(0)).unwrap();
        assert!(failures.take(attempt("192.0.2.1", "c"), at(0)).is_err(), "a mapped address is the same");
    }

    #[test]
    fn memory_is_bounded() {
        let mut buckets = Buckets::new(NonZero::new(2).unwrap(), NonZero::new(100).unwrap());
        for key in 0..3 * BUCKETS_MAX as u64 {
            buckets.take(key, at(0)).unwrap();
        }
        assert!(buckets.buckets.len() <= BUCKETS_MAX);
    }
}
