//! Published messages whose append has not finished.

use std::{collections::BTreeSet, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Messages that are being archived: at most one for each request that is handled.
#[derive(Default)]
pub(crate) struct InFlight {
    numbers: Mutex<Numbers>,
    /// An append has finished.
    changed: Notify,
}

#[derive(Default)]
struct Numbers {
    next: u64,
    open: BTreeSet<u64>,
}

/// Counts a message as in flight until it is dropped.
pub(crate) struct InFlightGuard {
    number: u64,
    in_flight: Arc<InFlight>,
}

impl InFlight {
    /// Adds a message.
    pub(crate) fn begin(self: &Arc<Self>) -> InFlightGuard {
        let mut numbers = self.numbers.lock();
        let number = numbers.next;
        numbers.next += 1;
        numbers.open.insert(number);
        InFlightGuard { number, in_flight: self.clone() }
    }

    /// Waits until the appends of all messages that were added before this call have finished. Later messages are ignored: under
    /// load this would never return otherwise.
    pub(crate) async fn settled(&self) {
        let next = self.numbers.lock().next;
        loop {
            let changed = self.changed.notified(); // before the check, so that no notification is missed
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
    fn only_messages_added_before_are_waited_for() {
        let in_flight = Arc::new(InFlight::default());
        assert!(in_flight.settled().now_or_never().is_some());
        let (first, second) = (in_flight.begin(), in_flight.begin());
        let mut settled = Box::pin(in_flight.settled());
        assert!((&mut settled).now_or_never().is_none());
        let third = in_flight.begin();
        drop(second);
        assert!((&mut settled).now_or_never().is_none(), "the first is still in flight");
        drop(first);
        assert!((&mut settled).now_or_never().is_some(), "the third was added later");
        assert!(in_flight.settled().now_or_never().is_none());
        drop(third);
        assert!(in_flight.settled().now_or_never().is_some());
    }

    #[tokio::test]
    async fn a_waiting_task_is_woken() {
        let in_flight = Arc::new(InFlight::default());
        let guard = in_flight.begin();
        let waiting = tokio::spawn({
            let in_flight = in_flight.clone();
            async move { in_flight.settled().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(guard);
        waiting.await.unwrap();
    }
}
