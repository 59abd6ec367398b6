//! The filter and the order of EmailSubmission/query (RFC 8621 §7.3).

use std::cmp::Ordering;

use restante_mail::{SubmissionHead, UndoStatus};
use restante_records::RecordId;
use serde_json::Value;

use crate::{
    core::{Argument, Context, Creations, Id, IdType, MethodError, args::UtcDate},
    methods::small_query::{Comparator, Filter, FilterLimits},
};

/// A condition on a submission.
#[derive(Debug, PartialEq, Eq)]
enum Condition {
    /// Of one of these.
    Identities(Vec<RecordId>),
    Emails(Vec<RecordId>),
    Threads(Vec<RecordId>),
    /// `None` for a status that does not exist.
    Undo(Option<UndoStatus>),
    /// Sent before this time.
    Before(i64),
    /// Sent at this time or after it.
    After(i64),
}

impl Condition {
    fn parse(name: &str, value: &Value, creations: &Creations) -> Result<Self, MethodError> {
        let records = |id_type: IdType| -> Option<Vec<RecordId>> {
            let ids = <Vec<Id> as Argument>::read(value.clone())?;
            let record = |id: &Id| creations.resolve(id.as_str()).and_then(|id| id_type.record(id));
            Some(ids.iter().filter_map(record).collect())
        };
        let date = || value.as_str().and_then(UtcDate::parse).map(|date| date.0);
        let condition = match name {
            "identityIds" => records(IdType::Identity).map(Self::Identities),
            "emailIds" => records(IdType::Email).map(Self::Emails),
            "threadIds" => records(IdType::Thread).map(Self::Threads),
            "undoStatus" => value.as_str().map(|name| Self::Undo(undo_status(name))),
            "before" => date().map(Self::Before),
            "after" => date().map(Self::After),
            _ => {
                let why = format!("submissions have no condition {name}");
                return Err(MethodError::UnsupportedFilter(why));
            }
        };
        condition.ok_or_else(|| {
            MethodError::InvalidArguments(format!("the condition {name} has a value of another type"))
        })
    }

    fn holds(&self, head: &SubmissionHead) -> bool {
        match self {
            Self::Identities(ids) => ids.contains(&head.identity),
            Self::Emails(ids) => ids.contains(&head.email),
            Self::Threads(ids) => ids.contains(&head.thread),
            Self::Undo(undo) => *undo == Some(head.undo),
            Self::Before(time) => head.send_at < *time,
            Self::After(time) => head.send_at >= *time,
        }
    }
}

fn undo_status(name: &str) -> Option<UndoStatus> {
    let all = [UndoStatus::Pending, UndoStatus::Final, UndoStatus::Canceled];
    all.into_iter().find(|status| status.name() == name)
}

/// What submissions are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SortProperty {
    Email,
    Thread,
    SendAt,
}

impl SortProperty {
    fn parse(name: &str) -> Option<Self> {
        match name {
            "emailId" => Some(Self::Email),
            "threadId" => Some(Self::Thread),
            // RFC 8621 §7.3 says `sentAt`, which is not a property; clients send both.
            "sentAt" | "sendAt" => Some(Self::SendAt),
            _ => None,
        }
    }

    fn compare(self, one: &SubmissionHead, other: &SubmissionHead) -> Ordering {
        match self {
            Self::Email => one.email.cmp(&other.email),
            Self::Thread => one.thread.cmp(&other.thread),
            Self::SendAt => one.send_at.cmp(&other.send_at),
        }
    }
}

/// Which submissions, and in which order.
pub(super) struct Selection {
    filter: Filter<Condition>,
    sort: Vec<Comparator<SortProperty>>,
}

impl Selection {
    pub(super) fn parse(
        context: &Context,
        creations: &Creations,
        filter: Option<&Value>,
        sort: Option<&Value>,
    ) -> Result<Self, MethodError> {
        let condition = |name: &str, value: &Value| Condition::parse(name, value, creations);
        let filter = Filter::parse(filter, FilterLimits::of(context), condition)?;
        Ok(Self { filter, sort: Comparator::parse_all(sort, SortProperty::parse)? })
    }

    /// The ids of the submissions that match, in order.
    pub(super) fn of(&self, heads: &[SubmissionHead]) -> Vec<String> {
        let holds = |head: &&SubmissionHead| self.filter.holds(&|condition| condition.holds(head));
        let mut matching: Vec<&SubmissionHead> = heads.iter().filter(holds).collect();
        matching.sort_by(|one, other| {
            let by = |comparator: &Comparator<SortProperty>| {
                comparator.directed(comparator.property.compare(one, other))
            };
            let order = self.sort.iter().map(by).find(|order| order.is_ne());
            order.unwrap_or_else(|| one.id.cmp(&other.id))
        });
        matching.into_iter().map(|head| IdType::EmailSubmission.id(head.id)).collect()
    }
}
