//! One load: publishers that send messages through relay, and a look at what the server has of them.

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

/// What a server must have done something of, else it will not.
const STALLED: Duration = Duration::from_secs(15);
/// How often a server's figures are looked at: asking costs it little, and a figure is known to that time.
const LOOK: Duration = Duration::from_millis(50);
/// Tickets are given out for longer than any load takes.
const FOREVER: Duration = Duration::from_secs(86_400);

/// How messages are published.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Load {
    pub(super) publishers: u64,
    pub(super) messages_each: u64,
    pub(super) payload_bytes: usize,
    /// Messages a second of all publishers together; without it, as fast as they can.
    pub(super) rate: Option<f64>,
    /// Whether the publishers are in the relay's mesh themselves, so that each message goes to all of them too.
    pub(super) role: Role,
}

/// What publishers have sent.
#[derive(Debug, Default)]
pub(super) struct Published {
    pub(super) hashes: Vec<MessageHash>,
    /// Messages that could not be published, and why.
    pub(super) failed: BTreeMap<String, u64>,
    /// How often a publisher found its queues full and tried again.
    pub(super) retries: u64,
    /// When the first was sent, by the messages' own clock.
    pub(super) first: Option<Timestamp>,
}

/// What came of a load.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) load: Load,
    pub(super) published: Published,
    /// How long publishing took.
    pub(super) publishing: Duration,
    /// From the first message until all were durable; nothing when some never were.
    pub(super) all_stored: Option<Duration>,
    /// Messages that came to the server's relay.
    pub(super) arrived: u64,
    pub(super) stored: u64,
    pub(super) lost: u64,
    /// Messages that the server's queue for the archive had no room for.
    pub(super) dropped_to_archive: u64,
    /// Messages that the server could not pass on to slow peers.
    pub(super) dropped_to_peers: u64,
    /// Messages that the publishers' own queues dropped.
    pub(super) dropped_by_publishers: u64,
    /// How long the server's processors worked.
    pub(super) worked: Option<Duration>,
}

impl Load {
    pub(super) fn messages(&self) -> u64 {
        self.publishers * self.messages_each
    }

    /// For people.
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
    /// What its processors have worked until now.
    pub(super) worked: &'a (dyn Fn() -> Option<Duration> + Sync),
}

impl Target<'_> {
    /// Publishes everything, waits until the server has it or does nothing more, and looks at what it has.
    ///
    /// `stream` is a number that no other load of this run has.
    pub(super) async fn run(&self, load: Load, stream: u64) -> anyhow::Result<Outcome> {
        let history = History::start(self.node).await?;
        let peers = start_many(load.publishers, load.role, std::slice::from_ref(self.node)).await?;
        let (before, worked_before) = (Scrape::of(self.rest).await?, (self.worked)());
        let begun = Instant::now();
        let published = publish(&peers, load, stream).await?;
        let publishing = begun.elapsed();
        let wanted = before.stored() + published.hashes.len() as u64;
        let all_stored = wait_until_stored(self.rest, wanted).await?.then(|| begun.elapsed());
        let worked = since((self.worked)(), worked_before);
        let after = Scrape::of(self.rest).await?;
        let kept = kept(&history, stream, &published).await?;
        let dropped_by_publishers = peers.iter().map(|peer| peer.counts().lost_to_peers()).sum();
        close_many(peers).await;
        history.close().await;
        Ok(Outcome {
            load,
            publishing,
            all_stored,
            arrived: after.arrived().saturating_sub(before.arrived()),
            stored: kept.len() as u64,
            lost: missing(&published, &kept),
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

/// Lets each publisher send its messages. They stay connected: what waits in a publisher's queue leaves with it.
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

/// Waits until a server has stored so many messages in all; false when it stores no more before.
pub(super) async fn wait_until_stored(rest: SocketAddr, wanted: u64) -> anyhow::Result<bool> {
    let mut last = 0;
    let mut changed = Instant::now();
    loop {
        let stored = Scrape::of(rest).await?.stored();
        if stored >= wanted {
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

/// What a server has of a load.
pub(super) async fn kept(
    history: &History,
    stream: u64,
    published: &Published,
) -> anyhow::Result<HashSet<MessageHash>> {
    let start = published.first.unwrap_or(Timestamp::from_seconds(0));
    history.hashes(&content_topic(stream), start, None).await
}

/// How many of the published messages a server does not have.
pub(super) fn missing(published: &Published, kept: &HashSet<MessageHash>) -> u64 {
    published.hashes.iter().filter(|hash| !kept.contains(hash)).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::tests::Served;

    #[tokio::test(flavor = "multi_thread")]
    async fn what_publishers_send_is_counted_from_end_to_end() {
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
    fn what_a_server_lacks_is_missing() {
        let hash = |number| MessageHash([number; 32]);
        let published = Published { hashes: vec![hash(1), hash(2), hash(3)], ..Published::default() };
        assert_eq!(missing(&published, &HashSet::from([hash(2), hash(9)])), 2);
    }
}
