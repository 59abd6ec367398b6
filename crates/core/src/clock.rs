use std::sync::atomic::{AtomicI64, Ordering};

use crate::Timestamp;

/// The source of time, injected so that every run can be replayed.
pub trait Clock: Send + Sync + 'static {
    /// The current time.
    fn now(&self) -> Timestamp;
}

/// The machine's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "the only place that reads the machine's clock")]
    fn now(&self) -> Timestamp {
        let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        match since_epoch {
            Ok(after) => Timestamp(i64::try_from(after.as_nanos()).unwrap_or(i64::MAX)),
            Err(before) => Timestamp(i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |n| -n)),
        }
    }
}

/// A clock for tests that only moves when it is set.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicI64);

impl ManualClock {
    /// A clock that shows `now`.
    pub fn new(now: Timestamp) -> Self {
        Self(AtomicI64::new(now.0))
    }

    /// Makes the clock show `now`.
    pub fn set(&self, now: Timestamp) {
        self.0.store(now.0, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }
}
