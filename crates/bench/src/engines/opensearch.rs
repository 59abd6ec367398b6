//! OpenSearch, with the published workload of full-text search: documents are indexed in bulk, then searched at a fixed rate.

mod corpus;
mod indexing;
mod requests;
mod searching;
mod settings;

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::Context;
use async_trait::async_trait;
use hyper::{Method, StatusCode};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{
    Engine, EnginesArgs, floors,
    http_client::Address,
    load::round_trip_ms,
    network,
    results::{Figures, References, Results},
    setting::EngineSetting,
    target,
    verdict::Circumstances,
};
use crate::measure::{Latencies, median, ms};
pub(crate) use requests::Requests;

const NAME: &str = "opensearch";
/// The variable that dev/services sets.
const VARIABLE: &str = "RESTANTE_OPENSEARCH_URL";
/// Shards of the published workload's index; it has no replicas.
const SHARDS: u32 = 5;
/// How long the engine may merge segments after the documents are in.
const MERGE_MAX: Duration = Duration::from_secs(180);
const GONE: &str = "the engine stopped answering: look at its log, and whether its heap is large enough";

/// Flags of `bench engines` for OpenSearch.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct OpensearchArgs {
    /// Measure this OpenSearch, http(s)://host:port; without it that of RESTANTE_OPENSEARCH_URL
    #[arg(id = "opensearch", long = "opensearch", value_name = "URL")]
    pub url: Option<String>,
    /// A file with <user>:<password> of the OpenSearch, when its URL has none
    #[arg(id = "opensearch_credentials", long = "opensearch-credentials", value_name = "FILE")]
    pub credentials: Option<PathBuf>,
}

/// Connects to the OpenSearch that is named.
pub(super) async fn connect(args: &EnginesArgs) -> anyhow::Result<Option<Box<dyn Engine>>> {
    let Some((requests, address)) = client(args)? else { return Ok(None) };
    let version = requests.check().await?;
    Ok(Some(Box::new(Opensearch { requests, address, version, index: target::fresh_name() })))
}

/// A client of the OpenSearch that is named.
///
/// # Errors
/// When it can't be used; says what to do.
pub(crate) async fn find(args: &EnginesArgs) -> anyhow::Result<Option<Requests>> {
    let Some((requests, _)) = client(args)? else { return Ok(None) };
    requests.check().await?;
    Ok(Some(requests))
}

fn client(args: &EnginesArgs) -> anyhow::Result<Option<(Requests, Address)>> {
    let Some(url) = target::named(args.opensearch.url.as_ref(), VARIABLE) else { return Ok(None) };
    let address = Address::parse(&url, "--opensearch")?;
    let credentials = match &args.opensearch.credentials {
        Some(file) => {
            let credentials = target::secret(file)?;
            let name = file.display();
            anyhow::ensure!(credentials.contains(':'), "{name} should hold <user>:<password>");
            Some(credentials)
        }
        None => address.credentials.clone(),
    };
    let requests = Requests::new(&address, credentials.as_deref(), args)?;
    Ok(Some((requests, address)))
}

struct Opensearch {
    requests: Requests,
    address: Address,
    version: String,
    /// The index of this run.
    index: String,
}

