//! An overview of mail, derived from the metrics, so that the console shows nothing that Prometheus can't show.

use std::collections::BTreeMap;

use restante_operate::{
    Facts,
    exposition::{Sample, samples},
};
use serde_json::{Map, Value, json};

/// The most kinds of errors that are shown, the most frequent ones.
const ERRORS_MAX: usize = 10;
/// An index that lags by more than this is a problem.
const LAG_SECONDS_MAX: f64 = 300.0;

/// The field `mail` of the server state. Counters count since the start.
pub(crate) fn show(metrics: &str) -> Facts {
    let mut glance = Glance::default();
    samples(metrics).for_each(|sample| glance.take(&sample));
    let problems = glance.problems();
    let mut fields = Map::new();
    fields.insert("mail".to_owned(), glance.show());
    Facts { fields, problems, ..Facts::default() }
}

#[derive(Debug, Default)]
struct Glance {
    /// Gauges by their names in the response.
    gauges: BTreeMap<&'static str, f64>,
    /// Deliveries to accounts by result.
    deliveries: BTreeMap<String, f64>,
    /// Incoming messages by result, SMTP and LMTP together.
    messages: BTreeMap<String, f64>,
    /// Attempts to deliver outgoing mail by result.
    outgoing: BTreeMap<String, f64>,
    /// Messages of other servers that were checked, by verdict.
    verdicts: BTreeMap<String, f64>,
    /// Checks without a result.
    not_judged: f64,
    /// Messages whose domain has a DMARC record, by whether they passed.
    dmarc: BTreeMap<String, f64>,
    /// Aggregate reports by outcome.
    reports: BTreeMap<String, f64>,
    requests: f64,
    /// Errors and their counts.
    errors: BTreeMap<String, f64>,
}

/// Gauges with their names in the response.
const GAUGES: [(&str, &str); 23] = [
    ("restante_mail_accounts", "accounts"),
    ("restante_mail_stored_emails", "emails"),
    ("restante_mail_stored_bytes", "bytes"),
    ("restante_mail_vault_emails", "vaultEmails"),
    ("restante_mail_vault_bytes", "vaultBytes"),
    ("restante_records_stored_records", "records"),
    ("restante_records_disk_bytes", "recordsDiskBytes"),
    ("restante_records_disk_free_bytes", "recordsDiskFreeBytes"),
    ("restante_blobs_stored_blobs", "blobs"),
    ("restante_blobs_disk_bytes", "blobsDiskBytes"),
    ("restante_blobs_disk_free_bytes", "blobsDiskFreeBytes"),
    ("restante_search_stored_documents", "indexedEmails"),
    ("restante_search_disk_bytes", "indexDiskBytes"),
    ("restante_search_uncommitted_documents", "indexUncommitted"),
    ("restante_follow_lag_seconds", "indexLagSeconds"),
    ("restante_follow_lagging_accounts", "indexLaggingAccounts"),
    ("restante_follow_backoff_accounts", "indexFailingAccounts"),
    ("restante_queue_recipients", "outgoingWaiting"),
    ("restante_queue_held", "outgoingHeld"),
    ("restante_queue_oldest_due_seconds", "outgoingOldestDueSeconds"),
    ("restante_queue_is_held", "outgoingIsHeld"),
    ("restante_quarantine_messages", "quarantined"),
    ("restante_quarantine_bytes", "quarantinedBytes"),
];

impl Glance {
    fn take(&mut self, sample: &Sample<'_>) {
        let known = GAUGES.iter().find(|(name, _)| *name == sample.name);
        if let Some((name, shown)) = known {
            let is_other =
                name.starts_with("restante_follow_") && sample.label("follower") != Some("indexer");
            if !is_other {
                self.gauges.insert(shown, sample.value);
            }
            return;
        }
        match (sample.name, sample.label("result")) {
            ("restante_mail_deliveries_total", Some(result)) => {
                add(&mut self.deliveries, result, sample.value)
            }
            ("restante_smtp_messages_total", Some(result)) => add(&mut self.messages, result, sample.value),
            ("restante_queue_attempts_total", Some(result)) => add(&mut self.outgoing, result, sample.value),
            ("restante_dmarc_messages_total", Some(result)) => add(&mut self.dmarc, result, sample.value),
            ("restante_dmarc_reports_total", Some(result)) => add(&mut self.reports, result, sample.value),
            ("restante_checks_verdicts_total", _) => {
                add(&mut self.verdicts, sample.label("verdict").unwrap_or("unknown"), sample.value);
            }
            ("restante_checks_not_judged_total", _) => self.not_judged += sample.value,
            ("restante_jmap_requests_total", _) => self.requests += sample.value,
            ("restante_jmap_connections", _) => {
                let kind =
                    if sample.label("kind") == Some("web_socket") { "webSockets" } else { "eventStreams" };
                self.gauges.insert(kind, sample.value);
            }
            _ => {}
        }
        if sample.value > 0.0
            && let Some(what) = error_of(sample)
        {
            *self.errors.entry(what).or_default() += sample.value;
        }
    }

