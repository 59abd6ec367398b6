//! Counts DMARC results.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use restante_checks::{Disposition, DmarcSeen, Outcome, PolicyOverride, ReportSink};
use restante_core::Error;
use restante_mail::dmarc::{self, DkimSeen, DmarcRows, NewRow, Row, SpfScope, SpfSeen};
use tokio::time::{MissedTickBehavior, interval};
use tracing::warn;

use super::{AggregateMetrics, DAY_SECONDS};

/// How often the counts are written.
const WRITE_INTERVAL: Duration = Duration::from_secs(60);
/// The most rows that wait to be written. Messages of further rows are counted in one row.
const WAITING_MAX: usize = 10_000;
/// The most signatures of a message that its row keeps.
const SIGNATURES_MAX: usize = 8;
/// The longest name of a domain or a selector.
const NAME_BYTES_MAX: usize = 253;

/// Counts DMARC results in memory until they are written. Clones share the counts.
#[derive(Clone)]
pub struct DmarcCollector {
    rows: DmarcRows,
    waiting: Arc<Mutex<HashMap<(u64, Row), Waiting>>>,
    metrics: AggregateMetrics,
}

#[derive(Clone, Debug)]
struct Waiting {
    record: Option<String>,
    count: u64,
}

impl DmarcCollector {
    /// A collector that writes into these rows.
    pub fn new(rows: DmarcRows, metrics: AggregateMetrics) -> Self {
        Self { rows, waiting: Arc::default(), metrics }
    }

    /// Writes the counts every minute until `stop`, and then once more.
    pub async fn run(self, stop: impl Future<Output = ()> + Send) {
        let mut ticks = interval(WRITE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut stop = std::pin::pin!(stop);
        loop {
            let is_over = tokio::select! {
                _ = ticks.tick() => false,
                () = &mut stop => true,
            };
            // Not within the select: a write that is dropped half-way would be counted twice or not at all.
            if let Err(error) = self.write().await {
                warn!(%error, "what DMARC found is not written yet: it is tried again in a minute");
            }
            if is_over {
                return;
            }
        }
    }

    /// Writes the counts.
    ///
    /// # Errors
    /// Those of a commit; counts that are not known to be written wait for the next time.
    pub async fn write(&self) -> Result<(), Error> {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        let new = |((day, row), Waiting { record, count })| NewRow { day, row, record, count };
        let mut rows: Vec<NewRow> = waiting.into_iter().map(new).collect();
        let written = self.rows.add(&mut rows).await;
        for NewRow { day, row, record, count } in rows {
            self.count(day, row, record, count);
        }
        written
    }

    fn count(&self, day: u64, row: Row, record: Option<String>, count: u64) {
        let mut waiting = self.waiting.lock();
        let is_full = waiting.len() >= WAITING_MAX && !waiting.contains_key(&(day, row.clone()));
        let (row, record) = if is_full { (Row::others(), None) } else { (row, record) };
        let entry = waiting.entry((day, row)).or_insert(Waiting { record: None, count: 0 });
        entry.count = entry.count.saturating_add(count);
        if record.is_some() {
            entry.record = record;
        }
    }
}

impl ReportSink for DmarcCollector {
    fn note(&self, seen: DmarcSeen) {
        let day = seen.received / DAY_SECONDS;
        let Some((row, record)) = row_of(seen) else { return };
        self.metrics.count_message(row.is_pass());
        self.count(day, row, record, 1);
    }
}

/// The row of a message, and the DMARC record of its domain; `None` when it has none.
fn row_of(seen: DmarcSeen) -> Option<(Row, Option<String>)> {
    let found = seen.authentication;
    let signatures = found.dkim.into_iter().take(SIGNATURES_MAX);
    let dkim = signatures.map(|signature| DkimSeen {
        domain: name(&signature.domain),
        selector: name(&signature.selector),
        result: word(signature.outcome).to_owned(),
    });
    let scope = if seen.sender.is_empty() { SpfScope::Helo } else { SpfScope::Mfrom };
    let domain = name(&found.dmarc_domain?);
    if domain.is_empty() {
        return None;
    }
    let row = Row {
        domain,
        source: Some(seen.address),
        disposition: match seen.disposition {
            Disposition::None => dmarc::Disposition::None,
            Disposition::Quarantine => dmarc::Disposition::Quarantine,
            Disposition::Reject => dmarc::Disposition::Reject,
        },
        dkim_aligned: found.is_dkim_aligned,
        spf_aligned: found.is_spf_aligned,
        reason: seen.overridden.map(|reason| {
            match reason {
                PolicyOverride::TrustedForwarder => "trusted_forwarder",
                PolicyOverride::LocalPolicy => "local_policy",
            }
            .to_owned()
        }),
        header_from: name(&found.from?),
        envelope_from: name(seen.sender.rsplit_once('@').map_or("", |(_, domain)| domain)),
        dkim: dkim.collect(),
        spf: Some(SpfSeen { domain: name(&found.spf_domain), scope, result: word(found.spf).to_owned() }),
    };
    Some((row, found.dmarc_record))
}

/// A name in lower case, cut to the length that one can have: senders can write anything.
fn name(text: &str) -> String {
    let mut name = text.to_lowercase();
    let end = (0..=NAME_BYTES_MAX.min(name.len())).rev().find(|end| name.is_char_boundary(*end));
    name.truncate(end.unwrap_or(0));
    name
}

/// An outcome with the words that RFC 7489 appendix C has for both SPF and DKIM.
fn word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::None => "none",
        Outcome::Pass => "pass",
        Outcome::Fail => "fail",
        Outcome::SoftFail => "softfail",
        Outcome::Neutral => "neutral",
        Outcome::TempError => "temperror",
        Outcome::PermError => "permerror",
    }
}
