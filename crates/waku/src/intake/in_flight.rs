//! What clients publish and the archive has not answered for yet.

use std::{collections::BTreeSet, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Messages that are on their way to the archive. There are as many as requests are worked on at once.
#[derive(Default)]
pub(crate) struct InFlight {
    numbers: Mutex<Numbers>,
    /// One of them has arrived, or was refused.
    changed: Notify,
}

#[derive(Default)]
struct Numbers {
    next: u64,
    open: BTreeSet<u64>,
}

/// A message on its way, until this is dropped.
pub(crate) struct InFlightGuard {
    number: u64,
    in_flight: Arc<InFlight>,
}

impl InFlight {
    /// A message sets out.
    pub(crate) fn begin(self: &Arc<Self>) -> InFlightGuard {
        let mut numbers = self.numbers.lock();
        let number = numbers.next;
        numbers.next += 1;
        numbers.open.insert(number);
        InFlightGuard { number, in_flight: self.clone() }
    }

    /// Waits until all that set out before this call have arrived or were refused. Those that set out later are not waited for,
    /// or under load it would never end.
    pub(crate) async fn settled(&self) {
        let next = self.numbers.lock().next;
        loop {
            let changed = self.changed.notified(); // before the look, so that nothing is missed between
            if self.numbers.lock().open.first().is_none_or(|first| *first >= next) {
                return;
            }
            changed.await;
        }
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.in_flight.numbers.lock().open.remove(&self.number);
        self.in_flight.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn only_those_who_set_out_before_are_waited_for() {
        let in_flight = Arc::new(InFlight::default());
        assert!(in_flight.settled().now_or_never().is_some());
        let (first, second) = (in_flight.begin(), in_flight.begin());
        let mut settled = Box::pin(in_flight.settled());
        assert!((&mut settled).now_or_never().is_none());
        let third = in_flight.begin();
        drop(second);
        assert!((&mut settled).now_or_never().is_none(), "the first is still on its way");
        drop(first);
        assert!((&mut settled).now_or_never().is_some(), "the third set out later");
        assert!(in_flight.settled().now_or_never().is_none());
        drop(third);
        assert!(in_flight.settled().now_or_never().is_some());
    }

    #[tokio::test]
    async fn who_waits_is_woken() {
        let in_flight = Arc::new(InFlight::default());
        let trip = in_flight.begin();
        let waiting = tokio::spawn({
            let in_flight = in_flight.clone();
            async move { in_flight.settled().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(trip);
        waiting.await.unwrap();
    }
}