    fn problems(&self) -> Vec<String> {
        let gauge = |name| self.gauges.get(name).copied().unwrap_or_default();
        let lag = gauge("indexLagSeconds");
        let lags = || format!("the search index lags by {} s: new emails are found more slowly", lag.round());
        let held = || "all outgoing mail is held: `restante queue release --all` lets it go".to_owned();
        let is_held = gauge("outgoingIsHeld") > 0.0;
        (lag > LAG_SECONDS_MAX).then(lags).into_iter().chain(is_held.then(held)).collect()
    }

    fn show(self) -> Value {
        let mut shown: Map<String, Value> =
            self.gauges.into_iter().map(|(name, value)| (name.to_owned(), json!(value))).collect();
        let mut errors: Vec<(String, f64)> = self.errors.into_iter().collect();
        errors.sort_by(|one, other| other.1.total_cmp(&one.1));
        errors.truncate(ERRORS_MAX);
        let error = |(what, count): (String, f64)| json!({"what": what, "count": count});
        shown.insert("deliveries".to_owned(), json!(self.deliveries));
        shown.insert("messages".to_owned(), json!(self.messages));
        shown.insert("outgoing".to_owned(), json!(self.outgoing));
        shown.insert("verdicts".to_owned(), json!(self.verdicts));
        shown.insert("notJudged".to_owned(), json!(self.not_judged));
        shown.insert("dmarc".to_owned(), json!(self.dmarc));
        shown.insert("dmarcReports".to_owned(), json!(self.reports));
        shown.insert("requests".to_owned(), json!(self.requests));
        shown.insert("errors".to_owned(), errors.into_iter().map(error).collect());
        shown.into()
    }
}

fn add(counts: &mut BTreeMap<String, f64>, name: &str, value: f64) {
    *counts.entry(name.to_owned()).or_default() += value;
}

/// For a counter of errors: the place and the kind of the error.
fn error_of(sample: &Sample<'_>) -> Option<String> {
    let label = |name| sample.label(name).unwrap_or("unknown");
    match sample.name {
        "restante_smtp_recipients_total" if label("result") != "accepted" => {
            let protocol = label("protocol").to_ascii_uppercase();
            Some(format!("{protocol} recipient: {}", words(label("result"))))
        }
        "restante_smtp_messages_total" if !matches!(label("result"), "stored" | "junk" | "quarantined") => {
            let protocol = label("protocol").to_ascii_uppercase();
            Some(format!("{protocol} message: {}", words(label("result"))))
        }
        "restante_mail_deliveries_total" if matches!(label("result"), "over_quota" | "failed") => {
            Some(format!("delivery: {}", words(label("result"))))
        }
        "restante_queue_attempts_total" if matches!(label("result"), "failed" | "expired" | "faulted") => {
            Some(format!("outgoing mail: {}", label("result")))
        }
        "restante_sending_refused_total" => Some(format!("limit on sending: {}", label("limit"))),
        "restante_jmap_calls_total" if label("outcome") != "ok" => {
            Some(format!("JMAP {}: {}", label("method"), label("outcome")))
        }
        "restante_jmap_requests_total" if !matches!(label("outcome"), "ok" | "limit") => {
            Some(format!("JMAP request: {}", label("outcome")))
        }
        "restante_jmap_limits_total" => Some(format!("JMAP limit: {}", label("limit"))),
        "restante_indexer_emails_total" if label("outcome") == "unreadable" => {
            Some("search index: unreadable email".to_owned())
        }
        "restante_follow_errors_total" if label("follower") == "indexer" => {
            Some(format!("search index: {} failed", label("source")))
        }
        "restante_records_errors_total" => store_error("records", sample),
        "restante_blobs_errors_total" => store_error("blobs", sample),
        "restante_search_errors_total" => store_error("search", sample),
        _ => None,
    }
}

/// Errors of a store, except those that are normal results for its callers.
fn store_error(store: &str, sample: &Sample<'_>) -> Option<String> {
    let kind = sample.label("kind").filter(|kind| !matches!(*kind, "not_found" | "invalid" | "conflict"))?;
    let operation = sample.label("operation").unwrap_or("unknown");
    Some(format!("{store} {}: {kind}", words(operation)))
}

