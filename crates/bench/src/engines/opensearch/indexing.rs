//! Documents in bulk, as many at once as the engine accepts.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use hyper::{Method, StatusCode};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::{sync::Notify, time::timeout};

use super::{
    super::load::{Done, closed_loop_of_long_ones},
    NAME, Opensearch, Percentiles, Progress, References, Results, add_percentiles, add_success,
    add_throughput,
    corpus::Corpus,
    requests::{Answer, Requests},
};
use crate::{measure::Latencies, progress};

/// As in the published run.
const CLIENTS: usize = 8;
const BULK_DOCUMENTS: usize = 500;
/// Bulks with fewer documents are not tried.
const BULK_DOCUMENTS_MIN: usize = 5;
/// How often documents of one bulk may be refused until it has failed.
const REFUSALS_MAX: u32 = 50;
/// The longest wait of a refused bulk for the end of another one.
const BACK_OFF: Duration = Duration::from_secs(5);
/// No bulk starts later.
const LIMIT: Duration = Duration::from_secs(600);
/// A slow engine needs a minute for the bulks of all clients.
const BULK_MAX: Duration = Duration::from_secs(240);
/// Processors of the three nodes of the published run: indexing is bound by them.
const PROCESSORS: f64 = 24.0;
const SEED: u64 = 1;

const THROUGHPUT: [f64; 4] = [734.63, 763.16, 746.5, 833.51];
const SERVICE: Percentiles = [4738.57, 8129.1, 11734.5, 14662.9];

/// What all clients share.
struct Filling {
    requests: Requests,
    path: String,
    corpus: Corpus,
    documents: u64,
    /// Documents of a bulk; fewer after each refusal.
    size: AtomicUsize,
    begun: Instant,
    progress: Progress,
    recorded: Mutex<Recorded>,
    /// Wakes refused bulks when another one has ended.
    ended: Notify,
}

#[derive(Default)]
struct Recorded {
    /// From sending a bulk to its answer.
    service: Latencies,
    refusals: u64,
    /// Of each accepted bulk: when it was sent and answered, and its documents.
    accepted: Vec<(Instant, Instant, u64)>,
}

impl Opensearch {
    /// Fills the index. Returns how many documents the engine has acknowledged.
    pub(super) async fn measure_indexing(
        &self,
        documents: u64,
        results: &Mutex<Results>,
    ) -> anyhow::Result<u64> {
        // The share of the published rate that the published run would reach on the processors here.
        let share = self.processors().await.map(|processors| processors / PROCESSORS);
        let before = self.collection_ms().await;
        let corpus = tokio::task::spawn_blocking(|| Corpus::new(SEED)).await?;
        let filling = Arc::new(Filling {
            requests: self.requests.clone(),
            path: format!("/{}/_bulk?filter_path=errors,items.*.status,items.*.error", self.index),
            corpus,
            documents,
            size: AtomicUsize::new(BULK_DOCUMENTS),
            begun: Instant::now(),
            progress: Progress::default(),
            recorded: Mutex::default(),
            ended: Notify::new(),
        });
        let bulks = documents.div_ceil(BULK_DOCUMENTS as u64);
        let bar = progress::bar("opensearch: index-append", bulks);
        let operation = {
            let filling = filling.clone();
            move |_, number: u64| filling.clone().deliver(number)
        };
        let measured = closed_loop_of_long_ones(CLIENTS, bulks, LIMIT, BULK_MAX, &bar, operation).await;
        bar.finish_and_clear();
        let (measured, after) = (measured?, self.collection_ms().await);
        let run = measured.circumstances("bulk");
        let recorded = std::mem::take(&mut *filling.recorded.lock());
        let mut results = results.lock();
        let mut table = results.table(NAME, format!("index-append by {CLIENTS} clients"));
        let floors = THROUGHPUT.map(|rate| share.map(|share| rate * share));
        add_throughput(&mut table, "documents/s", &filling.progress, THROUGHPUT, floors, &run);
        table.shown("throughput in bytes", "MB/s", measured.mb_per_second());
        let floors = SERVICE.map(|time| share.map(|share| time / share));
        add_percentiles(&mut table, "service time of a bulk", &recorded.service, SERVICE, floors, &run);
        // Smaller bulks are quicker, so this row belongs to those above.
        let size = filling.size.load(Ordering::Relaxed) as f64;
        table.shown("documents in a bulk", "documents", size);
        if recorded.refusals > 0 {
            table.shown("bulks refused, then sent in parts", "bulks", recorded.refusals as f64);
        }
        let (most, published) = (most_under_way(&recorded.accepted), (CLIENTS * BULK_DOCUMENTS) as u64);
        let references = References::seed(published.min(documents) as f64);
        table.rate("documents accepted at the same time", "documents", most as f64, references, &run);
        add_success(&mut table, measured.operations, &run);
        if let Some((before, after)) = before.zip(after).filter(|(before, after)| after > before) {
            let share = (after - before) / 1e3 / measured.wall.as_secs_f64() * 100.0;
            table.shown("time of nodes in garbage collection", "%", share);
        }
        table.curve("opensearch: index-append", "service time of a bulk", &recorded.service);
        Ok(recorded.accepted.iter().map(|(_, _, documents)| documents).sum())
    }

