//! Queries on kinds of which an account has so few objects that all are read: mailboxes and quotas (RFC 8620 §5.5, §5.6).

use std::{cmp::Ordering, collections::HashSet};

use restante_directory::Access;
use restante_records::AccountId;
use serde_json::{Map, Value};
use unicode_normalization::UnicodeNormalization;

use crate::core::{Args, Context, Exchange, Id, Members, MethodError, ids::account_id};

/// The most comparators of one sort.
const COMPARATORS_MAX: usize = 16;

/// A tree of conditions (L3).
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Filter<C> {
    /// All of these; true without any.
    And(Vec<Self>),
    /// One of these; false without any.
    Or(Vec<Self>),
    /// None of these; true without any.
    Not(Vec<Self>),
    /// All conditions of one object; true without any.
    All(Vec<C>),
}

impl<C> Filter<C> {
    /// Reads a filter; null matches everything. `condition` reads one member of a condition object.
    pub(crate) fn parse(
        filter: Option<&Value>,
        limits: FilterLimits,
        condition: impl Fn(&str, &Value) -> Result<C, MethodError>,
    ) -> Result<Self, MethodError> {
        let mut parser = FilterParser { limits, conditions: 0, condition };
        match filter {
            None | Some(Value::Null) => Ok(Self::All(Vec::new())),
            Some(filter) => parser.filter(filter, 1),
        }
    }

    /// Whether the filter matches; `test` evaluates a condition.
    pub(crate) fn holds(&self, test: &impl Fn(&C) -> bool) -> bool {
        match self {
            Self::And(filters) => filters.iter().all(|filter| filter.holds(test)),
            Self::Or(filters) => filters.iter().any(|filter| filter.holds(test)),
            Self::Not(filters) => !filters.iter().any(|filter| filter.holds(test)),
            Self::All(conditions) => conditions.iter().all(test),
        }
    }
}

/// How large a filter may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FilterLimits {
    pub(crate) depth_max: usize,
    pub(crate) conditions_max: usize,
}

impl FilterLimits {
    pub(crate) fn of(context: &Context) -> Self {
        let config = &context.config;
        Self { depth_max: config.filter_depth_max.get(), conditions_max: config.filter_conditions_max.get() }
    }
}

struct FilterParser<F> {
    limits: FilterLimits,
    conditions: usize,
    condition: F,
}

impl<C, F: Fn(&str, &Value) -> Result<C, MethodError>> FilterParser<F> {
    fn filter(&mut self, filter: &Value, depth: usize) -> Result<Filter<C>, MethodError> {
        let Some(object) = filter.as_object() else { return Err(invalid("a filter is an object")) };
        let depth_max = self.limits.depth_max;
        if depth > depth_max {
            return Err(MethodError::UnsupportedFilter(format!("a filter is at most {depth_max} deep")));
        }
        let Some(operator) = object.get("operator") else { return self.conditions(object) };
        let operands = object.get("conditions").and_then(Value::as_array);
        let (Some(operands), 2) = (operands, object.len()) else {
            return Err(invalid("a filter operator has an operator and conditions"));
        };
        let operands = operands.iter().map(|operand| self.filter(operand, depth + 1));
        let operands = operands.collect::<Result<_, _>>()?;
        match operator.as_str() {
            Some("AND") => Ok(Filter::And(operands)),
            Some("OR") => Ok(Filter::Or(operands)),
            Some("NOT") => Ok(Filter::Not(operands)),
            _ => Err(invalid("a filter operator is AND, OR or NOT")),
        }
    }

    fn conditions(&mut self, object: &Map<String, Value>) -> Result<Filter<C>, MethodError> {
        self.conditions += object.len();
        let conditions_max = self.limits.conditions_max;
        if self.conditions > conditions_max {
            let why = format!("a filter has at most {conditions_max} conditions");
            return Err(MethodError::UnsupportedFilter(why));
        }
        let conditions = object.iter().map(|(name, value)| (self.condition)(name, value));
        Ok(Filter::All(conditions.collect::<Result<_, _>>()?))
    }
}

