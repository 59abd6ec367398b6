//! Metrics of the number of connections, and of whether the servers that share the table see each other.

use std::time::Duration;

use prometheus_client::{metrics::gauge::Gauge, registry::Registry};
use restante_sessions::{Counts, Live};
use tokio::time::{MissedTickBehavior, interval};
use tracing::debug;

use crate::signals::Stop;

/// How often the table is queried. Its counts take constant time; in Redis, one request.
const INTERVAL: Duration = Duration::from_secs(10);

/// The connection metrics. Clones share the values.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConnectedMetrics {
    everywhere: Gauge,
    users: Gauge,
    up: Gauge,
}

impl ConnectedMetrics {
    /// Registers the metrics in `registry` as `restante_sessions_...{engine}`.
    pub(crate) fn register(&self, registry: &mut Registry, engine: &'static str) {
        let registry = registry.sub_registry_with_prefix("restante_sessions");
        let registry = registry.sub_registry_with_label(("engine".into(), engine.into()));
        let what = "Sessions of all servers that share the table, as far as they are in reach";
        registry.register("everywhere", what, self.everywhere.clone());
        registry.register("users", "Users with a session on any of these servers", self.users.clone());
        let what = "1, or 0 while the other servers are out of reach";
        registry.register("engine_up", what, self.up.clone());
    }

    fn show(&self, counts: &Counts) {
        let gauge = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        self.everywhere.set(gauge(counts.sessions));
        self.users.set(gauge(counts.users));
    }
}

/// Updates the metrics at once and then after each interval, until the server stops.
pub(crate) async fn run(live: Live, metrics: ConnectedMetrics, stop: Stop) {
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut stopped = std::pin::pin!(stop.requested());
    loop {
        tokio::select! {
            _ = ticks.tick() => ask(&live, &metrics).await,
            () = &mut stopped => return,
        }
    }
}

async fn ask(live: &Live, metrics: &ConnectedMetrics) {
    metrics.up.set(i64::from(live.nodes.health().is_ok()));
    match live.sessions.counts().await {
        Ok(counts) => metrics.show(&counts),
        Err(error) => debug!(%error, "the table of sessions could not be counted"),
    }
}

#[cfg(test)]
mod tests {
    use restante_sessions::{NewSession, SessionMetrics};

    use super::*;
    use crate::{config::Config, live};

    #[tokio::test]
    async fn sessions_and_users_are_counted() {
        let live = live::open(&Config::default(), SessionMetrics::default()).await.unwrap();
        for (user, resource) in [("juliet", "a"), ("juliet", "b"), ("romeo", "a")] {
            live.sessions.open(NewSession { user, resource, info: &[] }).await.unwrap();
        }
        let metrics = ConnectedMetrics::default();
        ask(&live, &metrics).await;
        let shown = [&metrics.everywhere, &metrics.users, &metrics.up].map(Gauge::get);
        assert_eq!(shown, [3, 2, 1]);
    }
}