    /// Processors of all nodes; hosted ones don't report them.
    async fn processors(&self) -> Option<f64> {
        let found = self.requests.get("/_nodes/os").await.ok()?;
        let nodes = found.get("nodes")?.as_object()?;
        let of_node = |node: &Value| node.pointer("/os/allocated_processors").and_then(Value::as_f64);
        Some(nodes.values().filter_map(of_node).sum()).filter(|processors| *processors > 0.0)
    }

    /// Milliseconds that the nodes have spent on garbage collection so far, on average.
    async fn collection_ms(&self) -> Option<f64> {
        let stats = self.requests.get("/_nodes/stats/jvm").await.ok()?;
        let nodes = stats.get("nodes")?.as_object()?;
        let of_node = |node: &Value| {
            let collectors = node.pointer("/jvm/gc/collectors").and_then(Value::as_object);
            let times = collectors.into_iter().flatten();
            times
                .filter_map(|(_, collector)| collector.get("collection_time_in_millis")?.as_f64())
                .sum::<f64>()
        };
        Some(nodes.values().map(of_node).sum::<f64>() / nodes.len().max(1) as f64)
    }
}

impl Filling {
    /// Makes the documents of one bulk of the published size, and sends them in parts that the engine accepts.
    async fn deliver(self: Arc<Self>, number: u64) -> anyhow::Result<Done> {
        let first = number * BULK_DOCUMENTS as u64;
        let last = self.documents.min(first + BULK_DOCUMENTS as u64);
        let made = {
            let filling = self.clone();
            tokio::task::spawn_blocking(move || documents(&filling.corpus, first..last))
        };
        let (lines, mut left) = made.await?;
        let mut refusals = 0;
        while !left.is_empty() {
            let size = self.size.load(Ordering::Relaxed).min(left.len());
            let part: Vec<Range<usize>> = left.drain(..size).collect();
            let body = concatenated(&lines, &part)?;
            let sent = Instant::now();
            let answer = self.requests.send_within(BULK_MAX, Method::POST, &self.path, body).await?;
            let service = sent.elapsed();
            let refused = refused(&answer, part)?;
            let accepted = size - refused.len();
            if accepted > 0 {
                self.progress.add(self.begun.elapsed(), accepted as u64);
                let mut recorded = self.recorded.lock();
                recorded.service.record(service);
                recorded.accepted.push((sent, sent + service, accepted as u64));
                self.ended.notify_waiters();
            }
            if !refused.is_empty() {
                refusals += 1;
                self.recorded.lock().refusals += 1;
                if refusals > REFUSALS_MAX {
                    let why = answer.error("too many bulks were refused");
                    bail!("{why}: even {size} documents at a time");
                }
                self.size.fetch_min((size / 2).max(BULK_DOCUMENTS_MIN), Ordering::Relaxed);
                // An immediate retry would be refused again: the other bulks fill the engine.
                let _ = timeout(BACK_OFF, self.ended.notified()).await;
            }
            left.extend(refused);
        }
        Ok(Done::new("bulk", lines.len()))
    }
}

