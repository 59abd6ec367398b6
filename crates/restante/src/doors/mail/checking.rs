//! Checks of incoming mail from other servers, as the settings request them.

use std::{pin::pin, sync::Arc, time::Duration};

use anyhow::Context;
use restante_checks::{
    Authenticator, Checks, ChecksMetrics, ClientChecks, ClientLookups, Filter, Greylist, Parts, Rspamd,
};
use restante_core::Clock;
use restante_mail::{message, quarantine::Quarantine};
use restante_net::dns::{Resolver, ResolverConfig, SystemResolver};
use restante_records::EngineUrl;
use tokio::{
    task::{JoinHandle, spawn_blocking},
    time::{MissedTickBehavior, interval, timeout},
};
use tracing::{info, warn};

use super::reporting::{Reporting, ReportingParts};
use crate::{config::Config, signals::Stop};

/// The most DNS answers that are cached: names of clients and keys of signatures are queried again and again.
const ANSWERS_MAX: u64 = 65_536;
/// How often expired mail is removed from the quarantine.
const EXPIRE_INTERVAL: Duration = Duration::from_secs(3_600);

/// The active checks, and what they remember.
pub(super) struct Checking {
    checks: Checks,
    greylist: Option<Arc<Greylist>>,
    /// Counts and reports the results.
    reporting: Option<Reporting>,
}

impl Checking {
    /// Opens what the checks need; `None` when the settings disable them, or no mail comes from other servers.
    pub(super) async fn open(
        config: &Config,
        filter: Option<Arc<Rspamd>>,
        clock: Arc<dyn Clock>,
        metrics: ChecksMetrics,
        reporting: ReportingParts<'_>,
    ) -> anyhow::Result<Option<Self>> {
        let settings = &config.checks;
        if !settings.enabled || config.smtp.listen.is_empty() {
            return Ok(None);
        }
        let asked = ResolverConfig { cached_max: ANSWERS_MAX, ..config.delivery.remote.resolver() };
        let resolver = SystemResolver::new(&asked).context("can't ask the DNS")?;
        let resolver: Arc<dyn Resolver> = Arc::new(resolver);
        let greylist = open_greylist(config, clock.clone()).await?;
        let reporting = Reporting::open(reporting, resolver.clone()).await?;
        let of_clients = Duration::from_millis(settings.client_timeout_ms.get());
        let lookups = ClientLookups::new(resolver.clone(), &settings.block_lists, of_clients);
        let parts = Parts {
            hostname: config.smtp.hostname.clone(),
            authenticator: Authenticator::new(
                resolver,
                clock,
                Duration::from_millis(settings.timeout_ms.get()),
            ),
            client: Arc::new(ClientChecks::new(lookups, greylist.clone(), settings)),
            filter: filter.filter(|filter| filter.judges()).map(|filter| filter as Arc<dyn Filter>),
            attachment_names: Arc::new(message::attachment_names),
            reports: reporting.as_ref().map(Reporting::sink),
            metrics,
        };
        let checks = Checks::new(settings.clone(), parts)?;
        Ok(Some(Self { checks, greylist, reporting }))
    }

    pub(super) fn checks(&self) -> Checks {
        self.checks.clone()
    }

    /// Writes the remembered data periodically, and reports the results, until the server stops.
    pub(super) fn spawn(&self, stop: &Stop) -> Vec<JoinHandle<()>> {
        let mut tasks = Vec::new();
        if let Some(reporting) = &self.reporting {
            tasks.extend(reporting.spawn(stop));
        }
        if let Some(greylist) = self.greylist.clone() {
            let stop = stop.clone();
            tasks.push(tokio::spawn(async move {
                tokio::select! {
                    () = greylist.run() => {}
                    () = stop.requested() => {}
                }
            }));
        }
        tasks
    }

    /// Writes what was learned since the last write.
    pub(super) async fn close(&self, limit: Duration) -> anyhow::Result<()> {
        let Some(greylist) = &self.greylist else { return Ok(()) };
        let saved = timeout(limit, greylist.save()).await;
        saved
            .with_context(|| format!("the greylist was not written within {} s", limit.as_secs_f64()))?
            .context("can't write the greylist")
    }
}

/// Opens the filter that the settings name.
pub(super) fn open_filter(config: &Config) -> anyhow::Result<Option<Arc<Rspamd>>> {
    if !config.checks.enabled {
        return Ok(None);
    }
    let filter = Rspamd::open(config.checks.filter.clone()).context("can't use the filter of mail")?;
    Ok(filter.map(Arc::new))
}

/// The filter, if it learns from users. Users also move mail that came by LMTP.
pub(super) fn learning(filter: Option<&Arc<Rspamd>>) -> Option<Arc<dyn Filter>> {
    let filter = filter.filter(|filter| filter.learns())?;
    Some(filter.clone())
}

/// Removes mail from the quarantine when its time is over, every hour until the server stops.
pub(super) async fn expire(quarantine: Quarantine, stop: Stop) {
    let mut turns = interval(EXPIRE_INTERVAL);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut stopping = pin!(stop.requested());
    loop {
        tokio::select! {
            () = &mut stopping => return,
            _ = turns.tick() => {}
        }
        match quarantine.expire().await {
            Ok(0) => {}
            Ok(messages) => info!(messages, "mail in quarantine was removed: it was kept long enough"),
            Err(error) => warn!(%error, "mail in quarantine is not removed: it is tried again in an hour"),
        }
    }
}

async fn open_greylist(config: &Config, clock: Arc<dyn Clock>) -> anyhow::Result<Option<Arc<Greylist>>> {
    let settings = config.checks.greylist.clone();
    if !settings.enabled {
        return Ok(None);
    }
    if config.records_url() == EngineUrl::Memory {
        return Ok(Some(Arc::new(Greylist::in_memory(settings, clock))));
    }
    let folder = config.server.data_dir.join("greylist");
    let opened = spawn_blocking({
        let folder = folder.clone();
        move || Greylist::open(&folder, settings, clock)
    });
    let greylist =
        opened.await?.with_context(|| format!("can't open the greylist in {}", folder.display()))?;
    Ok(Some(Arc::new(greylist)))
}
