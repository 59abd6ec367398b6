//! Metrics and tracing for any engine, written once.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use async_trait::async_trait;
use tracing::{Instrument, debug, debug_span, info, warn};

use crate::{
    Appended, Archive, Error, Message, Metrics, Page, Query,
    disk_full::LogLimit,
    metrics::{ErrorLabel, ResultLabel},
};

/// An archive that counts and times the calls to another.
pub(crate) struct Observed {
    inner: Arc<dyn Archive>,
    metrics: Metrics,
    appends: Outage,
    queries: Outage,
}

/// Whether an operation has failed, and was logged, since it last succeeded. An outage is logged once, however many operations
/// fail, and outages that follow each other quickly are logged as one: on a full disk small messages may find space where large
/// ones don't.
#[derive(Default)]
struct Outage {
    is_logged: AtomicBool,
    lines: LogLimit,
}

impl Outage {
    fn begins(&self) -> bool {
        if self.is_logged.load(Ordering::Relaxed) || !self.lines.permits() {
            return false;
        }
        !self.is_logged.swap(true, Ordering::Relaxed)
    }

    fn ends(&self) -> bool {
        // Loaded first: every operation comes here, and most end no outage.
        self.is_logged.load(Ordering::Relaxed) && self.is_logged.swap(false, Ordering::Relaxed)
    }
}

impl Observed {
    pub(crate) fn new(inner: Arc<dyn Archive>, metrics: Metrics) -> Self {
        Self { inner, metrics, appends: Outage::default(), queries: Outage::default() }
    }

    fn succeeded(&self, operation: &'static str, outage: &Outage) {
        if outage.ends() {
            info!(operation, "archive operations succeed again");
        }
    }

    fn failed(&self, operation: &'static str, outage: &Outage, error: &Error) {
        let kind = error.kind().as_str();
        self.metrics.errors.get_or_create(&ErrorLabel { operation, kind }).inc();
        let is_callers_fault = matches!(kind, "invalid" | "not_found");
        if is_callers_fault {
            return;
        }
        if error.is_transient() && !outage.begins() {
            debug!(operation, kind, %error, "archive operation failed again");
        } else {
            warn!(operation, kind, %error, "archive operation failed");
        }
    }
}

#[async_trait]
impl Archive for Observed {
    async fn append(&self, messages: Vec<Message>) -> Result<Vec<Appended>, Error> {
        let span = debug_span!("archive_append", messages = messages.len());
        let begun = Instant::now();
        let result = self.inner.append(messages).instrument(span).await;
        self.metrics.append_seconds.observe(begun.elapsed().as_secs_f64());
        match &result {
            Ok(answers) => {
                self.succeeded("append", &self.appends);
                let (mut stored, mut duplicate, mut spooled) = (0, 0, 0);
                for answer in answers {
                    match answer {
                        Appended::Stored => stored += 1,
                        Appended::Duplicate => duplicate += 1,
                        Appended::Spooled => spooled += 1,
                    }
                }
                for (result, count) in [("stored", stored), ("duplicate", duplicate), ("spooled", spooled)] {
                    self.metrics.messages.get_or_create(&ResultLabel { result }).inc_by(count);
                }
            }
            Err(error) => self.failed("append", &self.appends, error),
        }
        result
    }

    async fn query(&self, query: &Query) -> Result<Page, Error> {
        let span = debug_span!("archive_query", limit = query.limit);
        let begun = Instant::now();
        let result = self.inner.query(query).instrument(span).await;
        self.metrics.query_seconds.observe(begun.elapsed().as_secs_f64());
        match &result {
            Ok(page) => {
                self.succeeded("query", &self.queries);
                self.metrics.query_rows.observe(page.len() as f64);
            }
            Err(error) => self.failed("query", &self.queries, error),
        }
        result
    }
}