/// One property to sort by (L4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Comparator<P> {
    pub(crate) property: P,
    pub(crate) is_ascending: bool,
    pub(crate) collation: Collation,
}

impl<P> Comparator<P> {
    /// Reads a sort; null means no comparators. `property` maps names to properties.
    pub(crate) fn parse_all(
        sort: Option<&Value>,
        property: impl Fn(&str) -> Option<P>,
    ) -> Result<Vec<Self>, MethodError> {
        let sort = match sort {
            None | Some(Value::Null) => return Ok(Vec::new()),
            Some(Value::Array(sort)) if sort.len() <= COMPARATORS_MAX => sort,
            Some(Value::Array(_)) => {
                let why = format!("a sort has at most {COMPARATORS_MAX} comparators");
                return Err(MethodError::UnsupportedSort(why));
            }
            Some(_) => return Err(invalid("sort is a list of comparators")),
        };
        sort.iter().map(|comparator| Self::parse(comparator, &property)).collect()
    }

    fn parse(comparator: &Value, property: &impl Fn(&str) -> Option<P>) -> Result<Self, MethodError> {
        let Some(object) = comparator.as_object() else { return Err(invalid("a comparator is an object")) };
        let Some(name) = object.get("property").and_then(Value::as_str) else {
            return Err(invalid("a comparator has a property"));
        };
        let is_ascending = match object.get("isAscending") {
            None => true,
            Some(Value::Bool(is_ascending)) => *is_ascending,
            Some(_) => return Err(invalid("isAscending is true or false")),
        };
        let collation = match object.get("collation") {
            None | Some(Value::Null) => Collation::Unicode,
            Some(Value::String(name)) => Collation::parse(name)?,
            Some(_) => return Err(invalid("collation is a text")),
        };
        let is_known = |name: &String| ["property", "isAscending", "collation"].contains(&name.as_str());
        if let Some(unknown) = object.keys().find(|name| !is_known(name)) {
            return Err(invalid(&format!("a comparator has no {unknown}")));
        }
        let Some(property) = property(name) else {
            return Err(MethodError::UnsupportedSort(format!("nothing is sorted by {name}")));
        };
        Ok(Self { property, is_ascending, collation })
    }

    /// Applies the direction to the ascending order of two values.
    pub(crate) fn directed(&self, ascending: Ordering) -> Ordering {
        if self.is_ascending { ascending } else { ascending.reverse() }
    }
}

/// How texts are compared (RFC 4790, RFC 5051).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Collation {
    AsciiCasemap,
    Unicode,
    AsciiNumeric,
    Octet,
}

impl Collation {
    fn parse(name: &str) -> Result<Self, MethodError> {
        match name {
            "i;ascii-casemap" => Ok(Self::AsciiCasemap),
            "i;unicode-casemap" => Ok(Self::Unicode),
            "i;ascii-numeric" => Ok(Self::AsciiNumeric),
            "i;octet" => Ok(Self::Octet),
            _ => Err(MethodError::UnsupportedSort(format!("there is no collation {name}"))),
        }
    }

    /// A key whose bytes have this order.
    pub(crate) fn key(self, text: &str) -> Vec<u8> {
        match self {
            Self::AsciiCasemap => text.to_ascii_uppercase().into_bytes(),
            Self::Unicode => folded(text).into_bytes(),
            Self::AsciiNumeric => numeric_key(text),
            Self::Octet => text.as_bytes().to_vec(),
        }
    }
}

/// RFC 4790 §9.1: the number at the beginning; texts without one sort after all numbers.
fn numeric_key(text: &str) -> Vec<u8> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let number = text.get(..digits).unwrap_or_default();
    let significant = number.trim_start_matches('0');
    let rank = if digits == 0 { u64::MAX } else { significant.len() as u64 };
    [&rank.to_be_bytes(), significant.as_bytes()].concat()
}

