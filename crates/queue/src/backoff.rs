//! Pauses between attempts to reach an engine.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

const FIRST: Duration = Duration::from_millis(250);
const LAST: Duration = Duration::from_secs(10);

/// Each pause is twice as long as the one before, up to ten seconds, and is shortened at random by up to a quarter: servers that lost
/// the same broker do not reconnect at the same moment.
#[derive(Debug)]
pub(crate) struct Backoff(Duration);

impl Backoff {
    pub(crate) fn new() -> Self {
        Self(FIRST)
    }

    pub(crate) fn reset(&mut self) {
        self.0 = FIRST;
    }

    pub(crate) fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(LAST);
        // `RandomState` is random enough: the standard library seeds its hashers from the system's random source.
        let chance = RandomState::new().hash_one(0) % 1_000;
        pause - (pause / 4_000) * u32::try_from(chance).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound_and_begin_anew() {
        let mut backoff = Backoff::new();
        let mut last = Duration::ZERO;
        for _ in 0..20 {
            last = backoff.next();
            assert!(last <= LAST);
        }
        assert!(last >= LAST * 3 / 4);
        backoff.reset();
        assert!(backoff.next() <= FIRST);
    }
}
