//! Load on an engine: a fixed number of clients that never pause, or operations at a fixed rate.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow, bail};
use indicatif::ProgressBar;
use parking_lot::Mutex;
use tokio::{sync::Semaphore, task::JoinSet, time::timeout};

use super::verdict::Circumstances;
use crate::{
    machine,
    measure::{Latencies, ms},
};

/// An operation that takes longer has failed.
const OPERATION_MAX: Duration = Duration::from_secs(30);
/// After this many failures in a row a measurement ends: the engine is gone.
const FAILURES_IN_A_ROW_MAX: u64 = 20;
/// The most operations in flight at a fixed rate; further ones fail.
const UNDER_WAY_MAX: usize = 1_000;

/// What an operation reports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    /// The kind of the operation, as in a row's name: "insert", "read".
    pub(crate) kind: &'static str,
    /// Bytes of payload that were sent or received.
    pub(crate) bytes: u64,
    /// The time until the first byte of the answer, where the client sees it.
    pub(crate) first_byte: Option<Duration>,
}

impl Done {
    pub(crate) fn new(kind: &'static str, bytes: usize) -> Self {
        Self { kind, bytes: bytes as u64, first_byte: None }
    }
}

/// The times of one kind of operation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Times {
    /// From sending to the end of the answer.
    pub(crate) service: Latencies,
    /// From the planned moment to the end of the answer; without a fixed rate the same as `service`.
    pub(crate) latency: Latencies,
    /// From sending to the first byte of the answer.
    pub(crate) first_byte: Latencies,
}

/// A measurement.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    /// Operations that succeeded, and their bytes.
    pub(crate) operations: u64,
    pub(crate) bytes: u64,
    pub(crate) errors: u64,
    pub(crate) first_error: Option<String>,
    pub(crate) wall: Duration,
    /// The client's own processor time.
    pub(crate) cpu: Option<Duration>,
    /// By kind, in the order in which they came.
    pub(crate) times: Vec<(&'static str, Times)>,
    in_a_row: u64,
}

impl Measured {
    pub(crate) fn per_second(&self) -> f64 {
        self.operations as f64 / self.wall.as_secs_f64().max(1e-9)
    }

    /// 10^6 bytes a second.
    pub(crate) fn mb_per_second(&self) -> f64 {
        self.bytes as f64 / 1e6 / self.wall.as_secs_f64().max(1e-9)
    }

    /// The times of a kind; empty ones if there was none of it.
    pub(crate) fn times(&self, kind: &str) -> Times {
        let found = self.times.iter().find(|(other, _)| *other == kind);
        found.map(|(_, times)| times.clone()).unwrap_or_default()
    }

    /// What the verdict on a figure of this kind of operation depends on.
    pub(crate) fn circumstances(&self, kind: &str) -> Circumstances {
        let times = self.times(kind);
        Circumstances {
            errors: self.errors,
            first_error: self.first_error.clone(),
            p50_ms: times.service.median_ms(),
            p99_ms: times.service.p99_ms(),
            has_growing_backlog: false,
            client_cpu: self.client_cpu(),
        }
    }

    /// The share of this machine's processors that the client used, 0 to 1.
    pub(crate) fn client_cpu(&self) -> Option<f64> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        let wall = self.wall.as_secs_f64();
        self.cpu.filter(|_| wall > 0.0).map(|cpu| cpu.as_secs_f64() / wall / cores)
    }

    fn add(&mut self, outcome: anyhow::Result<Done>, service: Duration, latency: Duration) {
        match outcome {
            Ok(done) => {
                self.operations += 1;
                self.bytes += done.bytes;
                self.in_a_row = 0;
                let place = self.times.iter().position(|(kind, _)| *kind == done.kind).unwrap_or_else(|| {
                    self.times.push((done.kind, Times::default()));
                    self.times.len() - 1
                });
                if let Some((_, times)) = self.times.get_mut(place) {
                    times.service.record(service);
                    times.latency.record(latency);
                    times.first_byte.record(done.first_byte.unwrap_or(service));
                }
            }
            Err(error) => {
                self.errors += 1;
                self.in_a_row += 1;
                self.first_error.get_or_insert_with(|| format!("{error:#}"));
            }
        }
    }

    fn is_hopeless(&self) -> bool {
        self.in_a_row >= FAILURES_IN_A_ROW_MAX
    }
}

