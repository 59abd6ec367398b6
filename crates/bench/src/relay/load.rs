//! One load: publishers that send messages through relay, and a check of the server's history.

use std::{
    collections::{BTreeMap, HashSet},
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use restante_core::{Clock, MessageHash, SystemClock, Timestamp};
use restante_waku::{Multiaddr, node::PublishError};
use tokio::task::JoinSet;

use crate::{
    pace::Tickets,
    peers::{Peer, Role, close_many, history::History, letters::Letters, start_many, users::since},
    scrape::Scrape,
};

/// A server without progress for this long has stalled.
const STALLED: Duration = Duration::from_secs(15);
/// How often a server's metrics are read: cheap for it, and the resolution of the measured times.
const LOOK: Duration = Duration::from_millis(50);
/// Longer than any load takes.
const FOREVER: Duration = Duration::from_secs(86_400);

/// The rate and role of publishers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Load {
    pub(super) publishers: u64,
    pub(super) messages_each: u64,
    pub(super) payload_bytes: usize,
    /// Messages a second of all publishers together; without it, as fast as possible.
    pub(super) rate: Option<f64>,
    /// Whether the publishers subscribe themselves, so that each message goes to all of them too.
    pub(super) role: Role,
}

/// The sent messages.
#[derive(Debug, Default)]
pub(super) struct Published {
    pub(super) hashes: Vec<MessageHash>,
    /// Messages that could not be published, by error.
    pub(super) failed: BTreeMap<String, u64>,
    /// How often a publisher's queues were full and it tried again.
    pub(super) retries: u64,
    /// When the first was sent, by the messages' own clock.
    pub(super) first: Option<Timestamp>,
}

/// The result of a load.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) load: Load,
    pub(super) published: Published,
    /// The duration of publishing.
    pub(super) publishing: Duration,
    /// From the first message until all were durable; `None` if some never were.
    pub(super) all_stored: Option<Duration>,
    /// Messages that the server received by relay.
    pub(super) arrived: u64,
    pub(super) stored: u64,
    pub(super) lost: u64,
    /// Messages that did not fit into the server's queue for the archive.
    pub(super) dropped_to_archive: u64,
    /// Messages that the server could not pass on to slow peers.
    pub(super) dropped_to_peers: u64,
    /// Messages that the publishers' own queues dropped.
    pub(super) dropped_by_publishers: u64,
    /// Processor time of the server.
    pub(super) worked: Option<Duration>,
}

impl Load {
    pub(super) fn messages(&self) -> u64 {
        self.publishers * self.messages_each
    }

    /// The load's description in reports.
    pub(super) fn name(&self) -> String {
        let pace = match self.rate {
            Some(rate) => format!("{rate}/s"),
            None => "burst".to_owned(),
        };
        if self.role == Role::Relay { format!("{pace}, publishers subscribed") } else { pace }
    }
}

/// A server under load.
pub(super) struct Target<'a> {
    pub(super) node: &'a Multiaddr,
    pub(super) rest: SocketAddr,
    /// Its processor time so far.
    pub(super) worked: &'a (dyn Fn() -> Option<Duration> + Sync),
}

impl Target<'_> {
    /// Publishes everything, waits until the server has stored it or makes no progress, and reads its history.
    ///
    /// `stream` is a number that is unique within this run.
    pub(super) async fn run(&self, load: Load, stream: u64) -> anyhow::Result<Outcome> {
        let history = History::start(self.node).await?;
        let peers = start_many(load.publishers, load.role, std::slice::from_ref(self.node)).await?;
        let (before, worked_before) = (Scrape::of(self.rest).await?, (self.worked)());
        let begun = Instant::now();
        let published = publish(&peers, load, stream).await?;
        let publishing = begun.elapsed();
        let expected = before.stored() + published.hashes.len() as u64;
        let all_stored = wait_until_stored(self.rest, expected).await?.then(|| begun.elapsed());
        let worked = since((self.worked)(), worked_before);
        let after = Scrape::of(self.rest).await?;
        let stored = stored(&history, stream, &published).await?;
        let dropped_by_publishers = peers.iter().map(|peer| peer.counts().lost_to_peers()).sum();
        close_many(peers).await;
        history.close().await;
        Ok(Outcome {
            load,
            publishing,
            all_stored,
            arrived: after.arrived().saturating_sub(before.arrived()),
            stored: stored.len() as u64,
            lost: missing(&published, &stored),
            dropped_to_archive: after.lost_to_archive().saturating_sub(before.lost_to_archive()),
            dropped_to_peers: after.lost_to_peers().saturating_sub(before.lost_to_peers()),
            dropped_by_publishers,
            worked,
            published,
        })
    }
}

