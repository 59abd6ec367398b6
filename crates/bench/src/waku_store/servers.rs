//! Several servers on one database: each gets the same messages, and the history of each is read.

use std::{
    collections::HashSet,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{bail, ensure};
use restante_core::MessageHash;
use tokio::task::JoinSet;

use super::{
    posts::{CONTENT_TOPIC, PUBSUB_TOPIC, Posts},
    publish::{Published, Publisher},
};
use crate::{
    answer::{beginning, hashes, next_cursor},
    http::{Connection, get},
};

/// Publishers of each server.
const PUBLISHERS: usize = 16;

/// The result of publishing the same messages through each server.
pub(super) struct Same {
    pub(super) messages: u64,
    pub(super) duration: Duration,
    pub(super) posts: Arc<Posts>,
    pub(super) published: Published,
    /// Walks during publishing, and one through each server afterwards.
    pub(super) walks: u64,
    /// Rows that a walk returned twice.
    pub(super) repeated: u64,
    /// The smallest and the largest number of rows that a server returned at the end.
    pub(super) rows: (u64, u64),
}

/// Publishes this many messages through each server concurrently, as fast as it accepts them, while a walker repeatedly reads
/// all pages of each.
pub(super) async fn publish_same(
    addresses: &[SocketAddr],
    posts: Arc<Posts>,
    messages: u64,
) -> anyhow::Result<Same> {
    let is_over = Arc::new(AtomicBool::new(false));
    let mut walkers = JoinSet::new();
    for address in addresses {
        walkers.spawn(walk_until(*address, is_over.clone()));
    }
    let begun = Instant::now();
    let published = publish_all(addresses, &posts, messages).await;
    let duration = begun.elapsed();
    is_over.store(true, Ordering::Relaxed);
    let mut same =
        Same { messages, duration, posts, published: published?, walks: 0, repeated: 0, rows: (u64::MAX, 0) };
    while let Some(walked) = walkers.join_next().await {
        let (walks, repeated) = walked??;
        same.walks += walks;
        same.repeated += repeated;
    }
    for address in addresses {
        let walked = walk(*address).await?;
        same.walks += 1;
        same.repeated += walked.repeated;
        same.rows = (same.rows.0.min(walked.rows), same.rows.1.max(walked.rows));
    }
    Ok(same)
}

async fn publish_all(
    addresses: &[SocketAddr],
    posts: &Arc<Posts>,
    messages: u64,
) -> anyhow::Result<Published> {
    let mut publishers = JoinSet::new();
    for address in addresses {
        let next = Arc::new(AtomicU64::new(0));
        for _ in 0..PUBLISHERS {
            publishers.spawn(publish_numbers(*address, posts.clone(), next.clone(), messages));
        }
    }
    let mut all = Published::default();
    while let Some(done) = publishers.join_next().await {
        all.add(done?);
    }
    Ok(all)
}

async fn publish_numbers(
    address: SocketAddr,
    posts: Arc<Posts>,
    next: Arc<AtomicU64>,
    messages: u64,
) -> Published {
    let mut publisher = Publisher::new(address);
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= messages {
            return publisher.published;
        }
        publisher.send(&posts, number, Instant::now()).await;
    }
}

/// Walks until `is_over`: returns how many walks, and how many rows occurred twice in one of them.
async fn walk_until(address: SocketAddr, is_over: Arc<AtomicBool>) -> anyhow::Result<(u64, u64)> {
    let (mut walks, mut repeated) = (0, 0);
    while !is_over.load(Ordering::Relaxed) {
        repeated += walk(address).await?.repeated;
        walks += 1;
    }
    Ok((walks, repeated))
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Walked {
    rows: u64,
    repeated: u64,
}

/// All pages of the published messages, from one server.
async fn walk(address: SocketAddr) -> anyhow::Result<Walked> {
    let mut connection = Connection::open(address).await?;
    let first = format!(
        "/store/v3/messages?pubsubTopic={PUBSUB_TOPIC}&contentTopics={CONTENT_TOPIC}&pageSize=100&ascending=true"
    );
    let mut path = first.clone();
    let mut walked = Walked::default();
    let mut seen: HashSet<MessageHash> = HashSet::new();
    loop {
        let mut body = Vec::new();
        let status = connection.ask(get(&path).as_bytes(), |piece| body.extend_from_slice(piece)).await?;
        ensure!(status == 200, "a page was answered with status {status}: {}", beginning(&body));
        let Ok(text) = std::str::from_utf8(&body) else { bail!("a page is not text") };
        let before = walked.rows;
        for hash in hashes(text) {
            walked.rows += 1;
            walked.repeated += u64::from(!seen.insert(hash));
        }
        let Some(cursor) = next_cursor(&body) else { return Ok(walked) };
        ensure!(walked.rows > before, "a page without rows has a cursor");
        path = format!("{first}&cursor={cursor}");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use restante_core::Timestamp;

    use super::*;
    use crate::http::tests::{serve, sized};

    /// A server that counts posts, and returns a page with two rows and one that repeats the second.
    async fn server(posts: Arc<Mutex<u64>>) -> SocketAddr {
        serve(move |line, _| {
            if line.starts_with("POST ") {
                *posts.lock().unwrap() += 1;
                return sized("200 OK", "OK");
            }
            let row = |number: u8| format!("{{\"messageHash\":\"{}\"}}", MessageHash([number; 32]));
            if line.contains("&cursor=0xab") {
                return sized("200 OK", &format!("{{\"messages\":[{},{}]}}", row(2), row(3)));
            }
            let body = format!("{{\"messages\":[{},{}],\"paginationCursor\":\"0xab\"}}", row(1), row(2));
            sized("200 OK", &body)
        })
        .await
    }

    #[tokio::test]
    async fn every_server_gets_every_message_and_repeated_rows_are_counted() {
        let counts = [Arc::new(Mutex::new(0)), Arc::new(Mutex::new(0))];
        let addresses = [server(counts[0].clone()).await, server(counts[1].clone()).await];
        let posts = Arc::new(Posts::new(0, 100, Timestamp(1)));
        let same = publish_same(&addresses, posts, 40).await.unwrap();
        assert_eq!(counts.map(|count| *count.lock().unwrap()), [40, 40]);
        assert_eq!((same.published.sent, same.published.acknowledged.len()), (80, 80));
        assert!(same.walks >= 2 && same.repeated == same.walks, "{} of {}", same.repeated, same.walks);
        assert_eq!(same.rows, (4, 4));
    }
}
