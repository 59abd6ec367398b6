//! DMARC aggregate reports: the results of checks are counted, and sent to the domains that request them.

use std::sync::Arc;

use restante_checks::ReportSink;
use restante_core::{Clock, Error};
use restante_delivery::aggregate::{AggregateMetrics, DmarcCollector, Reporter, ReporterParts};
use restante_directory::{Directory, EmailAddress, Resolution};
use restante_mail::{Mail, dmarc::DmarcRows, queue::Queue};
use restante_net::dns::Resolver;
use tokio::task::JoinHandle;

use crate::{config::Config, signals::Stop};

/// The dependencies of reports.
pub(super) struct ReportingParts<'p> {
    pub(super) config: &'p Config,
    pub(super) rows: DmarcRows,
    pub(super) queue: Queue,
    pub(super) mail: &'p Mail,
    pub(super) directory: &'p Directory,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) metrics: AggregateMetrics,
}

/// Counts the results of checks, and sends reports.
pub(super) struct Reporting {
    collector: DmarcCollector,
    reporter: Reporter,
}

/// The DMARC counts in these records.
pub(crate) fn rows(records: &restante_records::Opened, config: &Config) -> DmarcRows {
    DmarcRows::new(records.records.clone(), config.checks.reports.rows_per_day_max.get())
}

impl Reporting {
    /// Opens reporting; `None` when the settings disable it.
    pub(super) async fn open(
        parts: ReportingParts<'_>,
        resolver: Arc<dyn Resolver>,
    ) -> Result<Option<Self>, Error> {
        let ReportingParts { config, rows, queue, mail, directory, clock, metrics } = parts;
        if !config.checks.reports.collect {
            return Ok(None);
        }
        let collector = DmarcCollector::new(rows.clone(), metrics.clone());
        let reporter = Reporter::new(ReporterParts {
            rows,
            queue,
            blobs: mail.blobs().clone(),
            resolver,
            clock,
            config: config.checks.reports.clone(),
            hostname: config.smtp.hostname.clone(),
            from: sender(config, directory).await?,
            metrics,
        });
        Ok(Some(Self { collector, reporter }))
    }

    /// Receives the results of checks.
    pub(super) fn sink(&self) -> Arc<dyn ReportSink> {
        Arc::new(self.collector.clone())
    }

    /// Counts and sends reports until the server stops.
    pub(super) fn spawn(&self, stop: &Stop) -> [JoinHandle<()>; 2] {
        let (collector, reporter) = (self.collector.clone(), self.reporter.clone());
        [
            tokio::spawn(collector.run(stop.clone().requested())),
            tokio::spawn(reporter.run(stop.clone().requested())),
        ]
    }
}

/// The sender of reports: the one of the settings, or `postmaster` at the host name or at its parent domain, whichever is a domain of
/// this server.
pub(crate) async fn sender(config: &Config, directory: &Directory) -> Result<String, Error> {
    let own = &config.checks.reports.from;
    if !own.is_empty() {
        return Ok(own.clone());
    }
    let hostname = config.smtp.hostname.as_str();
    let parent = hostname.split_once('.').map(|(_, parent)| parent);
    for domain in std::iter::once(hostname).chain(parent) {
        let text = format!("postmaster@{domain}");
        let Ok(address) = text.parse::<EmailAddress>() else { continue };
        if !matches!(directory.resolve(&address).await?, Resolution::Foreign) {
            return Ok(text);
        }
    }
    Ok(format!("postmaster@{hostname}"))
}
