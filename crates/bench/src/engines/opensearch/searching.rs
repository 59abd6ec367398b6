//! Searches at a fixed rate, and the highest rate that the engine sustains.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use hyper::Method;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{
    super::load::{Done, Measured, Times, closed_loop, open_loop},
    EnginesArgs, NAME, Opensearch, Percentiles, Progress, References, Results, add_percentiles, add_success,
    add_throughput,
    corpus::{PHRASE, TERM, planted},
    requests::Requests,
};
use crate::progress;

/// Searches a second of the published run.
const PER_SECOND: f64 = 20.0;
/// Hits are counted up to here.
const COUNTED_MAX: u64 = 10_000;
const WARM_UP_MAX: Duration = Duration::from_secs(30);
/// A rate is sustained while 99 of 100 searches take at most this long, in milliseconds.
const BORNE_MS: f64 = 1_000.0;
/// The published rate at which the slowest percent takes a second is 25 to 30.
const PUBLISHED_LIMIT: f64 = 25.0;
/// The first rate above the published one, and the step to the next. Above ten times this step, the step is a tenth
/// of the rate.
const STEP: f64 = 5.0;
const PER_SECOND_MAX: f64 = 1_000.0;
const LIMIT_MAX: Duration = Duration::from_secs(120);

/// A kind of search with its published row.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    published: &'static str,
    throughput: [f64; 4],
    latency: Percentiles,
    service: Percentiles,
}

const KINDS: [Kind; 3] = [
    Kind {
        name: "match_all",
        published: "default",
        throughput: [19.94, 19.95, 19.95, 19.96],
        latency: [23.1322, 25.4129, 29.1382, 29.4762],
        service: [21.4895, 23.589, 26.6134, 27.9068],
    },
    Kind {
        name: "term",
        published: "term",
        throughput: [19.93, 19.94, 19.94, 19.95],
        latency: [31.0684, 34.1419, 74.7904, 103.663],
        service: [29.6775, 32.4288, 36.013, 102.193],
    },
    Kind {
        name: "phrase",
        published: "phrase",
        throughput: [19.94, 19.95, 19.95, 19.95],
        latency: [23.0255, 26.1607, 31.2094, 45.5012],
        service: [21.5109, 24.4144, 26.1865, 43.5122],
    },
];

/// A search that is ready to be sent.
#[derive(Clone)]
struct Search {
    requests: Requests,
    path: Arc<str>,
    kind: &'static str,
    body: Arc<str>,
    /// How many documents it must find.
    expected: Option<u64>,
}

impl Search {
    async fn run(self) -> anyhow::Result<Done> {
        let body = self.body.as_bytes().to_vec();
        let answer = self.requests.send(Method::POST, &self.path, body.into()).await?;
        ensure!(answer.status.is_success(), "{}", answer.error("a search failed"));
        let found =
            hits(&answer.body).context("the answer to a search does not say how many documents it found")?;
        if let Some(expected) = self.expected {
            ensure!(found == expected, "{} finds {found} documents instead of {expected}", self.kind);
        }
        Ok(Done::new(self.kind, answer.body.len()))
    }
}

/// How many documents an answer reports as found. The answer has whole documents, so it is not parsed.
fn hits(answer: &[u8]) -> Option<u64> {
    let begin = String::from_utf8_lossy(answer.get(..answer.len().min(1_000))?);
    let (_, rest) = begin.split_once("\"total\":{\"value\":")?;
    rest.split(',').next()?.parse().ok()
}

fn query(kind: &str) -> Value {
    match kind {
        "term" => json!({"query": {"term": {"body": TERM}}}),
        "phrase" => json!({"query": {"match_phrase": {"body": PHRASE}}}),
        _ => json!({"query": {"match_all": {}}}),
    }
}

impl Opensearch {
    /// `documents` is how many there are, if all were stored.
    pub(super) async fn measure_searches(
        &self,
        documents: Option<u64>,
        args: &EnginesArgs,
        results: &Mutex<Results>,
    ) -> anyhow::Result<()> {
        let searches = KINDS.map(|kind| self.search(kind.name, documents));
        let mut is_borne = true;
        for (kind, search) in KINDS.iter().zip(&searches) {
            is_borne &= measure_kind(kind, search, args, results).await?;
        }
        self.measure_limit(searches, is_borne, args, results).await
    }

    fn search(&self, kind: &'static str, documents: Option<u64>) -> Search {
        let expected = documents.map(|documents| match (kind, planted(documents)) {
            ("term", (terms, _)) => terms.min(COUNTED_MAX),
            ("phrase", (_, phrases)) => phrases.min(COUNTED_MAX),
            _ => documents.min(COUNTED_MAX),
        });
        let (path, body) = (format!("/{}/_search", self.index).into(), query(kind).to_string().into());
        Search { requests: self.requests.clone(), path, kind, body, expected }
    }

