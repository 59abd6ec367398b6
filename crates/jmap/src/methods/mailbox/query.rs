//! The filter and the order of Mailbox/query (RFC 8621 §2.3).

use std::{
    cmp::Ordering,
    collections::{HashMap, HashSet},
};

use restante_mail::{Mailbox, Role};
use restante_records::RecordId;
use serde_json::Value;

use crate::{
    core::{Args, Context, IdType, MethodError},
    methods::small_query::{Comparator, Filter, FilterLimits, folded},
};

/// Deeper than any setting lets mailboxes be nested: in damaged records they may form a cycle.
const DEPTH_MAX: usize = 1_000;

/// A condition on a mailbox.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Condition {
    Parent(Option<RecordId>),
    /// Matches no mailbox, because the id of the requested parent can't be that of a mailbox.
    UnknownParent,
    /// Folded.
    NameContains(String),
    Role(Option<Role>),
    /// Matches no mailbox, because there is no role of this name.
    UnknownRole,
    HasAnyRole(bool),
    IsSubscribed(bool),
}

impl Condition {
    fn parse(name: &str, value: &Value) -> Result<Self, MethodError> {
        match (name, value) {
            ("parentId", Value::Null) => Ok(Self::Parent(None)),
            ("parentId", Value::String(id)) => {
                Ok(IdType::Mailbox.record(id).map_or(Self::UnknownParent, |id| Self::Parent(Some(id))))
            }
            ("name", Value::String(part)) => Ok(Self::NameContains(folded(part))),
            ("role", Value::Null) => Ok(Self::Role(None)),
            ("role", Value::String(role)) => {
                Ok(Role::of(role.as_bytes()).map_or(Self::UnknownRole, |role| Self::Role(Some(role))))
            }
            ("hasAnyRole", Value::Bool(has)) => Ok(Self::HasAnyRole(*has)),
            ("isSubscribed", Value::Bool(is)) => Ok(Self::IsSubscribed(*is)),
            ("parentId" | "name" | "role" | "hasAnyRole" | "isSubscribed", _) => Err(
                MethodError::InvalidArguments(format!("the condition {name} has a value of another type")),
            ),
            _ => Err(MethodError::UnsupportedFilter(format!("mailboxes have no condition {name}"))),
        }
    }

    fn holds(&self, mailbox: &Mailbox) -> bool {
        match self {
            Self::Parent(parent) => mailbox.parent == *parent,
            Self::UnknownParent | Self::UnknownRole => false,
            Self::NameContains(part) => folded(&mailbox.name).contains(part.as_str()),
            Self::Role(role) => mailbox.role == *role,
            Self::HasAnyRole(has) => mailbox.role.is_some() == *has,
            Self::IsSubscribed(is) => mailbox.is_subscribed == *is,
        }
    }
}

/// What mailboxes are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SortProperty {
    SortOrder,
    Name,
}

impl SortProperty {
    fn parse(name: &str) -> Option<Self> {
        match name {
            "sortOrder" => Some(Self::SortOrder),
            "name" => Some(Self::Name),
            _ => None,
        }
    }
}

/// Which mailboxes, in which order.
#[derive(Debug)]
pub(super) struct Selection {
    filter: Filter<Condition>,
    sort: Vec<Comparator<SortProperty>>,
    /// Whether a mailbox is left out when one above it is.
    is_filtered_as_tree: bool,
    /// Whether a mailbox comes after its parent.
    is_sorted_as_tree: bool,
}

impl Selection {
    /// Takes `sortAsTree` and `filterAsTree` of the arguments, and reads filter and sort.
    pub(super) fn take(
        args: &mut Args,
        context: &Context,
        filter: Option<&Value>,
        sort: Option<&Value>,
    ) -> Result<Self, MethodError> {
        Ok(Self {
            filter: Filter::parse(filter, FilterLimits::of(context), Condition::parse)?,
            sort: Comparator::parse_all(sort, SortProperty::parse)?,
            is_filtered_as_tree: args.optional("filterAsTree")?.unwrap_or(false),
            is_sorted_as_tree: args.optional("sortAsTree")?.unwrap_or(false),
        })
    }

