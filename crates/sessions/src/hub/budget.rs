//! The memory budget for all waiting events. Each event counts once, however many sessions it waits for.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use prometheus_client::metrics::gauge::Gauge;

/// A queue may take one nth of what is left outside the reserve, so that slow readers leave each other less and less.
const QUEUE_SHARE: usize = 8;
/// One nth of the budget is reserved for empty queues, so that a reader that keeps up is served however much waits for slow
/// readers. An empty queue takes one event from it, so that many stopped readers, each with an event of its own, can exhaust
/// the reserve too.
const RESERVE_SHARE: usize = 4;

#[derive(Debug)]
pub(super) struct MemoryBudget {
    used: AtomicUsize,
    bytes_max: usize,
    shown: Gauge,
}

/// A share of the budget, which is returned when the permit is dropped.
#[derive(Debug)]
pub(super) struct Permit {
    bytes: AtomicUsize,
    budget: Arc<MemoryBudget>,
}

impl MemoryBudget {
    pub(super) fn new(bytes_max: usize, shown: Gauge) -> Arc<Self> {
        Arc::new(Self { used: AtomicUsize::new(0), bytes_max, shown })
    }

    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// The bytes that one queue may take now, if it has more than one event.
    pub(super) fn queue_bytes_max(&self) -> usize {
        let for_all = self.bytes_max - self.bytes_max / RESERVE_SHARE;
        for_all.saturating_sub(self.used()) / QUEUE_SHARE
    }

    /// Takes bytes if as many are left.
    pub(super) fn take(self: &Arc<Self>, bytes: usize) -> Option<Permit> {
        let add = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= self.bytes_max);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok()?;
        self.shown.inc_by(bytes as i64);
        Some(Permit { bytes: AtomicUsize::new(bytes), budget: self.clone() })
    }
}

impl Permit {
    /// Adds bytes that are in use already, even beyond the bound: then nothing new is accepted until they are freed.
    pub(super) fn grow(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.budget.used.fetch_add(bytes, Ordering::Relaxed);
        self.budget.shown.inc_by(bytes as i64);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let bytes = *self.bytes.get_mut();
        self.budget.used.fetch_sub(bytes, Ordering::Relaxed);
        self.budget.shown.dec_by(bytes as i64);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use restante_core::{MessageHash, Timestamp};

    use super::*;
    use crate::hub::{Event, Form};

    fn event(bytes: usize) -> Event {
        Event::new("c".into(), "t".into(), MessageHash([0; 32]), Timestamp(0), vec![0; bytes].into())
    }

    #[test]
    fn an_event_counts_once_with_its_forms_and_gives_all_back() {
        let shown = Gauge::default();
        let budget = MemoryBudget::new(10_000, shown.clone());
        let event = event(5_000);
        event.form(Form::Push, |_| Bytes::from_static(&[0; 100]));
        assert!(event.acquire(&budget) && event.acquire(&budget));
        let before = shown.get();
        assert!((5_100..6_000).contains(&before));
        event.form(Form::Json, |event| Bytes::from(vec![0; event.body.len()]));
        event.form(Form::Json, |_| panic!("an encoding is made once"));
        assert_eq!(shown.get(), before + 5_000, "an encoding is made even if no budget is left");
        assert_eq!(budget.queue_bytes_max(), 0);
        assert!(!event.to_unmetered().acquire(&budget), "there is no budget for another");
        drop(event);
        assert_eq!((shown.get(), budget.queue_bytes_max()), (0, 7_500 / QUEUE_SHARE));
    }
}