    /// Raises the rate until the engine does not sustain it.
    async fn measure_limit(
        &self,
        searches: [Search; 3],
        is_borne: bool,
        args: &EnginesArgs,
        results: &Mutex<Results>,
    ) -> anyhow::Result<()> {
        let seconds = args.pick(10, 3) as f64;
        let (begun, mut rate) = (Instant::now(), PER_SECOND + STEP);
        let mut borne = is_borne.then_some((PER_SECOND, Measured::default()));
        while is_borne && rate <= PER_SECOND_MAX && begun.elapsed() < LIMIT_MAX {
            let operations = (rate * seconds) as u64;
            let bar = progress::bar(&format!("opensearch: {rate} searches/s"), operations);
            let searches = searches.clone();
            let operation = move |number: u64| {
                let [all, term, phrase] = &searches;
                match number % 3 {
                    0 => all.clone().run(),
                    1 => term.clone().run(),
                    _ => phrase.clone().run(),
                }
            };
            let measured = open_loop(rate, operations, &bar, operation).await;
            bar.finish_and_clear();
            // An engine that refuses several searches in a row does not sustain them; one that is gone fails below.
            let Ok(measured) = measured else { break };
            if measured.errors > 0 || !bears(&measured) {
                break;
            }
            borne = Some((rate, measured));
            if args.output.quick {
                break;
            }
            rate += STEP.max((rate / 10.0).floor());
        }
        self.requests.get(&format!("/{}/_count", self.index)).await?;
        let (rate, measured) = borne.unwrap_or_default();
        let run = super::Circumstances { client_cpu: measured.client_cpu(), ..Default::default() };
        let references = References::seed(PUBLISHED_LIMIT);
        let mut results = results.lock();
        let mut table = results.table(NAME, "searches of all kinds");
        table.rate("highest rate with a p99 latency of at most 1 s", "1/s", rate, references, &run);
        Ok(())
    }
}

/// Whether the slowest percent of each kind is quick enough.
fn bears(measured: &Measured) -> bool {
    measured.times.iter().all(|(_, times)| times.latency.p99_ms() <= BORNE_MS)
}

/// A published row. Returns whether the engine sustains the rate.
async fn measure_kind(
    kind: &Kind,
    search: &Search,
    args: &EnginesArgs,
    results: &Mutex<Results>,
) -> anyhow::Result<bool> {
    let warm_up = args.pick(500, 100);
    let bar = progress::bar(&format!("opensearch: {}, warm-up", kind.name), warm_up);
    let warm = search.clone();
    closed_loop(1, warm_up, WARM_UP_MAX, &bar, move |_, _| warm.clone().run()).await?;
    bar.finish_and_clear();
    let operations = args.pick(200, 200);
    let bar = progress::bar(&format!("opensearch: {}", kind.name), operations);
    let progress = Arc::new(Progress::default());
    let begun = Instant::now();
    let operation = {
        let (search, progress) = (search.clone(), progress.clone());
        move |_| {
            let (search, progress) = (search.clone(), progress.clone());
            async move {
                let done = search.run().await?;
                progress.add(begun.elapsed(), 1);
                Ok(done)
            }
        }
    };
    let measured = open_loop(PER_SECOND, operations, &bar, operation).await;
    bar.finish_and_clear();
    let measured = measured?;
    let Times { service, latency, .. } = measured.times(kind.name);
    let mut run = measured.circumstances(kind.name);
    run.has_growing_backlog = measured.per_second() < PER_SECOND / 2.0;
    let mut results = results.lock();
    let mut table = results.table(NAME, format!("{} ({}) at {PER_SECOND}/s", kind.name, kind.published));
    add_throughput(&mut table, "1/s", &progress, kind.throughput, [None; 4], &run);
    add_percentiles(&mut table, "latency", &latency, kind.latency, [None; 4], &run);
    add_percentiles(&mut table, "service time", &service, kind.service, [None; 4], &run);
    add_success(&mut table, measured.operations, &run);
    table.curve(format!("opensearch: latency at {PER_SECOND}/s"), kind.name, &latency);
    Ok(measured.errors == 0 && bears(&measured))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_are_found_in_an_answer_that_is_cut_off() {
        let answer =
            br#"{"took":5,"_shards":{"total":5},"hits":{"total":{"value":60,"relation":"eq"},"hits":["#;
        assert_eq!(hits(answer), Some(60));
        assert_eq!(hits(b"{}"), None);
    }
}