/// A text with case differences removed, for comparisons.
pub(crate) fn folded(text: &str) -> String {
    text.nfkd().flat_map(char::to_lowercase).nfc().collect()
}

/// The requested part of the results (L1, L2).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) position: i64,
    pub(crate) anchor: Option<String>,
    pub(crate) anchor_offset: i64,
    pub(crate) limit: Option<usize>,
}

impl Window {
    /// Where the window begins in a list, and its length. `index_of` finds the anchor.
    pub(crate) fn range(
        &self,
        count: usize,
        index_of: impl Fn(&str) -> Option<usize>,
    ) -> Result<std::ops::Range<usize>, MethodError> {
        let length = i64::try_from(count).unwrap_or(i64::MAX);
        let start = match &self.anchor {
            Some(anchor) => {
                let index = index_of(anchor).ok_or(MethodError::AnchorNotFound)?;
                i64::try_from(index).unwrap_or(i64::MAX).saturating_add(self.anchor_offset).max(0)
            }
            None if self.position < 0 => length.saturating_add(self.position).max(0),
            None => self.position,
        };
        let start = usize::try_from(start.min(length)).unwrap_or_default();
        let end = self.limit.map_or(count, |limit| start.saturating_add(limit).min(count));
        Ok(start..end)
    }
}

/// The arguments that every /query has (RFC 8620 §5.5).
#[derive(Debug)]
pub(crate) struct QueryArgs {
    pub(crate) account: AccountId,
    pub(crate) filter: Option<Value>,
    pub(crate) sort: Option<Value>,
    window: Window,
    is_total_asked: bool,
}

impl QueryArgs {
    pub(crate) async fn take(
        args: &mut Args,
        context: &Context,
        exchange: &Exchange,
    ) -> Result<Self, MethodError> {
        let account = args.account(context, Access::Read).await?;
        let anchor = args.nullable::<Id>("anchor")?;
        let resolved = |id: Id| match exchange.creations.resolve(id.as_str()) {
            Some(id) => id.to_owned(),
            None => id.into_string(),
        };
        Ok(Self {
            account,
            filter: args.nullable("filter")?,
            sort: args.nullable("sort")?,
            window: Window {
                position: args.optional("position")?.unwrap_or(0),
                anchor: anchor.map(resolved),
                anchor_offset: args.optional("anchorOffset")?.unwrap_or(0),
                limit: args
                    .nullable::<u64>("limit")?
                    .map(|limit| usize::try_from(limit).unwrap_or(usize::MAX)),
            },
            is_total_asked: args.optional("calculateTotal")?.unwrap_or(false),
        })
    }

    /// Writes the response: the requested part of `ids`.
    pub(crate) fn answer(
        mut self,
        context: &Context,
        exchange: &mut Exchange,
        state: &str,
        can_calculate_changes: bool,
        ids: &[String],
    ) -> Result<(), MethodError> {
        let limit_max = context.config.query_limit_max.get();
        // L1: the limit is returned when the server has set it.
        let is_limited = self.window.limit.unwrap_or(ids.len()) > limit_max;
        self.window.limit = Some(self.window.limit.unwrap_or(limit_max).min(limit_max));
        let range = self.window.range(ids.len(), |anchor| ids.iter().position(|id| id == anchor))?;
        let mut answer = exchange.answers.begin();
        answer.field("accountId", &account_id(self.account));
        answer.field("queryState", state);
        answer.field("canCalculateChanges", &can_calculate_changes);
        answer.field("position", &range.start);
        answer.field("ids", ids.get(range).unwrap_or_default());
        if self.is_total_asked {
            answer.field("total", &ids.len());
        }
        if is_limited {
            answer.field("limit", &limit_max);
        }
        Ok(())
    }
}

