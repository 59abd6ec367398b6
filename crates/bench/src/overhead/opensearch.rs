//! OpenSearch: writing the documents of emails, compared with bulk requests with the same lines, and a search for a word,
//! compared with the least query that finds the same.

use std::{
    fmt::Write,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use async_trait::async_trait;
use hyper::{Method, StatusCode};
use restante_search::{
    AccountId, Batch, Config, Document, Filter, Opened, Order, Query, RecordId, Revision, SearchText, Series,
};
use serde_json::{Value, json};

use super::{
    Bench, OverheadArgs, RAW, Server, Subject,
    pairs::{Bound, Load, load},
};
use crate::{
    engines::{
        fresh_name,
        opensearch::{self, Requests},
        target,
    },
    measure::{median, ms},
    progress,
    random::Random,
    report::number,
};

const NAME: &str = "opensearch";
const VARIABLE: &str = "RESTANTE_OPENSEARCH_URL";
/// Documents of a commit, and of a bulk request: what restante's follower writes at once.
const BULK: u64 = 500;
/// Emails that are searched, and hits of a page.
const SEARCHED: u64 = 10_000;
const SEARCHED_QUICK: u64 = 1_000;
const HITS: usize = 50;
/// The account that is written to, and the one that is searched.
const WRITTEN: AccountId = AccountId(1);
const READ: AccountId = AccountId(2);
/// Words of a body and of a subject, and the size of the vocabulary.
const BODY_WORDS: usize = 300;
const SUBJECT_WORDS: usize = 6;
const VOCABULARY: u64 = 2_000;
const FIRST_RECEIVED: i64 = 1_700_000_000;

/// Connects to the OpenSearch that is named.
pub(super) async fn connect(args: &OverheadArgs) -> anyhow::Result<Option<Box<dyn Server>>> {
    let Some(requests) = opensearch::find(&args.engines()).await? else { return Ok(None) };
    let url = target::named(None, VARIABLE).context("there is no URL")?;
    let url = url.replacen("http", "opensearch", 1);
    Ok(Some(Box::new(Opensearch { url, requests, name: fresh_name().replace('_', "-") })))
}

struct Opensearch {
    /// In restante's form.
    url: String,
    requests: Requests,
    /// The alias of the engine; all names of this run begin with it.
    name: String,
}

#[async_trait(?Send)]
impl Server for Opensearch {
    fn name(&self) -> &'static str {
        NAME
    }

    fn created(&self) -> String {
        format!("DELETE /{}*", self.name)
    }

    async fn measure(&self, bench: &mut Bench<'_>) -> anyhow::Result<()> {
        let mut config = Config::new(self.url.parse()?);
        config.opensearch.prefix.clone_from(&self.name);
        config.opensearch.replicas = 0; // there may be one node
        let opened = restante_search::open(config).await.context("can't open the index")?;
        let series = opened.index.begin().await?.series;
        // First, while the engine's index is empty as well.
        self.measure_writes(bench, &opened, series).await?;
        self.measure_searches(bench, &opened, series).await?;
        opened.upkeep.close().await?;
        Ok(())
    }

    async fn clean_up(&self) -> anyhow::Result<()> {
        // Wildcards may be forbidden, so each index is named.
        let found = self.requests.get(&format!("/_cat/indices/{}*?format=json", self.name)).await?;
        let names = found.as_array().map(Vec::as_slice).unwrap_or_default();
        for name in names.iter().filter_map(|index| index.get("index")?.as_str()) {
            let answer = self.requests.send(Method::DELETE, &format!("/{name}"), Default::default()).await?;
            let is_gone = answer.status.is_success() || answer.status == StatusCode::NOT_FOUND;
            if !is_gone {
                return Err(answer.error("can't delete an index"));
            }
        }
        Ok(())
    }
}

impl Opensearch {
    fn raw_index(&self) -> String {
        format!("{}-raw", self.name)
    }

    async fn measure_searches(
        &self,
        bench: &mut Bench<'_>,
        opened: &Opened,
        series: Series,
    ) -> anyhow::Result<()> {
        let emails = if bench.args.output.quick { SEARCHED_QUICK } else { SEARCHED };
        let bar = progress::bar("emails", emails);
        for first in (0..emails).step_by(BULK as usize) {
            write(opened, series, READ, first).await?;
            bar.inc(BULK);
        }
        bar.finish_and_clear();
        let base = async |span| {
            let (requests, name) = (self.requests.clone(), self.name.clone());
            load(1, span, move |_, number| raw_search(requests.clone(), name.clone(), number)).await
        };
        let ours = async |span| {
            let search = opened.search.clone();
            load(1, span, move |_, number| {
                let search = search.clone();
                async move {
                    let filter = Filter::Text(SearchText::parse(&word_of_search(number))?);
                    let order = Order::NewestFirst;
                    let page = search.query(READ, &Query { filter, order, after: None, limit: HITS }).await?;
                    ensure!(page.hits.len() == HITS, "{} emails were found", page.hits.len());
                    Ok(())
                }
            })
            .await
        };
        let what = format!("newest 50 emails with a word, among {}", number(emails as f64));
        let bounds = [Bound::TimeAndMs(1.1, 5.0)];
        bench.compare(Subject { what: &what, beside: RAW }, &bounds, base, ours).await
    }

