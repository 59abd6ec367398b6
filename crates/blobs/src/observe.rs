//! Metrics and tracing for any engine, written once.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use async_trait::async_trait;
use bytes::Bytes;
use restante_core::{BlobId, ErrorKind};
use tracing::{Instrument, debug, debug_span, info, warn};

use crate::{
    Blobs, Error, Metrics, Put, PutHook, Source,
    metrics::{ErrorLabel, ResultLabel},
};

/// Wraps a blob store to count, time and log its operations.
pub(crate) struct Observed {
    inner: Arc<dyn Blobs>,
    observer: Arc<Observer>,
}

/// The metrics and the state of logging.
struct Observer {
    metrics: Metrics,
    /// Whether the last put failed: an outage is logged once, however many puts fail.
    is_failing: AtomicBool,
}

impl Observer {
    async fn put(&self, put: impl Future<Output = Result<Put, Error>>) -> Result<Put, Error> {
        let start = Instant::now();
        let result = put.instrument(debug_span!("blob_put")).await;
        self.put_ended(start, result.as_ref());
        result
    }

    fn put_ended(&self, start: Instant, result: Result<&Put, &Error>) {
        self.metrics.put_seconds.observe(start.elapsed().as_secs_f64());
        match result {
            Ok(put) => self.succeeded(put),
            Err(error) => self.failed("put", error),
        }
    }

    fn succeeded(&self, put: &Put) {
        let result = if put.is_new { "new" } else { "known" };
        self.metrics.put_blobs.get_or_create(&ResultLabel { result }).inc();
        self.metrics.put_bytes.inc_by(put.bytes);
        // A load before the swap, because every put comes here and most end no outage.
        if self.is_failing.load(Ordering::Relaxed) && self.is_failing.swap(false, Ordering::Relaxed) {
            info!("blobs can be put again");
        }
    }

    fn failed(&self, operation: &'static str, error: &Error) {
        let kind = error.kind().as_str();
        self.metrics.errors.get_or_create(&ErrorLabel { operation, kind }).inc();
        let is_callers_fault = matches!(error.kind(), ErrorKind::Invalid | ErrorKind::NotFound);
        if is_callers_fault {
            return;
        }
        let is_known =
            operation == "put" && error.is_transient() && self.is_failing.swap(true, Ordering::Relaxed);
        if is_known {
            debug!(operation, kind, %error, "blob operation failed again");
        } else {
            warn!(operation, kind, %error, "blob operation failed");
        }
    }
}

impl Observed {
    pub(crate) fn new(inner: Arc<dyn Blobs>, metrics: Metrics) -> Self {
        Self { inner, observer: Arc::new(Observer { metrics, is_failing: AtomicBool::new(false) }) }
    }

    /// Counts the put that began at a time before it calls `done`.
    fn observed(&self, start: Instant, done: PutHook) -> PutHook {
        let observer = self.observer.clone();
        Box::new(move |result| {
            observer.put_ended(start, result.as_ref());
            done(result);
        })
    }
}

#[async_trait]
impl Blobs for Observed {
    async fn put(&self, source: &mut dyn Source) -> Result<Put, Error> {
        self.observer.put(self.inner.put(source)).await
    }

    async fn put_then(&self, source: &mut dyn Source, done: PutHook) -> Result<(), Error> {
        let start = Instant::now();
        let done = self.observed(start, done);
        let queued = self.inner.put_then(source, done).instrument(debug_span!("blob_put")).await;
        queued.inspect_err(|error| self.observer.put_ended(start, Err(error)))
    }

    async fn put_unsynced(&self, source: &mut dyn Source, done: PutHook) -> Result<(), Error> {
        let start = Instant::now();
        let done = self.observed(start, done);
        let queued = self.inner.put_unsynced(source, done).instrument(debug_span!("blob_put")).await;
        queued.inspect_err(|error| self.observer.put_ended(start, Err(error)))
    }

    async fn sync(&self) -> Result<(), Error> {
        self.inner.sync().await.inspect_err(|error| self.observer.failed("sync", error))
    }

    async fn read(&self, id: BlobId, range: Range<u64>) -> Result<Box<dyn Source>, Error> {
        match self.inner.read(id, range).instrument(debug_span!("blob_read")).await {
            Ok(source) => {
                self.observer.metrics.read_blobs.inc();
                Ok(Box::new(Counted { inner: source, observer: self.observer.clone() }))
            }
            Err(error) => {
                self.observer.failed("read", &error);
                Err(error)
            }
        }
    }

    async fn size(&self, id: BlobId) -> Result<Option<u64>, Error> {
        self.inner.size(id).await.inspect_err(|error| self.observer.failed("size", error))
    }

    async fn touch(&self, ids: &[BlobId]) -> Result<Vec<bool>, Error> {
        let found = self.inner.touch(ids).await.inspect_err(|error| self.observer.failed("touch", error))?;
        self.observer.metrics.touched_blobs.inc_by(found.iter().filter(|is_there| **is_there).count() as u64);
        Ok(found)
    }
}

/// Counts the bytes that are read.
struct Counted {
    inner: Box<dyn Source>,
    observer: Arc<Observer>,
}

#[async_trait]
impl Source for Counted {
    async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        let next = self.inner.next().await;
        match &next {
            Ok(Some(chunk)) => drop(self.observer.metrics.read_bytes.inc_by(chunk.len() as u64)),
            Ok(None) => {}
            Err(error) => self.observer.failed("read", error),
        }
        next
    }
}