/// The arguments that every /queryChanges has (RFC 8620 §5.6). `upToId` is read but has no effect: it may shorten responses only when
/// no property of the filter and the sort can change.
#[derive(Debug)]
pub(crate) struct QueryChangesArgs {
    pub(crate) account: AccountId,
    pub(crate) filter: Option<Value>,
    pub(crate) sort: Option<Value>,
    pub(crate) since: String,
    changes_max: Option<u64>,
    is_total_asked: bool,
}

impl QueryChangesArgs {
    pub(crate) async fn take(args: &mut Args, context: &Context) -> Result<Self, MethodError> {
        let account = args.account(context, Access::Read).await?;
        args.nullable::<Id>("upToId")?;
        Ok(Self {
            account,
            filter: args.nullable("filter")?,
            sort: args.nullable("sort")?,
            since: args.required("sinceQueryState")?,
            changes_max: args.nullable("maxChanges")?,
            is_total_asked: args.optional("calculateTotal")?.unwrap_or(false),
        })
    }

    /// Writes the response: `ids` is the current result, and `changed` everything that may have changed since the old state. X2: those
    /// of them that are in the result are reported as removed and added again.
    pub(crate) fn answer(
        self,
        exchange: &mut Exchange,
        new_state: &str,
        ids: &[String],
        changed: &HashSet<String>,
    ) -> Result<(), MethodError> {
        let added: Vec<(usize, &String)> =
            ids.iter().enumerate().filter(|(_, id)| changed.contains(*id)).collect();
        let count = u64::try_from(changed.len() + added.len()).unwrap_or(u64::MAX);
        if self.changes_max.is_some_and(|max| count > max) {
            return Err(MethodError::TooManyChanges);
        }
        let mut removed: Vec<&String> = changed.iter().collect();
        removed.sort_unstable();
        let mut answer = exchange.answers.begin();
        answer.field("accountId", &account_id(self.account));
        answer.field("oldQueryState", &self.since);
        answer.field("newQueryState", new_state);
        if self.is_total_asked {
            answer.field("total", &ids.len());
        }
        answer.field("removed", &removed);
        let mut list = answer.list("added");
        for (index, id) in added {
            let mut item = list.object();
            item.field("id", id);
            item.field("index", &index);
        }
        Ok(())
    }
}

