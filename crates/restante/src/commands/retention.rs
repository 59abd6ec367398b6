//! Keeps the retention policy while the server runs.

use std::{sync::Arc, time::Duration};

use restante_archive::{Pruned, Retention, Upkeep};
use tracing::{info, warn};

use crate::{archives, config::ArchiveSection, signals::Stop};

/// What to keep, and how often to look.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Schedule {
    policy: Retention,
    interval: Duration,
}

impl From<&ArchiveSection> for Schedule {
    fn from(archive: &ArchiveSection) -> Self {
        let interval = Duration::from_secs(archive.retention_interval_seconds.get());
        Self { policy: archive.retention, interval }
    }
}

/// Prunes at once and then after each interval, until the server is told to stop. A prune that fails is tried again at
/// the next turn: the server goes on, and the disk fills slowly enough for somebody to read the log.
pub(crate) async fn run(upkeep: Arc<dyn Upkeep>, schedule: Schedule, stop: Stop) {
    if schedule.policy.is_none() {
        return;
    }
    let mut ticks = tokio::time::interval(schedule.interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut told = std::pin::pin!(stop.told());
    loop {
        tokio::select! {
            _ = ticks.tick() => prune(&*upkeep, &schedule.policy).await,
            () = &mut told => return,
        }
    }
}

async fn prune(upkeep: &dyn Upkeep, policy: &Retention) {
    match upkeep.prune(policy, archives::clock().now()).await {
        Ok(pruned) if pruned == Pruned::default() => {}
        Ok(Pruned { messages, disk_bytes, parts }) => {
            info!(messages, disk_bytes, parts, %policy, "retention removed")
        }
        Err(error) => warn!(%error, %policy, "retention failed: it is tried again at its next turn"),
    }
}
