//! Sends the reports.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use restante_blobs::{Blobs, Source as BlobSource};
use restante_checks::ReportsConfig;
use restante_core::{Clock, Error};
use restante_mail::{
    dmarc::DmarcRows,
    queue::{NewMessage, NewRecipient, Notify, Queue, Source, SourceKind},
};
use restante_net::dns::Resolver;
use restante_records::RecordId;
use sha2::{Digest, Sha256};
use tokio::time::{MissedTickBehavior, interval};
use tracing::{debug, warn};

use super::{
    AggregateMetrics, DAY_SECONDS, Destination, Feedback, destinations::verified, feedback_of, mail,
    metrics::ReportResult,
};
use crate::prepare::sniff;

/// How often the reporter looks for reports that are due.
const TURN_INTERVAL: Duration = Duration::from_secs(900);
/// How long after its day a report is due at the earliest: servers that share the store have written their counts by then.
const AFTER_SECONDS: u64 = 3_600;
/// Reports are spread over so many seconds after that: otherwise all servers would report at the same time after midnight.
const SPREAD_SECONDS: u64 = 14_400;
/// For how many days a report that could not be sent is tried again. The queue remembers a report for longer.
const DAYS: u64 = 3;

/// What a [`Reporter`] works with.
#[derive(Clone)]
pub struct ReporterParts {
    /// The DMARC results.
    pub rows: DmarcRows,
    /// The queue that sends the reports.
    pub queue: Queue,
    /// Where the messages are stored.
    pub blobs: Arc<dyn Blobs>,
    /// Looks up which addresses may get a report.
    pub resolver: Arc<dyn Resolver>,
    /// The source of time.
    pub clock: Arc<dyn Clock>,
    /// The settings.
    pub config: ReportsConfig,
    /// The name of this server, in file names and in reports.
    pub hostname: String,
    /// The address that reports come from.
    pub from: String,
    /// Metrics.
    pub metrics: AggregateMetrics,
}

/// Sends reports about days that are over, and removes old results.
#[derive(Clone)]
pub struct Reporter {
    parts: ReporterParts,
}

impl Reporter {
    /// A reporter with these parts.
    pub fn new(parts: ReporterParts) -> Self {
        Self { parts }
    }

