//! The room for all events that wait, each counted once however many want it.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use prometheus_client::metrics::gauge::Gauge;

/// A queue takes at most this part of what is left for all beside the reserve: the slow leave each other less and less.
const QUEUE_SHARE: usize = 8;
/// This part of the room is for queues that are empty: one who keeps up finds room in it, whatever waits in the queues of
/// those who don't. An empty queue takes one event from it, so that many who stop reading can use it up as well, each with one
/// event that nobody else wants.
const RESERVE_SHARE: usize = 4;

#[derive(Debug)]
pub(super) struct MemoryBudget {
    used: AtomicUsize,
    bytes_max: usize,
    shown: Gauge,
}

/// A part of the room, which comes back when this is dropped.
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

    /// What one queue may take at this moment, if it is more than one event.
    pub(super) fn queue_bytes_max(&self) -> usize {
        let for_all = self.bytes_max - self.bytes_max / RESERVE_SHARE;
        for_all.saturating_sub(self.used()) / QUEUE_SHARE
    }

    /// Takes so many bytes, if they are left.
    pub(super) fn take(self: &Arc<Self>, bytes: usize) -> Option<Permit> {
        let add = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= self.bytes_max);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok()?;
        self.shown.inc_by(bytes as i64);
        Some(Permit { bytes: AtomicUsize::new(bytes), budget: self.clone() })
    }
}

impl Permit {
    /// Takes more for what exists already, also beyond the bound: then nothing else finds room until it is gone.
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
        event.form(Form::Json, |_| panic!("a form is made once"));
        assert_eq!(shown.get(), before + 5_000, "a form is made, whatever room is left");
        assert_eq!(budget.queue_bytes_max(), 0);
        assert!(!event.to_kept().acquire(&budget), "there is no room for another");
        drop(event);
        assert_eq!((shown.get(), budget.queue_bytes_max()), (0, 7_500 / QUEUE_SHARE));
    }
}