    async fn measure_writes(
        &self,
        bench: &mut Bench<'_>,
        opened: &Opened,
        series: Series,
    ) -> anyhow::Result<()> {
        self.make_raw_index().await?;
        let (next, next_raw) = (AtomicU64::new(0), AtomicU64::new(0));
        // Both have one request at a time, as restante's follower does.
        let base = async |span| {
            writes(span, async || self.raw_write(next_raw.fetch_add(BULK, Ordering::Relaxed)).await).await
        };
        let ours = async |span| {
            writes(span, async || {
                let first = next.fetch_add(BULK, Ordering::Relaxed);
                write(opened, series, WRITTEN, first).await
            })
            .await
        };
        let subject = Subject { what: "index 500 emails of 2 kB and make them visible", beside: RAW };
        bench.compare(subject, &[Bound::Rate(0.9)], base, ours).await
    }

    /// Makes an index like that of the engine.
    async fn make_raw_index(&self) -> anyhow::Result<()> {
        let found = self.requests.get(&format!("/{}", self.name)).await?;
        let own = found.as_object().and_then(|found| found.values().next()).context("there is no index")?;
        let mut settings = own.pointer("/settings/index").cloned().context("an index without settings")?;
        if let Some(settings) = settings.as_object_mut() {
            for of_one_index in ["creation_date", "uuid", "version", "provided_name"] {
                settings.remove(of_one_index);
            }
        }
        let mappings = own.get("mappings").context("an index without mappings")?;
        let body = json!({"settings": {"index": settings}, "mappings": mappings}).to_string();
        self.requests.json(Method::PUT, &format!("/{}", self.raw_index()), body).await?;
        Ok(())
    }

    /// A bulk request, and a refresh that makes its documents visible.
    async fn raw_write(&self, first: u64) -> anyhow::Result<()> {
        let mut lines = String::new();
        for number in first..first + BULK {
            raw_lines(&mut lines, WRITTEN, number)?;
        }
        let index = self.raw_index();
        let answer = self.requests.json(Method::POST, &format!("/{index}/_bulk"), lines).await?;
        if answer.get("errors") != Some(&Value::Bool(false)) {
            bail!("OpenSearch did not take all documents");
        }
        self.requests.json(Method::POST, &format!("/{index}/_refresh"), "").await?;
        Ok(())
    }
}

/// Repeats writes, one after the other.
async fn writes(span: Duration, write: impl AsyncFn() -> anyhow::Result<()>) -> anyhow::Result<Load> {
    let (begun, mut times) = (Instant::now(), Vec::new());
    while begun.elapsed() < span {
        let sent = Instant::now();
        write().await?;
        times.push(ms(sent.elapsed()));
    }
    Ok(Load { per_second: times.len() as f64 / begun.elapsed().as_secs_f64(), p50_ms: median(times) })
}

/// Writes and commits documents.
async fn write(opened: &Opened, series: Series, account: AccountId, first: u64) -> anyhow::Result<()> {
    let documents = (first..first + BULK).map(document).collect();
    let revision = Some(Revision(first + BULK));
    opened.index.write(series, account, Batch { removed: Vec::new(), documents, revision }).await?;
    opened.index.commit(series).await?;
    Ok(())
}

/// A word of letters, the same for a number in each run.
fn word(number: u64) -> String {
    let mut word = String::from("w");
    let mut rest = number;
    for _ in 0..4 {
        word.push(char::from(b'a' + (rest % 26) as u8));
        rest /= 26;
    }
    word
}

fn words(random: &mut Random, count: usize) -> String {
    (0..count).map(|_| word(random.below(VOCABULARY))).collect::<Vec<_>>().join(" ")
}

fn word_of_search(number: u64) -> String {
    word(Random::new(number, 2).below(VOCABULARY))
}

fn document(number: u64) -> Document {
    let mut random = Random::new(number, 1);
    Document {
        id: RecordId(number + 1),
        received: FIRST_RECEIVED + number as i64,
        from: vec![words(&mut random, 2)],
        to: vec![words(&mut random, 2)],
        subject: words(&mut random, SUBJECT_WORDS),
        body: vec![words(&mut random, BODY_WORDS)],
        ..Document::default()
    }
}

/// The lines that the engine sends for a document: `docs/formats/search-opensearch.md`.
fn raw_lines(lines: &mut String, account: AccountId, number: u64) -> anyhow::Result<()> {
    let Document { id, received, from, to, subject, body, .. } = document(number);
    let outside =
        |text: &String| text.split(' ').map(|word| format!("~{word}")).collect::<Vec<_>>().join(" ");
    let all: Vec<String> =
        body.into_iter().chain(from.iter().chain(&to).chain([&subject]).map(outside)).collect();
    let account = account.0.to_string();
    let action = json!({"index": {
        "_id": format!("{account}-{}", id.0), "routing": account, "version": 1, "version_type": "external_gte",
    }});
    let source = json!({
        "account": account,
        "number": (id.0 ^ (1 << 63)).cast_signed(),
        "received": received,
        "words": all,
        "from": from, "to": to, "cc": [], "bcc": [], "subject": [subject], "attachments": [], "headers": [],
    });
    writeln!(lines, "{action}\n{source}")?;
    Ok(())
}

/// The least query for the newest emails of an account with a word, in the engine's own index.
async fn raw_search(requests: Requests, index: String, number: u64) -> anyhow::Result<()> {
    let (account, word) = (READ.0.to_string(), word_of_search(number));
    let body = json!({
        "size": HITS,
        "_source": false,
        "stored_fields": "_none_",
        "track_total_hits": false,
        "query": {"bool": {"filter": [
            {"term": {"account": account}},
            {"terms": {"words": [word, format!("~{word}")]}},
        ]}},
        "sort": [{"received": "desc"}, {"number": "desc"}],
    });
    let path = format!("/{index}/_search?routing={account}");
    let found = requests.json(Method::POST, &path, body.to_string()).await?;
    let hits = found.pointer("/hits/hits").and_then(Value::as_array).map_or(0, Vec::len);
    ensure!(hits == HITS, "{hits} emails were found");
    Ok(())
}