    /// Whether unchanged mailboxes keep their relative order (X3): in a tree, a change of its parent moves a mailbox.
    pub(super) fn can_calculate_changes(&self) -> bool {
        !self.is_filtered_as_tree && !self.is_sorted_as_tree
    }

    /// The ids of the mailboxes that match, in order.
    pub(super) fn of(&self, mailboxes: &[Mailbox]) -> Vec<RecordId> {
        let mut sorted: Vec<(Vec<SortKey>, &Mailbox)> =
            mailboxes.iter().map(|mailbox| (self.keys(mailbox), mailbox)).collect();
        sorted.sort_by(|(a_keys, a), (b_keys, b)| self.compare(a_keys, b_keys).then(a.id.cmp(&b.id)));
        let sorted: Vec<&Mailbox> = sorted.into_iter().map(|(_, mailbox)| mailbox).collect();
        let ordered = if self.is_sorted_as_tree { depth_first(&sorted) } else { sorted };
        let included = self.included(mailboxes);
        ordered.into_iter().map(|mailbox| mailbox.id).filter(|id| included.contains(id)).collect()
    }

    fn keys(&self, mailbox: &Mailbox) -> Vec<SortKey> {
        let key = |comparator: &Comparator<SortProperty>| match comparator.property {
            SortProperty::SortOrder => SortKey::Number(mailbox.sort_order),
            SortProperty::Name => SortKey::Text(comparator.collation.key(&mailbox.name)),
        };
        self.sort.iter().map(key).collect()
    }

    fn compare(&self, a: &[SortKey], b: &[SortKey]) -> Ordering {
        for (comparator, (a, b)) in self.sort.iter().zip(a.iter().zip(b)) {
            let order = comparator.directed(a.cmp(b));
            if order != Ordering::Equal {
                return order;
            }
        }
        Ordering::Equal
    }

    /// The mailboxes that match; with `filterAsTree` all mailboxes above them must match, too.
    fn included(&self, mailboxes: &[Mailbox]) -> HashSet<RecordId> {
        let matching =
            mailboxes.iter().filter(|mailbox| self.filter.holds(&|condition| condition.holds(mailbox)));
        let matching: HashSet<RecordId> = matching.map(|mailbox| mailbox.id).collect();
        if !self.is_filtered_as_tree {
            return matching;
        }
        let parents: HashMap<RecordId, Option<RecordId>> =
            mailboxes.iter().map(|mailbox| (mailbox.id, mailbox.parent)).collect();
        let is_below_matching = |id: &&RecordId| {
            let mut above = parents.get(id).copied().flatten();
            for _ in 0..DEPTH_MAX {
                let Some(parent) = above else { return true };
                if !matching.contains(&parent) {
                    return false;
                }
                above = parents.get(&parent).copied().flatten();
            }
            false
        };
        matching.iter().filter(is_below_matching).copied().collect()
    }
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum SortKey {
    Number(u32),
    Text(Vec<u8>),
}

/// Each mailbox after its parent, siblings in their given order.
fn depth_first<'a>(sorted: &[&'a Mailbox]) -> Vec<&'a Mailbox> {
    let mut below: HashMap<Option<RecordId>, Vec<&Mailbox>> = HashMap::new();
    for mailbox in sorted.iter().rev() {
        below.entry(mailbox.parent).or_default().push(mailbox);
    }
    let mut ordered = Vec::with_capacity(sorted.len());
    let mut waiting = below.remove(&None).unwrap_or_default();
    while let Some(mailbox) = waiting.pop() {
        ordered.push(mailbox);
        waiting.extend(below.remove(&Some(mailbox.id)).unwrap_or_default());
    }
    ordered
}