/// What is common to all clients of a measurement.
struct Shared {
    measured: Mutex<Measured>,
    next: AtomicU64,
    operations: u64,
    until: Instant,
    operation_max: Duration,
    bar: ProgressBar,
}

impl Shared {
    fn new(operations: u64, limit: Duration, operation_max: Duration, bar: &ProgressBar) -> Arc<Self> {
        Arc::new(Self {
            measured: Mutex::default(),
            next: AtomicU64::new(0),
            operations,
            until: Instant::now() + limit,
            operation_max,
            bar: bar.clone(),
        })
    }

    /// The number of the next operation; `None` at the end.
    fn take(&self) -> Option<u64> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let goes_on =
            number < self.operations && Instant::now() < self.until && !self.measured.lock().is_hopeless();
        goes_on.then_some(number)
    }

    async fn operate<F, W>(&self, operation: F, planned: Option<Instant>)
    where
        F: FnOnce() -> W,
        W: Future<Output = anyhow::Result<Done>>,
    {
        let sent = Instant::now();
        let outcome = match timeout(self.operation_max, operation()).await {
            Ok(outcome) => outcome,
            Err(_) => Err(anyhow!("no answer within {} s", self.operation_max.as_secs())),
        };
        let ended = Instant::now();
        let service = ended.duration_since(sent);
        let latency = planned.map_or(service, |planned| ended.duration_since(planned));
        self.measured.lock().add(outcome, service, latency);
        self.bar.inc(1);
    }

    fn finish(&self, begun: Instant, cpu: Option<Duration>) -> anyhow::Result<Measured> {
        let mut measured = std::mem::take(&mut *self.measured.lock());
        measured.wall = begun.elapsed();
        let now = machine::processor_time("self");
        measured.cpu = now.zip(cpu).map(|(now, before)| now.saturating_sub(before));
        if measured.is_hopeless() {
            let error = measured.first_error.as_deref().unwrap_or_default();
            bail!("{FAILURES_IN_A_ROW_MAX} operations failed one after the other, the first with: {error}");
        }
        Ok(measured)
    }
}

/// `clients` clients do `operations` operations as fast as they can, or as many as fit into `limit`. The operation gets its
/// client and its number.
///
/// # Errors
/// When many operations fail one after the other.
pub(crate) async fn closed_loop<F, W>(
    clients: usize,
    operations: u64,
    limit: Duration,
    bar: &ProgressBar,
    operation: F,
) -> anyhow::Result<Measured>
where
    F: Fn(usize, u64) -> W + Clone + Send + Sync + 'static,
    W: Future<Output = anyhow::Result<Done>> + Send,
{
    closed_loop_of_long_ones(clients, operations, limit, OPERATION_MAX, bar, operation).await
}

/// The same with operations that may take up to `operation_max`.
///
/// # Errors
/// When many operations fail one after the other.
pub(crate) async fn closed_loop_of_long_ones<F, W>(
    clients: usize,
    operations: u64,
    limit: Duration,
    operation_max: Duration,
    bar: &ProgressBar,
    operation: F,
) -> anyhow::Result<Measured>
where
    F: Fn(usize, u64) -> W + Clone + Send + Sync + 'static,
    W: Future<Output = anyhow::Result<Done>> + Send,
{
    let shared = Shared::new(operations, limit, operation_max, bar);
    let (begun, cpu) = (Instant::now(), machine::processor_time("self"));
    let mut running = JoinSet::new();
    for client in 0..clients {
        let (shared, operation) = (shared.clone(), operation.clone());
        running.spawn(async move {
            while let Some(number) = shared.take() {
                shared.operate(|| operation(client, number), None).await;
            }
        });
    }
    while let Some(ended) = running.join_next().await {
        ended.context("a client of the bench panicked")?;
    }
    shared.finish(begun, cpu)
}

