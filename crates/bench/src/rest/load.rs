//! The load: clients that page, one that exports, clients that publish.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use restante_core::{Clock, SystemClock, Timestamp};
use tokio::task::JoinSet;

use crate::{
    answer::{beginning, count, next_cursor},
    dataset::{DAYS, START, day_start},
    http::{Connection, get, post},
    measure::Latencies,
    random::Random,
};

/// Clients that page, each over a connection of its own.
pub(super) const READERS: u64 = 25;
/// Clients that publish, each over a connection of its own.
pub(super) const PUBLISHERS: u64 = 64;
/// The topic of published messages: another pubsub topic than the data set's.
const PUBSUB_TOPIC_ESCAPED: &str = "%2Fwaku%2F2%2Frs%2F1%2F0";
/// Bytes of a payload, so that a message has about 700 on the wire.
const PAYLOAD_BYTES: usize = 640;
const PAYLOADS: usize = 64;
/// Distance of the published timestamps: they are unique, and near the current time.
const STEP_NANOS: i64 = 1_000;

/// The result of a load.
#[derive(Clone, Debug, Default)]
pub(super) struct Load {
    /// From a request to its complete answer.
    pub(super) times: Latencies,
    /// Bytes of bodies that were received.
    pub(super) bytes: u64,
    pub(super) duration: Duration,
}

/// Pages through the data for some time; each client starts at another position.
pub(super) async fn page(address: SocketAddr, length: Duration) -> anyhow::Result<Load> {
    let mut clients = JoinSet::new();
    let begun = Instant::now();
    let span = day_start(DAYS).nanos() - START.nanos();
    for client in 0..READERS {
        let start = START.nanos() + (span / READERS as i64) * client as i64;
        clients.spawn(page_from(address, Timestamp(start), begun + length));
    }
    sum(clients, begun).await
}

/// Follows the cursor until the time is over; at the end of the data it starts again.
async fn page_from(address: SocketAddr, start: Timestamp, until: Instant) -> anyhow::Result<Load> {
    let mut connection = Connection::open(address).await?;
    let first = format!(
        "/store/v3/messages?includeData=true&pageSize=100&ascending=true&startTime={}",
        start.nanos()
    );
    let mut path = first.clone();
    let mut load = Load::default();
    let mut body = Vec::new();
    while load.times.len() == 0 || Instant::now() < until {
        body.clear();
        let asked = Instant::now();
        let status = connection.ask(get(&path).as_bytes(), |piece| body.extend_from_slice(piece)).await?;
        load.times.record(asked.elapsed());
        load.bytes += body.len() as u64;
        ensure!(status == 200, "a page was answered with status {status}: {}", beginning(&body));
        let next = next_cursor(&body);
        let is_cut = load.times.len() == 1 && next.is_some() && count(&body, b"\"messageHash\"") != 100;
        ensure!(!is_cut, "a page of 100 has {} messages", count(&body, b"\"messageHash\""));
        path = next.map_or_else(|| first.clone(), |cursor| format!("{first}&cursor={cursor}"));
    }
    Ok(load)
}

/// Exports everything once.
pub(super) async fn export(address: SocketAddr) -> anyhow::Result<Load> {
    let mut connection = Connection::open(address).await?;
    let mut load = Load::default();
    let begun = Instant::now();
    let request = get("/archive/v1/export?format=protobuf");
    let status = connection.ask(request.as_bytes(), |piece| load.bytes += piece.len() as u64).await?;
    ensure!(status == 200, "the export was answered with status {status}");
    load.duration = begun.elapsed();
    load.times.record(load.duration);
    Ok(load)
}

/// Publishes for some time.
pub(super) async fn publish(address: SocketAddr, length: Duration) -> anyhow::Result<Load> {
    let posts = Arc::new(Posts::new());
    let mut clients = JoinSet::new();
    let begun = Instant::now();
    for _ in 0..PUBLISHERS {
        clients.spawn(publish_until(address, posts.clone(), begun + length));
    }
    sum(clients, begun).await
}

