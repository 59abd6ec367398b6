use std::sync::atomic::AtomicU64;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use restante_blobs::Swept;
use restante_core::{Error, Timestamp};
use restante_mail::MailError;
use restante_records::Cleaned;

use super::SweepError;

/// The metrics of tidying, in addition to those of records and blobs themselves. Clones share the values.
#[derive(Clone, Debug, Default)]
pub(crate) struct TidyMetrics {
    clean: RunMetrics,
    sweep: RunMetrics,
    swept_bytes: Counter,
    purge: RunMetrics,
    purged_emails: Counter,
    erase: RunMetrics,
    erased_accounts: Counter,
}

/// Runs of one task, by result.
#[derive(Clone, Debug, Default)]
struct RunMetrics {
    runs: Family<ResultLabel, Counter>,
    last_success: Gauge<f64, AtomicU64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

const DONE: ResultLabel = ResultLabel { result: "done" };
const FAILED: ResultLabel = ResultLabel { result: "failed" };

impl RunMetrics {
    fn note(&self, now: Timestamp, is_done: bool) {
        let label = if is_done { &DONE } else { &FAILED };
        self.runs.get_or_create(label).inc();
        if is_done {
            self.last_success.set(now.nanos() as f64 / 1e9);
        }
    }

    /// Runs that succeeded and that failed.
    #[cfg(test)]
    fn counts(&self) -> [u64; 2] {
        [&DONE, &FAILED].map(|label| self.runs.get_or_create(label).get())
    }

    fn register(&self, registry: &mut Registry, name: &str, what: &str) {
        for label in [DONE, FAILED] {
            drop(self.runs.get_or_create(&label)); // a family is only shown when it has a label, and a rate needs an initial zero
        }
        registry.register(format!("{name}_turns"), format!("Turns of {what}"), self.runs.clone());
        let help = format!("When {what} succeeded last, Unix time, or 0");
        registry.register(format!("{name}_last_success_timestamp_seconds"), help, self.last_success.clone());
    }
}

impl TidyMetrics {
    pub(super) fn note_clean(&self, now: Timestamp, cleaned: &Result<Cleaned, restante_records::Error>) {
        self.clean.note(now, cleaned.is_ok());
    }

    pub(super) fn note_sweep(&self, now: Timestamp, swept: &Result<Swept, SweepError>) {
        self.sweep.note(now, swept.is_ok());
        if let Ok(swept) = swept {
            self.swept_bytes.inc_by(swept.removed_bytes);
        }
    }

    pub(super) fn note_purge(&self, now: Timestamp, purged: &Result<u64, MailError>) {
        self.purge.note(now, purged.is_ok());
        if let Ok(emails) = purged {
            self.purged_emails.inc_by(*emails);
        }
    }

    pub(super) fn note_erase(&self, now: Timestamp, erased: &Result<u64, Error>) {
        self.erase.note(now, erased.is_ok());
        if let Ok(accounts) = erased {
            self.erased_accounts.inc_by(*accounts);
        }
    }

    /// Registers the metrics in `registry` as `restante_records_clean...`, `restante_blobs_sw...`, `restante_mail_purge...` and
    /// `restante_mail_erase...`.
    pub(crate) fn register(&self, registry: &mut Registry) {
        let records = registry.sub_registry_with_prefix("restante_records");
        self.clean.register(records, "clean", "forgetting what was destroyed");

        let blobs = registry.sub_registry_with_prefix("restante_blobs");
        self.sweep.register(blobs, "sweep", "removing blobs that no record refers to");
        blobs.register("swept_bytes", "Bytes of the blobs that were removed", self.swept_bytes.clone());

        let mail = registry.sub_registry_with_prefix("restante_mail");
        self.purge.register(mail, "purge", "purging destroyed emails from the vaults");
        mail.register("purged_emails", "Destroyed emails that were purged", self.purged_emails.clone());
        self.erase.register(mail, "erase", "erasing the mail of removed accounts");
        let help = "Removed accounts whose mail was erased";
        mail.register("erased_accounts", help, self.erased_accounts.clone());
    }

    #[cfg(test)]
    pub(super) fn runs(&self) -> [u64; 4] {
        let ([cleaned, not_cleaned], [swept, not_swept]) = (self.clean.counts(), self.sweep.counts());
        [cleaned, not_cleaned, swept, not_swept]
    }

    /// Purges that succeeded and that failed, and the number of purged emails.
    #[cfg(test)]
    pub(super) fn purges(&self) -> ([u64; 2], u64) {
        (self.purge.counts(), self.purged_emails.get())
    }

    /// Erasing runs that succeeded and that failed, and the number of accounts for which something was erased.
    #[cfg(test)]
    pub(super) fn erasures(&self) -> ([u64; 2], u64) {
        (self.erase.counts(), self.erased_accounts.get())
    }
}
