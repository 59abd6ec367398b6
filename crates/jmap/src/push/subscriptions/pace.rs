//! When a subscription gets its next push.

use std::time::Duration;

use tokio::time::Instant;

/// The longest wait after failures.
const BACKOFF_MAX: Duration = Duration::from_secs(3_600);
/// The longest wait that a push service may request.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(86_400);
/// The shortest interval between pushes after the push service has reported that there are too many.
const INTERVAL_MIN: Duration = Duration::from_secs(10);
const INTERVAL_MAX: Duration = Duration::from_secs(3_600);

/// The waits of one subscription.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    /// The wait after the first failure; it doubles with each further one.
    first: Duration,
    failures: u32,
    /// The interval between pushes: it doubles with each 429, and shrinks with each success (RFC 8620 §7.2).
    interval: Duration,
    not_before: Instant,
}

impl Pace {
    pub(super) fn new(first: Duration, now: Instant) -> Self {
        Self { first, failures: 0, interval: Duration::ZERO, not_before: now }
    }

    /// When the next push may be sent.
    pub(super) fn not_before(&self) -> Instant {
        self.not_before
    }

    pub(super) fn succeed(&mut self, now: Instant) {
        self.failures = 0;
        self.not_before = now + self.interval;
        self.interval = Some(self.interval / 2).filter(|half| *half >= INTERVAL_MIN).unwrap_or_default();
    }

    /// `spread` from 0 to 255 makes subscriptions that failed together wait up to a quarter longer, so that they do not retry together.
    pub(super) fn fail(
        &mut self,
        now: Instant,
        retry_after: Option<Duration>,
        is_too_often: bool,
        spread: u8,
    ) {
        let doubled = self.first.saturating_mul(1_u32.checked_shl(self.failures).unwrap_or(u32::MAX));
        let backoff = doubled.min(BACKOFF_MAX);
        let backoff = backoff + backoff * u32::from(spread) / 1_024;
        self.failures = self.failures.saturating_add(1);
        if is_too_often {
            self.interval = (self.interval * 2).clamp(INTERVAL_MIN, INTERVAL_MAX);
        }
        let asked = retry_after.unwrap_or_default().min(RETRY_AFTER_MAX);
        self.not_before = now + backoff.max(asked);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_secs(10);

    #[test]
    fn p5_the_wait_doubles_with_each_failure_up_to_an_hour() {
        let now = Instant::now();
        let mut pace = Pace::new(FIRST, now);
        let mut waits = Vec::new();
        for _ in 0..40 {
            pace.fail(now, None, false, 0);
            waits.push((pace.not_before() - now).as_secs());
        }
        assert_eq!(waits[..10], [10, 20, 40, 80, 160, 320, 640, 1_280, 2_560, 3_600]);
        assert_eq!(waits[39], 3_600);
        pace.succeed(now);
        assert_eq!(pace.not_before(), now);
        pace.fail(now, None, false, 255);
        assert_eq!((pace.not_before() - now).as_millis(), 12_490);
    }

    #[test]
    fn p5_retry_after_is_waited_for_up_to_a_day() {
        let now = Instant::now();
        for (asked, waited) in [(1, 10), (600, 600), (1_000_000, 86_400)] {
            let mut pace = Pace::new(FIRST, now);
            pace.fail(now, Some(Duration::from_secs(asked)), false, 0);
            assert_eq!((pace.not_before() - now).as_secs(), waited);
        }
    }

    #[test]
    fn p5_too_many_requests_make_pushes_rarer() {
        let now = Instant::now();
        let mut pace = Pace::new(FIRST, now);
        pace.fail(now, None, true, 0);
        pace.fail(now, None, true, 0);
        let mut apart = Vec::new();
        for _ in 0..3 {
            pace.succeed(now);
            apart.push((pace.not_before() - now).as_secs());
        }
        assert_eq!(apart, [20, 10, 0]);
    }
}
