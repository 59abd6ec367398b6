//! Applies the retention policy while the server runs.

use std::{sync::Arc, time::Duration};

use restante_archive::{Error, Pruned, Retention, Upkeep};
use restante_core::ErrorKind;
use restante_operate::RetentionState;
use tracing::{debug, info, warn};

use crate::{clock, config::ArchiveSection, signals::Stop};

/// What to keep, and the interval of the checks.
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

/// The state for the console.
pub(crate) fn state(archive: &ArchiveSection) -> RetentionState {
    let Schedule { policy, interval } = archive.into();
    RetentionState::new(policy, interval)
}

/// Prunes at once and then after each interval, until the server stops. A failed prune is repeated at the next interval: the server
/// keeps running, and the disk fills slowly enough for somebody to read the log.
pub(crate) async fn run(upkeep: Arc<dyn Upkeep>, schedule: Schedule, state: RetentionState, stop: Stop) {
    if schedule.policy.is_none() {
        return;
    }
    let mut ticks = tokio::time::interval(schedule.interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut stopped = std::pin::pin!(stop.requested());
    let mut outage = Outage::default();
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                let pruned = upkeep.prune(&schedule.policy, clock::system().now()).await;
                state.note(clock::system().now(), &pruned);
                tell(pruned, &schedule.policy, &mut outage);
            }
            () = &mut stopped => return,
        }
    }
}

/// Whether the archive was unavailable the last time: an outage is logged once, not each time.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outage {
    is_requested: bool,
}

impl Outage {
    /// Records the result of a run, and returns whether it should be logged.
    fn is_news(&mut self, error: Option<&Error>) -> bool {
        let is_away = error.is_some_and(|error| error.kind() == ErrorKind::Unavailable);
        let was_told = std::mem::replace(&mut self.is_requested, is_away);
        !(is_away && was_told)
    }
}

fn tell(pruned: Result<Pruned, Error>, policy: &Retention, outage: &mut Outage) {
    let is_news = outage.is_news(pruned.as_ref().err());
    match pruned {
        Ok(pruned) if pruned == Pruned::default() => {}
        Ok(Pruned { messages, disk_bytes, parts }) => {
            info!(messages, disk_bytes, parts, %policy, "retention removed")
        }
        Err(error) if is_news => {
            warn!(%error, %policy, "retention failed: it is tried again at its next turn")
        }
        Err(error) => debug!(%error, %policy, "retention failed again"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_logged_once_and_other_failures_each_time() {
        let error = |kind| Error::new(kind, "as the test wanted");
        let (away, full) = (error(ErrorKind::Unavailable), error(ErrorKind::Full));
        let mut outage = Outage::default();
        let turns =
            [Some(&away), Some(&away), Some(&away), None, Some(&away), Some(&full), Some(&full), Some(&away)];
        let news = turns.map(|error| outage.is_news(error));
        assert_eq!(news, [true, false, false, true, true, true, true, true]);
    }
}
