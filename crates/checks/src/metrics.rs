//! The metrics of the checks.

use std::time::Duration;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use crate::{Authentication, Outcome, Verdict, policy::Decision};

/// The checks that may end without a result.
const NOT_JUDGED: [&str; 5] = ["attachment", "authentication", "client", "filter", "greylist"];

/// The metrics of the checks. Cloning shares the counts.
#[derive(Clone, Debug)]
pub struct ChecksMetrics {
    verdicts: Family<VerdictLabels, Counter>,
    outcomes: Family<OutcomeLabels, Counter>,
    not_judged: Family<CheckLabel, Counter>,
    seconds: Histogram,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VerdictLabels {
    verdict: &'static str,
    check: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    method: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CheckLabel {
    check: &'static str,
}

impl Default for ChecksMetrics {
    fn default() -> Self {
        Self {
            verdicts: Family::default(),
            outcomes: Family::default(),
            not_judged: Family::default(),
            seconds: Histogram::new(exponential_buckets(100e-6, 2.0, 18)), // 100 us to 13 s
        }
    }
}

impl ChecksMetrics {
    /// Adds the metrics to a registry.
    pub fn register(&self, registry: &mut Registry) {
        // So that the first event is seen as an increase.
        let _ = self.verdicts.get_or_create(&VerdictLabels { verdict: "accept", check: "none" });
        for method in ["arc", "dkim", "dmarc", "spf"] {
            let _ = self.outcomes.get_or_create(&OutcomeLabels { method, result: "pass" });
        }
        for check in NOT_JUDGED {
            let _ = self.not_judged.get_or_create(&CheckLabel { check });
        }
        registry.register(
            "restante_checks_verdicts",
            "Messages of other servers that were checked, by verdict and the check that decided",
            self.verdicts.clone(),
        );
        registry.register(
            "restante_checks_outcomes",
            "Results of SPF, DKIM (of each signature), ARC and DMARC",
            self.outcomes.clone(),
        );
        registry.register(
            "restante_checks_not_judged",
            "Checks that failed or took too long; nothing was held against the message",
            self.not_judged.clone(),
        );
        registry.register(
            "restante_checks_seconds",
            "How long the checks of a received message took",
            self.seconds.clone(),
        );
    }

    pub(crate) fn count(&self, found: Option<&Authentication>, decision: &Decision, took: Duration) {
        let verdict = match &decision.verdict {
            Verdict::Accept => "accept",
            Verdict::Junk(_) => "junk",
            Verdict::Quarantine(_) => "quarantine",
            Verdict::Refuse(refused) if refused.code < 500 => "defer",
            Verdict::Refuse(_) => "refuse",
        };
        let check = decision.check.unwrap_or("none");
        self.verdicts.get_or_create(&VerdictLabels { verdict, check }).inc();
        self.seconds.observe(took.as_secs_f64());
        let Some(found) = found else { return };
        let count = |method: &'static str, outcome: Outcome| {
            self.outcomes.get_or_create(&OutcomeLabels { method, result: outcome.as_str() }).inc();
        };
        count("spf", found.spf);
        count("arc", found.arc);
        count("dmarc", found.dmarc);
        for signature in &found.dkim {
            count("dkim", signature.outcome);
        }
    }

    pub(crate) fn count_not_judged(&self, check: &'static str) {
        self.not_judged.get_or_create(&CheckLabel { check }).inc();
    }
}
