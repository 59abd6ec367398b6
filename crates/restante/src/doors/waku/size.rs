//! Metrics of how much the archive stores.

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use prometheus_client::{metrics::gauge::Gauge, registry::Registry};
use restante_archive::{Stats, Upkeep};
use tokio::time::{MissedTickBehavior, interval};
use tracing::debug;

use crate::signals::Stop;

/// The interval of the queries. The archive answers from maintained counts, but a database is queried over a network.
const INTERVAL: Duration = Duration::from_secs(60);

/// The metrics of the archive's contents. Clones share the values.
#[derive(Clone, Debug, Default)]
pub(crate) struct SizeMetrics {
    messages: Gauge,
    body_bytes: Gauge,
    disk_bytes: Gauge,
    topics: Gauge,
    oldest: Gauge<f64, AtomicU64>,
}

impl SizeMetrics {
    /// Registers the metrics in `registry` as `restante_archive_...{engine}`.
    pub(crate) fn register(&self, registry: &mut Registry, engine: &'static str) {
        let registry = registry.sub_registry_with_prefix("restante_archive");
        let registry = registry.sub_registry_with_label(("engine".into(), engine.into()));
        registry.register("stored_messages", "Messages in the archive", self.messages.clone());
        registry.register("body_bytes", "Bytes of all messages in the archive", self.body_bytes.clone());
        registry.register("disk_bytes", "Bytes that the archive takes on disk", self.disk_bytes.clone());
        registry.register("topics", "Distinct topics in the archive", self.topics.clone());
        let what = "Timestamp of the oldest message in the archive, Unix time, or 0";
        registry.register("oldest_timestamp_seconds", what, self.oldest.clone());
    }

    fn show(&self, stats: &Stats) {
        let gauge = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        self.messages.set(gauge(stats.messages));
        self.body_bytes.set(gauge(stats.body_bytes));
        self.disk_bytes.set(gauge(stats.disk_bytes));
        self.topics.set(gauge(stats.topics));
        self.oldest.set(stats.oldest.map_or(0.0, |oldest| oldest.nanos() as f64 / 1e9));
    }
}

/// Updates the metrics at once and then after each interval, until the server stops. If the archive does not respond, the last values
/// remain.
pub(crate) async fn run(upkeep: Arc<dyn Upkeep>, metrics: SizeMetrics, stop: Stop) {
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut stopped = std::pin::pin!(stop.requested());
    loop {
        tokio::select! {
            _ = ticks.tick() => match upkeep.stats().await {
                Ok(stats) => metrics.show(&stats),
                Err(error) => debug!(%error, "the size of the archive could not be read"),
            },
            () = &mut stopped => return,
        }
    }
}