fn words(label: &str) -> String {
    label.replace('_', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const METRICS: &str = "\
restante_mail_accounts 2
restante_mail_deliveries_total{result=\"new\"} 5
restante_mail_deliveries_total{result=\"over_quota\"} 1
restante_mail_deliveries_total{result=\"failed\"} 0
restante_smtp_messages_total{protocol=\"lmtp\",result=\"stored\"} 4
restante_smtp_messages_total{protocol=\"smtp\",result=\"stored\"} 2
restante_smtp_recipients_total{protocol=\"smtp\",result=\"accepted\"} 9
restante_smtp_recipients_total{protocol=\"smtp\",result=\"bad_address\"} 3
restante_jmap_requests_total{outcome=\"ok\"} 7
restante_jmap_calls_total{method=\"Email/get\",outcome=\"invalidArguments\"} 2
restante_jmap_connections{kind=\"event_stream\"} 4
restante_records_errors_total{engine=\"lmdb\",operation=\"commit\",kind=\"conflict\"} 8
restante_records_errors_total{engine=\"lmdb\",operation=\"commit\",kind=\"full\"} 1
restante_follow_lag_seconds{follower=\"other\"} 900.0
restante_follow_lag_seconds{follower=\"indexer\"} 301.4
restante_records_disk_bytes{engine=\"lmdb\"} 4096
restante_queue_recipients 12
restante_queue_held 3
restante_queue_oldest_due_seconds 0
restante_queue_is_held 0
restante_queue_attempts_total{result=\"delivered\"} 40
restante_queue_attempts_total{result=\"postponed\"} 6
restante_queue_attempts_total{result=\"failed\"} 5
restante_sending_refused_total{limit=\"messages\"} 4
restante_smtp_messages_total{protocol=\"smtp\",result=\"quarantined\"} 8
restante_quarantine_messages 6
restante_checks_verdicts_total{verdict=\"refuse\",check=\"dmarc\"} 3
restante_checks_verdicts_total{verdict=\"refuse\",check=\"filter\"} 4
restante_checks_not_judged_total{check=\"filter\"} 2
restante_dmarc_messages_total{result=\"fail\"} 9
restante_dmarc_reports_total{result=\"queued\"} 1
";

    #[test]
    fn mail_is_shown_at_a_glance() {
        let facts = show(METRICS);
        let mail = &facts.fields["mail"];
        assert_eq!((&mail["accounts"], &mail["recordsDiskBytes"]), (&json!(2.0), &json!(4_096.0)));
        assert_eq!(mail["deliveries"], json!({"new": 5.0, "over_quota": 1.0, "failed": 0.0}));
        assert_eq!(mail["messages"], json!({"stored": 6.0, "quarantined": 8.0}), "of both protocols");
        assert_eq!((&mail["quarantined"], &mail["verdicts"]), (&json!(6.0), &json!({"refuse": 7.0})));
        assert_eq!((&mail["notJudged"], &mail["dmarc"]), (&json!(2.0), &json!({"fail": 9.0})));
        assert_eq!(mail["dmarcReports"], json!({"queued": 1.0}));
        assert_eq!((&mail["requests"], &mail["eventStreams"]), (&json!(7.0), &json!(4.0)));
        assert_eq!(
            mail["errors"],
            json!([
                {"what": "outgoing mail: failed", "count": 5.0},
                {"what": "limit on sending: messages", "count": 4.0},
                {"what": "SMTP recipient: bad address", "count": 3.0},
                {"what": "JMAP Email/get: invalidArguments", "count": 2.0},
                {"what": "delivery: over quota", "count": 1.0},
                {"what": "records commit: full", "count": 1.0},
            ])
        );
        assert_eq!(facts.problems.len(), 1);
        assert!(facts.problems[0].contains("lags by 301 s"), "{:?}", facts.problems);
        assert_eq!(show(&METRICS.replace("301.4", "3.0")).problems, [""; 0]);
        assert_eq!((&mail["outgoingWaiting"], &mail["outgoingHeld"]), (&json!(12.0), &json!(3.0)));
        assert_eq!(mail["outgoing"], json!({"delivered": 40.0, "postponed": 6.0, "failed": 5.0}));
        let held = show(&METRICS.replace("301.4", "3.0").replace("is_held 0", "is_held 1")).problems;
        assert!(held.len() == 1 && held[0].contains("restante queue release --all"), "{held:?}");
    }

    #[test]
    fn the_errors_are_those_that_happened_most() {
        let lines: Vec<String> = (1..=20)
            .map(|n| format!("restante_jmap_calls_total{{method=\"M{n}\",outcome=\"forbidden\"}} {n}\n"))
            .collect();
        let mail = show(&lines.concat()).fields["mail"].clone();
        let errors = mail["errors"].as_array().unwrap();
        assert_eq!((errors.len(), &errors[0]["what"]), (ERRORS_MAX, &json!("JMAP M20: forbidden")));
    }
}