#[async_trait]
impl Engine for Opensearch {
    fn name(&self) -> &'static str {
        NAME
    }

    fn created(&self) -> String {
        format!("the index {}: curl -X DELETE {}/{}", self.index, self.address.base, self.index)
    }

    async fn settings(&self) -> anyhow::Result<Vec<EngineSetting>> {
        let mut settings = vec![EngineSetting::safe(NAME, "version", self.version.clone())];
        settings.extend(settings::read(&self.requests, self.address.is_tls, &self.address.host).await?);
        Ok(settings)
    }

    async fn measure(&self, args: &EnginesArgs, results: &Mutex<Results>) -> anyhow::Result<()> {
        self.show_floors(args, results).await?;
        let make = index_settings().to_string();
        self.requests
            .json(Method::PUT, &format!("/{}", self.index), make)
            .await
            .context("can't make an index")?;
        let documents = args.pick(20_000, 2_000);
        let accepted = self.measure_indexing(documents, results).await.context(GONE)?;
        let found = self.settle(accepted, results).await.context(GONE)?;
        // What a search should find is known only if all documents are there.
        let expected = (found == documents).then_some(documents);
        self.measure_searches(expected, args, results).await.context(GONE)
    }

    async fn clean_up(&self) -> anyhow::Result<()> {
        let path = format!("/{}", self.index);
        let answer = self.requests.send(Method::DELETE, &path, Default::default()).await?;
        match answer.status {
            StatusCode::NOT_FOUND => Ok(()),
            status if status.is_success() => Ok(()),
            _ => Err(answer.error("can't delete the index")),
        }
    }
}

/// The index of the published workload.
fn index_settings() -> Value {
    let (text, keyword) = (json!({"type": "text"}), json!({"type": "keyword"}));
    json!({
        "settings": {
            "index.number_of_shards": SHARDS,
            "index.number_of_replicas": 0,
            "index.requests.cache.enable": false,
        },
        "mappings": {
            "dynamic": "strict",
            "properties": {
                "name": keyword,
                "accession": keyword,
                "journal": text,
                "date": text,
                "volume": text,
                "issue": text,
                "timestamp": {"type": "date", "format": "yyyy-MM-dd HH:mm:ss"},
                "pmid": {"type": "integer"},
                "body": text,
            },
        },
    })
}

impl Opensearch {
    async fn show_floors(&self, args: &EnginesArgs, results: &Mutex<Results>) -> anyhow::Result<()> {
        let connect_ms = network::connect_ms(&self.address.host, self.address.port).await?;
        let empty = async || self.requests.get("/").await.map(drop);
        let round_trip = round_trip_ms(args.pick(1_000, 200), empty).await?;
        let is_local = floors::is_local(&self.address.host);
        let disk = match self.data_folder().await.filter(|_| is_local) {
            Some(folder) => floors::disk_below(Path::new(&folder), args).await?,
            None => None,
        };
        let mut results = results.lock();
        let mut table = results.table(NAME, "floors");
        table.shown("round trip of the network p50", "ms", connect_ms);
        table.shown("smallest request p50", "ms", round_trip);
        if let Some(disk) = disk {
            table.shown("synced appends of the disk", "1/s", disk.syncs_per_s);
        }
        Ok(())
    }

    /// The folder of a node that has only one; hosted ones don't report it.
    async fn data_folder(&self) -> Option<String> {
        let stats = self.requests.get("/_nodes/stats/fs").await.ok()?;
        let node = stats.get("nodes")?.as_object()?.values().next()?;
        node.pointer("/fs/data/0/path")?.as_str().map(str::to_owned)
    }

