//! When requests are due: arrival does not wait for answers.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// Numbered tickets at an even rate, for any number of clients.
///
/// A client that takes a ticket after its time is late because all clients were waiting for answers: its time counts from
/// the moment when the ticket was due. One that comes early waits, and its time counts from the moment when it wakes: how
/// late a timer wakes it is not the server's doing.
pub(crate) struct Tickets {
    begun: Instant,
    interval: Duration,
    until: Instant,
    next: AtomicU64,
    is_ended: AtomicBool,
}

/// A request to make now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    pub(crate) number: u64,
    /// From when on its time counts.
    pub(crate) from: Instant,
}

impl Tickets {
    /// Tickets from `begun` until before `until`.
    pub(crate) fn new(begun: Instant, per_second: f64, until: Instant) -> Self {
        let interval = Duration::from_secs_f64(1.0 / per_second);
        Self { begun, interval, until, next: AtomicU64::new(0), is_ended: AtomicBool::new(false) }
    }

    /// Gives out no more.
    pub(crate) fn end(&self) {
        self.is_ended.store(true, Ordering::Relaxed);
    }

    /// Waits for the next ticket; there is none when the time is over.
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
    async fn a_late_ticket_counts_from_when_it_was_due() {
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
