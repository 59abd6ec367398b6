//! The time of a message from a publisher through the server to a subscriber, without and with users who query.

use std::{
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::ensure;
use parking_lot::Mutex;
use restante_core::{Clock, SystemClock};
use restante_waku::{
    Multiaddr,
    live::{Event, Listener, Stage},
};

use crate::{
    measure::Latencies,
    pace::Tickets,
    peers::{
        PATIENCE, Peer, Role, id_of,
        letters::{Letters, note_of},
        until,
        users::{ChildUsers, Plan, Summary},
    },
    scrape::Scrape,
};

/// Messages a second.
pub(super) const RATE: f64 = 100.0;
/// How long a message may take before it counts as lost.
const LATE: Duration = Duration::from_secs(10);
/// Queries of each user before the clock runs, and one more in flight.
const WARM_PAGES: u64 = 6;
/// The users run for this much longer than the measurement, since they start before it.
const USERS_LONGER: Duration = Duration::from_secs(3);

/// A period in which messages were delivered.
#[derive(Clone, Debug)]
pub(super) struct Stretch {
    pub(super) users: usize,
    pub(super) seconds: f64,
    pub(super) published: u64,
    pub(super) lost: u64,
    pub(super) times: Latencies,
    /// The results of the users.
    pub(super) summary: Option<Summary>,
}

/// Records the time of messages: each has the time since `base` at which its publisher sent it.
struct Meter {
    base: Instant,
    stream: AtomicU64,
    heard: AtomicU64,
    times: Mutex<Latencies>,
}

impl Listener for Meter {
    fn on_message(&self, event: &Arc<Event>, _: Stage) {
        let now = self.base.elapsed();
        let Some((stream, note)) = note_of(&event.body) else { return };
        if stream == self.stream.load(Ordering::Relaxed) {
            self.times.lock().record(now.saturating_sub(Duration::from_nanos(note)));
            self.heard.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A publisher and a subscriber that are connected through the server only.
pub(super) struct Line {
    meter: Arc<Meter>,
    publisher: Peer,
    subscriber: Peer,
    payload_bytes: usize,
}

impl Line {
    pub(super) async fn lay(server: &Multiaddr, payload_bytes: usize) -> anyhow::Result<Self> {
        let meter = Arc::new(Meter {
            base: Instant::now(),
            stream: AtomicU64::new(0),
            heard: AtomicU64::new(0),
            times: Mutex::default(),
        });
        let servers = std::slice::from_ref(server);
        let subscriber = Peer::start_connected(Role::Relay, servers, vec![meter.clone()]).await?;
        let publisher = Peer::start_connected(Role::Publisher, servers, Vec::new()).await?;
        let server = id_of(server)?;
        let waited = until(PATIENCE, async || subscriber.is_in_mesh(server)).await;
        ensure!(waited.is_some(), "the server did not add the subscriber to its mesh within a minute");
        Ok(Self { meter, publisher, subscriber, payload_bytes })
    }

    /// Publishes for this long; `stream` is a number that is unique within this run.
    pub(super) async fn measure(&self, length: Duration, stream: u64) -> anyhow::Result<Stretch> {
        let letters = Letters::new(stream, &super::load::content_topic(stream), self.payload_bytes);
        *self.meter.times.lock() = Latencies::default();
        self.meter.heard.store(0, Ordering::Relaxed);
        self.meter.stream.store(stream, Ordering::Relaxed);
        let begun = Instant::now();
        let tickets = Tickets::new(begun, RATE, begun + length);
        let mut published = 0;
        while let Some(ticket) = tickets.take().await {
            let due = ticket.from.saturating_duration_since(self.meter.base);
            let letter = letters.write(ticket.number, SystemClock.now(), due.as_nanos() as u64);
            self.publisher.publish(&letter.wire).await?;
            published += 1;
        }
        let has_all = || self.meter.heard.load(Ordering::Relaxed) >= published;
        let _ = until(LATE, async || has_all()).await;
        let heard = self.meter.heard.load(Ordering::Relaxed);
        Ok(Stretch {
            users: 0,
            seconds: length.as_secs_f64(),
            published,
            lost: published.saturating_sub(heard),
            times: self.meter.times.lock().clone(),
            summary: None,
        })
    }

    pub(super) async fn take_up(self) {
        self.publisher.close().await;
        self.subscriber.close().await;
    }
}

/// Users who query the server at the same time.
pub(super) struct Crowd<'a> {
    pub(super) node: &'a Multiaddr,
    pub(super) rest: SocketAddr,
    pub(super) users: usize,
    pub(super) content_topic: String,
    pub(super) folder: &'a Path,
}

impl Crowd<'_> {
    /// Measures without users, with them, and without them again.
    pub(super) async fn measure(&self, line: &Line, length: Duration) -> anyhow::Result<Vec<Stretch>> {
        let before = line.measure(length, 2_001).await?;
        let plan = Plan {
            server: self.node.to_string(),
            users: self.users,
            page: 100,
            content_topic: self.content_topic.clone(),
            seconds: (length + USERS_LONGER).as_secs_f64(),
        };
        let asked = store_requests(self.rest).await?;
        let users = ChildUsers::start(&plan, self.folder)?;
        let expected = asked + self.users as u64 * WARM_PAGES;
        let is_asked = async || store_requests(self.rest).await.is_ok_and(|asked| asked >= expected);
        let waited = until(PATIENCE, is_asked).await;
        ensure!(waited.is_some(), "the users sent no queries within a minute");
        let during = line.measure(length, 2_002).await?;
        let summary = users.summary().await?;
        let during = Stretch { users: self.users, summary: Some(summary), ..during };
        let after = line.measure(length, 2_003).await?;
        Ok(vec![before, during, after])
    }
}

async fn store_requests(rest: SocketAddr) -> anyhow::Result<u64> {
    Ok(Scrape::of(rest).await?.sum_with("restante_waku_requests_total", "service", "store"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::tests::Served;

    #[tokio::test(flavor = "multi_thread")]
    async fn every_message_is_delivered_and_timed() {
        let served = Served::start().await;
        let line = Line::lay(&served.node, 1_400).await.unwrap();
        for stream in [1, 2] {
            let stretch = line.measure(Duration::from_millis(200), stream).await.unwrap();
            assert_eq!((stretch.published, stretch.lost, stretch.times.len()), (20, 0, 20));
            assert!(stretch.times.max_ms() < 60_000.0);
        }
        line.take_up().await;
        served.stop().await;
    }
}
