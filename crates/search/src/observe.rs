//! Metrics and tracing for any engine, written once.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use async_trait::async_trait;
use bytes::Bytes;
use restante_core::ErrorKind;
use tracing::{Instrument, debug, debug_span, info, warn};

use crate::{
    AccountId, Batch, Begun, Error, Index, Metrics, Opened, Page, Query, Report, Revision, Search, Series,
    Stats, Upkeep, metrics::Operation,
};

/// A search index that counts and times the calls to another one.
struct Observed {
    inner: Opened,
    metrics: Metrics,
    is_query_outage: AtomicBool,
    is_write_outage: AtomicBool,
}

/// The same index, with all calls to it counted.
pub(crate) fn observe(inner: Opened, metrics: Metrics) -> Opened {
    let (is_query_outage, is_write_outage) = (AtomicBool::new(false), AtomicBool::new(false));
    let observed = Arc::new(Observed { inner, metrics, is_query_outage, is_write_outage });
    Opened { search: observed.clone(), index: observed.clone(), upkeep: observed }
}

impl Observed {
    /// Counts an error. An outage is logged once, regardless of how many operations fail meanwhile. An outage of writes lasts until a
    /// commit succeeds: a write to memory alone may succeed.
    fn noted<T>(&self, operation: Operation, result: Result<T, Error>) -> Result<T, Error> {
        let is_outage = match operation {
            Operation::Query => &self.is_query_outage,
            Operation::Write | Operation::Upkeep => &self.is_write_outage,
        };
        let Err(error) = &result else {
            let is_over = || operation == Operation::Query || self.inner.upkeep.health().is_ok();
            if is_outage.load(Ordering::Relaxed) && is_over() && is_outage.swap(false, Ordering::Relaxed) {
                info!(operation = operation.as_str(), "search operations succeed again");
            }
            return result;
        };
        self.metrics.errors_of(operation, error.kind()).inc();
        let (operation, kind) = (operation.as_str(), error.kind().as_str());
        match error.kind() {
            ErrorKind::Invalid | ErrorKind::NotFound | ErrorKind::Conflict => {}
            _ if error.is_transient() && is_outage.swap(true, Ordering::Relaxed) => {
                debug!(operation, kind, %error, "search operation failed again");
            }
            _ => warn!(operation, kind, %error, "search operation failed"),
        }
        result
    }
}

#[async_trait]
impl Search for Observed {
    async fn query(&self, account: AccountId, query: &Query) -> Result<Page, Error> {
        let span = debug_span!("search_query", account = account.0, limit = query.limit);
        let begun = Instant::now();
        let result = self.inner.search.query(account, query).instrument(span).await;
        self.metrics.query_seconds.observe(begun.elapsed().as_secs_f64());
        if let Ok(page) = &result {
            self.metrics.query_hits.observe(page.hits.len() as f64);
        }
        self.noted(Operation::Query, result)
    }
}

#[async_trait]
impl Index for Observed {
    async fn begin(&self) -> Result<Begun, Error> {
        self.noted(Operation::Write, self.inner.index.begin().await)
    }

    async fn ended(&self, series: Series) {
        self.inner.index.ended(series).await;
    }

    async fn write(&self, series: Series, account: AccountId, batch: Batch) -> Result<(), Error> {
        let (documents, removed) = (batch.documents.len() as u64, batch.removed.len() as u64);
        let span = debug_span!("search_write", account = account.0, documents, removed);
        let result = self.inner.index.write(series, account, batch).instrument(span).await;
        if result.is_ok() {
            self.metrics.documents.inc_by(documents);
            self.metrics.removed.inc_by(removed);
        }
        self.noted(Operation::Write, result)
    }

    async fn erase(&self, series: Series, account: AccountId) -> Result<(), Error> {
        self.noted(Operation::Write, self.inner.index.erase(series, account).await)
    }

    async fn save(&self, series: Series, checkpoint: Bytes) -> Result<(), Error> {
        self.noted(Operation::Write, self.inner.index.save(series, checkpoint).await)
    }

    async fn revisions(&self, series: Series, accounts: &[AccountId]) -> Result<Vec<Revision>, Error> {
        self.noted(Operation::Write, self.inner.index.revisions(series, accounts).await)
    }

    async fn commit(&self, series: Series) -> Result<(), Error> {
        self.noted(Operation::Write, self.inner.index.commit(series).await)
    }
}

#[async_trait]
impl Upkeep for Observed {
    fn health(&self) -> Result<(), Error> {
        self.inner.upkeep.health()
    }

    async fn stats(&self) -> Result<Stats, Error> {
        self.noted(Operation::Upkeep, self.inner.upkeep.stats().await)
    }

    async fn check(&self, progress: &(dyn Fn(u64, u64) + Send + Sync)) -> Result<Report, Error> {
        self.noted(Operation::Upkeep, self.inner.upkeep.check(progress).await)
    }

    async fn clear(&self) -> Result<(), Error> {
        self.noted(Operation::Upkeep, self.inner.upkeep.clear().await)
    }

    async fn rebuild(&self) -> Result<(), Error> {
        self.noted(Operation::Upkeep, self.inner.upkeep.rebuild().await)
    }

    async fn close(&self) -> Result<(), Error> {
        self.noted(Operation::Upkeep, self.inner.upkeep.close().await)
    }
}
