//! What the followers count.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};

/// What is counted of submissions and vacation replies. Cloning shares the counts.
#[derive(Clone, Debug, Default)]
pub struct FollowerMetrics {
    submissions: Family<ResultLabel, Counter>,
    vacation: Family<ResultLabel, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// What became of an email while a vacation response was in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VacationResult {
    /// A reply was queued.
    Replied,
    /// Its sender got one lately.
    Repeated,
    /// It is none that gets a reply.
    NotAnswered,
}

impl VacationResult {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Replied => "replied",
            Self::Repeated => "repeated",
            Self::NotAnswered => "not_answered",
        }
    }
}

impl FollowerMetrics {
    /// Adds the metrics to a registry.
    pub fn register(&self, registry: &mut Registry) {
        // So that the first one is an increase.
        for result in ["queued", "refused"] {
            let _ = self.submissions.get_or_create(&ResultLabel { result });
        }
        for result in [VacationResult::Replied, VacationResult::Repeated, VacationResult::NotAnswered] {
            let _ = self.vacation.get_or_create(&ResultLabel { result: result.as_str() });
        }
        registry.register(
            "restante_submissions",
            "Submissions of JMAP, by result: queued, refused",
            self.submissions.clone(),
        );
        registry.register(
            "restante_vacation_emails",
            "Emails to accounts with a vacation response, by result: replied, repeated (its sender got a reply lately), not_answered",
            self.vacation.clone(),
        );
    }

    pub(crate) fn count_queued(&self) {
        self.submissions.get_or_create(&ResultLabel { result: "queued" }).inc();
    }

    pub(crate) fn count_refused(&self) {
        self.submissions.get_or_create(&ResultLabel { result: "refused" }).inc();
    }

    pub(crate) fn count_vacation(&self, result: VacationResult) {
        self.vacation.get_or_create(&ResultLabel { result: result.as_str() }).inc();
    }
}
