//! Metrics of the followers.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use restante_checks::Lesson;

/// Metrics of submissions, vacation replies and learning. Clones share the counts.
#[derive(Clone, Debug, Default)]
pub struct FollowerMetrics {
    submissions: Family<ResultLabel, Counter>,
    vacation: Family<ResultLabel, Counter>,
    learning: Family<LearningLabels, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LearningLabels {
    lesson: &'static str,
    result: &'static str,
}

/// The outcome for a message that the filter was to learn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LearningResult {
    /// The filter has learned it.
    Learned,
    /// It never learns this message.
    Refused,
    /// The filter, or reading the message, failed again and again.
    Failed,
    /// The message is larger than what the filter takes.
    TooLarge,
    /// The message is gone.
    Gone,
    /// The filter has learned as many messages of the account as it may in an hour.
    Limited,
}

impl LearningResult {
    const ALL: [Self; 6] =
        [Self::Learned, Self::Refused, Self::Failed, Self::TooLarge, Self::Gone, Self::Limited];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Learned => "learned",
            Self::Refused => "refused",
            Self::Failed => "failed",
            Self::TooLarge => "too_large",
            Self::Gone => "gone",
            Self::Limited => "limited",
        }
    }
}

const fn lesson_label(lesson: Lesson) -> &'static str {
    match lesson {
        Lesson::Junk => "junk",
        Lesson::NotJunk => "not_junk",
    }
}

/// The outcome for an email that arrived while a vacation response was in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VacationResult {
    /// A reply was queued.
    Replied,
    /// Its sender got one recently.
    Repeated,
    /// It must not get a reply.
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
        // Exported as 0, so that the first one is an increase.
        for result in ["queued", "refused"] {
            let _ = self.submissions.get_or_create(&ResultLabel { result });
        }
        for result in [VacationResult::Replied, VacationResult::Repeated, VacationResult::NotAnswered] {
            let _ = self.vacation.get_or_create(&ResultLabel { result: result.as_str() });
        }
        for result in LearningResult::ALL {
            for lesson in [Lesson::Junk, Lesson::NotJunk] {
                let labels = LearningLabels { lesson: lesson_label(lesson), result: result.as_str() };
                let _ = self.learning.get_or_create(&labels);
            }
        }
        registry.register(
            "restante_learning_messages",
            "Messages that users moved into or out of Junk, by what the filter was to learn and by result: learned, refused, failed, too_large, gone, limited",
            self.learning.clone(),
        );
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

    pub(crate) fn count_learning(&self, lesson: Lesson, result: LearningResult, messages: u64) {
        let labels = LearningLabels { lesson: lesson_label(lesson), result: result.as_str() };
        self.learning.get_or_create(&labels).inc_by(messages);
    }

    pub(crate) fn count_vacation(&self, result: VacationResult) {
        self.vacation.get_or_create(&ResultLabel { result: result.as_str() }).inc();
    }
}