/// The content topic of a load.
pub(super) fn content_topic(stream: u64) -> String {
    format!("/restante-bench/1/relay-{stream}/proto")
}

/// Lets each publisher send its messages. They stay connected: closing one would discard its queue.
pub(super) async fn publish(peers: &[Arc<Peer>], load: Load, stream: u64) -> anyhow::Result<Published> {
    let letters = Arc::new(Letters::new(stream, &content_topic(stream), load.payload_bytes));
    let begun = Instant::now();
    let tickets = load.rate.map(|rate| Arc::new(Tickets::new(begun, rate, begun + FOREVER)));
    let mut publishing = JoinSet::new();
    for (number, peer) in (0_u64..).zip(peers) {
        let publisher = Publisher {
            peer: peer.clone(),
            letters: letters.clone(),
            numbers: number * load.messages_each..(number + 1) * load.messages_each,
            tickets: tickets.clone(),
        };
        publishing.spawn(publisher.run());
    }
    let mut all = Published::default();
    while let Some(done) = publishing.join_next().await {
        all.add(done?);
    }
    Ok(all)
}

struct Publisher {
    peer: Arc<Peer>,
    letters: Arc<Letters>,
    numbers: std::ops::Range<u64>,
    tickets: Option<Arc<Tickets>>,
}

impl Publisher {
    async fn run(self) -> Published {
        let mut published = Published::default();
        for number in self.numbers.clone() {
            if let Some(tickets) = &self.tickets {
                tickets.take().await;
            }
            let letter = self.letters.write(number, SystemClock.now(), 0);
            published.first.get_or_insert(letter.timestamp);
            match self.peer.publish(&letter.wire).await {
                Ok(sent) => {
                    published.retries += sent.retries;
                    published.hashes.push(letter.message_hash);
                }
                Err(error) => published.note_failure(&error),
            }
        }
        published
    }
}

impl Published {
    fn note_failure(&mut self, error: &PublishError) {
        *self.failed.entry(error.to_string()).or_default() += 1;
    }

    fn add(&mut self, other: Self) {
        self.hashes.extend(other.hashes);
        for (why, count) in other.failed {
            *self.failed.entry(why).or_default() += count;
        }
        self.retries += other.retries;
        self.first = self.first.into_iter().chain(other.first).min();
    }

    /// Messages that could not be published.
    pub(super) fn failures(&self) -> u64 {
        self.failed.values().sum()
    }
}

/// Waits until a server has stored this many messages in all; `false` if it stops before.
pub(super) async fn wait_until_stored(rest: SocketAddr, expected: u64) -> anyhow::Result<bool> {
    let mut last = 0;
    let mut changed = Instant::now();
    loop {
        let stored = Scrape::of(rest).await?.stored();
        if stored >= expected {
            return Ok(true);
        }
        if stored != last {
            (last, changed) = (stored, Instant::now());
        }
        if changed.elapsed() > STALLED {
            return Ok(false);
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// The messages of a load in a server's history.
pub(super) async fn stored(
    history: &History,
    stream: u64,
    published: &Published,
) -> anyhow::Result<HashSet<MessageHash>> {
    let start = published.first.unwrap_or(Timestamp::from_seconds(0));
    history.hashes(&content_topic(stream), start, None).await
}

/// The number of published messages that a server lacks.
pub(super) fn missing(published: &Published, stored: &HashSet<MessageHash>) -> u64 {
    published.hashes.iter().filter(|hash| !stored.contains(hash)).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::tests::Served;

    #[tokio::test(flavor = "multi_thread")]
    async fn published_messages_are_counted_end_to_end() {
        let served = Served::start().await;
        let target = Target { node: &served.node, rest: served.rest, worked: &|| None };
        for (stream, rate, role) in
            [(1, None, Role::Publisher), (2, Some(500.0), Role::Publisher), (3, None, Role::Relay)]
        {
            let load = Load { publishers: 3, messages_each: 20, payload_bytes: 1_400, rate, role };
            let outcome = target.run(load, stream).await.unwrap();
            assert_eq!(outcome.published.failures(), 0, "{:?}", outcome.published.failed);
            assert_eq!((outcome.stored, outcome.lost), (60, 0), "{outcome:?}");
            assert_eq!((outcome.arrived, outcome.dropped_to_archive), (60, 0), "{outcome:?}");
            assert!(outcome.all_stored.unwrap() >= outcome.publishing, "{outcome:?}");
        }
        served.stop().await;
    }

    #[test]
    fn messages_that_a_server_lacks_are_missing() {
        let hash = |number| MessageHash([number; 32]);
        let published = Published { hashes: vec![hash(1), hash(2), hash(3)], ..Published::default() };
        assert_eq!(missing(&published, &HashSet::from([hash(2), hash(9)])), 2);
    }
}
