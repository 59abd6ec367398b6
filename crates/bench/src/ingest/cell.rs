//! Appending with one size of batch and one number of appenders.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use restante_archive::{Archive, EngineUrl};
use tokio::task::JoinSet;

use crate::{
    args::CommonArgs,
    machine::{bytes_written, device_bytes_written},
    measure::Latencies,
    store::{Store, append_new},
    supply::Supply,
};

/// The duration of a cell.
const DURATION: Duration = Duration::from_millis(2_500);
const DURATION_QUICK: Duration = Duration::from_millis(20);

/// The size and concurrency of appends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    pub(super) batch: usize,
    pub(super) appenders: usize,
}

/// The result of a cell.
pub(super) struct Outcome {
    pub(super) messages: u64,
    pub(super) body_bytes: u64,
    pub(super) duration: Duration,
    pub(super) appends: Latencies,
    pub(super) written_bytes: Option<u64>,
    pub(super) device_bytes: Option<u64>,
    pub(super) disk_bytes: u64,
}

impl Cell {
    /// Appends to a fresh archive, waits until all segments are sealed, and closes it.
    pub(super) async fn measure(
        self,
        store: &Store,
        supply: &Arc<Supply>,
        common: &CommonArgs,
    ) -> anyhow::Result<Outcome> {
        // A database writes in other processes, and perhaps on another disk.
        let is_local = !matches!(store.config.url, EngineUrl::Postgres(_) | EngineUrl::Cassandra(_));
        let written = || is_local.then(bytes_written).flatten();
        let device = || is_local.then(|| device_bytes_written(&store.location.folder)).flatten();
        let (written_before, device_before) = (written(), device());
        let begun = Instant::now();
        let appends = self.append(store.archive(), supply, common).await?;
        let duration = begun.elapsed();
        let stats = store.settle().await?;
        let since = |before: Option<u64>, now: Option<u64>| Some(now?.saturating_sub(before?));
        let outcome = Outcome {
            messages: stats.messages,
            body_bytes: stats.body_bytes,
            duration,
            appends,
            written_bytes: since(written_before, written()),
            device_bytes: since(device_before, device()),
            disk_bytes: stats.disk_bytes,
        };
        store.opened.upkeep.close().await?;
        Ok(outcome)
    }

    /// Runs all appenders and returns the times of their appends.
    async fn append(
        self,
        archive: &Arc<dyn Archive>,
        supply: &Arc<Supply>,
        common: &CommonArgs,
    ) -> anyhow::Result<Latencies> {
        let next = Arc::new(AtomicU64::new(0));
        let until = Instant::now() + common.pick(DURATION, DURATION_QUICK);
        let mut appenders = JoinSet::new();
        for _ in 0..self.appenders {
            let appender = Appender {
                archive: archive.clone(),
                supply: supply.clone(),
                next: next.clone(),
                messages_max: common.messages(),
                until,
            };
            appenders.spawn(appender.run(self.batch));
        }
        let mut appends = Latencies::default();
        while let Some(done) = appenders.join_next().await {
            appends.add(&done??);
        }
        Ok(appends)
    }
}

/// One of several concurrent appenders.
struct Appender {
    archive: Arc<dyn Archive>,
    supply: Arc<Supply>,
    /// The number of the next message.
    next: Arc<AtomicU64>,
    messages_max: u64,
    until: Instant,
}

impl Appender {
    /// Appends batches until the time is over or all messages are appended.
    async fn run(self, batch: usize) -> anyhow::Result<Latencies> {
        let mut appends = Latencies::default();
        loop {
            let first = self.next.fetch_add(batch as u64, Ordering::Relaxed);
            let is_used_up = first > 0 && first + batch as u64 > self.messages_max;
            if is_used_up {
                break;
            }
            let messages =
                (first..first + batch as u64).filter_map(|number| self.supply.message(number)).collect();
            let begun = Instant::now();
            append_new(&*self.archive, messages).await?;
            appends.record(begun.elapsed());
            if Instant::now() >= self.until {
                break;
            }
        }
        Ok(appends)
    }
}