/// Starts `operations` operations at an even rate, whether or not earlier ones were answered.
///
/// # Errors
/// When many operations fail one after the other.
pub(crate) async fn open_loop<F, W>(
    per_second: f64,
    operations: u64,
    bar: &ProgressBar,
    operation: F,
) -> anyhow::Result<Measured>
where
    F: Fn(u64) -> W + Clone + Send + Sync + 'static,
    W: Future<Output = anyhow::Result<Done>> + Send,
{
    let interval = Duration::from_secs_f64(1.0 / per_second);
    let shared = Shared::new(operations, Duration::from_secs(3_600), OPERATION_MAX, bar);
    let places = Arc::new(Semaphore::new(UNDER_WAY_MAX));
    let (begun, cpu) = (Instant::now(), machine::processor_time("self"));
    let mut running = JoinSet::new();
    while let Some(number) = shared.take() {
        let planned = begun + interval.mul_f64(number as f64);
        tokio::time::sleep_until(planned.into()).await;
        let (shared, operation) = (shared.clone(), operation.clone());
        let Ok(place) = places.clone().try_acquire_owned() else {
            let refused = Err(anyhow!("{UNDER_WAY_MAX} operations were waiting for an answer"));
            shared.measured.lock().add(refused, Duration::ZERO, Duration::ZERO);
            continue;
        };
        running.spawn(async move {
            shared.operate(|| operation(number), Some(planned)).await;
            drop(place);
        });
    }
    while let Some(ended) = running.join_next().await {
        ended.context("a client of the bench panicked")?;
    }
    shared.finish(begun, cpu)
}

/// The median time of some calls in milliseconds, one after the other: the round trip of a connection.
pub(crate) async fn round_trip_ms<F, W>(calls: u64, call: F) -> anyhow::Result<f64>
where
    F: Fn() -> W,
    W: Future<Output = anyhow::Result<()>>,
{
    let mut times = Vec::new();
    for _ in 0..calls {
        let begun = Instant::now();
        timeout(OPERATION_MAX, call())
            .await
            .map_err(|_| anyhow!("no answer within {} s", OPERATION_MAX.as_secs()))??;
        times.push(ms(begun.elapsed()));
    }
    Ok(crate::measure::median(times))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar() -> ProgressBar {
        ProgressBar::hidden()
    }

    const LIMIT: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn clients_share_the_operations_and_kinds_are_counted_apart() {
        let operation = async |_, number| {
            let kind = if number % 5 == 0 { "insert" } else { "read" };
            Ok(Done::new(kind, 10))
        };
        let measured = closed_loop(3, 100, LIMIT, &bar(), operation).await.unwrap();
        assert_eq!((measured.operations, measured.bytes, measured.errors), (100, 1_000, 0));
        assert_eq!(measured.times("insert").service.len(), 20);
        assert_eq!(measured.times("read").service.len(), 80);
        assert_eq!(measured.times("other").service.len(), 0);
    }

    #[tokio::test]
    async fn some_failures_are_counted_and_many_in_a_row_end_it() {
        let fails_twice = async |_, number| match number {
            7 | 8 => bail!("number {number}"),
            _ => Ok(Done::new("read", 1)),
        };
        let some = closed_loop(1, 50, LIMIT, &bar(), fails_twice).await.unwrap();
        assert_eq!((some.operations, some.errors, some.first_error.as_deref()), (48, 2, Some("number 7")));
        let gone = closed_loop(4, 1_000_000, LIMIT, &bar(), async |_, _| bail!("connection refused")).await;
        let error = gone.unwrap_err().to_string();
        assert!(error.contains("connection refused"), "{error}");
    }

    #[tokio::test]
    async fn a_fixed_rate_does_not_wait_for_answers() {
        let (sender, open) = tokio::sync::watch::channel(0);
        let sender = Arc::new(sender);
        // Each operation ends when the last one has started: clients that wait for answers would never get there.
        let operation = move |_| {
            let (sender, mut open) = (sender.clone(), open.clone());
            async move {
                sender.send_modify(|begun| *begun += 1);
                open.wait_for(|begun| *begun == 5).await?;
                Ok(Done::new("search", 1))
            }
        };
        let measured = open_loop(200.0, 5, &bar(), operation).await.unwrap();
        assert_eq!((measured.operations, measured.errors), (5, 0));
        // The first one was planned 20 ms before the last one.
        assert!(measured.times("search").latency.max_ms() >= 20.0);
    }
}