fn invalid(why: &str) -> MethodError {
    MethodError::InvalidArguments(why.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const LIMITS: FilterLimits = FilterLimits { depth_max: 16, conditions_max: 100 };

    fn parse(filter: Value) -> Result<Filter<bool>, MethodError> {
        Filter::parse(Some(&filter), LIMITS, |name, value| match (name, value) {
            ("is", Value::Bool(is)) => Ok(*is),
            ("is", _) => Err(invalid("is")),
            _ => Err(MethodError::UnsupportedFilter(name.to_owned())),
        })
    }

    fn holds(filter: Value) -> bool {
        parse(filter).unwrap().holds(&|is: &bool| *is)
    }

    #[test]
    fn l3_operators_nest_and_have_their_values_without_conditions() {
        assert!(holds(json!({})));
        assert!(holds(json!({"operator": "AND", "conditions": []})));
        assert!(!holds(json!({"operator": "OR", "conditions": []})));
        assert!(holds(json!({"operator": "NOT", "conditions": []})));
        assert!(!holds(json!({"operator": "NOT", "conditions": [{"is": false}, {"is": true}]})));
        assert!(holds(json!({"operator": "OR", "conditions": [{"is": false},
            {"operator": "NOT", "conditions": [{"operator": "AND", "conditions": [{"is": true}, {"is": false}]}]}]})));
    }

    #[test]
    fn l3_what_is_wrong_with_a_filter_has_its_error() {
        for filter in [
            json!([]),
            json!({"operator": "XOR", "conditions": []}),
            json!({"operator": "AND"}),
            json!({"operator": "AND", "conditions": [], "is": true}),
            json!({"operator": "AND", "conditions": [1]}),
            json!({"is": 1}),
        ] {
            assert!(matches!(parse(filter.clone()), Err(MethodError::InvalidArguments(_))), "{filter}");
        }
        assert!(matches!(parse(json!({"was": true})), Err(MethodError::UnsupportedFilter(_))));
        let mut deep = json!({"is": true});
        for _ in 1..LIMITS.depth_max {
            deep = json!({"operator": "AND", "conditions": [deep]});
        }
        assert!(parse(deep.clone()).is_ok());
        let deeper = json!({"operator": "AND", "conditions": [deep]});
        assert!(matches!(parse(deeper), Err(MethodError::UnsupportedFilter(_))));
        let many: Vec<Value> = (0..=LIMITS.conditions_max).map(|_| json!({"is": true})).collect();
        let many = json!({"operator": "AND", "conditions": many});
        assert!(matches!(parse(many), Err(MethodError::UnsupportedFilter(_))));
    }

    #[test]
    fn l4_a_sort_is_ascending_by_default_and_unknown_ones_are_unsupported() {
        let parse = |sort: Value| Comparator::parse_all(Some(&sort), |name| (name == "name").then_some(()));
        let sorted =
            parse(json!([{"property": "name"}, {"property": "name", "isAscending": false}])).unwrap();
        assert_eq!((sorted[0].is_ascending, sorted[1].is_ascending), (true, false));
        assert_eq!(sorted[0].collation, Collation::Unicode);
        assert!(matches!(parse(json!([{"property": "size"}])), Err(MethodError::UnsupportedSort(_))));
        let unknown = json!([{"property": "name", "collation": "i;basic"}]);
        assert!(matches!(parse(unknown), Err(MethodError::UnsupportedSort(_))));
        for sort in [json!({}), json!([1]), json!([{}]), json!([{"property": "name", "isAscending": 1}])] {
            assert!(matches!(parse(sort.clone()), Err(MethodError::InvalidArguments(_))), "{sort}");
        }
    }

    #[test]
    fn l4_collations_order_texts_as_their_specifications_say() {
        let sorted = |collation: Collation, texts: &[&'static str]| {
            let mut texts = texts.to_vec();
            texts.sort_by_key(|text| collation.key(text));
            texts
        };
        assert_eq!(sorted(Collation::Unicode, &["Öl", "öd", "b", "A"]), ["A", "b", "öd", "Öl"]);
        assert_eq!(sorted(Collation::AsciiCasemap, &["b", "A", "_"]), ["A", "b", "_"]);
        assert_eq!(sorted(Collation::Octet, &["b", "A", "B"]), ["A", "B", "b"]);
        assert_eq!(sorted(Collation::AsciiNumeric, &["x", "10", "9", "007a"]), ["007a", "9", "10", "x"]);
    }

    #[test]
    fn l2_positions_and_anchors_select_a_part_of_the_list() {
        let list = ["a", "b", "c", "d"];
        let ids = |window: Window| {
            let range = window.range(list.len(), |anchor| list.iter().position(|id| *id == anchor));
            range.map(|range| list[range].to_vec())
        };
        let at = |position, limit| Window { position, limit, ..Window::default() };
        assert_eq!(ids(at(1, Some(2))).unwrap(), ["b", "c"]);
        assert_eq!(ids(at(-2, None)).unwrap(), ["c", "d"]);
        assert_eq!(ids(at(-9, Some(1))).unwrap(), ["a"]);
        assert!(ids(at(9, None)).unwrap().is_empty());
        assert!(ids(at(0, Some(0))).unwrap().is_empty());
        let anchored = |anchor: &str, anchor_offset| Window {
            position: 3,
            anchor: Some(anchor.to_owned()),
            anchor_offset,
            limit: Some(2),
        };
        assert_eq!(ids(anchored("c", -1)).unwrap(), ["b", "c"]);
        assert_eq!(ids(anchored("b", -7)).unwrap(), ["a", "b"]);
        assert!(ids(anchored("b", i64::MAX)).unwrap().is_empty());
        assert!(matches!(ids(anchored("z", 0)), Err(MethodError::AnchorNotFound)));
    }
}
