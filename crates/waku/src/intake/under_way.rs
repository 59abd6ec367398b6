//! What clients publish and the archive has not answered for yet.

use std::{collections::BTreeSet, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Messages that are on their way to the archive. There are as many as requests are worked on at once.
#[derive(Default)]
pub(crate) struct UnderWay {
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
pub(crate) struct Trip {
    number: u64,
    under_way: Arc<UnderWay>,
}

impl UnderWay {
    /// A message sets out.
    pub(crate) fn begin(self: &Arc<Self>) -> Trip {
        let mut numbers = self.numbers.lock();
        let number = numbers.next;
        numbers.next += 1;
        numbers.open.insert(number);
        Trip { number, under_way: self.clone() }
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

impl Drop for Trip {
    fn drop(&mut self) {
        self.under_way.numbers.lock().open.remove(&self.number);
        self.under_way.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn only_those_who_set_out_before_are_waited_for() {
        let under_way = Arc::new(UnderWay::default());
        assert!(under_way.settled().now_or_never().is_some());
        let (first, second) = (under_way.begin(), under_way.begin());
        let mut settled = Box::pin(under_way.settled());
        assert!((&mut settled).now_or_never().is_none());
        let third = under_way.begin();
        drop(second);
        assert!((&mut settled).now_or_never().is_none(), "the first is still on its way");
        drop(first);
        assert!((&mut settled).now_or_never().is_some(), "the third set out later");
        assert!(under_way.settled().now_or_never().is_none());
        drop(third);
        assert!(under_way.settled().now_or_never().is_some());
    }

    #[tokio::test]
    async fn who_waits_is_woken() {
        let under_way = Arc::new(UnderWay::default());
        let trip = under_way.begin();
        let waiting = tokio::spawn({
            let under_way = under_way.clone();
            async move { under_way.settled().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(trip);
        waiting.await.unwrap();
    }
}
