//! Opens the search index that the settings name, and the follower that fills it.

use std::{io, path::Path, sync::Arc, thread, time::Duration};

use anyhow::Context;
use restante_core::{Clock, ErrorKind};
pub(super) use restante_indexer::Indexer;
use restante_operate::RoleCheck;
use restante_search::{EngineUrl, Metrics, Opened};
use tokio::{runtime::Builder, sync::watch, time::timeout};
use tracing::{debug, warn};

use super::stores::Stores;
use crate::{config::Config, exit, secrets, signals::Stop};

/// Opens the search index of the settings, and creates it if it does not exist.
pub(super) async fn open(config: &Config, metrics: Metrics) -> anyhow::Result<Opened> {
    open_with(config, metrics, false).await
}

/// Replaces a damaged index by an empty one, which a server then fills.
pub(crate) async fn make_again(config: &Config) -> anyhow::Result<()> {
    let opened = open(config, Metrics::default()).await?;
    opened.upkeep.close().await.context("can't close the search index")
}

/// The same for a command, which creates and removes nothing.
pub(crate) async fn open_existing(config: &Config) -> anyhow::Result<Opened> {
    open_with(config, Metrics::default(), true).await.map_err(|error| match exit::kind(&error) {
        Some(ErrorKind::Conflict) => {
            restante_search::Error::conflict(format!("{error:#}, or use --rest URL for a running server"))
                .into()
        }
        Some(ErrorKind::NotFound) => {
            let advice = "name the server's folder with --data, or the index with --search";
            restante_search::Error::not_found(format!("{error:#}: {advice}")).into()
        }
        _ => error,
    })
}

async fn open_with(config: &Config, metrics: Metrics, must_exist: bool) -> anyhow::Result<Opened> {
    let url = with_password(config.search_url(), &config.search.opensearch.password_file)?;
    let settings = restante_search::Config {
        tantivy: config.search.tantivy,
        opensearch: config.search.opensearch.engine.clone(),
        must_exist,
        metrics,
        ..restante_search::Config::new(url.clone())
    };
    restante_search::open(settings).await.with_context(|| format!("can't open the search index {url}"))
}

/// The URL of a server with the password from a file, unless the URL has its own.
fn with_password(url: EngineUrl, file: &Path) -> anyhow::Result<EngineUrl> {
    match url {
        EngineUrl::Opensearch(place) if !file.as_os_str().is_empty() => {
            Ok(EngineUrl::Opensearch(place.with_password(secrets::read("password", file)?)))
        }
        other => Ok(other),
    }
}

/// Whether it works.
pub(super) fn health(search: &Opened) -> RoleCheck {
    let upkeep = search.upkeep.clone();
    RoleCheck { name: "search", problem: Arc::new(move || upkeep.health().err().map(|e| e.to_string())) }
}

/// Makes it commit what was written. If that fails, nothing is lost: the next start writes it again.
pub(super) async fn close(search: &Opened, limit: Duration) {
    match timeout(limit, search.upkeep.close()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            warn!(%error, "what was written to the search index last is written again by the next start");
        }
        Err(_) => warn!(seconds = limit.as_secs_f64(), "the search index was not closed in time"),
    }
}

/// The follower that fills the index.
pub(super) fn indexer(
    stores: &Stores,
    search: &Opened,
    clock: Arc<dyn Clock>,
    follow: restante_follow::Metrics,
    metrics: restante_indexer::Metrics,
) -> Indexer {
    let (records, blobs) = (stores.records.clone(), stores.blobs.blobs.clone());
    Indexer::new(records, blobs, search.clone(), clock, follow, metrics)
}

/// Threads for blocking work: the indexer does one thing at a time.
const BLOCKING_THREADS_MAX: usize = 4;
/// The nice value of the indexer's threads: under load they get about a tenth of the time of other threads, and all idle time. A query
/// also searches emails that are not in the index yet, so nobody has to wait for the indexer.
const NICENESS: i32 = 10;

/// A running indexer.
pub(super) struct Indexing(watch::Receiver<()>);

impl Indexing {
    /// Waits until it has ended, which it does after the server was stopped.
    pub(super) async fn ended(&self, limit: Duration) {
        let mut end = self.0.clone();
        if timeout(limit, end.changed()).await.is_err() {
            warn!(seconds = limit.as_secs_f64(), "the indexer did not end in time");
        }
    }
}

/// Runs the indexer until the server stops, on separate threads with a lower priority: indexing an email takes more processor time than
/// delivering it, and would delay deliveries.
pub(super) fn spawn(indexer: Indexer, stop: &Stop) -> Indexing {
    let (stop, (ended, end)) = (stop.clone(), watch::channel(()));
    let run = move || {
        let _ended = ended; // dropped when the thread ends
        if let Err(error) = run_apart(indexer, stop) {
            warn!(%error, "the indexer can't start: emails are searched without an index, which is slow");
        }
    };
    let started = thread::Builder::new().name("indexer".to_owned()).spawn(run);
    if let Err(error) = started {
        warn!(%error, "the indexer can't start: emails are searched without an index, which is slow");
    }
    Indexing(end)
}

fn run_apart(indexer: Indexer, stop: Stop) -> io::Result<()> {
    lower_priority();
    let runtime = Builder::new_current_thread()
        .enable_all()
        .thread_name("indexer-work")
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .on_thread_start(lower_priority)
        .build()?;
    if let Err(error) = runtime.block_on(indexer.run(stop.requested())) {
        warn!(%error, "what was written to the search index last is written again by the next start");
    }
    Ok(())
}

/// Lowers the priority of the current thread, and of those that it starts.
fn lower_priority() {
    if let Err(error) = rustix::process::setpriority_process(None, NICENESS) {
        debug!(%error, "can't lower the priority of the indexer");
    }
}
