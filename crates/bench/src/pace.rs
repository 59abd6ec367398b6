//! An open-loop schedule: requests are due at a fixed rate, whether or not earlier ones were answered.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// Numbered tickets at an even rate, for any number of clients.
///
/// A client that takes a ticket late was waiting for an answer: its time counts from the moment when the ticket was due. A
/// client that takes it early sleeps, and its time counts from when it wakes up, because the delay of a timer is not the
/// server's.
pub(crate) struct Tickets {
    begun: Instant,
    interval: Duration,
    until: Instant,
    next: AtomicU64,
    is_ended: AtomicBool,
}

/// A request that is due.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    pub(crate) number: u64,
    /// The start of its time.
    pub(crate) from: Instant,
}

impl Tickets {
    /// Tickets from `begun` until just before `until`.
    pub(crate) fn new(begun: Instant, per_second: f64, until: Instant) -> Self {
        let interval = Duration::from_secs_f64(1.0 / per_second);
        Self { begun, interval, until, next: AtomicU64::new(0), is_ended: AtomicBool::new(false) }
    }

    /// Ends the schedule.
    pub(crate) fn end(&self) {
        self.is_ended.store(true, Ordering::Relaxed);
    }

    /// Waits for the next ticket; `None` at the end.
    pub(crate) async fn take(&self) -> Option<Ticket> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let due = self.begun + self.interval.mul_f64(number as f64);
        if due >= self.until || self.is_ended.load(Ordering::Relaxed) {
            return None;
        }
        if due > Instant::now() {
            tokio::time::sleep_until(due.into()).await;
            return Some(Ticket { number, from: Instant::now() });
        }
        Some(Ticket { number, from: due })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_late_ticket_counts_from_its_due_time() {
        let begun = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
        let tickets = Tickets::new(begun, 4.0, begun + Duration::from_millis(600));
        let mut taken = Vec::new();
        while let Some(ticket) = tickets.take().await {
            taken.push((ticket.number, ticket.from.duration_since(begun).as_millis()));
        }
        assert_eq!(taken, [(0, 0), (1, 250), (2, 500)]);
    }

    #[tokio::test]
    async fn nothing_is_due_after_the_end() {
        let begun = Instant::now();
        let tickets = Tickets::new(begun, 1_000.0, begun + Duration::from_secs(60));
        assert!(tickets.take().await.is_some());
        tickets.end();
        assert!(tickets.take().await.is_none());
    }

    #[tokio::test]
    async fn an_early_ticket_waits() {
        let begun = Instant::now();
        let tickets = Tickets::new(begun, 50.0, begun + Duration::from_secs(1));
        tickets.take().await.unwrap();
        let second = tickets.take().await.unwrap();
        assert!(second.number == 1 && second.from >= begun + Duration::from_millis(20));
    }
}