/// The most documents that were in flight at the same time in bulks that the engine accepted.
fn most_under_way(accepted: &[(Instant, Instant, u64)]) -> u64 {
    let under_way = |at: Instant| {
        let of_then = accepted.iter().filter(|(sent, answered, _)| *sent <= at && at < *answered);
        of_then.map(|(_, _, documents)| documents).sum()
    };
    accepted.iter().map(|(sent, ..)| under_way(*sent)).max().unwrap_or_default()
}

/// The lines of the documents, and where those of each begin and end.
fn documents(corpus: &Corpus, numbers: Range<u64>) -> (Vec<u8>, Vec<Range<usize>>) {
    let (mut lines, mut places) = (Vec::new(), Vec::new());
    for number in numbers {
        let start = lines.len();
        corpus.append(number, &mut lines);
        places.push(start..lines.len());
    }
    (lines, places)
}

fn concatenated(lines: &[u8], part: &[Range<usize>]) -> anyhow::Result<Bytes> {
    let documents: Option<Vec<&[u8]>> = part.iter().map(|place| lines.get(place.clone())).collect();
    Ok(documents.context("a document is not there")?.concat().into())
}

/// The documents that the engine refuses now and may accept later.
///
/// # Errors
/// When it refuses some for good.
fn refused(answer: &Answer, part: Vec<Range<usize>>) -> anyhow::Result<Vec<Range<usize>>> {
    if answer.status == StatusCode::TOO_MANY_REQUESTS {
        return Ok(part);
    }
    ensure!(answer.status.is_success(), "{}", answer.error("a bulk failed"));
    let found = answer.json()?;
    if found.get("errors").and_then(Value::as_bool) == Some(false) {
        return Ok(Vec::new());
    }
    let items = found.get("items").and_then(Value::as_array).context("the answer to a bulk has no items")?;
    ensure!(
        items.len() == part.len(),
        "the answer to a bulk of {} documents has {} items",
        part.len(),
        items.len()
    );
    let mut refused = Vec::new();
    for (item, place) in items.iter().zip(part) {
        match item.pointer("/index/status").and_then(Value::as_u64) {
            Some(200..=299) => {}
            Some(429) => refused.push(place),
            _ => bail!("a document was refused: {item}"),
        }
    }
    Ok(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(status: u16, body: &str) -> anyhow::Result<usize> {
        let answer = Answer { status: StatusCode::from_u16(status)?, body: body.to_owned().into() };
        refused(&answer, vec![0..1, 1..2]).map(|refused| refused.len())
    }

    #[test]
    fn documents_that_are_refused_for_now_are_sent_again_and_others_are_errors() {
        assert_eq!(of(200, r#"{"errors":false}"#).unwrap(), 0);
        assert_eq!(of(429, "").unwrap(), 2);
        let one = r#"{"errors":true,"items":[{"index":{"status":429}},{"index":{"status":201}}]}"#;
        assert_eq!(of(200, one).unwrap(), 1);
        let wrong = one.replace("429", "400");
        assert!(of(200, &wrong).unwrap_err().to_string().contains("was refused"));
        let fewer = r#"{"errors":true,"items":[{"index":{"status":201}}]}"#;
        assert!(of(200, fewer).is_err());
        let error = of(413, r#"{"error":{"type":"too_large","reason":"no"}}"#).unwrap_err().to_string();
        assert!(error.contains("413 too_large: no"), "{error}");
    }

    #[test]
    fn documents_under_way_are_those_of_overlapping_bulks() {
        let begun = Instant::now();
        let bulk = |sent: u64, answered: u64, documents| {
            (begun + Duration::from_secs(sent), begun + Duration::from_secs(answered), documents)
        };
        assert_eq!(most_under_way(&[bulk(0, 5, 500), bulk(1, 2, 100), bulk(2, 4, 50), bulk(5, 6, 500)]), 600);
        assert_eq!(most_under_way(&[]), 0);
    }

    #[test]
    fn a_bulk_has_its_documents_in_order() {
        let corpus = Corpus::new(0);
        let (lines, places) = documents(&corpus, 3..5);
        let mut second = Vec::new();
        corpus.append(4, &mut second);
        assert_eq!(concatenated(&lines, &places[1..]).unwrap(), second);
        assert_eq!(concatenated(&lines, &places).unwrap(), lines);
    }
}