    /// Makes all documents visible to searches and waits until the segments are merged. Returns how many documents
    /// there are, and compares that with how many the engine has acknowledged.
    async fn settle(&self, acknowledged: u64, results: &Mutex<Results>) -> anyhow::Result<u64> {
        let index = &self.index;
        let begun = Instant::now();
        self.requests.json(Method::POST, &format!("/{index}/_refresh"), "").await?;
        let refresh_ms = ms(begun.elapsed());
        let begun = Instant::now();
        // The merge goes on if the answer takes too long.
        let _ = self.requests.send(Method::POST, &format!("/{index}/_forcemerge"), Default::default()).await;
        while self.merges().await? > 0 {
            anyhow::ensure!(
                begun.elapsed() < MERGE_MAX,
                "segments are still merged after {} s",
                MERGE_MAX.as_secs()
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let merge_ms = ms(begun.elapsed());
        self.requests.json(Method::POST, &format!("/{index}/_refresh"), "").await?;
        let count = self.requests.get(&format!("/{index}/_count")).await?;
        let found = count
            .get("count")
            .and_then(Value::as_u64)
            .context("the engine does not say how many documents there are")?;
        let stats = self.requests.get(&format!("/{index}/_stats/store")).await?;
        let bytes =
            stats.pointer("/_all/primaries/store/size_in_bytes").and_then(Value::as_f64).unwrap_or_default();
        let missing = Circumstances {
            errors: acknowledged.abs_diff(found),
            first_error: Some(format!("{found} documents are there, and {acknowledged} were acknowledged")),
            ..Circumstances::default()
        };
        let mut results = results.lock();
        let mut table = results.table(NAME, "index");
        table.rate("documents found", "documents", found as f64, References::NONE, &missing);
        table.shown("size on disk", "MB", bytes / 1e6);
        table.shown("refresh", "ms", refresh_ms);
        table.shown("force-merge", "ms", merge_ms);
        Ok(found)
    }

    /// Merges of segments that are running.
    async fn merges(&self) -> anyhow::Result<u64> {
        let stats = self.requests.get(&format!("/{}/_stats/merge", self.index)).await?;
        Ok(stats.pointer("/_all/total/merges/current").and_then(Value::as_u64).unwrap_or_default())
    }
}

/// A published row of percentiles, in milliseconds: 50, 90, 99 and 100.
type Percentiles = [f64; 4];

fn add_percentiles(
    table: &mut Figures<'_>,
    row: &str,
    times: &Latencies,
    published: Percentiles,
    floors: [Option<f64>; 4],
    run: &Circumstances,
) {
    for ((percentile, seed), floor) in [50.0, 90.0, 99.0, 100.0].into_iter().zip(published).zip(floors) {
        let value = times.percentile_ms(percentile);
        table.time(format!("{row} p{percentile}"), value, References { seed: Some(seed), floor }, run);
    }
}

/// The work done over time, for the least, middle and greatest throughput.
#[derive(Debug, Default)]
struct Progress(Mutex<Vec<(Duration, u64)>>);

impl Progress {
    /// Adds work that has ended after that time.
    fn add(&self, elapsed: Duration, done: u64) {
        self.0.lock().push((elapsed, done));
    }

    /// Work a second since the start, as it was after each part of the work: least, mean, median and greatest, as the
    /// published tool counts. Its warm-up is here the first quarter of the work.
    fn per_second(&self) -> [f64; 4] {
        let mut parts = self.0.lock().clone();
        parts.sort_unstable();
        let total: u64 = parts.iter().map(|(_, done)| done).sum();
        let (mut so_far, mut rates) = (0, Vec::new());
        for (elapsed, done) in parts {
            so_far += done;
            if so_far * 4 >= total {
                rates.push(so_far as f64 / elapsed.as_secs_f64().max(1e-9));
            }
        }
        let mean = rates.iter().sum::<f64>() / rates.len().max(1) as f64;
        let least = rates.iter().copied().min_by(f64::total_cmp).unwrap_or_default();
        let greatest = rates.iter().copied().max_by(f64::total_cmp).unwrap_or_default();
        [least, mean, median(rates), greatest]
    }
}

fn add_throughput(
    table: &mut Figures<'_>,
    unit: &'static str,
    progress: &Progress,
    published: [f64; 4],
    floors: [Option<f64>; 4],
    run: &Circumstances,
) {
    let names = ["min", "mean", "median", "max"].into_iter();
    for (((name, value), seed), floor) in names.zip(progress.per_second()).zip(published).zip(floors) {
        table.rate(format!("{name} throughput"), unit, value, References { seed: Some(seed), floor }, run);
    }
}

/// The counterpart of the published error rate, which is 0 everywhere.
fn add_success(table: &mut Figures<'_>, operations: u64, run: &Circumstances) {
    let all = (operations + run.errors).max(1) as f64;
    table.rate("without error", "%", operations as f64 / all * 100.0, References::seed(100.0), run);
}

#[cfg(test)]
mod tests;
