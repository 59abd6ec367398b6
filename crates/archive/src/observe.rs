//! Metrics and tracing for any engine, written once.

use std::{sync::Arc, time::Instant};

use async_trait::async_trait;
use tracing::{Instrument, debug_span, warn};

use crate::{
    Appended, Archive, Error, Message, Metrics, Page, Query,
    metrics::{ErrorLabel, ResultLabel},
};

/// An archive that counts and times what is asked of another.
pub(crate) struct Observed {
    pub(crate) inner: Arc<dyn Archive>,
    pub(crate) metrics: Metrics,
}

impl Observed {
    fn failed(&self, operation: &'static str, error: &Error) {
        let kind = error.kind().as_str();
        self.metrics.errors.get_or_create(&ErrorLabel { operation, kind }).inc();
        let is_callers_fault = matches!(kind, "invalid" | "not_found");
        if !is_callers_fault {
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
                let stored = answers.iter().filter(|answer| **answer == Appended::Stored).count();
                let duplicate = answers.len() - stored;
                for (result, count) in [("stored", stored), ("duplicate", duplicate)] {
                    self.metrics.messages.get_or_create(&ResultLabel { result }).inc_by(count as u64);
                }
            }
            Err(error) => self.failed("append", error),
        }
        result
    }

    async fn query(&self, query: &Query) -> Result<Page, Error> {
        let span = debug_span!("archive_query", limit = query.limit);
        let begun = Instant::now();
        let result = self.inner.query(query).instrument(span).await;
        self.metrics.query_seconds.observe(begun.elapsed().as_secs_f64());
        match &result {
            Ok(page) => self.metrics.query_rows.observe(page.len() as f64),
            Err(error) => self.failed("query", error),
        }
        result
    }
}