async fn publish_until(address: SocketAddr, posts: Arc<Posts>, until: Instant) -> anyhow::Result<Load> {
    let mut connection = Connection::open(address).await?;
    let mut load = Load::default();
    let mut body = Vec::new();
    while load.times.len() == 0 || Instant::now() < until {
        let request = posts.next().context("there are no payloads")?;
        body.clear();
        let asked = Instant::now();
        let status = connection.ask(request.as_bytes(), |piece| body.extend_from_slice(piece)).await?;
        load.times.record(asked.elapsed());
        load.bytes += PAYLOAD_BYTES as u64;
        if status != 200 {
            bail!("a message was answered with status {status}: {}", beginning(&body));
        }
    }
    Ok(load)
}

/// Messages to publish: random payloads, generated beforehand, and a new timestamp for each message.
struct Posts {
    /// Payloads in base64.
    payloads: Vec<String>,
    start: Timestamp,
    next: AtomicU64,
}

impl Posts {
    fn new() -> Self {
        let mut random = Random::new(0, 10);
        let mut payloads = Vec::with_capacity(PAYLOADS);
        for _ in 0..PAYLOADS {
            let mut payload = [0; PAYLOAD_BYTES];
            random.fill(&mut payload);
            payloads.push(base64_simd::STANDARD.encode_to_string(payload));
        }
        Self { payloads, start: SystemClock.now(), next: AtomicU64::new(0) }
    }

    fn next(&self) -> Option<String> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let payload = self.payloads.get(number as usize % PAYLOADS)?;
        let timestamp = self.start.nanos() + number as i64 * STEP_NANOS;
        let json = format!(
            "{{\"payload\":\"{payload}\",\"contentTopic\":\"/restante-bench/1/load/proto\",\"version\":1,\
             \"timestamp\":{timestamp}}}"
        );
        Some(post(&format!("/relay/v1/messages/{PUBSUB_TOPIC_ESCAPED}"), &json))
    }
}

/// Adds up the results of all clients.
async fn sum(mut clients: JoinSet<anyhow::Result<Load>>, begun: Instant) -> anyhow::Result<Load> {
    let mut all = Load::default();
    while let Some(done) = clients.join_next().await {
        let load = done??;
        all.times.add(&load.times);
        all.bytes += load.bytes;
    }
    all.duration = begun.elapsed();
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::tests::{chunked, serve, sized};

    /// Two pages for each client, then the end; published messages must be complete.
    fn answer(line: &str, body: &str) -> Vec<u8> {
        let row = "{\"messageHash\":\"0x00\"}";
        let rows = vec![row; 100].join(",");
        if line.starts_with("POST /relay/v1/messages/%2Fwaku%2F2%2Frs%2F1%2F0 ") {
            let message: serde_json::Value = serde_json::from_str(body).unwrap();
            let is_complete = message["payload"].is_string() && message["timestamp"].is_i64();
            return sized(if is_complete { "200 OK" } else { "400 Bad Request" }, "OK");
        }
        if line.starts_with("GET /archive/v1/export?format=protobuf ") {
            return chunked(&"x".repeat(10_000));
        }
        if line.contains("cursor=0xab") {
            return chunked("{\"messages\":[]}");
        }
        assert!(line.contains("pageSize=100") && line.contains("includeData=true"), "{line}");
        sized("200 OK", &format!("{{\"messages\":[{rows}],\"paginationCursor\":\"0xab\"}}"))
    }

    #[tokio::test]
    async fn clients_page_export_and_publish() {
        let address = serve(answer).await;
        let length = Duration::from_millis(30);
        let pages = page(address, length).await.unwrap();
        assert!(pages.times.len() >= READERS && pages.bytes > 0);
        assert_eq!(export(address).await.unwrap().bytes, 10_000);
        assert!(publish(address, length).await.unwrap().times.len() >= PUBLISHERS);
    }

    #[tokio::test]
    async fn a_refusal_is_an_error_that_says_why() {
        let address = serve(|_, _| sized("503 Service Unavailable", "archive unavailable")).await;
        for result in [page(address, Duration::ZERO).await, publish(address, Duration::ZERO).await] {
            let error = result.unwrap_err().to_string();
            assert!(error.contains("503") && error.contains("archive unavailable"), "{error}");
        }
        assert!(export(address).await.is_err());
    }
}