    /// Takes a turn every 15 minutes until `stop`. What fails is tried again in the next turn.
    pub async fn run(self, stop: impl Future<Output = ()> + Send) {
        let mut ticks = interval(TURN_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut stop = std::pin::pin!(stop);
        loop {
            let turn = async {
                ticks.tick().await;
                if let Err(error) = self.turn().await {
                    warn!(%error, "reports of DMARC are not sent yet: it is tried again");
                }
            };
            tokio::select! {
                () = turn => {}
                () = &mut stop => return,
            }
        }
    }

    /// Sends the reports that are due, and returns how many were queued. A report that fails does not hold up the others.
    ///
    /// # Errors
    /// Those of the records; a single report that fails is counted.
    pub async fn turn(&self) -> Result<u64, Error> {
        let now = u64::try_from(self.parts.clock.now().seconds()).unwrap_or(0);
        let today = now / DAY_SECONDS;
        self.parts.rows.forget_before(today.saturating_sub(self.parts.config.days_kept.get())).await?;
        let mut queued = 0;
        if !self.parts.config.send {
            return Ok(queued);
        }
        for day in (1..=DAYS).filter_map(|days| today.checked_sub(days)) {
            for seen in self.parts.rows.domains(day).await? {
                // Neither the row of all other messages, nor names that can't be in the DNS.
                let is_name = !seen.domain.is_empty() && !seen.domain.starts_with('#');
                let domain = seen.domain;
                if !is_name
                    || now < self.due(day, &domain)
                    || self.parts.rows.is_reported(day, &domain).await?
                {
                    continue;
                }
                match self.report(day, &domain, now).await {
                    Ok(result) => {
                        let is_queued = result == ReportResult::Queued;
                        self.parts.rows.note_reported(day, &domain, is_queued).await?;
                        self.parts.metrics.count_report(result);
                        queued += u64::from(is_queued);
                    }
                    Err(error) => {
                        debug!(%error, "a report of DMARC is tried again");
                        self.parts.metrics.count_report(ReportResult::Failed);
                    }
                }
            }
        }
        Ok(queued)
    }

    /// When the report about a domain is due, in seconds since 1970: the same on all servers of one store.
    fn due(&self, day: u64, domain: &str) -> u64 {
        let hash = Sha256::digest(format!("{}\0{domain}", self.parts.from));
        let eight = hash.get(..8).and_then(|eight| eight.try_into().ok());
        let spread = u64::from_be_bytes(eight.unwrap_or_default()) % SPREAD_SECONDS;
        (day + 1).saturating_mul(DAY_SECONDS).saturating_add(AFTER_SECONDS + spread)
    }

    async fn report(&self, day: u64, domain: &str, now: u64) -> Result<ReportResult, Error> {
        let ReporterParts { rows, hostname, from, resolver, .. } = &self.parts;
        let Some(feedback) = feedback_of(rows, day, domain, hostname, from).await? else {
            return Ok(ReportResult::NoRecipient);
        };
        let destinations = verified(&**resolver, domain, &feedback.published).await?;
        if destinations.is_empty() {
            return Ok(ReportResult::NoRecipient);
        }
        let key = key_of(day, domain);
        let composing = move || compose(&feedback, &destinations, now, key);
        let composed = tokio::task::spawn_blocking(composing).await;
        let composed =
            composed.map_err(|_| Error::internal("a task that writes a report has ended early"))??;
        let Some((raw, recipients)) = composed else { return Ok(ReportResult::NoRecipient) };
        self.queue(raw, recipients, now, key).await?;
        Ok(ReportResult::Queued)
    }

    async fn queue(&self, raw: Bytes, recipients: Vec<String>, now: u64, key: [u8; 32]) -> Result<(), Error> {
        let (size, transmission) = (raw.len() as u64, sniff(&raw));
        let mut source = raw;
        let blob = self.parts.blobs.put(&mut source as &mut dyn BlobSource).await?.id;
        // Nobody reads delivery reports about reports.
        let notify = Notify { on_success: false, on_failure: false, on_delay: false };
        let recipient = |address| NewRecipient { address, notify, original: None };
        let message = NewMessage {
            source: Source { kind: SourceKind::AggregateReport, account: None, record: RecordId(0), key },
            blob,
            size,
            sender: self.parts.from.clone(),
            envelope_id: None,
            returned: None,
            transmission,
            due: now,
            recipients: recipients.into_iter().map(recipient).collect(),
        };
        self.parts.queue.add(message).await.map(drop)
    }
}

/// The message, and the addresses that accept one of its size; `None` when none does.
fn compose(
    feedback: &Feedback,
    destinations: &[Destination],
    now: u64,
    key: [u8; 32],
) -> Result<Option<(Bytes, Vec<String>)>, Error> {
    let compressed = mail::compressed(feedback)?;
    let bytes = compressed.len() as u64;
    let fits = |destination: &&Destination| destination.bytes_max.is_none_or(|max| bytes <= max);
    let to: Vec<&str> =
        destinations.iter().filter(fits).map(|destination| destination.address.as_str()).collect();
    if to.is_empty() {
        return Ok(None);
    }
    let raw = mail::compose(feedback, compressed, &to, now, key)?;
    Ok(Some((raw, to.into_iter().map(str::to_owned).collect())))
}

/// The key of a report: the same when another server sends it, or this one again.
fn key_of(day: u64, domain: &str) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(b"dmarc report\0");
    hash.update(day.to_be_bytes());
    hash.update(domain);
    hash.finalize().into()
}
