//! Opens the search index that the settings name, and the follower that fills it.

use std::{sync::Arc, time::Duration};

use anyhow::Context;
use restante_core::Clock;
pub(super) use restante_indexer::Indexer;
use restante_operate::RoleCheck;
use restante_search::{Metrics, Opened};
use tokio::{task::JoinHandle, time::timeout};
use tracing::warn;

use super::stores::Stores;
use crate::{config::Config, signals::Stop};

/// Opens the search index of the settings, and makes it when it is not there.
pub(super) async fn open(config: &Config, metrics: Metrics) -> anyhow::Result<Opened> {
    let url = config.search_url();
    let settings = restante_search::Config {
        tantivy: config.search.tantivy,
        metrics,
        ..restante_search::Config::new(url.clone())
    };
    restante_search::open(settings).await.with_context(|| format!("can't open the search index {url}"))
}

/// Whether it works.
pub(super) fn health(search: &Opened) -> RoleCheck {
    let upkeep = search.upkeep.clone();
    RoleCheck { name: "search", problem: Arc::new(move || upkeep.health().err().map(|e| e.to_string())) }
}

/// Lets it commit what was written.
pub(super) async fn close(search: &Opened, limit: Duration) -> anyhow::Result<()> {
    let closed = timeout(limit, search.upkeep.close()).await;
    closed
        .with_context(|| format!("the search index was not closed within {} s", limit.as_secs_f64()))?
        .context("can't close the search index")
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

/// Lets the follower work until the server stops.
pub(super) fn spawn(indexer: Indexer, stop: &Stop) -> JoinHandle<()> {
    let stop = stop.clone();
    tokio::spawn(async move {
        if let Err(error) = indexer.run(stop.requested()).await {
            warn!(%error, "what was written to the search index last is written again by the next start");
        }
    })
}
